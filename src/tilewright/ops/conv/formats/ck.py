"""Problems as Composable Kernel writes them: a command line of its profiler, and the fields of a
problem of its Tile Engine.

    ckProfiler grouped_conv_fwd DTYPE LAYOUT INDEX VERIFY INIT LOG TIME  DIMS G N K C  filter…
        input… strides… dilations… left pads… right pads…
    ckProfiler grouped_conv_bwd_data DTYPE LAYOUT VERIFY INIT LOG TIME  DIMS G N K C …
    ckProfiler grouped_conv_bwd_weight DTYPE LAYOUT VERIFY INIT LOG TIME  DIMS G N K C … SPLIT_K

    N, C, K, G, Di, Hi, Wi, Z, Y, X, stride_d, stride_h, stride_w, pad_d…, dilation_d…, direction

The profiler counts C and K for a group, Tile Engine over all groups. The words are those of
`words.parse`. Read from profiler/src, library/src/utility/convolution_parameter.cpp and
dispatcher/python/grouped_conv_utils.py in ROCm/composable_kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright import checks
from tilewright.errors import BadArgument, nearest, shown

# --- the profiler -------------------------------------------------------------------------------

_SCALED = "writes {} without a scale; say the problem in words, with epilogue=scale and dtype_out"
_INT8, _FP8 = (_SCALED.format(word) for word in ("int8", "fp8"))
_MIXED = "multiplies bf8 by fp8, which has no counterpart here"
_LAST, _FIRST = "channels_last", "channels_first"
_MAJOR = "has groups outermost, which strides of an array [n, c, …] cannot say"

Types = Mapping[str, dict[str, str] | str]
"""Words of each number of a dtype, or why it has none."""

_FLOATS: Types = {"0": {"dtype": "fp32"}, "1": {"dtype": "fp16"}, "2": {"dtype": "bf16"}}
_TF32 = {"dtype": "fp32", "precision": "tf32"}


@dataclass(frozen=True, slots=True)
class _Operation:
    """How a line of the profiler goes on behind the operation's name.

    layouts: of pixels and of weights, by number; one word says why it has none.
    control: numbers that say how it runs, between the layout and the dimensions.
    last: how many numbers may be behind the sizes: that of parts of the sum, which says how it
        runs, too. Of gradients of data, newer versions have it.
    """

    direction: str
    types: Types
    layouts: Mapping[str, tuple[str, ...]]
    control: int
    last: tuple[int, ...] = (0,)


_PIXELS_FIRST = {"2": (_FIRST, _LAST), "3": (_FIRST, _FIRST)}
OPERATIONS = {
    "grouped_conv_fwd": _Operation(
        "forward",
        {**_FLOATS, "3": _INT8, "4": _FP8, "5": _MIXED, "6": _MIXED, "7": _MIXED, "8": _TF32},
        {"0": (_MAJOR,), "1": (_LAST, _LAST), **_PIXELS_FIRST},
        control=5,
    ),
    "grouped_conv_bwd_data": _Operation(
        "data",
        {**_FLOATS, "3": _TF32},
        {"0": (_MAJOR,), "1": (_LAST, _LAST), **_PIXELS_FIRST},
        control=4,
        last=(0, 1),
    ),
    "grouped_conv_bwd_weight": _Operation(
        "weights",
        {
            **_FLOATS, "2": {"dtype": "bf16", "dtype_out": "fp32"}, "3": _MIXED, "4": _INT8,
            "5": {"dtype": "bf16"}, "6": _TF32,
        },
        {"0": (_MAJOR,), "1": (_MAJOR,), "2": (_LAST, _LAST), "3": (_FIRST, _LAST),
         "4": (_FIRST, _FIRST)},
        control=4,
        last=(1,),
    ),
}  # fmt: skip
"""The profiler's operations, by name."""

_SIZES = ("filter", "spatial", "stride", "dilation", "pad", "pad_after")


