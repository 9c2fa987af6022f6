"""The operands of a merge, by name; the problem that a call states.

stack      o, lse by position; makes merged_o, merged_lse
pair       o, lse by position, other_o, other_lse by keyword; makes merged_o, merged_lse
in_place   o, lse, other_o, other_lse by position, of which o and lse are updated; mask by
           keyword
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument, nearest
from tilewright.ops.keywords import operand, option
from tilewright.ops.merge_states.problem import LIKE, MergeStatesProblem
from tilewright.ops.nouns import Call, Operand, Role, View

STATE, OTHER = ("o", "lse"), ("other_o", "other_lse")
OPTIONS = {"in_place": option("bool", False)}
KEYWORDS = OPTIONS | {name: operand() for name in (*OTHER, "mask")}
MERGED = ("merged_o", "merged_lse")


def operands(p: MergeStatesProblem) -> tuple[Operand, ...]:
    """The operands of `p`: by position, by keyword, outputs."""
    role: Role = "inout" if p.form == "in_place" else "in"
    found = [_operand(p, name, role) for name in STATE]
    if p.form != "stack":
        found += [_operand(p, name, "in", keyword=p.form == "pair") for name in OTHER]
    if p.masked:
        values = partial(_flags, p.rows)
        found.append(Operand("mask", (p.rows,), (1,), "uint8", "in", values, keyword=True))
    if p.form != "in_place":
        found += [_operand(p, name, "out") for name in MERGED]
    return tuple(found)


def _operand(p: MergeStatesProblem, name: str, role: Role, keyword: bool = False) -> Operand:
    dtype = p.dtype if name.endswith("o") else "fp32"
    return Operand(name, p.shape_of(name), p.strides_of(name), dtype, role, keyword=keyword)


def _flags(rows: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randint(0, 1) for _ in range(rows)]


def written(inputs: int) -> tuple[int, ...]:
    """Places of the operands that a call writes in place: only such a call has four by
    position."""
    return (0, 1) if inputs == len(STATE + OTHER) else ()


def outputs(call: Call) -> tuple[Operand, ...]:
    """The outputs of a call that passes none. Sizes may be symbols (``torch.compile``), so no
    problem is stated of them."""
    if call.options.get("in_place"):
        return ()
    o, lse = call.inputs[:2]
    shape = (o.shape[0], *o.shape[-2:])
    return (
        Operand("merged_o", shape, _dense(shape), o.dtype, "out"),
        Operand("merged_lse", shape[:2], _dense(shape[:2]), lse.dtype, "out"),
    )


def _dense(shape: Sequence[Any]) -> tuple[Any, ...]:
    strides: list[Any] = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return tuple(strides)


def problem_of(call: Call) -> MergeStatesProblem:
    """The problem that a call states. Raises `BadArgument`."""
    for name in call.options:
        if name not in OPTIONS:
            raise BadArgument(
                f"merge_states has no option '{name}'{nearest(name, OPTIONS)}; it has "
                f"{', '.join(OPTIONS)}"
            )
    in_place = call.options.get("in_place", False)
    if type(in_place) is not bool:
        raise BadArgument(f"in_place = {in_place!r} is not True or False")
    first = STATE + OTHER if in_place else STATE
    known = ("mask",) if in_place else OTHER
    for name in call.named:
        if name not in known:
            raise BadArgument(
                f"merge_states {'with' if in_place else 'without'} in_place=True takes no operand "
                f"'{name}' by keyword{nearest(name, known)}"
            )
    if len(call.inputs) != len(first):
        raise BadArgument(
            f"merge_states {'with' if in_place else 'without'} in_place=True takes {len(first)} "
            f"operands ({', '.join(first)}) by position and was given {len(call.inputs)}"
        )
    views = dict(zip(first, call.inputs, strict=True)) | dict(call.named)
    others = [name for name in OTHER if name in views]
    if len(others) == 1:
        raise BadArgument(f"{others[0]} is one half of a state; pass {' and '.join(OTHER)}")
    form = "in_place" if in_place else "pair" if others else "stack"
    fields = _fields(form, views)
    problem = MergeStatesProblem(**fields)
    made = [one.name for one in operands(problem) if one.role == "out"]
    given: Sequence[Any] = outputs(call) if call.outputs is None else call.outputs
    if len(given) != len(made):
        raise BadArgument(
            f"merge_states of form {form} makes {', '.join(made) or 'nothing'}, but out= has "
            f"{len(given)}"
        )
    every: dict[str, Any] = {**views, **dict(zip(made, given, strict=True))}
    _check(problem, every)
    for field, name in LIKE.items():
        if name in every and 0 not in every[name].shape:
            fields[field] = tuple(every[name].strides)
    fields["alignment"] = _alignment(every)
    return MergeStatesProblem(**fields)


def _fields(form: str, views: dict[str, View]) -> dict[str, Any]:
    o = views["o"]
    wanted = "[rows, states, heads, head_dim]" if form == "stack" else "[rows, heads, head_dim]"
    if len(o.shape) != (4 if form == "stack" else 3):
        raise BadArgument(f"o is {list(o.shape)}, but must be {wanted}")
    return {
        "rows": o.shape[0], "heads": o.shape[-2], "head_dim": o.shape[-1], "dtype": o.dtype,
        "states": o.shape[1] if form == "stack" else 1, "form": form, "masked": "mask" in views,
    }  # fmt: skip


def _check(p: MergeStatesProblem, views: dict[str, Any]) -> None:
    """Raise `BadArgument` unless the arrays are the problem's operands."""
    for one in operands(p):
        view = views[one.name]
        if tuple(view.shape) != one.shape:
            raise BadArgument(
                f"{one.name} is {list(view.shape)}, but beside o must be {list(one.shape)}"
            )
        if view.dtype != one.dtype:
            raise BadArgument(f"{one.name} is {view.dtype}, but must be {one.dtype}")
        if any(stride < 0 for stride in view.strides):
            raise BadArgument(f"{one.name} has negative strides; pass a copy")
        neighbours = one.name.endswith("o") or one.name == "mask"
        if neighbours and 0 not in view.shape and view.shape[-1] > 1 and view.strides[-1] != 1:
            raise BadArgument(
                f"{one.name} has a last stride of {view.strides[-1]}, but must have 1; pass a "
                "contiguous copy"
            )


def _alignment(views: dict[str, Any]) -> int:
    """Bytes that all O are aligned to."""
    found = 16
    for name, view in views.items():
        if name.endswith("o") and 0 not in view.shape:
            each = zip(view.shape[:-1], view.strides[:-1], strict=True)
            size = DTYPES[view.dtype].bytes
            found = math.gcd(found, *(stride * size for n, stride in each if n > 1))
        if isinstance(view, View) and name.endswith("o"):
            found = math.gcd(found, view.address)
    return found


def options(p: MergeStatesProblem) -> dict[str, Any]:
    """The options that, with the operands, state `p`."""
    return {"in_place": True} if p.form == "in_place" else {}
