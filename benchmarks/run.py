"""Run declared cases on this machine's GPU, and write what they say as claims.

    python benchmarks/run.py --list
    python benchmarks/run.py gemm-bf16-large 'attention-*' --json results.json.xz --budget 1500

A case (`benchmarks/cases`) states problems, and what is compared with what. Each problem is checked
against float64 before anything is timed; see `comparison` for what is picked and reported. A case
whose problems all came out writes its claim (`claims`); a problem on which no call of the vendor is
right is left out of the ratios, and the claim says so. Of whole programs each that comes out writes
its own claim, and all together the case's. What rivals compile is compiled before, on all cores
(`ahead`). A case that fails costs itself alone, as a program does: its process is replaced if it
cannot use the GPU any more. Exit status 1 if a case or a program failed or was left out.

--json: also write all problems' results with every sample; packed if the name ends in .xz. From a
file that is there the run goes on: what it has is not measured again. It must come from the same
commit, GPU, driver and libraries.
--from: files of other runs, whose results are not measured again either. What the files alone can
claim is claimed first, whatever the budget; then what they lack is measured within it.
--budget: seconds, after which nothing more is begun. What was left out is listed; 0 measures none.

Two GPUs of a kind share cases so, each with its own half, and the third run has the claims:

    CUDA_VISIBLE_DEVICES=0 python benchmarks/run.py conv-fresh --share 0/2 --json 0.json.xz &
    CUDA_VISIBLE_DEVICES=1 python benchmarks/run.py conv-fresh --share 1/2 --json 1.json.xz; wait
    python benchmarks/run.py conv-fresh --from 0.json.xz 1.json.xz
"""

from __future__ import annotations

import argparse
import fnmatch
import gc
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import Any

import cases
import claims
from ahead import SEED, compile_ahead
from cases import AnyCase, Case, HostTimes, InGraphs, Part, Programs
from comparison import SIDES, WAYS, Row, Samples, VendorWrong, Way, judged, summed
from environment import environment, kernel_sources
from run_file import Documents, configs_of, document, read, restored, write
from tilewright.standing import WAITS

STALL_SECONDS = 300
"""A worker that says nothing for so long is ended. A compilation of FlexAttention takes longest."""
PREPARED_TOGETHER = 80
"""Problems whose few candidates are measured before they are compared: each time opens the GPU in
processes of its own."""


@dataclass
class Report:
    """What became of a case.

    problems: of the case; 0 while they are not known.
    rows: the results of its problems, as JSON.
    failed: why it has no claim as a whole; "" if it has.
    left_out: how many problems the budget left out.
    claims: what it claims.
    """

    problems: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    failed: str = ""
    left_out: int = 0
    claims: list[claims.Claim] = field(default_factory=list)


PAST = 0.0
"""A deadline that is over: nothing begins."""


class Late(Exception):
    """The budget does not last for all problems of a case."""


# --- one case, in a worker ----------------------------------------------------------------------

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


# --- all cases, in the parent -------------------------------------------------------------------

Messages = Callable[[Sequence[str], float], Iterator[tuple[str, Any]]]
"""Starts a worker for these cases, and yields what it says. The last word is ``end``, perhaps
before the last case, or ``gone`` with the reason."""


