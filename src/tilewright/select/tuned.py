"""`Tuned`: the kernel that a table says was measured to be best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any

from tilewright import ops
from tilewright.arch.model import Device
from tilewright.ops.estimate import ranked
from tilewright.ops.library import kind, library_of
from tilewright.select import Choice, Offers, Skipped
from tilewright.tables.lookup import Found, Lookup, Versions
from tilewright.tables.merge import Several
from tilewright.tables.table import Table


class Tuned:
    """Chooses by the rows of `table` (see `tilewright.tables.lookup` for which row answers): the
    row's winner first, then its ties; nothing where no row answers.

    A kernel of a borrowed row was not measured here. Its reason says how much slower than the best
    candidate it should be on this device, by the family's estimate of both.

    table: the rows.
    versions: which rows are used, by the versions they were made with; see `Versions`.
    name: how explanations call this selector.

    Raises `BadArgument` for an unknown policy of versions.
    """

    def __init__(
        self,
        table: Table | Several,
        versions: Versions = "any",
        name: str = "tuned",
        offers: Offers | None = None,
    ) -> None:
        self.name = name
        self.table = table
        self._lookup = Lookup(table, versions)
        self._offers = offers

    def asking(self, offers: Offers | None) -> Tuned:
        """This selector, with what the vendor's library offers."""
        other = copy(self)
        other._offers = offers
        return other

    def knows(self, family: str, device: Device) -> bool:
        """See `tilewright.select.Knows`."""
        return self._lookup.knows(family, device)

    def order(self, problem: Any, candidates: Sequence[Any], device: Device) -> Iterator[Choice]:
        """The candidates that the nearest row names; none if no row is near enough."""
        found = None
        for found in self._lookup.find(problem, device):
            best = _least(candidates, problem, device) if found.origin == "borrowed" else 0.0
            answers = self._answers(found, device, problem, best)
            answers = [choice for choice in answers if choice.config in candidates]
            yield from answers
            if answers:
                return
        if found is None:
            self._lookup.missed(problem, device)

    def recall(self, problem: Any, device: Device) -> Iterator[Choice | Skipped]:
        """The kernels of all rows for the problem, and the rows skipped, with the reason."""
        answered = False
        for found in self._lookup.all(problem, device):
            for name, why in found.skipped:
                yield Skipped(name, self.name, f"{found.where} of {found.table}: {why}")
            for choice in self._answers(found, device, problem):
                answered = True
                yield choice
        if not answered:
            yield Skipped("", self.name, f"no row of {self.table.where} answers")

    def _answers(
        self, found: Found, device: Device, problem: Any, best: float = 0.0
    ) -> list[Choice]:
        """What a row answers, best first; `best` as in `_choice`."""
        own = [self._choice(found, config, device, problem, best) for config in found.configs]
        if self._offers is None or not found.other_size or not own or not library_of(own[0].config):
            return own
        own_kind = kind(library_of(own[0].config))
        theirs = self._offers(ops.family(problem.family), problem, device, own_kind)
        if isinstance(theirs, str):
            return own
        said = (
            f"{found.where} of {found.table}: the vendor's library won there; this is its first "
            "algorithm for the problem itself"
        )
        first = Choice(theirs, self.name, said, settled=True)
        return [first, *(choice for choice in own if choice.config != theirs)]

    def _choice(
        self, found: Found, config: Any, device: Device, problem: Any, best: float = 0.0
    ) -> Choice:
        """`best`: the least time estimated of any candidate (µs); 0 where none is needed."""
        row = found.row
        said = f"{found.where} of {found.table}: "
        if found.won(config):
            low, high = row.interval_us
            said += (
                f"{row.median_us:.4g} µs ± {(high - low) / 2 / row.median_us:.1%}, "
                f"{row.tflops:.4g} TFLOP/s"
            )
        elif found.is_ours(config):
            said += f"the best that is built here, behind {row.kernel}"
        else:
            said += f"not told from {row.kernel}"
        if best:
            loss = 1 - best / _least([config], problem, device)
            said += f"; expected to lose {loss:.0%} here"
        own = found.origin != "borrowed"
        measured = row.median_us if found.origin == "exact" and found.won(config) else 0.0
        return Choice(config, self.name, said, own, own and found.ahead, measured)


def _least(configs: Sequence[Any], problem: Any, device: Device) -> float:
    ranking = ranked(ops.family(problem.family), problem, configs, device)
    return min(estimate.total_us for _, estimate in ranking)
