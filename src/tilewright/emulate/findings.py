"""What the emulator notices of a kernel besides right and wrong results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tilewright.emulate.waves import Array, Waves
from tilewright.listing.text import Instruction

Kind = Literal[
    "unwaited register",
    "unwritten register",
    "unwritten shared memory",
    "shared memory race",
    "unwaited shared memory",
    "outside shared memory",
    "unwritten memory",
    "outside operands",
    "read-only operand",
    "global memory race",
    "wait states",
    "undeclared resources",
]
"""The kinds of findings; docs/emulation.md says what each means."""


@dataclass(slots=True)
class Finding:
    """Something that an instruction did, once or more.

    line: of the listing; text: the instruction; source: file and line of the kernel's source,
        ``""`` where the listing has none.
    workgroup, wave: of the first wave that did it; the wave is counted within its workgroup.
    detail: of the first time.
    count: how many waves did it, over all executions of the instruction.
    """

    kind: Kind
    line: int
    text: str
    source: str
    workgroup: int
    wave: int
    detail: str
    count: int

    def __str__(self) -> str:
        where = f"line {self.line}" + (f" ({self.source})" if self.source else "")
        detail = f": {self.detail}" if self.detail else ""
        return (
            f"{self.kind}, {where}, `{self.text}`, first in wave {self.wave} of workgroup "
            f"{self.workgroup}, {self.count} times{detail}"
        )


@dataclass(slots=True)
class Findings:
    """The findings of a launch, one for each kind and instruction, in the order in which they
    first occurred."""

    found: dict[tuple[Kind, int], Finding] = field(default_factory=dict)

    def report(
        self,
        kind: Kind,
        ins: Instruction,
        waves: Waves | None = None,
        which: Array | None = None,
        detail: str = "",
    ) -> None:
        """Add a finding.

        waves: those that execute the instruction. which: a mask of the waves, bool (waves,), or of
        their lanes, bool (waves, lanes), that did it; by default all.
        """
        workgroup = wave = -1
        count = 1
        if waves is not None:
            guilty: Array = np.ones(waves.count, bool) if which is None else which
            if guilty.ndim > 1:
                guilty = np.asarray(guilty.reshape(waves.count, -1).any(1))
            first = int(guilty.argmax())
            workgroup, wave = int(waves.workgroup[first]), int(waves.wave[first])
            count = int(np.count_nonzero(guilty))
        known = self.found.get((kind, ins.index))
        if known is None:
            self.found[kind, ins.index] = Finding(
                kind, ins.line, ins.text, ins.source, workgroup, wave, detail, count
            )
        else:
            known.count += count

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.found.values())

    def __len__(self) -> int:
        return len(self.found)
