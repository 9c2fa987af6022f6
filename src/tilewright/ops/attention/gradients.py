"""Gradients of attention: one operation, ``attention_backward``, over the LSE that the forward pass
writes for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tilewright.ops.attention import broadcast, widened
from tilewright.ops.attention.calling import options, word_of
from tilewright.ops.attention.operands import operands
from tilewright.ops.attention.problem import AttentionProblem
from tilewright.ops.backward import Backward, Computation, incoming
from tilewright.verdict import Verdict, no

DTYPES = ("bf16", "fp16", "fp32")
"""Operands that have gradients."""

WITHOUT = {
    "pagetable": "keys and values in pages have",
    "pagelist": "keys and values in pages have",
    "latent": "latent attention has",
    "append": "a cache that is appended to has",
    "leftpad": "keys that are left out by left_pad have",
    "tscale": "operands with scales have",
    "hscale": "operands with scales have",
    "bscale": "operands with scales have",
    "oscale": "an output with a scale has",
}
"""Features without gradients."""

_GRADIENT = {
    "q": "dq",
    "k": "dk",
    "v": "dv",
    "bias": "dbias",
    "sinks": "dsinks",
    "slopes": "dslopes",
}
"""Operands that have gradients, and the gradients' names."""


_LOWERED = frozenset({"bias"})
"""Operands by keyword that autocast converts, as it does the mask of torch's own attention."""


def lowered(inputs: int, named: Sequence[str], options: Mapping[str, Any]) -> tuple[int, ...]:
    """See `tilewright.ops.protocols.Differentiation`. A cache of inference is not converted."""
    if inputs < 3 or any(word_of(name) in WITHOUT for name in named):
        return ()
    return (*range(inputs), *(i for i, name in enumerate(named, inputs) if name in _LOWERED))


def refused(p: AttentionProblem) -> Verdict | None:
    """Why attention of this kind has no gradients; None if it has."""
    types = dict.fromkeys((p.dtype, p.dtype_kv))
    if len(types) > 1 or p.dtype not in DTYPES:
        return no(
            "gradients_dtype",
            f"attention of {' and '.join(types)} has no gradients; that of {', '.join(DTYPES)} has",
        )
    for word, what in WITHOUT.items():
        if word in p.words:
            return no(f"gradients_{word}", f"{what} no gradients: they are for inference")
    if p.words >= {"blocks", "bias"}:
        return no(
            "gradients_blocks",
            "masks of blocks beside a bias have no gradients: put the mask into the bias, as -inf "
            "or as False",
        )
    return None


def gradients(problem: AttentionProblem, wanted: Sequence[str]) -> Backward | Verdict:
    """See `tilewright.ops.protocols.Differentiation`."""
    wide = widened.problem(problem)
    if isinstance(wide, Verdict):
        return wide
    if (verdict := refused(wide)) is not None:
        return verdict
    for name in wanted:
        if name not in _GRADIENT:
            return no("gradients_operand", f"attention has no gradient for {name}")
    found = {name: made for name, made in _GRADIENT.items() if name in wanted}
    read = {one.name: one for one in operands(wide) if one.read}
    scalars = ("scale", "seed", "offset") if problem.dropout else ("scale",)
    keywords = {name: name for name, one in read.items() if one.keyword}
    keywords |= {name: name for name in scalars}
    if "lse" in problem.words:
        keywords["dlse"] = "dlse"
    said = options(wide) | {"grads": "+".join(found.values())}
    for name in ("lse", "random", "dtype_o", "batch_invariant"):  # which say the forward pass
        said.pop(name, None)
    steps = [Computation("do", _readable, (incoming("o"),))]
    if "lse" in problem.words:
        steps.append(Computation("dlse", _contiguous, (incoming("lse"),)))
    before, names = widened.steps(problem)
    if "bias" in found and problem.bias_shape[2:]:
        before.append(Computation("bias of queries", partial(_for_queries, wide.q_len), ("bias",)))
        keywords["bias"] = "bias of queries"
    operation = Computation(
        tuple(found.values()),
        "attention_backward",
        tuple(names.get(name, name) for name in ("q", "k", "v", "o", "lse", "do")),
        keywords,
        said,
    )
    steps += [*before, operation]
    if keywords.get("bias") == "bias of queries":
        steps.append(Computation("dbias of all queries", partial(_summed, (2,)), ("dbias",)))
        found["bias"] = "dbias of all queries"
    for name, made in found.items():
        if (last := widened.scaled(problem, name, made)) is not None:
            steps.append(last)
            found[name] = str(last.makes)
    for name in ("q", "k", "v"):
        if name in found and (along := broadcast.shared(read[name].shape, read[name].strides)):
            whole = f"{found[name]} of all"
            steps.append(Computation(whole, partial(_summed, along), (found[name],)))
            found[name] = whole
    return Backward(tuple(steps), found, {"lse": True})


def _for_queries(count: int, bias: Any) -> Any:
    """A bias of one row for all queries, as one with a row for each, which share memory."""
    return bias.expand(-1, -1, count, -1)


def _summed(along: tuple[int, ...], gradient: Any) -> Any:
    """A gradient of what is shared along some dimensions."""
    return gradient.sum(along, keepdim=True)


def _readable(x: Any) -> Any:
    """`x`, or a copy where its rows are not contiguous, or share memory (the gradient of a sum has
    strides of 0)."""
    apart = all(stride or size == 1 for size, stride in zip(x.shape, x.stride(), strict=True))
    return x if x.stride(-1) == 1 and apart else x.contiguous()


def _contiguous(x: Any) -> Any:
    return x.contiguous()
