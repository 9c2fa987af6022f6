"""Problems as oneDNN's benchdnn writes them, of its drivers conv and deconv.

    g32mb32ic64ih56oc64oh56kh3ph1
    --deconv --dir=BWD_D --dt=bf16 --stag=axb --dtag=axb mb1ic8ih5oc8oh9kh3sh2ph1

Padding that a line leaves out is 0, or half of what the size of the result asks for; padding behind
is what gives the result its size. An array without a layout, or with ``any``, is channels-last.
A line without --dir is forward without a bias, for such lines are lists of sizes; FWD_B has a bias.
BWD_WB is the gradient of the weights: that of a bias is a sum apart. The words are those of
`words.parse`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

from tilewright import checks
from tilewright.errors import BadArgument, shown
from tilewright.ops.conv import geometry
from tilewright.ops.gemm.formats import attributes, benchdnn

DRIVERS = ("conv", "deconv")

_DIRECTIONS = {
    "FWD_D": "forward", "FWD_B": "forward", "FWD_I": "forward", "BWD_D": "data",
    "BWD_W": "weights", "BWD_WB": "weights",
}  # fmt: skip
_READS = {"forward": (0, 1, 2), "data": (2, 1, 0), "weights": (0, 2, 1)}
"""Source, weights and destination, in the order of what a direction reads and makes."""

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
    out: int


def read(line: str) -> dict[str, str]:
    """The words of a line. Raises `BadArgument`."""
    problem = benchdnn.one(line, DRIVERS)
    options = dict(problem.options)
    turned = problem.driver == "deconv"
    direction = options.pop("dir", "FWD_D").upper()
    if direction not in _DIRECTIONS:
        raise BadArgument(
            f"onednn: --dir={shown(direction)} is not one of {', '.join(_DIRECTIONS)}"
        )
    words = {"direction": _DIRECTIONS[direction]}
    if turned:
        words["transposed"] = "1"
    said = _sizes(problem.sizes)
    if batch := checks.parse_whole("onednn: --mb", options.pop("mb", "0") or "0"):
        said["mb"] = batch
    for word, name, default in (("n", "mb", 2), ("c", "ic", None), ("k", "oc", None),
                                ("groups", "g", 1)):  # fmt: skip
        count = said.get(name, default)
        if count is None:
            raise BadArgument(f"onednn: {shown(problem.sizes)} does not say {name}")
        words[word] = str(count)
    axes = _axes(said, problem.sizes, turned)
    for field in fields(_Axis):
        if field.name != "out":
            words[field.name] = "x".join(str(getattr(axis, field.name)) for axis in axes)
    types = benchdnn.dtypes(options.pop("dt", "f32"))
    first, second, made = (types[at] for at in _READS[words["direction"]])
    if first != second:
        raise BadArgument(f"onednn: {first} with {second}: both operands have one dtype here")
    words |= {"dtype": first, "dtype_out": made}
    words |= _strides(options, words, axes, turned, "g" in said)
    words |= _attributes(options, words, axes, direction)
    for name, value in options.items():
        if value:
            raise BadArgument(f"onednn: --{name}={shown(value)} is not known to say a problem")
    return words


def _sizes(text: str) -> dict[str, int]:
    """The sizes of a description, by their letters."""
    stated = text.partition("n")[0]  # a name is behind it
    said: dict[str, int] = {}
    at = 0
    plain = stated.replace("_", "")
    while at < len(plain):
        part = _PART.match(plain, at)
        if part is None or part[1] in said:
            raise BadArgument(f"onednn: {shown(plain[at:])} in {shown(text)} is no size")
        said[part[1]] = checks.parse_whole(part[1], part[2])
        at = part.end()
    return said


def _strides(
    options: dict[str, str],
    words: Mapping[str, str],
    axes: list[_Axis],
    turned: bool,
    grouped: bool,
) -> dict[str, str]:
    """How x, w and y lie; what a deconvolution reads is y."""
    laid = {name: options.pop(name, "") for name in ("strides", "stag", "wtag", "dtag")}
    n, c, k, groups = (int(words[word]) for word in ("n", "c", "k", "groups"))
    if 0 in (groups, c, k) or c % groups or k % groups:
        return {}  # the problem will say so
    taps = tuple(axis.filter for axis in axes)
    sizes = (
        (n, c, *(axis.spatial for axis in axes)),
        (*((groups,) if grouped else ()), k // groups, c // groups, *taps),
        (n, k, *(axis.out for axis in axes)),
    )
    found = [benchdnn.strides(laid, at, sizes[at], grouped) for at in range(3)]
    result = {}
    weights = found[1]
    if weights is not None:
        of_group, of_k, of_c, *rest = weights if grouped else (0, *weights)
        # Filters of all groups are one dimension here: of y's channels, which are a deconvolution's
        # input channels.
        inner, each = (of_c, c) if turned else (of_k, k)
        if groups > 1 and of_group != inner * (each // groups):
            raise BadArgument("onednn: --wtag has groups apart from filters, which no stride says")
        two = (of_c, of_k) if turned else (of_k, of_c)
        result["w_strides"] = _text((*two, *rest))
    for at, name in ((0, "y" if turned else "x"), (2, "x" if turned else "y")):
        lies = found[at]
        if lies is not None:
            result[f"{name}_strides"] = _text(lies)
    return result


def _text(strides: tuple[int, ...]) -> str:
    return ",".join(map(str, strides))


def _attributes(
    options: dict[str, str], words: Mapping[str, str], axes: list[_Axis], direction: str
) -> dict[str, str]:
    """The epilogue and the precision."""
    biased = direction == "FWD_B"
    if options.pop("bia-dt", "undef") not in ("", "undef") and words["direction"] == "forward":
        biased = True
    weights = 1 if words["groups"] == "1" else 3  # filters, or groups and their filters
    sizes = (int(words["n"]), int(words["k"]), *(axis.out for axis in axes))
    policies = attributes.POLICIES
    dims = attributes.Dims(sizes, 2, 0, weights, policies, {**policies, "per_oc": weights})
    return attributes.read(
        options, dims, 2 if biased else None, words["dtype"], words["dtype_out"]
    ).words


def _axes(said: Mapping[str, int], stated: str, turned: bool) -> list[_Axis]:
    """The dimensions of a line. It says one in full or not at all: a depth alone is a cube, a
    height alone a square, a width alone a row."""
    found = [_axis(said, axis, stated, turned) for axis in _AXES]
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


def _axis(said: Mapping[str, int], axis: str, stated: str, turned: bool) -> _Axis | None:
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
    long = geometry.reach(taps, apart)
    if "o" not in of:
        pad = of.get("p", 0)
        room = (size - 1) * stride + long - 2 * pad
        out = room if turned else geometry.out_size(size, taps, stride, apart, pad, pad)
        return _Axis(size, taps, stride, pad, pad, apart, out)
    both = (of["o"] - 1) * stride + long - size
    if turned:
        both = (size - 1) * stride + long - of["o"]
    before = of.get("p", int(both / 2))  # C++ divides towards zero, and so do they
    return _Axis(size, taps, stride, before, both - before, apart, of["o"])
