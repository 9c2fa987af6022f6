"""The default space of a problem and the spaces of a tuning."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from tilewright.arch.model import Arch
from tilewright.dtypes import resolve
from tilewright.errors import BadArgument
from tilewright.ops.conv import config, names, swapping
from tilewright.ops.conv.config import (
    ALIGNMENTS,
    INDEX_BITS,
    SCHEDULERS,
    SHARING,
    SWAPPED,
    TURNED,
    ConvConfig,
)
from tilewright.ops.conv.pipelines import PIPELINES, by_gemm_space
from tilewright.ops.conv.pipelines.record import ALGORITHM, LINKED, Row
from tilewright.ops.conv.problem import DIRECTIONS, ConvProblem, outputs
from tilewright.ops.conv.rules import SIGNATURE, index_bits
from tilewright.ops.conv.turning import inside, turnable
from tilewright.ops.gemm.config import REDUCTIONS
from tilewright.ops.library import NO_AXES
from tilewright.space import KernelSpace, of_rows

AXES: dict[str, Any] = {
    "direction": "forward",
    "spatial_dims": 2,
    "dtype": "bf16",
    "dtype_out": "",
    "precision": "ieee",
    "tile_m": 128,
    "tile_n": 64,
    "tile_k": 32,
    "num_warps": 4,
    "num_stages": 2,
    "pipeline": "implicit",
    "scheduler": "tile",
    "group_m": 8,
    "merged": False,
    "runs": False,
    "merged_groups": 1,
    "alignment": 16,
    "alignment_out": 16,
    "index_bits": 32,
    "epilogue": "",
    "box": "",
    "held": "",
    "gemm": "",
    "reduction": "",
    "spread": 0,
    "classes": 1,
    "grouped": False,
    "turned": "",
}
"""Every axis, with its default. An empty dtype_out is the usual one, and so is an empty reduction
(`usual_reduction`)."""


_USUAL = tuple(AXES[name] for name in ALGORITHM)


def wildcard(axis: str, arch: Arch) -> Sequence[Any]:
    """What ``"*"`` means for an axis on an architecture. Raises `BadArgument`."""
    known: dict[str, Sequence[Any]] = {
        "direction": tuple(DIRECTIONS),
        "spatial_dims": (1, 2, 3),
        "pipeline": tuple(PIPELINES),
        "scheduler": SCHEDULERS,
        "reduction": REDUCTIONS,
        "num_warps": arch.num_warps,
        "num_stages": arch.num_stages,
        "merged": (False, True),
        "runs": (False, True),
        "grouped": (False, True),
        "alignment": ALIGNMENTS,
        "alignment_out": ALIGNMENTS,
        "index_bits": INDEX_BITS,
        "turned": TURNED,
    }
    if axis not in known:
        raise BadArgument(f"'*' has no meaning on {axis}; give its values")
    return known[axis]


def default_space(problem: ConvProblem, arch: Arch) -> KernelSpace:
    """The space to choose from where nothing was measured."""
    return _space(problem, arch, tuned=False)


def tuning_spaces(problem: ConvProblem, arch: Arch) -> Sequence[KernelSpace]:
    """What a tuning chooses from: more tiles, warps and stages, and both forms of a step."""
    return default_space(problem, arch), _space(problem, arch, tuned=True)


def _space(p: ConvProblem, arch: Arch, *, tuned: bool) -> KernelSpace:
    """The space of the algorithms of all pipelines; of a tuning, also with parts of sums that meet
    in a tree. Atomic sums are for users who declare them, as GEMM's are."""
    fixed: dict[str, Any] = {name: getattr(p, name) for name in SIGNATURE}
    fixed["spatial_dims"] = len(p.spatial)
    own = [*_own(inside(p, ""), arch, tuned)]
    if turned := turnable(p):
        own += _own(inside(p, turned), arch, tuned, turned)
    if swapping.refusal(p) is None:
        own += _own(inside(p, SWAPPED), arch, tuned, SWAPPED, swapping.PIPELINES)
    products = [
        row
        for how in ("", *by_gemm_space.turnings(p, tuned))
        for row in by_gemm_space.rows(p, arch, tuned, how)
    ]
    return of_rows("conv", fixed, LINKED, (*own, *products))


def _own(
    p: ConvProblem,
    arch: Arch,
    tuned: bool,
    turned: str = "",
    of: Collection[str] = tuple(PIPELINES),
) -> Iterator[Row]:
    """The rows of all pipelines for `p`, which kernels compute between layout steps if arrays are
    turned. of: their names."""
    bits = index_bits(p)
    for record in PIPELINES.values():
        if record.name in of and record.runs_on(arch):
            for algorithm in record.rows(p, arch, tuned):
                row = (*algorithm, *_USUAL[len(algorithm) :])
                for meet in ("", "tree") if tuned and _meets(row) else ("",):
                    yield (*row, meet, bits, "", turned)


def _meets(row: tuple[Any, ...]) -> bool:
    """Whether parts of sums can meet in several ways."""
    said = dict(zip(ALGORITHM, row, strict=True))
    whole = said["tile_n"] & (said["tile_n"] - 1) == 0  # in one accumulator
    of = PIPELINES[said["pipeline"]]
    without_dot = of.has("depthwise") or of.has("vector_units")
    return said["scheduler"] in SHARING and not without_dot and whole


def make_config(fields: Mapping[str, Any], arch: Arch) -> ConvConfig:
    """The config with these values of all axes. Raises `BadArgument`."""
    given = [fields[axis] for axis in AXES]
    try:
        return _config(arch.fp8, *given)
    except TypeError:  # a value of no axis' type, which cannot be looked up
        return _config.__wrapped__(arch.fp8, *given)


@lru_cache(maxsize=32768, typed=True)  # problems' spaces differ in few of their kernels
def _config(fp8: str, *given: Any) -> ConvConfig:
    values = dict(zip(AXES, given, strict=True))
    if values["pipeline"] == config.VENDOR:
        raise BadArgument(NO_AXES)
    if values["gemm"]:
        values = of_gemm(values)
    dtype = values["dtype"] = resolve(values["dtype"], fp8)
    if not values["reduction"]:
        values["reduction"] = config.usual_reduction(values["scheduler"])
    usual = outputs(dtype, values["epilogue"])[0]
    values["dtype_out"] = resolve(values["dtype_out"] or usual, fp8)
    return names.check(ConvConfig(**values))


def of_gemm(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of all axes of a kernel of GEMM. A space need not say more of it than ``gemm``,
    its direction and its dimensions. Raises `BadArgument` for values that the kernel does not
    have."""
    said = (values[axis] for axis in ("direction", "spatial_dims", "gemm", "turned"))
    found = config.of_words(*said)
    for axis, value in values.items():
        has = getattr(found, axis)
        if value not in (has, AXES[axis]):
            raise BadArgument(f"{axis} = {value!r}, but gemm = {found.gemm} says {has!r}")
    return {axis: getattr(found, axis) for axis in values}
