"""Grouped problems as oneDNN's benchdnn writes them, of its driver matmul.

    --grouped=0:4:8+0+16+8 --dt=bf16 --wtag=acb 32x64:4x64x128    form=contiguous groups=4 m=32 …
    --grouped=1:2:16+48 --dt=bf16 32x64:64x128                    form=list sizes=32x128x16,…

Sizes of groups along M (0) are read on the device, and only their sum is the problem's; along K (1)
each group is a product of its own. A bias has a row for each group. Scales and operations with an
operand of their own have no counterpart: oneDNN's are of groups in ways that differ.
"""

from __future__ import annotations

import re

from tilewright import checks
from tilewright.errors import BadArgument, shown
from tilewright.ops.gemm.formats import attributes, benchdnn

OPTION = "grouped"
DRIVERS = ("matmul",)

_SIZES = re.compile(r"(\d+x\d+):((?:\d+x)?\d+x\d+)(?:_?n.*)?", re.ASCII)
_PLAIN = ("ab", "abx", "abc", "any", "")
_TAGS = {"abc": "r", "abx": "r", "ab": "r", "acb": "c", "any": "c", "": "r"}
"""B's letter by the weights' tag."""

_MOST = 2**16
"""Most groups."""


def read(line: str) -> dict[str, str]:
    """The words of a line. Raises `BadArgument`."""
    problem = benchdnn.one(line, DRIVERS)
    options = dict(problem.options)
    along, groups = _groups(options.pop(OPTION, ""))
    match = _SIZES.fullmatch(problem.sizes)
    if match is None:
        raise BadArgument(f"onednn: {shown(problem.sizes)} is not of the form MxK:GxKxN")
    (m, k), b = benchdnn.by(match[1], "a size"), benchdnn.by(match[2], "a size")
    stacked = (len(groups),) if along == 0 else ()
    if b[:-1] != (*stacked, k) or sum(groups) != (k if along else m):
        raise BadArgument(
            f"onednn: {shown(problem.sizes)} does not agree with {len(groups)} groups of "
            f"{sum(groups)} in all"
        )
    n = b[-1]
    types = benchdnn.dtypes(options.pop("dt", "f32"))
    if types[0] != types[1]:
        raise BadArgument(f"onednn: {types[0]} with {types[1]}: both operands have one dtype here")
    words = {"dtype": types[0], "dtype_c": types[2], "layout": _layout(options, along)}
    if along:
        words |= {"form": "list", "sizes": ",".join(f"{m}x{n}x{each}" for each in groups)}
    else:
        words |= {"form": "contiguous", "groups": str(len(groups)), "m": str(m), "n": str(n)}
        words["k"] = str(k)
    words |= _chain(options, m, n, types[0], types[2])
    for name, value in options.items():
        if value:
            raise BadArgument(f"onednn: --{name}={shown(value)} is not known to say a problem")
    return words


def _groups(text: str) -> tuple[int, list[int]]:
    """The dimension that groups share out, and the size of each."""
    parts = text.split(":")
    if len(parts) not in (3, 4):
        raise BadArgument(f"onednn: --grouped={shown(text)} is not DIM:GROUPS:SIZE+SIZE…")
    along = checks.parse_whole("onednn: --grouped", parts[0], 0, 1)
    count = checks.parse_whole("onednn: groups", parts[1], 1, _MOST)
    sizes = [checks.parse_whole("onednn: a group", part) for part in parts[2].split("+")]
    if len(sizes) != count:
        raise BadArgument(f"onednn: --grouped has {len(sizes)} sizes for {count} groups")
    return along, sizes


def _layout(options: dict[str, str], along: int) -> str:
    """A and C are row-major; B of each group as its tag says."""
    tags = {name: options.pop(name, "") for name in ("stag", "wtag", "dtag")}
    letter = _TAGS.get(tags["wtag"])
    if (
        letter is None
        or (along and letter != "r")
        or any(tags[name] not in _PLAIN for name in ("stag", "dtag"))
    ):
        raise BadArgument(
            "onednn: groups have row-major arrays, and weights abc or acb, not "
            f"{shown(':'.join(tags.values()))}"
        )
    return f"r{letter}r"


def _chain(options: dict[str, str], m: int, n: int, dtype: str, dtype_c: str) -> dict[str, str]:
    operands = ("add", "mul", "sum", "binary_")
    posts = options.get("attr-post-ops", "").split("+")
    if options.get("attr-scales") or any(post.startswith(operands) for post in posts):
        raise BadArgument("onednn: scales and operands of groups have no counterpart here")
    mask = checks.parse_whole("onednn: --bia_mask", options.pop("bia_mask", "2"))
    biased = options.pop("bia-dt", "undef") not in ("", "undef")
    dims = attributes.Dims((m, n), 2, 1, 2, attributes.POLICIES, attributes.POLICIES)
    return attributes.read(options, dims, mask if biased else None, dtype, dtype_c).words