def worker(
    known: Mapping[str, Documents], measures: bool, names: Sequence[str], deadline: float
) -> Iterator[tuple[str, Any]]:
    """`Messages`, if the results that are known are given. The worker is ended with the iterator,
    and when it says nothing.

    measures: False to claim only what is known.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    until = deadline if measures else PAST
    process = context.Process(target=serve, args=(known, names, until, there), daemon=False)
    process.start()
    there.close()
    try:
        while True:
            patience = min(STALL_SECONDS, max(0.0, deadline - time.time()))
            if not here.poll(patience):
                late = time.time() >= deadline
                yield "gone", "the budget was over" if late else f"no word for {STALL_SECONDS} s"
                return
            try:
                word, what = here.recv()
            except EOFError:
                process.join()
                yield "gone", f"its process ended with status {process.exitcode}"
                return
            yield word, what
            if word == "end":
                return
    finally:
        if process.is_alive():
            process.join(5)
        if process.is_alive():
            process.kill()
            process.join()


def run_all(
    names: Sequence[str],
    deadline: float,
    messages: Messages,
    kept: Callable[[dict[str, Report]], None],
) -> dict[str, Report]:
    """Run cases, with a new worker for those that one leaves. `kept` is called after each case."""
    reports: dict[str, Report] = {}
    left = list(names)
    while left:
        before, current = len(left), ""
        for word, what in messages(tuple(left), deadline):
            if word == "begin":
                current = what
                reports[current] = Report()
                print(current, flush=True)
            elif word == "text":
                print(what, flush=True)
            elif word == "count":
                reports[current].problems = what
            elif word == "row":
                reports[current].rows.append(what)
            elif word == "claim":
                reports[current].claims.append(what)
            elif word != "end" and left:
                if current not in left:  # it ended between two cases
                    current = left[0]
                    reports[current] = Report()
                _ended(reports[current], word, what)
                left.remove(current)
                why = reports[current].failed
                print(f"  FAILED {current}: {why}" if why else "  done", flush=True)
                kept(reports)
        assert len(left) < before, "a worker ends no case"
        if left and time.time() >= deadline:
            for name in left:
                reports[name] = Report(failed="left out: the budget was over")
            break
    return reports


def _ended(report: Report, word: str, what: Any) -> None:
    if word == "claims":
        report.claims += what
    else:
        report.failed = what
        report.left_out = report.problems - len(report.rows)


# --- the command --------------------------------------------------------------------------------


def chosen(words: Sequence[str], every: Mapping[str, AnyCase]) -> list[str]:
    """The names of the cases that the words say, which may be shell patterns, in the order of the
    words: the budget may leave out the last. A pattern leaves out cases that stand apart, unless it
    ends as they do. Raises `SystemExit` for a word that names none."""
    found: dict[str, None] = {}
    for word in words:
        names = [
            name
            for name, case in every.items()
            if fnmatch.fnmatchcase(name, word) and word.endswith(getattr(case, "apart", ""))
        ]
        if not names:
            raise SystemExit(f"there is no case {word}; --list lists them")
        found |= dict.fromkeys(names)
    return [*found]


def claimable(case: AnyCase, known: Documents) -> bool:
    """Whether what is known is enough for a claim: of programs, for one's."""
    if isinstance(case, HostTimes) or not known:
        return False
    if isinstance(case, Programs):
        return any(name in known for name in case.programs)
    return all(str(problem) in known for problem in case.problems())


def listed(every: Mapping[str, AnyCase]) -> str:
    """All cases, with what they say and compare with."""
    lines = []
    for name, case in every.items():
        against = "host time" if isinstance(case, HostTimes) else f"against {case.against}"
        lines.append(f"{name:28} {case.says}; {against}")
        lines += [f"  also {one}" for one in cases.claims_of(case)[1:]]
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="names, or patterns of names")
    parser.add_argument("--list", action="store_true", help="list the cases, and run none")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every sample")
    parser.add_argument("--from", type=Path, nargs="+", default=(), metavar="FILE", dest="others")
    parser.add_argument("--share", metavar="I/N", help="of each case, problems I, I + N, and so on")
    parser.add_argument("--budget", type=float, metavar="SECONDS", default=float("inf"))
    options = parser.parse_args(words)
    if options.share and not options.json:
        parser.error("a share of a case has no claims: say --json, for the run that has --from it")
    if options.share:
        os.environ[cases.SHARE] = options.share
    every = cases.every()
    if options.list:
        print(listed(every))
        return 0
    if not options.cases:
        parser.error("which cases? --list lists them")
    names = chosen(options.cases, every)
    os.environ.setdefault(WAITS, "1")  # what is measured is the chosen kernel
    earlier = read((options.json, *options.others), environment())
    known = {name: earlier.known(name) for name in names}
    saved: set[str] = set()

    reports: dict[str, Report] = {}

    def kept(now: dict[str, Report]) -> None:
        reports.update(now)
        for report in now.values():
            if options.share:
                report.claims = []
            for claim in report.claims:
                if claim.claim not in saved:
                    print(f"  {claims.save(claim).name}", flush=True)
                    saved.add(claim.claim)
        if options.json:
            write(options.json, reports, earlier)

    deadline = time.time() + options.budget
    first = [name for name in names if claimable(every[name], known[name])]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", folder)  # nothing of an earlier run
        # Else Inductor moves Triton's cache when it first compiles, and rivals look elsewhere.
        os.environ.setdefault("TRITON_CACHE_DIR", str(Path(folder) / "triton"))
        # Kernels come from Triton's cache alone: those of Inductor's bundle that had a single
        # config to begin with would be tuned again.
        os.environ.setdefault("TORCHINDUCTOR_BUNDLE_TRITON_INTO_FX_GRAPH_CACHE", "0")
        run_all(first, float("inf"), partial(worker, known, False), kept)
        left = [name for name in names if name not in first or reports[name].left_out]
        if time.time() < deadline:
            compile_ahead({name: known[name] for name in left}, deadline)
            run_all(left, deadline, partial(worker, known, True), kept)
        for name in names:
            reports.setdefault(name, Report(failed="left out: the budget was over"))
    bad = {name: report.failed for name, report in reports.items() if report.failed}
    for name, why in bad.items():
        print(f"{name}: {why}")
    print(f"{len(reports) - len(bad)} of {len(names)} cases came out")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
