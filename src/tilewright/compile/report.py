"""What became of each requested kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tilewright.arch.model import Arch
from tilewright.compile.kernel import Kernel, called
from tilewright.compile.resources import Occupancy
from tilewright.errors import BuildFailed
from tilewright.ops.nouns import MAIN
from tilewright.verdict import Verdict

Status = Literal["built", "cached", "not needed", "rejected", "failed"]


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What became of one kernel of a request. A config with several parts has a result for each;
    one that no part of can be built has one result, of part `MAIN`.

    status:
        built     compiled now
        cached    found in the store
        not needed  nothing is built: the vendor's library computes it, or a bundle has it
        rejected  a rule forbids it, or the architecture cannot launch it; `reason` has the numbers
        failed    there is no binary; `reason` has the compiler's message, a crash's signal, or the
                  time limit
    kernel: None when there is no binary.
    seconds: spent in the compiler.
    """

    config: Any
    name: str
    arch: Arch
    status: Status
    kernel: Kernel | None = None
    verdict: Verdict | None = None
    reason: str = ""
    seconds: float = 0.0
    part: str = MAIN

    @property
    def called(self) -> str:
        """The name, and the part of a config with several, for people."""
        return called(self.name, self.part)

    @property
    def ok(self) -> bool:
        """Whether it can be launched."""
        return self.status in ("built", "cached", "not needed")

    @property
    def occupancy(self) -> Occupancy | None:
        """How many workgroups fit on a compute unit; None without a kernel."""
        return self.kernel.occupancy(self.arch) if self.kernel else None

    def __str__(self) -> str:
        head = f"{self.status} {self.called} for {self.arch.name}"
        return f"{head}: {self.reason}" if self.reason else head


Progress = Callable[[BuildResult, int, int], None]
"""Called with each finished result, how many are finished, and how many there are."""


@dataclass(frozen=True, slots=True)
class BuildReport:
    """Results in the order of the requests, those of one request by part, and the wall time in
    seconds."""

    results: tuple[BuildResult, ...]
    seconds: float

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The usable kernels, each once. A kernel is usable if all parts of its config are."""
        lacking = {(r.name, r.arch.name) for r in self.failures}
        usable = (r.kernel for r in self.results if (r.name, r.arch.name) not in lacking)
        return tuple({kernel.key: kernel for kernel in usable if kernel is not None}.values())

    @property
    def failures(self) -> tuple[BuildResult, ...]:
        """The failed and the rejected."""
        return tuple(r for r in self.results if not r.ok)

    def raise_if_failed(self) -> None:
        """Raises `BuildFailed` naming every failure, if there is any."""
        if self.failures:
            lines = "\n".join(f"{r}\n  config: {r.config!r}" for r in self.failures)
            raise BuildFailed(f"{len(self.failures)} of {len(self.results)} kernels: {lines}")

    def __str__(self) -> str:
        counts = Counter(r.status for r in self.results)
        words = ", ".join(f"{n} {status}" for status, n in counts.items()) or "nothing to build"
        return f"{words} in {self.seconds:.1f} s"
