"""Measure what learned selection learns from: many kernels, good and bad ones, on problems of real
models.

    python benchmarks/learning_data.py draw                 # choose the pairs; needs scipy, no GPU
    python benchmarks/learning_data.py spaces               # how many kernels to choose from
    python benchmarks/learning_data.py plan --seconds 500 --gpus 1      # what a run would measure
    python benchmarks/learning_data.py measure --seconds 240 --out DIR --part 0/2

`draw` writes a sample for each class of problems into cases/learning (`measure.designs`): problems
of models, and GEMMs whose sizes lie between theirs. `measure` takes the samples in the
order of `CLASSES`, each for its share of the time, on every GPU of the machine. Kernels are built
on the processor's cores in the order in which they are needed, while the GPUs measure. Every kernel
is verified, then timed in replayed CUDA graphs.

A run of many seconds may be made in sittings. `measure` leaves all results packed in
DIR/results.db.xz, which is small: however it ends, and behind each class, should it be killed. A
sitting that finds nothing else in DIR begins with it. A kernel that was timed on a problem in the
same way is not timed there again, whatever the driver and the versions were: for times of one state
take an empty DIR.

Of each problem only some kernels of the sample are measured (`fewer`, `--kernels`): for as many
timings, 12 kernels of every problem teach more than more kernels of fewer problems
(`learned_methods.py trade`). One problem of ten, by chance, is measured on all kernels of its
sample that are built: what a choice is worth is judged best there.

`draw` takes no problem of `learned_h200.parquet`, which has the measurements of earlier samples.
Every second problem is drawn by chance, so that any beginning has a fair draw in it; those between
them are where the shipped models and the estimate disagree most, and before these the ones that no
model can judge.
`--part i/n` takes every n-th problem, from the i-th on.

Beside the samples there are smaller ones of 66 kernels of each problem, all of which are measured;
few kernels serve them (`learning_many`). `…_many`: from the space that the dispatcher chooses from;
of convolutions of 1x1 alone, as the others have 20 to 46 kernels there. `…_tuned`: its first 16,
and others that only a tuning chooses from: how much faster are they? They take problems of which
fewer than 64 kernels were timed, and first those of which none was.
"""

from __future__ import annotations

import argparse
import lzma
import math
import os
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from learning_samples import (
    CLASSES,
    DEVICE,
    SAMPLES,
    SLOWEST,
    chance,
    draw,
    kernels_of,
    turns,
)
from tilewright import arch, ops
from tilewright.compile import BuildResult, Store, build, part_keys
from tilewright.files import write_whole
from tilewright.measure import designs
from tilewright.measure.database import FILE
from tilewright.measure.designs import Sample
from tilewright.measure.groups import groups
from tilewright.measure.measurement import Measurement, Settings, problem_text
from tilewright.measure.results import Results
from tilewright.measure.sweep import Crew, Group, plan_some, settings_on, sweep

PACKED = "results.db.xz"

SETTINGS = Settings(
    cache="rotated", timer="graph", warm_up_seconds=0.01, min_samples=2, max_samples=2,
    budget_seconds=5.0, interleave=32,
)  # fmt: skip
"""A sample of a graph is the mean of 20 calls and more, so two are enough to rank by."""
KERNELS, COMMON = 12, 40
"""Of each problem, and those of a class that may be measured beside the estimate's first."""
COUNTED = 150
"""Problems of each class that `spaces` counts kernels of."""
PAIRS_A_SECOND = 54
"""On one H200 of two, as a run of `measure` said."""
WHOLE = 10
"""One of so many problems, by chance, is measured on all its kernels that are built."""
FIRST, TOGETHER = 8, 24
"""Problems that are measured between two looks at the clock: at first, and later on each GPU. At
the end of them GPUs wait for each other."""
SPARED_CORES = 3
"""Cores that builds leave to the processes that measure."""

Pair = tuple[Any, tuple[Any, ...]]
"""A problem, and kernels to measure on it."""


class OutOfTime(Exception):
    """The time is over; all finished measurements are kept."""


