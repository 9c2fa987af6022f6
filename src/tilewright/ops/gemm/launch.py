"""What is compiled and launched for a config: the kernel that multiplies and, in two stages, one
that adds up parts."""

from __future__ import annotations

from dataclasses import replace

from tilewright.arch.model import Arch, Device
from tilewright.ops import binder
from tilewright.ops.binder import Box, Context, Numbers, Part, Value
from tilewright.ops.gemm import pipelines, swap, two_stage
from tilewright.ops.gemm.catalogue import (
    CATALOGUE,
    PARTIALS,
    chain,
    in_batch,
    in_words,
    index_type,
    matrix_of,
    never,
    promised_by_c,
    rests,
    share,
    size,
)
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.pipelines.record import Pipeline
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.gemm.sizes import tiles
from tilewright.ops.nouns import MAIN, KernelSource, Launch


def _blocks(c: GemmConfig, m: int, n: int, k: int, columns: int) -> tuple[Box, Box, Box]:
    """Tile of A, B and C that one copy moves, outermost dimension first."""
    each = in_words(c) or 1
    a, b, of_c = tuple(c.layout)
    one = (1,) if in_batch(c, 0) else ()
    part = (1,) if c.two_stage or in_batch(c, 2) else ()
    return (
        (*one, m, k) if a == "r" else (*one, k, m),
        (*one, k, n) if b == "r" else (*one, n, k // each),
        (*part, m, columns) if of_c == "r" else (*part, columns, m),
    )


def _boxes(c: GemmConfig) -> dict[str, Box]:
    record = pipelines.of(c)
    if record.boxes is None:
        return {}
    m, n, k, columns = record.boxes(c)
    found = dict(zip("abc", _blocks(c, m, n, k, columns), strict=True))
    if record.writes == "pointers":
        del found["c"]
    for i, (n, columns) in enumerate(rests(c)):
        _, found[f"b_rest.{i}"], found[f"c_rest.{i}"] = _blocks(c, m, n, k, columns)
    return found


def _grid(x: Context) -> int | tuple[int, int, int]:
    if pipelines.has(x.config, "few_rows"):
        return tiles(x.config, x.problem), x.config.split_k, 1
    if x.config.clustered:
        return tiles(x.config, x.problem)
    return share(x)[0]


def _kernel(pipeline: Pipeline) -> Part:
    """The kernel that multiplies."""

    def options(c: GemmConfig, arch: Arch) -> tuple[tuple[str, Value], ...]:
        early = (("launch_pdl", True),) if c.dependent_launch != "none" else ()
        return (*pipeline.options(c, arch), *early)

    return Part(
        name=MAIN,
        kernel=pipeline.kernel,
        grid=_grid,
        options=options,
        own=pipeline.own,
        boxes=_boxes,
        cluster=lambda c: c.split_k if c.clustered else 1,
    )


def _of_totals(axis: str) -> Numbers:
    return replace(size(axis), multiples=lambda c: promised_by_c(c, axis))


def _totals_options(c: GemmConfig, arch: Arch) -> tuple[tuple[str, Value], ...]:
    early = (("launch_pdl", True),) if arch.has("pdl") else ()
    return ("num_warps", two_stage.THREADS // arch.warp_size), ("num_stages", 1), *early


_TOTALS = Part(
    name=two_stage.TOTALS,
    kernel="tilewright.ops.gemm.kernels.totals:gemm_totals",
    grid=lambda x: two_stage.workgroups(x.config, x.problem),
    options=_totals_options,
    there=lambda c: c.two_stage and not two_stage.many(c),
    own={
        two_stage.PARTIALS: replace(PARTIALS, there=lambda c: True),
        "c": matrix_of(2, lambda c: "C", near=never),
        **{axis: _of_totals(axis) for axis in "mn"},
        "ldp": Numbers(
            index_type,
            lambda x: two_stage.problem(x.config, x.problem).ldc,
            multiples=lambda _: two_stage.WHOLE_ROW,
        ),
        "extra": chain(2, near=never),
        "ROWS": lambda c, _: two_stage.block(c)[0],
        "COLUMNS": lambda c, _: two_stage.block(c)[1],
        "DEPENDENT": lambda c, arch: arch.has("pdl"),
    },
)
"""The kernel that adds up parts."""

_MANY_TOTALS = replace(
    _TOTALS,
    kernel="tilewright.ops.gemm.kernels.many_totals:gemm_many_totals",
    there=lambda c: c.two_stage and two_stage.many(c),
    own={**_TOTALS.own, "WAYS": lambda c, _: two_stage.WAYS},
)


def sources(config: GemmConfig, arch: Arch) -> dict[str, KernelSource]:
    """What to compile for `config` on `arch`, by part."""
    seen = swap.config(config)
    multiplies = [_kernel(pipelines.of(config))]
    found = binder.sources(multiplies, CATALOGUE, two_stage.config(seen), arch)
    return found | binder.sources([_TOTALS, _MANY_TOTALS], CATALOGUE, seen, arch)


def launch(config: GemmConfig, problem: GemmProblem, device: Device) -> Launch:
    """The launch of `config` for `problem` on `device`, over the problem's operands
    (`operands.operands`)."""
    c, p = swap.config(config), swap.problem(problem) if config.swap_ab else problem
    added = Context(c, p, device, splits=c.split_k)
    stored = Context(two_stage.config(c), two_stage.problem(c, p), device)
    stored = replace(stored, splits=share(stored)[1])
    found = (
        binder.launch([_kernel(pipelines.of(config))], CATALOGUE, stored),
        binder.launch([_TOTALS, _MANY_TOTALS], CATALOGUE, added),
    )
    return Launch(
        tuple(step for one in found for step in one.steps),
        tuple(dict.fromkeys(temporary for one in found for temporary in one.temporaries)),
    )
