"""Which problems share a row of a table, and which rows may answer for other problems.

A kernel serves every size of its signature and alignment. So a row may answer for other batches and
sizes of the image; the best tile depends on them slowly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tilewright.ops.conv import stated
from tilewright.ops.conv.geometry import whole_padding
from tilewright.ops.conv.problem import ConvProblem
from tilewright.ops.nearby import Nearby


def tuning_key(p: ConvProblem) -> ConvProblem:
    """`p` with one value in each field that does not decide which kernel is best: padding behind x
    that no pixel reaches, and gaps between rows of arrays whose channels are innermost and as
    aligned as they would be without gaps."""
    fields: dict[str, Any] = {}
    if 0 not in p.out_sizes:
        fields["pad_after"] = tuple(map(whole_padding, p.dims))
    plain = replace(p, **fields | dict.fromkeys(stated.STRIDES, ()))
    if all(plain.rows_alignment(name) == p.rows_alignment(name) for name in "xwy"):
        return plain
    return replace(p, **fields)


def nearby(p: ConvProblem) -> Iterator[Nearby]:
    """The problem with its batch rounded up to a power of two, and then its sizes too."""
    key = tuning_key(p)
    if any(getattr(key, name) for name in stated.STRIDES):
        return
    more = replace(key, n=_power(key.n))
    if more != key:
        yield Nearby(more, f"batch padded to {more.n}")
    spatial = tuple(map(_power, key.spatial))
    larger = tuning_key(replace(more, spatial=spatial, pad_after=p.pad_after))
    if larger not in (key, more):
        yield Nearby(larger, f"batch padded to {more.n}, pixels to {stated.by(spatial)}")


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length() if size > 1 else size
