"""What the vendor's libraries offer for a problem, as configs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.arch.model import Arch
from tilewright.errors import TilewrightError
from tilewright.ops.library import LIBRARIES
from tilewright.runtime import libraries
from tilewright.runtime.driver import Driver
from tilewright.verdict import Verdict

ANOTHER = "family"
"""The rule of a `Verdict` that a library computes nothing of an operation's kind."""


def _verdicts(family: Any, problem: Any, this: Arch) -> dict[str, Any]:
    """What each library would be asked for, or the verdict that it is not asked."""
    # Which version it is decides nothing here.
    return {
        kind: family.library_query(problem, this, libraries.names(kind)[0])
        for kind in LIBRARIES[this.backend]
    }


def why_not(family: Any, problem: Any, this: Arch) -> str:
    """Why no library is asked for `problem`; ``""`` if one is.

    family: the problem's. this: the GPU's architecture.
    """
    return _refused(_verdicts(family, problem, this))


def _refused(verdicts: Mapping[str, Any]) -> str:
    if not all(isinstance(one, Verdict) for one in verdicts.values()):
        return ""
    every = [*verdicts.values()]
    said = [one for one in every if one.rule != ANOTHER] or every[:1]
    return "; ".join(one.reason for one in said)


def offered_configs(
    on: Driver, index: int, family: Any, problem: Any, this: Arch, count: int, only: str = ""
) -> tuple[list[Any], str]:
    """The configs of the first algorithms that each library offers for `problem` on GPU `index`, at
    most `count` of each, its best guess first; and, where there is none, why.

    family: the problem's. this: the GPU's architecture.
    only: the kind of the library to ask; ``""`` for all.
    """
    verdicts = _verdicts(family, problem, this)
    if why := _refused(verdicts):
        return [], why
    configs: list[Any] = []
    reasons: list[str] = []
    for kind, verdict in verdicts.items():
        if isinstance(verdict, Verdict) or only not in ("", kind):
            continue
        try:
            library = libraries.present(kind)
            asked = family.library_query(problem, this, library.name)
            found = library.offered(on, index, asked, count)
        except TilewrightError as error:
            reasons.append(str(error))
            continue
        for one in found:
            try:
                config = family.library_config(problem, library.name, one)
            except TilewrightError as error:  # a number that no name can say
                reasons.append(f"{library.name} offers what cannot be named: {error}")
                continue
            served = family.supports(config, problem, this)
            if served and config not in configs:
                configs.append(config)
            elif not served:
                reasons.append(f"{config.name}: {served}")
    return configs, "" if configs else "; ".join(reasons)
