"""How long a backward pass should take: for each kernel, the steps of its workgroups over the
compute units, with the figures of attention's estimate (`attention.rates`).

A step multiplies, and takes exponentials; products and the rest overlap in part, as in a forward
kernel in Triton. The memory's traffic overlaps all of it. A launch has up to five kernels, one
behind the other.

Sequences of unequal lengths are taken to be of their average length.

Pipelines in Gluon multiply five times for each pair, in one pass; their sums of dQ are zeroed,
added to and read. For a bias's gradient, gradients of scores are written and read.
"""

from __future__ import annotations

from tilewright.arch import arch
from tilewright.arch.figures import DEVICE, figures
from tilewright.arch.model import Device
from tilewright.dtypes import DTYPES
from tilewright.ops import physics
from tilewright.ops.attention.pipelines.common import wide
from tilewright.ops.attention.pipelines.gluon_ws import CHUNK
from tilewright.ops.attention.rates import ATTENTION
from tilewright.ops.attention_backward import pipelines
from tilewright.ops.attention_backward.catalogue import sums_width
from tilewright.ops.attention_backward.config import AttentionBackwardConfig
from tilewright.ops.attention_backward.pipelines.basic import sums
from tilewright.ops.attention_backward.pipelines.gluon_ws import columns
from tilewright.ops.attention_backward.pipelines.tiles import tiles as tiles_of
from tilewright.ops.attention_backward.problem import AttentionBackwardProblem
from tilewright.ops.estimate import Estimate

PRODUCTS, SCORES, MEMORY, STEPS, LAUNCH = (
    "matrix units", "weights", "memory", "steps", "launch",
)  # fmt: skip

BACKWARD = figures("attention_backward")


def estimate(
    config: AttentionBackwardConfig, problem: AttentionBackwardProblem, device: Device
) -> Estimate:
    """What `config` should take for `problem` on `device`."""
    own = _in_one_pass if pipelines.of(config).pace.one_pass else _by_owners
    return own(config, problem, device)


