"""`gluon_turned`: `gluon_ws` for fp8 whose values come by rows, as models have them. A kernel
before it writes them by columns, which is how wgmma reads 8-bit operands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.arch.model import Arch
from tilewright.ops.attention import parts
from tilewright.ops.attention.catalogue import turned_len
from tilewright.ops.attention.config import AttentionConfig
from tilewright.ops.attention.operands import strides_of
from tilewright.ops.attention.pipelines import gluon_ws
from tilewright.ops.attention.problem import AttentionProblem
from tilewright.ops.binder import Described


def _by_rows(c: AttentionConfig, p: AttentionProblem) -> str | None:
    if strides_of(p, "v")[1] == 1:
        return "values lie by columns already; gluon_ws reads them as they are"
    return gluon_ws.views_exist(c, p, "q", "k", "o")


def _views(c: AttentionConfig, p: AttentionProblem) -> Mapping[str, Described]:
    keys = turned_len(p)
    strides = (p.kv_heads * p.head_dim_v * keys, p.head_dim_v * keys, keys, 1)
    shape = (p.batch, p.kv_heads, p.head_dim_v, p.kv_len)
    return {**gluon_ws.views(c, p), "v": Described(shape, strides, "turned_v")}


def _algorithms(p: AttentionProblem, arch: Arch) -> Sequence[Mapping[str, Any]]:
    return gluon_ws.GLUON_WS.algorithms(p, arch) if p.dtype == "e4m3fn" else ()


def _tuned(p: AttentionProblem, arch: Arch) -> Sequence[Mapping[str, Any]]:
    return gluon_ws.GLUON_WS.tuned(p, arch) if p.dtype == "e4m3fn" else ()


GLUON_TURNED = replace(
    gluon_ws.GLUON_WS,
    name="gluon_turned",
    dtypes=(("e4m3fn", "e4m3fn"),),
    rules={**gluon_ws.GLUON_WS.rules, "fp8": gluon_ws.eight_bits("packedkv")},
    supports={"descriptors": _by_rows},
    kernel=replace(gluon_ws.GLUON_WS.kernel, views=_views),
    before=(parts.TURN,),
    algorithms=_algorithms,
    tuned=_tuned,
)
