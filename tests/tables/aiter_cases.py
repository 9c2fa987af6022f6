"""What tests of aiter's files share: GPUs, and what entries of a file state."""

from __future__ import annotations

from typing import Any

from table_cases import kernel

from tilewright import GemmProblem
from tilewright.arch import arch, device
from tilewright.tables import aiter
from tilewright.tables.aiter import Entry

MI300X, MI355X = device("mi300x"), device("mi355x")
CDNA3, CDNA4, HOPPER = arch("gfx942"), arch("gfx950"), arch("sm_90")
SPLIT = kernel(scheduler="split_k", split_k=4, reduction="linear")


def rows(*given: Any, **options: Any) -> list[Any]:
    return [one for _, one in aiter.rows(*given, **options)]


def problems(entries: tuple[Entry, ...], this: Any = CDNA3) -> list[Any]:
    return [entry.problem(this) for entry in entries]


def row_scaled(m: int, n: int, k: int, dtype: str, **more: Any) -> GemmProblem:
    more = {"dtype_c": "bf16", "epilogue": "row_scale+col_scale", **more}
    return GemmProblem(m, n, k, dtype_a=dtype, **more)
