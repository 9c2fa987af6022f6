"""One declared case, run in a worker of `run.py`: its problems or programs, and what it claims."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from multiprocessing.connection import Connection
from types import MappingProxyType
from typing import Any

import cases
import claims
from ahead import SEED
from cases import AnyCase, Case, HostTimes, InGraphs, Part, Programs
from comparison import SIDES, WAYS, Row, Samples, VendorWrong, Way, judged, summed
from environment import environment, kernel_sources
from run_file import Documents, configs_of, document, restored

PREPARED_TOGETHER = 80
"""Problems whose few candidates are measured before they are compared: each time opens the GPU in
processes of its own."""
PAST = 0.0
"""A deadline that is over: nothing begins."""


class Late(Exception):
    """The budget does not last for all problems of a case."""


Say = Callable[[str, Any], None]
"""Tells the parent: a word (``count``, ``row``, ``text``, ``claim``) and what belongs to it."""


def run_case(
    case: AnyCase,
    bench: Callable[[], Any],
    deadline: float,
    say: Say,
    known: Documents = MappingProxyType({}),
) -> list[claims.Claim]:
    """Run one case. Returns its claims, but those that it says before, which hold if it fails.
    Raises `Late`, and whatever a case that fails raises.

    known: results that are not measured again.
    deadline: `PAST` to measure nothing.
    """
    if isinstance(case, HostTimes):
        return _host(case, say)
    by = _programs if isinstance(case, Programs) else _kernels
    return by(case, bench, deadline, say, known)


def _kernels(
    case: Case | InGraphs, bench: Callable[[], Any], deadline: float, say: Say, known: Documents
) -> list[claims.Claim]:
    problems = case.problems()
    say("count", len(problems))
    at_work = bench()
    coming = _together(case, [p for p in problems if str(p) not in known])
    note = ""
    rows: dict[Any, Row] = {}
    configs: dict[str, Any] = {}
    beside: dict[str, None] = {}
    failed: list[str] = []
    unmatched: list[Any] = []
    longest = 0.0
    for number, problem in enumerate(problems):
        if had := known.get(str(problem)):
            rows[problem] = restored(had)
            configs |= configs_of(had)
            beside[had.get("note", "")] = None
            say("row", had)
            continue
        if time.time() + longest > deadline:
            raise Late(f"left out {len(problems) - number} of {len(problems)} problems")
        if some := coming.get(problem):
            begun = time.time()
            note = at_work.prepare(case, some, partial(say, "text"))
            say("text", f"  built in {time.time() - begun:.1f} s")
        begun = time.time()
        try:
            row, used = at_work.compared(case, problem, SEED + number, partial(say, "text"))
        except VendorWrong as error:
            unmatched.append(problem)
            say("text", f"  {number + 1}/{len(problems)} {problem}: left out: {error}")
        except Exception as error:  # after a fault of the device the others fail too, at once
            failed.append(f"{problem}: {type(error).__name__}: {error}"[:500])
            say("text", f"  FAILED {failed[-1]}")
        else:
            rows[problem] = row
            configs |= used
            beside[note] = None
            say("row", {**document(row, used), "note": note})
            took = f"{time.time() - begun:.1f} s"
            say("text", f"  {number + 1}/{len(problems)} {shown(row)}; in {took}")
        longest = max(longest, time.time() - begun)
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(problems)} problems failed: {'; '.join(failed)}")
    sources = kernel_sources(configs.values(), at_work.arch)
    about = _about(case)
    figures = case.figures(rows) if isinstance(case, Case) and case.figures else ""

    def claim(name: str, part: Part) -> claims.Claim:
        meant = [p for p in problems if part.where is None or part.where(p)]
        some = [row for p in meant if (row := rows.get(p)) and _has(row, part)]
        wrong = [str(p) for p in meant if p in unmatched or not _has(rows[p], part)]
        out = f"left out, as the vendor's result is wrong: {'; '.join(wrong)}" if wrong else ""
        told = "" if part.end else figures
        of_whole = beside if isinstance(case, InGraphs) or not part.end else ()
        notes = "; ".join(filter(None, (*of_whole, told, _by_tables(some), out))) or None
        calls, graphs = (_compared(some, way, part) for way in WAYS)
        return claims.Claim(
            name, part.against, len(some), calls, graphs, about, sources, note=notes
        )

    found = [claim(case.name, Part("", case.against))]
    for part in case.parts:
        one = claim(f"{case.name}-{part.end}", part)
        if one.problems:
            found.append(one)
        else:
            none = f"no problem is meant, or there is no right result of {part.against}"
            say("text", f"  no claim {one.claim}: {none}")
    return found


def _by_tables(rows: Sequence[Row]) -> str:
    """How many problems a row of a table chose for; "" for none."""
    count = sum(row.chosen_by in ("tuned", "shipped") for row in rows)
    return f"chosen by a row of a table: {count} of {len(rows)}" if count else ""


def _has(row: Row, part: Part) -> bool:
    """Whether the vendor's contenders of a part were timed."""
    return any(row.ratio(way, "ours", part.vendor) for way in row.samples)


def _together(case: Case | InGraphs, problems: Sequence[Any]) -> dict[Any, Sequence[Any]]:
    """What is prepared before a problem is compared: it and those behind it. All at once; where
    preparing is measuring, some, so that the results of most are known when the budget is over."""
    measuring = isinstance(case, Case) and case.ours == "prepared"
    count = PREPARED_TOGETHER if measuring else len(problems)
    return {problems[at]: problems[at : at + count] for at in range(0, len(problems), count or 1)}


