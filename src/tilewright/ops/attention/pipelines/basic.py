"""`basic`: from plain pointers, in Triton, on every architecture; every feature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.arch.model import Arch
from tilewright.ops.attention.features import FEATURES
from tilewright.ops.attention.mask import MASKS
from tilewright.ops.attention.pipelines import common
from tilewright.ops.attention.pipelines.record import Pipeline
from tilewright.ops.attention.problem import FP8, AttentionProblem

_DTYPES = (
    *((d, d) for d in ("bf16", "fp16", "fp32", *FP8)),
    *((q, kv) for q in ("bf16", "fp16") for kv in FP8),
)


def _algorithms(p: AttentionProblem, arch: Arch) -> Sequence[Mapping[str, Any]]:
    few = p.q_len * p.group <= 256
    return [
        {
            "tile_q": tile_q,
            "tile_kv": tile_kv,
            "num_warps": warps,
            "num_stages": 2 if arch.backend == "cuda" else 1,
            "scheduler": scheduler,
            "pack": pack,
            "alignment": alignment,
        }
        for tile_q, warps in ((16, 4), (64, 4), (128, 4), (128, 8))
        for tile_kv in (32, 64)
        for scheduler in (("tile", "split") if few else ("tile",))
        for pack in ((False, True) if p.group > 1 else (False,))
        for alignment in (16, 1)
    ]


def _no_more(p: AttentionProblem, arch: Arch) -> Sequence[Mapping[str, Any]]:
    return ()


BASIC = Pipeline(
    name="basic",
    module="basic",
    function="attention_basic",
    language="triton",
    sibling="basic",
    needs=(),
    features=frozenset(FEATURES),
    masks=MASKS,
    schedulers=("tile", "split"),
    packs=(False, True),
    dtypes=_DTYPES,
    odd_rows=(),
    odd_columns=(),
    rules={},
    supports={},
    boxes=common.no_boxes,
    views=common.no_views,
    arguments=(
        "q", "k", "v", "o", "lse", "random", "bias", "slopes", "sinks", "q_offsets", "kv_offsets",
        "q_used", "kv_used", "left_pad", "page_table", "page_list", "page_starts", "q_scale",
        "k_scale", "v_scale", "o_scale", "partial_o", "partial_lse", "q_strides", "k_strides",
        "v_strides", "o_strides", "bias_strides", "q_scale_strides", "kv_scale_strides", "heads",
        "kv_heads", "group", "q_len", "kv_len", "total_q", "rows", "page_entries", "new_kv",
        "slopes_stride", "scale_block", "splits", "split_len", "left", "right", "first",
        "bottom_right", "softcap", "dropped", "scale", "seed", "offset",
    ),
    constants=(
        "TILE_Q", "TILE_KV", "HEAD_DIM", "HEAD_DIM_V", "MASK", "PAGE", "PACK", "SPLIT", "LSE",
        "RANDOM", "SOFTCAP", "BIAS", "ALIBI", "SINKS", "DROPOUT", "PACKEDQ", "PACKEDKV", "USEDQ",
        "USEDKV", "LEFTPAD", "PAGETABLE", "PAGELIST", "VECTORISED", "LATENT", "TSCALE", "HSCALE",
        "BSCALE", "OSCALE", "APPEND", "LARGEST_O", "UNIT",
    ),
    own_constants={},
    options=common.triton_options,
    grid=common.by_tile,
    counter=False,
    shared_memory=None,
    registers=common.accumulators,
    share=0.5,
    algorithms=_algorithms,
    tuned=_no_more,
)  # fmt: skip
