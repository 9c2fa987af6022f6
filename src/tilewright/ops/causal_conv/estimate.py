"""How long a causal convolution should take: memory, or arithmetic on the vector units, and the
launch. Nothing was fitted or timed."""

from __future__ import annotations

from tilewright.arch import arch
from tilewright.arch.figures import DEVICE, figures
from tilewright.arch.model import Device
from tilewright.ops.causal_conv.catalogue import splits_of, workgroups
from tilewright.ops.causal_conv.config import CausalConvConfig
from tilewright.ops.causal_conv.problem import CausalConvProblem
from tilewright.ops.estimate import Estimate
from tilewright.ops.physics import lanes, memory_us, together_us

CAUSAL = figures("causal_conv")


def estimate(config: CausalConvConfig, problem: CausalConvProblem, device: Device) -> Estimate:
    """What `config` should take for `problem` on `device`."""
    c, p, this = config, problem, arch(device.arch)
    rate = lanes(this) * device.compute_units * device.clock_mhz
    silu = CAUSAL.SILU_INSTRUCTIONS * c.has("silu")
    each = c.taps * CAUSAL.LOAD_INSTRUCTIONS + silu
    if c.direction == "backward":
        each = 3 * c.taps * CAUSAL.LOAD_INSTRUCTIONS + c.taps * silu
    # Tiles that reach past the last position and channel work for nothing.
    count = workgroups(c, p, splits_of(c, p, device))
    across = -(-p.channels // c.tile_n) * c.tile_n
    along = -(-max(1, p.tokens) // c.tile_m) * c.tile_m
    products = p.batch * across * along * each / rate
    wide = c.inner == "channels" and c.alignment >= 4
    wide = wide or c.inner == "tokens" or c.direction == "update"
    memory = memory_us(p.min_bytes, device) * (1 if wide else CAUSAL.GATHERED)
    threads = count * c.num_warps * this.warp_size
    idle = max(1.0, device.compute_units * CAUSAL.RESIDENT_THREADS / max(1, threads))
    launch = DEVICE.LAUNCH_US + 2 * DEVICE.LATENCY_US
    launch += DEVICE.SECOND_US * (c.direction == "backward")
    terms = {"memory": memory, "arithmetic": products * min(idle, 8.0), "launch": launch}
    total = together_us(terms["memory"], terms["arithmetic"]) + launch
    limiter = max(terms, key=lambda term: terms[term])
    return Estimate(total, limiter, tuple(terms.items()), (f"{count} workgroups",))
