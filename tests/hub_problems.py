"""The problems that `hub_script` calls."""

from __future__ import annotations

from typing import Any

from tilewright import GemmProblem, ops
from tilewright.arch import arch


def problems() -> list[Any]:
    words = {"batch": "1", "heads": "4", "kv_heads": "2", "q_len": "24", "kv_len": "24"}
    words |= {"head_dim": "32", "dtype": "fp32", "mask": "causal"}
    product = GemmProblem(40, 48, 64, layout="rcr", dtype_a="fp16", epilogue="bias+relu")
    return [product, ops.family("attention").parse_problem(words, arch("sm_80"))]
