"""A GEMM pipeline of the tests: its record."""

from __future__ import annotations

from typing import Any

from tilewright.arch.model import Arch
from tilewright.ops.gemm.config import MAX_TILE, GemmConfig
from tilewright.ops.gemm.pipelines import common
from tilewright.ops.gemm.pipelines.constants import TILE
from tilewright.ops.gemm.pipelines.record import Pipeline, Rates


def _objection(c: GemmConfig, arch: Arch) -> str | None:
    if c.layout != "rcr" or c.dtype_acc != "fp32" or c.precision != "ieee":
        return f"pipeline toy has layout rcr and sums in fp32, not {c.layout} and {c.dtype_acc}"
    return None


FIELDS: dict[str, Any] = {
    "name": "toy",
    "module": "toy_kernel",
    "function": "gemm_toy",
    "language": "triton",
    "sibling": "toy",
    "needs": (),
    "schedulers": ("tile",),
    "reductions": (),
    "stores": ("direct",),
    "padding": (True,),
    "alignments": (16,),
    "index_bits": (32,),
    "batchings": ("none",),
    "odd_rows": (),
    "odd_columns": (),
    "odd_warps": (),
    "largest_k": MAX_TILE,
    "rules": {"combination": _objection},
    "own_words": {},
    "reads": "pointers",
    "writes": "pointers",
    "traits": ("zero_k", "dot"),
    "operand_dtype": common.operand_dtype,
    "summed_k": common.whole_step,
    "several_blocks": common.never,
    "meetings": common.once,
    "shared_memory": common.pipelined_loads,
    "accumulators": common.accumulators,
    "boxes": None,
    "arguments": (),
    "constants": (*TILE, "SIGN"),
    "own_constants": {"SIGN": lambda c, arch: 1},
    "options": common.triton_options,
    "estimate": "tiled",
    "rates": Rates(share=0.5, scaled=1.0, converted=1.0, unpacked={}),
    "grids": ("whole",),
    "worth_having": {"whole": common.worth_through_pointers},
}
TOY = Pipeline(**FIELDS)
