"""GEMMs that have gradients: operands, and the same in float64 by torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

import tilewright as tw
from tilewright.ops.epilogues import OPERATIONS

M, N, K, BATCH = 32, 48, 16, 3
ROOMS = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""How far a gradient may be from that in float64, as a share of its norm: a few roundings."""


def clamped(
    gate: torch.Tensor, up: torch.Tensor, limit: Any, alpha: Any, plus: float
) -> torch.Tensor:
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + plus)


_TORCH: dict[str, Callable[..., Any]] = {
    "bias": lambda x, bias: x + bias,
    "add": lambda x, add: x + add,
    "mul": lambda x, mul: x * mul,
    "scale": lambda x, scale: x * scale,
    "row_scale": lambda x, scale: x * scale.reshape(-1, 1),
    "col_scale": lambda x, scale: x * scale,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
    "swiglu": lambda x: torch.nn.functional.silu(x[..., 0::2]) * x[..., 1::2],
    "geglu": lambda x: torch.nn.functional.gelu(x[..., 0::2]) * x[..., 1::2],
    "geglu_tanh": lambda x: (
        torch.nn.functional.gelu(x[..., 0::2], approximate="tanh") * x[..., 1::2]
    ),
    "reglu": lambda x: torch.relu(x[..., 0::2]) * x[..., 1::2],
    "glu": lambda x: torch.sigmoid(x[..., 0::2]) * x[..., 1::2],
    "clamped_swiglu": lambda x, limit, alpha: clamped(x[..., 0::2], x[..., 1::2], limit, alpha, 0),
    "clamped_swiglu_plus": lambda x, limit, alpha: clamped(
        x[..., 0::2], x[..., 1::2], limit, alpha, 1
    ),
    "clamp": lambda x, low, high: x.clamp(low, high),
}
_FP32 = ("scale", "row_scale", "col_scale", "low", "high", "limit", "alpha")


