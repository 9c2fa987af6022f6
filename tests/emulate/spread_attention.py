"""Attention's axes of the spread, and the problems that a kernel is executed on."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from spread import Axes, Values

from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.ops.attention import FAMILY, AttentionConfig, AttentionProblem
from tilewright.ops.attention.config import ALIGNMENTS
from tilewright.ops.attention.features import join, split
from tilewright.ops.attention.mask import MASKS
from tilewright.ops.attention.problem import FP8, OUTPUTS

BATCH, GROUP = 2, 2
BLOCK = 64
"""Rows that share a scale, or a place of a mask of blocks; no tile here is longer."""

TILES: tuple[dict[str, int], ...] = (
    {"tile_q": 16, "tile_kv": 32, "num_warps": 4, "num_stages": 1},
    {"tile_q": 32, "tile_kv": 32, "num_warps": 4, "num_stages": 1},
)

DIMS = ((32, 32), (64, 64), (80, 80), (40, 24), (96, 64), (192, 128))

TOGETHER = (
    "lse",
    "lse+softcap+bias",
    "alibi+sinks+packedq+packedkv",
    "lse+dropout+random",
    "sinks+dropout+usedq+usedkv+leftpad",
    "softcap+usedkv+pagetable",
    "lse+bias+packedq+usedkv+pagelist",
    "alibi+usedkv+leftpad+pagetable",
    "usedkv+pagetable+vectorised",
    "lse+packedq+usedkv+pagelist+vectorised",
    "softcap+usedkv+pagetable+latent",
    "tscale+oscale",
    "sinks+packedq+packedkv+hscale",
    "lse+usedkv+leftpad+bscale",
    "lse+usedkv+append+rotaryh",
    "sinks+packedq+usedkv+pagetable+append+rotaryi",
    "usedq+usedkv+pagetable+vectorised+append",
    "softcap+bias+bias32+usedkv",
    "lse+bias+biasbool",
    "lse+blocks",
    "blocks+usedkv+pagetable",
)
"""Features that are executed together; each is in one of them at least."""


def axes(arch: Arch) -> Axes:
    """Attention's axes on an architecture."""
    each: dict[str, Values] = {
        "dtypes": {"/".join(each): _dtypes(*each) for each in _signatures(arch)},
        "head dims": {f"{k}x{v}": {"head_dim": k, "head_dim_v": v} for k, v in DIMS},
        "mask": {mask: {"mask": mask} for mask in MASKS},
        "features": {
            word: {"features": word, "page_size": _page(word)} for word in ("", *TOGETHER)
        },
        "splits": {
            "none": {"scheduler": "tile", "split_len": 0},
            "equal": {"scheduler": "split", "split_len": 0},
            "fixed": {"scheduler": "split", "split_len": 32},
        },
        "pages": {
            str(size): {"page_size": size, "features": "usedkv+pagetable"} for size in (1, 3, 64)
        },
        **{
            axis: {str(value): {axis: value} for value in values}
            for axis, values in (
                ("pack", (True, False)),
                ("alignment", ALIGNMENTS),
                ("num_warps", (4, 8, 2, 1)),
                ("num_stages", (1, 2)),
                ("tile_q", (16, 32, 64)),
                ("tile_kv", (32, 64)),
            )
        },
    }
    problems = {
        "ragged": partial(_problem, q_len=39, kv_len=75),
        "one query": partial(_problem, q_len=1, kv_len=70),
        "one key": partial(_problem, q_len=33, kv_len=1),
        "no keys": partial(_problem, q_len=3, kv_len=0),
        "strided": partial(_problem, q_len=18, kv_len=40, strided=True),
    }
    return Axes(FAMILY, FAMILY.pipelines(arch), "dtypes", each, {}, TILES, problems, {})


