"""Pipeline ``vendor``: algorithms of the vendor's library, NVIDIA's cuDNN or AMD's MIOpen, beside
the kernels that are built here.

The library is asked for the algorithms that it would take for a convolution (`query`); each becomes
a config (`config_of`), which is verified, timed, written into tables and launched like any kernel.
Nothing is built for it: its launch is one step that the library computes. A name says an engine of
cuDNN and its knobs, or a solver of MIOpen and the library's release (here 3.4.0), in the library's
own numbers, so that any later run takes the same algorithm or none:

    conv_forward_2d_bf16_bf16_vendor_cudnn9_38_k2-5_k14-3_ws32_al16
                                     library |   |    |    |   bytes of alignment
                                       engine+   knobs+    +-MiB of workspace
    conv_forward_2d_bf16_bf16_vendor_miopen3_85_v4-0_ws32_al16
                                       solver+   +-minor version and patch

Not asked for: epilogues, which torch computes in kernels of their own too; results in another dtype
than the operands; padding that leaves pixels out, or that differs before and behind. No AMD GPU has
run MIOpen here, so it is asked for less: dense arrays that lie alike, aligned to 16 bytes, no tf32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from tilewright.arch.model import Arch, Device
from tilewright.ops.conv.config import ALIGNMENTS, ConvConfig, of_engine
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.estimate import Estimate
from tilewright.ops.library import CUDNN, MIOPEN, kind
from tilewright.ops.library_convolution import Convolution
from tilewright.ops.library_engine import (
    MOST_WORKSPACE,
    Offered,
    Tensor,
    foreign,
    said,
    title,
    words,
)
from tilewright.ops.library_engine import repeats as engine_repeats
from tilewright.ops.library_launch import launch as engine_launch
from tilewright.ops.nouns import KernelSource, Launch, Pointer
from tilewright.ops.physics import at_best
from tilewright.verdict import YES, Verdict, no

KINDS = (CUDNN, MIOPEN)
"""The libraries that compute convolutions."""

DTYPES = ("bf16", "fp16", "fp32")
ALIGNMENT, MOST_ELEMENTS = 16, 2**31
"""The bytes that arrays are aligned to, at least, and the elements that they have fewer of, where
MIOpen is asked about them."""

Described = ConvConfig | ConvProblem
"""Both have the words that the rules of the signature read."""


def _library(c: Described, of: str, arch: Arch) -> str | None:
    return foreign(of, arch)


def _dtype(c: Described, of: str, arch: Arch) -> str | None:
    if c.dtype not in DTYPES or c.dtype_out != c.dtype:
        return f"{c.dtype} into {c.dtype_out} is not asked of the library"
    return None


def _epilogue(c: Described, of: str, arch: Arch) -> str | None:
    return f"the library is asked for no epilogue as {c.epilogue}" if c.epilogue else None


def _precision(c: Described, of: str, arch: Arch) -> str | None:
    if of == MIOPEN and c.precision == "tf32":
        return "MIOpen multiplies fp32 as such, and is not asked for tf32"
    return None


LEGALITY: tuple[tuple[str, Callable[[Described, str, Arch], str | None]], ...] = (
    ("library", _library),
    ("dtype", _dtype),
    ("epilogue", _epilogue),
    ("precision", _precision),
)
"""The rules on what a library is asked for: of a problem before it is asked, and of a config."""


def judge(c: ConvConfig, arch: Arch) -> Verdict:
    """Whether an algorithm of a library may be used on `arch`."""
    return _judge(c, _of(c), arch)


def _judge(c: Described, of: str, arch: Arch) -> Verdict:
    for name, rule in LEGALITY:
        if reason := rule(c, of, arch):
            return no(name, reason)
    return YES


def _of(c: ConvConfig) -> str:
    """The kind of a config's library."""
    return kind(c.library)


def _extent(p: ConvProblem, of: str) -> Verdict:
    if 0 in (*p.shape_of("x"), *p.shape_of("y"), *p.shape_of("w")):
        return no("extent", "an array without elements is left to kernels of ours")
    if min(p.pad) < 0:
        return no("extent", "padding under 0 leaves pixels out, which the library does not")
    if p.pad != p.pad_after:
        # Engine 1 of cuDNN 9.19 was wrong for such a gradient of weights on an H200.
        return no("extent", f"padding of {p.pad} before and {p.pad_after} behind is not asked for")
    for name in "xwy":
        for size, stride in zip(p.shape_of(name), p.strides_of(name), strict=True):
            if size > 1 and stride == 0:
                return no("extent", f"{name} repeats elements by a stride of 0")
    return _dense(p) if of == MIOPEN else YES


def _dense(p: ConvProblem) -> Verdict:
    """Whether the arrays lie as MIOpen is asked for."""
    if p.alignment < ALIGNMENT:
        return no("vector_width", f"arrays are aligned to {p.alignment} bytes, under {ALIGNMENT}")
    if _last(p) is None:
        return no(
            "layout", "MIOpen is asked for dense arrays, all channels-first or all channels-last"
        )
    if any(math.prod(p.shape_of(name)) >= MOST_ELEMENTS for name in "xwy"):
        return no("extent", f"MIOpen is asked for arrays of fewer than {MOST_ELEMENTS} elements")
    return YES


