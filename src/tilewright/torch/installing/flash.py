"""Torch's flash attention, computed by `tilewright.attention` and its gradients.

``scaled_dot_product_attention`` and ``torch.nn.attention.varlen`` come down to four operators of
aten, in [batch, heads, rows, dim], in [batch, rows, heads, dim] and packed. Their contracts:

- O lies as ``empty_like`` of Q has it, and a gradient as ``empty_like`` of what it belongs to.
- logsumexp is a natural logarithm in fp32, [batch, heads, queries], packed [heads, rows].
- Under ``is_causal`` the last query is in the place of the last key.
- A head dimension is padded above, by torch.
- Without dropout nothing reads the random state, which is uninitialised.

Ours and torch's forward and backward pass can therefore be mixed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tilewright.errors import BadArgument
from tilewright.torch.installing.decisions import Asked, Decisions
from tilewright.torch.installing.overrides import Overrides, serving

NAME = "tilewright"
"""Ours among torch's implementations of flash attention."""


FAMILIES = ("attention", "attention_backward")
"""What serves these operators."""


def put(overrides: Overrides, decisions: Decisions) -> None:
    """Serve torch's four operators of flash attention."""
    for aten, ask, results in (
        ("_scaled_dot_product_flash_attention", _forward, _results),
        ("_scaled_dot_product_flash_attention_backward", _backward, gradients),
        ("_flash_attention_forward", _forward_rows, _results_rows),
        ("_flash_attention_backward", _backward_rows, gradients),
    ):
        overrides.put(aten, serving(decisions, aten, ask, results))


@dataclass(frozen=True, slots=True)
class _Active:
    """What torch keeps while ours is its flash attention, and takes back."""

    overrides: Overrides

    def remove(self) -> None:
        self.overrides.remove()


def register_flash_attention(_key: str = "CUDA") -> None:
    """Tell torch of our attention, as an implementation of its flash attention. Nothing changes
    until it is activated:

        tilewright.torch.register_flash_attention()
        torch.nn.attention.activate_flash_attention_impl("tilewright")
        ...
        torch.nn.attention.restore_flash_attention_impl()

    While it is active, ours computes what it has a kernel for, in fp16 and bf16, whatever
    measurements say; torch's own computes the rest: calls with dropout, and those with pages, used
    lengths or ALiBi. Which of its backends ``scaled_dot_product_attention`` takes, torch decides as
    before. Raises `BadArgument` for a torch without such implementations.
    """
    register = getattr(torch.nn.attention, "register_flash_attention_impl", None)
    if register is None:
        raise BadArgument(
            f"torch {torch.__version__} takes no other flash attention than its own; "
            "call tilewright.torch.install"
        )

    def activate() -> _Active:
        active = _Active(Overrides(_key))
        put(active.overrides, Decisions("all"))
        return active

    register(NAME, register_fn=activate)


DEBUG = "the debug mask is asked for"


def why_not(q: Any, k: Any, v: Any, rows: int, dropout_p: float, causal: bool, *more: Any) -> str:
    """Why torch keeps a call; ``""`` if it may be ours.

    rows: the dimension of Q's and K's rows, where each sequence has as many.
    more: other tensors.
    """
    if dropout_p:
        return "there is dropout"
    tensors = (q, k, v, *more)
    if any(x.dtype is not q.dtype for x in tensors):
        return "operands are of several dtypes"
    if any(x.stride(-1) != 1 or 0 in x.shape for x in tensors):
        return "an operand is empty, or its last dimension is not contiguous"
    if q.shape[-1] != v.shape[-1]:
        return "head dimensions differ"
    if causal and rows and q.shape[rows] > k.shape[rows]:
        return "queries see no key, of which torch has another logsumexp"
    return ""


def _random(device: Any) -> tuple[Any, Any]:
    """The random state of a call without dropout, which nothing reads."""
    if torch.version.hip:
        return tuple(torch.empty((), dtype=torch.int64, device=device) for _ in range(2))  # type: ignore[return-value]
    shapes: tuple[tuple[int, ...], ...] = (2,), ()
    first, second = (torch.empty(s, dtype=torch.uint64, device=device) for s in shapes)
    return first, second


