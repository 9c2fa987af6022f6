"""A grid of problems from FlashAttention's and Composable Kernel's own tests, and FlashAttention's
rule: an error is at most twice that of the same computation in the inputs' dtype, one operation
after another, plus twice the rounding of the result (three times with a soft cap).

Lengths, head dims, head counts, pages and masks are those of FlashAttention (tests/test_flash_attn
and hopper/test_flash_attn), Composable Kernel (the matrix of its fmha smoke tests), FlashMLA and
FlashInfer. Which of them meet, and with which features, is drawn from each problem's number.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from attention_cases import drawn, legal, ways

from tilewright import arrays, ops, verify
from tilewright.arch import arch
from tilewright.arch.model import Arch
from tilewright.ops.attention import AttentionConfig, AttentionProblem
from tilewright.ops.attention.features import FEATURES
from tilewright.ops.attention.pipelines import PIPELINES
from tilewright.ops.attention.pipelines.record import Pipeline
from tilewright.ops.attention.problem import FP8
from tilewright.ops.attention.reference import reference

COUNT = 368
"""Problems of the grid."""

EACH = 20
"""Problems that have each feature, at least."""

LENGTHS = (
    # FlashAttention, of queries and keys
    (1, 1), (1, 128), (64, 128), (128, 192), (256, 256), (239, 1), (799, 3), (113, 203),
    (113, 128), (128, 217), (113, 211), (108, 256), (256, 512), (384, 256), (640, 128), (512, 256),
    (1024, 1024), (1023, 1024), (1024, 1023), (1, 147), (1, 339), (3, 1024), (64, 800), (64, 256),
    (3, 799), (64, 2048), (16, 2000), (1, 4096), (2048, 2048),
    # Composable Kernel
    (100, 51), (99, 256), (1024, 256), (768, 768), (259, 259), (1, 0), (33, 0), (55, 256),
    # FlashMLA: tokens that are verified at once
    (1, 20), (2, 140), (4, 140), (2, 1024),
)  # fmt: skip

HEADS = ((1, 1), (2, 2), (4, 4), (6, 2), (8, 1), (5, 1), (8, 2), (16, 1), (9, 3))
"""Of queries and keys."""

DIMS = (
    *((d, d) for d in (32, 40, 64, 64, 80, 96, 128, 128, 128, 160, 192, 256)),
    (192, 128), (64, 24), (96, 128), (64, 256),
)  # fmt: skip
"""Of Q and K, and of V."""

LATENT_DIMS = ((576, 512), (288, 256))

OLDER = [word for word in FEATURES if word != "blocks"]
"""Words that are drawn together. Blocks are drawn by themselves, so that other problems stay as
they were measured."""


def grid(fp8: str = "e4m3fn") -> list[AttentionProblem]:
    """The problems, each different from all others.

    fp8: the type in 8 bits; "" for none.
    """
    found: dict[AttentionProblem, None] = {}
    number = 0
    while len(found) < COUNT:
        found[one(number, fp8)] = None
        number += 1
    return [*found]


def one(number: int, fp8: str) -> AttentionProblem:
    """Problem `number`."""
    rng = random.Random(f"parity {number}")
    q_len, kv_len = LENGTHS[number % len(LENGTHS)]
    words = legal(rng, 0.15, sorted(OLDER)[number % len(OLDER)])
    if random.Random(f"blocks {number}").random() < 0.1:
        words |= {"blocks"}
    if "bias" in words and not words & {"bias32", "biasbool"}:
        words |= {("bias", "bias32", "biasbool")[number % 3]}
    sizes: dict[str, Any] = {"q_len": q_len, "kv_len": kv_len, "batch": rng.choice((1, 2, 3, 9))}
    if q_len * kv_len > 300_000:
        sizes["batch"] = rng.choice((1, 2))
    dtype = rng.choice(("bf16", "fp16", "bf16", "fp16", "bf16", "fp16", fp8 or "bf16", "fp32"))
    cache = fp8 if fp8 and dtype in ("bf16", "fp16") and rng.random() < 0.25 else dtype
    heads = rng.choice(HEADS)
    dims = rng.choice(DIMS)
    if "latent" in words:
        heads, dims = (rng.choice((4, 16)), 1), rng.choice(LATENT_DIMS)
        dims = LATENT_DIMS[-1] if dtype == "fp32" else dims  # the others do not fit
    sizes["heads"], sizes["kv_heads"] = heads
    sizes["head_dim"], sizes["head_dim_v"] = dims
    sizes |= {"dtype": dtype, "dtype_kv": cache}
    return drawn(number, words=words, **sizes)


def of_pipeline(record: Pipeline, arch: Arch, count: int) -> list[tuple[AttentionConfig, Any]]:
    """Kernels of one pipeline for problems of its own features, as the grid's otherwise."""
    found: list[tuple[AttentionConfig, Any]] = []
    among = [word for word in OLDER if word in record.features]
    for number in range(20 * count):
        rng = random.Random(f"{record.name} {number}")
        words = legal(rng, 0.15, among[number % len(among)], among)
        if "latent" in among:
            words = words | {"latent"} - {"rotaryi", "rotaryh"}
        q_len, kv_len = LENGTHS[number % len(LENGTHS)]
        (heads, kv_heads), dims = rng.choice(HEADS), rng.choice(DIMS)
        if "latent" in words:
            heads, kv_heads, dims = rng.choice((4, 16)), 1, rng.choice(LATENT_DIMS)
        dtype, dtype_kv = rng.choice(record.dtypes)
        p = drawn(
            number, words=words, q_len=q_len, kv_len=kv_len, batch=rng.choice((1, 2, 3)),
            heads=heads, kv_heads=kv_heads, head_dim=dims[0], head_dim_v=dims[1], dtype=dtype,
            dtype_kv=dtype_kv,
        )  # fmt: skip
        own = [c for c in ways(p, arch, interpreted=False) if c.pipeline == record.name]
        found += [(config, p) for config in own]
        if len(found) >= count:
            break
    return found[:count]


