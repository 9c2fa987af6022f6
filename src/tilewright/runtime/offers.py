"""What the vendor's library offers for a problem, as configs."""

from __future__ import annotations

from typing import Any

from tilewright.arch.model import Arch
from tilewright.errors import TilewrightError
from tilewright.runtime.blaslt import BlasLt
from tilewright.runtime.driver import Driver
from tilewright.verdict import Verdict


def offered_configs(
    library: BlasLt, on: Driver, index: int, family: Any, problem: Any, this: Arch, count: int
) -> tuple[list[Any], str]:
    """The configs of the first algorithms that `library` offers for `problem` on GPU `index`, at
    most `count`, its best guess first; and, where there is none, why.

    family: the problem's. this: the GPU's architecture.
    """
    asked = family.library_query(problem, this, library.name)
    if isinstance(asked, Verdict):
        return [], asked.reason
    configs: list[Any] = []
    why = f"{library.name} has no algorithm"
    try:
        for one in library.offered(on, index, asked, count):
            try:
                config = family.library_config(problem, library.name, one)
            except TilewrightError as error:  # a number that no name can say
                why = f"{library.name} offers what cannot be named: {error}"
                continue
            verdict = family.supports(config, problem, this)
            if verdict and config not in configs:
                configs.append(config)
            elif not verdict:
                why = f"{config.name}: {verdict}"
    except TilewrightError as error:
        why = str(error)
    return configs, "" if configs else why
