"""Pipelines in Triton, whose kernels take operands through pointers: what their launches and their
records have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.ops.conv import parts
from tilewright.ops.conv.config import SHARING, ConvConfig
from tilewright.ops.conv.parts import Part
from tilewright.ops.conv.pipelines.record import Launch, Sources
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.nouns import MAIN, KernelSource, Step

WORKGROUPS_FOR_UNIT = 2
"""Workgroups for each compute unit that parts of the pixels make up."""

REACH = 1 << 31
"""Elements that indices of 32 bits reach."""

WALK = ("sizes", "full", "walked", "taps", "stride", "dilation", "before")
CLASSES = ("phase", "common", "inverse")
LAST = ("TAKES", "LARGEST")
"""What several kernels take, by the names of the catalogue."""

KernelOf = Callable[[ConvConfig], Part]


def sources(kernel: KernelOf) -> Sources:
    """What to compile where `kernel` is a config's."""

    def found(c: ConvConfig, arch: Arch) -> dict[str, KernelSource]:
        return {MAIN: parts.source(kernel(c), c, arch)}

    return found


def launch(kernel: KernelOf) -> Launch:
    """What to launch where `kernel` is a config's."""

    def steps(
        c: ConvConfig, p: ConvProblem, device: Device, splits: int, programs: int
    ) -> Sequence[Step]:
        part = kernel(c)
        groups = programs if c.scheduler == "stream_k" else part.grid(c, p, splits)
        return parts.steps(part, MAIN, c, p, splits, groups)

    return steps


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
        ("scheduler", "persistent" if c.scheduler == "persistent" else ""),
    ):
        if value:
            return f"{what} {value} is for pipelines that copy boxes, not for {c.pipeline}"
    return None


def schedulers(p: ConvProblem) -> tuple[str, ...]:
    """Those of the spaces."""
    return ("tile", *SHARING) if p.direction == "weights" else ("tile",)
