"""What the parameters of the kernels of causal convolutions are, and the kernels of a config."""

from __future__ import annotations

from dataclasses import replace

from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops.binder import Array, Catalogue, Constant, Context, Numbers, Part, Value, sizes
from tilewright.ops.causal_conv.config import CausalConvConfig
from tilewright.ops.causal_conv.operands import operands
from tilewright.ops.causal_conv.problem import EXTRAS, CausalConvProblem
from tilewright.ops.nouns import MAIN

KERNELS = "tilewright.ops.causal_conv.kernels"

BLOCK, TOTALS_WARPS = 128, 4
"""Channels and warps of a workgroup that adds up shares."""

WORKGROUPS_FOR_UNIT = 4
"""Workgroups for each compute unit that shares of the positions make up."""

_WORD = {
    "bias": "bias", "dbias": "bias", "seq_idx": "packed", "initial_states": "initial",
    "final_states": "final", "dfinal_states": "final", "dinitial_states": "initial",
    "cache_seqlens": "circular", "conv_state_indices": "indexed",
}  # fmt: skip
"""Operands that are there where a word is said."""


# --- what parameters are ------------------------------------------------------------------------


def _beside(c: CausalConvConfig) -> int:
    """Elements of x and y that lie side by side, or a divisor."""
    return 1 if c.inner == "any" else max(1, c.alignment // DTYPES[c.dtype].bytes)


def _apart(c: CausalConvConfig) -> tuple[int, int, int]:
    """What strides of x and y are multiples of."""
    n = _beside(c)
    return (n, 1, n) if c.inner == "channels" else (n, n, 1)


def _count(name: str) -> Numbers:
    """Channels or positions, which may lie side by side."""
    return replace(sizes(name)[name], multiples=lambda c: _beside(c) if c.inner == name else 1)


def _has(word: str) -> Constant:
    return lambda c, _: c.has(word)


def _array(name: str, dtype: str, rank: int = 0) -> Catalogue:
    """An operand, and the strides of its `rank` dimensions: 0 along those of one element, so that
    they are multiples of whatever was promised."""
    word = _WORD.get(name)
    vectors = name in ("x", "y", "dy", "dx")

    def there(c: CausalConvConfig) -> bool:
        return word is None or c.has(word)

    def strides(x: Context) -> tuple[int, ...]:
        of = x.operands[name]
        return tuple(0 if n <= 1 else s for n, s in zip(of.shape, of.strides, strict=True))

    return {
        name: Array(
            dtype,
            there=there,
            aligned=lambda c: c.alignment if vectors and _beside(c) > 1 else 1,
            near=lambda c: c.index_bits == 32,
        ),
        f"{name}_strides": Numbers(
            lambda c: (f"i{c.index_bits}",) * rank,
            strides,
            there,
            multiples=lambda c: _apart(c) if vectors else 1,
        ),
    }


CATALOGUE: Catalogue = {
    **_array("x", "dtype", 3),
    **_array("y", "dtype", 3),
    **_array("dy", "dtype", 3),
    **_array("dx", "dtype", 3),
    **_array("w", "dtype_w", 2),
    **_array("dw", "dtype_w"),
    **_array("bias", "dtype_w"),
    **_array("dbias", "dtype_w"),
    **_array("conv_state", "dtype", 3),
    **_array("initial_states", "dtype", 3),
    **_array("dinitial_states", "dtype", 3),
    **_array("final_states", "dtype", 3),
    **_array("dfinal_states", "dtype", 3),
    **_array("seq_idx", "int32", 2),
    **_array("cache_seqlens", "int32"),
    **_array("conv_state_indices", "int32"),
    "partials": Array("fp32", shape=lambda x: (x.splits, x.problem.taps + 1, x.problem.channels)),
    "channels": _count("channels"),
    "tokens": _count("tokens"),
    **sizes("batch", "state_len", "cache_entries"),
    "splits": Numbers("i32", lambda x: x.splits),
    "BLOCK": lambda c, _: BLOCK,
    **{word.upper(): _has(word) for word in EXTRAS},
}


# --- what is launched ---------------------------------------------------------------------------


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
    """Workgroups of the first kernel."""
    across = _up(p.channels, c.tile_n)
    return across * (splits if c.direction == "backward" else _lines(c, p))


def context(c: CausalConvConfig, p: CausalConvProblem, device: Device) -> Context:
    """What the launch of `c` for `p` depends on."""
    return Context(c, p, device, {one.name: one for one in operands(p)}, splits_of(c, p, device))


def _main(direction: str, module: str) -> Part:
    return Part(
        name=MAIN,
        kernel=f"{KERNELS}.{module}:causal_{direction}",
        grid=lambda x: workgroups(x.config, x.problem, x.splits),
        options=_options,
        there=lambda c: c.direction == direction,
    )


def _options(c: CausalConvConfig, arch: Arch) -> tuple[tuple[str, Value], ...]:
    return ("num_warps", c.num_warps), ("num_stages", 1)


PARTS = (
    _main("forward", "whole"),
    _main("backward", "whole"),
    _main("update", "update"),
    Part(
        name="totals",
        kernel=f"{KERNELS}.whole:causal_totals",
        grid=lambda x: _up(x.problem.channels, BLOCK),
        options=lambda c, arch: (("num_warps", TOTALS_WARPS), ("num_stages", 1)),
        there=lambda c: c.direction == "backward",
        own=sizes("channels"),  # no promise: it loads one channel at a time
    ),
)
