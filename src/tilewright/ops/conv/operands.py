"""The operands of a convolution, by name; the problem that a call states, and the options that
state a problem.

    forward   conv(x, w)                                            makes y
    data      conv(y, w, direction="data", spatial=(32, 32))        makes x
    weights   conv(x, y, direction="weights", filter=(3, 3))        makes w

The epilogue's operands go by keyword (``bias=b, epilogue="bias+relu"``): one value for each channel
of the result, an array that lies as the result does, or a scalar.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.errors import BadArgument, nearest
from tilewright.ops import epilogues
from tilewright.ops.conv import geometry
from tilewright.ops.conv.geometry import Sizes
from tilewright.ops.conv.problem import DIRECTIONS, ConvProblem
from tilewright.ops.conv.problem import outputs as out_dtypes
from tilewright.ops.epilogues import chain_lowered, chain_names
from tilewright.ops.keywords import option
from tilewright.ops.nouns import Call, Operand, Role, View

OPTIONS = {
    "direction": option("str", "forward"),
    "spatial": option("tuple[int, ...]"),
    "filter": option("tuple[int, ...]"),
    "stride": option("tuple[int, ...]"),
    "pad": option("tuple[int, ...]"),
    "pad_after": option("tuple[int, ...]"),
    "dilation": option("tuple[int, ...]"),
    "groups": option("int", 1),
    "epilogue": option("str", ""),
    "dtype_out": option("dtype"),
    "precision": option("str", "ieee"),
}

_SHAPES = {"x": "[n, c, *spatial]", "w": "[k, c / groups, *filter]", "y": "[n, k, *out]"}

_QUANTISED_MIDDLE = 40
"""Where scales bring the sums that int8 results are made of."""

_INT8_PRODUCT = 5000.0
"""About the rms of a product of two random int8."""


def lowered(inputs: int, named: Sequence[str], options: Mapping[str, Any]) -> tuple[int, ...]:
    """See `tilewright.ops.protocols.Differentiation`."""
    extra = chain_lowered(options.get("epilogue", ""))
    return (*range(inputs), *(i for i, name in enumerate(named, inputs) if name in extra))


def operands(p: ConvProblem) -> tuple[Operand, ...]:
    """The operands of `p`: by position, by keyword, the output."""
    roles: tuple[Role, ...] = ("in", "in", "out")
    first, second, made = (
        Operand(name, p.shape_of(name), p.strides_of(name), p.dtype_of(name), role)
        for name, role in zip(DIRECTIONS[p.direction], roles, strict=True)
    )
    usual = math.sqrt(max(1, terms(p)))
    integers = p.dtype == "int8"
    down = 1 / 64 if integers else 1.0
    if p.dtype_out == "int8":
        scaling = sum(t.values == "scale" for t in epilogues.takes(p.epilogue))
        sums = usual * (_INT8_PRODUCT if integers else 1.0)
        down = (_QUANTISED_MIDDLE / max(1.0, sums)) ** (1 / scaling)
    values = {
        "normal": None,
        "scale": (0.5 * down, 1.5 * down),
        "below": (-1.5 * usual, -0.5 * usual),
        "above": (0.5 * usual, 1.5 * usual),
    }
    extra = []
    for taken, name in zip(epilogues.takes(p.epilogue), chain_names(p.epilogue), strict=True):
        shape, strides = _of_kind(p, taken.kind)
        dtype = epilogues.operand_dtype(taken, p.dtype_out)
        extra.append(
            Operand(name, shape, strides, dtype, values=values[taken.values], keyword=True)
        )
    return (first, second, *extra, made)


def _of_kind(p: ConvProblem, kind: str) -> tuple[Sizes, Sizes]:
    """Shape and strides of an operand of the epilogue."""
    if kind == "d":
        return p.shape_of(p.output_name), p.strides_of(p.output_name)
    return ((p.channels_out,), (1,)) if kind == "n" else ((1,), (1,))


def terms(p: ConvProblem) -> int:
    """Products of a sum, at most."""
    if p.direction == "weights":
        return p.n * math.prod(p.out_sizes)
    if p.direction == "forward":
        return p.group_c * p.taps
    each = (
        max((len(dim.taps_of(residue)) for residue in range(dim.stride)), default=0)
        for dim in p.dims
    )
    return p.group_k * math.prod(each)


# --- the result of a call ----------------------------------------------------------------------


def outputs(call: Call) -> tuple[Operand, ...]:
    """The output of a call that passes none. Sizes may be symbols (``torch.compile``), so no
    problem is stated of them."""
    said = call.options
    direction = str(said.get("direction", "forward"))
    one, other = call.inputs
    rank = len(one.shape) - 2
    groups = said.get("groups", 1)
    if direction == "forward":
        sizes = (
            geometry.out_size(*each)
            for each in zip(
                one.shape[2:], other.shape[2:], *_steps(said, rank), *_padding(said, rank),
                strict=True,
            )
        )  # fmt: skip
        shape = (one.shape[0], other.shape[0], *sizes)
    elif direction == "data":
        shape = (one.shape[0], other.shape[1] * groups, *said["spatial"])
    else:
        shape = (other.shape[1], one.shape[1] // groups, *said["filter"])
    strides = geometry.channels_first(shape)
    if _last(one) or _last(other):
        strides = geometry.channels_last(shape[0], shape[1], shape[2:])
    dtype = said.get("dtype_out") or out_dtypes(one.dtype, str(said.get("epilogue", "")))[0]
    return (Operand(DIRECTIONS[direction][2], shape, strides, dtype, "out"),)


def _steps(said: Any, rank: int) -> tuple[Sizes, Sizes]:
    ones = (1,) * rank
    return said.get("stride") or ones, said.get("dilation") or ones


def _padding(said: Any, rank: int) -> tuple[Sizes, Sizes]:
    pad = said.get("pad") or (0,) * rank
    return pad, said.get("pad_after") or pad


def _last(view: View) -> bool:
    """Whether an array is channels-last and could not be taken for channels-first: its channels are
    neighbours, and so are not its pixels. As torch decides it, in 1-D too."""
    channels, pixels = view.shape[1], math.prod(view.shape[2:])
    return bool(view.strides[1] == 1 and channels > 1 and pixels > 1)


# --- from a call to its problem ----------------------------------------------------------------


def problem_of(call: Call) -> ConvProblem:
    """The problem that a call states. Raises `BadArgument`."""
    said = dict(call.options)
    for name in said:
        if name not in OPTIONS:
            raise BadArgument(
                f"conv has no option '{name}'{nearest(name, OPTIONS)}; it has {', '.join(OPTIONS)}"
            )
    direction = said.get("direction", "forward")
    if not isinstance(direction, str) or direction not in DIRECTIONS:
        raise BadArgument(
            f"direction = {direction!r}{nearest(str(direction), DIRECTIONS)} is not one of "
            f"{', '.join(DIRECTIONS)}"
        )
    names = DIRECTIONS[direction]
    if len(call.inputs) != 2:
        raise BadArgument(
            f"conv of direction {direction} takes 2 operands ({names[0]}, {names[1]}) by position "
            f"and was given {len(call.inputs)}; pass the output as out="
        )
    views = dict(zip(names, call.inputs, strict=False))
    _check_named(call, str(said.get("epilogue", "")))
    if call.outputs is not None:
        if len(call.outputs) != 1:
            raise BadArgument(f"conv has one output, but out= has {len(call.outputs)}")
        views[names[2]] = call.outputs[0]
        given = said.setdefault("dtype_out", call.outputs[0].dtype)
        if given != call.outputs[0].dtype:
            raise BadArgument(f"dtype_out = {given}, but out is {call.outputs[0].dtype}")
    for name, view in views.items():
        if not 3 <= len(view.shape) <= 2 + geometry.MOST_DIMS:
            raise BadArgument(
                f"{name} is {list(view.shape)}, but must be {_SHAPES[name]} with 1 to 3 spatial "
                "dimensions"
            )
        if any(stride < 0 for stride in view.strides):
            raise BadArgument(f"{name} has negative strides; pass a copy")
    first, second = call.inputs
    if first.dtype != second.dtype:
        raise BadArgument(
            f"{names[0]} is {first.dtype} but {names[1]} is {second.dtype}; convert one to the "
            "other's dtype"
        )
    problem = ConvProblem(**_fields(direction, views, said))
    if call.outputs is None:
        (made,) = outputs(call)
        strides = {f"{names[2]}_strides": made.strides}
    else:
        strides = {}
    strides |= {f"{name}_strides": _kept(view) for name, view in views.items()}
    addresses = [view.address for view in (*views.values(), *call.named.values())]
    fields: dict[str, Any] = {name: getattr(problem, name) for name in _FIELDS}
    problem = ConvProblem(**fields | strides, alignment=math.gcd(16, *addresses))
    _check_shapes(problem, {**views, **call.named})
    return problem


_FIELDS = (
    "n", "c", "k", "spatial", "filter", "groups", "stride", "pad", "pad_after", "dilation",
    "direction", "dtype", "dtype_out", "precision", "epilogue",
)  # fmt: skip


def _kept(view: View) -> Sizes:
    """The strides of an array; those of channels-last where none can matter."""
    if 0 in view.shape:
        return ()
    return tuple(view.strides)


def _fields(direction: str, views: dict[str, View], said: dict[str, Any]) -> dict[str, Any]:
    """Fields of the problem from the arrays that are read, and from what options say."""
    groups = said.get("groups", 1)
    found: dict[str, Any] = {"direction": direction, "groups": groups}
    for name in ("stride", "pad", "pad_after", "dilation"):
        if name in said:
            found[name] = _tuple(name, said[name])
    found |= {name: said[name] for name in ("epilogue", "dtype_out", "precision") if name in said}
    for name, of in (("spatial", "data"), ("filter", "weights")):
        if (name in said) != (direction == of):
            need = "needs" if direction == of else "takes no"
            raise BadArgument(f"conv of direction {direction} {need} {name}=")
    names = DIRECTIONS[direction]
    found["dtype"] = views[names[0]].dtype
    if type(groups) is not int or groups < 1:
        raise BadArgument(f"groups = {groups!r} is not a number from 1")
    x, w, y = views.get("x"), views.get("w"), views.get("y")
    if direction == "forward":
        assert x is not None and w is not None
        found |= {"n": x.shape[0], "c": x.shape[1], "k": w.shape[0]}
        found |= {"spatial": x.shape[2:], "filter": w.shape[2:]}
    elif direction == "data":
        assert y is not None and w is not None
        found |= {"n": y.shape[0], "c": w.shape[1] * groups, "k": w.shape[0]}
        found |= {"spatial": _tuple("spatial", said["spatial"]), "filter": w.shape[2:]}
    else:
        assert x is not None and y is not None
        found |= {"n": x.shape[0], "c": x.shape[1], "k": y.shape[1]}
        found |= {"spatial": x.shape[2:], "filter": _tuple("filter", said["filter"])}
    return found


def _tuple(name: str, value: Any) -> Sizes:
    if not isinstance(value, tuple | list):
        raise BadArgument(f"{name} = {value!r} is not a tuple of numbers, as in (3, 3)")
    return tuple(value)


def _check_named(call: Call, epilogue: str) -> None:
    """Raise `BadArgument` unless the arrays passed by keyword are the epilogue's."""
    wanted = chain_names(epilogue)
    for name in call.named:
        if name not in wanted:
            raise BadArgument(
                f"conv takes no operand '{name}'{nearest(name, wanted)} with epilogue "
                f"'{epilogue}'; the epilogue says what it reads, as in epilogue='bias'"
            )
    if missing := [name for name in wanted if name not in call.named]:
        raise BadArgument(f"epilogue '{epilogue}' reads {missing[0]}=, which the call leaves out")