@dataclass(frozen=True, slots=True)
class Lent:
    """A crew that a sweep may close without ending its workers."""

    crew: Any

    @property
    def run(self) -> Any:
        return self.crew.run

    def close(self) -> None:
        pass


@dataclass
class Run:
    """A run on the GPUs of this machine.

    ends: when, by `time.monotonic`.
    """

    group: Group
    crew: Crew
    results: Results
    store: Store
    ends: float
    made: int = 0
    wrong: int = 0

    @contextmanager
    def counting(self) -> Iterator[Callable[[Measurement, int, int], None]]:
        def count(m: Measurement, _done: int, _of: int) -> None:
            self.made += 1
            self.wrong += m.status != "ok"
            if time.monotonic() > self.ends:
                raise OutOfTime

        yield count

    def measure(self, pairs: Sequence[Pair]) -> None:
        known = self.results.keys(problems={problem_text(problem) for problem, _ in pairs})
        this = plan_some([(self.group, pairs)], SETTINGS, known, vendor=False)
        sweep(this, self.results, self.store, lambda: Lent(self.crew), measuring=self.counting)


class Builds:
    """Kernels that are built while GPUs measure, in the order in which they are needed. One queue
    has them all: at the end of each queue cores are idle.

    wanted: the kernels of each class. ends: when those of a class are not needed any more.
    """

    def __init__(
        self, wanted: Mapping[str, Collection[Any]], ends: Mapping[str, float], arch: str,
        store: Store,
    ) -> None:  # fmt: skip
        self._wanted, self._ends, self._arch, self._store = wanted, ends, arch, store
        self._left = dict.fromkeys((config for some in wanted.values() for config in some), 1)
        """How many parts of each kernel are missing."""
        self._changed = threading.Condition()
        self._stopped = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="builds")

    def __enter__(self) -> Builds:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped = True
        self._thread.join()

    def wait(self, configs: Collection[Any], until: float) -> bool:
        """Wait for kernels; returns whether they came in time. Raises what building raised."""
        with self._changed:
            while any(self._left[config] for config in configs):
                if self._error is not None:
                    raise self._error
                if time.monotonic() > until:
                    return False
                self._changed.wait(0.5)
        return time.monotonic() < until

    def _run(self) -> None:
        workers = max(1, len(os.sched_getaffinity(0)) - SPARED_CORES)
        try:
            while names := self._begun():
                missing = dict.fromkeys(c for name in names for c in self._missing(name))
                for config in missing:
                    self._left[config] = max(1, len(part_keys(config, self._arch)))
                with suppress(OutOfTime):
                    build(
                        [(config, self._arch) for config in missing], store=self._store,
                        workers=workers, progress=partial(self._note, names),
                    )  # fmt: skip
        except BaseException as error:
            self._error = error

    def _begun(self) -> list[str]:
        """The classes that kernels are to be built for now."""
        now = time.monotonic()
        names = [name for name in self._wanted if now < self._ends[name] and self._missing(name)]
        return [] if self._stopped else names

    def _missing(self, name: str) -> list[Any]:
        return [config for config in self._wanted[name] if self._left[config]]

    def _note(self, names: Sequence[str], result: BuildResult, *_: int) -> None:
        """Raises `OutOfTime` if something that is being built is not needed any more."""
        with self._changed:
            self._left[result.config] = self._left[result.config] - 1 if result.ok else 0
            self._changed.notify_all()
        now = time.monotonic()
        if self._stopped or any(now > self._ends[n] and self._missing(n) for n in names):
            raise OutOfTime