def gradients(made: tuple[Any, ...], *_: Any, **__: Any) -> tuple[Any, ...]:
    return made


def readable(x: Any) -> Any:
    """A gradient that arrives, or a copy of it where rows are not contiguous or share memory."""
    apart = all(stride or size == 1 for size, stride in zip(x.shape, x.stride(), strict=True))
    return x if x.stride(-1) == 1 and apart else x.contiguous()


def like(*tensors: Any) -> tuple[Any, ...]:
    return tuple(map(torch.empty_like, tensors))


# --- [batch, heads, rows, dim] -------------------------------------------------------------------


def _forward(
    q: Any,
    k: Any,
    v: Any,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Asked | str:
    if return_debug_mask:
        return DEBUG
    if why := why_not(q, k, v, 2, dropout_p, is_causal):
        return why
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    said = {"layout": "bhsd", "causal": is_causal, "lse": True, "scale": scale}
    return Asked("attention", (q, k, v), said, (torch.empty_like(q), lse))


def _results(made: tuple[Any, ...], q: Any, k: Any, *_: Any, **__: Any) -> tuple[Any, ...]:
    out, lse = made
    random = _random(q.device)
    debug = torch.empty(0, dtype=q.dtype, device=q.device)
    return out, lse, None, None, q.shape[2], k.shape[2], *random, debug


def _backward(
    do: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Any,
    philox_offset: Any,
    *,
    scale: float | None = None,
) -> Asked | str:
    do = readable(do)
    if why := why_not(q, k, v, 2, dropout_p, is_causal, o, do):
        return why
    said = {"layout": "bhsd", "causal": is_causal, "scale": scale}
    return Asked("attention_backward", (q, k, v, o, lse.contiguous(), do), said, like(q, k, v))


# --- [batch, rows, heads, dim], and packed rows --------------------------------------------------


def _packed(cum_seq_q: Any, cum_seq_k: Any, max_q: int, max_k: int) -> dict[str, Any]:
    """What a call says of packed rows."""
    if cum_seq_q is None:
        return {}
    return {"q_offsets": cum_seq_q, "kv_offsets": cum_seq_k, "max_q": max_q, "max_kv": max_k}


def _window(is_causal: bool, left: int | None, right: int | None) -> dict[str, Any]:
    """What a call says of its mask. Torch's -1 sets no bound."""
    ends = tuple(None if n is None or n < 0 else n for n in (left, right))
    window = (ends[0], None) if is_causal else ends
    return {"causal": is_causal, "window": window}


def _forward_rows(
    q: Any,
    k: Any,
    v: Any,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    **more: Any,
) -> Asked | str:
    if return_debug_mask:
        return DEBUG
    if any(x is not None for x in more.values()):
        return "there are pages, used lengths, slopes, or a number of splits"
    packed = cum_seq_q is not None
    if why := why_not(q, k, v, 0 if packed else 1, dropout_p, is_causal):
        return why
    said = _packed(cum_seq_q, cum_seq_k, max_q, max_k)
    said |= _window(is_causal, window_size_left, window_size_right)
    said |= {"lse": True, "scale": scale}
    shape = (q.shape[1], q.shape[0]) if packed else (q.shape[0], q.shape[2], q.shape[1])
    lse = torch.empty(shape, dtype=torch.float32, device=q.device)
    return Asked("attention", (q, k, v), said, (torch.empty_like(q), lse))


def _results_rows(made: tuple[Any, ...], q: Any, *_: Any, **__: Any) -> tuple[Any, ...]:
    return *made, *_random(q.device), torch.empty(0, dtype=q.dtype, device=q.device)


def _backward_rows(
    do: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    rng_state: Any,
    unused: Any,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> Asked | str:
    do = readable(do)
    packed = cum_seq_q is not None
    if why := why_not(q, k, v, 0 if packed else 1, dropout_p, is_causal, o, do):
        return why
    said = _packed(cum_seq_q, cum_seq_k, max_q, max_k)
    said |= _window(is_causal, window_size_left, window_size_right)
    said |= {"scale": scale}
    return Asked("attention_backward", (q, k, v, o, lse.contiguous(), do), said, like(q, k, v))
