"""Sweeps that nobody ran: measurements with times made up from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, get_args

from tilewright import GemmProblem
from tilewright.arch import device
from tilewright.measure.measurement import (
    STATUSES,
    Environment,
    Flag,
    Measurement,
    Settings,
    Telemetry,
)

H200 = device("h200_sxm")
ENVIRONMENT = Environment((("tilewright", "0.1.0"), ("triton", "3.6.0")), "580.65.06")
FAILING = STATUSES[1:]
REASONS = {
    "mismatch": "outside tolerance: worst at 41.2 of it",
    "nan": "a NaN where the reference has none",
    "unsupported": "k is no multiple of 64, as the pipeline needs",
    "timeout": "did not end within 10 s",
    "build_failed": "the compiler said: out of resource",
}


def kernel(i: int) -> str:
    tile = f"{64 << i % 3}x{64 << i // 3 % 3}x{32 << i // 9 % 3}"
    return f"gemm_rcr_bf16_bf16_bf16_fp32_{tile}_w8_s{i // 27 + 2}_tma_persistent_g8_direct_al16"


def problem(i: int) -> GemmProblem:
    m, n, k = 1 << i % 12, 512 * (1 + i // 12 % 8), 1024 * (1 + i // 96)
    return GemmProblem(m, n, k, "e4m3fn" if i % 3 == 0 else "bf16")


def one(name: str, of: Any, us: float, status: str = "ok", **more: Any) -> Measurement:
    """A measurement of `us` microseconds, within 1 % either way."""
    timed = {"samples_us": (us,) * 3, "interval_us": (0.99 * us, 1.01 * us)}
    fields = {
        "device": H200,
        "environment": ENVIRONMENT,
        "settings": Settings(),
        "measured_at": "2026-01-02T03:04:05.678+00:00",
        "seconds": 0.25,
        "telemetry": Telemetry((1755, 1980), 61, 655.5),
        "reason": "" if status == "ok" else REASONS.get(status, f"{status} it was"),
        **(timed if status == "ok" else {}),
    }
    return Measurement(kernel=name, problem=of, status=status, **{**fields, **more})  # type: ignore[arg-type]


def sweep(
    kernels: int, problems: int, *, vendor: bool = True, **more: Any
) -> Iterator[Measurement]:
    """Every kernel on every problem: some fast, some slow, one in eight not timed."""
    dice = random.Random(0)
    names = [kernel(i) for i in range(kernels)] + ["vendor.cublas"] * vendor
    worth = {name: 1 + dice.random() ** 2 for name in names}
    for p in range(problems):
        of = problem(p)
        least = max(of.flops / 7e8, of.min_bytes / 4e6) + 2
        for name in names:
            us = least * worth[name] * (1 + 0.2 * dice.random())
            if name.startswith("vendor."):
                yield one(name, of, 1.1 * least, **more)
            elif dice.random() < 0.08:
                yield one(name, of, us, "unsupported", **more)
            elif dice.random() < 0.04:
                yield one(name, of, us, dice.choice(FAILING), **more)
            else:
                flags = (dice.choice(get_args(Flag)),)
                yield one(name, of, us, flags=flags if dice.random() < 0.02 else (), **more)
