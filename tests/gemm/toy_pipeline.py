"""A GEMM pipeline of the tests: its record."""

from __future__ import annotations

from typing import Any

from tilewright.arch.model import Arch
from tilewright.ops.gemm.config import GemmConfig
from tilewright.ops.gemm.pipelines import common
from tilewright.ops.gemm.pipelines.record import Pipeline, Rates


def _objection(c: GemmConfig, arch: Arch) -> str | None:
    if c.layout != "rcr" or c.dtype_acc != "fp32" or c.precision != "ieee":
        return f"pipeline toy has layout rcr and sums in fp32, not {c.layout} and {c.dtype_acc}"
    return None


FIELDS: dict[str, Any] = {
    "name": "toy",
    "kernel": "toy_kernel:gemm_toy",
    "schedulers": ("tile",),
    "rules": {"combination": _objection},
    "traits": ("zero_k", "dot"),
    "shared_memory": common.pipelined_loads,
    "own": {"SIGN": lambda c, arch: 1},
    "rates": Rates(share=0.5),
    "grids": ("whole",),
    "worth_having": {"whole": common.worth_through_pointers},
}
TOY = Pipeline(**FIELDS)
