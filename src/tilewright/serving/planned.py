"""What plans of every kind share: how they say a mask, and how they are run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from tilewright.errors import BadArgument, shown
from tilewright.flash_attn import checked
from tilewright.flash_attn.words import scaled, written
from tilewright.operation import again, alike, operation, remember, scalars
from tilewright.serving.buffers import Buffers, Capacity, between, host_offsets
from tilewright.serving.masks import bias

attention = operation("attention")
"""`tilewright.attention`."""

LAYOUTS = {"NHD": "bshd", "HND": "bhsd"}


class Planned:
    """A class of plans.

    device: a torch device, or its name.
    capacity: for CUDA graphs; None where each plan makes its arrays anew.
    """

    def __init__(self, device: Any, capacity: Capacity | None = None) -> None:
        self._buffers = Buffers(device, capacity)
        self._fixed: Mapping[str, Any] | None = None
        self._words: Mapping[str, Any] = {}
        self._lengths: dict[str, Any] = {}
        self._arrays: dict[str, Any] = {}
        self._what: object = None
        self._scalars: tuple[int | float | None, ...] = ()
        self._rows = 0
        self._scales: dict[float, Any] = {}

    def _fix(self, words: Mapping[str, Any], **shape: Any) -> None:
        """Keep what a plan says besides lengths.

        words: of `tilewright.attention`. shape: what operands are checked against.
        """
        fixed = {**words, **shape}
        if self._buffers.capacity is not None and self._fixed not in (None, fixed):
            assert self._fixed is not None
            changed = [name for name in fixed if fixed[name] != self._fixed[name]]
            raise BadArgument(
                f"this plan has another {', '.join(changed)} than the first, which a captured "
                "graph would not see; use another object"
            )
        self._fixed, self._words, self._lengths, self._what = fixed, words, {}, None

    def _lay(self, lengths: dict[str, Any]) -> None:
        """Keep the words that say lengths and places, which end a plan."""
        numbers = {name: n for name, n in lengths.items() if isinstance(n, int)}
        self._arrays = {name: x for name, x in lengths.items() if name not in numbers}
        words = (*(self._fixed or {}).items(), *numbers.items())
        what = alike(type(self).__name__, *self._arrays, *words)
        self._what = None if what is None else _one(what)
        self._scalars = scalars("attention", scale=self._words["scale"])
        self._lengths = lengths

    @property
    def _plan(self) -> Mapping[str, Any]:
        if self._fixed is None or not self._lengths:
            raise BadArgument("nothing is planned; call plan() before run()")
        return self._fixed

    def _queries(self, qo_indptr: Any, batch: int) -> tuple[dict[str, int], dict[str, list[int]]]:
        """The words that say where queries lie, numbers and arrays; none where each sequence has
        one."""
        if qo_indptr is None:
            self._rows = self._buffers.batch(batch)
            return {}, {}
        starts = host_offsets("qo_indptr", qo_indptr)
        if len(starts) != batch + 1:
            raise BadArgument(f"qo_indptr has {len(starts)} entries beside {batch} sequences")
        self._rows = self._buffers.rows(starts[-1])
        longest = self._buffers.most("max_q", between(starts))
        return {"max_q": longest}, {"q_offsets": self._buffers.padded(starts)}

    def _mask(
        self,
        qo_indptr: Any,
        used: list[int],
        lengths: Mapping[str, Any],
        custom_mask: Any,
        packed_custom_mask: Any,
    ) -> dict[str, Any]:
        """The word that says a plan's own mask.

        used: keys of each sequence. lengths: the words that say lengths.
        """
        queries = [1] * len(used)
        if qo_indptr is not None:
            queries = between(host_offsets("qo_indptr", qo_indptr))
        each = list(zip(queries, used, strict=True))
        most = lengths.get("max_q", 1), lengths["max_kv"]
        return {"bias": bias(self._buffers, each, most, custom_mask, packed_custom_mask)}

    def _check(self, name: str, x: Any, *row: int) -> None:
        """Raise `BadArgument` unless `x` is a tensor with this shape behind its first dimension."""
        checked.tensor(name, x)
        if x.shape[1:] != row:
            wanted = ", ".join(map(str, row))
            raise BadArgument(f"{name} is {list(x.shape)}, but the plan has [any, {wanted}]")

    def _scaled(self, q: Any, k: Any, **given: Any) -> dict[str, Any]:
        """Scales of fp8 operands, as arrays on the device."""
        if all(value is None for value in given.values()):
            return {}
        return scaled(q, k, **{name: self._scale(name, value) for name, value in given.items()})

    def _scale(self, name: str, value: Any) -> Any:
        """A number's array is kept, so that a graph may read it again."""
        import torch

        if value is None or isinstance(value, torch.Tensor):
            return value
        value = checked.number(name, value)
        kept = self._scales.get(value)
        if kept is None:
            kept = torch.full((1,), value, dtype=torch.float32, device=self._buffers.device)
            self._scales[value] = kept
        return kept

    def _again(self, given: tuple[Any, ...], kind: tuple[bool, ...]) -> Any:
        """What a call like an earlier one makes (see `tilewright.operation.again`); None if it has
        to be made by `_run`.

        given: q first; the cache; sinks; out.
        kind: what else the call says.
        """
        if self._what is None:
            return None
        try:
            if "q_offsets" in self._arrays and given[0].shape[:1] < (self._rows,):
                return None  # else `q` has a row for each length, as it had then
        except AttributeError:  # no tensor
            return None
        return again((self._what, *kind), (*given, *self._arrays.values()), self._scalars)

    def _run(
        self,
        q: Any,
        cache: tuple[Any, ...],
        words: Mapping[str, Any],
        out: Any,
        return_lse: bool,
        given: tuple[Any, ...] | None,
        kind: tuple[bool, ...],
    ) -> Any:
        """Call `tilewright.attention` with the plan's words. Returns O [rows, heads, dim], and LSE
        [rows, heads].

        given, kind: as for `_again`; None for a call that is not to be repeated.
        """
        return_lse = checked.flag("return_lse", return_lse)
        checked.given("sinks", words.get("sinks"), "num_qo_heads")
        checked.given("out", out, "rows", "heads", "dim")
        packed = "q_offsets" in self._lengths
        if len(q) < self._rows or (len(q) > self._rows and not packed):
            raise BadArgument(f"q has {len(q)} rows, but the plan has {self._rows}")
        passed = out
        if not packed:
            q, out = q.unsqueeze(1), None if out is None else out.unsqueeze(1)
        said = {**self._words, **self._lengths, **words, "lse": return_lse or None}
        outputs = written(attention, (q, *cache), said, out)
        if not return_lse:
            outputs = (outputs,)
        o = outputs[0] if packed else outputs[0].squeeze(1)
        made = [o if passed is None else passed]
        if return_lse:
            made.append(outputs[1].T if packed else outputs[1].squeeze(2))
        if given is not None and self._what is not None and not (return_lse and out is not None):
            remember(
                (self._what, *kind),
                (*given, *self._arrays.values()),
                ("sinks", "out", *self._arrays),
                "attention",
                (q, *cache),
                said,
                outputs,
                made if out is None else (None,),
            )
        return tuple(made) if return_lse else made[0]


