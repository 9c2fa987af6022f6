"""Which keys each row of a sequence sees in HSTU's attention, and the weights, for references."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from tilewright.declared._arrays import functions


def seen(n: int, targets: int, problem: Any, xp: Any, like: Any) -> Any:
    """[n, n]: whether row i of a sequence of `n` rows sees row j.

    A row sees itself. Beside itself it sees rows of the history alone, which is all before the
    targets: rows of the prefix see all of it, other rows what is before them and no farther than
    `max_attn_len` places. The prefix is one place together, and so are the targets; the last
    `min_full_attn_seq_len` rows of the history, and the targets beside them, see any distance.

    targets: rows at the end that are targets, at most all behind the prefix.
    like: an array on the device where the result is wanted.
    """
    prefix = min(n, problem.contextual_seq_len) if problem.causal else n
    history = n - min(max(targets, 0), n - prefix)
    at = _numbers(n, xp, like)
    i, j = at[:, None], at[None, :]
    earlier = j < i
    if problem.max_attn_len:
        before = max(prefix - 1, 0)
        place = (at - before).clip(0, history - before)
        near = place[:, None] - place[None, :] <= problem.max_attn_len
        if problem.min_full_attn_seq_len:
            near = near | (i >= history - problem.min_full_attn_seq_len)
        earlier = earlier & near
    return ((earlier | (i < prefix)) & (j < history)) | (i == j)


def _numbers(n: int, xp: Any, like: Any) -> Any:
    return xp.arange(n, device=like.device) if hasattr(like, "device") else xp.arange(n)


def sequences(offsets: Any, num_targets: Any, rows: int) -> Iterator[tuple[int, int, int]]:
    """The first row, the number of rows and the number of targets of each sequence, of numbers that
    are read within what the operands hold."""
    read = [min(max(int(x), 0), rows) for x in offsets.tolist()]
    counts = [0] * (len(read) - 1) if num_targets is None else num_targets.tolist()
    for (begin, end), count in zip(pairwise(read), counts, strict=True):
        yield begin, max(end - begin, 0), int(count)


def tiles(
    q: Any, k: Any, offsets: Any, num_targets: Any, alpha: float, problem: Any
) -> Iterator[tuple[Any, int, Any, Any, Any]]:
    """For each sequence and head: its rows, the head, the scores, 1 / (1 + exp(-scores)), and
    which keys are seen, 1 or 0."""
    xp = functions(q)
    for begin, n, targets in sequences(offsets, num_targets, problem.rows):
        rows = slice(begin, begin + n)
        mask = seen(n, targets, problem, xp, q) * 1.0
        for h in range(problem.heads):
            s = alpha * (q[rows, h] @ k[rows, h].T)
            yield rows, h, s, 1.0 / (1.0 + xp.exp(-s)), mask
