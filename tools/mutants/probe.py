"""The switch of the mutants, and a note of each that was reached. A copy of this file stands beside
the package in the tree that is tested; the woven files import it as `tilewright_probe`.

Its memory is a file that all processes of a test share, children too: the number of the mutant that
is on (0: none), then a byte for each mutant.
"""

from __future__ import annotations

import mmap
from pathlib import Path

NUMBER_BYTES = 4
STATE = Path(__file__).with_name("tilewright_probe.state")

if STATE.exists():  # where this is no copy, there is nothing to share
    with STATE.open("r+b") as _file:
        _memory = memoryview(mmap.mmap(_file.fileno(), 0))
    _number = _memory[:NUMBER_BYTES].cast("I")
    _reached = _memory[NUMBER_BYTES:]


def on(number: int) -> bool:
    """Note that mutant `number` was reached; whether it is on."""
    _reached[number] = 1
    return _number[0] == number


def used(number: int) -> None:
    """Note that a value which mutant `number` may have changed at import is used."""
    _reached[number] = 1


on._dynamo_marked_constant = used._dynamo_marked_constant = True  # type: ignore[attr-defined]
"""torch.compile asks them while it traces, and goes on with the answer."""


def switch(number: int) -> None:
    """Turn one mutant on, in every process that shares the memory; 0: none."""
    _number[0] = number


def forget() -> None:
    """Forget which were reached."""
    _reached[:] = bytes(len(_reached))


def reached() -> list[int]:
    """The mutants that were reached since."""
    return [number for number, byte in enumerate(_reached) if byte]
