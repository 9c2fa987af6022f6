"""Warp roles, in Gluon for sm_90: one to three groups of four warps multiply, others load."""

from tilewright.ops.device.gluon_api import builtin, gl


@builtin
def specialized(
    multiply, work, load, loads, groups, registers, loading, loaders=1,
    _semantic=None, _generator=None,
):  # fmt: skip
    """Let `groups` warp groups call `multiply`, each with `work` and its number, which is a
    constant there, and `loaders` warps call `load` with `loads`.

    registers: of a thread of each group but the first, which has what the others leave.
    loading: registers of a thread of the warps that load.
    """
    count = gl.constexpr(groups).value
    roles = [(multiply, (*work, gl.constexpr(group))) for group in range(count)]
    others = count - 1
    gl.warp_specialize(
        [*roles, (load, loads)],
        [4] * others + [gl.constexpr(loaders).value],
        [registers] * others + [loading],
        _semantic=_semantic,
        _generator=_generator,
    )
