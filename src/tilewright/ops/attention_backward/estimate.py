"""How long a backward pass should take: for each kernel, the steps of its workgroups over the
compute units, with the figures of attention's estimate (`attention.rates`). Nothing was fitted or
timed.

A step multiplies, and takes exponentials; products and the rest overlap in part, as in a forward
kernel in Triton. The memory's traffic overlaps all of it. A launch has up to five kernels, one
behind the other.
"""

from __future__ import annotations

import math

from tilewright.arch import arch, peak_tflops
from tilewright.arch.model import Device
from tilewright.ops.attention import rates
from tilewright.ops.attention.pipelines.common import wide
from tilewright.ops.attention_backward.config import AttentionBackwardConfig
from tilewright.ops.attention_backward.parts import PARTS
from tilewright.ops.attention_backward.problem import AttentionBackwardProblem
from tilewright.ops.attention_backward.rules import sums
from tilewright.ops.estimate import Estimate
from tilewright.ops.gemm import rates as device_rates

PRODUCTS, SCORES, MEMORY, STEPS, LAUNCH = (
    "matrix units", "weights", "memory", "steps", "launch",
)  # fmt: skip

SHARE = 0.45
"""Of the published matrix rate that products reach: a guess, somewhat under the forward kernel's,
as each step waits for two products before the next two."""

SPILL = 1.15
"""Factor for sums that take most of a thread's registers, as few workgroups are then resident."""


def estimate(
    config: AttentionBackwardConfig, problem: AttentionBackwardProblem, device: Device
) -> Estimate:
    """What `config` should take for `problem` on `device`."""
    c, p, this = config, problem, arch(device.arch)
    units, clock = device.compute_units, device.clock_mhz
    peak = peak_tflops(this, device, c.dtype) * 1e6 / units * SHARE
    if this.async_mma and c.tile_rows < 64:
        peak *= rates.SMALL_DOT
    lanes = this.fma_flops_per_cu_per_clock / 2
    rate = this.exp_per_cu_per_clock or lanes / 4
    tile = c.tile_rows * c.step_rows
    scores = (
        tile * (1 / rate + (rates.SCORE_INSTRUCTIONS + rates.MASK_INSTRUCTIONS) / lanes) / clock
    )
    d, d_v = wide(c.head_dim), wide(c.head_dim_v)
    both = (("gradients_of_keys", p.kv_heads, p.kv_len, p.q_len * p.group),
            ("gradients_of_queries", p.heads, p.q_len, p.kv_len),
            ("gradients_of_bias", p.heads, p.q_len, p.kv_len))  # fmt: skip
    share = p.pairs / max(1, p.batch * p.q_len * p.kv_len)
    terms = dict.fromkeys((PRODUCTS, SCORES, STEPS), 0.0)
    body, workgroups = 0.0, 0
    running = {part.name for part in PARTS if part.runs(c)}
    for name, heads, rows, others in both:
        if name not in running or not rows or not others:
            continue
        depth = d + d_v * (c.words != {"dv"})
        if name == "gradients_of_keys":
            depth += d * ("dk" in c.words) + d_v * ("dv" in c.words)
        elif name == "gradients_of_queries":
            depth += d * ("dq" in c.words)
        groups = -(-rows // c.tile_rows) * heads * p.batch
        busy = -(-groups // units) * max(1.0, others * share / c.step_rows)
        product = 2 * tile * depth / peak
        overlapped = (1 - rates.OVERLAP["triton"]) * min(product, scores)
        body += busy * (max(product, scores) + overlapped + rates.STEP_US)
        for term, taken in ((PRODUCTS, product), (SCORES, scores), (STEPS, rates.STEP_US)):
            terms[term] += busy * taken
        workgroups += groups
    registers = sums(c) // (c.num_warps * this.warp_size)
    body *= SPILL if registers > this.max_registers // 2 else 1.0
    narrow = rates.NARROW[c.alignment]
    memory = p.min_bytes * narrow / (device.bandwidth_gbs * 1e3)
    further = (len(running) - 1) * rates.COMBINE_US
    total = math.hypot(body, memory) + further + device_rates.LAUNCH_US
    terms |= {MEMORY: memory, LAUNCH: device_rates.LAUNCH_US + further}
    limiter = max(terms, key=lambda term: terms[term])
    return Estimate(total, limiter, tuple(terms.items()), (f"{workgroups} workgroups",))
