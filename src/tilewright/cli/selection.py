"""Which kernels a command line means: those of space files, and those it names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tilewright import ops
from tilewright.arch import Arch, arch
from tilewright.cli import output
from tilewright.errors import EmptySpace, UnknownName
from tilewright.space import Dropped, load_space


@dataclass(frozen=True, slots=True)
class Selection:
    """The legal kernels on one architecture, what was dropped, and notes on the files."""

    arch: Arch
    configs: tuple[Any, ...]
    dropped: tuple[Dropped, ...]
    duplicates: int = 0
    notes: tuple[str, ...] = ()


def select(
    inputs: Sequence[str],
    arch_name: str,
    family: str | None = None,
    signature: Mapping[str, str] | None = None,
) -> Selection:
    """The kernels that `inputs` mean on an architecture, each once.

    Raises `EmptySpace` when none is legal there, and what reading files and names raises.
    """
    this = arch(arch_name)
    configs: dict[Any, None] = {}
    dropped: list[Dropped] = []
    notes: list[str] = []
    duplicates = 0
    for text in inputs:
        if is_file(text):
            space, said = load_space(text, this, family, signature)
            with output.busy(f"expanding {text} for {this.name}"):
                expansion = space.expand(this)
            notes += said
            dropped += expansion.dropped
            duplicates += expansion.duplicates
            found: Sequence[Any] = expansion.configs
        else:
            config = named(text)
            verdict = ops.family(config.family).judge(config, this)
            found = [config] if verdict else []
            if not verdict:
                dropped.append(Dropped(asdict(config), verdict))
        duplicates += sum(config in configs for config in found)
        configs.update(dict.fromkeys(found))
    if not configs:
        reasons = "; ".join(str(d.verdict) for d in dropped)
        raise EmptySpace(f"none of the kernels named is legal on {this.name}: {reasons}")
    return Selection(this, tuple(configs), tuple(dropped), duplicates, tuple(notes))


def is_file(text: str) -> bool:
    """Whether an argument means a file rather than a kernel's name."""
    return text.endswith(".json") or "/" in text or Path(text).is_file()


def named(text: str) -> Any:
    """The config of a kernel's name. Raises `UnknownName`."""
    try:
        return ops.family_of(text).parse_name(text)
    except UnknownName as error:
        raise UnknownName(f"'{text}' is neither a file nor a kernel's name: {error}") from None


def by_rule(dropped: Sequence[Dropped]) -> list[dict[str, Any]]:
    """How many combinations each rule dropped, most first, with an example's reason."""
    counts = Counter(d.verdict.rule for d in dropped)
    example = {d.verdict.rule: d.verdict.reason for d in reversed(dropped)}
    return [
        {"rule": rule, "count": count, "example": example[rule]}
        for rule, count in counts.most_common()
    ]


def show_rules(dropped: Sequence[Dropped]) -> None:
    """Print `by_rule` as a table."""
    rows = [(row["rule"], row["count"], row["example"]) for row in by_rule(dropped)]
    output.table(("dropped by", "count", "for example"), rows)


def summary(selection: Selection) -> dict[str, Any]:
    """A selection as plain data, kernels by name."""
    return {
        "arch": selection.arch.name,
        "legal": len(selection.configs),
        "dropped": len(selection.dropped),
        "duplicates": selection.duplicates,
        "rules": by_rule(selection.dropped),
        "notes": list(selection.notes),
    }