def supports(c: ConvConfig, p: ConvProblem, arch: Arch) -> Verdict:
    """Whether an algorithm of a library on `arch` may compute `p`, whose signature it has. The
    library has the last word when the launch is prepared."""
    if p.alignment < c.alignment:
        return no(
            "vector_width", f"addresses are aligned to {p.alignment} bytes, under {c.alignment}"
        )
    return _extent(p, _of(c)) and judge(c, arch)


def repeats(c: ConvConfig) -> Verdict:
    """Whether two runs give the same bits."""
    return engine_repeats(c.library_engine)


# --- the library's words -----------------------------------------------------------------------


def query(p: ConvProblem, arch: Arch, library_name: str) -> Convolution | Verdict:
    """What to ask the library for, or why it is not asked."""
    of = kind(library_name)
    if of not in KINDS:
        return no("family", f"{library_name} computes no convolutions")
    asked = _judge(p, of, arch) and _extent(p, of)
    return convolution(p, library_name) if asked else asked


@lru_cache(maxsize=1024)
def convolution(p: ConvProblem, library_name: str) -> Convolution:
    """The convolution as the library has it: in one dimension, as rows of images of one row."""
    one = len(p.spatial) == 1
    stride, dilation, pad = (
        (usual, *sizes) if one else sizes
        for usual, sizes in ((1, p.stride), (1, p.dilation), (0, p.pad))
    )
    last = _last(p) if kind(library_name) == MIOPEN else None
    x, w, y = (_tensor(p, name, last) for name in "xwy")
    return Convolution(
        library_name, p.output_name, x, w, y, stride, dilation, pad, p.precision,  # type: ignore[arg-type]
        p.alignment, workspace=MOST_WORKSPACE,
    )  # fmt: skip


def _tensor(p: ConvProblem, name: str, last: bool | None) -> Tensor:
    """last: as `_last` says; None for the strides as they are. MIOpen reads off the strides where
    the channels lie, so those of dimensions of one element are stated as if there were more."""
    shape, strides = p.shape_of(name), p.strides_of(name)
    if len(p.spatial) == 1:
        row = shape[-1] * strides[-1]
        shape, strides = (*shape[:2], 1, shape[-1]), (*strides[:2], row, strides[-1])
    return Tensor(p.dtype_of(name), shape, strides if last is None else _packed(shape, last))


def _last(p: ConvProblem) -> bool | None:
    """Whether x, w and y are dense with their channels last; False if first; None if neither."""

    def lies(name: str, last: bool) -> bool:
        shape = p.shape_of(name)
        each = zip(shape, p.strides_of(name), _packed(shape, last), strict=True)
        return all(size == 1 or has == wanted for size, has, wanted in each)

    fitting = (last for last in (True, False) if all(lies(name, last) for name in "xwy"))
    return next(fitting, None)


def _packed(shape: tuple[int, ...], last: bool) -> tuple[int, ...]:
    """The strides of a dense tensor. last: its channels, of dimension 1, are innermost."""
    inwards = [0, *range(2, len(shape)), 1] if last else [*range(len(shape))]
    strides, step = [1] * len(shape), 1
    for dim in reversed(inwards):
        strides[dim] = step
        step *= shape[dim]
    return tuple(strides)


def config_of(p: ConvProblem, library_name: str, found: Offered) -> ConvConfig:
    """The config of an algorithm that the library offers for `p`."""
    alignment = max(one for one in ALIGNMENTS if one <= p.alignment)
    return of_engine(
        p.direction, len(p.spatial), p.dtype, p.dtype_out, p.precision, alignment,
        words(library_name, found),
    )  # fmt: skip


# --- what to launch ----------------------------------------------------------------------------


def sources(c: ConvConfig, arch: Arch) -> dict[str, KernelSource]:
    """Nothing is built."""
    return {}


def launch(c: ConvConfig, p: ConvProblem, device: Device) -> Launch:
    """The launch of an algorithm of a library for `p`. Nothing says that a call of MIOpen can be
    captured: its solvers may load code or ask for memory."""
    question = convolution(p, said(c.library_engine).library)
    asked = replace(question, alignment=c.alignment)
    arguments = [*map(Pointer, asked.order)]
    return engine_launch(asked, c.library_engine, arguments, capturable=_of(c) != MIOPEN)


def interpreted(c: ConvConfig) -> ConvConfig:
    """The kernel that Triton's interpreter runs in place of the library."""
    scheduler, reduction = ("split", "two_stage") if c.direction == "weights" else ("tile", "none")
    return ConvConfig(
        c.direction, c.spatial_dims, c.dtype, c.dtype_out, c.precision, 64, 64, 32, 4, 2,
        "implicit", scheduler, reduction=reduction, alignment=1, alignment_out=1, index_bits=64,
    )  # fmt: skip


def estimate(c: ConvConfig, p: ConvProblem, device: Device) -> Estimate:
    """The least time that anything could take there: nothing is known of a library's algorithms."""
    return at_best(p, device, f"{title(_of(c))}'s algorithm, at best")
