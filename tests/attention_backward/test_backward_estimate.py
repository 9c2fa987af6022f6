"""The estimate of the backward pass beside what an H200 measured."""

from __future__ import annotations

import math
import re
import statistics

import choice_gain
from tilewright import ops
from tilewright.arch import arch, device
from tilewright.ops.attention_backward import AttentionBackwardProblem

FAMILY, H200, SM_90 = ops.family("attention_backward"), device("h200_sxm"), arch("sm_90")
HEADS = {64: 32, 128: 16}
SHARED = re.compile(r"attention_backward b(\d+) h(\d+):(\d+) (\d+)×\d+ d(\d+) bf16")
TOKENS = 1 << 14


def _problems():
    """Those of the sets `dense` and `short` of f1dfe4c6:benchmarks/attention_backward_vendor.py."""
    for dim, heads in HEADS.items():
        for right in (None, 0):
            lengths = [(TOKENS // n, n) for n in (1024, 2048, 4096, 8192, 16384)]
            for batch, n in (*lengths, (128, 128), (64, 256), (1, 512)):
                yield AttentionBackwardProblem(batch, heads, n, n, dim, right=right)
            for batch, n in ((128, 256), (64, 1024), (16, 2048)):
                yield AttentionBackwardProblem(
                    batch, heads, n, n, dim, right=right, total_q=TOKENS, total_kv=TOKENS,
                    others="packedq+packedkv",
                )  # fmt: skip


def _measured():
    """Microseconds of kernels, by the problem's text."""
    found = {}
    for name in ("dense", "short"):
        lines = choice_gain.rows(f"attention_backward_{name}_h200.json", "sets", name)
        found |= {line["problem"]: line["brief_us"] for line in lines}
    return found


def test_what_is_chosen_is_near_the_best_that_was_measured():
    """Also of short sequences, for which the portable kernels were taken to be much too fast."""
    measured, losses = _measured(), []
    for p in _problems():
        us = measured.pop(str(p))
        configs = FAMILY.default_space(p, SM_90).expand(SM_90).configs
        known = {c.name: c for c in configs if c.name in us}
        best = min(us[name] for name in known)
        chosen = min(known, key=lambda name: FAMILY.estimate(known[name], p, H200).total_us)
        losses.append(us[chosen] / best)
    assert not measured, "a problem of the records was not asked for"
    assert max(losses) < 1.11
    assert statistics.geometric_mean(losses) < 1.01


def test_heads_that_share_keys_take_what_is_estimated():
    """The figures are of other runs, most of them with keys for every head."""
    measured, errors = [], []
    for line in choice_gain.rows("attention_backward_gqa_h200.jsonl"):
        batch, heads, kv_heads, length, dim = map(int, SHARED.match(line["problem"]).groups())
        p = AttentionBackwardProblem(
            batch, heads, length, length, dim, kv_heads=kv_heads,
            right=0 if line["problem"].endswith(" causal") else None,
        )  # fmt: skip
        assert str(p) == line["problem"]
        timed = choice_gain.timed(FAMILY, line["brief_us"])
        errors += [math.log(us / FAMILY.estimate(c, p, H200).total_us) for c, us in timed.items()]
        measured.append((p, timed))
    assert len(measured) == 10
    assert math.sqrt(sum(e * e for e in errors) / len(errors)) < 0.1
    assert choice_gain.gain(FAMILY, H200, measured) > 0.1  # of two kernels 4 % apart
