"""Where cuDNN's first engine is faster than the estimate's choice, as a record says.

The record is `benchmarks/results/conv_unseen_h200.json`: bf16 layers drawn from models that
nothing was tuned for (`benchmarks/draw_convolutions.py`), on an H200, each with the times of the
kernel that the estimate chose and of cuDNN's first engine, in replayed graphs.
`benchmarks/conv_counted.py` counts `RECORD` from one half of the layers, and says what it makes of
the other.

A class is counted where the engine was faster for all of its layers, of those for which the
estimate still chooses the kernel that was timed. Nothing is left: the last two classes were
depthwise kernels that read channels which are no neighbours, and pipeline `direct` is chosen there
now. The classes are `Kind`s of layers, layouts and directions; none depends on a size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tilewright.arch.model import Device
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.library import CUDNN
from tilewright.ops.library_record import Recorded
from tilewright.ops.library_record import faster as recorded_faster
from tilewright.verdict import Verdict, no

FEW = 8
"""Channels that are few."""

Kind = Literal["depthwise", "grouped", "patches", "few channels", "1×1", "dense"]
Channels = Literal["first", "last"]


@dataclass(frozen=True, slots=True)
class Class:
    """Layers that are alike.

    one: whether in one dimension; two and three are alike.
    channels: whether the channels of x lie outside of the pixels, or side by side.
    """

    direction: str
    one: bool
    channels: Channels
    kind: Kind

    def __str__(self) -> str:
        dims = "one dimension" if self.one else "images"
        return f"{self.kind} {self.direction}, channels-{self.channels}, {dims}"


def class_of(p: ConvProblem) -> Class:
    """The class of a problem."""
    lies = p.strides_of("x")
    channels: Channels = "last" if lies[1] == 1 or p.c == 1 else "first"
    return Class(p.direction, len(p.spatial) == 1, channels, _kind(p))


def _kind(p: ConvProblem) -> Kind:
    if p.depthwise and p.groups > 1:
        return "depthwise"
    if p.groups > 1:
        return "grouped"
    if p.taps > 1 and p.filter == p.stride:
        return "patches"
    if min(p.c, p.k) <= FEW:
        return "few channels"
    return "1×1" if p.taps == 1 else "dense"


RECORD: tuple[Recorded, ...] = ()


def faster(p: ConvProblem, device: Device) -> Verdict:
    """Whether cuDNN's first engine should take less time than the estimate's choice; a yes has the
    library as its rule. The reason of either answer is a sentence."""
    if device.arch != "sm_90":
        return no("record", f"nothing on {device.arch} was timed beside the library")
    if p.dtype not in ("bf16", "fp16") or p.dtype_out != p.dtype or p.epilogue:
        return no("record", "only bf16 and fp16 without an epilogue were timed beside the library")
    return recorded_faster(RECORD, class_of(p), CUDNN)
