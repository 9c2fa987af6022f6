"""Run cases of the spread on emulated GPUs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from spread import Case

from tilewright.compile import Store
from tilewright.dispatch import Dispatcher
from tilewright.errors import BuildFailed, TilewrightError
from tilewright.registry import Registry
from tilewright.verify import verify

SEED = 19

Status = Literal["right", "wrong", "finding", "error", "not built"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case.

    status:
        right      executed, within tolerance of float64, and nothing was found
        wrong      executed, outside tolerance
        finding    executed, within tolerance, and something was found
        error      not executed to its end
        not built  the compiler made no kernel
    detail: how far off, what was found, or the error.
    instructions: executed, of all waves. seconds: of checking, with the reference.
    """

    case: Case
    status: Status
    detail: str
    instructions: int
    seconds: float


def dispatcher(arch: str, cases: Sequence[Case], store: Store) -> Dispatcher:
    """A dispatcher on an emulated GPU of `arch` that has the kernels of these cases alone."""
    registry = Registry("spread").register_all(dict.fromkeys(case.config for case in cases))
    return Dispatcher(registry, store=store, device=f"emulated:{arch}")


def execute(case: Case, on: Dispatcher, seed: int = SEED) -> Outcome:
    """Execute a case on fresh data and check the result. Its kernel is built if it is not there."""
    began = time.monotonic()
    status: Status
    instructions = 0
    try:
        check = verify(on, case.problem, case.config.name, seed=seed)
        instructions = sum(int(ran.execution.executed.sum()) for ran in on.ran)
        status = "right" if check.ok else "finding" if check.within else "wrong"
        detail = "" if check.ok else "; ".join(map(str, (check, *check.findings[1:])))
    except BuildFailed as error:
        status, detail = "not built", str(error)
    except TilewrightError as error:
        status, detail = "error", f"{type(error).__name__}: {error}"
    return Outcome(case, status, detail, instructions, time.monotonic() - began)