@dataclass(frozen=True)
class Case:
    """a, b: shapes. order_a, order_b: 'r' or 'c', which of the last two dimensions is innermost.
    extra: shapes of the epilogue's operands by name. precision: passed on where it is not ''."""

    name: str
    a: tuple[int, ...] = (M, K)
    b: tuple[int, ...] = (K, N)
    order_a: str = "r"
    order_b: str = "r"
    dtype: torch.dtype = torch.float32
    epilogue: str = ""
    extra: dict[str, tuple[int, ...]] = field(default_factory=dict)
    constant: tuple[str, ...] = ()
    precision: str = ""

    def operands(self, device: str = "cpu") -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(7)

        def made(shape: tuple[int, ...], order: str, dtype: torch.dtype) -> torch.Tensor:
            x = torch.randn(shape, generator=generator)
            if order == "c":
                x = x.mT.contiguous().mT
            return x.to(dtype).to(device)

        found = {
            "A": made(self.a, self.order_a, self.dtype),
            "B": made(self.b, self.order_b, self.dtype),
        }
        for name, shape in self.extra.items():
            found[name] = made(shape, "r", torch.float32 if name in _FP32 else self.dtype)
        if "low" in found:
            found["low"], found["high"] = found["low"].fill_(-1.5), found["high"].fill_(2.0)
        if "limit" in found:
            found["limit"], found["alpha"] = found["limit"].fill_(2.0), found["alpha"].fill_(1.7)
        for name, x in found.items():
            x.requires_grad_(name not in self.constant)
        return found

    @property
    def options(self) -> dict[str, str]:
        said = {"epilogue": self.epilogue, "precision": self.precision}
        return {name: value for name, value in said.items() if value}

    def run(self, operands: dict[str, torch.Tensor]) -> torch.Tensor:
        a, b, *extra = operands.values()
        return tw.gemm(a, b, *extra, **self.options)

    def by_torch(self, operands: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The same operands in float64 on the CPU, whose gradients `exact` fills in."""
        return {
            name: x.detach().double().cpu().requires_grad_(x.requires_grad)
            for name, x in operands.items()
        }

    def exact(self, operands: dict[str, torch.Tensor]) -> torch.Tensor:
        a, b, *extra = operands.values()
        result, left = a @ b, iter(extra)
        for name in self.epilogue.split("+") if self.epilogue else ():
            takes = len(OPERATIONS[name].takes)
            result = _TORCH[name](result, *(next(left) for _ in range(takes)))
        return result


_D, _ROW, _COLUMN, _ONE = (M, N), (M,), (N,), (1,)
LAYOUTS = [Case(f"{a}{b}", order_a=a, order_b=b) for a in "rc" for b in "rc"]
DTYPES = [Case(str(d), dtype=d) for d in ROOMS]
BATCHED = [
    Case("strided", a=(BATCH, M, K), b=(BATCH, K, N)),
    Case("strided columns", a=(BATCH, M, K), b=(BATCH, K, N), order_a="c", order_b="c"),
    Case("shared B, folded", a=(BATCH, M, K)),
    Case("shared B, a vector over rows", a=(BATCH, M, K), epilogue="row_scale",
         extra={"row_scale": _ROW}),
    Case("shared A", b=(BATCH, K, N)),
    Case("shared A, a bias", b=(BATCH, K, N), epilogue="bias", extra={"bias": _COLUMN}),
    Case("shared A, columns", b=(BATCH, K, N), order_b="c"),
    Case("one row, columns of a batch", a=(1, K), b=(BATCH, K, N), order_b="c"),
    Case("a batch of one", a=(1, M, K), b=(BATCH, K, N)),
    Case("bf16", a=(BATCH, M, K), b=(BATCH, K, N), dtype=torch.bfloat16),
    Case("a shared matrix", a=(BATCH, M, K), b=(BATCH, K, N), epilogue="add", extra={"add": _D}),
    Case("a matrix for each", a=(BATCH, M, K), b=(BATCH, K, N), epilogue="mul",
         extra={"mul": (BATCH, M, N)}),
]  # fmt: skip
EPILOGUES = [
    Case("bias", epilogue="bias", extra={"bias": _COLUMN}),
    Case("a bias of one row", epilogue="bias", extra={"bias": (1, N)}),
    Case("add", epilogue="add", extra={"add": _D}),
    Case("mul", epilogue="mul", extra={"mul": _D}),
    Case("scale", epilogue="scale", extra={"scale": _ONE}),
    Case("row_scale", epilogue="row_scale", extra={"row_scale": _ROW}),
    Case("col_scale", epilogue="col_scale", extra={"col_scale": _COLUMN}),
    *(Case(name, epilogue=name) for name in ("relu", "gelu", "gelu_tanh", "silu")),
    Case("clamp", epilogue="clamp", extra={"low": _ONE, "high": _ONE}, constant=("low", "high")),
    *(Case(name, epilogue=name) for name in ("swiglu", "geglu", "geglu_tanh", "reglu", "glu")),
    *(
        Case(name, epilogue=name, extra={"limit": _ONE, "alpha": _ONE}, constant=("limit", "alpha"))
        for name in ("clamped_swiglu", "clamped_swiglu_plus")
    ),
    Case("bias+swiglu+add", epilogue="bias+swiglu+add",
         extra={"bias": _COLUMN, "add": (M, N // 2)}),
    Case("bias+gelu", epilogue="bias+gelu", extra={"bias": _COLUMN}),
    Case("bias+relu+mul", epilogue="bias+relu+mul", extra={"bias": _COLUMN, "mul": _D}),
    Case("bf16 scale+bias+silu+add", epilogue="scale+bias+silu+add", dtype=torch.bfloat16,
         extra={"scale": _ONE, "bias": _COLUMN, "add": _D}),
    Case("add+add", epilogue="add+add", extra={"add": _D, "add_2": _D}),
]  # fmt: skip
CASES = [*LAYOUTS, *DTYPES, *BATCHED, *EPILOGUES]


def far(ours: Any, exact: Any) -> float:
    """How far from `exact`, as a share of its norm."""
    exact = exact.double()
    return float((ours.detach().double().cpu() - exact).norm() / exact.norm().clamp(min=1e-30))
