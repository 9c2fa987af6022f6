"""The file of a run: every problem's result with all samples. A later run goes on from it."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from comparison import SIDES, Row
from tilewright import ops

Documents = Mapping[str, Mapping[str, Any]]
"""Results by problem, as `document` has them."""

_NAMES = ("ours", "with_library", "vendor")


def document(row: Row, configs: Iterable[str]) -> dict[str, Any]:
    """A row as JSON, with each way's ratios and all samples. configs: the names of the kernels that
    were picked."""
    said = {
        way: {side: asdict(found) if (found := row.ratio(way, side)) else None for side in SIDES}
        for way in row.samples
    }
    return {
        "problem": row.problem, "tried": row.tried, **said, "samples": row.samples,
        "wrong": dict(row.wrong), "late": list(row.late), "configs": sorted(configs),
        "contenders": {name: list(getattr(row, name)) for name in _NAMES},
        "chosen_by": row.chosen_by,
    }  # fmt: skip


def configs_of(said: Mapping[str, Any]) -> dict[str, Any]:
    """The kernels that a `document` names."""
    return {name: ops.family_of(name).parse_name(name) for name in said["configs"]}


def restored(said: Mapping[str, Any]) -> Row:
    """The row of a `document`."""
    names = {name: tuple(said["contenders"][name]) for name in _NAMES}
    late = tuple(said["late"])
    return Row(
        said["problem"], said["tried"], samples=said["samples"], wrong=said["wrong"], late=late,
        chosen_by=said.get("chosen_by", ""), **names,
    )  # fmt: skip


_SAME = ("commit", "gpu", "driver", "cuda", "cublas", "cudnn", "python", "packages")


@dataclass(frozen=True, slots=True)
class Earlier:
    """What a file has of earlier runs: their environment, and results by case."""

    about: Mapping[str, Any]
    cases: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def known(self, name: str) -> Documents:
        """A case's results that need not be measured again."""
        rows = self.cases.get(name, {}).get("rows", ())
        return {row["problem"]: row for row in rows if "configs" in row}


def write(path: Path, reports: Mapping[str, Any], earlier: Earlier) -> None:
    """All results with every sample, as JSON; packed for a name that ends in .xz. What an earlier
    run had beside them stays.

    reports: by case (`run.Report`).
    """
    found = {name: dict(case) for name, case in earlier.cases.items()}
    for name, report in reports.items():
        now = {key: value for key, value in vars(report).items() if key != "claims"}
        rows = {row["problem"]: row for row in (*earlier.known(name).values(), *report.rows)}
        made = {"rows": [*rows.values()], "claims": [one.claim for one in report.claims]}
        found[name] = now | made
    content = (json.dumps({"environment": earlier.about, "cases": found}) + "\n").encode()
    path.write_bytes(lzma.compress(content) if path.suffix == ".xz" else content)


def whole(path: Path) -> dict[str, Any]:
    """All that a file has."""
    content = path.read_bytes()
    said: dict[str, Any] = json.loads(lzma.decompress(content) if path.suffix == ".xz" else content)
    return said


def read(paths: Iterable[Path | None], about: Mapping[str, Any]) -> Earlier:
    """What is in these files, as far as they are there. Raises `SystemExit` if one was made with
    something else than this run, whose environment is `about`."""
    found: dict[str, dict[str, Any]] = {}
    first = about
    for path in paths:
        if path is None or not path.exists():
            continue
        said = whole(path)
        before = said["environment"]
        other = [name for name in _SAME if before.get(name) != about.get(name)]
        if before.get("changed") is not False or about.get("changed") is not False:
            other.append("changes since the commit")
        if other:
            raise SystemExit(
                f"{path} is from a run with other {', '.join(other)}: name another file"
            )
        first = before
        for name, case in said["cases"].items():
            had = found.get(name, {})
            found[name] = {**had, **case, "rows": [*had.get("rows", ()), *case.get("rows", ())]}
    return Earlier(first, found)