def fewer(sample: Sample, count: int, whole: int = 0) -> Sample:
    """At most `count` kernels of each problem: one half are the first ones, which are the
    estimate's; the others are among the `COMMON` that the sample has most, so that few are
    built, and after these any. But one problem of `whole`, by chance, keeps all its kernels that
    are built for some problem."""
    first = count - count // 2
    used = Counter(config for _, chosen in sample.pairs for config in chosen[first:])
    common = {config for config, _ in used.most_common(COMMON)}

    def cut(chosen: Sequence[Any]) -> tuple[Any, ...]:
        others = sorted(chosen[first:], key=lambda config: config not in common)
        return (*chosen[:first], *others[: count - first])

    pairs = [(problem, cut(chosen)) for problem, chosen in sample.pairs]
    built = {config for _, chosen in pairs for config in chosen}
    for at, (problem, chosen) in enumerate(sample.pairs) if whole else ():
        if int(chance(problem), 16) % whole == 0:
            pairs[at] = problem, tuple(config for config in chosen if config in built)
    return replace(sample, pairs=tuple(pairs))


def left(sample: Sample, timed: set[tuple[str, str]]) -> list[Pair]:
    """What of a sample was not timed yet. timed: kernels and problems, as text."""
    pairs = (
        (problem, tuple(c for c in chosen if (c.name, problem_text(problem)) not in timed))
        for problem, chosen in sample.pairs
    )
    return [(problem, chosen) for problem, chosen in pairs if chosen]


def measure(args: argparse.Namespace) -> None:
    begun = time.monotonic()
    part, parts = map(int, args.part.split("/"))
    store, folder = Store(), Path(args.out)
    _unpack(folder)
    found, start = groups(args.devices, store, SETTINGS, timeout=30)
    if len(found) > 1:
        raise SystemExit("the devices are of several kinds: name some with --devices")
    (group,) = found
    shares = {name: CLASSES[name].share for name in args.classes}
    ends = {
        name: begun + args.seconds * sum([*shares.values()][: at + 1]) / sum(shares.values())
        for at, name in enumerate(shares)
    }
    with Results(folder, write=True) as results, start() as crew:
        crew.prepare()
        run = Run(group, crew, results, store, begun + args.seconds)
        timed = _timed(results, group)
        work = {name: left(_part(name, group, args.kernels, part, parts), timed) for name in shares}
        wanted = {} if group.interpreted else {n: Sample(tuple(w)).configs for n, w in work.items()}
        try:
            with Builds(wanted, ends, group.device.arch, store) as builds:
                for name, pairs in work.items():
                    _class(name, pairs, run, builds if wanted else None, ends[name], begun)
                    _pack(folder)
        except OutOfTime:
            print("the time is over")
        finally:
            print(f"{run.made} pairs, {run.wrong} not ok; {time.monotonic() - begun:.0f} s")
            _pack(folder)
    print(f"the end; {time.monotonic() - begun:.0f} s")


def pieces(pairs: Sequence[Pair], most: int) -> Iterator[Sequence[Pair]]:
    """Pairs in pieces to measure at once: small ones first, since their kernels are to be built
    before; then each twice as long, up to `most` problems."""
    start, size = 0, min(FIRST, most)
    while start < len(pairs):
        yield pairs[start : start + size]
        start, size = start + size, min(2 * size, most)


def _class(
    name: str, pairs: Sequence[Pair], run: Run, builds: Builds | None, until: float, begun: float
) -> None:
    """Measure the pairs of a class until then, and say how many."""
    at, before, problems, waited = time.monotonic(), run.made, 0, 0.0
    for some in pieces(pairs, TOGETHER * run.group.count):
        asked = time.monotonic()
        kernels = {config for _, chosen in some for config in chosen}
        ready = builds.wait(kernels, until) if builds else asked < until
        waited += time.monotonic() - asked
        if not ready:
            break
        run.measure(some)
        problems += len(some)
    now = time.monotonic()
    print(
        f"{name}: {run.made - before} pairs of {problems} problems, of {len(pairs)} left, in "
        f"{now - at:.0f} s, {waited:.0f} of them waiting for builds, "
        f"{(run.made - before) / max(now - at, 1e-9):.1f} a second; "
        f"{now - begun:.0f} s since the start",
        flush=True,
    )


def _part(name: str, group: Group, kernels: int, part: int, parts: int) -> Sample:
    few = _wanted(name, kernels, group.device.arch)
    return replace(few, pairs=few.pairs[part::parts])


