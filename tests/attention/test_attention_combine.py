"""The kernel that puts splits' results together, and how many splits there are."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from shared_builds import build_once
from tilewright.arch import arch, device
from tilewright.compile import inspect
from tilewright.ops.attention import FAMILY, AttentionConfig, AttentionProblem, parts
from tilewright.ops.attention.splits import splits_of
from tilewright.ops.nouns import Launch
from tilewright.runtime.interpreter import interpreter

H200 = device("h200")


def config_of(p: AttentionProblem, **algorithm) -> AttentionConfig:
    fields = {"tile_q": 16, "tile_kv": 64, "scheduler": "split", "pack": p.group > 1, **algorithm}
    return AttentionConfig(
        p.dtype, p.dtype_kv, p.dtype_o, p.head_dim, p.head_dim_v, p.mask.kind, num_warps=4,
        num_stages=2, pipeline="basic", page_size=p.page_size, features=p.features, **fields,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("splits", "fields"),
    [
        (1, {}),
        (5, {"others": "lse"}),
        (16, {"others": "lse+sinks", "head_dim": 40}),
        (37, {"others": "lse", "q_len": 3, "layout": "bhsd"}),
        (40, {"others": "lse+sinks+oscale", "dtype_o": "e4m3fn", "dtype": "e4m3fn"}),
        (17, {"others": "lse+packedq+usedq", "q_len": 3, "total_q": 7}),
        (130, {"others": "lse", "head_dim": 200, "q_len": 2}),
    ],
)
def test_it_is_the_sum_of_what_splits_saw(splits, fields):
    p = AttentionProblem(
        **{"batch": 2, "heads": 2, "q_len": 1, "kv_len": 64 * 40, "head_dim": 32, **fields}
    )
    c = config_of(p, split_len=64)
    rng = np.random.default_rng(splits)
    rows = 2 * p.total_q if p.total_q else p.batch * p.heads * p.q_len
    logs = rng.standard_normal((splits, rows)).astype(np.float32) * 3
    logs[rng.random(logs.shape) < 0.3] = -np.inf
    logs[:, 0] = -np.inf  # a row that saw nothing
    parts_o = rng.standard_normal((splits, rows, p.head_dim_v)).astype(np.float32)
    parts_o[np.isinf(logs)] = np.nan
    given = {"o": np.full(_shape(p), 9.0, np.float32).astype(_numpy(p.dtype_o))}
    if "lse" in p.words:
        lse_shape = (2, p.total_q) if p.total_q else (p.batch, p.heads, p.q_len)
        given["lse"] = np.full(lse_shape, 9.0, np.float32)
    if "sinks" in p.words:
        given["sinks"] = np.array([0.5, -np.inf], np.float32)
    if "oscale" in p.words:
        given["o_scale"] = np.array([0.25], np.float32)
    if "packedq" in p.words:
        given["q_offsets"], given["q_used"] = np.array([0, 3, 6], np.int32), np.array([2, 3])
        given["q_used"] = given["q_used"].astype(np.int32)

    _combine(c, p, splits, given, parts_o, logs)

    for b in range(p.batch):
        start, n_q = b * p.q_len, p.q_len
        if "packedq" in p.words:
            start, n_q = given["q_offsets"][b], given["q_used"][b]
        for h in range(p.heads):
            for i in range(p.q_len):
                if "packedq" in p.words:
                    row, at, of_lse = h * p.total_q + start + i, (start + i, h), (h, start + i)
                else:
                    row, of_lse = (b * p.heads + h) * p.q_len + i, (b, h, i)
                    at = (b, i, h) if p.layout == "bshd" else (b, h, i)
                if i >= n_q:
                    if i + start < p.total_q and not (b == 0 and i == 2):
                        assert (given["o"][at].astype(np.float32) == 9).all()
                    continue
                weights = np.exp(logs[:, row].astype(np.float64))
                total = weights.sum() + (np.exp(given["sinks"][h]) if "sinks" in given else 0.0)
                sums = (np.nan_to_num(parts_o[:, row]) * weights[:, None]).sum(0)
                want = sums / (total or 1.0) / given.get("o_scale", [1.0])[0]
                have = given["o"][at].astype(np.float64)
                rough = p.dtype_o == "e4m3fn"
                np.testing.assert_allclose(have, want, rtol=0.07 if rough else 0.01, atol=0.01)
                if "lse" in given:
                    with np.errstate(divide="ignore"):
                        np.testing.assert_allclose(
                            given["lse"][of_lse], np.log(total), rtol=1e-5, atol=1e-5
                        )


def _combine(c, p, splits, given, parts_o, logs):
    whole = FAMILY.launch(c, p, H200)
    (step,) = (one for one in whole.steps if one.part == parts.COMBINE.name)
    arguments = list(step.arguments)
    arguments[-1] = replace(arguments[-1], value=splits)
    kept = {
        "partial_o": replace(whole.temporaries[0], shape=parts_o.shape),
        "partial_lse": replace(whole.temporaries[1], shape=logs.shape),
    }
    assert [one.name for one in whole.temporaries] == list(kept)
    launch = Launch((replace(step, arguments=tuple(arguments)),), tuple(kept.values()))
    written = [name for name in ("o", "lse") if name in given]
    temporaries = {"partial_o": parts_o, "partial_lse": logs}
    sources = FAMILY.sources(c, arch("sm_90"))
    interpreter().run(sources, launch, given, written, temporaries=temporaries)


def _shape(p):
    if p.total_q:
        return p.total_q, p.heads, p.head_dim_v
    outer = (p.q_len, p.heads) if p.layout == "bshd" else (p.heads, p.q_len)
    return p.batch, *outer, p.head_dim_v


def _numpy(name):
    return np.dtype({"bf16": ml_dtypes.bfloat16, "e4m3fn": ml_dtypes.float8_e4m3fn}[name])


def test_it_may_start_early_where_an_architecture_can():
    """It is marked so, and waits; what runs before lets it start."""
    c = config_of(AttentionProblem(1, 2, 1, 640, 32), split_len=64)
    for name, can in (("sm_80", False), ("sm_90", True), ("gfx942", False)):
        sources = FAMILY.sources(c, arch(name))
        combining = sources[parts.COMBINE.name]
        assert dict(combining.constants)["DEPENDENT"] is can
        assert dict(combining.options).get("launch_pdl", False) is can
        assert dict(sources["main"].constants)["DEPENDENT"] is can
        assert "launch_pdl" not in dict(sources["main"].options)
    alone = FAMILY.sources(replace(c, scheduler="tile", split_len=0), arch("sm_90"))
    assert not dict(alone["main"].constants)["DEPENDENT"]


def test_it_is_built_to_wait(store):
    c = config_of(AttentionProblem(1, 2, 1, 640, 32), split_len=64)
    report = build_once([(c, "sm_90")], store)
    kernels = {r.part: r.kernel for r in report.results}
    assert kernels[parts.COMBINE.name].pdl and not kernels["main"].pdl
    text = inspect(kernels[parts.COMBINE.name], store, "ptx")
    assert text.index("griddepcontrol.wait") < text.index("ld.global")
    assert "griddepcontrol.launch_dependents" in inspect(kernels["main"], store, "ptx")


# --- how many ----------------------------------------------------------------------------------


def decode(batch, kv_len, **more):
    return AttentionProblem(
        batch=batch, heads=32, kv_heads=4, q_len=1, kv_len=kv_len, head_dim=128, **more
    )


def number(p, **algorithm):
    return splits_of(config_of(p, **algorithm), p, H200)


def test_one_sequence_fills_the_device():
    tiles = 4  # heads of keys
    assert 0.75 * 132 <= tiles * number(decode(1, 65536)) <= 132


def test_short_sequences_are_split_less():
    """A split has its start, and the combining kernel its own time."""
    assert number(decode(1, 64)) == 1
    counts = [number(decode(1, n)) for n in (256, 1024, 4096, 65536)]
    assert counts == sorted(counts) and counts[0] < counts[-1]


def test_many_sequences_are_not_split():
    assert number(decode(33, 4096)) == 1  # one workgroup for each unit
    assert number(decode(256, 4096)) == 1  # nearly eight for each


def test_lengths_that_differ_are_split_where_equal_ones_are_not():
    """The host knows the longest alone; one workgroup for it would end long after the others."""
    equal, own = decode(33, 65536), decode(33, 65536, others="usedkv")
    assert number(equal) == 1
    assert number(own) > 1
    assert number(decode(33, 128, others="usedkv")) == 1


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 16, 40, 100, 500])
@pytest.mark.parametrize("kv_len", [0, 1, 64, 100, 1000, 30000, 131072])
def test_no_split_is_certain_to_be_empty(batch, kv_len):
    for others in ("", "usedkv"):
        found = number(decode(batch, kv_len, others=others))
        steps = -(-kv_len // 64)
        assert 1 <= found <= max(1, steps)
        each = -(-steps // found)
        assert each * (found - 1) < max(1, steps)


def test_a_fixed_length_decides_alone():
    for batch in (1, 100):
        assert number(decode(batch, 1000), split_len=256) == 4
