"""What is known to be torch's is passed on: `passing.h`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Set
from typing import Any


def passing(
    switch: Callable[[], bool],
    kind: Callable[[tuple[Any, ...], Mapping[str, Any]], Hashable],
    passed: Set[Hashable],
    original: Callable[..., Any],
    ours: Callable[..., Any],
) -> Callable[..., Any]:
    """See passing.h. Every key is `kind`'s, which has the switch in it."""

    def function(keys: Any, *given: Any, **named: Any) -> Any:
        key = kind(given, named)
        if key is None or key in passed:
            return original(keys, *given, **named)
        return ours(key, keys, *given, **named)

    return function
