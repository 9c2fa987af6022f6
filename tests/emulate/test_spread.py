"""A spread of each AMD architecture's kernels is executed; the whole of it by `make emulate`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache
from itertools import chain
from typing import Any

import pytest
import verdict_cases
from emulated_cases import ARCHS, cases
from executing import dispatcher, execute
from spread import Case

import selection
from shared_builds import build_once
from tilewright import ops
from tilewright.arch import arch
from tilewright.errors import EmptySpace
from tilewright.ops.attention import features
from tilewright.ops.attention.gradients import WITHOUT
from tilewright.ops.attention.pipelines import on as attention_on
from tilewright.ops.attention_backward.pipelines import on as backward_on
from tilewright.ops.attention_backward.problem import GRADIENTS
from tilewright.ops.conv.config import GEMM, VENDOR
from tilewright.ops.gemm import GemmProblem, pipelines
from tilewright.ops.grouped_gemm import GroupedGemmProblem
from tilewright.ops.grouped_gemm.pipelines import on as grouped_on
from tilewright.ops.products import OUTPUTS

HERE = selection.architectures(ARCHS)
EACH = 1
"""How many cases of a pipeline run here."""
OF_OTHERS = {"attention": 2, "attention_backward": 1, "conv": 2}
"""The same of families that have few pipelines: attention has many features, its gradients several
kernels, and convolutions several directions."""
ALIKE = ("gfx908", "gfx1151")
"""Architectures whose instructions are nearly gfx90a's and gfx1100's."""
PRODUCTS = ("gemm", "grouped_gemm")
"""Families whose kernels have the axes of products."""


def pipelines_of(name: str) -> list[tuple[str, str]]:
    """The families and pipelines of an architecture, in the order in which they take turns."""
    this = arch(name)
    conv = ops.family("conv").pipelines(this)
    return [
        *(("gemm", one) for one in pipelines.on(this)),
        *(("grouped_gemm", one) for one in grouped_on(this)),
        *(("attention", one) for one in attention_on(this)),
        *(("attention_backward", one) for one in backward_on(this)),
        *(("conv", one) for one in conv if one not in (GEMM, VENDOR)),
    ]


def here(name: str) -> list[tuple[str, str]]:
    """Every second pipeline: architectures take turns. Of an architecture whose instructions are
    nearly another's, every fourth."""
    mine = pipelines_of(name)[ARCHS.index(name) % 2 :: 4 if name in ALIKE else 2]
    return selection.some(mine, 3)


@cache
def chosen(name: str) -> dict[tuple[str, str], list[Case]]:
    """By pipeline the first cases, which have the most values."""
    first: dict[tuple[str, str], list[Case]] = {key: [] for key in here(name)}
    for case in cases(name):
        key = (case.config.family, case.config.pipeline)
        if key in first and len(first[key]) < OF_OTHERS.get(case.config.family, EACH):
            first[key].append(case)
    return first


@pytest.fixture(scope="module")
def on(store):
    """Dispatchers by architecture, whose kernels are built together."""
    those = {name: list(chain(*chosen(name).values())) for name in HERE}
    build_once([(case.config, name) for name, some in those.items() for case in some], store)
    return {name: dispatcher(name, some, store) for name, some in those.items()}


@pytest.mark.turns(16)
@pytest.mark.grid(1)
@pytest.mark.parametrize(
    ("name", "family", "pipeline"), [(name, *those) for name in HERE for those in here(name)]
)
def test_is_right_and_nothing_is_found(name, family, pipeline, on):
    for case in chosen(name)[family, pipeline]:
        outcome = execute(case, on[name])
        assert outcome.status == "right", f"{case.label}: {outcome.detail}"
        assert outcome.instructions > 0


@pytest.mark.turns(8)
@pytest.mark.parametrize("name", HERE)
def test_every_pipeline_is_there(name):
    those = {(case.config.family, case.config.pipeline) for case in cases(name)}
    assert those == {*pipelines_of(name)}


