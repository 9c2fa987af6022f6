"""What references of choosing have in common, of NumPy arrays and torch tensors."""

from __future__ import annotations

from typing import Any

from tilewright.declared._arrays import functions


def largest(x: Any, k: int) -> Any:
    """The places of the `k` largest of each row of `x` [rows, columns], the largest first; of equal
    ones the lowest first. NaN is above all, as for torch."""
    f = functions(x)
    if f.__name__ == "torch":
        return f.sort(x, dim=-1, descending=True, stable=True).indices[:, :k]
    return f.lexsort((-x, ~f.isnan(x)), axis=-1)[:, :k]


def taken(x: Any, places: Any) -> Any:
    """The elements of each row at these places."""
    if functions(x).__name__ == "torch":
        return x.gather(-1, places)
    return functions(x).take_along_axis(x, places, -1)


def one_hot(places: Any, columns: int) -> Any:
    """Whether each column [rows, k, columns] is at a place [rows, k]."""
    f = functions(places)
    more = {"device": places.device} if f.__name__ == "torch" else {}
    return places[:, :, None] == f.arange(columns, **more)


def softmax(x: Any) -> Any:
    """Of each row."""
    f = functions(x)
    powers = f.exp(x - f.amax(x, axis=-1)[:, None])
    return powers / powers.sum(-1)[:, None]


def filled(like: Any, count: int, value: int) -> Any:
    """`count` numbers, all of this value, of the type of `like`."""
    f = functions(like)
    if f.__name__ == "torch":
        return like.new_full((count,), value)
    return f.full(count, value, like.dtype)


def numbers(like: Any, count: int) -> Any:
    """0, 1, 2 … of the type of `like`."""
    return filled(like, count, 1).cumsum(0) - 1


def stable_order(x: Any) -> Any:
    """The places of elements in ascending order; equal ones in the order in which they are."""
    f = functions(x)
    return f.argsort(x, stable=True) if f.__name__ == "torch" else f.argsort(x, kind="stable")


def places(problem: Any, rng: Any) -> Any:
    """Places, no two alike but those of choices that no expert here serves: one in eight."""
    import numpy as np

    count = problem.tokens * problem.k
    made = np.full(max(count, problem.slots), -1)
    made[: problem.slots] = rng.permutation(problem.slots)
    made = rng.permutation(made)[:count]
    made[rng.random(count) < 1 / 8] = -1
    return made.reshape(problem.tokens, problem.k)
