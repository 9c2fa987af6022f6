"""The kernels that a command line means: those of space files and of tables, those chosen for
problems, and those named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tilewright import ops
from tilewright.arch import Arch, arch
from tilewright.arch.targets import Target
from tilewright.cli import output
from tilewright.cli.planned import Planning, planned
from tilewright.errors import EmptySpace, UnknownName
from tilewright.space import Dropped
from tilewright.space_file import load_space
from tilewright.tables import file as tables
from tilewright.tables.merge import merge
from tilewright.tables.named import PREFIX, name_of, shipped_tables
from tilewright.tables.table import Table


@dataclass(frozen=True, slots=True)
class Selection:
    """The legal kernels on one architecture, the dropped combinations, and notes on the files."""

    arch: Arch
    configs: tuple[Any, ...]
    dropped: tuple[Dropped, ...]
    duplicates: int = 0
    notes: tuple[str, ...] = ()

    def joined(self, other: Selection | None) -> Selection:
        """This and another, without repeats."""
        if other is None:
            return self
        configs = tuple(dict.fromkeys((*self.configs, *other.configs)))
        repeats = len(self.configs) + len(other.configs) - len(configs)
        return Selection(
            self.arch,
            configs,
            (*self.dropped, *other.dropped),
            self.duplicates + other.duplicates + repeats,
            (*self.notes, *other.notes),
        )


def every(problems: Sequence[Any], families: Sequence[str], arch_name: str) -> Selection:
    """Every kernel that tuning would choose from for these problems, of these operations. Raises
    `EmptySpace` if there is none."""
    this = arch(arch_name)
    configs: dict[Any, None] = {}
    dropped: dict[str, Dropped] = {}
    for problem in problems:
        if problem.family in families:
            for space in ops.family(problem.family).tuning_spaces(problem, this):
                expansion = space.expand(this)
                configs.update(dict.fromkeys(expansion.configs))
                dropped.update({str(one): one for one in expansion.dropped})
    if not configs:
        raise EmptySpace(
            f"none of {', '.join(families)}'s kernels is legal on {this.name} for these problems"
        )
    return Selection(this, tuple(configs), tuple(dropped.values()))


def select(
    inputs: Sequence[str],
    arch_name: str,
    family: str | None = None,
    signature: Mapping[str, str] | None = None,
    targets: Sequence[Target] = (),
    how: Planning | None = None,
) -> Selection:
    """The kernels that `inputs` mean on an architecture, without repeats.

    inputs: space files, tables, problems and kernel names.
    targets: limits the rows of tables to these GPUs; without targets, rows of every device of the
    architecture count.
    how: how kernels are chosen for problems.

    Raises `EmptySpace` if no kernel is legal there, and the errors of reading files and names.
    """
    this = arch(arch_name)
    configs: dict[Any, None] = {}
    dropped: list[Dropped] = []
    notes: list[str] = []
    duplicates = 0
    found: Sequence[Any]
    for text in one_by_one(inputs):
        if is_table(text) or _has_kernels(text):
            found, said = _tabled(text, targets or [Target(this.name)], this)
            notes += said
        elif is_problems(text):
            found, said = planned(text, this, targets, family, signature or {}, how or Planning())
            notes += said
        elif is_file(text):
            space, said = load_space(text, this, family, signature)
            with output.busy(f"expanding {text} for {this.name}"):
                expansion = space.expand(this)
            notes += said
            dropped += expansion.dropped
            duplicates += expansion.duplicates
            found = expansion.configs
        else:
            config = named(text)
            verdict = ops.family(config.family).judge(config, this)
            found = [config] if verdict else []
            if not verdict:
                dropped.append(Dropped(asdict(config), verdict))
        duplicates += sum(config in configs for config in found)
        configs.update(dict.fromkeys(found))
    if not configs:
        reasons = "; ".join([*(str(d.verdict) for d in dropped), *notes])
        raise EmptySpace(f"none of the kernels named is legal on {this.name}: {reasons}")
    return Selection(this, tuple(configs), tuple(dropped), duplicates, tuple(notes))


def one_by_one(inputs: Sequence[str]) -> list[str]:
    """The inputs, with a name that means several shipped tables replaced by these tables."""
    found: list[str] = []
    for text in inputs:
        if text.startswith(PREFIX):
            found += map(name_of, shipped_tables(text))
        else:
            found.append(text)
    return found


def is_table(text: str) -> bool:
    """Whether an argument means a table: by its ending, by a shipped table's name, or, for JSON, by
    its contents."""
    if text.startswith(PREFIX) or text.endswith(tables.COMPACT):
        return True
    return text.endswith(tables.JSON) and tables.is_json(Path(text))


def tables_of(inputs: Sequence[str]) -> Table | None:
    """The tables among the inputs as one, for choosing kernels for the problems among them. Where
    rows of one problem differ, the fastest counts."""
    files = [text for text in one_by_one(inputs) if is_table(text)]
    if not files:
        return None
    with output.busy(f"reading {', '.join(files)}"):
        return merge(files, "fastest").table


def is_problems(text: str) -> bool:
    """Whether an argument means problems: a set, a profile, a capture, a CSV, or a list in JSON."""
    from tilewright.measure.problems import is_list, profile, shipped

    return any((shipped(text, "problems.csv"), profile(text), is_list(text)))


def _has_kernels(text: str) -> bool:
    """Whether a file is one of aiter's with the best kernels."""
    from tilewright.measure.problems import is_aiters
    from tilewright.tables.aiter import read_aiter

    return is_aiters(text) and any(entry.kernel for entry in read_aiter(text))


