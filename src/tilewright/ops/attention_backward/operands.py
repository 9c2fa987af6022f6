"""The operands of attention's backward pass, by name; the problem that a call states, and the
options that state a problem.

    q, k, v, o, lse, do         by position: what the forward pass read and wrote, and O's gradient
    bias, slopes, sinks, …      by keyword, as for the forward pass
    dlse                        LSE's gradient, if it has one
    dq, dk, dv, dbias, dsinks, dslopes
                                outputs: those that ``grads`` says. Passed by position behind do,
                                they are added to, and there is no output
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from tilewright.errors import BadArgument, nearest
from tilewright.ops.attention import calling
from tilewright.ops.attention import operands as forward
from tilewright.ops.attention.problem import AttentionProblem, Strides
from tilewright.ops.attention_backward.problem import USUAL, AttentionBackwardProblem
from tilewright.ops.keywords import operand, option
from tilewright.ops.nouns import Call, Operand, Role, View

_FORWARD = ("lse", "random", "dtype_o")
"""Options of the forward pass alone."""

KEYWORDS = {
    **{name: one for name, one in calling.KEYWORDS.items() if name not in _FORWARD},
    "dlse": operand(),
    "grads": option("str", USUAL),
}
OPTIONS = tuple(name for name, one in KEYWORDS.items() if one.kind == "option")

OPERANDS = ("q", "k", "v", "o", "lse", "do")
INPUTS = len(OPERANDS)
"""Operands by position that are only read."""

OF = {"dq": "q", "dk": "k", "dv": "v", "dbias": "bias", "dsinks": "sinks", "dslopes": "slopes"}
"""What each gradient belongs to."""


def operands(p: AttentionBackwardProblem) -> tuple[Operand, ...]:
    """The operands of `p`: by position, by keyword, outputs."""
    said = {one.name: one for one in forward.operands(p)}
    o, shape = said.pop("o"), forward.lse_shape(p)
    lse = Operand("lse", shape, forward.dense(shape), "fp32")
    first = [one for one in said.values() if not one.keyword]
    named = [one for one in said.values() if one.keyword]
    if p.dlse:
        named.append(replace(lse, name="dlse", keyword=True))
    do = Operand("do", o.shape, _own_strides(p, "do", o.shape), o.dtype)
    role: Role = "inout" if p.accumulate else "out"
    made = [
        Operand(name, one.shape, _own_strides(p, name, one.shape), one.dtype, role)
        for name, one in ((name, said[of]) for name, of in OF.items() if name in p.computed)
    ]
    read = (*first, replace(o, role="in"), lse, do)
    return (*read, *made, *named) if p.accumulate else (*read, *named, *made)


STRIDED = ("do", "dq", "dk", "dv")
"""Arrays whose rows may lie apart."""


def _own_strides(p: AttentionBackwardProblem, name: str, shape: Sequence[int]) -> Strides:
    """Strides of dO or of a gradient, as its array has them."""
    strides: Strides = getattr(p, f"{name}_strides") if name in STRIDED else ()
    if not strides:
        return forward.dense(shape)
    return strides[1:] if _is_packed(p, name) else _turned(strides, _layout(p, name))


def _stated_strides(p: AttentionProblem, name: str, view: View) -> Strides:
    """The strides of dO or of a gradient, as a problem has them; () of a contiguous array. Raises
    `BadArgument`."""
    if 0 in view.shape or forward.contiguous(view):
        return ()
    if view.shape[-1] > 1 and view.strides[-1] != 1:
        raise BadArgument(f"{name} has rows that are not contiguous; pass {name}.contiguous()")
    packed = _is_packed(p, name)
    return (0, *view.strides) if packed else _turned(view.strides, _layout(p, name))


def _is_packed(p: AttentionProblem, name: str) -> bool:
    return ("packedq" if name in ("do", "dq") else "packedkv") in p.words


def _layout(p: AttentionProblem, name: str) -> str:
    return p.layout if name in ("do", "dq") else p.kv_layout


def _turned(strides: Strides, layout: str) -> Strides:
    """Strides of (batch, row, head, dim) as an array in `layout` has them, and the other way
    round."""
    outer, one, two, dim = strides
    return strides if layout == "bshd" else (outer, two, one, dim)


def outputs(call: Call) -> tuple[Operand, ...]:
    """The outputs of a call that passes none. Sizes may be symbols (``torch.compile``), so no
    problem is stated of them."""
    if len(call.inputs) > INPUTS:  # gradients are added to
        return ()
    read = dict(zip(("q", "k", "v"), call.inputs, strict=False)) | dict(call.named)
    words = str(call.options.get("grads", USUAL)).split("+")
    found = ((name, read[of]) for name, of in OF.items() if name in words and of in read)
    return tuple(Operand(n, x.shape, forward.dense(x.shape), x.dtype, "out") for n, x in found)


def problem_of(call: Call) -> AttentionBackwardProblem:
    """The problem that a call states. Raises `BadArgument`."""
    for name in call.options:
        if name not in OPTIONS:
            raise BadArgument(
                f"attention_backward has no option '{name}'{nearest(name, OPTIONS)}; it has "
                f"{', '.join(OPTIONS)}"
            )
    if len(call.inputs) < INPUTS:
        raise BadArgument(
            f"attention_backward takes {INPUTS} operands ({', '.join(OPERANDS)}) by position, and "
            f"those that gradients are added to, and was given {len(call.inputs)}"
        )
    (q, k, v, o, lse, do), added = call.inputs[:INPUTS], call.inputs[INPUTS:]
    named, said = dict(call.named), dict(call.options)
    dlse, grads = named.pop("dlse", None), said.pop("grads", USUAL)
    if type(grads) is not str:
        raise BadArgument(f"grads = {grads!r} is not text, as in '{USUAL}'")
    one = calling.stated_by(Call((q, k, v), named, (o,), said))
    if do.shape != o.shape or do.dtype != o.dtype:
        raise BadArgument(
            f"do is {do.dtype} {list(do.shape)}, but o is {o.dtype} {list(o.shape)}; they must be "
            "alike"
        )
    said_by: dict[str, Any] = {f.name: getattr(one, f.name) for f in fields(AttentionProblem)}
    said_by |= {"grads": grads, "dlse": dlse is not None, "accumulate": bool(added)}
    problem = AttentionBackwardProblem(**said_by)
    passed = {"lse": lse, "do": do} | ({"dlse": dlse} if dlse is not None else {})
    targets = [x.name for x in operands(problem) if x.written]
    views = added or call.outputs or ()
    if (added and call.outputs) or len(views) not in (0, len(targets)):
        given = "both" if added and call.outputs else f"{len(views)}"
        raise BadArgument(
            f"attention_backward takes {INPUTS} operands ({', '.join(OPERANDS)}), and arrays of "
            f"its {len(targets)} gradients ({', '.join(targets)}) by position, to be added to, or "
            f"in out=, to be written; it was given {given}"
        )
    if views:
        passed |= zip(targets, views, strict=True)
    _check(problem, passed)
    strides: dict[str, Any] = {
        f"{name}_strides": _stated_strides(problem, name, passed[name])
        for name in STRIDED
        if name in passed
    }
    problem = replace(problem, **strides)
    alignment = math.gcd(problem.alignment, *(view.address for view in passed.values()))
    return replace(problem, alignment=alignment) if alignment else problem


def _check(p: AttentionBackwardProblem, views: dict[str, View]) -> None:
    """Raise `BadArgument` unless the arrays are the problem's operands, and contiguous where they
    must be."""
    declared = {one.name: one for one in operands(p)}
    for name, view in views.items():
        one = declared[name]
        if view.shape != one.shape or view.dtype != one.dtype:
            raise BadArgument(
                f"{name} is {view.dtype} {list(view.shape)}, but must be {one.dtype} "
                f"{list(one.shape)}"
            )
        if name not in STRIDED and 0 not in view.shape and not forward.contiguous(view):
            raise BadArgument(f"{name} is not contiguous, as it must be")


def options(p: AttentionBackwardProblem) -> dict[str, Any]:
    """The options that, with the operands, state `p`."""
    said = calling.options(p)
    said.pop("dtype_o", None)  # O says it
    return said | ({"grads": p.grads} if p.grads != USUAL else {})