@lru_cache(maxsize=1024)
def _one(what: tuple[Any, ...]) -> object:
    """One object for equal plans, which takes less time to look up than what they say."""
    return object()


def check_layout(kv_layout: Any) -> None:
    """Raise `BadArgument` unless it is one of `LAYOUTS`."""
    if not isinstance(kv_layout, str) or kv_layout not in LAYOUTS:
        raise BadArgument(f"kv_layout = {shown(kv_layout)} is neither NHD nor HND")


def cache_parts(paged_kv_cache: Any) -> tuple[Any, Any]:
    """Keys and values of a cache in pages. Raises `BadArgument` unless they are two arrays, or one
    of both, [pages, 2, …]."""
    if isinstance(paged_kv_cache, tuple | list):
        if len(paged_kv_cache) != 2:
            raise BadArgument(
                f"paged_kv_cache has {len(paged_kv_cache)} parts, not two: keys and values"
            )
        keys, values = paged_kv_cache
        return keys, values
    checked.tensor("paged_kv_cache", paged_kv_cache)
    if paged_kv_cache.ndim != 5 or paged_kv_cache.shape[1] != 2:
        raise BadArgument(f"paged_kv_cache is {list(paged_kv_cache.shape)}, not [pages, 2, …]")
    keys, values = paged_kv_cache.unbind(1)
    return keys, values


def masked(causal: Any, window_left: Any, logits_soft_cap: Any, sm_scale: Any) -> dict[str, Any]:
    """What is computed, in the words of `tilewright.attention`."""
    right = 0 if checked.flag("causal", causal) else None
    left: int | None = checked.count("window_left", window_left, -1)
    left = None if left == -1 else left
    cap = 0.0 if logits_soft_cap is None else checked.number("logits_soft_cap", logits_soft_cap)
    if cap < 0:
        raise BadArgument(f"logits_soft_cap = {cap} is under 0; pass None for no cap")
    return {
        "window": None if (left, right) == (None, None) else (left, right),
        "softcap": cap or None,
        "scale": None if sm_scale is None else checked.number("sm_scale", sm_scale),
    }


def sizes(**given: Any) -> dict[str, int]:
    """Sizes that a plan says, each of 1 or more."""
    return {name: checked.count(name, value, 1) for name, value in given.items()}


def heads(num_qo_heads: Any, num_kv_heads: Any, head_dim: Any, head_dim_vo: Any) -> dict[str, int]:
    """Sizes of heads that a plan says."""
    found = sizes(num_qo_heads=num_qo_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
    if found["num_qo_heads"] % found["num_kv_heads"]:
        raise BadArgument(
            f"num_qo_heads = {num_qo_heads} is no multiple of num_kv_heads = {num_kv_heads}"
        )
    if head_dim_vo is None:
        return {**found, "head_dim_vo": found["head_dim"]}
    return {**found, **sizes(head_dim_vo=head_dim_vo)}