def _in_one_pass(
    c: AttentionBackwardConfig, p: AttentionBackwardProblem, device: Device
) -> Estimate:
    """The time of pipelines in Gluon: steps of workgroups, each on a compute unit of its own; and
    the memory's traffic of the kernels around it."""
    units, pace = device.compute_units, pipelines.of(c).pace
    peak = physics.matrix_rate(device, c.dtype) * pace.share
    d, narrow = sums_width(c), c.pipeline == "gluon_ws"
    d_v = columns(c.head_dim_v) if narrow else tiles_of(c.head_dim_v) * CHUNK
    depth = 3 * d + 2 * d_v
    if "dslopes" in c.words:  # a kernel of its own computes scores and their gradients again
        depth += d + d_v
    n_q, n_kv = p.lengths
    tiles = -(-n_kv // c.tile_rows) * p.kv_heads * p.batch
    share = p.pairs / max(1, p.batch * n_q * n_kv)
    # The mask cuts blocks in two at its edge; each is a whole step.
    each = n_q * share / c.step_rows + (p.mask.kind != "none" and share < 1)
    steps = -(-tiles // units) * p.group * max(1.0, each)
    if p.mask.kind != "none":  # tiles differ in length, and the last are short
        steps = max(steps * tiles / units / -(-tiles // units), p.group * n_q / c.step_rows)
    product = steps * 2 * c.tile_rows * c.step_rows * depth / peak
    if c.ordered:
        product /= pace.ordered
        product /= BACKWARD.SHARED_KEYS if p.mask.kind == "causal" and p.group > 1 else 1.0
    begin = tiles / units * BACKWARD.BEGIN_US + (BACKWARD.TURN_US if c.ordered else 0.0)
    rows = p.batch * n_q * p.heads
    passes = 2 if c.ordered else 3  # the first in turn writes, so that sums are not zeroed
    moved = p.min_bytes + rows * (passes * 4 * sums_width(c) + 2 * c.head_dim_v * 2)
    if "dbias" in c.words:
        moved += 2 * p.heads * p.pairs * DTYPES[p.dtype].bytes
    memory = physics.memory_us(moved, device)
    further = DEVICE.LAUNCH_US + ATTENTION.COMBINE_US * (len(_running(c)) - 1)
    times = {PRODUCTS: product, STEPS: begin, MEMORY: memory, LAUNCH: further}
    limiter = max(times, key=lambda term: times[term])
    facts = (f"{tiles} workgroups",)
    return Estimate(sum(times.values()), limiter, tuple(times.items()), facts)


def _running(c: AttentionBackwardConfig) -> set[str]:
    return {part.name for part in pipelines.of(c).parts if part.there(c)}


def _by_owners(c: AttentionBackwardConfig, p: AttentionBackwardProblem, device: Device) -> Estimate:
    """The time of `basic`."""
    this = arch(device.arch)
    units, clock = device.compute_units, device.clock_mhz
    peak = physics.matrix_rate(device, c.dtype) * pipelines.of(c).pace.share
    if this.async_mma and c.tile_rows < 64:
        peak *= ATTENTION.SMALL_DOT
    lanes, rate = physics.lanes(this), physics.exponentials(this)
    tile = c.tile_rows * c.step_rows
    instructions = ATTENTION.SCORE_INSTRUCTIONS + ATTENTION.MASK_INSTRUCTIONS
    scores = tile * (1 / rate + instructions / lanes) / clock
    d, d_v = wide(c.head_dim), wide(c.head_dim_v)
    n_q, n_kv = p.lengths
    both = (("gradients_of_keys", p.kv_heads, n_kv, n_q * p.group),
            ("gradients_of_queries", p.heads, n_q, n_kv),
            ("gradients_of_bias", p.heads, n_q, n_kv))  # fmt: skip
    share = p.pairs / max(1, p.batch * n_q * n_kv)
    times = dict.fromkeys((PRODUCTS, SCORES, STEPS), 0.0)
    body, workgroups = 0.0, 0
    running = _running(c)
    for name, heads, rows, others in both:
        if name not in running or not rows or not others:
            continue
        depth = d + d_v * (c.words != {"dv"})
        if name == "gradients_of_keys":
            depth += d * ("dk" in c.words) + d_v * ("dv" in c.words)
        elif name == "gradients_of_queries":
            depth += d * ("dq" in c.words)
        groups = -(-rows // c.tile_rows) * heads * p.batch
        masked = c.tile_rows / 2 if p.mask.kind != "none" and share < 1 else 0  # to the mask's edge
        busy = -(-groups // units) * max(1.0, (others * share + masked) / c.step_rows)
        product = 2 * tile * depth / peak
        overlapped = ATTENTION.SERIAL * min(product, scores)
        body += busy * (max(product, scores) + overlapped + ATTENTION.STEP_US)
        for term, taken in ((PRODUCTS, product), (SCORES, scores), (STEPS, ATTENTION.STEP_US)):
            times[term] += busy * taken
        workgroups += groups
    registers = sums(c) // (c.num_warps * this.warp_size)
    body *= BACKWARD.SPILL if registers > this.max_registers // 2 else 1.0
    of_warp = BACKWARD.WARP_SCORES / tile * c.num_warps * c.num_warps / BACKWARD.WARPS
    body *= BACKWARD.WARP_FACTOR * of_warp**BACKWARD.WARP_POWER
    memory = physics.memory_us(p.min_bytes * ATTENTION["NARROW"][c.alignment], device)
    further = (len(running) - 1) * ATTENTION.COMBINE_US
    total = physics.together_us(body, memory) + further + DEVICE.LAUNCH_US
    times |= {MEMORY: memory, LAUNCH: DEVICE.LAUNCH_US + further}
    limiter = max(times, key=lambda term: times[term])
    return Estimate(total, limiter, tuple(times.items()), (f"{workgroups} workgroups",))
