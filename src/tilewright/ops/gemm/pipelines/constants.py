"""The constants that several GEMM kernels have, by name: each value is defined here once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops import epilogues
from tilewright.ops.gemm import scales, swap
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.layouts import masked

Value = int | bool | str
Constant = Callable[[GemmConfig, Arch], Value]

TILE = ("TILE_M", "TILE_N", "TILE_K", "GROUP_M")
ROWS = ("A_ROW", "B_ROW", "C_ROW")
SCHEDULE = ("SCHEDULER", "REDUCTION")
UNSHARED = ("flags", "partials", "splits")
"""Arguments of the schedulers that share tiles; where they are not needed, constants."""
EPILOGUE = ("TAKES", "FOLD", "LARGEST")
COMMON = (*TILE, *ROWS, *SCHEDULE, "PRECISION", "INT_ACC", *UNSHARED, *EPILOGUE)
MASKS = ("MASK_M", "MASK_N", "MASK_K")


def unshared(c: GemmConfig) -> tuple[str, ...]:
    """Those of `UNSHARED` that are constants: with reduction ``two_stage`` all but `splits`, in a
    cluster all."""
    if c.two_stage:
        return UNSHARED[:2]
    return () if c.parts_meet else UNSHARED


def partial_dtype(c: GemmConfig) -> str:
    """The dtype of the partial sums that workgroups exchange. Block scales are floats, and so are
    the sums that they multiply."""
    return "int32" if c.dtype_acc == "int32" and not scales.count(c) else "fp32"


def _takes(c: GemmConfig, _: Arch) -> str:
    found = epilogues.kinds(c.epilogue)
    return swap.takes(found) if c.swap_ab else found


def _pdl(c: GemmConfig, arch: Arch) -> str:
    """``a`` or ``b`` for the kernel's matrix that it may load ahead: the caller's B. With reduction
    ``two_stage`` at least ``wait``: such kernels let the next one start early. Where the kernel
    before has ended, the wait costs nothing."""
    if c.two_stage and c.dependent_launch == "none":
        return "wait" if arch.has("pdl") else "none"
    if c.dependent_launch == "ahead":
        return "a" if c.swap_ab else "b"
    return c.dependent_launch


def _mask(axis: int) -> Constant:
    return lambda c, _: masked(c.layout, c.pad_m, c.pad_n, c.pad_k)[axis]


SHARED: Mapping[str, Constant] = {
    "TILE_M": lambda c, _: c.tile_m,
    "TILE_N": lambda c, _: c.tile_n,
    "TILE_K": lambda c, _: c.tile_k,
    "GROUP_M": lambda c, _: c.group_m,
    "A_ROW": lambda c, _: c.layout[0] == "r",
    "B_ROW": lambda c, _: c.layout[1] == "r",
    "C_ROW": lambda c, _: c.layout[2] == "r",
    "SCHEDULER": lambda c, _: c.scheduler,
    "REDUCTION": lambda c, _: c.reduction,
    "DONE": lambda c, arch: arch.stores_done if c.reduction != "none" else "",
    "PRECISION": lambda c, _: c.precision,
    "INT_ACC": lambda c, _: partial_dtype(c) == "int32",
    **dict.fromkeys(UNSHARED, lambda c, _: 0),
    "splits": lambda c, _: c.split_k if c.clustered else 0,
    "TAKES": _takes,
    "FOLD": lambda c, _: epilogues.fold(c.epilogue),
    "LARGEST": lambda c, _: int(DTYPES[c.dtype_c].largest),
    "SCALES": lambda c, _: scales.kernel_blocks(c),
    "BATCHING": lambda c, _: c.batching,
    **{name: _mask(axis) for axis, name in enumerate(MASKS)},
    "SPLIT": lambda c, _: c.store == "split",
    "STAGES": lambda c, _: c.num_stages,
    "PDL": _pdl,
}
