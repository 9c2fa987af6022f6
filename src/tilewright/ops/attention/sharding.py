"""How attention can be split over several devices: along the batch and along the heads."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ops.nouns import Call, View
from tilewright.ops.shards import Labels, Shards

_ROWS = {"bshd": ("batch", "", "heads", ""), "bhsd": ("batch", "heads", "", "")}
_SUMS = ("batch", "heads", "")
"""Labels of LSE."""
_LENGTHS = frozenset({"q_used", "kv_used", "left_pad"})


def shards(call: Call) -> Shards | None:
    """See `tilewright.ops.protocols.Launching`."""
    named = _named(call)
    if named is None or len(call.inputs) != 3 or call.options.get("random"):
        return None
    of_q, of_kv = _rows(call.options)
    outputs = (of_q, _SUMS) if call.options.get("lse") else (of_q,)
    return Shards((of_q, of_kv, of_kv, *named), outputs)


def backward_shards(call: Call, read: int) -> Shards | None:
    """Those of the gradients dQ, dK and dV.

    read: how many operands are read by position.
    """
    named = _named(call)
    if named is None or len(call.inputs) != read:
        return None
    of_q, of_kv = _rows(call.options)
    of = {"dq": of_q, "dk": of_kv, "dv": of_kv}
    words = str(call.options.get("grads", "dq+dk+dv")).split("+")
    if not of.keys() >= {*words}:
        return None
    inputs = (of_q, of_kv, of_kv, of_q, _SUMS, of_q, *named)
    return Shards(inputs, tuple(of[word] for word in words))


def _rows(options: Mapping[str, object]) -> tuple[Labels, Labels]:
    """Labels of Q and O, and of K and V."""
    layout = str(options.get("layout", "bshd"))
    return _ROWS[layout], _ROWS[str(options.get("kv_layout", layout))]


def _named(call: Call) -> list[Labels] | None:
    """Labels of the operands by keyword; None where the call cannot be split: rows are packed or in
    pages, batches are broadcast, or weights are dropped by their places."""
    if call.options.get("dropout") or any(len(x.shape) != 4 for x in (*call.inputs[:3],)):
        return None
    if len({x.shape[0] for x in call.inputs[:3]}) > 1:
        return None
    found = [_of(name, x) for name, x in call.named.items()]
    return None if None in found else [one for one in found if one is not None]


def _of(name: str, x: View) -> Labels | None:
    if name in _LENGTHS:
        return ("batch",)
    if name == "sinks":
        return ("heads",)
    if name == "slopes":
        return ("heads",) if len(x.shape) == 1 else ("batch", "heads")
    if name == "dlse":
        return _SUMS
    if name == "bias":
        labels = ("batch", "heads", "", "")[4 - len(x.shape) :]
        return tuple(a if size > 1 else "" for a, size in zip(labels, x.shape, strict=True))
    return None
