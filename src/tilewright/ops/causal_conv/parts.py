"""What to compile and to launch for a causal convolution."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops.causal_conv.config import CausalConvConfig
from tilewright.ops.causal_conv.operands import operands
from tilewright.ops.causal_conv.problem import CausalConvProblem
from tilewright.ops.nouns import (
    MAIN,
    Argument,
    KernelSource,
    Launch,
    Pointer,
    Scalar,
    Step,
    Temporary,
)

KERNELS = "tilewright.ops.causal_conv.kernels"
PARTIALS, TOTALS = "partials", "totals"

BLOCK, TOTALS_WARPS = 128, 4
"""Channels and warps of a workgroup that adds up shares."""

WORKGROUPS_FOR_UNIT = 4
"""Workgroups for each compute unit that shares of the positions make up."""

_POINTERS = {
    "forward": ("x", "w", "y", "bias", "seq_idx", "initial_states", "final_states"),
    "backward": ("x", "w", "dy", "dx", PARTIALS, "bias", "seq_idx", "initial_states",
                 "dfinal_states", "dinitial_states"),
    "update": ("x", "conv_state=state", "w", "y", "bias", "cache_seqlens", "conv_state_indices"),
}  # fmt: skip
"""Pointers, in the kernels' order; ``operand=name`` where the kernel has another name."""

_NUMBERS = {
    "forward": ("channels", "tokens"),
    "backward": ("batch", "channels", "tokens", "splits"),
    "update": ("channels", "tokens", "state_len", "cache_entries"),
}

_STRIDES: dict[str, tuple[tuple[str, str], ...]] = {
    "forward": (("x", "x"), ("w", "w"), ("y", "y"), ("seq", "seq_idx"),
                ("state", "initial_states"), ("final", "final_states")),
    "backward": (("x", "x"), ("w", "w"), ("y", "dy"), ("dx", "dx"), ("seq", "seq_idx"),
                 ("state", "initial_states"), ("final", "dfinal_states"),
                 ("dinitial", "dinitial_states")),
    "update": (("x", "x"), ("w", "w"), ("y", "y"), ("state", "conv_state")),
}  # fmt: skip
"""Strides by the kernels' names, and the operands that they are of."""

_RANK = {"w": 2, "seq": 2}

_FLAGS = {
    "forward": ("bias", "silu", "initial", "final", "packed"),
    "backward": ("bias", "silu", "initial", "final", "packed"),
    "update": ("bias", "silu", "circular", "indexed"),
}

_WORD = {
    "bias": "bias", "seq_idx": "packed", "initial_states": "initial", "final_states": "final",
    "dfinal_states": "final", "dinitial_states": "initial", "cache_seqlens": "circular",
    "conv_state_indices": "indexed",
}  # fmt: skip
"""Operands that are there where a word is said."""


def _there(c: CausalConvConfig, name: str) -> bool:
    return name not in _WORD or c.has(_WORD[name])


def _pointed(c: CausalConvConfig, name: str) -> str:
    if name == PARTIALS:
        return "*fp32"
    if name in ("seq_idx", "cache_seqlens", "conv_state_indices"):
        return "*i32"
    weights = name in ("w", "bias", "dw", "dbias")
    return f"*{DTYPES[c.dtype_w if weights else c.dtype].triton}"


def sources(c: CausalConvConfig, arch: Arch) -> Mapping[str, KernelSource]:
    """What to compile for `c` on `arch`, by part."""
    index = "i32" if c.index_bits == 32 else "i64"
    signature: list[tuple[str, str]] = []
    for pair in _POINTERS[c.direction]:
        name, _, own = pair.partition("=")
        signature.append((own or name, _pointed(c, name) if _there(c, name) else "()"))
    signature += [(name, "i32") for name in _NUMBERS[c.direction]]
    for name, of in _STRIDES[c.direction]:
        if _there(c, of):
            signature += [(f"{name}_strides.{i}", index) for i in range(_RANK.get(name, 3))]
        else:
            signature.append((f"{name}_strides", "()"))
    constants: dict[str, int | bool | str] = {"TILE_N": c.tile_n, "TAPS": c.taps}
    if c.direction != "update":
        constants = {"TILE_M": c.tile_m, **constants, "INNER": c.inner}
    constants |= {word.upper(): c.has(word) for word in _FLAGS[c.direction]}
    module = "update" if c.direction == "update" else "whole"
    found = {
        MAIN: _source(
            c, arch, module, f"causal_{c.direction}", signature, constants, c.num_warps,
            _promises(c),
        )
    }  # fmt: skip
    if c.direction == "backward":
        said = [("partials", "*fp32"), ("dw", _pointed(c, "dw"))]
        said.append(("dbias", _pointed(c, "dbias") if c.has("bias") else "()"))
        said += [("channels", "i32"), ("splits", "i32")]
        those: dict[str, int | bool | str] = {"BLOCK": BLOCK, "TAPS": c.taps, "BIAS": c.has("bias")}
        found[TOTALS] = _source(
            c, arch, "whole", "causal_totals", said, those, TOTALS_WARPS, {"partials": 16}
        )
    return found


