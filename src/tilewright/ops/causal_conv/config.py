"""`CausalConvConfig`: the kernels that compute a causal convolution, and their name.

    causal_conv_forward_4_bf16_bf16_64x64_w4_channels_al16_bias-silu
         direction   |  x   w      tile   |   |        |      +- what it has besides
                     +- taps       warps -+   |        +- bytes of alignment
                                              +- whose elements are neighbours

``i64`` follows the alignment where an array spans 2 GiB.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from tilewright import checks
from tilewright.errors import BadArgument, UnknownName, shown
from tilewright.ops.causal_conv.problem import DIRECTIONS, DTYPES_OF, EXTRAS, MOST_TAPS

INNERS = ("channels", "tokens", "any")
ALIGNMENTS = (1, 2, 4, 8, 16)
INDEX_BITS = (32, 64)


@dataclass(frozen=True, slots=True)
class CausalConvConfig:
    """How to compute a causal convolution. The signature is direction, taps, dtypes and extras.

    direction, taps, dtype, dtype_w, extras: as in `CausalConvProblem`.
    tile_m, tile_n: positions and channels of a workgroup's tile; an update's tile_m is 1.
    num_warps: warps (waves) of a workgroup.
    inner: along which dimension x and y have neighbouring elements: ``channels``, ``tokens``, or
        ``any``.
    alignment: bytes that addresses and the other strides are multiples of.
    index_bits: 32 where every array spans under 2 GiB.
    """

    family: ClassVar[str] = "causal_conv"
    pipeline: ClassVar[str] = "basic"

    direction: str
    taps: int
    dtype: str
    dtype_w: str
    extras: str
    tile_m: int
    tile_n: int
    num_warps: int
    inner: str = "channels"
    alignment: int = 16
    index_bits: int = 32

    def has(self, word: str) -> bool:
        """Whether `extras` says a word."""
        return word in self.extras.split("+")

    @property
    def name(self) -> str:
        """The kernels' name; `parse` is its exact inverse."""
        name = (
            f"causal_conv_{self.direction}_{self.taps}_{self.dtype}_{self.dtype_w}"
            f"_{self.tile_m}x{self.tile_n}_w{self.num_warps}_{self.inner}_al{self.alignment}"
        )
        name += "_i64" * (self.index_bits == 64)
        return name + (f"_{self.extras.replace('+', '-')}" if self.extras else "")


_COUNTS = ("tile_m", "tile_n", "num_warps")
_KNOWN: dict[str, tuple[Any, ...]] = {
    "direction": DIRECTIONS,
    "dtype": DTYPES_OF,
    "dtype_w": DTYPES_OF,
    "inner": INNERS,
    "alignment": ALIGNMENTS,
    "index_bits": INDEX_BITS,
}


def check(config: CausalConvConfig) -> CausalConvConfig:
    """`config` itself, if every field is one that a name can say. Raises `BadArgument`."""
    for field, known in _KNOWN.items():
        value = getattr(config, field)
        if value not in known or type(value) is not type(known[0]):
            raise BadArgument(f"{field} = {value!r} is not one of {', '.join(map(str, known))}")
    for field in _COUNTS:
        checks.whole(field, getattr(config, field), 1)
    checks.whole("taps", config.taps, 1, MOST_TAPS)
    words = config.extras.split("+") if config.extras else []
    if words != [word for word in EXTRAS if word in words]:
        raise BadArgument(f"extras = {config.extras!r} are not words of {'+'.join(EXTRAS)}")
    return config


def _one(field: str) -> str:
    words = sorted(map(str, _KNOWN[field]), key=len, reverse=True)
    return f"(?P<{field}>{'|'.join(words)})"


_PATTERN = re.compile(
    rf"causal_conv_{_one('direction')}_(?P<taps>[1-9]\d?)_{_one('dtype')}_{_one('dtype_w')}"
    r"_(?P<tile_m>[1-9]\d{0,9})x(?P<tile_n>[1-9]\d{0,9})_w(?P<num_warps>[1-9]\d{0,9})"
    rf"_{_one('inner')}_al{_one('alignment')}(?:_(?P<wide>i64))?(?:_(?P<extras>[a-z-]+))?",
    re.ASCII,
)


def parse(name: str) -> CausalConvConfig:
    """The config whose name this is. Raises `UnknownName` for a name that does not parse and for
    one whose fields contradict each other."""
    match = _PATTERN.fullmatch(name)
    if match is None:
        raise UnknownName(
            f"{shown(name, 300)} is not the name of a kernel of causal_conv; one looks like "
            "causal_conv_forward_4_bf16_bf16_64x64_w4_channels_al16_bias-silu"
        )
    said = match.groupdict()
    fields: dict[str, Any] = {f: said[f] for f in ("direction", "dtype", "dtype_w", "inner")}
    fields |= {f: int(said[f]) for f in ("taps", *_COUNTS, "alignment")}
    fields |= {
        "index_bits": 64 if said["wide"] else 32,
        "extras": (said["extras"] or "").replace("-", "+"),
    }
    try:
        return check(CausalConvConfig(**fields))
    except BadArgument as error:
        raise UnknownName(
            f"{shown(name, 300)} is not the name of a kernel of causal_conv: {error}"
        ) from None
