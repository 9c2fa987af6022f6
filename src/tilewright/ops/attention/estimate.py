"""How long a kernel should take, and the terms of that time, from sizes and the data sheet's rates.

A tile of queries walks its keys in steps. In a step the matrix units multiply twice, the
transcendental units take the exponentials, and both overlap. Tiles come in waves over the compute
units; the last wave is as long as a full one. Memory traffic overlaps all of it.
"""

from __future__ import annotations

from tilewright.arch import arch, peak_tflops
from tilewright.arch.model import Device
from tilewright.errors import BadArgument
from tilewright.ops.attention import pipelines
from tilewright.ops.attention.config import AttentionConfig
from tilewright.ops.attention.pipelines.common import heads, q_tiles, wide
from tilewright.ops.attention.problem import AttentionProblem
from tilewright.ops.attention.splits import splits_of
from tilewright.ops.estimate import Estimate

LAUNCH_US = 2.0
"""Of each step of a launch."""

MEMORY_SHARE = 0.85
"""Of the published bandwidth that a kernel reaches."""


def estimate(config: AttentionConfig, problem: AttentionProblem, device: Device) -> Estimate:
    """What `config` should take for `problem` on `device`."""
    c, p = config, problem
    this, record = arch(device.arch), pipelines.of(config)
    splits = splits_of(c, p, device)
    tiles = q_tiles(c, p) * heads(c, p) * p.batch
    _, n_kv = p.lengths
    # Pairs that are computed: whole tiles, of which the mask leaves a share.
    share = p.pairs / max(1, p.batch * p.lengths[0] * n_kv)
    keys = max(1, -(-int(share * n_kv) // c.tile_kv)) * c.tile_kv
    pairs = c.tile_q * keys / splits
    widths = wide(c.head_dim) + wide(c.head_dim_v)
    units = device.compute_units
    rate = peak_tflops(this, device, c.dtype) * record.share * 1e6 / units
    products = 2 * pairs * widths / rate
    try:
        exponentials = pairs / (peak_tflops(this, device, "exp") * 1e6 / units)
    except BadArgument:  # of an architecture whose rate is not known
        exponentials = 0.0
    waves = max(1.0, -(-tiles * splits // units)) if tiles else 0.0
    busy = waves * max(products, exponentials)
    traffic = p.min_bytes + (splits > 1) * 8 * splits * tiles * c.tile_q * (c.head_dim_v + 1)
    memory = traffic / (device.bandwidth_gbs * MEMORY_SHARE * 1e3)
    steps = 1 + (c.scheduler == "split") + ("append" in c.words)
    launch = LAUNCH_US * steps
    terms = (
        ("products", waves * products),
        ("exponentials", waves * exponentials),
        ("memory", memory),
        ("launch", launch),
    )
    limiter = max(terms, key=lambda term: term[1])[0]
    facts = [f"{tiles * splits} tiles in {waves:.0f} waves"]
    if splits > 1:
        facts.append(f"{splits} splits")
    return Estimate(max(busy, memory) + launch, limiter, terms, tuple(facts))
