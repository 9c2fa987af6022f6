"""The kernel that appends keys and values and rotates, against a statement of it in NumPy."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tilewright.arch import arch, device
from tilewright.dtypes import DTYPES
from tilewright.ops.attention import FAMILY, AttentionConfig, AttentionProblem, parts
from tilewright.ops.attention.operands import operands
from tilewright.ops.nouns import Launch
from tilewright.runtime.interpreter import interpreter

PLAIN = {
    "batch": 3, "heads": 4, "kv_heads": 2, "q_len": 3, "kv_len": 24, "head_dim": 16, "new_kv": 3,
}  # fmt: skip
TABLE = {"pages": 8, "page_size": 8, "page_entries": 3}
LIST = {"pages": 8, "page_size": 8, "page_entries": 8}
ROTARY = {"rotary_dim": 16, "rotary_len": 24}

CASES = {
    "padded": {},
    "values of another length": {"head_dim_v": 24},
    "heads before rows": {"kv_layout": "bhsd", "layout": "bhsd"},
    "no power of two": {"head_dim": 40, "dtype": "fp16"},
    "left padding": {"others": "usedkv+leftpad"},
    "latent": {"others": "usedkv+latent", "kv_heads": 1, "head_dim_v": 8},
    "page table": {"others": "usedkv+pagetable", **TABLE},
    "page list, heads first": {"others": "usedkv+pagelist", "kv_layout": "bhsd", **LIST},
    "vectorised": {"others": "usedkv+pagetable+vectorised", **TABLE},
    "vectorised fp8": {
        "others": "usedkv+pagetable+vectorised+tscale", "dtype_kv": "e4m3fn", **TABLE,
        "page_size": 16,
    },
    "fp8 cache": {"others": "usedkv+tscale", "dtype_kv": "e4m3fn"},
    "fp8 cache, a scale a head": {"others": "usedkv+hscale", "dtype_kv": "e5m2"},
    "fp8 cache, a scale a block": {
        "others": "usedkv+leftpad+bscale", "dtype_kv": "e4m3fn", "scale_block": 4,
    },
    "fp8 cache without scales": {"dtype_kv": "e4m3fnuz"},
    "fp8 keys": {"others": "usedkv+tscale", "dtype": "e4m3fn"},
    "fp32": {"dtype": "fp32", "others": "usedkv+rotaryi", **ROTARY},
    "interleaved": {"others": "usedkv+rotaryi", "right": 0, **ROTARY},
    "half": {"others": "usedkv+rotaryh", "right": 0, **ROTARY},
    "half of a part": {"others": "usedkv+rotaryh", "left": 5, "rotary_dim": 6, "rotary_len": 24},
    "fewer angles than places": {
        "others": "usedkv+rotaryi", "right": 0, "rotary_dim": 8, "rotary_len": 13,
    },
    "interleaved part, all see all": {
        "others": "usedkv+leftpad+rotaryi", "rotary_dim": 10, "rotary_len": 24, "head_dim": 24,
    },
    "packed queries": {
        "others": "packedq+usedkv+pagetable+rotaryh", "total_q": 8, "right": 0, **TABLE, **ROTARY,
    },
    "packed and used queries": {
        "others": "packedq+usedq+usedkv+rotaryh", "total_q": 8, "right": 0, **ROTARY,
    },
    "all at once": {
        "others": "usedq+usedkv+leftpad+pagetable+hscale+rotaryi", "dtype_kv": "e4m3fn",
        "right": 0, "kv_layout": "bhsd", "head_dim": 24, **TABLE, **ROTARY,
    },
}  # fmt: skip


def problem_of(case: dict) -> AttentionProblem:
    return AttentionProblem(**{"others": "usedkv", **PLAIN, **case})


def config_of(p: AttentionProblem) -> AttentionConfig:
    return AttentionConfig(
        p.dtype, p.dtype_kv, p.dtype_o, p.head_dim, p.head_dim_v, p.mask.kind, 16, 32, 4, 1,
        "basic", "tile", alignment=1, page_size=p.page_size, features=p.features,
    )  # fmt: skip


def numpy_type(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, DTYPES[name].numpy, None) or DTYPES[name].numpy)


def inputs_of(p: AttentionProblem, seed: int = 0) -> dict[str, np.ndarray]:
    """Random operands; the cache, and what no step may read, is NaN."""
    rng = np.random.default_rng(seed)
    found = {}
    for one in operands(p):
        if one.dtype != "int32":
            values = rng.standard_normal(one.shape) * 2
            found[one.name] = values.astype(np.float32).astype(numpy_type(one.dtype))
    for name in ("k", "v"):
        if name in found:
            found[name][...] = np.nan
    for name in ("k_scale", "v_scale"):
        if name in found:
            found[name] = rng.uniform(0.01, 0.5, found[name].shape).astype(np.float32)
    words = p.words
    pad = np.array([0, 2, 4], np.int32)
    found["kv_used"] = np.array([21, 6, 13], np.int32)
    if "leftpad" in words:
        found["left_pad"] = pad
    if "packedq" in words:
        found["q_offsets"] = np.array([0, 3, 3, 5], np.int32)
    if "usedq" in words:
        found["q_used"] = np.array([1, 0, 2], np.int32)
    pages = rng.permutation(p.pages).astype(np.int32)
    if "pagetable" in words:
        # Each sequence has the pages that it needs; the rest of its row is garbage.
        table = np.full((p.batch, p.page_entries), 2**30, np.int32)
        table[0], table[1, :2], table[2, :2] = pages[:3], pages[3:5], pages[5:7]
        if p.page_size == 16:
            table[2, :1] = pages[5]
        found["page_table"] = table
    if "pagelist" in words:
        found["page_list"] = pages
        found["page_starts"] = np.array([0, 3, 5, 7], np.int32)
    return found


def run(p: AttentionProblem, given: dict[str, np.ndarray], c: AttentionConfig | None = None):
    """What lies in the cache afterwards, and rotated Q."""
    config = c or config_of(p)
    whole = FAMILY.launch(config, p, device("h200_sxm"))
    step = next(one for one in whole.steps if one.part == parts.APPEND.name)
    sources = FAMILY.sources(config, arch("sm_90"))
    after = {name: array.copy() for name, array in given.items()}
    temporaries = {
        one.name: np.full(one.shape, np.nan).astype(numpy_type(one.dtype))
        for one in whole.temporaries
        if one.name == "rotated_q"
    }
    kept = tuple(one for one in whole.temporaries if one.name in temporaries)
    written = [name for name in ("k", "v") if name in after]
    interpreter().run(sources, Launch((step,), kept), after, written, temporaries=temporaries)
    return after, temporaries.get("rotated_q")


def rotated(p: AttentionProblem, given: dict, row: np.ndarray, place: int) -> np.ndarray:
    row = row.astype(np.float64)
    if not 0 <= place < p.rotary_len:  # a problem without rotation has none
        return row
    cos = given["rotary_cos"][place].astype(np.float64)
    sin = given["rotary_sin"][place].astype(np.float64)
    part = row[: p.rotary_dim]
    if "rotaryi" in p.words:
        first, second = slice(0, None, 2), slice(1, None, 2)
    else:
        first, second = slice(0, p.rotary_dim // 2), slice(p.rotary_dim // 2, None)
    out = np.empty_like(part)
    out[first] = part[first] * cos - part[second] * sin
    out[second] = part[first] * sin + part[second] * cos
    return np.concatenate([out, row[p.rotary_dim :]])


def cache_row(p: AttentionProblem, given: dict, name: str, b: int, row: int, head: int):
    """The index of a row in the cache's array."""
    outer = b
    if p.paged:
        entry, row = divmod(row, p.page_size)
        if "pagetable" in p.words:
            outer = given["page_table"][b, entry]
        else:
            outer = given["page_list"][given["page_starts"][b] + entry]
    if "vectorised" in p.words:
        x = 16 // DTYPES[p.dtype_kv].bytes
        if name == "k":
            return outer, head, slice(None), row, slice(None)
        return outer, head, row // x, slice(None), row % x
    return (outer, row, head) if p.kv_layout == "bshd" else (outer, head, row)


