"""Claims: the published numbers, each with its proof. `benchmarks/claims/NAME.json` has one claim,
which is one row of a published table. `benchmarks/measured.py` writes the tables.

A ratio is the vendor's time over ours: above 1, Tilewright is faster. The fastest kernel of a
problem is picked by one set of samples, and its ratio comes from another set.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import proven
from environment import Sources, environment, source_digest
from tilewright.errors import BadArgument, BadFile
from tilewright.jsonfile import convert, load_json

FOLDER = Path(__file__).parent / "claims"
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Ratios:
    """The ratios of many problems.

    mean: geometric.
    p10: a tenth of the problems is below it.
    """

    mean: float
    p10: float
    least: float

    @classmethod
    def of(cls, ratios: Iterable[float]) -> Ratios:
        """Raises `BadArgument` for no ratio, and for one that is not positive and finite."""
        ordered = sorted(ratios)
        if not ordered or not all(0 < ratio < math.inf for ratio in ordered):
            raise BadArgument("a claim needs ratios, all positive and finite")
        mean = math.exp(sum(map(math.log, ordered)) / len(ordered))
        return cls(mean, ordered[len(ordered) // 10], ordered[0])


@dataclass(frozen=True, slots=True)
class Compared:
    """What one way of measuring said; None where it was not measured, or cannot be told apart.

    ours: only Tilewright's kernels were candidates.
    with_library: the algorithms of the vendor's library were candidates too.
    """

    ours: Ratios | None = None
    with_library: Ratios | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """One row of a published table.

    claim: its name, which is its file's: the runner's case, or the case and a part of it.
    against: what the ratios compare with (``torch.mm``).
    problems: how many.
    calls: by single calls, with L2 flushed.
    graphs: by calls in a replayed CUDA graph.
    times_us: host times in microseconds, by what was timed, where the row is no comparison.
    records: the files with the samples, in `benchmarks/results`.
    note: what a reader must know beside the numbers.
    kernels: the sources of the kernels that were timed (`environment.kernel_sources`). None if they
        were not recorded, and of host times.
    environment: `environment.environment()` of the run; of several runs, of the last one. Of runs
        before commits were recorded, ``recorded_in`` is the commit that brought the record.
    """

    claim: str
    against: str | None
    problems: int | None
    calls: Compared | None
    graphs: Compared | None
    environment: Mapping[str, Any]
    kernels: Sources | None = None
    times_us: Mapping[str, float] | None = None
    records: tuple[str, ...] = ()
    note: str | None = None


def save(claim: Claim, folder: Path = FOLDER) -> Path:
    """Write a claim in place of the one of its name, and return the file."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{claim.claim}.json"
    path.write_text(json.dumps(asdict(claim), indent=1, ensure_ascii=False) + "\n")
    return path


def save_times(
    name: str, times_us: Mapping[str, float], record: Path, folder: Path = FOLDER
) -> Path:
    """Write the claim of host times of this run, whose samples are in the file `record`."""
    records = (record.name,) if record.resolve().parent == RESULTS.resolve() else ()
    said = environment()
    claim = Claim(name, None, None, None, None, said, times_us=times_us, records=records)
    return save(claim, folder)


def load(path: Path) -> Claim:
    """The claim in a file. Raises `BadFile`, also for a file with another claim's name."""
    claim = convert(load_json(path), Claim, str(path))
    if claim.claim != path.stem:
        raise BadFile(f"{path}: has the claim {claim.claim}")
    return claim


def load_all(folder: Path = FOLDER) -> dict[str, Claim]:
    """All claims, by name."""
    return {path.stem: load(path) for path in sorted(folder.glob("*.json"))}


def stale(claim: Claim) -> str | None:
    """Why the claim is not about today's kernels; None if it is. Sources that were written anew may
    be the same code (`proven`)."""
    if claim.environment.get("commit") is None:
        return "no commit recorded"
    if claim.environment.get("changed"):
        return "measured with uncommitted changes"
    if claim.kernels is None and claim.times_us is None:
        return "no kernel sources recorded"
    changed = [
        kernel
        for kernel, modules in (claim.kernels or {}).items()
        if not all(proven.same(m, digest, source_digest(m)) for m, digest in modules.items())
    ]
    return f"changed since: {', '.join(changed)}" if changed else None
