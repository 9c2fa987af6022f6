"""The combinations that CK Tile's smoke tests walk through: each has a kernel, some are checked.

Masks by either corner and windows, biases, dropout, logarithms, batches and packed sequences.
"""

from __future__ import annotations

import itertools
import random

import tilewright as tw
from tilewright.verify import require, verify

MASKS = {
    "no": {},
    "top left": {"right": 0, "corner": "top_left"},
    "bottom right": {"right": 0},
    "t:128,30": {"left": 128, "right": 30, "corner": "top_left"},
    "b:4,35": {"left": 4, "right": 35},
}
BIASES = {"none": {}, "elementwise": {"bias_shape": (1, 4)}, "alibi": {"others": {"alibi"}}}
SIZES = {"batch": 2, "heads": 4, "kv_heads": 2, "head_dim": 32, "q_len": 55, "kv_len": 100}
GROUP = {"total_q": 70, "total_kv": 150, "others": {"packedq", "packedkv"}}

problems = []
for mask, bias, drop, lse, mode, dtype in itertools.product(
    MASKS.values(), BIASES.values(), (0.0, 51 / 256), (False, True), ({}, GROUP), ("fp16", "bf16")
):
    words = {*bias.get("others", ()), *mode.get("others", ()), *(["lse"] if lse else [])}
    others = "+".join(w for w in ("lse", "alibi", "packedq", "packedkv") if w in words)
    fields = {**SIZES, **mask, **bias, **mode, "dropout": drop, "dtype": dtype, "others": others}
    problems.append(tw.AttentionProblem(**fields))

dispatcher = tw.Dispatcher(device="mi300x")
assert all(dispatcher.is_supported(problem) for problem in problems)
print(f"{len(problems)} combinations have a kernel on {dispatcher.device_for_planning().name}")
for problem in random.Random(0).sample(problems, 8):
    require(verify(tw.Dispatcher(), problem), str(problem))
    print(f"right: {problem}")
