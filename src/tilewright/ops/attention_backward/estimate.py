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

from collections.abc import Mapping

import numpy as np

from tilewright.arch import arch
from tilewright.arch.figures import DEVICE, figures
from tilewright.arch.model import Arch, Device
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
from tilewright.ops.estimate import Estimates
from tilewright.ops.pool import Columns, Each, each

PRODUCTS, SCORES, MEMORY, STEPS, LAUNCH = (
    "matrix units", "weights", "memory", "steps", "launch",
)  # fmt: skip

BACKWARD = figures("attention_backward")


def estimates(c: Columns, problem: AttentionBackwardProblem, device: Device) -> Estimates:
    """What each of `c`, which are one or more, should take for `problem` on `device`."""
    groups = c.groups(_passes).items()
    return Estimates.joined(
        [(at, _TERMS[word](one, problem, device)) for word, (at, one) in groups]
    )


def _passes(c: AttentionBackwardConfig) -> str:
    return "one" if pipelines.of(c).pace.one_pass else "owners"


def _running(c: AttentionBackwardConfig) -> set[str]:
    return {part.name for part in pipelines.of(c).parts if part.there(c)}


def _kernels(c: AttentionBackwardConfig) -> int:
    """Kernels of a launch."""
    return len(_running(c))


def _estimated(total_us: Each, terms: Mapping[str, Each], workgroups: Each) -> Estimates:
    every = {word: us + np.zeros(len(total_us)) for word, us in terms.items()}
    return Estimates.of(total_us, every, lambda at: (f"{workgroups[at]:.0f} workgroups",))


# --- one pass -----------------------------------------------------------------------------------


