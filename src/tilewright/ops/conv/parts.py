"""Kernels in Triton that take operands through pointers: what each takes and needs, by the names of
the catalogue (`arguments`), and how it is compiled and launched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops import epilogues
from tilewright.ops.conv import packing, runs
from tilewright.ops.conv.arguments import (
    ARGUMENTS,
    BLOCK,
    CONSTANTS,
    DONE,
    FEW_BLOCK,
    PROMISED,
    Context,
    Value,
)
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.geometry import MOST_DIMS, cdiv
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.nouns import Argument, KernelSource, Step

KERNELS = "tilewright.ops.conv.kernels"


@dataclass(frozen=True, slots=True)
class Part:
    """One kernel.

    module, function: where it is.
    grid: workgroups, for a config, a problem and the number of parts.
    arguments, constants: names in the catalogue by the names of the kernel's, in its order; a name
        alone where both are the same.
    tiled: whether the config's warps and stages are for it.
    epilogue: whether it has the operations of the epilogue, as ``CHAIN``.
    """

    module: str
    function: str
    grid: Callable[[ConvConfig, ConvProblem, int], int]
    arguments: tuple[str, ...]
    constants: tuple[str, ...]
    tiled: bool = True
    epilogue: bool = False

    def named(self) -> list[tuple[str, str]]:
        """(the kernel's name, the catalogue's) of each argument."""
        return [*map(_named, self.arguments)]


def _named(said: str) -> tuple[str, str]:
    name, _, of = said.partition("=")
    return name, of or name


SUM = Part(
    module="weights",
    function="conv_totals",
    grid=lambda c, p, _: cdiv(p.k * p.taps * p.group_c, BLOCK),
    arguments=("partials", "made", "made_strides", "splits", "count", "group_c", "taps"),
    constants=("BLOCK", "NDIM"),
    tiled=False,
)

FEW_SUM = replace(
    SUM,
    function="conv_few_totals",
    grid=lambda c, p, _: cdiv(p.k * p.taps * p.group_c, FEW_BLOCK),
    constants=("BLOCK=FEW_BLOCK", "WAYS", "NDIM"),
)
"""Adds up the parts of each weight where there are few weights, in many parts."""

TOTALS = "totals"
"""The part of a kernel that adds up parts."""

TOTALS_WARPS = 4


def source(part: Part, c: ConvConfig, arch: Arch) -> KernelSource:
    """What to compile for `c` on `arch`."""
    signature: list[tuple[str, str]] = []
    for name, of in part.named():
        one = ARGUMENTS[of]
        types = one.types(c)
        if not one.is_tuple:
            signature.append((name, types[0]))
        elif types:
            signature += [(f"{name}.{i}", kind) for i, kind in enumerate(types)]
        else:
            signature.append((name, "()"))
    done = arch.stores_done if c.parts_meet else ""
    constants: tuple[tuple[str, Value], ...] = tuple(
        (name, done if of == DONE else CONSTANTS[of](c)) for name, of in map(_named, part.constants)
    )
    functions: tuple[tuple[str, tuple[str, ...]], ...] = ()
    if part.epilogue:
        functions = (("CHAIN", tuple(o.function for o in epilogues.parse(c.epilogue))),)
    signature += [(name, "constexpr") for name, _ in (*constants, *functions)]
    warps, stages = (c.num_warps, c.num_stages) if part.tiled else (TOTALS_WARPS, 1)
    return KernelSource(
        module=f"{KERNELS}.{part.module}",
        function=part.function,
        signature=tuple(signature),
        constants=constants,
        divisibility=tuple(_promises(part, c).items()),
        pointer_range_32=_within_reach(part, c, arch),
        options=(("num_warps", warps), ("num_stages", stages)),
        functions=functions,
    )


def _promises(part: Part, c: ConvConfig) -> dict[str, int]:
    """What alignment lets the compiler assume: addresses in bytes; strides, and a group's channels,
    in elements."""
    found: dict[str, int] = {}
    read = c.alignment // DTYPES[c.dtype].bytes
    written = c.alignment_out // DTYPES[c.dtype_out].bytes
    of_weights = c.alignment_weights // DTYPES[c.dtype].bytes
    names = dict(part.named())
    for name, of in names.items():
        if of in ("sums", "partials") and c.two_stage:
            found[name] = 16  # from an allocator
        elif of == "meeting" and c.parts_meet:
            found |= {f"{name}.0": 16, f"{name}.1": 16}
        elif of in PROMISED or of == "sums":
            made = of in ("made", "sums")
            if of == "weights" and (c.depthwise or c.runs):
                continue  # taps are innermost there, or nothing is; rows of runs are of any length
            alignment, count = (c.alignment_out, written) if made else (c.alignment, read)
            if of == "weights":
                alignment, count = c.alignment_weights, of_weights
            if c.runs and of == "y" and not made:
                alignment, count = runs.READ, runs.READ // DTYPES[c.dtype].bytes
            if alignment == 1:
                continue
            found[name] = alignment
            # Pixels of runs lie as close as their channels.
            dims = (0, 2, 3) if c.runs and of in ("source", "x") else (0, 2, 3, 4)
            beside = PROMISED["made" if made else of]
            if count > 1:
                found |= {f"{s}.{i}": count for s in beside if s in names for i in dims}
    for name in (packing.X, packing.W):
        if name in names:
            found[name] = packing.WHOLE
    if "packed_strides" in names:
        whole = packing.WHOLE // DTYPES[c.dtype].bytes
        found |= {f"packed_strides.{i}": whole for i in range(MOST_DIMS)}
        found |= {"packed_steps.0": whole, "packed_steps.1": whole}
        found["packed_steps.2"] = max(1, read)
    if "row_w" in names:
        found["row_w"] = packing.WHOLE // DTYPES[c.dtype].bytes
    if "runs" in names and c.runs and read > 1:
        found |= {f"runs.{i}": read for i in range(4)}
    for name, count in _channels(c, read, written).items():
        if name in names and count > 1:
            found[name] = count
    for i, taken in enumerate(epilogues.takes(c.epilogue) if part.epilogue else ()):
        if taken.kind == "d" and c.alignment_out > 1:
            found[f"extra.{i}"] = c.alignment_out
    return found


def _channels(c: ConvConfig, read: int, written: int) -> dict[str, int]:
    """What a group's channels are multiples of. Weights have c innermost, which the data's gradient
    makes; a depthwise kernel reads the channels that it makes."""
    if c.runs:
        of_y = runs.READ // DTYPES[c.dtype].bytes
        return {"channels_out": max(1, written), "group_k": of_y}
    of_weights = c.alignment_weights // DTYPES[c.dtype].bytes
    also_read = of_weights if c.direction == "data" else read if c.depthwise else 1
    return {
        "channels_in": max(1, read),
        "channels_out": max(1, written, also_read),
        "group_c": max(1, of_weights),
        "group_k": max(1, read),
    }


def _within_reach(part: Part, c: ConvConfig, arch: Arch) -> tuple[str, ...]:
    """Pointers to operands that span under 2 GiB, for AMD's buffer instructions."""
    if arch.backend != "hip" or c.index_bits != 32:
        return ()
    pointed = ("source", "weights", "made", "x", "y")
    found = [name for name, of in part.named() if of in pointed]
    if part.epilogue:
        found += [f"extra.{i}" for i, _ in enumerate(epilogues.takes(c.epilogue))]
    return tuple(found)


def steps(
    part: Part, name: str, c: ConvConfig, p: ConvProblem, splits: int, groups: int
) -> list[Step]:
    """The launch of a kernel, as part `name`, in so many workgroups; none for none.

    splits: parts that the pixels are in.
    """
    if not groups:
        return []
    arguments: list[Argument] = []
    for _, of in part.named():
        arguments += ARGUMENTS[of].values(Context(c, p, splits))
    return [Step((groups, 1, 1), tuple(arguments), name)]
