"""`DescribedMask`: a boolean mask that says what it is, and is computed only where it has to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

_KEEPING = (torch.ops.aten.detach.default, torch.ops.aten._to_copy.default)
"""Operations whose result is described as well, unless it is of another dtype."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a described mask shows, but for its numbers on the device.

    left, right: how many keys beside its own place a query sees; None for no bound.
    top_left: the first query is in the place of the first key; else the last one in that of the
        last.
    longest: of packed sequences, the most tokens of one; 0 for none packed.
    plain: ``sdpa`` would have no mask, so a module that is not causal sees all keys.
    """

    left: int | None
    right: int | None
    top_left: bool = False
    longest: int = 0
    plain: bool = False


class DescribedMask(torch.Tensor):
    """A mask [batch, 1, queries, keys]: of bool, True for keys that a query sees; of another dtype,
    0 for these keys and the least number for others.

    An operation of torch computes that tensor first, and works on it. Our attention reads these
    fields instead:

    seen: see `Seen`.
    used: int32 [batch], keys that each sequence has, of which the last is in the last query's
        place unless `seen.top_left`; None for all.
    left_pad: int32 [batch], the first keys of each that are hidden; None for none.
    offsets: int32 [sequences + 1], where sequences begin that are packed into the rows of the
        batch, one row behind another; None for none.
    anchor: a tensor without elements: torch traces no class of tensors that holds none.
    """

    seen: Seen
    anchor: Any
    used: Any
    left_pad: Any
    offsets: Any

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(
        cls: type[DescribedMask],
        shape: tuple[int, ...],
        device: Any,
        seen: Seen,
        dtype: Any = torch.bool,
        used: Any = None,
        left_pad: Any = None,
        offsets: Any = None,
        anchor: Any = None,
    ) -> DescribedMask:
        made: DescribedMask = torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=dtype, device=device
        )
        made.seen, made.used, made.left_pad, made.offsets = seen, used, left_pad, offsets
        made.anchor = torch.empty(0, device=device) if anchor is None else anchor
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"DescribedMask({tuple(self.shape)}, {self.seen})"

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        names = ("anchor", "used", "left_pad", "offsets")
        return [name for name in names if getattr(self, name) is not None], (self.seen, self.dtype)

    @staticmethod
    def __tensor_unflatten__(inner: Any, said: Any, size: Any, stride: Any) -> DescribedMask:
        seen, dtype = said
        return DescribedMask(size, inner["anchor"].device, seen, dtype, **inner)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _KEEPING and kwargs.get("dtype") in (None, args[0].dtype):
            (mask,) = args
            inner, said = mask.__tensor_flatten__()
            device = kwargs.get("device") or mask.device
            parts = {name: getattr(mask, name).detach().to(device) for name in inner}
            return cls.__tensor_unflatten__(parts, said, mask.shape, None)
        args, kwargs = tree_map_only(cls, cls.computed, (args, kwargs))
        return func(*args, **kwargs)

    def computed(self) -> Any:
        """The mask as a plain tensor of the same dtype."""
        shown = self.exact()
        if self.dtype == torch.bool:
            return shown
        zero = torch.zeros((), dtype=self.dtype, device=self.device)
        return torch.where(shown, zero, torch.finfo(self.dtype).min)

    def exact(self) -> Any:
        """bool [batch, 1, queries, keys]: True for keys that a query sees."""
        batch, _, n_q, n_kv = self.shape
        query = torch.arange(n_q, device=self.device)[:, None]
        key = torch.arange(n_kv, device=self.device)
        if self.offsets is not None:
            rows = torch.arange(batch * n_q, device=self.device)
            number = torch.searchsorted(self.offsets[1:], rows, right=True).view(batch, n_q)
            shown = (number[:, :, None] == number[:, None, :])[:, None]
        else:
            shown = torch.ones(batch, 1, 1, n_kv, dtype=torch.bool, device=self.device)
        used = None if self.used is None else self.used[:, None, None, None]
        if used is not None:
            shown = shown & (key < used)
        if self.left_pad is not None:
            shown = shown & (key >= self.left_pad[:, None, None, None])
        place = query if self.seen.top_left else query + (n_kv if used is None else used) - n_q
        if self.seen.right is not None:
            shown = shown & (key <= place + self.seen.right)
        if self.seen.left is not None:
            shown = shown & (key >= place - self.seen.left)
        return shown.expand(batch, 1, n_q, n_kv)
