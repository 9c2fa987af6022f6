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
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import cases
import claims
from ahead import compile_ahead
from cases import AnyCase, HostTimes, Programs
from environment import environment
from one_case import PAST, serve
from run_file import Documents, read, write
from tilewright.standing import WAITS

STALL_SECONDS = 300
"""A worker that says nothing for so long is ended. A compilation of FlexAttention takes longest."""


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
