"""Decoding in Gluon, in the simulation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sim_world import World

from shared_builds import build_once
from simulate import worst_error
from tilewright import ops
from tilewright.arch import arch, device
from tilewright.ops.attention import AttentionConfig, AttentionProblem, features

FAMILY = ops.family("attention")
H200 = device("h200")

DECODE = {
    "batch": 2, "heads": 8, "kv_heads": 2, "q_len": 1, "kv_len": 200, "head_dim": 64,
}  # fmt: skip
TABLE = {"pages": 40, "page_size": 16, "page_entries": 13, "kv_len": 208, "batch": 3}
SPLIT = {"scheduler": "split"}

CASES = {
    "whole blocks": ({"kv_len": 128}, {}),
    "one key": ({"kv_len": 1, "others": "lse"}, SPLIT),
    "unequal dims, fp16": ({"head_dim": 128, "head_dim_v": 64, "dtype": "fp16"}, {"tile_kv": 128}),
    "all heads alone": ({"kv_heads": 8, "others": "lse"}, SPLIT),
    "causal": ({"q_len": 5, "kv_len": 70, "right": 0, "others": "lse"}, {}),
    "a first row that sees all of a block but a key": ({"q_len": 5, "kv_len": 67, "right": 0}, {}),
    "top left": ({"q_len": 3, "kv_len": 150, "right": 1, "corner": "top_left"}, {}),
    "two tiles": ({"q_len": 3, "heads": 70, "right": 0, "batch": 1}, SPLIT),
    "window": ({"q_len": 2, "left": 77, "right": 0, "others": "lse"}, SPLIT),
    "window of nothing": ({"q_len": 2, "left": 5, "right": -3, "kv_len": 64}, {}),
    "window, fixed splits": (
        {"left": 100, "right": 0, "kv_len": 300}, {"scheduler": "split", "split_len": 64},
    ),
    "soft cap": ({"softcap": 5.0, "kv_heads": 1}, {}),
    "pages of 16": ({"others": "usedkv+pagetable+lse", **TABLE}, SPLIT),
    "pages of 8": (
        {"others": "usedkv+pagetable", **TABLE, "page_size": 8, "page_entries": 26, "pages": 80},
        {"tile_kv": 32},
    ),
    "pages of 64 in a list, heads before rows": (
        {"others": "usedkv+pagelist", "page_size": 64, "pages": 14, "page_entries": 13,
         "batch": 3, "kv_layout": "bhsd"},
        SPLIT,
    ),
    "pages of 48": (
        {"others": "usedkv+pagetable", **TABLE, "page_size": 48, "page_entries": 5,
         "kv_len": 240, "pages": 14},
        {},
    ),
    "pages, a window, sinks": (
        {"others": "usedkv+pagetable+sinks", **TABLE, "left": 30, "right": 0, "q_len": 2}, SPLIT,
    ),
    "packed": (
        {"others": "packedq+packedkv+lse", "total_q": 5, "total_kv": 300, "q_len": 3, "right": 0,
         "batch": 3},
        SPLIT,
    ),
    "used queries": ({"others": "usedq+usedkv", "q_len": 3, "layout": "bhsd", "batch": 3}, {}),
    "cache of fp8": (
        {"others": "usedkv+pagetable+tscale", **TABLE, "dtype_kv": "e4m3fn"}, SPLIT,
    ),
    "cache of fp8, scales of heads": (
        {"others": "hscale+lse", "dtype_kv": "e5m2", "head_dim": 128, "q_len": 2, "right": 0}, {},
    ),
    "cache of fp8, window, no scales": (
        {"dtype_kv": "e4m3fn", "dtype": "fp16", "left": 90, "right": 0}, SPLIT,
    ),
    "more pages than are looked up at once": (
        {"others": "usedkv+pagetable", "batch": 2, "kv_heads": 8, "page_size": 8, "pages": 120,
         "page_entries": 75, "kv_len": 600},
        {"tile_kv": 128},
    ),
    "new keys, rotated": (
        {"others": "usedkv+pagetable+rotaryh", **TABLE, "q_len": 2, "new_kv": 2, "right": 0,
         "rotary_dim": 32, "rotary_len": 300},
        SPLIT,
    ),
}  # fmt: skip


def problem_of(fields: dict) -> AttentionProblem:
    """A problem; its words may be in any order."""
    words = {word for word in fields.get("others", "").split("+") if word}
    return AttentionProblem(**{**DECODE, **fields, "others": features.join(words)})


def config_of(p: AttentionProblem, algorithm: dict) -> AttentionConfig:
    fields = {
        "tile_kv": 64, "scheduler": "tile", "num_stages": 3, "alignment": 16, "pack": True,
        **algorithm,
    }  # fmt: skip
    return AttentionConfig(
        p.dtype, p.dtype_kv, p.dtype_o, p.head_dim, p.head_dim_v, p.mask.kind, 64, num_warps=4,
        pipeline="gluon_decode", page_size=p.page_size, features=p.features, **fields,
    )  # fmt: skip


@pytest.mark.grid(2)
@pytest.mark.parametrize(("problem", "algorithm"), CASES.values(), ids=list(CASES))
def test_the_kernel_is_right(problem, algorithm):
    p = problem_of(problem)
    c = config_of(p, algorithm)
    assert FAMILY.supports(c, p, arch("sm_90"))
    assert worst_error(c, p, H200) <= 1


@pytest.mark.parametrize("seed", range(1, 4))
def test_in_whatever_order_partitions_run(seed):
    p = problem_of({"others": "usedkv+pagetable", **TABLE, "batch": 1, "kv_heads": 1})
    assert worst_error(config_of(p, {"tile_kv": 32}), p, H200, seed) <= 1


@pytest.mark.parametrize("algorithm", [{}, SPLIT], ids=["alone", "split"])
def test_the_kernel_behind_may_start_once_nothing_is_asked_for(monkeypatch, algorithm):
    """`World.load` refuses a copy behind that. A kernel that nobody combines lets nobody start."""
    let = []
    real = World.let_next_kernel_start

    def counted(self):
        let.append(self.program)
        real(self)

    monkeypatch.setattr(World, "let_next_kernel_start", counted)
    p = problem_of({"others": "usedkv+pagetable", **TABLE})
    c = config_of(p, algorithm)
    assert worst_error(c, p, H200) <= 1
    grids = [one.grid for one in FAMILY.launch(c, p, H200).steps]
    assert len(let) == (sum(x * y for x, y, _ in grids) if algorithm else 0)


@pytest.mark.turns(48)
def test_the_compiler_takes_it(store):
    configs = [
        config_of(problem_of({"others": "usedkv+pagetable+lse", **TABLE, "head_dim": 128}), SPLIT),
        config_of(problem_of({"right": 0, "left": 128, "head_dim": 256}), {"num_stages": 2}),
        config_of(problem_of({"others": "tscale", "dtype_kv": "e4m3fn", "head_dim": 128}), SPLIT),
        config_of(  # the producers have 16 boxes of each block
            problem_of({"others": "usedkv+pagetable", **TABLE, "page_size": 8, "head_dim": 128}),
            {"tile_kv": 128},
        ),
    ]
    report = build_once([(c, "sm_90") for c in configs], store)
    assert report.results and not report.failures, report.failures
    kernels = [r.kernel for r in report.results if r.part == "main"]
    assert [one.resources.spill_bytes for one in kernels] == [0] * len(configs)


def test_two_workgroups_have_room_on_a_unit():
    p = problem_of({"head_dim": 128})
    record = ops.attention.pipelines.PIPELINES["gluon_decode"]
    need = record.shared_memory(config_of(p, {}), arch("sm_90"))
    assert 2 * (need + 1024) <= 228 * 1024  # the driver takes 1 KB of each


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"page_size": 4, "features": "usedkv+pagetable"}, "4 in common, under 8"),
        ({"page_size": 100, "features": "usedkv+pagetable"}, "4 in common, under 8"),
        ({"alignment": 8}, "alignment of 16"),
        ({"tile_q": 128}, "tiles of 64 rows"),
        ({"tile_kv": 256, "head_dim_v": 64}, "over"),
        ({"split_len": 96, "scheduler": "split"}, "no multiple of tile_kv"),
        ({"features": "sinks"}, "scheduler split alone"),
        ({"head_dim": 96}, "not one of 64, 128, 256"),
        ({"num_stages": 16}, "bytes of shared memory"),
        ({"dtype_kv": "e5m2", "head_dim_v": 256}, "too many registers"),
    ],
)
def test_what_it_cannot_do_is_refused(changed, why):
    c = replace(config_of(problem_of({}), {}), **changed)
    assert why in str(FAMILY.judge(c, arch("sm_90")))


def test_problems_that_are_not_decoding_are_refused():
    for fields, why in (
        ({"q_len": 200}, "800 rows of a sequence"),
        ({"left": 5, "first": 2}, "in front of a window"),
    ):
        p = problem_of(fields)
        assert why in str(FAMILY.supports(config_of(p, {}), p, arch("sm_90")))
