"""Pipelines in Triton, whose kernels take operands through pointers: what their records have in
common, and how long their kernels should take.

A workgroup walks its tile's steps: products on the matrix units (or the vector units), the
operands' way from L2, of which every step has its own although taps share pixels, and their way
from shared memory to the warps. The slowest decides, the others overlap it in part, and workgroups
come in waves. The memory's traffic, each array once, overlaps: the two times add up like the legs
of a right triangle, as in GEMM's estimate. The launch comes on top, and where parts are summed, a
second kernel with its traffic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.arch import arch as arch_called
from tilewright.arch.figures import DEVICE
from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops import physics
from tilewright.ops.binder import Context, Part
from tilewright.ops.conv import sharing
from tilewright.ops.conv.catalogue import KERNELS, tile_options
from tilewright.ops.conv.config import SHARING, ConvConfig
from tilewright.ops.conv.figures import CONV
from tilewright.ops.conv.pipelines.common import LAUNCH_US, on_vectors
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.estimate import Estimates
from tilewright.ops.nouns import MAIN
from tilewright.ops.pool import Each, most

REACH = 1 << 31
"""Elements that indices of 32 bits reach."""


def workgroups(x: Context) -> int:
    """Workgroups of a kernel that walks tiles, or parts of them."""
    if x.config.shares_steps:
        return int(x.case.programs)
    return int(x.case.tiles * x.splits)


def kernel(module: str, function: str, **said: Any) -> Part:
    """A kernel that walks tiles with the config's warps."""
    name = f"{KERNELS}.{module}:{function}"
    return Part(name=MAIN, kernel=name, grid=workgroups, options=tile_options, **said)


def either(made: Part, of_weights: Part) -> Callable[[ConvConfig], tuple[Part, ...]]:
    """The kernel of gradients of weights, or that of the other directions."""
    return lambda c: (of_weights if c.direction == "weights" else made,)


def filling(
    tiles: Callable[[Any, ConvProblem], Each], workgroups_for_unit: int = 2
) -> Callable[[Any, ConvProblem, Device], Each]:
    """Parts of the pixels that make up so many workgroups for each compute unit."""
    return lambda c, p, device: workgroups_for_unit * device.compute_units // most(1, tiles(c, p))


def shared_memory(c: ConvConfig, arch: Arch) -> int:
    """The bytes of the buffers that the compiler makes for a step's operands: one for each stage,
    one less where matrix instructions do not read shared memory on their own."""
    stage = (c.tile_m + c.tile_n) * c.tile_k * DTYPES[c.dtype].bytes
    return stage * max(1, c.num_stages - (0 if arch.async_mma else 1))


def objection(c: ConvConfig, arch: Arch) -> str | None:
    """Why `arch` cannot build a config, if so: it says what only kernels that copy boxes have."""
    for what, value in (
        ("box", c.box),
        ("spread", c.spread),
        ("classes", c.classes if c.classes > 1 else 0),
        ("scheduler", "persistent" if c.scheduler == "persistent" else ""),
    ):
        if value:
            return f"{what} {value} is for pipelines that copy boxes, not for {c.pipeline}"
    return None


def schedulers(p: ConvProblem) -> tuple[str, ...]:
    """Those of the spaces."""
    return ("tile", *SHARING) if p.direction == "weights" else ("tile",)


# --- how long a kernel takes --------------------------------------------------------------------

PRODUCTS, PORT, SHARED, MEMORY, STEPS, GATHERING, TOTALS, LAUNCH = (
    "products", "L2", "shared memory", "memory", "steps", "gathering", "sum of parts", "launch",
)  # fmt: skip

OTHER_REGISTERS = 64
"""Registers of a thread beside sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a workgroup of each kernel does: arrays, or numbers that hold for all kernels.

    steps: on average over classes. read: bytes of a step from L2. slower: factor on their time.
    shared: bytes that its warps read from shared memory in a step. products: microseconds of a
    step's on a compute unit. gathered: microseconds in which a compute unit gathers a tile's
    operands, at least. factor: on the time of all that overlaps. resident: workgroups that a
    compute unit holds. waits: microseconds of a step in which its loads are waited for, and others
    go on. neighbours: whether neighbouring threads store neighbouring elements
    whatever the alignment.
    """

    steps: Each
    read: Each
    products: Each
    resident: Each
    slower: Each = 1.0
    shared: Each = 0.0
    gathered: Each = 0.0
    factor: float = 1.0
    neighbours: bool = False
    waits: Each = 0.0


def estimates(x: Context, work: Work) -> Estimates:
    """What launches should take."""
    import numpy as np

    c, p, device, parts = x.config, x.problem, x.device, sharing.parts(x)
    count = np.asarray(x.case.tiles * parts, float)
    streams, filled = c.shares_steps, count / device.compute_units
    waves, at_once = np.where(streams, filled, np.ceil(filled)), np.where(streams, 1, work.resident)
    read = work.read / physics.port_rate(device) * work.slower
    products = work.products
    shared = work.shared / (DEVICE.SHARED_BYTES_PER_CLOCK * device.clock_mhz)
    unhidden = products + read + shared + CONV.STEP_US + work.waits
    alone = unhidden / np.minimum(at_once, np.maximum(1, waves))
    longest = np.maximum(np.maximum(products, read), shared)
    together = longest + DEVICE.SERIAL_PRODUCTS * (products + read + shared - longest)
    gathered = filled * work.gathered
    steps = waves * work.steps
    body = np.maximum(steps * np.maximum(together, alone), gathered)
    stored = np.where((c.alignment_out >= 4) | work.neighbours, 1.0, 1.5)
    memory = physics.memory_us(p.min_bytes, device) * stored
    overlapped = work.factor * physics.together_us(body, memory)
    total = overlapped + DEVICE.LAUNCH_US + 2 * DEVICE.LATENCY_US
    terms = {
        PRODUCTS: steps * products,
        PORT: steps * read,
        SHARED: steps * shared,
        MEMORY: memory,
        STEPS: steps * CONV.STEP_US / at_once,
        GATHERING: gathered,
        LAUNCH: np.full(len(c), LAUNCH_US),
    }
    if p.direction == "weights":
        terms[TOTALS] = sharing.totals(x, parts)
        total = total + terms[TOTALS]
    return Estimates.of(total, terms, lambda at: (f"{count[at]:.0f} workgroups",))


def products_us(c: ConvConfig, device: Device) -> float:
    """Microseconds that a step's products take on a compute unit."""
    count = c.tile_m * c.tile_n * c.tile_k
    if on_vectors(c, arch_called(device.arch)):
        return physics.lanes_us(count, device)
    word = "tf32" if c.precision == "tf32" else c.dtype
    return 2 * count / (physics.matrix_rate(device, word) * CONV.POINTER_SHARE)


def resident(c: ConvConfig, this: Arch, sums: int, shared_memory: int) -> int:
    """Workgroups on a compute unit at once.

    sums, shared_memory: that a workgroup keeps in registers, and bytes of it.
    """
    threads = c.num_warps * this.warp_size
    registers = min(this.max_registers, sums // threads + OTHER_REGISTERS)
    return physics.resident(this, registers, shared_memory, c.num_warps)
