"""The request of a sweep's command line: kernels, problems, settings, and the work left to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.cli import output
from tilewright.errors import BadArgument

if TYPE_CHECKING:
    from tilewright.cli.selection import Selection
    from tilewright.compile import Store
    from tilewright.measure.filters import Filters, LeftOut
    from tilewright.measure.measurement import Method, Settings, Status
    from tilewright.measure.problems import Problems
    from tilewright.measure.sweep import Group, Plan


@dataclass(frozen=True, slots=True)
class Chosen:
    """The kernels and problems of a sweep on one architecture, and the ones left out."""

    selection: Selection
    configs: tuple[Any, ...]
    left: tuple[LeftOut, ...]
    problems: Problems


@dataclass(frozen=True, slots=True)
class Request:
    """The parsed command line."""

    inputs: tuple[str, ...]
    problems: tuple[str, ...]
    family: str | None
    signature: Mapping[str, str]
    filters: Filters
    settings: Settings
    out: Path
    store: Store
    workers: int | None
    build_timeout: float
    vendor: bool
    retry: tuple[Status, ...]

    def choose(self, arch_name: str) -> Chosen:
        """Kernels and problems for an architecture."""
        from tilewright import ops
        from tilewright.arch import arch
        from tilewright.cli.selection import every, select
        from tilewright.measure.problems import load_problems, shipped

        listed = load_problems(self.problems, arch(arch_name), self.family, self.signature)
        named = ops.families()
        whole = [word for word in self.inputs if word in named]
        files = [str(shipped(w, "space.json") or w) for w in self.inputs if w not in named]
        selection = every(listed.problems, whole, arch_name) if whole else None
        if files:
            selection = select(files, arch_name, self.family, self.signature).joined(selection)
        assert selection is not None, "a sweep has an input"
        configs, left = self.filters.apply(selection.configs)
        return Chosen(selection, configs, left, listed)

    def plan(self, chosen: Mapping[str, Chosen], groups: Sequence[Group]) -> Plan:
        """The work to do, without the results that the directory has."""
        from tilewright.measure.database import FILE
        from tilewright.measure.results import Results
        from tilewright.measure.sweep import plan

        known: set[tuple[str, ...]] = set()
        again: set[tuple[str, ...]] = set()
        if (self.out / FILE).is_file():
            with Results(self.out) as results:
                known, again = results.keys(), results.keys(self.retry)
        with output.busy("asking the rules about every pair"):
            return plan(
                groups,
                {name: one.configs for name, one in chosen.items()},
                {name: one.problems.problems for name, one in chosen.items()},
                self.settings,
                known,
                self.vendor,
                again,
            )


def choice(one: Chosen) -> dict[str, Any]:
    """The kernels and problems chosen, as plain data."""
    from tilewright.cli.selection import summary

    return {
        **summary(one.selection),
        "left_out": [asdict(left) for left in one.left],
        "kernels": len(one.configs),
        "problems": len(one.problems.problems),
        "repeated_problems": one.problems.repeated,
    }


def show_choice(one: dict[str, Any]) -> None:
    """Print the same, for people."""
    output.heading(f"{one['arch']}: {one['kernels']} kernels × {one['problems']} problems")
    if one["rules"]:
        output.table(
            ("dropped by", "count", "for example"),
            [(rule["rule"], rule["count"], rule["example"]) for rule in one["rules"]],
        )
    for left in one["left_out"]:
        output.line(f"{left['count']} legal kernels left out: {left['why']}")
    if one["repeated_problems"]:
        output.line(f"{one['repeated_problems']} problems repeated")
    for note in one["notes"]:
        output.line(f"note: {note}")


def own_problems(inputs: Sequence[str]) -> list[str]:
    """The problem lists of the shipped sets among the inputs, and of the operations that were
    declared with problems."""
    from tilewright.measure.problems import declared, shipped

    lists = (declared(word) or (word if shipped(word, "problems.csv") else "") for word in inputs)
    found = [one for one in lists if one]
    if not found:
        raise BadArgument("which problems? say --problems FILE (.json, .csv, .jsonl) or FAMILY:SET")
    return found


def read_statuses(words: Sequence[str]) -> tuple[Status, ...]:
    """The statuses with these names."""
    from tilewright.errors import nearest
    from tilewright.measure.measurement import STATUSES

    for word in words:
        if word not in STATUSES:
            raise BadArgument(
                f"--retry: there is no status '{word}'{nearest(word, STATUSES)}; there are "
                f"{', '.join(STATUSES)}"
            )
    return tuple(status for status in STATUSES if status in words)


METHOD = "method"
"""The word among settings that names one of `METHODS`."""


def read_method(given: Mapping[str, str]) -> Method:
    """The method that settings say, where they may say nothing else; ``single`` if none."""
    for word in given:
        if word != METHOD:
            raise BadArgument(f"--settings: there is no '{word}' here; there is {METHOD}")
    return _method(given.get(METHOD, "single"))


def _method(word: str) -> Method:
    from tilewright.errors import nearest
    from tilewright.measure.measurement import METHODS

    for method in METHODS:
        if word == method:
            return method
    raise BadArgument(
        f"--settings: there is no {METHOD} '{word}'{nearest(word, METHODS)}; there are "
        f"{', '.join(METHODS)}"
    )


def read_settings(given: Mapping[str, str], usual: Settings | None = None) -> Settings:
    """`usual` settings (by default those of sweeps), with the given values replaced. ``method``
    stands for a timer and a cache (`METHODS`)."""
    from dataclasses import asdict, fields

    import msgspec

    from tilewright.errors import nearest
    from tilewright.measure.measurement import METHODS, Settings

    if METHOD in given:
        of_method = METHODS[_method(given[METHOD])]
        for word in of_method:
            if word in given:
                raise BadArgument(f"--settings: {METHOD} says the {word} too; give one of the two")
        given = {**{w: v for w, v in given.items() if w != METHOD}, **of_method}
    known = [METHOD, *(f.name for f in fields(Settings))]
    for word in given:
        if word not in known:
            raise BadArgument(
                f"--settings: there is no '{word}'{nearest(word, known)}; there are "
                f"{', '.join(known)}"
            )
    try:
        return msgspec.convert(
            {**(asdict(usual) if usual else {}), **given}, Settings, strict=False
        )
    except UnicodeEncodeError as error:  # half a surrogate pair
        raise BadArgument(f"--settings: {error}") from None
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at ")
        where = place.strip("`").removeprefix("$").removeprefix(".")
        raise BadArgument(f"--settings: {f'{where}: ' if where else ''}{message}") from None
