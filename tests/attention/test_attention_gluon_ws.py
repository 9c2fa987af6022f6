"""Pipeline gluon_ws: its kernel's logic in NumPy (`gluon_in_numpy`), and its record's rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gluon_in_numpy
import ml_dtypes
import numpy as np
import pytest

from tilewright.arch import arch, device
from tilewright.arch.model import Device
from tilewright.ops.attention import FAMILY, AttentionConfig, AttentionProblem
from tilewright.ops.nouns import MAIN

H200 = device("h200_sxm")
HELPERS = ("gluon_tiles", "gluon_scores")
NUMPY = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16, "fp32": np.float32, "int32": np.int32}


def config_for(p: AttentionProblem, **fields: Any) -> AttentionConfig:
    said: dict[str, Any] = {
        "tile_q": 128,
        "tile_kv": 64,
        "num_warps": 8,
        "num_stages": 2,
        "pipeline": "gluon_ws",
        "scheduler": "persistent",
        **fields,
    }
    return AttentionConfig(
        p.dtype, p.dtype_kv, p.dtype_o, p.head_dim, p.head_dim_v, p.mask.kind, **said,
        features=p.features,
    )  # fmt: skip


def sequences(p: AttentionProblem, arrays: dict[str, np.ndarray]) -> list[tuple[int, ...]]:
    """(first row of Q, rows, first row of K, rows) of each sequence."""
    found = []
    for b in range(p.batch):
        q_at, n_q, kv_at, n_kv = 0, p.q_len, 0, p.kv_len
        if "q_offsets" in arrays:
            q_at, end = (int(x) for x in arrays["q_offsets"][b : b + 2])
            n_q = end - q_at
        if "kv_offsets" in arrays:
            kv_at, end = (int(x) for x in arrays["kv_offsets"][b : b + 2])
            n_kv = end - kv_at
        n_q = int(arrays["q_used"][b]) if "q_used" in arrays else n_q
        n_kv = int(arrays["kv_used"][b]) if "kv_used" in arrays else n_kv
        found.append((q_at, n_q, kv_at, n_kv))
    return found


def rows_of(p: AttentionProblem, array: np.ndarray, name: str, b: int) -> np.ndarray:
    """[heads, rows, dim] of a sequence, or of all if they are packed: a view."""
    packed = "packedq" if name in ("q", "o") else "packedkv"
    if packed in p.words:
        return array.transpose(1, 0, 2)
    one = array[b]
    layout = p.layout if name in ("q", "o") else p.kv_layout
    return one.transpose(1, 0, 2) if layout == "bshd" else one


def expected(
    p: AttentionProblem, arrays: dict[str, np.ndarray], scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """O and LSE in float64; NaN where nothing is written."""
    o = np.full(arrays["o"].shape, np.nan)
    lse = np.full((p.heads, p.total_q) if p.total_q else (p.batch, p.heads, p.q_len), np.nan)
    for b, (q_at, n_q, kv_at, n_kv) in enumerate(sequences(p, arrays)):
        i, j = np.arange(n_q), np.arange(n_kv)
        seen = p.mask.seen(i, j, n_q, n_kv)
        shift = n_kv - n_q if p.mask.bottom_right else 0
        for h in range(p.heads):
            g = h // p.group
            q = rows_of(p, arrays["q"], "q", b)[h, q_at : q_at + n_q].astype(float)
            k, v = (
                rows_of(p, arrays[name], name, b)[g, kv_at : kv_at + n_kv].astype(float)
                for name in ("k", "v")
            )
            s = scale * q @ k.T
            if p.softcap:
                s = p.softcap * np.tanh(s / p.softcap)
            if "slopes" in arrays:
                slope = arrays["slopes"][(b, h) if p.slopes_batched else h]
                s = s - slope * np.abs(i[:, None] + shift - j[None, :])
            s = np.where(seen, s, -np.inf)
            sink = arrays["sinks"][h] if "sinks" in arrays else -np.inf
            top = np.maximum(s.max(1, initial=-np.inf), sink)[:, None]
            top = np.where(np.isfinite(top), top, 0.0)
            e = np.exp(s - top)
            with np.errstate(divide="ignore"):
                total = e.sum(1, keepdims=True) + np.exp(sink - top)
                logs = (np.log(total) + top)[:, 0]
            rows_of(p, o, "o", b)[h, q_at : q_at + n_q] = e @ v / np.where(total > 0, total, 1)
            if p.total_q:
                lse[h, q_at : q_at + n_q] = logs
            else:
                lse[b, h, :n_q] = logs
    return o, lse


def compute(
    p: AttentionProblem,
    lengths: dict[str, Any] | None = None,
    seed: int = 0,
    scale: float | None = None,
    workgroups: int | None = 3,
    on: Device = H200,
    **fields: Any,
) -> None:
    """Run the kernel and compare; rows that nobody owns are NaN, and must stay so."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {}
    for one in FAMILY.operands(p):
        values = rng.normal(size=one.shape) * (2 if one.name == "q" else 1)
        arrays[one.name] = values.astype(NUMPY[one.dtype])
        if one.role == "out":
            arrays[one.name][...] = np.nan
    arrays.update(lengths or {})
    spans = sequences(p, arrays)
    for name in ("q", "k", "v"):
        used = np.zeros(arrays[name].shape, bool)
        for b, (q_at, n_q, kv_at, n_kv) in enumerate(spans):
            at, n = (q_at, n_q) if name == "q" else (kv_at, n_kv)
            rows_of(p, used, name, b)[:, at : at + n] = True
        arrays[name][~used] = np.nan
    kernel = config_for(p, **fields)
    verdict = FAMILY.supports(kernel, p, arch("sm_90"))
    assert verdict, verdict
    scale = p.head_dim**-0.5 if scale is None else scale
    written = gluon_in_numpy.run(
        FAMILY.sources(kernel, arch("sm_90"))[MAIN],
        FAMILY.launch(kernel, p, on),
        arrays,
        {"scale": scale},
        HELPERS,
        seed,
        workgroups if kernel.scheduler == "persistent" else None,
    )
    o, lse = expected(p, arrays, scale)
    once = {"o": o, "lse": lse} if "lse" in p.words else {"o": o}
    for name, wanted in once.items():
        assert (written[name].reshape(wanted.shape) == ~np.isnan(wanted)).all(), name
        tolerance = 3e-2 if name == "o" else 1e-3
        np.testing.assert_allclose(
            arrays[name].astype(float), wanted, rtol=tolerance, atol=tolerance, err_msg=name
        )