def _check_shapes(p: ConvProblem, views: dict[str, View]) -> None:
    """Raise `BadArgument` unless the arrays are the problem's operands."""
    declared = {one.name: one for one in operands(p)}
    for name, view in views.items():
        one = declared[name]
        single = one.shape == (1,) and view.shape == ()
        if tuple(view.shape) != one.shape and not single:
            raise BadArgument(
                f"{name} is {list(view.shape)}, but beside the others must be {list(one.shape)}"
            )
        if view.dtype != one.dtype:
            raise BadArgument(f"{name} is {view.dtype}, but must be {one.dtype}")
        if one.keyword and not single and not _same_strides(view, one.strides):
            like = "lie as the result does" if len(one.shape) > 1 else "be contiguous"
            raise BadArgument(
                f"{name} has strides {list(view.strides)}, but must {like}: {list(one.strides)}"
            )


def _same_strides(view: View, wanted: Sequence[int]) -> bool:
    if 0 in view.shape:
        return True
    each = zip(view.shape, view.strides, wanted, strict=True)
    return all(n == 1 or have == want for n, have, want in each)


def options(p: ConvProblem) -> dict[str, Any]:
    """The options that, with the operands, state `p`."""
    rank = len(p.spatial)
    said: dict[str, Any] = {}
    for name, default in (
        ("direction", "forward"), ("groups", 1), ("stride", (1,) * rank), ("pad", (0,) * rank),
        ("pad_after", p.pad), ("dilation", (1,) * rank), ("epilogue", ""), ("precision", "ieee"),
        ("dtype_out", out_dtypes(p.dtype, p.epilogue)[0]),
    ):  # fmt: skip
        if getattr(p, name) != default:
            said[name] = getattr(p, name)
    if p.direction == "data":
        said["spatial"] = p.spatial
    if p.direction == "weights":
        said["filter"] = p.filter
    return said
