"""Products of mixtures of experts. Loads are skewed, as routers skew them, and some experts have no
row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import rivals
from cases import Case, Part, Programs
from cases.models import wrong
from comparison import Row
from tilewright import verify
from tilewright.ops.grouped_gemm import GroupedGemmProblem

CONTIGUOUS = (
    (256, 8, 14336, 4096), (4096, 8, 14336, 4096), (16384, 8, 4096, 14336), (512, 32, 2816, 2048),
    (8192, 32, 4096, 7168), (256, 64, 2816, 2048), (4096, 64, 2816, 2048), (16384, 64, 2816, 2048),
    (1024, 128, 4096, 7168), (8192, 128, 7168, 2048), (256, 256, 4096, 7168),
    (4096, 256, 7168, 2048), (16384, 256, 4096, 7168), (16384, 256, 7168, 2048),
)  # fmt: skip
"""(rows of all experts, experts, n, k): layers of models, few rows to many."""
MASKED = ((64, 8, 14336, 4096), (64, 32, 2816, 2048), (256, 64, 2816, 2048), (256, 128, 7168, 2048))
"""(capacity, experts, n, k)."""


def every_row_used(problem: GroupedGemmProblem, seed: int, device: str) -> verify.Operands:
    """Operands whose last group takes the rows that would belong to none: torch's call writes all
    rows."""
    made: Any = verify.operands_of(problem, seed, device)
    made.inputs["offsets"][-1] = problem.dealt
    return made


def even(problem: GroupedGemmProblem, seed: int, device: str) -> verify.Operands:
    """Operands whose groups are of equal size."""
    made: Any = verify.operands_of(problem, seed, device)
    ends = made.inputs["offsets"]
    ends.copy_(ends.new_tensor(ends_of("balanced", problem.groups, problem.dealt)))
    return made


# --- a mixture's layer, trained -----------------------------------------------------------------

TOKENS, EXPERTS, WIDTH, INNER = 32768, 128, 2048, 768
WEIGHTS = ((TOKENS, EXPERTS, WIDTH, INNER), (8192, 64, 2816, 2048), (16384, 8, 4096, 14336))
"""(rows of all experts, experts, m, n) of gradients of weights."""
LOADS = ("balanced", "skewed", "empty")


def ends_of(load: str, experts: int = EXPERTS, rows: int = TOKENS) -> list[int]:
    """Where the rows of each expert end: all equal; as 1/rank; or every second expert without."""
    shares = [1.0] * experts
    if load == "skewed":
        shares = [1 / (1 + rank * 7 % experts) for rank in range(experts)]
    elif load == "empty":
        shares = [float(expert % 2) for expert in range(experts)]
    whole, at, ends = sum(shares), 0.0, []
    for share in shares:
        at += share
        ends.append(round(rows * at / whole))
    return ends


def training(load: str, device: str = "cuda:0") -> dict[str, Callable[[], object]]:
    """A product of an expert's rows with its weight, forward and backward, by
    `tilewright.torch.grouped_mm` and by torch's. Raises `ValueError` where a result is wrong."""
    import torch

    import tilewright.torch as tt

    torch.manual_seed(0)
    x = torch.randn(TOKENS, WIDTH, device=device).bfloat16().requires_grad_()
    w = (torch.randn(EXPERTS, INNER, WIDTH, device=device) / WIDTH**0.5).bfloat16()
    w.requires_grad_()
    dy = torch.randn(TOKENS, INNER, device=device).bfloat16()
    ends = torch.tensor(ends_of(load), dtype=torch.int32, device=device)

    def step(product: Callable[..., Any]) -> Any:
        x.grad = w.grad = None
        y = product(x, w.transpose(1, 2), offs=ends)
        y.backward(dy)
        return y

    def results(product: Callable[..., Any]) -> dict[str, Any]:
        y = step(product)
        return {"y": y.detach().double(), "dx": x.grad.double(), "dw": w.grad.double()}

    exact, begin = {"y": [], "dx": [], "dw": []}, 0
    with torch.no_grad():
        for expert, end in enumerate(ends.tolist()):
            one, weight, arrived = (t.double() for t in (x[begin:end], w[expert], dy[begin:end]))
            exact["y"].append(one @ weight.T)
            exact["dx"].append(arrived @ weight)
            exact["dw"].append(arrived.T @ one)
            begin = end
    wanted = {name: (torch.stack if name == "dw" else torch.cat)(p) for name, p in exact.items()}
    ours, theirs = tt.grouped_mm, torch._grouped_mm
    if found := wrong(results(ours), results(theirs), wanted):
        raise ValueError(f"wrong: {', '.join(found)}")
    return {"ours": partial(step, ours), "vendor": partial(step, theirs)}


