"""GEMMs over one more dimension as one batch."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ops import epilogues
from tilewright.ops.gemm.operands import SCALES
from tilewright.ops.joined import FRONT, Joined
from tilewright.ops.nouns import Call

_OTHERWISE = ("equation", "batching", "pre_a", "pre_b", "dtype_a", "dtype_b", *SCALES)
"""Options of calls whose operands are not matrices with a batch in front of them."""


def joined(call: Call, apart: Sequence[bool]) -> Joined | None:
    """See `tilewright.ops.protocols.Launching`. Single matrices become a batch, batches a larger
    one; a matrix that all calls share is shared by the batch."""
    views = (*call.inputs, *call.named.values())
    if any(call.options.get(name) for name in _OTHERWISE):
        return None
    if any(len(x.shape) not in (2, 3) or x.pointers for x in call.inputs[:2]):
        return None
    taken = epilogues.takes(call.options.get("epilogue", ""))
    names = epilogues.chain_names(call.options.get("epilogue", ""))
    kinds = [t.kind for t, name in zip(taken, names, strict=True) if name not in call.named]
    by_name = dict(zip(names, (t.kind for t in taken), strict=True))
    kinds = ["d", "d", *kinds, *(by_name.get(name, "") for name in call.named)]
    if len(kinds) != len(views):
        return None
    rank = max(len(x.shape) for x in call.inputs[:2])
    batch = max(x.shape[0] for x in call.inputs[:2] if len(x.shape) == rank)
    places: list[int | None] = []
    for view, kind, differs in zip(views, kinds, apart, strict=True):
        if rank == 2 and differs and kind == "d" and len(view.shape) == 2:
            places.append(FRONT)
        elif rank == 3 and kind == "d" and len(view.shape) == 3 and view.shape[0] == batch:
            places.append(0)
        elif differs:
            return None
        else:
            places.append(None)
    return Joined(tuple(places), (FRONT if rank == 2 else 0,))
