"""Problems from words, as on a command line or in a list of problems.

n c k groups                       images, channels of x, channels of y
spatial=32x32 filter=3x3           size of x, taps; one number for each dimension
stride=2 pad=1 dilation=1          one number, or one for each dimension; pad_after where the
                                   padding behind x is another
direction=forward|data|weights     what is computed
dtype dtype_out precision          fp8, bf8: the architecture's
epilogue=bias+relu
layout=channels_first              of x, w and y; of one of them x_layout=, w_layout=, y_layout=;
                                   or x_strides=64,1,2048,64 and so on
alignment=16                       bytes that addresses are multiples of

transposed=1                       c, k and spatial are those of a transposed convolution's
                                   input and output; output_pad as in torch. The gradient of its
                                   data is then an ordinary convolution
N=8 C=64 K=64 G=1 Hi=56 Wi=56 …    the fields of a problem of CK Tile Engine's (`ck`)
ndim=2 seen_in=NAME                how many dimensions there are; a note, which says nothing of
                                   the problem
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright import checks
from tilewright.dtypes import resolve
from tilewright.errors import BadArgument, shown
from tilewright.ops.conv import geometry, stated
from tilewright.ops.conv.formats import ck, lines
from tilewright.ops.conv.problem import MOST, MOST_PAD, ConvProblem
from tilewright.ops.foreign import with_lines
from tilewright.ops.spelling import spelled

_LINES = tuple(driver.word for driver in lines.DRIVERS)

KNOWN = (
    *stated.COUNTS, "groups", *stated.SIZES, *stated.NAMES, *stated.TYPES, "layout",
    *stated.LAYOUT_OF, *stated.STRIDES, "alignment", "transposed", "output_pad", "ndim",
    "seen_in", *_LINES,
)  # fmt: skip
"""Every word."""

NEEDED = {"n": "8", "c": "64", "k": "64", "spatial": "32x32", "filter": "3x3"}
"""What words must say, each with a value that a problem may have."""

_TURNED = {"forward": "data", "data": "forward", "weights": "weights"}
"""What a direction of a transposed convolution is, of the convolution that it is the gradient
of."""


def parse(words: Mapping[str, str], fp8: str) -> ConvProblem:
    """The problem that words state. Raises `BadArgument`.

    fp8: the kind of fp8 that the architecture has (`Arch.fp8`).
    """
    words = spelled("a conv problem", ck.fields(with_lines(words, lines.DRIVERS)), KNOWN)
    missing = [word for word in NEEDED if word not in words]
    if missing:
        example = f"{missing[0]}={NEEDED[missing[0]]}"
        raise BadArgument(f"a conv problem needs {', '.join(missing)} (as in {example})")
    rank = words["spatial"].count("x") + 1
    v: dict[str, Any] = {"groups": 1}
    for word, text in words.items():
        if word in (*stated.COUNTS, "groups", "alignment"):
            v[word] = checks.parse_whole(word, text, 0, MOST)
        elif word in (*stated.SIZES, "output_pad"):
            v[word] = _sizes(word, text, rank)
        elif word in stated.TYPES:
            v[word] = resolve(text, fp8)
        elif word in stated.NAMES:
            v[word] = text
        elif word in stated.STRIDES:
            v[word] = tuple(checks.parse_whole(word, one) for one in text.split(","))
    if "ndim" in words and checks.parse_whole("ndim", words["ndim"]) != rank:
        raise BadArgument(f"ndim = {words['ndim']}, but spatial = {words['spatial']}")
    output_pad = v.pop("output_pad", (0,) * rank)
    if _flag("transposed", words.get("transposed", "0")):
        v = turned(v, output_pad)
    elif any(output_pad):
        raise BadArgument("output_pad is a transposed convolution's; say transposed=1")
    v |= _laid(words, v)
    return ConvProblem(**v)


def _laid(words: Mapping[str, str], v: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Strides of the arrays that words call channels-first. Raises `BadArgument`."""
    found: dict[str, tuple[int, ...]] = {}
    said = [word for word in ("layout", *stated.LAYOUT_OF) if word in words]
    if said[:1] == ["layout"] and len(said) > 1:
        raise BadArgument(f"layout says how all arrays lie, and {said[1]} says it again")
    for word in said:
        layout = words[word]
        if layout not in stated.LAYOUTS:
            raise BadArgument(f"{word} = {shown(layout)} is not one of {', '.join(stated.LAYOUTS)}")
        names = (stated.LAYOUT_OF[word],) if word in stated.LAYOUT_OF else stated.STRIDES
        if layout == stated.LAYOUTS[1]:
            if twice := [name for name in names if name in words]:
                raise BadArgument(f"{word} = {layout} and {twice[0]} both say how arrays lie")
            first = stated.first_strides(ConvProblem(**v))
            found |= {name: first[name] for name in names}
    return found


def turned(v: Mapping[str, Any], output_pad: tuple[int, ...]) -> dict[str, Any]:
    """The fields of the convolution whose gradient a transposed convolution is.

    v: the fields as the transposed convolution's: c and spatial of what it reads, k of what it
        makes. output_pad: pixels that its result has more.
    """
    rank = len(v["spatial"])
    ones, zeros = (1,) * rank, (0,) * rank
    stride, dilation = v.get("stride", ones), v.get("dilation", ones)
    pad = v.get("pad", zeros)
    after = v.get("pad_after", pad)
    spatial = tuple(
        (size - 1) * s - before - behind + geometry.reach(taps, apart) + more
        for size, s, before, behind, taps, apart, more in zip(
            v["spatial"], stride, pad, after, v["filter"], dilation, output_pad, strict=True
        )
    )
    if min(spatial) < 0:
        raise BadArgument(f"a transposed convolution would make {stated.by(spatial)} pixels")
    direction = v.get("direction", "forward")
    return {
        **v,
        "c": v["k"],
        "k": v["c"],
        "spatial": spatial,
        # Padding behind that gives y its size exactly, whatever the stride leaves over.
        "pad_after": tuple(a - more for a, more in zip(after, output_pad, strict=True)),
        "direction": _TURNED.get(direction, direction),
    }


def _sizes(word: str, text: str, rank: int) -> tuple[int, ...]:
    least = -MOST_PAD if word.startswith("pad") else 0
    parts = tuple(checks.parse_whole(word, part, least, MOST) for part in text.split("x"))
    if len(parts) == 1:
        return parts * rank
    if len(parts) != rank:
        raise BadArgument(f"{word} = {shown(text)} does not have {rank} numbers, as spatial has")
    return parts


def _flag(word: str, text: str) -> bool:
    if text not in ("0", "1", "false", "true"):
        raise BadArgument(f"{word} = {shown(text)} is neither 0 nor 1")
    return text in ("1", "true")