def _signatures(arch: Arch) -> list[tuple[str, str, str]]:
    """Dtypes of Q, of K and V, and of O, the usual ones first."""
    eight = [d for d in FP8 if arch.dtypes.get(d) and arch.dtypes[d].support != "refused"]
    found = [(d, d, OUTPUTS[d][0]) for d in ("bf16", "fp16", "fp32", *eight)]
    found += [("bf16", d, "bf16") for d in eight] + [("fp16", "fp16", "fp32")]
    return found + [(d, d, d) for d in eight]


def _dtypes(q: str, kv: str, o: str) -> dict[str, str]:
    return {"dtype": q, "dtype_kv": kv, "dtype_o": o}


def _page(features: str) -> int:
    return 16 if split(features) & {"pagetable", "pagelist"} else 0


def bounds(mask: str) -> dict[str, Any]:
    """The fields of a problem with a mask of this kind."""
    window = {"left": 20, "right": 3, "first": 2}
    return {"none": {}, "causal": {"right": 0}, "window": window}[mask]


def bias_type(words: Collection[str]) -> dict[str, str]:
    """The field of a problem whose bias has another type than its operands."""
    if "bias32" in words:
        return {"bias_dtype": "fp32"}
    return {"bias_dtype": "bool"} if "biasbool" in words else {}


def _problem(
    config: AttentionConfig, q_len: int, kv_len: int, strided: bool = False
) -> AttentionProblem:
    """Sequences with these rows at most.

    strided: rows of Q, K and V have room behind them, as heads of one array do.
    """
    c, words = config, config.words
    kv_heads = 1 if "latent" in words else 2
    said: dict[str, Any] = bounds(c.mask)
    if "softcap" in words:
        said["softcap"] = 15.0
    if "bias" in words:
        said["bias_shape"] = (1, kv_heads * GROUP)
        said |= bias_type(words)
    if "dropout" in words:
        said["dropout"] = 0.25
    if "bscale" in words:
        said["scale_block"] = BLOCK
    if "blocks" in words:
        said["blocks_shape"] = BATCH, 1 if c.pack else kv_heads * GROUP
        said["block_size"] = BLOCK
    if "append" in words:
        said["new_kv"] = 3
        kv_len += 3
    if words & {"rotaryi", "rotaryh"}:
        said |= {"rotary_dim": c.head_dim // 4 * 2, "rotary_len": kv_len + max(q_len, 3)}
    if "packedq" in words:
        said["total_q"] = BATCH * q_len - q_len // 3
    if "packedkv" in words:
        said["total_kv"] = BATCH * kv_len - kv_len // 3
    if c.page_size:
        entries = -(-kv_len // c.page_size)
        said |= {"page_size": c.page_size, "pages": BATCH * entries + 2}
        said["page_entries"] = entries if "pagetable" in words else BATCH * entries
    if strided and not c.page_size:
        said |= _strides(c, kv_heads, q_len, kv_len)
    of_fields = {"softcap", "bias", "bias32", "biasbool", "blocks", "dropout", "append"}
    return AttentionProblem(
        BATCH, kv_heads * GROUP, q_len, kv_len, c.head_dim, kv_heads, c.head_dim_v,
        dtype=c.dtype, dtype_kv=c.dtype_kv, dtype_o=c.dtype_o, alignment=c.alignment,
        others=join(words - of_fields), **said,
    )  # fmt: skip


def _strides(c: AttentionConfig, kv_heads: int, q_len: int, kv_len: int) -> dict[str, Any]:
    """Each head has 16 bytes behind its elements."""
    found = {}
    for name, dtype, heads, rows, dim in (
        ("q", c.dtype, kv_heads * GROUP, q_len, c.head_dim),
        ("k", c.dtype_kv, kv_heads, kv_len, c.head_dim),
        ("v", c.dtype_kv, kv_heads, kv_len, c.head_dim_v),
    ):
        head = dim + 16 // DTYPES[dtype].bytes
        if not (name == "v" and "latent" in c.words):
            found[f"{name}_strides"] = (rows * heads * head, heads * head, head, 1)
    return found