def _about(case: AnyCase) -> dict[str, Any]:
    """The environment, with the command that measures this case alone."""
    return {**environment(), "command": f"benchmarks/run.py {case.name}"}


def _compared(rows: Sequence[Row], way: Way, part: Part) -> claims.Compared | None:
    ours, with_library = (summed(rows, way, side, part.vendor, part.named) for side in SIDES)
    return claims.Compared(ours, with_library) if ours else None


def _programs(
    case: Programs, bench: Callable[[], Any], deadline: float, say: Say, known: Documents
) -> list[claims.Claim]:
    """Each program's claim is said as soon as it is known: what other runs know is first."""
    say("count", len(case.programs))
    at_work, about = bench(), _about(case)
    ratios: list[float] = []
    configs: dict[str, Any] = {}
    failed: list[str] = []
    late: list[str] = []
    longest = 0.0

    def claim(name: str, found: Sequence[float], used: Mapping[str, Any]) -> claims.Claim:
        so = claims.Compared(with_library=claims.Ratios.of(found))
        sources = kernel_sources(used.values(), at_work.arch)
        return claims.Claim(name, case.against, len(found), so, None, about, sources)

    for name in sorted(case.programs, key=lambda name: name not in known):
        begun = time.time()
        if had := known.get(name):
            samples, used = had["samples"], configs_of(had)
        elif begun + longest > deadline:
            late.append(name)
            continue
        else:
            try:
                samples, used = _stepped(case.programs[name], at_work)
            except Exception as error:  # after a fault of the device the others fail too, at once
                failed.append(f"{name}: {type(error).__name__}: {error}"[:500])
                say("text", f"  FAILED {failed[-1]}")
                continue
            finally:
                longest = max(longest, time.time() - begun)
        result = judged(samples, ("ours",), ("vendor",))
        row = {"problem": name, "calls": asdict(result), "samples": samples}
        say("row", {**row, "configs": sorted(used)})
        say("text", f"  {name}: {result.ratio:.3f}; in {time.time() - begun:.1f} s")
        if name != case.name:
            say("claim", claim(name, [result.ratio], used))
        ratios.append(result.ratio)
        configs |= used
    count = len(case.programs)
    left = f"left out {len(late)} of {count} programs: {', '.join(late)}" if late else ""
    if failed:
        why = f"{len(failed)} of {count} programs failed: {'; '.join(failed)}"
        raise RuntimeError("; ".join(filter(None, (why, left))))
    if late:
        raise Late(left)
    return [claim(case.name, ratios, configs)]


def _stepped(make: cases.Steps, at_work: Any) -> tuple[Samples, dict[str, Any]]:
    """The samples of a program's steps, and the kernels that it chose. Its memory is given back."""
    try:
        found: tuple[Samples, dict[str, Any]] = at_work.stepped(make)
        return found
    finally:
        at_work.release()


def _host(case: HostTimes, say: Say) -> list[claims.Claim]:
    say("count", 1)
    samples = case.samples()
    times_us = {name: statistics.median(taken) for name, taken in samples.items()}
    say("row", {"problem": case.name, "times_us": times_us, "samples": samples})
    for name, us in times_us.items():
        say("text", f"  {name:56} {us:10.2f} µs")
    return [claims.Claim(case.name, None, None, None, None, _about(case), times_us=times_us)]


def shown(row: Row) -> str:
    """A row as a line."""
    words = []
    for way in row.samples:
        ours, both = row.ratio(way, "ours"), row.ratio(way, "with_library")
        words.append(f"{way} {ours.ratio:.3f}" if ours else f"{way} none")
        words[-1] += f" ({both.ratio:.3f} with the library)" if both else ""
    first = next((row.ratio(way, "ours") for way in row.samples), None)
    chosen = f"  {first.us:.1f} µs {first.kernel} against {first.vendor}" if first else ""
    wrong = f"; left out: {', '.join(row.wrong)}" if row.wrong else ""
    by = f", by {row.chosen_by}" if row.chosen_by else ""
    return f"{row.problem}: {', '.join(words)};{chosen}{by}{wrong}"


def serve(
    known: Mapping[str, Documents], names: Sequence[str], deadline: float, pipe: Connection
) -> None:
    """A worker: run these cases until one fails behind which the GPU cannot be used."""
    every = cases.every()

    @cache
    def bench() -> Any:
        """The GPU, opened when the first case needs it, and kept for the cases after it."""
        from on_gpu import CaseBench
        from tilewright.compile import Store

        return CaseBench(Store())

    for name in names:
        pipe.send(("begin", name))
        try:
            had = known.get(name, {})
            found = run_case(every[name], bench, deadline, lambda *said: pipe.send(said), had)
        except Late as late:
            pipe.send(("late", str(late)))
        except Exception as error:
            pipe.send(("failed", f"{type(error).__name__}: {error}"[:2000]))
            if isinstance(every[name], HostTimes) or not _works(bench):
                break  # a fault of the device stays with the process
        else:
            pipe.send(("claims", found))
        if not gc.get_freeze_count():
            gc.freeze()  # modules above all, which every collection would go through
    pipe.send(("end", None))


def _works(bench: Callable[[], Any]) -> bool:
    """Whether the GPU can be used after a failure."""
    try:
        bench().release()
        bench().wait()
    except Exception:
        return False
    return True