@pytest.mark.turns(8)
@pytest.mark.parametrize("name", HERE)
def test_every_feature_of_attention_is_executed(name):
    executed = {w for c in cases(name) if c.config.family == "attention" for w in c.config.words}
    assert executed == {*features.FEATURES}


@pytest.mark.turns(6)
@pytest.mark.parametrize("name", HERE)
def test_every_gradient_and_feature_of_it_is_executed(name):
    those = [c for c in cases(name) if c.config.family == "attention_backward"]
    executed = {word for case in those for word in case.config.words}
    without = {word for word in features.FEATURES if word in WITHOUT or word in ("lse", "random")}
    inference = {"rotaryi", "rotaryh", "vectorised"}  # of appended rows, and of pages
    assert executed == {*features.FEATURES, *GRADIENTS, "dlse"} - without - inference
    assert any(case.problem.accumulate for case in those)
    assert any(case.problem.dk_strides for case in those)


EACH_PIPELINE = (
    "form", "layout", "store", "batching", "alignment", "index_bits", "pad_m", "pad_n", "pad_k",
    "mma", "num_warps", "num_stages",
)  # fmt: skip
ONCE = ("epilogue", "pre_a", "pre_b")


def values(config) -> set[tuple[object, ...]]:
    """What a kernel has of each axis, by pipeline or, where all share it, by family."""
    where = (config.family, config.pipeline)
    found: set[tuple[object, ...]] = {
        (*where, field, getattr(config, field)) for field in EACH_PIPELINE if hasattr(config, field)
    }
    found.add((*where, getattr(config, "scheduler", ""), getattr(config, "reduction", "")))
    if config.dtype_c in OUTPUTS[config.dtype_a]:
        types = (config.dtype_a, config.dtype_b, config.dtype_c, config.precision)
        found.add((*where, *types))
    else:
        found.add((config.family, config.dtype_c))
    found.add((*where, *(bool(getattr(config, f"scale_{x}", "")) for x in "ab")))
    for field in ONCE:
        for operation in filter(None, getattr(config, field, "").split("+")):
            found.add((config.family, field, operation))
    return found


def executed_products(name: str) -> set[tuple[object, ...]]:
    """The values of all kernels of products that are executed for an architecture."""
    configs = (case.config for case in cases(name) if case.config.family in PRODUCTS)
    return set().union(*map(values, configs))


@pytest.mark.turns(16)
@pytest.mark.parametrize("name", HERE)
def test_every_value_of_the_kernels_that_other_tests_build_is_executed(name):
    this = arch(name)
    executed = executed_products(name)
    for config, _ in verdict_cases.bases(name):
        if ops.family(config.family).judge(config, this):
            assert values(config) <= executed, (config.name, values(config) - executed)


def problems(name: str) -> Iterator[Any]:
    """Problems of which each has another default space or list for tuning."""
    for dtype, how in arch(name).dtypes.items():
        if how.support == "native" and dtype in OUTPUTS and dtype != "e2m1":
            yield GemmProblem(4096, 4096, 4096, dtype_a=dtype)
            yield GemmProblem(4, 4096, 4096, dtype_a=dtype, layout="rrr")
            yield GemmProblem(512, 4096, 4096, dtype_a=dtype, layout="rsr")
            yield GroupedGemmProblem("masked", groups=8, m=64, n=4096, k=4096, dtype_a=dtype)
    yield GemmProblem(512, 512, 512, batch=8, batching="pointers")
    yield GemmProblem(16, 4096, 4096, dtype_b="int4", scale_b="128x1-bf16")
    yield GemmProblem(512, 4096, 4096, dtype_a="fp16", dtype_b="e2m1", scale_b="32x1-e8m0")


@pytest.mark.turns(48)
@pytest.mark.parametrize("name", HERE)
def test_every_value_of_the_spaces_is_executed(name):
    this = arch(name)
    executed = executed_products(name)
    for problem in problems(name):
        for space in ops.family(problem.family).tuning_spaces(problem, this):
            with contextlib.suppress(EmptySpace):
                for config in space.expand(this).configs:
                    assert values(config) <= executed, (config.name, values(config) - executed)