def stated(p: AttentionProblem, given: dict) -> dict[str, np.ndarray]:
    """The cache afterwards, in float64; NaN where nothing is written."""
    found = {name: given[name].astype(np.float64) for name in ("k", "v") if name in given}
    for b in range(p.batch):
        used = int(given["kv_used"][b])
        pad = int(given["left_pad"][b]) if "leftpad" in p.words else 0
        for t in range(p.new_kv):
            if used + t >= p.kv_len:
                continue
            for head in range(p.kv_heads):
                for name in found:
                    row = given[f"new_{name}"][b, t, head]
                    if name == "k":
                        row = rotated(p, given, row, used - pad + t)
                    row = row.astype(np.float64)
                    if p.dtype_kv != p.dtype and f"{name}_scale" in given:
                        scale = given[f"{name}_scale"]
                        if "tscale" in p.words:
                            one = scale[0]
                        elif "hscale" in p.words:
                            one = scale[b, head]
                        else:
                            one = scale[b, head, (used - pad + t) // p.scale_block]
                        row = row / one
                    most = DTYPES[p.dtype_kv].largest or np.inf
                    at = cache_row(p, given, name, b, used + t, head)
                    place = found[name][at]
                    found[name][at] = np.clip(row, -most, most).reshape(place.shape)
    return found


def stated_q(p: AttentionProblem, given: dict) -> np.ndarray:
    """Rotated Q in float64; NaN where nothing is written."""
    rows = p.total_q or p.batch * p.q_len
    found = np.full((rows, p.heads, p.head_dim), np.nan)
    for b in range(p.batch):
        start, n_q = b * p.q_len, p.q_len
        if "packedq" in p.words:
            start, end = given["q_offsets"][b : b + 2]
            n_q = end - start
        if "usedq" in p.words:
            n_q = given["q_used"][b]
        place = int(given["kv_used"][b])
        if "leftpad" in p.words:
            place -= int(given["left_pad"][b])
        for i in range(n_q):
            for head in range(p.heads):
                if "packedq" in p.words:
                    row = given["q"][start + i, head]
                else:
                    at = (b, i, head) if p.layout == "bshd" else (b, head, i)
                    row = given["q"][at]
                turned = place + (i if p.mask.kind != "none" else 0)
                found[start + i, head] = rotated(p, given, row, turned)
    return found


def near(have: np.ndarray, want: np.ndarray, dtype: str) -> None:
    """NaN in the same places, and elsewhere no further apart than one rounding."""
    have = have.astype(np.float64).reshape(want.shape)
    np.testing.assert_array_equal(np.isnan(have), np.isnan(want))
    step = DTYPES[dtype].eps
    least = 2.0**-9 if DTYPES[dtype].bits == 8 else 1e-6
    np.testing.assert_allclose(have, want, rtol=step, atol=least, equal_nan=True)


@pytest.mark.grid(6)
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_new_rows_are_written_behind_those_of_the_cache(case):
    p = problem_of(case)
    given = inputs_of(p)
    after, q = run(p, given)
    for name, want in stated(p, given).items():
        near(after[name], want, p.dtype_kv)
    if p.rotary_dim:
        near(q, stated_q(p, given), p.dtype)
    else:
        assert q is None


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_strides_of_the_cache_and_of_q_are_kept(layout):
    """Views of wider arrays: K and V of one, Q of every second element of another."""
    p = problem_of({"others": "usedkv+rotaryi", "kv_layout": layout, **ROTARY})
    given = inputs_of(p)
    both = np.full((*given["k"].shape[:3], 2, 16), np.nan).astype(given["k"].dtype)
    given["k"], given["v"] = both[..., 0, :], both[..., 1, :]
    wide = np.full((*given["q"].shape[:2], 3, 4, 16, 2), np.nan).astype(given["q"].dtype)
    wide[:, :, 1, ..., 1] = given["q"]
    given["q"] = wide[:, :, 1, ..., 1]

    def strides(array, order):
        steps = [step // array.itemsize for step in array.strides]
        return tuple(steps[i] for i in order)

    order = (0, 1, 2, 3) if layout == "bshd" else (0, 2, 1, 3)
    q = strides(given["q"], (0, 1, 2, 3))
    k = strides(given["k"], order)
    view = replace(p, q_strides=q, k_strides=k, v_strides=k)
    # A copy would be contiguous: the views themselves go to the kernel.
    step = FAMILY.launch(config_of(view), view, device("h200_sxm"))
    sources = FAMILY.sources(config_of(view), arch("sm_90"))
    kept = tuple(one for one in step.temporaries if one.name == "rotated_q")
    out = {"rotated_q": np.zeros(kept[0].shape, given["q"].dtype)}
    before = {**given, "k": given["k"].copy(), "v": given["v"].copy()}
    interpreter().run(sources, Launch(step.steps[:1], kept), given, ["k", "v"], temporaries=out)
    for name, want in stated(p, before).items():
        near(given[name], want, p.dtype_kv)
    near(out["rotated_q"], stated_q(p, before), p.dtype)


def test_values_beyond_fp8_saturate_and_nan_stays():
    p = problem_of({"others": "usedkv+tscale", "dtype_kv": "e4m3fn"})
    given = inputs_of(p)
    given["new_k"][0, 0, 0, :4] = [1e4, -1e4, np.inf, np.nan]
    given["k_scale"][:] = 0.5
    after, _ = run(p, given)
    row = after["k"][0, 21, 0, :4].astype(np.float32)
    np.testing.assert_array_equal(row, [448.0, -448.0, 448.0, np.nan])


def test_rows_behind_the_cache_are_not_written():
    """The first sequence is full: what would be its next row is the second one's first."""
    p = problem_of({})
    given = inputs_of(p)
    given["kv_used"][:] = [24, 0, 23]
    after, _ = run(p, given)
    for name, want in stated(p, given).items():
        near(after[name], want, p.dtype_kv)
    assert np.isnan(after["k"][0].astype(np.float32)).all()


def test_the_rotated_key_of_a_place_is_that_of_a_query_there():
    """Rotation keeps the product of a query and a key that are equally far apart."""
    p = problem_of({"others": "usedkv+rotaryh", "right": 0, "kv_heads": 4, **ROTARY})
    given = inputs_of(p)
    angles = np.arange(24)[:, None] * 0.3 ** np.arange(8)[None, :]
    given["rotary_cos"] = np.cos(angles).astype(given["rotary_cos"].dtype)
    given["rotary_sin"] = np.sin(angles).astype(given["rotary_sin"].dtype)
    given["kv_used"][:] = [1, 5, 9]
    for name in ("q", "new_k"):
        given[name][...] = given[name][:1, :1, :1]
    after, q = run(p, given)
    q = q.astype(np.float64).reshape(given["q"].shape)
    products = [
        float(q[b, i, 0] @ after["k"][b, given["kv_used"][b] + i, 0].astype(np.float64))
        for b in range(3)
        for i in range(3)
    ]
    assert np.allclose(products, products[0], rtol=0.03)


def test_an_append_without_rotation_launches_no_workgroup_for_queries():
    p = problem_of({})
    step = FAMILY.launch(config_of(p), p, device("h200_sxm")).steps[0]
    assert step.part == parts.APPEND.name
    assert step.grid == (1, 2, 3)  # six rows, eight a workgroup; keys and values; sequences
