"""Warp roles, in Gluon for sm_90: one to three groups of four warps multiply, one warp loads."""

from tilewright.ops.device.gluon_api import builtin, gl


@builtin
def specialized(
    multiply, work, load, loads, groups, registers, loading, _semantic=None, _generator=None
):  # fmt: skip
    """Let `groups` warp groups call `multiply`, each with `work` and its number, which is a
    constant there, and one warp call `load` with `loads`.

    registers: of a thread of each group but the first, which has what the others leave.
    loading: registers of a thread of the warp that loads.
    """
    count = gl.constexpr(groups).value
    roles = [(multiply, (*work, gl.constexpr(group))) for group in range(count)]
    others = count - 1
    gl.warp_specialize(
        [*roles, (load, loads)],
        [4] * others + [1],
        [registers] * others + [loading],
        _semantic=_semantic,
        _generator=_generator,
    )
