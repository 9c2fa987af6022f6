"""Padding taken out of a batch and put back, as FlashAttention's ``flash_attn.bert_padding`` does.
Torch computes it, with gradients of any order."""

from __future__ import annotations

from typing import Any

from tilewright.errors import BadArgument
from tilewright.flash_attn import checked


def index_first_axis(input: Any, indices: Any) -> Any:
    """``input[indices]``: [count, …].

    input: [rows, …], of any dtype.
    indices: int32 or int64 [count], from 0 to under rows. On a GPU, torch's own assertion stops
        others.

    Raises `BadArgument` and `WrongDevice`.
    """
    _rows("input", input)
    _indices(indices, len(input))
    checked.together(input=input, indices=indices)
    return input.index_select(0, indices)


def index_put_first_axis(values: Any, indices: Any, first_axis_dim: int) -> Any:
    """Zeros [first_axis_dim, …], with `values` written at `indices`.

    values: [count, …], of any dtype. indices: int32 or int64 [count], no two alike.

    Raises `BadArgument` and `WrongDevice`.
    """
    _rows("values", values)
    rows = checked.count("first_axis_dim", first_axis_dim)
    _indices(indices, rows)
    if len(indices) != len(values):
        raise BadArgument(f"indices is {list(indices.shape)}, but must be [{len(values)}]")
    checked.together(values=values, indices=indices)
    return values.new_zeros((rows, *values.shape[1:])).index_copy(0, indices.long(), values)


def unpad_input(
    hidden_states: Any, attention_mask: Any, unused_mask: Any = None
) -> tuple[Any, Any, Any, int, Any]:
    """The rows of a padded batch that a mask says: (rows [total, …], indices int64 [total],
    cu_seqlens int32 [batch + 1], max_seqlen_in_batch, seqused int32 [batch]).

    hidden_states: [batch, seqlen, …], of any dtype.
    attention_mask: [batch, seqlen], bool or integers: 1 for a token, 0 for padding.
    unused_mask: as attention_mask, further rows that are kept and not used; `seqused` counts
        without them.

    FlashAttention before 2.7 returns the first four. The host waits for the mask. Raises
    `BadArgument` and `WrongDevice`.
    """
    import torch

    checked.tensor("hidden_states", hidden_states)
    kinds = ("bool", "uint8", "int8", "int16", "int32", "int64")
    checked.tensor("attention_mask", attention_mask, "batch", "seqlen", kinds=kinds)
    checked.given("unused_mask", unused_mask, "batch", "seqlen", kinds=kinds)
    masks = {"attention_mask": attention_mask}
    if unused_mask is not None:
        masks["unused_mask"] = unused_mask
    for name, mask in masks.items():
        if hidden_states.shape[:2] != mask.shape:
            raise BadArgument(
                f"{name} is {list(mask.shape)}, but must be {list(hidden_states.shape[:2])}, as "
                "hidden_states begins"
            )
    checked.together(hidden_states=hidden_states, **masks)
    kept = torch.stack([mask != 0 for mask in masks.values()]).any(0)
    lengths = kept.sum(-1, dtype=torch.int32)
    indices = kept.flatten().nonzero().flatten()
    offsets = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    longest = int(lengths.max()) if len(lengths) else 0
    used = (attention_mask != 0).sum(-1, dtype=torch.int32)
    rows = hidden_states.flatten(0, 1).index_select(0, indices)
    return rows, indices, offsets, longest, used


def pad_input(hidden_states: Any, indices: Any, batch: int, seqlen: int) -> Any:
    """[batch, seqlen, …], with the rows at their places and zeros elsewhere: what `unpad_input`
    undoes.

    hidden_states: [total, …], of any dtype. indices: int32 or int64 [total], places in the batch's
        rows, no two alike.

    Raises `BadArgument` and `WrongDevice`.
    """
    batch, seqlen = checked.count("batch", batch), checked.count("seqlen", seqlen)
    rows = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return rows.unflatten(0, (batch, seqlen))


def _rows(name: str, x: Any) -> None:
    checked.tensor(name, x)
    if not x.ndim:
        raise BadArgument(f"{name} is a number, but must be [rows, …]")


def _indices(indices: Any, rows: int) -> None:
    checked.tensor("indices", indices, "count", kinds=checked.INTEGERS)
    if indices.device.type != "cpu" or not len(indices):
        return  # to look at them would wait for the device
    least, largest = int(indices.min()), int(indices.max())
    if least < 0 or largest >= rows:
        raise BadArgument(
            f"indices has {least if least < 0 else largest}, but the rows are 0 to {rows - 1}"
        )
