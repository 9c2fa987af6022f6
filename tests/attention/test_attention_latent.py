"""Latent attention's decode in Gluon, in the simulation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shared_builds import build_once
from simulate import worst_error
from tilewright import ops
from tilewright.arch import arch, device
from tilewright.ops.attention import AttentionConfig, AttentionProblem, features

FAMILY = ops.family("attention")
H200 = device("h200")

LATENT = {
    "batch": 2, "heads": 16, "kv_heads": 1, "q_len": 1, "kv_len": 200, "head_dim": 576,
    "head_dim_v": 512,
}  # fmt: skip
PAGES = {"pages": 9, "page_size": 64, "page_entries": 4}
SPLIT = {"scheduler": "split"}

CASES = {
    "whole blocks": ({"others": "latent", "kv_len": 128}, {}),
    "fewer keys than half a block": ({"others": "latent+lse", "kv_len": 7}, {}),
    "causal": ({"others": "latent+lse", "q_len": 5, "kv_len": 70, "right": 0}, {}),
    "queries see less than the last": (
        {"others": "latent", "q_len": 2, "right": -67, "kv_len": 150}, {},
    ),
    "two tiles, fp16": ({"others": "latent", "heads": 128, "batch": 1, "dtype": "fp16"}, {}),
    "heads that are no power of two": (
        {"others": "latent+lse", "heads": 24, "q_len": 4, "right": 0}, SPLIT,
    ),
    "a table, split": ({"others": "usedkv+pagetable+latent+lse", **PAGES, "batch": 3}, SPLIT),
    "a list, pages of 32, sinks": (
        {
            "others": "usedkv+pagelist+latent+sinks", "pages": 20, "page_size": 32,
            "page_entries": 20, "batch": 3,
        },
        SPLIT,
    ),
    "pages of 96": (
        {
            "others": "usedkv+pagetable+latent", "pages": 7, "page_size": 96, "page_entries": 3,
            "kv_len": 288,
        },
        {},
    ),
    "packed": (
        {"others": "packedq+packedkv+latent+lse", "total_q": 5, "total_kv": 300, "q_len": 3,
         "right": 0, "batch": 3},
        SPLIT,
    ),
    "used queries, heads before rows": (
        {"others": "usedq+usedkv+latent", "q_len": 3, "layout": "bhsd", "batch": 3}, {},
    ),
    "splits by length": (
        {"others": "usedkv+latent+lse", "batch": 3}, {"scheduler": "split", "split_len": 64},
    ),
    "new keys": (
        {"others": "usedkv+pagetable+latent", "new_kv": 3, "q_len": 3, "right": 0, **PAGES}, SPLIT,
    ),
}  # fmt: skip


def problem_of(fields: dict) -> AttentionProblem:
    """A problem; its words may be in any order."""
    words = set(fields["others"].split("+"))
    return AttentionProblem(**{**LATENT, **fields, "others": features.join(words)})


def config_of(p: AttentionProblem, algorithm: dict) -> AttentionConfig:
    fields = {"scheduler": "tile", "alignment": 16, "pack": True, **algorithm}
    return AttentionConfig(
        p.dtype, p.dtype_kv, p.dtype_o, 576, 512, p.mask.kind, 64, 64, 8, 2, "gluon_latent",
        page_size=p.page_size, features=p.features, **fields,
    )  # fmt: skip


@pytest.mark.grid(1)
@pytest.mark.parametrize(("problem", "algorithm"), CASES.values(), ids=list(CASES))
def test_the_kernel_is_right(problem, algorithm):
    p = problem_of(problem)
    c = config_of(p, algorithm)
    assert FAMILY.supports(c, p, arch("sm_90"))
    assert worst_error(c, p, H200) <= 1


def test_a_first_row_may_see_all_of_a_block_but_a_key():
    p = problem_of({"others": "latent", "q_len": 5, "kv_len": 67, "right": 0})
    assert worst_error(config_of(p, {}), p, H200) <= 1


@pytest.mark.parametrize("seed", range(1, 4))
def test_in_whatever_order_partitions_run(seed):
    p = problem_of({"batch": 1, "kv_len": 330, "others": "latent"})
    assert worst_error(config_of(p, {}), p, H200, seed) <= 1


@pytest.mark.turns(64)
def test_the_compiler_takes_it(store):
    p = problem_of(
        {"others": "packedq+usedq+usedkv+pagetable+latent+lse", "total_q": 4, "right": 0, **PAGES}
    )
    report = build_once([(config_of(p, SPLIT), "sm_90")], store)
    assert report.results and not report.failures, report.failures


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"page_size": 16, "features": "usedkv+pagetable+latent"}, "no multiple of 32"),
        ({"alignment": 8}, "alignment of 16"),
        ({"tile_kv": 32}, "tiles of 64x64"),
        ({"split_len": 96, "scheduler": "split"}, "no multiple of tile_kv"),
        ({"features": "sinks+latent"}, "scheduler split alone"),
        ({"head_dim": 512}, "576 and 512"),
    ],
)
def test_what_it_cannot_do_is_refused(changed, why):
    p = problem_of({"others": "latent"})
    c = replace(config_of(p, {}), **{"features": "latent", **changed})
    assert why in str(FAMILY.judge(c, arch("sm_90")))