@cache
def sixty(name: str, arch_name: str) -> list[tuple[AttentionConfig, Any]]:
    """The first cases of a pipeline on an architecture."""
    return of_pipeline(PIPELINES[name], arch(arch_name), 60)


def toys(name: str, arch_name: str, most: float) -> list[tuple[AttentionConfig, Any, int]]:
    """Those of a pipeline's `sixty` that are simulated in a moment, with their seeds."""
    numbered = enumerate(sixty(name, arch_name))
    return [(config, p, seed) for seed, (config, p) in numbered if toy(p, most)]


def toy(p: AttentionProblem, most: float) -> bool:
    """Whether the interpreter computes it in a moment: at most `most` scores."""
    return p.batch * p.heads * p.q_len * p.kv_len * p.head_dim <= most * 64


def coverage(problems: Iterable[AttentionProblem]) -> Counter[str]:
    """How many problems have each feature, mask, dtype and layout."""
    found: Counter[str] = Counter()
    for p in problems:
        found.update(p.words)
        found.update({f"mask {p.mask.kind}", p.corner, f"{p.dtype}", f"kv {p.dtype_kv}"})
        found.update({f"q {p.layout}", f"kv {p.kv_layout}", "gqa" if p.group > 1 else "mha"})
        found.update({"strided"} if p.q_strides or p.k_strides else ())
    return found


@dataclass(frozen=True, slots=True)
class Parity:
    """error: the largest of O. torch: the same of one operation after another. bound: of error."""

    error: float
    torch: float
    bound: float

    @property
    def ok(self) -> bool:
        return self.error <= self.bound


def parity(p: AttentionProblem, inputs: Mapping[str, Any], o: Any, wanted: Any) -> Parity:
    """How O compares by FlashAttention's rule, which is for dtypes of 8 and 16 bits.

    inputs: as the kernel had them, before the call. wanted: the reference's O.
    """
    wide = {n: x if isinstance(x, int | float) else arrays.to_float64(x) for n, x in inputs.items()}
    # fp8 is computed in bf16, with weights in fp8.
    one_by_one = reference(p, wide, rounding="bf16" if p.dtype in FP8 else p.dtype)["o"]
    known = wanted == wanted  # rows that are written
    if not known.any():
        return Parity(0.0, 0.0, 0.0)
    ref = wanted[known]

    def error(x: Any) -> float:
        return float(abs(x[known] - ref).max())

    noise = ref
    for step in (0.0, 0.3, -0.3):
        noise = arrays.rounded(noise + step, p.dtype_o)
    noise = float(abs(noise - arrays.rounded(ref, p.dtype_o)).max())
    if p.dtype_o == "fp32":  # exponentials and divisions in fp32 are not exact
        noise = max(noise, FP32_ERROR * float(abs(ref).max()))
    theirs = error(arrays.rounded(one_by_one, p.dtype_o))
    factor = 3.0 if p.softcap else 2.0
    return Parity(error(arrays.to_float64(o)), theirs, factor * theirs + 2 * noise)


FP32_ERROR = 2.0**-21
"""Share of O by which elementwise arithmetic in fp32 may be off (as in `tilewright.tolerance`)."""


@dataclass(frozen=True, slots=True)
class Computed:
    """What a kernel gave for a problem. parity: None in fp32, which the rule is not for."""

    kernel: str
    check: verify.Check
    parity: Parity | None

    @property
    def wrong(self) -> str:
        """What is wrong: "" if it is within the tolerances and the rule."""
        if not self.check.ok:
            return str(self.check)
        return "" if self.parity is None or self.parity.ok else str(self.parity)


def computed(
    dispatcher: Any, p: AttentionProblem, seed: int, device: str, name: str = ""
) -> Computed:
    """Compute `p` on fresh data, with the kernel called `name` if given."""
    family = ops.family("attention")
    config = family.parse_name(name) if name else dispatcher.select(p).config
    operands = verify.operands_of(p, seed, device)
    wanted = verify.reference(p, operands.inputs)
    before = dict(operands.inputs) | verify.snapshot(p, operands.inputs)
    verify.run(dispatcher, p, operands, config.name)
    check = verify.compare_all(p, config, operands.written(p), wanted, seed)
    rule = None if p.dtype == "fp32" else parity(p, before, operands.outputs["o"], wanted["o"])
    return Computed(config.name, check, rule)


def compute(dispatcher: Any, p: AttentionProblem, seed: int, device: str, name: str = "") -> str:
    """Compute `p`, and say what is wrong: "" if it is within the tolerances and the rule."""
    found = computed(dispatcher, p, seed, device, name)
    return found.wrong and f"{found.kernel} on {p} (seed {seed}): {found.wrong}"
