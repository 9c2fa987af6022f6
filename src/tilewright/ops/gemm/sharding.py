"""How a GEMM can be split over several devices: along rows, columns, batches, and the sum over K,
whose parts add up unless the epilogue does more than add and scale."""

from __future__ import annotations

from tilewright.ops import epilogues
from tilewright.ops.gemm import contraction
from tilewright.ops.gemm.operands import names_of_call
from tilewright.ops.nouns import Call, View
from tilewright.ops.shards import Labels, Shards

ADDING = frozenset({"bias", "add"})
LINEAR = ADDING | {"scale", "row_scale", "col_scale", "mul"}
_WHOLE = ("scale_a", "scale_b", "pre_a", "pre_b", "dtype_a", "dtype_b")
"""Options whose operands are not split."""


def shards(call: Call) -> Shards | None:
    """See `tilewright.ops.protocols.Launching`."""
    options, epilogue = call.options, call.options.get("epilogue", "")
    if any(options.get(word) for word in _WHOLE) or epilogues.fold(epilogue) != 1:
        return None
    terms = _terms(call)
    if terms is None:
        return None
    of_a, of_b, of_c = terms
    names = names_of_call(options)
    by_position = [name for name in names if name not in call.named]
    arrays = dict(zip(by_position, call.inputs, strict=True)) | dict(call.named)
    found = {"A": of_a, "B": of_b}
    for name, taken in zip(names[2:], epilogues.takes(epilogue), strict=True):
        labels = _beside(arrays[name], taken.kind, of_c)
        if labels is None:
            return None
        found[name] = labels
    order = (*by_position, *call.named)
    said = {operation.name for operation in epilogues.parse(epilogue)}
    summed = frozenset(of_a) & frozenset(of_b) - frozenset(of_c) if said <= LINEAR else frozenset()
    owners = [one.name for one in epilogues.parse(epilogue) for _ in one.takes]
    adding = {name for name, own in zip(names[2:], owners, strict=True) if own in ADDING}
    added = frozenset(place for place, name in enumerate(order) if name in adding)
    return Shards(tuple(found[name] for name in order), (of_c,), summed, added)


def _terms(call: Call) -> tuple[Labels, Labels, Labels] | None:
    """Labels of A, B and C; None where they are no matrices or batches of them."""
    if "equation" in call.options:
        return contraction.parse(call.options["equation"])
    a, b = call.inputs[:2]
    if a.pointers or b.pointers or (len(a.shape), len(b.shape)) == (2, 4):
        return None
    of_a = ("m", "k") if len(a.shape) > 1 else ("k",)
    of_b = ("k", "n") if len(b.shape) > 1 else ("k",)
    batch_a, batch_b = a.shape[: -len(of_a)], b.shape[: -len(of_b)]
    count = max(len(batch_a), len(batch_b))
    batch = tuple(f"batch {place}" for place in range(count))
    whole = _sizes(batch_a, batch_b, count)
    labels_a, labels_b = (
        tuple(
            label if size == most else ""
            for label, size, most in zip(
                batch[count - len(own) :], own, whole[count - len(own) :], strict=True
            )
        )
        for own in (batch_a, batch_b)
    )
    summed = call.options.get("batching") == "summed"
    of_c = (*(() if summed else batch), *of_a[:-1], *of_b[1:])
    return (*labels_a, *of_a), (*labels_b, *of_b), of_c


def _sizes(batch_a: tuple[int, ...], batch_b: tuple[int, ...], count: int) -> list[int]:
    """The sizes of the whole batch."""
    filled = [(*(1,) * (count - len(own)), *own) for own in (batch_a, batch_b)]
    return [max(pair) for pair in zip(*filled, strict=True)]


def _beside(view: View, kind: str, of_c: Labels) -> Labels | None:
    """Labels of an operand of the epilogue; None where its dimensions are not C's."""
    whole = ("",) * len(view.shape)
    if kind == "s":
        return whole
    if kind == "n":
        return (*whole[:-1], of_c[-1]) if len(view.shape) == 1 else None
    if kind == "m":
        return (of_c[0],) if len(view.shape) == 1 and len(of_c) == 2 else None
    return of_c if len(view.shape) == len(of_c) else None