def _source(
    c: CausalConvConfig,
    arch: Arch,
    module: str,
    function: str,
    signature: list[tuple[str, str]],
    constants: Mapping[str, int | bool | str],
    warps: int,
    promises: Mapping[str, int],
) -> KernelSource:
    pointers = tuple(name for name, kind in signature if kind.startswith("*"))
    near = arch.backend == "hip" and c.index_bits == 32
    return KernelSource(
        module=f"{KERNELS}.{module}",
        function=function,
        signature=(*signature, *((name, "constexpr") for name in constants)),
        constants=tuple(constants.items()),
        divisibility=tuple(promises.items()),
        pointer_range_32=tuple(n for n in pointers if n != PARTIALS) if near else (),
        options=(("num_warps", warps), ("num_stages", 1)),
    )


def _promises(c: CausalConvConfig) -> dict[str, int]:
    """What alignment lets the compiler assume: addresses in bytes; strides and the number of
    neighbours in elements."""
    found = {PARTIALS: 16} if c.direction == "backward" else {}
    if c.inner == "any":
        return found
    count = c.alignment // DTYPES[c.dtype].bytes
    if count <= 1:
        return found
    outer = (0, 2) if c.inner == "channels" else (0, 1)
    arrays = {"forward": ("x", "y"), "backward": ("x", "dy", "dx")}[c.direction]
    for name in arrays:
        found[name] = c.alignment
        of = "y" if name == "dy" else name
        found |= {f"{of}_strides.{i}": count for i in outer}
    return found | {c.inner: count}


# --- what to launch ----------------------------------------------------------------------------


def _up(size: int, by: int) -> int:
    return -(-size // by)


def _lines(c: CausalConvConfig, p: CausalConvProblem) -> int:
    """Tiles of positions, of all sequences."""
    if c.direction == "update":
        return p.batch
    before = p.taps - 1 if c.direction == "backward" and p.has("initial") else 0
    count = _up(p.tokens + before, c.tile_m)
    return p.batch * (max(1, count) if c.direction == "forward" else count)


def splits_of(c: CausalConvConfig, p: CausalConvProblem, device: Device) -> int:
    """Shares of the positions: as many as fill the device, each of a tile or more."""
    if c.direction != "backward":
        return 1
    wanted = WORKGROUPS_FOR_UNIT * device.compute_units // max(1, _up(p.channels, c.tile_n))
    return max(1, min(wanted, _lines(c, p)))


def workgroups(c: CausalConvConfig, p: CausalConvProblem, splits: int) -> int:
    """Of the first kernel."""
    across = _up(p.channels, c.tile_n)
    return across * (splits if c.direction == "backward" else _lines(c, p))


def launch(c: CausalConvConfig, p: CausalConvProblem, device: Device) -> Launch:
    """The launch of `c` for `p` on `device`; nothing for results without elements."""
    splits = splits_of(c, p, device)
    if not (count := workgroups(c, p, splits)):
        return Launch(())
    stated = {one.name: one for one in operands(p)}
    index = "i32" if c.index_bits == 32 else "i64"
    names = (pair.partition("=")[0] for pair in _POINTERS[c.direction])
    arguments: list[Argument] = [Pointer(name) for name in names if _there(c, name)]
    for name in _NUMBERS[c.direction]:
        value = splits if name == "splits" else getattr(p, name)
        arguments.append(Scalar("i32", value))
    for _, of in _STRIDES[c.direction]:
        if _there(c, of):
            # 0 along dimensions of one element: a multiple of whatever was promised.
            each = zip(stated[of].shape, stated[of].strides, strict=True)
            arguments += [Scalar(index, 0 if n <= 1 else stride) for n, stride in each]
    steps = [Step((count, 1, 1), tuple(arguments))]
    if c.direction != "backward":
        return Launch(tuple(steps))
    made: list[Argument] = [
        Pointer(name) for name in (PARTIALS, "dw", "dbias") if _there(c, _base(name))
    ]
    totals = (*made, Scalar("i32", p.channels), Scalar("i32", splits))
    steps.append(Step((_up(p.channels, BLOCK), 1, 1), totals, TOTALS))
    shape = (splits, p.taps + 1, p.channels)
    return Launch(tuple(steps), (Temporary(PARTIALS, shape, "fp32"),))


def _base(name: str) -> str:
    return "bias" if name == "dbias" else name
