"""The kernels of a config: what each computes, takes and needs, in the order in which they run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops.conv import sharing
from tilewright.ops.conv.arguments import (
    ARGUMENTS,
    BLOCK,
    CONSTANTS,
    DONE,
    FEW_BLOCK,
    PROMISED,
    Context,
    Value,
    few_weights,
    walked,
)
from tilewright.ops.conv.config import ConvConfig
from tilewright.ops.conv.geometry import cdiv
from tilewright.ops.conv.pipelines import (
    bands,
    bands_launch,
    boxed,
    boxed_launch,
    boxed_weights,
    grouped,
    grouped_launch,
    grouped_weights,
    runs,
    windows,
)
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.gemm import epilogues
from tilewright.ops.nouns import MAIN, Argument, KernelSource, Launch, Step

KERNELS = "tilewright.ops.conv.kernels"

TOTALS = "totals"


@dataclass(frozen=True, slots=True)
class Part:
    """One kernel.

    module, function: where it is.
    grid: workgroups, for a config, a problem and the number of parts.
    arguments: names in the catalogue by the names of the kernel's, in its order; a name alone where
        both are the same.
    constants: names in the catalogue.
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
        pairs = (name.partition("=") for name in self.arguments)
        return [(name, of or name) for name, _, of in pairs]


def classes(p: ConvProblem) -> int:
    """Residue classes of the result's pixels."""
    return math.prod(p.stride) if p.direction == "data" else 1


def pixels(p: ConvProblem) -> int:
    """Pixels of the result that tiles are cut from, in each class."""
    return p.n * math.prod(walked(p))


def _gather_grid(c: ConvConfig, p: ConvProblem, _: int) -> int:
    channels = p.group_c if p.direction == "data" else p.group_k
    columns = cdiv(channels * c.merged_groups, c.tile_n)
    return cdiv(pixels(p), c.tile_m) * columns * cdiv(p.groups, c.merged_groups) * classes(p)


def _depthwise_grid(c: ConvConfig, p: ConvProblem, _: int) -> int:
    return cdiv(pixels(p), c.tile_m) * cdiv(p.c, c.tile_n) * classes(p)


def _window_grid(c: ConvConfig, p: ConvProblem, _: int) -> int:
    return cdiv(windows.count(c, p), c.tile_m) * cdiv(p.c, c.tile_n) * windows.classes(c, p)


_WALK = ("sizes", "full", "walked", "taps", "stride", "dilation", "before")
_CLASSES = ("phase", "common", "inverse")
_LAST = ("TAKES", "LARGEST")

GATHER = Part(
    module="gather",
    function="conv_gather",
    grid=_gather_grid,
    arguments=(
        "source", "weights", "made", "extra", "source_strides", "weight_strides", "made_strides",
        "images", "channels_in", "channels_out", "groups", *_WALK, *_CLASSES, "runs",
    ),
    constants=(
        "TILE_M", "TILE_N", "TILE_K", "GROUP_M", "NDIM", "DATA", "MERGED", "RUNS", "BUNDLE",
        "UNIT", "UNIT_OUT", "PRECISION", "INT_ACC", *_LAST,
    ),
    epilogue=True,
)  # fmt: skip

DEPTHWISE = Part(
    module="depthwise",
    function="conv_depthwise",
    grid=_depthwise_grid,
    arguments=(
        "source", "weights", "made", "extra", "source_strides", "weight_strides", "made_strides",
        "images", "channels_out=channels", *_WALK, *_CLASSES,
    ),
    constants=("TILE_M", "TILE_N", "NDIM", "DATA", "UNIT", "UNIT_OUT", "INT_ACC", *_LAST),
    epilogue=True,
)  # fmt: skip

_HELD = ("TAPS_D", "TAPS_H", "TAPS_W", "STEP_H", "STEP_W", "STRIP", "EARLY")

HELD = replace(
    DEPTHWISE,
    module="held",
    function="conv_held",
    grid=_window_grid,
    arguments=(
        "source", "weights", "made", "extra", "source_strides", "weight_strides", "made_strides",
        "images", "channels_out=channels", "sizes", "full", "stride", "dilation", "before",
        "lines", "steps", "origin",
    ),
    constants=(
        "TILE_M", "TILE_N", "NDIM", "DATA", *_HELD, "UNIT", "UNIT_OUT", "INT_ACC", *_LAST,
    ),
)  # fmt: skip

_ROW = ("TAPS_W", "STEP_W", "STRIP")

ROWS = replace(
    DEPTHWISE,
    module="rows",
    function="conv_rows",
    grid=_window_grid,
    constants=("TILE_M", "TILE_N", "NDIM", "DATA", *_ROW, "UNIT", "UNIT_OUT", "INT_ACC", *_LAST),
)

WEIGHTS = Part(
    module="weights",
    function="conv_weights",
    grid=lambda c, p, splits: sharing.tiles(c, p) * splits,
    arguments=(
        "x", "y", "made=sums", "meeting", "x_strides", "y_strides", "made_strides", "images",
        "group_c", "group_k", "groups", "sizes", "outs", "taps", "stride", "dilation", "before",
        "splits", "runs",
    ),
    constants=(
        "TILE_M", "TILE_N", "TILE_K", "GROUP_M", "NDIM", "MERGED", "RUNS", "BUNDLE", "UNIT",
        "UNIT_OUT", "TWO_STAGE", "SCHEDULER", "REDUCTION", "PRECISION", DONE,
    ),
)  # fmt: skip

