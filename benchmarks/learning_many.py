"""Many kernels of each problem, where few kernels can be built: which problems and which kernels.

Problems share kernels, of one space more than of different ones. So problems are taken one after
another, each kind in turn and of a kind the one that lacks the fewest kernels, until no more may be
built. Among those taken then chance decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.measure.designs import Design, choose


def covered(
    ranked: Mapping[Any, Sequence[Any]],
    kind: Callable[[Any], str],
    design: Design,
    built: int,
    count: int,
) -> list[tuple[Any, tuple[Any, ...]]]:
    """At most `count` problems, as many of each kind as can be, each with exactly `design.count`
    kernels, of which all problems together have at most `built`.

    ranked: the kernels of each problem, the estimate's first one first; problems in the order in
        which they are preferred. A problem of fewer kernels than `design.count` is not taken.

    The problems are in an order in which few kernels are to be built for the next one.
    """
    left: dict[str, dict[Any, Sequence[Any]]] = {}
    for problem, order in ranked.items():
        if len(order) >= design.count:
            left.setdefault(kind(problem), {})[problem] = order
    served = Counter(
        kernel for some in left.values() for order in some.values() for kernel in order
    )
    of = {problem: {*order} for some in left.values() for problem, order in some.items()}
    firsts = {problem: {*ranked[problem][: design.first]} for problem in of}
    kept: set[Any] = set()
    taken: list[Any] = []

    def lacking(problem: Any) -> int:
        have = (of[problem] & kept) | firsts[problem]
        return len(firsts[problem] - kept) + max(0, design.count - len(have))

    while left:
        for name in [*left]:
            best = min(left[name], key=lacking)
            if len(kept) + lacking(best) > built:
                del left[name]
                continue
            kept |= firsts[best]
            others = sorted(of[best] - kept, key=lambda kernel: (-served[kernel], kernel.name))
            kept |= {*others[: max(0, design.count - len(of[best] & kept))]}
            taken.append(best)
            del left[name][best]
            if not left[name]:
                del left[name]
    before: Counter[str] = Counter()
    turn: dict[Any, int] = {}
    known = {*taken}
    for problem in (p for p in ranked if p in known):
        turn[problem] = before[kind(problem)]
        before[kind(problem)] += 1
    few = {*sorted(turn, key=turn.__getitem__)[:count]}
    return [(p, choose(ranked[p], kept, design)) for p in taken if p in few]
