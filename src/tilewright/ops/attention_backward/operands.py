"""The operands of attention's backward pass, by name; the problem that a call states, and the
options that state a problem.

    q, k, v, o, lse, do         by position: what the forward pass read and wrote, and O's gradient
    bias, slopes, sinks, …      by keyword, as for the forward pass
    dlse                        LSE's gradient, if it has one
    dq, dk, dv, dbias, dsinks, dslopes
                                outputs: those that ``grads`` says
"""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

from tilewright.errors import BadArgument, nearest
from tilewright.ops.attention import operands as forward
from tilewright.ops.attention.problem import AttentionProblem, Strides
from tilewright.ops.attention_backward.problem import USUAL, AttentionBackwardProblem
from tilewright.ops.nouns import Call, Operand, View

OPTIONS = (*(name for name in forward.OPTIONS if name not in ("lse", "random", "dtype_o")), "grads")

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
    do = Operand("do", o.shape, forward.dense(o.shape), o.dtype)
    if p.do_strides:
        packed = "packedq" in p.words
        do = replace(do, strides=p.do_strides[1:] if packed else _as_operand(p, p.do_strides))
    made = [
        Operand(name, one.shape, forward.dense(one.shape), one.dtype, "out")
        for name, one in ((name, said[of]) for name, of in OF.items() if name in p.computed)
    ]
    return (*first, replace(o, role="in"), lse, do, *named, *made)


def _as_operand(p: AttentionProblem, strides: Strides) -> Strides:
    """Strides of (batch, row, head, dim) as an array like O has them, and the other way round."""
    outer, one, two, dim = strides
    return strides if p.layout == "bshd" else (outer, two, one, dim)


def outputs(call: Call) -> tuple[Operand, ...]:
    """The outputs of a call that passes none. Sizes may be symbols (``torch.compile``), so no
    problem is stated of them."""
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
    if len(call.inputs) != 6:
        raise BadArgument(
            "attention_backward takes 6 operands (q, k, v, o, lse, do) by position and was given "
            f"{len(call.inputs)}"
        )
    q, k, v, o, lse, do = call.inputs
    named, said = dict(call.named), dict(call.options)
    dlse, grads = named.pop("dlse", None), said.pop("grads", USUAL)
    if type(grads) is not str:
        raise BadArgument(f"grads = {grads!r} is not text, as in '{USUAL}'")
    one = forward.problem_of(Call((q, k, v), named, (o,), said))
    packed = "packedq" in one.words
    if do.shape != o.shape or do.dtype != o.dtype:
        raise BadArgument(
            f"do is {do.dtype} {list(do.shape)}, but o is {o.dtype} {list(o.shape)}; they must be "
            "alike"
        )
    if 0 not in do.shape and do.shape[-1] > 1 and do.strides[-1] != 1:
        raise BadArgument("do has rows that are not contiguous; pass do.contiguous()")
    do_strides: Strides = ()
    if do.strides != forward.dense(do.shape) and 0 not in do.shape:
        do_strides = (0, *do.strides) if packed else _as_operand(one, do.strides)
    said_by = {f.name: getattr(one, f.name) for f in fields(AttentionProblem)}
    problem = AttentionBackwardProblem(
        **said_by, grads=grads, dlse=dlse is not None, do_strides=do_strides
    )
    passed = {"lse": lse} | ({"dlse": dlse} if dlse is not None else {})
    outputs = [x for x in operands(problem) if x.role == "out"]
    if call.outputs is not None:
        if len(call.outputs) != len(outputs):
            raise BadArgument(
                f"attention_backward has {len(outputs)} outputs "
                f"({', '.join(x.name for x in outputs)}) but out= has {len(call.outputs)}; pass a "
                "tuple of all of them, in this order"
            )
        passed |= {x.name: view for x, view in zip(outputs, call.outputs, strict=True)}
    _check(problem, passed)
    addresses = [view.address for view in (do, lse, *passed.values())]
    alignment = math.gcd(problem.alignment, *addresses)
    return replace(problem, alignment=alignment) if alignment else problem


def _check(p: AttentionBackwardProblem, views: dict[str, View]) -> None:
    """Raise `BadArgument` unless the arrays are the problem's operands, and contiguous."""
    declared = {one.name: one for one in operands(p)}
    for name, view in views.items():
        one = declared[name]
        if view.shape != one.shape or view.dtype != one.dtype:
            raise BadArgument(
                f"{name} is {view.dtype} {list(view.shape)}, but must be {one.dtype} "
                f"{list(one.shape)}"
            )
        if 0 not in view.shape and not forward.contiguous(view):
            raise BadArgument(f"{name} is not contiguous, as it must be")


def options(p: AttentionBackwardProblem) -> dict[str, Any]:
    """The options that, with the operands, state `p`."""
    said = forward.options(p)
    said.pop("dtype_o", None)  # O says it
    return said | ({"grads": p.grads} if p.grads != USUAL else {})