def _wanted(name: str, kernels: int, arch: str) -> Sample:
    sample = designs.load(SAMPLES / f"{name}.json").legal(arch)
    return sample if CLASSES[name].built else fewer(sample, kernels, WHOLE)


def _timed(results: Results, group: Group) -> set[tuple[str, str]]:
    """The kernels and problems, as text, that were measured as this run would."""
    settings = settings_on(group, SETTINGS).digest
    kept = (outline.key for outline in results.outlines())
    return {(kernel, problem) for kernel, _, problem, _, _, how in kept if how == settings}


def spaces(args: argparse.Namespace) -> None:
    """Say how many kernels serve problems of each kind, and how many are near the best estimate: by
    the dispatcher's spaces, and by these with tuning's."""
    device = arch.device(DEVICE)
    for name in args.classes:
        of = CLASSES[name]
        problems = turns(of, of.problems())[:COUNTED]
        kind = ops.family(problems[0].family).kind
        kinds = sorted({*map(kind, problems)})
        for says, tuned in (("the dispatcher's", False), ("with tuning's", True)):
            kernels = partial(kernels_of, tuned=tuned)
            for slowest in (math.inf, SLOWEST):
                found = designs.in_range(problems, kernels, device, slowest)
                counts = {
                    one: [len(c) for p, c in found.items() if kind(p) == one] for one in kinds
                }
                middle = {one: sorted(some)[len(some) // 2] for one, some in counts.items() if some}
                print(f"{name}, {says}, under {slowest} times the least: {middle}", flush=True)


def plan(args: argparse.Namespace) -> None:
    """Say how many pairs each class has, and how long they take."""
    whole = 0
    for name in args.classes:
        sample = _wanted(name, args.kernels, arch.device(DEVICE).arch)
        share = CLASSES[name].share / sum(CLASSES[one].share for one in args.classes)
        room = share * args.seconds * args.gpus * PAIRS_A_SECOND
        taken = before = 0
        for _, configs in sample.pairs:
            before += len(configs)
            taken += before <= room
        whole += sample.count
        print(
            f"{name}: {taken} of {len(sample.pairs)} problems in {share * args.seconds:.0f} s; "
            f"{len(sample.configs)} kernels, {sample.count} pairs"
        )
    print(f"all of it: {whole} pairs, {whole / PAIRS_A_SECOND:.0f} seconds of a GPU")


def _pack(folder: Path) -> None:
    """Leave the results in one small file, whole at any moment."""
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch, FILE)
        with closing(sqlite3.connect(folder / FILE)) as database:
            database.execute("VACUUM INTO ?", (str(whole),))
        write_whole(folder / PACKED, lzma.compress(whole.read_bytes(), preset=1))


def _unpack(folder: Path) -> None:
    """Begin with what an earlier sitting left, if nothing else is there."""
    if (folder / PACKED).exists() and not (folder / FILE).exists():
        write_whole(folder / FILE, lzma.decompress((folder / PACKED).read_bytes()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for command in ("draw", "spaces", "plan", "measure"):
        one = commands.add_parser(command)
        one.add_argument("--classes", nargs="+", choices=CLASSES, default=[*CLASSES])
        if command in ("plan", "measure"):
            one.add_argument(
                "--kernels", type=int, default=KERNELS, help="of each problem, at most"
            )
        if command == "plan":
            one.add_argument("--seconds", type=float, default=500.0)
            one.add_argument("--gpus", type=int, default=1)
    one.add_argument("--out", required=True, help="folder of the results")
    one.add_argument("--seconds", type=float, default=240.0, help="for all of it, builds included")
    one.add_argument("--part", default="0/1", help="I/N: every N-th problem from the I-th on")
    one.add_argument("--devices", default="all", help="as for `tilewright sweep`")
    args = parser.parse_args()
    if args.command != "draw":
        {"spaces": spaces, "plan": plan, "measure": measure}[args.command](args)
        return
    for name in args.classes:
        sample = draw(name)
        sample.save(SAMPLES / f"{name}.json")
        print(
            f"{name}: {len(sample.pairs)} problems, {len(sample.configs)} kernels, "
            f"{sample.count} pairs",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
