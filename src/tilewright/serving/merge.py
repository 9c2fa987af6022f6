"""States of attention over different keys, merged: a prefix that requests share and the keys of
each, or keys that several devices hold.

A state is (V, S): what `run` gives with ``return_lse=True``, O and the natural logarithm of each
row's sum of exponentials. FlashInfer's S has base 2: multiply it by ``math.log(2)`` first. Where S
is -inf, no key was seen, and V counts for nothing. Arrays are torch tensors, NumPy's, or others
that speak DLPack. No gradients are recorded.
"""

from __future__ import annotations

from typing import Any

from tilewright.errors import BadArgument
from tilewright.operation import operation

_merge = operation("merge_states")


def merge_state(v_a: Any, s_a: Any, v_b: Any, s_b: Any) -> tuple[Any, Any]:
    """The state over the keys of two states: (V, S), like v_a and s_a.

    v_a, v_b: [rows, heads, head_dim] of one dtype: fp32, fp16 or bf16; head_dim up to 1024.
    s_a, s_b: fp32 [rows, heads], natural logarithms, of any strides.

    Where both S are -inf, V is 0 and S -inf. Raises `BadArgument` and `WrongDevice`.
    """
    _arrays(v_a=v_a, s_a=s_a, v_b=v_b, s_b=s_b)
    merged: tuple[Any, Any] = _merge(v_a, s_a, other_o=v_b, other_lse=s_b)
    return merged


def merge_state_in_place(v: Any, s: Any, v_other: Any, s_other: Any, mask: Any = None) -> None:
    """As `merge_state`, written to v and s.

    mask: bool [rows], whether a row is merged; others are left as they are. None for all.

    Raises `BadArgument` and `WrongDevice`.
    """
    _arrays(v=v, s=s, v_other=v_other, s_other=s_other)
    if mask is None:
        _merge(v, s, v_other, s_other, in_place=True)
        return
    kind = str(getattr(mask, "dtype", f"a {type(mask).__name__}")).removeprefix("torch.")
    if kind not in ("bool", "uint8"):
        raise BadArgument(f"mask is {kind}, but must be a bool array, [rows]")
    flags = mask if kind == "uint8" else _bytes(mask)
    _merge(v, s, v_other, s_other, in_place=True, mask=flags)


def merge_states(v: Any, s: Any) -> tuple[Any, Any]:
    """The state over the keys of several: (V [rows, heads, head_dim], S [rows, heads]).

    v: [rows, states, heads, head_dim], fp32, fp16 or bf16; head_dim up to 1024.
    s: fp32 [rows, states, heads], natural logarithms, of any strides.

    Without states, or where each S is -inf, V is 0 and S -inf. Raises `BadArgument` and
    `WrongDevice`.
    """
    _arrays(v=v, s=s)
    merged: tuple[Any, Any] = _merge(v, s)
    return merged


def _arrays(**given: Any) -> None:
    """Raise `BadArgument` unless each is an array."""
    for name, x in given.items():
        if not hasattr(x, "__dlpack__"):
            raise BadArgument(f"{name} is {type(x).__name__}, but must be an array")


def _bytes(mask: Any) -> Any:
    """A view of an array of bool."""
    import sys

    torch = sys.modules.get("torch")
    if torch is not None and isinstance(mask, torch.Tensor):
        return mask.view(torch.uint8)
    return mask.view("uint8")
