"""Problems as oneDNN's benchdnn writes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

from tilewright import checks
from tilewright.errors import BadArgument, shown
from tilewright.ops.conv import geometry

_DIRECTIONS = {
    "FWD_D": "forward", "FWD_B": "forward", "FWD_I": "forward", "BWD_D": "data", "BWD_W": "weights",
}  # fmt: skip
_DTYPES = {"f32": "fp32", "f16": "fp16", "bf16": "bf16"}
_PART = re.compile(r"(mb|ic|oc|g|[iokspd][dhw])(\d+)", re.ASCII)
_AXES = "dhw"


@dataclass(frozen=True, slots=True)
class _Axis:
    """A dimension of a line, in the fields of a problem."""

    spatial: int
    filter: int
    stride: int
    pad: int
    pad_after: int
    dilation: int


def read(line: str) -> dict[str, str]:
    """The words of a line of benchdnn's. Padding that it leaves out is 0, or half of what the size
    of the result asks for; padding behind is what gives the result its size. Raises
    `BadArgument`."""
    words = {"direction": "forward", "dtype": "fp32"}
    *options, stated = line.replace("--conv", "").split() or [""]
    for option in options:
        name, _, value = option.removeprefix("--").partition("=")
        table = {"dir": _DIRECTIONS, "dt": _DTYPES}.get(name)
        if table is None or value not in table:
            raise BadArgument(f"onednn: {shown(option)} is not known to say a problem")
        words["direction" if name == "dir" else "dtype"] = table[value]
    stated = re.sub(r'_?n"[^"]*"$', "", stated)  # the problem's name
    said: dict[str, int] = {}
    at = 0
    text = stated.replace("_", "")
    while at < len(text):
        part = _PART.match(text, at)
        if part is None or part[1] in said:
            raise BadArgument(f"onednn: {shown(text[at:])} in {shown(stated)} is no size")
        said[part[1]] = checks.parse_whole(part[1], part[2])
        at = part.end()
    for word, name, default in (("n", "mb", 2), ("c", "ic", None), ("k", "oc", None),
                                ("groups", "g", 1)):  # fmt: skip
        count = said.get(name, default)
        if count is None:
            raise BadArgument(f"onednn: {shown(stated)} does not say {name}")
        words[word] = str(count)
    axes = _axes(said, stated)
    for field in fields(_Axis):
        words[field.name] = "x".join(str(getattr(axis, field.name)) for axis in axes)
    return words


def _axes(said: Mapping[str, int], stated: str) -> list[_Axis]:
    """The dimensions of a line. It says one in full or not at all: a depth alone is a cube, a
    height alone a square, a width alone a row."""
    found = [_axis(said, axis, stated) for axis in _AXES]
    depth, height, width = found
    if depth and not height and not width:
        found = [depth] * 3
    elif height and not depth and not width:
        found = [height] * 2
    elif depth and not (height and width):
        raise BadArgument(f"onednn: {shown(stated)} says only one of height and width")
    if not any(found):
        raise BadArgument(f"onednn: {shown(stated)} does not say iw")
    return [axis for axis in found if axis]


def _axis(said: Mapping[str, int], axis: str, stated: str) -> _Axis | None:
    """A dimension; None if a line does not say it."""
    of = {letter: said[letter + axis] for letter in "ikospd" if letter + axis in said}
    # Some lines say a stride of 1 or no padding for a dimension that is not there.
    if not any(of.get(letter) for letter in "ikopd") and of.get("s", 1) == 1:
        return None
    for letter in "ik":
        if letter not in of:
            raise BadArgument(f"onednn: {shown(stated)} does not say {letter}{axis}")
    size, taps, stride, apart = of["i"], of["k"], of.get("s", 1), of.get("d", 0) + 1
    if not stride:
        raise BadArgument(f"onednn: s{axis} = 0 in {shown(stated)} is no stride")
    if "o" not in of:
        return _Axis(size, taps, stride, of.get("p", 0), of.get("p", 0), apart)
    both = (of["o"] - 1) * stride + geometry.reach(taps, apart) - size
    before = of.get("p", int(both / 2))  # C++ divides towards zero, and so do they
    return _Axis(size, taps, stride, before, both - before, apart)


