"""Which problems share a row of a table, and which rows may answer for other problems.

A kernel serves every size of its signature and alignment. So a row may answer for other batches and
sizes of the image; the best tile depends on them slowly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilewright.ops.conv import stated
from tilewright.ops.conv.geometry import whole_padding
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.nearby import Nearby
from tilewright.ops.problem import changed


def tuning_key(p: ConvProblem) -> ConvProblem:
    """`p` with one value in each field that does not decide which kernel is best: padding behind x
    that no pixel reaches, and gaps between rows of arrays whose channels are innermost and as
    aligned as they would be without gaps. Its own key is itself."""
    return p.once(_tuning_key)


def _tuning_key(p: ConvProblem) -> ConvProblem:
    after = p.pad_after if 0 in p.out_sizes else tuple(map(whole_padding, p.dims))
    padded = p if after == p.pad_after else changed(p, {"pad_after": after})
    if not any(getattr(p, name) for name in stated.STRIDES):
        return padded
    gaps: dict[str, Any] = dict.fromkeys(stated.STRIDES, ())
    plain = changed(padded, gaps)
    alike = all(plain.rows_alignment(name) == p.rows_alignment(name) for name in "xwy")
    return plain if alike else padded


def nearby(p: ConvProblem) -> Iterator[Nearby]:
    """The problem with its batch rounded up to a power of two, and then its sizes too."""
    key = tuning_key(p)
    if any(getattr(key, name) for name in stated.STRIDES):
        return
    n, spatial = _power(key.n), tuple(map(_power, key.spatial))
    more = key if n == key.n else changed(key, {"n": n})
    if more != key:
        yield Nearby(more, f"batch padded to {n}")
    if spatial != key.spatial:
        larger = tuning_key(changed(more, {"spatial": spatial, "pad_after": p.pad_after}))
        yield Nearby(larger, f"batch padded to {n}, pixels to {stated.by(spatial)}")


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length() if size > 1 else size
