"""Forms of rotary embeddings."""

from __future__ import annotations

from typing import Any

import torch

from forms.common import clipped, kind
from tilewright.dtypes import DTYPES


def _angles(tokens: int, cos: Any, sin: Any, positions: Any, inverse: bool) -> tuple[Any, Any]:
    if positions is None:
        positions = torch.arange(tokens, device=cos.device) % len(cos)
    c, s = cos[positions][:, None], sin[positions][:, None]
    return c, -s if inverse else s


def _turned(x: Any, c: Any, s: Any, form: str) -> Any:
    pairs = c.shape[-1]
    front, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    if form == "half":
        a, b = front.chunk(2, -1)
        made = torch.cat((a * c - b * s, b * c + a * s), -1)
    else:
        a, b = front[..., ::2], front[..., 1::2]
        made = torch.stack((a * c - b * s, b * c + a * s), -1).flatten(-2)
    made = made.to(x.dtype)
    return made if not rest.shape[-1] else torch.cat((made, rest), -1)


def rotary(q: Any, k: Any, cos: Any, sin: Any, positions: Any, form: str, inverse: bool) -> Any:
    c, s = _angles(len(q), cos, sin, positions, inverse)
    return _turned(q, c, s, form), _turned(k, c, s, form)


def rotary_in_place(
    q: Any, k: Any, cos: Any, sin: Any, positions: Any, form: str, inverse: bool
) -> Any:
    c, s = _angles(len(q), cos, sin, positions, inverse)
    q.copy_(_turned(q, c, s, form))
    k.copy_(_turned(k, c, s, form))


def rotary_paged(
    q: Any, k: Any, v: Any, cos: Any, sin: Any, key_cache: Any, value_cache: Any, slots: Any,
    positions: Any, k_scale: Any, v_scale: Any, form: str, cache_dtype: str,
) -> Any:  # fmt: skip
    c, s = _angles(len(q), cos, sin, positions, False)
    q.copy_(_turned(q, c, s, form))
    size = key_cache.shape[1]
    written = (slots >= 0) & (slots < len(key_cache) * size)
    # A token that is not written writes what the first written one does, to its slot: no shape
    # then depends on values.
    token = torch.where(written, torch.arange(len(slots), device=q.device), written.int().argmax())
    to = slots[token]
    made = ((key_cache, _turned(k, c, s, form), k_scale), (value_cache, v, v_scale))
    for cache, new, scale in made:
        new = new if scale is None else new.float() / scale
        narrow = DTYPES[cache_dtype].bytes == 1
        new = clipped(new.float(), cache_dtype) if narrow else new.to(kind(cache_dtype))
        if narrow:
            cache, new = cache.view(torch.uint8), new.view(torch.uint8)
        cache[to // size, to % size] = new[token]


FORMS = {
    "rotary": rotary,
    "rotary_in_place": rotary_in_place,
    "rotary_paged": rotary_paged,
}
