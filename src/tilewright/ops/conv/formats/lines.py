"""Problems as other libraries' drivers write them.

    MIOpenDriver    convbf16 -n 32 -c 64 -H 56 -W 56 -k 64 -y 3 -x 3 -p 1 -q 1 -u 1 -v 1 -g 1 -F 1
    benchdnn        g32mb32ic64ih56oc64oh56kh3ph1, and --dir=BWD_D --dt=bf16 before it
    ckProfiler      grouped_conv_fwd 2 1 0 1 1 0 1  2 1 32 64 64 3 3 56 56 1 1 1 1 1 1 1 1 (`ck`)

The words are those of `words.parse`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

from tilewright import checks
from tilewright.errors import BadArgument, nearest, shown
from tilewright.ops.conv import geometry
from tilewright.ops.conv.formats import ck

# --- MIOpen -------------------------------------------------------------------------------------

_MIOPEN_DTYPES = {
    "conv": "fp32", "convfp16": "fp16", "convbfp16": "bf16", "convbf16": "bf16", "convint8": "int8",
    "convfp8": "fp8", "convbfp8": "bf8",
}  # fmt: skip

_MIOPEN_LONG = {
    "batchsize": "n", "in_channels": "c", "in_d": "!", "in_h": "H", "in_w": "W",
    "out_channels": "k", "fil_d": "@", "fil_h": "y", "fil_w": "x", "pad_d": "$", "pad_h": "p",
    "pad_w": "q", "conv_stride_d": "#", "conv_stride_h": "u", "conv_stride_w": "v",
    "dilation_d": "^", "dilation_h": "l", "dilation_w": "j", "group_count": "g", "forw": "F",
    "mode": "m", "spatial_dim": "_", "in_layout": "I", "out_layout": "O", "fil_layout": "f",
    "time": "t", "iter": "i", "verify": "V", "wall": "w", "search": "s", "printconv": "P",
}  # fmt: skip
"""Its switches' long names, and the letters that stand for them."""

_MIOPEN_DIMS = {
    "spatial": ("!HW", None), "filter": ("@yx", None), "pad": ("$pq", "0"), "stride": ("#uv", "1"),
    "dilation": ("^lj", "1"),
}  # fmt: skip
"""Switches of depth, height and width, and their default."""

_MIOPEN_DIRECTIONS = {"1": "forward", "2": "data", "4": "weights"}
_MIOPEN_RUN = "tiVwsP"
"""Switches that say how it runs, and nothing of the problem."""


def miopen(line: str) -> dict[str, str]:
    """The words of a line of MIOpenDriver's. Raises `BadArgument`."""
    driver, *rest = line.removeprefix("./bin/").removeprefix("MIOpenDriver").split() or [""]
    if driver not in _MIOPEN_DTYPES:
        raise BadArgument(
            f"miopen: {shown(driver)} is not one of {', '.join(_MIOPEN_DTYPES)}"
            f"{nearest(driver, _MIOPEN_DTYPES)}"
        )
    said = _switches(rest)
    count = checks.parse_whole("spatial_dim", said.pop("_", "2"))
    if count not in (2, 3):
        raise BadArgument(f"miopen: {count} spatial dimensions are not 2 or 3")
    words = {"dtype": _MIOPEN_DTYPES[driver]}
    for word, letter in (("n", "n"), ("c", "c"), ("k", "k"), ("groups", "g")):
        if letter in said:
            words[word] = said.pop(letter)
    for word, (letters, default) in _MIOPEN_DIMS.items():
        found = [said.pop(letter, default) for letter in letters[3 - count :]]
        if None in found:
            raise BadArgument(f"miopen: the line does not say {word} in all {count} dimensions")
        words[word] = "x".join(map(str, found))
        said.pop(letters[0], None)  # of a depth that is not there
    direction = said.pop("F", "1")
    if direction not in _MIOPEN_DIRECTIONS:
        raise BadArgument(
            f"miopen: -F {direction} is several directions; say 1, 2 or 4 (forward, data, weights)"
        )
    words["direction"] = _MIOPEN_DIRECTIONS[direction]
    mode = said.pop("m", "conv")
    if mode not in ("conv", "trans"):
        raise BadArgument(f"miopen: mode {shown(mode)} is neither conv nor trans")
    if mode == "trans":
        words["transposed"] = "1"
    layouts = {said.pop(letter) for letter in "IOf" if letter in said} or {"NCHW"}
    first = {"NCHW", "NCDHW"}
    if not layouts <= first and not layouts <= {"NHWC", "NDHWC"}:
        raise BadArgument(f"miopen: layouts {', '.join(sorted(layouts))} are not one of both kinds")
    if layouts <= first:
        words["layout"] = "channels_first"
    for letter in _MIOPEN_RUN:
        said.pop(letter, None)
    if said:
        raise BadArgument(f"miopen: -{min(said)} is not known to say a problem")
    return words


def _switches(rest: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    at = 0
    while at < len(rest):
        name = rest[at]
        name, equal, value = name.partition("=")
        letter = _MIOPEN_LONG.get(name[2:], "") if name.startswith("--") else name[1:]
        if not name.startswith("-") or len(letter) != 1:
            raise BadArgument(f"miopen: {shown(rest[at])} is no switch")
        if not equal:
            at += 1
            if at == len(rest):
                raise BadArgument(f"miopen: {name} has no value")
            value = rest[at]
        found[letter] = value
        at += 1
    return found


# --- oneDNN -------------------------------------------------------------------------------------

_DNN_DIRECTIONS = {
    "FWD_D": "forward", "FWD_B": "forward", "FWD_I": "forward", "BWD_D": "data", "BWD_W": "weights",
}  # fmt: skip
_DNN_DTYPES = {"f32": "fp32", "f16": "fp16", "bf16": "bf16"}
_DNN_PART = re.compile(r"(mb|ic|oc|g|[iokspd][dhw])(\d+)", re.ASCII)
_DNN_AXES = "dhw"


@dataclass(frozen=True, slots=True)
class _Axis:
    """A dimension of a line, in the fields of a problem."""

    spatial: int
    filter: int
    stride: int
    pad: int
    pad_after: int
    dilation: int


def onednn(line: str) -> dict[str, str]:
    """The words of a line of benchdnn's. Padding that it leaves out is 0, or half of what the size
    of the result asks for; padding behind is what gives the result its size. Raises
    `BadArgument`."""
    words = {"direction": "forward", "dtype": "fp32"}
    *options, stated = line.replace("--conv", "").split() or [""]
    for option in options:
        name, _, value = option.removeprefix("--").partition("=")
        table = {"dir": _DNN_DIRECTIONS, "dt": _DNN_DTYPES}.get(name)
        if table is None or value not in table:
            raise BadArgument(f"onednn: {shown(option)} is not known to say a problem")
        words["direction" if name == "dir" else "dtype"] = table[value]
    stated = re.sub(r'_?n"[^"]*"$', "", stated)  # the problem's name
    said: dict[str, int] = {}
    at = 0
    text = stated.replace("_", "")
    while at < len(text):
        part = _DNN_PART.match(text, at)
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
    found = [_axis(said, axis, stated) for axis in _DNN_AXES]
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


READERS: Mapping[str, Callable[[str], dict[str, str]]] = {
    "miopen": miopen,
    "onednn": onednn,
    "ck": ck.profiler,
}
"""By the word whose text is such a line."""