def profiler(line: str) -> dict[str, str]:
    """The words of a line of ckProfiler's. Raises `BadArgument`, also for what has no counterpart
    here."""
    name, *rest = line.strip().removeprefix("./bin/").removeprefix("ckProfiler").split() or [""]
    if name not in OPERATIONS:
        raise BadArgument(
            f"ck: {shown(name)} is not one of {', '.join(OPERATIONS)}{nearest(name, OPERATIONS)}"
        )
    of = OPERATIONS[name]
    before = 2 + of.control
    rank = checks.parse_whole("dimensions", rest[before], 1, 3) if len(rest) > before else 0
    wanted = [before + 5 + len(_SIZES) * rank + more for more in of.last]
    if len(rest) not in wanted:
        needed = " or ".join(map(str, wanted)) if rank else f"{before + 1} or more"
        raise BadArgument(f"ck: {len(rest)} numbers behind {name}, not {needed}")
    groups, n, k, c = (
        checks.parse_whole(word, text)
        for word, text in zip(("G", "N", "K", "C"), rest[before + 1 :], strict=False)
    )
    words = {"direction": of.direction, "n": str(n), "groups": str(groups)}
    words |= {"c": str(c * groups), "k": str(k * groups)}
    at = before + 5
    for field in _SIZES:
        words[field] = "x".join(rest[at : at + rank])
        at += rank
    types = of.types.get(rest[0], f"has no dtype {rest[0]}; it has {', '.join(of.types)}")
    if isinstance(types, str):
        raise BadArgument(f"ck: {name} {rest[0]} {types}")
    return words | types | _layout(name, of, rest[1], words)


def _layout(name: str, of: _Operation, word: str, words: Mapping[str, str]) -> dict[str, str]:
    if word not in of.layouts:
        raise BadArgument(f"ck: {name} has no layout {shown(word)}; it has {', '.join(of.layouts)}")
    layout = of.layouts[word]
    if layout == (_MAJOR,):
        if words["groups"] == "1":
            return {}
        raise BadArgument(f"ck: layout {word} of {name} {_MAJOR}")
    if layout == (_LAST, _LAST):
        return {}
    if layout == (_FIRST, _FIRST):
        return {"layout": _FIRST}
    return {"x_layout": _FIRST, "y_layout": _FIRST}  # weights alone are channels-last


# --- Tile Engine --------------------------------------------------------------------------------

DIRECTIONS = {
    "forward": "forward", "bwd_data": "data", "bwd_weight": "weights", "fwd": "forward",
    "bwdd": "data", "bwdw": "weights", "2d_fwd": "forward", "2d_bwdd": "data",
    "2d_bwdw": "weights",
}  # fmt: skip
"""CK's words for a direction."""

_COUNTS = {"N": "n", "C": "c", "K": "k", "G": "groups"}
_FIELDS = {
    "spatial": ("Di", "Hi", "Wi"),
    "filter": ("Z", "Y", "X"),
    **{word: tuple(f"{word}_{axis}" for axis in "dhw") for word in ("stride", "pad", "dilation")},
}
_DEFAULTS = {
    "G": "1", "Di": "1", "Z": "1",
    **{f"{word}_{axis}": usual for word, usual in (("stride", "1"), ("pad", "0"), ("dilation", "1"))
       for axis in "dhw"},
}  # fmt: skip
_ALL = (*_COUNTS, *(name for names in _FIELDS.values() for name in names))
_NOTES = ("split_k", "problem_idx", "kernel", "latency_ms", "tflops", "non_zero")
"""Fields that say how it ran: those of its results too."""


def fields(words: Mapping[str, str]) -> Mapping[str, str]:
    """`words`, with those of a problem of Tile Engine's in the place of its fields. Beside sizes in
    our words, its counts are ours in upper case. Raises `BadArgument`."""
    theirs = {name for name in _ALL if name in words}
    sizes = {"spatial", "filter"} & {word.lower() for word in words}
    if not theirs or (sizes and theirs <= _COUNTS.keys()):
        return words
    said = {**_DEFAULTS, **words}
    missing = [name for name in _ALL if name not in said]
    if missing:
        raise BadArgument(f"a conv problem with CK's fields needs {', '.join(missing)}")
    found = {word: text for word, text in words.items() if word not in (*_ALL, *_NOTES)}
    deep = said["Di"] != "1" or said["Z"] != "1" or said["pad_d"] != "0"
    ours = {word: said[name] for name, word in _COUNTS.items()}
    ours |= {word: "x".join(said[name] for name in names[not deep :])
             for word, names in _FIELDS.items()}  # fmt: skip
    if twice := sorted(ours.keys() & found.keys()):
        raise BadArgument(f"{twice[0]} is said by CK's fields too; say it there alone")
    direction = found.get("direction", "forward")
    return found | ours | {"direction": DIRECTIONS.get(direction, direction)}
