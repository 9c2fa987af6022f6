"""`ConvProblem`: a convolution, or one of its two gradients, as the caller states it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tilewright import checks
from tilewright.dtypes import DTYPES, dtype
from tilewright.errors import BadArgument, nearest
from tilewright.ops import epilogues
from tilewright.ops.conv import geometry, stated
from tilewright.ops.conv.geometry import MOST_DIMS, UNUSED, Dim, Sizes
from tilewright.ops.problem import Problem
from tilewright.ops.products import OUTPUTS as OF_SUMS
from tilewright.ops.products import PRECISIONS
from tilewright.ops.products import outputs as sums_outputs

DIRECTIONS: dict[str, tuple[str, str, str]] = {
    "forward": ("x", "w", "y"),
    "data": ("y", "w", "x"),
    "weights": ("x", "y", "w"),
}
"""What a direction reads, in order, and what it makes: pixels x, weights w, result y. Gradients lie
as what they belong to."""

DTYPES_OF = ("bf16", "fp16", "fp32", "e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "int8")
"""Dtypes of what is read."""

GRADIENT_DTYPES = ("bf16", "fp16", "fp32")
"""Those that gradients have."""

MOST = 2**31 - 1
MOST_SPATIAL = 2**30
MOST_PAD = 2**24
MOST_TAPS = 2**15
"""Most taps and the longest stride in a dimension: kernels multiply two strides in 32 bits."""


@dataclass(frozen=True, slots=True, eq=False)
class ConvProblem(Problem):
    """``y[n, k, q] = Σ w[k, c, r] · x[n, c, q·stride - pad + r·dilation]``, or a gradient of it.

    Shapes, in torch's order: x [n, c, spatial…], w [k, c / groups, filter…], y [n, k, out…], where
    a group's filters see the group's channels. A transposed convolution is direction ``data``: it
    reads y and makes x.

    n: images. c: channels of x. k: filters, which are channels of y.
    spatial: size of x, of 1 to 3 dimensions. filter: taps in each.
    groups: c and k are multiples of it.
    stride, dilation: in each dimension; () is 1.
    pad, pad_after: zeros before and behind x in each dimension; negative: pixels that are left out.
        () is 0 before, and behind as before.
    direction: a word of `DIRECTIONS`.
    dtype: of both operands. dtype_out: of the result; ``""`` is the usual one.
    precision: how fp32 is multiplied: ``ieee`` or ``tf32``.
    epilogue: operations on the sums before they are stored (``bias+relu``): those of GEMM's table
        whose operands are a value for each channel of the result, an array like the result, or a
        scalar. Batch normalisation's affine is ``col_scale+bias``. Weights' gradient has none.
    x_strides, w_strides, y_strides: in elements; () is channels-last without gaps.
    alignment: bytes that all addresses are multiples of, a power of two up to 16.

    Sizes may be 0. Raises `BadArgument` for an invalid problem.
    """

    family: ClassVar[str] = "conv"

    n: int
    c: int
    k: int
    spatial: Sizes
    filter: Sizes
    groups: int = 1
    stride: Sizes = ()
    pad: Sizes = ()
    pad_after: Sizes = ()
    dilation: Sizes = ()
    direction: str = "forward"
    dtype: str = "bf16"
    dtype_out: str = ""
    precision: str = "ieee"
    epilogue: str = ""
    x_strides: Sizes = ()
    w_strides: Sizes = ()
    y_strides: Sizes = ()
    alignment: int = 16

    def _complete(self) -> None:
        if self.direction not in DIRECTIONS:
            raise BadArgument(
                f"direction = {self.direction!r}{nearest(self.direction, DIRECTIONS)} is not one "
                f"of {', '.join(DIRECTIONS)}"
            )
        self._check_sizes()
        self._check_types()
        for name in ("x", "w", "y"):
            self._check_strides(name)
        if self.alignment not in (1, 2, 4, 8, 16):
            raise BadArgument(f"alignment = {self.alignment} is not one of 1, 2, 4, 8, 16 bytes")

    def _check_sizes(self) -> None:
        for name in ("n", "c", "k"):
            checks.whole(name, getattr(self, name), 0, MOST)
        checks.whole("groups", self.groups, 1, MOST)
        rank = len(self.spatial)
        if not 1 <= rank <= MOST_DIMS:
            raise BadArgument(f"spatial = {self.spatial} has {rank} dimensions, not 1 to 3")
        ones, zeros = (1,) * rank, (0,) * rank
        for name, default in (
            ("stride", ones), ("dilation", ones), ("pad", zeros), ("pad_after", self.pad or zeros),
        ):  # fmt: skip
            if getattr(self, name) == ():
                object.__setattr__(self, name, default)
        for name, least, most in (
            ("spatial", 0, MOST_SPATIAL), ("filter", 1, MOST_TAPS), ("stride", 1, MOST_TAPS),
            ("dilation", 1, MOST_PAD), ("pad", -MOST_PAD, MOST_PAD),
            ("pad_after", -MOST_PAD, MOST_PAD),
        ):  # fmt: skip
            values = getattr(self, name)
            if not isinstance(values, tuple) or len(values) != rank:
                raise BadArgument(f"{name} = {values!r} does not have {rank} numbers, as spatial")
            for value in values:
                checks.whole(name, value, least, most)
        for name in ("c", "k"):
            if getattr(self, name) % self.groups:
                raise BadArgument(
                    f"{name} = {getattr(self, name)} is no multiple of groups = {self.groups}"
                )
        for i, dim in enumerate(self.dims):
            if dim.out < 0:
                raise BadArgument(
                    f"the filter reaches over {geometry.reach(dim.filter, dim.dilation)} pixels, "
                    f"but padded x has {dim.size + dim.pad + self.pad_after[i]} in dimension {i}"
                )

    def _check_types(self) -> None:
        known = DTYPES_OF if self.direction == "forward" else GRADIENT_DTYPES
        if dtype(self.dtype).name not in known:
            what = "convolution" if self.direction == "forward" else f"gradient of {self.direction}"
            raise BadArgument(f"no {what} reads {self.dtype}; it reads {', '.join(known)}")
        if self.precision not in PRECISIONS:
            raise BadArgument(f"precision = {self.precision!r} is not {' or '.join(PRECISIONS)}")
        if self.precision == "tf32" and self.dtype != "fp32":
            raise BadArgument(f"precision tf32 is a way to multiply fp32, not {self.dtype}")
        for one in epilogues.parse(self.epilogue):
            if one.halves or any(taken.kind == "m" for taken in one.takes):
                raise BadArgument(
                    f"epilogue '{self.epilogue}': {one.name} is for rows or pairs of columns of a "
                    "matrix, which a convolution's result is not"
                )
        if self.epilogue and self.direction == "weights":
            raise BadArgument(f"a gradient of weights has no epilogue, and not '{self.epilogue}'")
        possible = outputs(self.dtype, self.epilogue)
        if not self.dtype_out:
            object.__setattr__(self, "dtype_out", possible[0])
        if self.dtype_out not in possible:
            after = f" after epilogue {self.epilogue}" if self.epilogue else ""
            raise BadArgument(
                f"a convolution of {self.dtype} writes {', '.join(possible)}{after}, not "
                f"{self.dtype_out}"
            )

    def _check_strides(self, name: str) -> None:
        given = self._given_strides(name)
        if given == ():
            return
        shape = self.shape_of(name)
        if len(given) != len(shape):
            raise BadArgument(f"{name}_strides = {given} does not have {len(shape)} numbers")
        for stride in given:
            checks.whole(f"{name}_strides", stride)
        if given == geometry.channels_last(shape[0], shape[1], shape[2:]):
            object.__setattr__(self, f"{name}_strides", ())

    def __str__(self) -> str:
        return stated.in_short(self)

    # --- sizes ---------------------------------------------------------------------------------

    @property
    def dims(self) -> tuple[Dim, ...]:
        """Its dimensions."""
        return self.once(_dims)

    @property
    def three(self) -> tuple[Dim, Dim, Dim]:
        """Its dimensions as three: those that it does not have come first, and are of size 1."""
        return self.once(_three)

    @property
    def out_sizes(self) -> Sizes:
        """Size of y."""
        return tuple(dim.out for dim in self.dims)

    @property
    def group_c(self) -> int:
        """Channels of a group."""
        return self.c // self.groups

    @property
    def group_k(self) -> int:
        """Filters of a group."""
        return self.k // self.groups

    @property
    def taps(self) -> int:
        """Taps of a filter."""
        return math.prod(self.filter)

    @property
    def depthwise(self) -> bool:
        """Whether every channel has one filter of its own."""
        return self.c == self.k == self.groups

    @property
    def output_name(self) -> str:
        """What it makes: ``x``, ``w`` or ``y``."""
        return DIRECTIONS[self.direction][2]

    @property
    def channels_out(self) -> int:
        """Channels of the result."""
        return self.c if self.direction == "data" else self.k

    @property
    def walked(self) -> Sizes:
        """Pixels of the result in three dimensions; in the gradient of the data, the most that a
        residue class has."""
        if self.direction == "data":
            return tuple(-(-dim.size // dim.stride) for dim in self.three)
        return tuple(dim.out for dim in self.three)

    @property
    def walked_pixels(self) -> int:
        """Pixels of the result (see `walked`) of all images."""
        return self.once(_walked_pixels)

    @property
    def classes(self) -> int:
        """Residue classes of the result's pixels."""
        return math.prod(self.stride) if self.direction == "data" else 1

    def shape_of(self, name: str) -> Sizes:
        """The shape of x, w or y."""
        return self.once(_shapes)[name]

    def _given_strides(self, name: str) -> Sizes:
        given: Sizes = getattr(self, f"{name}_strides")
        return given

    def strides_of(self, name: str) -> Sizes:
        """The strides of x, w or y, in elements."""
        return self.once(_strides)[name]

    def dtype_of(self, name: str) -> str:
        """The dtype of x, w or y."""
        return self.dtype_out if name == self.output_name else self.dtype

    def spans(self) -> dict[str, int]:
        """Bytes from the first to past the last element of x, w and y."""
        found = {}
        for name in ("x", "w", "y"):
            shape, strides = self.shape_of(name), self.strides_of(name)
            reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
            size = DTYPES[self.dtype_of(name)].bytes
            found[name] = 0 if 0 in shape else (reach + 1) * size
        return found

    def rows_alignment(self, name: str, whole: bool = False) -> int:
        """Bytes, at most 16, that channels of an array may be read by at a time: a group's channels
        are neighbours, and all other strides are multiples. 1 where they are not neighbours.

        whole: of all groups' channels, which are read together; what is past the last is not.
        """
        shape, strides = self.shape_of(name), self.strides_of(name)
        size = DTYPES[self.dtype_of(name)].bytes
        # Of a depthwise problem, channels of all groups are read together.
        each = {"x": self.group_c, "y": self.group_k, "w": self.group_c}[name]
        if self.depthwise and name != "w":
            each = self.c
        if strides[1] != 1 and shape[1] > 1:
            return 1
        found = self.alignment if whole else math.gcd(self.alignment, each * size)
        for n, stride in (*zip(shape[2:], strides[2:], strict=True), (shape[0], strides[0])):
            if n > 1:
                found = math.gcd(found, stride * size)
        return found

    # --- work ----------------------------------------------------------------------------------

    @property
    def pairs(self) -> int:
        """Pairs of a pixel of y and a tap, of one image, that join: those in the padding do not."""
        found = 1
        for dim in self.dims:
            spans = (dim.joined(tap) for tap in range(dim.filter))
            found *= sum(past - first for first, past in spans)
        return found

    @property
    def flops(self) -> int:
        """Two for each product of a pixel of x, without those of the padding."""
        return 2 * self.n * self.pairs * self.k * self.group_c

    @property
    def work(self) -> Mapping[str, int]:
        """Operations by unit: the type that the matrix units multiply."""
        return {"tf32" if self.precision == "tf32" else self.dtype: self.flops}

    @property
    def min_bytes(self) -> int:
        """Bytes to read both operands and the epilogue's once, and to write the result once."""
        return self.once(_min_bytes)


