"""Classes of problems in which the first engine of a vendor's library was faster than the kernel
that the estimate chooses, as a record of measurements says."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from tilewright.verdict import Verdict, no


@dataclass(frozen=True, slots=True)
class Recorded:
    """A class in which the estimate's choice is behind.

    of: the class; its text says which problems it has.
    problems: how many of them the record has.
    share: the engine's time over that of the estimate's choice, their geometric mean.
    """

    of: Hashable
    problems: int
    share: float


def faster(record: Iterable[Recorded], here: Hashable, library: str) -> Verdict:
    """Whether the engine should take less time for problems of class `here`. The rule of a yes is
    `library`."""
    known = next((one for one in record if one.of == here), None)
    if known is None:
        return no("record", f"the record does not have the library ahead for {here}")
    return Verdict(
        True,
        library,
        f"it took {known.share:.3f} of the time of the estimate's choice, the mean of "
        f"{known.problems} measured problems: {known.of}",
    )
