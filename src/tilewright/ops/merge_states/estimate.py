"""How long merging states should take: memory, loads one after another, and the launch. Nothing was
fitted or timed."""

from __future__ import annotations

from tilewright.arch import arch
from tilewright.arch.figures import DEVICE
from tilewright.arch.model import Device
from tilewright.ops.estimate import Estimate
from tilewright.ops.merge_states.catalogue import workgroups
from tilewright.ops.merge_states.config import MergeStatesConfig
from tilewright.ops.merge_states.problem import MergeStatesProblem
from tilewright.ops.physics import memory_us

RESIDENT_THREADS = 512
"""Threads of a compute unit that hide memory's latency."""

SIXTEEN = 16
"""Bytes that a load of a thread has at best."""


def estimate(config: MergeStatesConfig, problem: MergeStatesProblem, device: Device) -> Estimate:
    """What `config` should take for `problem` on `device`."""
    c, p = config, problem
    count = workgroups(c, p)
    memory = memory_us(p.min_bytes, device)
    # Columns past the head's are loaded by nobody, and their threads are idle.
    memory *= c.tile_n / max(1, p.head_dim) if p.head_dim else 1.0
    memory *= min(4.0, (SIXTEEN / c.alignment) ** 0.5)
    resident = max(1, RESIDENT_THREADS // (c.num_warps * arch(device.arch).warp_size))
    waves = -(-count // (device.compute_units * resident))
    steps = -(-p.states // c.states) + (p.form != "stack")
    turns = waves * steps * DEVICE.LATENCY_US
    launch = DEVICE.LAUNCH_US + DEVICE.LATENCY_US
    terms = {"memory": memory, "latency": turns, "launch": launch}
    limiter = max(terms, key=lambda term: terms[term])
    total = max(memory, turns) + launch
    return Estimate(total, limiter, tuple(terms.items()), (f"{count} workgroups",))
