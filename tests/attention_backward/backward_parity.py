"""The forward pass's grid (`parity_cases`) for gradients, and FlashAttention's rule: the error of a
gradient is at most three times that of the same derivative in the inputs' dtype, one operation
after another, plus twice the rounding of the result, plus what the rounding of O makes of the exact
gradient: kernels read O, where one operation after another reads the weights.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from attention_cases import drawn, legal
from backward_cases import FEATURES, of_forward
from parity_cases import DIMS, HEADS, LENGTHS, Parity
from parity_cases import coverage as forward_coverage

from tilewright import arrays, ops, verify
from tilewright.ops.attention.reference import reference as forward
from tilewright.ops.attention_backward import AttentionBackwardProblem
from tilewright.ops.attention_backward.problem import GRADIENTS
from tilewright.ops.attention_backward.reference import reference

COUNT = 300
"""Problems of the grid."""

DTYPES = ("bf16", "fp16", "fp32")

TIMES = 3.0
"""How much larger an error may be."""


def grid() -> list[AttentionBackwardProblem]:
    """The problems, each different from all others."""
    found: dict[AttentionBackwardProblem, None] = {}
    number = 0
    while len(found) < COUNT:
        found[one(number)] = None
        number += 1
    return [*found]


def one(number: int) -> AttentionBackwardProblem:
    """Problem `number`."""
    rng = random.Random(f"backward parity {number}")
    among = sorted(FEATURES)
    words = legal(rng, 0.15, among[number % len(among)], among)
    q_len, kv_len = LENGTHS[number % len(LENGTHS)]
    batch = rng.choice((1, 2) if q_len * kv_len > 300_000 else (1, 2, 3, 9))
    (heads, kv_heads), (dim, dim_v) = rng.choice(HEADS), rng.choice(DIMS)
    p = drawn(
        number, dtypes=DTYPES, words=words, q_len=q_len, kv_len=kv_len, batch=batch, heads=heads,
        kv_heads=kv_heads, head_dim=dim, head_dim_v=dim_v,
        dtype=rng.choice((*DTYPES[:2], *DTYPES)),
    )  # fmt: skip
    found = of_forward(p, rng)
    # A gradient that needs a feature is always computed where that is: drawn, it would be rare.
    has = {name for name, needs in GRADIENTS.items() if needs and needs in p.words}
    return replace(found, grads="+".join(n for n in GRADIENTS if n in found.computed | has))


def toy(p: AttentionBackwardProblem, most: float) -> bool:
    """Whether the interpreter computes it in a moment: at most `most` scores."""
    return p.batch * p.heads * p.q_len * p.kv_len * p.head_dim <= most * 64


def coverage(problems: Iterable[AttentionBackwardProblem]) -> Counter[str]:
    """How many problems have each feature, mask, dtype, layout, gradient and kind of head dims."""
    listed = list(problems)
    found = forward_coverage(listed)
    for p in listed:
        found.update(p.computed)
        found.update({"mqa"} if p.kv_heads == 1 < p.heads else ())
        found.update({"two head dims"} if p.head_dim != p.head_dim_v else ())
        found.update(name for name in ("dlse", "accumulate") if getattr(p, name))
        found.update({"nothing seen"} if p.mask.pairs(p.q_len, p.kv_len) == 0 else ())
    return found


def exact(p: AttentionBackwardProblem, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs in float64, with O and LSE as the forward pass has them before they are rounded."""
    wide = widened(inputs)
    return wide | forward(p.forward, wide)


def widened(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs in float64."""
    return {n: x if isinstance(x, int | float) else arrays.to_float64(x) for n, x in inputs.items()}


def parity(
    p: AttentionBackwardProblem, inputs: Mapping[str, Any], made: Mapping[str, Any]
) -> dict[str, Parity]:
    """How gradients compare by the rule, which is for dtypes of 16 bits.

    inputs: as the kernels had them, before the call. made: the gradients, by name.
    """
    given, wide = widened(inputs), exact(p, inputs)
    wanted, one_by_one = reference(p, wide), reference(p, wide, rounding=p.dtype)
    of_rounded = reference(p, wide | {"o": given["o"]})
    dtypes = {one.name: one.dtype for one in ops.family(p.family).operands(p)}
    found = {}
    for name, ref in wanted.items():
        if 0 in ref.shape:
            continue
        own = dtypes[name]
        noise = ref
        for step in (0.0, 0.3, -0.3):
            noise = arrays.rounded(noise + step, own)
        noise = float(abs(noise - arrays.rounded(ref, own)).max())
        theirs = float(abs(arrays.rounded(one_by_one[name], own) - ref).max())
        error = float(abs(arrays.to_float64(made[name]) - ref).max())
        read = float(abs(of_rounded[name] - ref).max())
        found[name] = Parity(error, theirs, TIMES * theirs + 2 * noise + read)
    return found


def compute(
    dispatcher: Any, p: AttentionBackwardProblem, seed: int, device: str, name: str = ""
) -> str:
    """Compute `p`, and say what is wrong: "" if it is within the tolerances and the rule."""
    family = ops.family("attention_backward")
    config = family.parse_name(name) if name else dispatcher.select(p).config
    operands = verify.operands_of(p, seed, device)
    wanted = verify.reference(p, operands.inputs)
    before = dict(operands.inputs) | verify.snapshot(p, operands.inputs)
    verify.run(dispatcher, p, operands, config.name)
    made = operands.written(p)
    check = verify.compare_all(p, config, made, wanted, seed)
    if not check.ok:
        return f"{config.name} on {p} (seed {seed}) is {check}"
    if p.dtype == "fp32":
        return ""
    found = {n: each for n, each in parity(p, before, made).items() if not each.ok}
    return f"{config.name} on {p} (seed {seed}): {found}" if found else ""