PLAIN = AttentionProblem(2, 2, 200, 150, 64, others="lse")


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("right", [None, 0])
@pytest.mark.parametrize("scheduler", ["persistent", "tile"])
def test_rows_and_keys_that_are_no_multiple_of_the_tile(
    right: int | None, scheduler: str, seed: int
) -> None:
    compute(replace(PLAIN, right=right), seed=seed, scheduler=scheduler)


MASKS: list[dict[str, Any]] = [
    {"right": 0},
    {"right": 0, "corner": "top_left"},
    {"right": 70, "corner": "top_left"},
    {"right": -30},
    {"left": 40, "right": 0},
    {"left": 40, "right": 0, "first": 5},
    {"left": 100, "right": 20, "first": 70},
    {"left": 33},
    {"left": 20, "right": 10, "corner": "top_left"},
    {"left": -10, "right": 90},
    {"left": 40, "right": -60},  # no key at all
]


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("sizes", [(200, 150), (100, 420), (1, 333), (333, 1)], ids=str)
def test_masks(mask: dict[str, Any], sizes: tuple[int, int]) -> None:
    compute(replace(PLAIN, batch=1, q_len=sizes[0], kv_len=sizes[1], **mask), seed=len(str(mask)))


@pytest.mark.parametrize(
    "fields",
    [
        {"head_dim": 128},
        {"head_dim": 256},
        {"head_dim": 192, "head_dim_v": 128},
        {"head_dim": 96},
        {"head_dim": 160},
        {"head_dim": 64, "head_dim_v": 128},
        {"head_dim": 128, "head_dim_v": 32, "dtype": "fp16"},
        {"dtype_o": "fp32"},
    ],
    ids=str,
)
@pytest.mark.parametrize("stages", [2, 3])
def test_head_dims_and_dtypes(fields: dict[str, Any], stages: int) -> None:
    defaults = {"head_dim_v": 0, "dtype_kv": "", "dtype_o": ""}
    p = replace(PLAIN, batch=1, q_len=130, right=0, **{**defaults, **fields})
    kernel = config_for(p, num_stages=stages)
    if not FAMILY.judge(kernel, arch("sm_90")):
        pytest.skip(str(FAMILY.judge(kernel, arch("sm_90"))))
    compute(p, num_stages=stages, workgroups=2)


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("tile_kv", [64, 128])
def test_numbers_of_warp_groups(groups: int, tile_kv: int) -> None:
    compute(
        replace(PLAIN, right=0, kv_len=500), seed=groups, tile_q=64 * groups, num_warps=4 * groups,
        tile_kv=tile_kv, num_stages=3,
    )  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        {"softcap": 5.0},
        {"others": "lse+alibi"},
        {"others": "alibi", "slopes_batched": True, "corner": "top_left"},
        {"others": "lse+sinks"},
        {"softcap": 3.0, "others": "lse+alibi+sinks", "left": 60, "first": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("sizes", [(150, 200), (200, 90)], ids=str)
def test_features_of_scores(fields: dict[str, Any], sizes: tuple[int, int]) -> None:
    p = replace(PLAIN, heads=4, kv_heads=2, q_len=sizes[0], kv_len=sizes[1], right=0)
    compute(replace(p, **fields))


@pytest.mark.parametrize("layouts", [("bhsd", "bshd"), ("bshd", "bhsd")], ids=str)
def test_layouts_and_views_of_packed_rows(layouts: tuple[str, str]) -> None:
    compute(replace(PLAIN, layout=layouts[0], kv_layout=layouts[1], heads=4, kv_heads=2))


def test_a_scale_of_zero_makes_all_keys_equal() -> None:
    compute(replace(PLAIN, right=0), scale=0.0)


RAGGED_Q = [130, 0, 1, 300, 64]
RAGGED_KV = [200, 50, 0, 310, 1]


def offsets(lengths: list[int], gap: int = 0) -> np.ndarray:
    return np.cumsum([0, *(n + gap for n in lengths)]).astype(np.int32)


@pytest.mark.parametrize("mask", [{}, {"right": 0}, {"left": 50, "right": 30, "first": 2}], ids=str)
@pytest.mark.parametrize("words", ["packedq+packedkv", "packedq", "packedkv", "usedq", "usedkv"])
@pytest.mark.parametrize("seed", range(2))
def test_sequences_of_different_lengths(mask: dict[str, Any], words: str, seed: int) -> None:
    """Among them none of no queries and of no keys; rows behind a sequence's own are NaN."""
    arrays: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    if "packedq" in words:
        fields["total_q"] = sum(RAGGED_Q)
        arrays["q_offsets"] = offsets(RAGGED_Q)
    if "packedkv" in words:
        fields["total_kv"] = sum(RAGGED_KV) + 20
        arrays["kv_offsets"] = offsets(RAGGED_KV)
    if "usedq" in words:
        arrays["q_used"] = np.array(RAGGED_Q, np.int32)
    if "usedkv" in words:
        arrays["kv_used"] = np.array(RAGGED_KV, np.int32)
    p = AttentionProblem(
        5, 4, 300, 310, 64, kv_heads=2, others=f"lse+{words}", **mask, **fields
    )  # fmt: skip
    compute(p, arrays, seed=seed)


def test_padded_offsets_with_lengths_of_their_own() -> None:
    p = AttentionProblem(
        5, 2, 300, 310, 64, right=0, others="lse+sinks+packedq+packedkv+usedq+usedkv",
        total_q=sum(RAGGED_Q) + 35, total_kv=sum(RAGGED_KV) + 35,
    )  # fmt: skip
    arrays = {
        "q_offsets": offsets(RAGGED_Q, 7),
        "kv_offsets": offsets(RAGGED_KV, 7),
        "q_used": np.array(RAGGED_Q, np.int32),
        "kv_used": np.array(RAGGED_KV, np.int32),
    }
    for scheduler in ("persistent", "tile"):
        compute(p, arrays, scheduler=scheduler)


def test_more_sequences_than_the_warp_looks_at_together() -> None:
    rng = np.random.default_rng(1)
    lengths = [int(x) for x in rng.integers(0, 100, 70)]
    p = AttentionProblem(
        70, 1, 100, 100, 64, right=0, others="packedq+packedkv", total_q=sum(lengths),
        total_kv=sum(lengths),
    )  # fmt: skip
    compute(p, {"q_offsets": offsets(lengths), "kv_offsets": offsets(lengths)}, workgroups=4)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("head_dim", [192, 256])
def test_sums_leave_through_the_memory_of_q(head_dim: int, seed: int) -> None:
    dim_v, tile_kv = (128, 128) if head_dim == 192 else (256, 64)
    p = replace(PLAIN, head_dim=head_dim, head_dim_v=dim_v, right=0, others="", kv_len=400)
    compute(p, seed=seed, tile_kv=tile_kv, workgroups=1)


@pytest.mark.parametrize("workgroups", [1, 2, 7, 40])
def test_the_counter_ends_at_zero_however_many_workgroups_take_from_it(workgroups: int) -> None:
    compute(replace(PLAIN, right=0), workgroups=workgroups)


def test_heads_in_sections() -> None:
    """Few heads fit into L2 at once: their tiles come first."""
    p = replace(PLAIN, batch=1, heads=5, kv_heads=5, right=0)
    small = replace(H200, l2_bytes=130_000)
    (step,) = FAMILY.launch(config_for(p), p, small).steps
    names = [n for n, _ in FAMILY.sources(config_for(p), arch("sm_90"))[MAIN].arguments]
    assert step.arguments[names.index("section")].value == 2  # type: ignore[union-attr]
    compute(p, on=small)
