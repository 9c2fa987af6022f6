"""Problems as other libraries' drivers write them.

    MIOpenDriver    convbf16 -n 32 -c 64 -H 56 -W 56 -k 64 -y 3 -x 3 -p 1 -q 1 -u 1 -v 1 -g 1 -F 1
    benchdnn        g32mb32ic64ih56oc64oh56kh3ph1, and --dir=BWD_D --dt=bf16 before it

The words are those of `words.parse`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from tilewright import checks
from tilewright.errors import BadArgument, nearest, shown

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
_DNN_PART = re.compile(r"(mb|ic|oc|g|[ikospd][dhw]|o[dhw])(\d+)", re.ASCII)
_DNN_AXES = "dhw"


def onednn(line: str) -> dict[str, str]:
    """The words of a line of benchdnn's. Padding behind is what gives the size of the result that
    the line says. Raises `BadArgument`."""
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
    axes = _axes(said)
    for word, name, default in (("n", "mb", 2), ("c", "ic", None), ("k", "oc", None),
                                ("groups", "g", 1)):  # fmt: skip
        count = said.get(name, default)
        if count is None:
            raise BadArgument(f"onednn: {shown(stated)} does not say {name}")
        words[word] = str(count)
    columns = {"spatial": ("i", None), "filter": ("k", None), "stride": ("s", 1), "pad": ("p", 0),
               "dilation": ("d", 0), "out": ("o", 0)}  # fmt: skip
    sizes = {
        w: _of_axes(said, axes, letter, usual, stated) for w, (letter, usual) in columns.items()
    }
    sizes["dilation"] = [one + 1 for one in sizes["dilation"]]  # it counts zeros between taps
    behind = []
    for size, taps, step, before, apart, out in zip(
        *(sizes[w] for w in ("spatial", "filter", "stride", "pad", "dilation", "out")), strict=True
    ):
        reach = (taps - 1) * apart + 1
        behind.append((out - 1) * step + reach - size - before if out else before)
    del sizes["out"]
    words |= {word: "x".join(map(str, each)) for word, each in sizes.items()}
    return words | {"pad_after": "x".join(map(str, behind))}


def _axes(said: dict[str, int]) -> str:
    """The axes that a line has: it may leave out width or height that are as the one before."""
    if "id" in said:
        return "dhw"
    return "hw" if "ih" in said else "w"


def _of_axes(
    said: dict[str, int], axes: str, letter: str, default: int | None, stated: str
) -> list[int]:
    """A size along each axis: what is left out is as along the one before, or behind it."""
    given = [said.get(letter + axis) for axis in axes]
    known = [value for value in given if value is not None]
    if not known:
        if default is None:
            raise BadArgument(f"onednn: {shown(stated)} does not say {letter}{axes[0]}")
        return [default] * len(axes)
    if len(known) not in (1, len(axes)) or (len(known) == 1 and given[0] is None):
        raise BadArgument(f"onednn: {shown(stated)} says {letter} in some dimensions only")
    return known * len(axes) if len(known) == 1 else known


READERS: Mapping[str, Callable[[str], dict[str, str]]] = {"miopen": miopen, "onednn": onednn}
"""By the word whose text is such a line."""
