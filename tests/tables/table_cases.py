"""Rows of made-up measurements, for tests of tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilewright.arch import device
from tilewright.arch.model import Device
from tilewright.ops.gemm import FAMILY, GemmProblem
from tilewright.tables.row import Row

H200, H20, H100 = device("h200_sxm"), device("h20"), device("h100_pcie")
HERE = (("tilewright", "0.1.0"), ("triton", "3.6.0"))


def kernel(**fields: Any) -> str:
    """The name of a plain bf16 kernel that serves anything aligned, but for `fields`."""
    usual = {
        "dtype_a": "bf16", "tile_m": 64, "tile_n": 64, "tile_k": 64, "num_warps": 4,
        "num_stages": 2, "pipeline": "basic",
    }  # fmt: skip
    from tilewright.arch import arch

    config = FAMILY.make_config({**FAMILY.axes(), **usual, **fields}, arch("sm_90"))
    name: str = config.name
    return name


PLAIN, WIDE, DEEP = kernel(), kernel(tile_n=128), kernel(num_stages=3)


def row(
    problem: Any, winner: str = PLAIN, us: float = 10.0, on: Device = H200, **fields: Any
) -> Row:
    """A row that says `winner` takes `us` microseconds, give or take 1 %."""
    made = Row(on, problem, winner, (), us, (us * 0.99, us * 1.01), 0.5, versions=HERE)
    return replace(made, **fields)


def gemm(m: int, n: int = 512, k: int = 512, **fields: Any) -> GemmProblem:
    """A bf16 GEMM."""
    return GemmProblem(m, n, k, **fields)
