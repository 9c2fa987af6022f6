"""Tiles of several groups: in the interpreter, over groups that are no multiple, dtypes, layouts;
what is infinite stays in its group; names, rules, and what is built."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from test_conv_kernels import kernel

import selection
from shared_builds import build_once
from tilewright import ops, verify
from tilewright.arch import arch, device
from tilewright.dispatch import Dispatcher
from tilewright.errors import UnknownName
from tilewright.ops.conv import ConvProblem
from tilewright.ops.conv.stated import first_strides
from tilewright.ops.nouns import MAIN

FAMILY = ops.family("conv")
SM_90 = arch("sm_90")
RESNEXT = ConvProblem(32, 256, 256, (56, 56), (3, 3), 32, pad=(1, 1))


@pytest.fixture(scope="module")
def dispatcher():
    return Dispatcher(device="h200_sxm")


def grouped(seed: int) -> tuple[ConvProblem, int]:
    """A problem, and how many of its groups a tile has; often more than are left at the end."""
    rng = random.Random(seed)
    direction = ("forward", "data", "weights")[seed % 3]
    merged = rng.choice((2, 4, 8))
    groups = rng.choice((2, 3, 5, 8, 12))
    dtypes = ("bf16", "fp16", "fp32", "int8", "e4m3fn")[: 5 if direction == "forward" else 3]
    found = ConvProblem(
        rng.randint(1, 2), groups * rng.choice((1, 3, 4, 8)), groups * rng.choice((1, 4, 6, 8)),
        (rng.randint(3, 7), rng.randint(3, 9)), (rng.randint(1, 3), rng.randint(1, 3)), groups,
        (rng.randint(1, 2), rng.randint(1, 2)), (1, 2), dilation=(1, rng.randint(1, 2)),
        direction=direction, dtype=rng.choice(dtypes),
        epilogue="" if direction == "weights" else rng.choice(("", "bias", "bias+add")),
    )  # fmt: skip
    if found.dtype == "fp32" and rng.random() < 0.5:
        found = replace(found, precision="tf32")
    if rng.random() < 0.3:
        found = replace(found, **first_strides(found))
    return found, min(merged, 1 << (groups - 1).bit_length())


@pytest.mark.grid(2)
@pytest.mark.parametrize("seed", range(12))
def test_several_groups_in_a_tile(dispatcher, seed):
    problem, count = grouped(seed)
    forms = [{"merged": seed % 2 == 0}]
    if problem.direction == "weights":
        forms.append({"merged": seed % 2 == 1, "scheduler": "split"})
    for form in forms:
        name = kernel(problem, merged_groups=count, **form)
        found = verify.verify(dispatcher, problem, name, seed=seed)
        assert found.ok, (name, problem, found)


@pytest.mark.grid(2)
@pytest.mark.parametrize("direction", ["forward", "data"])
@pytest.mark.parametrize("merged", [False, True])
def test_what_is_infinite_stays_in_its_group(dispatcher, direction, merged):
    """The other groups' zeros would make NaN of it."""
    problem = ConvProblem(
        1, 20, 20, (5, 6), (3, 3), 5, pad=(1, 1), direction=direction, dtype="fp16"
    )
    made = verify.operands_of(problem, 2)
    read, out = ("x", "y") if direction == "forward" else ("y", "x")
    values = made.inputs
    plain = verify.reference(problem, values)[out]
    values[read][:, 4:8] = np.inf
    values["w"][12:16] = np.nan
    verify.run(dispatcher, problem, made, kernel(problem, merged_groups=4, merged=merged))
    got = np.asarray(made.outputs[out], np.float32)
    assert not np.isfinite(got[:, 4:8]).any() and np.isnan(got[:, 12:16]).all()
    others = [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19]
    assert np.allclose(got[:, others], np.asarray(plain)[:, others], atol=0.05)


def config(**fields):
    return FAMILY.make_config({**FAMILY.axes(), **fields}, SM_90)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"merged_groups": 3}, "merged_groups = 3 is not a power of two"),
        ({"merged_groups": 128}, "is not a power of two up to 64"),
        (
            {"merged_groups": 2, "pipeline": "depthwise", "tile_k": 1, "group_m": 1},
            "pipeline depthwise does not merge groups",
        ),
    ],
)
def test_what_cannot_be_built(fields, why):
    verdict = FAMILY.judge(config(**fields), SM_90)
    assert verdict.rule == "combination" and why in verdict.reason


def test_no_more_groups_than_the_next_power_of_two():
    for groups, count, served in ((4, 4, True), (3, 4, True), (4, 8, False), (1, 2, False)):
        problem = replace(RESNEXT, groups=groups, c=8 * groups, k=8 * groups)
        verdict = FAMILY.supports(config(merged_groups=count), problem, SM_90)
        assert bool(verdict) is served
        assert served or verdict.reason == f"merges {count} groups, of {groups}"


def test_names_say_the_groups_of_a_tile():
    for count, word in ((1, ""), (8, "_mg8")):
        name = config(merged_groups=count, dtype_out="bf16").name
        assert name.endswith("_al16-16" + word)
        assert FAMILY.parse_name(name).merged_groups == count
    for wrong in ("_mg1", "_mg0", "_mg08", "_i64_mg8"):
        with pytest.raises(UnknownName):
            FAMILY.parse_name(config(dtype_out="bf16").name + wrong)


def through_pointers(problem: ConvProblem, name: str):
    """The default space's kernels of pipeline implicit."""
    found = FAMILY.default_space(problem, arch(name)).expand(arch(name)).configs
    return [c for c in found if c.pipeline == "implicit"]


@pytest.mark.parametrize("direction", ["forward", "data", "weights"])
@pytest.mark.parametrize("channels", [4, 8, 16, 32])
def test_spaces_merge_groups_of_few_channels(direction, channels):
    """Tiles of 32 or 64 channels, and none for groups that fill a tile."""
    problem = replace(RESNEXT, groups=256 // channels, direction=direction)
    for name in ("sm_80", "sm_90", "gfx942", "gfx1201"):
        this = arch(name)
        found = through_pointers(problem, name)
        counts = {c.merged_groups for c in found if FAMILY.supports(c, problem, this)}
        assert counts - {1} == {n // channels for n in (32, 64) if n > channels}
    wide = replace(RESNEXT, groups=4, direction=direction)
    assert {c.merged_groups for c in through_pointers(wide, "sm_90")} == {1}


# --- builds ------------------------------------------------------------------------------------

ARCHS = selection.architectures(("sm_90", "gfx942"))
BUILT = [RESNEXT, replace(RESNEXT, groups=64, direction="data", stride=(2, 2)),
         replace(RESNEXT, direction="weights")]  # fmt: skip


def best(problem: ConvProblem, name: str):
    """The kernel with several groups a tile that the estimate puts first."""
    space = [c for c in through_pointers(problem, name) if c.merged_groups > 1]
    found = [c for c in space if FAMILY.supports(c, problem, arch(name))]
    on = {"sm_90": "h200", "gfx942": "mi300x"}
    return FAMILY.rank(problem, found, device(on[name]))[0][0]


@pytest.mark.turns(64)
@pytest.mark.parametrize("name", ARCHS)
def test_nothing_spills(name, store):
    report = build_once([(best(p, name), name) for p in BUILT], store)
    results = [r for r in report.results if r.part == MAIN]
    assert len(results) == len(BUILT)
    for result in results:
        assert result.kernel is not None, result.reason
        assert result.kernel.resources.spill_bytes == 0