def _in_one_pass(c: Columns, p: AttentionBackwardProblem, device: Device) -> Estimates:
    """The time of pipelines in Gluon: steps of workgroups, each on a compute unit of its own; and
    the memory's traffic of the kernels around it."""
    units, masked = device.compute_units, p.mask.kind != "none"
    n_q, n_kv = p.lengths
    tiles = -(-n_kv // c.tile_rows) * p.kv_heads * p.batch
    waves = -(-tiles // units)
    share = p.pairs / max(1, p.batch * n_q * n_kv)
    # The mask cuts blocks in two at its edge; each is a whole step.
    many = n_q * share / c.step_rows + (masked and share < 1)
    steps = waves * p.group * np.maximum(1.0, many)
    if masked:  # tiles differ in length, and the last are short
        even = steps * tiles / units / np.maximum(1, waves)
        steps = np.maximum(even, p.group * n_q / c.step_rows)
    product = steps * 2 * c.tile_rows * c.step_rows * each(c, _depth) / each(c, _rate, device)
    product = product / each(c, _in_turns)
    if p.mask.kind == "causal" and p.group > 1:
        product = product / np.where(c.ordered, BACKWARD.SHARED_KEYS, 1.0)
    begin = tiles / units * BACKWARD.BEGIN_US + np.where(c.ordered, BACKWARD.TURN_US, 0.0)
    rows = p.batch * n_q * p.heads
    passes = np.where(c.ordered, 2, 3)  # the first in turn writes, so that sums are not zeroed
    moved = p.min_bytes + rows * (passes * 4.0 * each(c, sums_width) + 2 * p.head_dim_v * 2)
    if "dbias" in p.computed:
        moved = moved + 2 * p.heads * p.pairs * DTYPES[p.dtype].bytes
    memory = physics.memory_us(moved, device)
    further = DEVICE.LAUNCH_US + ATTENTION.COMBINE_US * (each(c, _kernels) - 1)
    terms = {PRODUCTS: product, STEPS: begin, MEMORY: memory, LAUNCH: further}
    return _estimated(product + begin + memory + further, terms, tiles)


def _rate(c: AttentionBackwardConfig, device: Device) -> float:
    return physics.matrix_rate(device, c.dtype) * pipelines.of(c).pace.share


def _in_turns(c: AttentionBackwardConfig) -> float:
    """Factor on the rate where sums are added in turns."""
    return pipelines.of(c).pace.ordered if c.ordered else 1.0


def _depth(c: AttentionBackwardConfig) -> int:
    """Elements that are multiplied for each pair of a query and a key."""
    d, narrow = sums_width(c), c.pipeline == "gluon_ws"
    d_v = columns(c.head_dim_v) if narrow else tiles_of(c.head_dim_v) * CHUNK
    # With dslopes, a kernel of its own computes scores and their gradients again.
    return 3 * d + 2 * d_v + (d + d_v if "dslopes" in c.words else 0)


# --- a kernel for each side ---------------------------------------------------------------------


def _by_owners(c: Columns, p: AttentionBackwardProblem, device: Device) -> Estimates:
    """The time of `basic`."""
    this, tile = arch(device.arch), c.tile_rows * c.step_rows
    peak = each(c, _rate, device)
    if this.async_mma:
        peak = peak * np.where(c.tile_rows < 64, ATTENTION.SMALL_DOT, 1.0)
    lanes, rate = physics.lanes(this), physics.exponentials(this)
    instructions = ATTENTION.SCORE_INSTRUCTIONS + ATTENTION.MASK_INSTRUCTIONS
    scores = tile * (1 / rate + instructions / lanes) / device.clock_mhz
    n_q, n_kv = p.lengths
    both = (("gradients_of_keys", p.kv_heads, n_kv, n_q * p.group),
            ("gradients_of_queries", p.heads, n_q, n_kv),
            ("gradients_of_bias", p.heads, n_q, n_kv))  # fmt: skip
    share = p.pairs / max(1, p.batch * n_q * n_kv)
    times = dict.fromkeys((PRODUCTS, SCORES, STEPS), np.zeros(len(c)))
    body, workgroups = np.zeros(len(c)), np.zeros(len(c))
    for name, heads, rows, others in both:
        running = each(c, _runs, name)
        if not rows or not others or not running.any():
            continue
        groups = -(-rows // c.tile_rows) * heads * p.batch * running
        cut = p.mask.kind != "none" and share < 1
        masked = c.tile_rows / 2 if cut else 0  # to the mask's edge
        busy = -(-groups // device.compute_units) * np.maximum(
            1.0, (others * share + masked) / c.step_rows
        )
        product = 2 * tile * each(c, _depth_of, name) / peak
        overlapped = ATTENTION.SERIAL * np.minimum(product, scores)
        body = body + busy * (np.maximum(product, scores) + overlapped + ATTENTION.STEP_US)
        for term, taken in ((PRODUCTS, product), (SCORES, scores), (STEPS, ATTENTION.STEP_US)):
            times[term] = times[term] + busy * taken
        workgroups = workgroups + groups
    body = body * each(c, _spills, this) * each(c, _of_warps)
    memory = physics.memory_us(p.min_bytes * each(c, _narrow), device)
    further = (each(c, _kernels) - 1) * ATTENTION.COMBINE_US
    total = physics.together_us(body, memory) + further + DEVICE.LAUNCH_US
    terms = {**times, MEMORY: memory, LAUNCH: DEVICE.LAUNCH_US + further}
    return _estimated(total, terms, workgroups)


def _runs(c: AttentionBackwardConfig, name: str) -> bool:
    return name in _running(c)


def _depth_of(c: AttentionBackwardConfig, name: str) -> int:
    """Elements that a kernel multiplies for each pair of a query and a key."""
    d, d_v = wide(c.head_dim), wide(c.head_dim_v)
    depth = d + d_v * (c.words != {"dv"})
    if name == "gradients_of_keys":
        depth += d * ("dk" in c.words) + d_v * ("dv" in c.words)
    elif name == "gradients_of_queries":
        depth += d * ("dq" in c.words)
    return depth


def _spills(c: AttentionBackwardConfig, this: Arch) -> float:
    registers = sums(c) // (c.num_warps * this.warp_size)
    return float(BACKWARD.SPILL if registers > this.max_registers // 2 else 1.0)


def _of_warps(c: AttentionBackwardConfig) -> float:
    of_warp = BACKWARD.WARP_SCORES / (c.tile_rows * c.step_rows) * c.num_warps
    return float(
        BACKWARD.WARP_FACTOR * (of_warp * c.num_warps / BACKWARD.WARPS) ** BACKWARD.WARP_POWER
    )


def _narrow(c: AttentionBackwardConfig) -> float:
    return float(ATTENTION["NARROW"][c.alignment])


_TERMS = {"one": _in_one_pass, "owners": _by_owners}