DEPTHWISE_WEIGHTS = Part(
    module="depthwise",
    function="conv_depthwise_weights",
    grid=lambda c, p, splits: sharing.tiles(c, p) * splits,
    arguments=(
        "x", "y", "made=sums", "x_strides", "y_strides", "made_strides", "images",
        "channels_out=channels", "sizes", "outs", "taps", "stride", "dilation", "before", "splits",
    ),
    constants=("TILE_M", "TILE_N", "TILE_K", "NDIM", "UNIT", "TWO_STAGE"),
)  # fmt: skip

HELD_WEIGHTS = replace(
    DEPTHWISE_WEIGHTS,
    module="held",
    function="conv_held_weights",
    arguments=(
        "x", "y", "made=sums", "x_strides", "y_strides", "made_strides", "images",
        "channels_out=channels", "sizes", "outs", "stride", "dilation", "before", "lines", "steps",
        "splits",
    ),
    constants=("TILE_M", "TILE_N", "NDIM", *_HELD, "UNIT", "TWO_STAGE"),
)  # fmt: skip

ROWS_WEIGHTS = replace(
    DEPTHWISE_WEIGHTS,
    module="rows",
    function="conv_rows_weights",
    constants=("TILE_M", "TILE_N", "NDIM", *_ROW, "UNIT", "TWO_STAGE"),
)

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
    constants=("BLOCK", "WAYS", "NDIM"),
)

TOTALS_WARPS = 4

_GATHERING = {"implicit": GATHER, "depthwise": DEPTHWISE, "filter": HELD, "row": ROWS}
_WEIGHING = {
    "implicit": WEIGHTS,
    "depthwise": DEPTHWISE_WEIGHTS,
    "filter": HELD_WEIGHTS,
    "row": ROWS_WEIGHTS,
}
"""What makes pixels, and what makes weights, by pipeline; by what it holds, of a window."""


def tiles(c: ConvConfig, p: ConvProblem, splits: int) -> int:
    """Tiles of a config's first kernel, whose pixels are in so many parts."""
    if c.pipeline in boxed.PIPELINES:
        weights = c.direction == "weights"
        return boxed_weights.tiles(c, p) * splits if weights else boxed_launch.all_tiles(c, p)
    if c.pipeline == grouped.PIPELINE:
        return grouped_launch.all_tiles(c, p)
    if c.pipeline == bands.PIPELINE:
        return bands_launch.all_tiles(c, p)
    return parts_of(c)[MAIN].grid(c, p, splits)


def parts_of(c: ConvConfig) -> dict[str, Part]:
    """The kernels through pointers of a config, by part."""
    if c.pipeline in (grouped.PIPELINE, *boxed.PIPELINES, bands.PIPELINE):
        return {TOTALS: _sum_of(c)} if c.two_stage else {}
    kind = ("row" if windows.of_row(c) else "filter") if c.window else c.pipeline
    if c.direction != "weights":
        return {MAIN: _GATHERING[kind]}
    main = _WEIGHING[kind]
    return {MAIN: main, TOTALS: _sum_of(c)} if c.two_stage else {MAIN: main}


def _sum_of(c: ConvConfig) -> Part:
    """The kernel that adds parts."""
    return FEW_SUM if few_weights(c) else SUM


# --- what to compile ---------------------------------------------------------------------------


def sources(config: ConvConfig, arch: Arch) -> Mapping[str, KernelSource]:
    """What to compile for `config` on `arch`, by part."""
    found = {name: _source(part, config, arch) for name, part in parts_of(config).items()}
    if config.pipeline == grouped.PIPELINE and config.direction == "weights":
        return {MAIN: grouped_weights.source(config), **found}
    if config.pipeline == grouped.PIPELINE:
        return grouped_launch.sources(config, arch)
    if config.pipeline == bands.PIPELINE:
        return {MAIN: bands_launch.source(config, arch), **found}
    if config.pipeline in boxed.PIPELINES:
        of = boxed_weights if config.direction == "weights" else boxed_launch
        return {MAIN: of.source(config, arch), **found}
    return found


def _source(part: Part, c: ConvConfig, arch: Arch) -> KernelSource:
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
        (name, done if name == DONE else CONSTANTS[name](c)) for name in part.constants
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


# --- what to launch ----------------------------------------------------------------------------


def launch(config: ConvConfig, problem: ConvProblem, device: Device) -> Launch:
    """The launch of `config` for `problem` on `device`; nothing for a result without elements."""
    splits = sharing.splits(config, problem, device) if config.direction == "weights" else 1
    context = Context(config, problem, splits)
    steps = []
    if config.pipeline in boxed.PIPELINES and config.direction == "weights":
        programs = sharing.programs(config, problem, device)
        steps = [boxed_weights.step(config, problem, device, splits, programs)]
    elif config.pipeline in boxed.PIPELINES:
        steps = boxed_launch.steps(config, problem, device)
    elif config.pipeline == grouped.PIPELINE and config.direction == "weights":
        steps = [grouped_weights.step(config, problem, device)]
    elif config.pipeline == grouped.PIPELINE:
        steps = grouped_launch.steps(config, problem, device)
    elif config.pipeline == bands.PIPELINE:
        steps = [bands_launch.step(config, problem, device)]
    for name, part in parts_of(config).items():
        groups = part.grid(config, problem, splits)
        if name == MAIN and config.scheduler == "stream_k":
            groups = sharing.programs(config, problem, device)
        if not groups:
            continue
        arguments: list[Argument] = []
        for _, of in part.named():
            arguments += ARGUMENTS[of].values(context)
        steps.append(Step((groups, 1, 1), tuple(arguments), name))
    if config.direction != "weights":
        return Launch(tuple(steps))
    return Launch(tuple(steps), sharing.temporaries(config, problem, device))