# --- worked out once: a choice asks for them thousands of times ---------------------------------


def _dims(p: ConvProblem) -> tuple[Dim, ...]:
    return geometry.dims(p.spatial, p.filter, p.stride, p.dilation, p.pad, p.pad_after)


def _three(p: ConvProblem) -> tuple[Dim, Dim, Dim]:
    first, second, third = (UNUSED,) * (MOST_DIMS - len(p.spatial)) + p.dims
    return first, second, third


def _shapes(p: ConvProblem) -> dict[str, Sizes]:
    return {
        "x": (p.n, p.c, *p.spatial),
        "w": (p.k, p.group_c, *p.filter),
        "y": (p.n, p.k, *p.out_sizes),
    }


def _strides(p: ConvProblem) -> dict[str, Sizes]:
    shapes = ((name, p.shape_of(name)) for name in ("x", "w", "y"))
    return {
        name: p._given_strides(name) or geometry.channels_last(outer, inner, sizes)
        for name, (outer, inner, *sizes) in shapes
    }


def _walked_pixels(p: ConvProblem) -> int:
    return p.n * math.prod(p.walked)


def _min_bytes(p: ConvProblem) -> int:
    moved = sum(math.prod(p.shape_of(name)) * DTYPES[p.dtype_of(name)].bytes for name in "xwy")
    for taken in epilogues.takes(p.epilogue):
        size = DTYPES[epilogues.operand_dtype(taken, p.dtype_out)].bytes
        counts = {"n": p.channels_out, "d": math.prod(p.shape_of(p.output_name)), "s": 1}
        moved += size * counts[taken.kind]
    return moved


def outputs(dtype: str, epilogue: str) -> tuple[str, ...]:
    """Dtypes of the result, the default first: as those of a sum of products in GEMM. Raises
    `BadArgument` for a dtype that has none."""
    if dtype not in OF_SUMS:
        raise BadArgument(f"no convolution reads {dtype}; it reads {', '.join(DTYPES_OF)}")
    return sums_outputs(dtype, epilogue)
