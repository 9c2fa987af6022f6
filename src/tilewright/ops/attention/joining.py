"""Attention over one more dimension as attention of more sequences, and so its gradients."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ops.joined import FRONT, Joined
from tilewright.ops.nouns import Call

_BY_SEQUENCE = ("q_used", "kv_used", "left_pad", "dlse")
_PERHAPS = ("bias", "blocks", "slopes", "q_scale", "k_scale", "v_scale")
"""Operands with a first dimension for sequences, or without one, or with one of size 1."""
_SHARED = ("sinks", "o_scale")


def joined(call: Call, apart: Sequence[bool]) -> Joined | None:
    """See `tilewright.ops.protocols.Launching`. Calls with dropout are made one by one: by one
    seed, their sequences would differ in what is dropped."""
    if call.options.get("dropout") or call.options.get("random") or len(call.inputs) < 3:
        return None
    outputs = (0, 0) if call.options.get("lse") else (0,)
    first, named = call.inputs, call.named
    if all(len(x.shape) == 3 for x in first[:3]) and not named:
        return Joined((FRONT,) * len(first), (FRONT, *outputs[1:]))
    if any(len(x.shape) != 4 for x in first[:3]):
        return None
    places = _places(call, apart)
    return None if places is None else Joined(places, outputs)


def gradients_joined(call: Call, apart: Sequence[bool], grads: str) -> Joined | None:
    """`joined` for a call of attention's backward pass.

    grads: the gradients that it makes, joined by ``+``. Those of operands that sequences share are
        sums over them, so such calls are made one by one.
    """
    made = grads.split("+")
    if call.options.get("dropout") or not set(made) <= {"dq", "dk", "dv"}:
        return None
    if any(len(x.shape) != 4 for x in call.inputs[:3]):
        return None
    places = _places(call, apart)
    return None if places is None else Joined(places, (0,) * len(made))


def _places(call: Call, apart: Sequence[bool]) -> tuple[int | None, ...] | None:
    batch = max(x.shape[0] for x in call.inputs)
    places: list[int | None] = []
    views = [("", x) for x in call.inputs] + [*call.named.items()]
    for (name, view), differs in zip(views, apart, strict=True):
        known = not name or name in (*_BY_SEQUENCE, *_PERHAPS, *_SHARED)
        own = name not in _SHARED and view.shape[:1] == (batch,)
        if name == "slopes":
            own = own and len(view.shape) == 2
        if name.endswith("_scale"):
            own = own and len(view.shape) > 1
        if not known or (differs and not own):
            return None
        places.append(0 if own else None)
    return tuple(places)