def weights() -> list[GroupedGemmProblem]:
    return [
        GroupedGemmProblem("weights", groups, m, n, k, layout="crr") for k, groups, m, n in WEIGHTS
    ]


# --- a mixture's products in fp8 ----------------------------------------------------------------

SCALED = (
    (32, 4096, 7168, (8, 512, 16384)), (32, 7168, 2048, (8, 512, 16384)),
    (128, 3072, 4096, (64, 16384)), (128, 4096, 1536, (64, 16384)),
)  # fmt: skip
"""(experts, n, k, tokens) of both products of DeepSeek-V3, for one of 8 ranks that have so many
tokens each, and of Qwen3-235B-A22B; 8 experts a token."""
FEW_TOKENS = 64
PUBLISHED = (
    "published of DeepGEMM, by other programs: 1,550 TFLOP/s at most, on an H800; a layer of 256 "
    "experts on 8 H200s, communication included, 768 TFLOP/s at 8,192 tokens"
)


def in_blocks() -> list[GroupedGemmProblem]:
    """Scales lie as the weights do."""
    return [
        GroupedGemmProblem(
            "contiguous", groups, 8 * tokens, n, k, dtype_a="e4m3fn", dtype_c="bf16",
            scale_a="1x128", scale_b="128x128",
            strides_sb=((n // 128) * (k // 128), 1, k // 128),
        )
        for groups, n, k, some in SCALED for tokens in some
    ]  # fmt: skip


def few(problem: GroupedGemmProblem) -> bool:
    return problem.m <= 8 * FEW_TOKENS


def rates(rows: Mapping[Any, Row]) -> str:
    """How fast each problem was by graphs."""
    found = []
    for problem, row in rows.items():
        ratio = row.ratio("graphs", "ours")
        assert ratio
        found.append(
            f"{problem.m}×{problem.n}×{problem.k} in {problem.groups} groups {ratio.us:.1f} µs, "
            f"{problem.flops / ratio.us / 1e6:.0f} TFLOP/s, "
            f"{problem.min_bytes / ratio.us / 1e6:.2f} TB/s"
        )
    return "; ".join((*found, PUBLISHED))


CASES = (
    Case(
        "grouped-gemm-fp8-blocks",
        "fp8 with scales of 1×128 and 128×128, products of DeepSeek-V3 and Qwen3-235B, 8 to 16,384 "
        "tokens, experts with equally many rows, by what is chosen untuned",
        "the faster of `torch._grouped_mm` in bf16, dequantised before, and "
        "`torch._scaled_grouped_mm` with a scale for each row", in_blocks, ours="answered",
        vendor=(rivals.scaled_grouped_mm,), beside=(rivals.copy,), operands=even, exact="near",
        parts=(Part("copy", rivals.COPY, (rivals.COPY,), few),), ways=("graphs",), figures=rates,
    ),
    Case(
        "grouped-gemm-contiguous", "bf16, mixtures of 8 to 256 experts, rows sorted by expert",
        "`torch._grouped_mm`",
        lambda: [GroupedGemmProblem("contiguous", g, m, n, k) for m, g, n, k in CONTIGUOUS],
        vendor=(rivals.grouped_mm,), operands=every_row_used,
    ),
    Case(
        "grouped-gemm-masked", "bf16, experts with a fixed capacity, four layers",
        "the better of `torch.bmm` over the capacity and `torch._grouped_mm` on the used rows",
        lambda: [GroupedGemmProblem("masked", g, m, n, k) for m, g, n, k in MASKED],
        vendor=(rivals.grouped_mm,), exact=False,
    ),
    Case(
        "grouped-gemm-weights",
        "bf16, gradients of the weights of three layers, skewed, every fourth expert without rows",
        "`torch._grouped_mm`", weights, vendor=(rivals.grouped_mm,), operands=every_row_used,
    ),
    Case(
        "grouped-gemm-weights-balanced", "bf16, the same, experts with equally many rows",
        "`torch._grouped_mm`", weights, vendor=(rivals.grouped_mm,), operands=even,
    ),
    Programs(
        "grouped-gemm-training",
        f"bf16, {TOKENS} rows, {EXPERTS} experts, {WIDTH} → {INNER}, forward and backward",
        "`torch._grouped_mm`",
        {f"grouped-gemm-training-{load}": partial(training, load) for load in LOADS},
    ),
)  # fmt: skip