def _tabled(text: str, targets: Sequence[Target], this: Arch) -> tuple[list[Any], list[str]]:
    """The kernels of a table's rows for these devices, and notes on skipped rows."""
    wanted = [target for target in targets if target.arch == this.name]
    if text.endswith(".csv"):
        from tilewright.tables.aiter import read_aiter

        entries = [e for e in read_aiter(text) if e.ours]
        rows = [(e.kernel, any(e.target and e.target.meets(t) for t in wanted)) for e in entries]
    else:
        with output.busy(f"reading {text}"):
            rows = [
                (name, any(t.covers(row.device) for t in wanted))
                for row in tables.load(text)
                for name in (row.kernel, row.ours)
                if name
            ]
    names = dict.fromkeys(name for name, here in rows if here)
    notes = [] if names else [f"{text} has no row of our kernels for {', '.join(map(str, wanted))}"]
    found = []
    for name in names:
        config = _legal(name, this)
        if config is None:
            notes.append(f"{text}: {name} is skipped: there is no such kernel on {this.name} now")
        else:
            found.append(config)
    return found, notes


def _legal(name: str, this: Arch) -> Any | None:
    try:
        family = ops.family_of(name)
        config = family.parse_name(name)
    except UnknownName:
        return None
    return config if family.judge(config, this) else None


def is_file(text: str) -> bool:
    """Whether an argument means a file rather than a kernel's name."""
    return text.endswith(".json") or "/" in text or Path(text).is_file()


def named(text: str) -> Any:
    """The config of a kernel's name. Raises `UnknownName`."""
    try:
        return ops.family_of(text).parse_name(text)
    except UnknownName as error:
        raise UnknownName(f"'{text}' is neither a file nor a kernel's name: {error}") from None


def rules(dropped: Sequence[Dropped]) -> list[dict[str, Any]]:
    """How many combinations each rule dropped, most first, with the reason of an example."""
    found = output.by_rule((d.verdict.rule, d.verdict.reason) for d in dropped)
    return [{"rule": rule, "count": count, "example": why} for rule, count, why in found]


def show_rules(found: Sequence[Mapping[str, Any]]) -> None:
    """Print the result of `rules` as a table."""
    rows = [(row["rule"], row["count"], row["example"]) for row in found]
    output.table(("dropped by", "count", "for example"), rows)


def summary(selection: Selection) -> dict[str, Any]:
    """A selection as plain data, kernels by name."""
    return {
        "arch": selection.arch.name,
        "legal": len(selection.configs),
        "dropped": len(selection.dropped),
        "duplicates": selection.duplicates,
        "rules": rules(selection.dropped),
        "notes": list(selection.notes),
    }
