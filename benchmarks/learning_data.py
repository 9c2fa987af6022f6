"""Measure what learned selection learns from: many kernels, good and bad ones, on problems of real
models.

    python benchmarks/learning_data.py draw                 # choose the pairs; needs scipy, no GPU
    python benchmarks/learning_data.py measure --seconds 240 --out DIR --part 0/2

`draw` writes a sample for each class of problems into cases/learning (`measure.designs`). `measure`
takes the samples in the order of `CLASSES`, each for its share of the time, on every GPU of the
machine. Kernels are built on the processor's cores, those of the next class while the GPUs measure.
Every kernel is verified, then timed in replayed CUDA graphs. A class's problems are in an order by
which any beginning of it is a fair draw; `--part i/n` takes every n-th of them, from the i-th on.
Results already in DIR are not measured again. `measure` leaves them packed in results.db.xz.
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
import os
import sqlite3
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from tilewright import arch, ops
from tilewright.compile import Store, build
from tilewright.measure import designs
from tilewright.measure.database import FILE
from tilewright.measure.designs import Design, Sample
from tilewright.measure.groups import groups
from tilewright.measure.measurement import Measurement, Settings
from tilewright.measure.problems import load_problems
from tilewright.measure.results import Results
from tilewright.measure.sweep import Crew, Group, plan_some, sweep

SAMPLES = Path(__file__).parent / "cases" / "learning"
DEVICE = "h200_sxm"
PACKED = "results.db.xz"

SETTINGS = Settings(
    cache="rotated", timer="graph", warm_up_seconds=0.01, min_samples=3, max_samples=3,
    budget_seconds=5.0, interleave=32,
)  # fmt: skip
"""A sample of a graph is the mean of 20 calls and more, so three are enough to rank by."""
TOGETHER = 8
"""Problems that are measured between two looks at the clock."""
SPARED_CORES = 3
"""Cores that builds leave to the processes that measure."""


@dataclass(frozen=True, slots=True)
class Class:
    """A class of problems, and how many pairs are drawn of it.

    problems: all that there are. kin: problems of one kin tell the least about each other's.
    most_flops: no larger problem is drawn: it costs more time than small ones teach.
    share: of the time.
    tuned: whether kernels that only a tuning chooses from are drawn too.
    """

    problems: Callable[[], Sequence[Any]]
    kin: Callable[[Any], Hashable]
    count: int
    design: Design
    most_flops: float
    share: float
    tuned: bool


def _listed(*sets: str) -> Sequence[Any]:
    return load_problems(
        sets, arch.arch(arch.device(DEVICE).arch), None, {"dtype": "bf16"}
    ).problems


def _convolutions(direction: str) -> Class:
    """Layers of images without groups, of channels that tensor cores multiply by whole vectors: of
    other kinds, each problem has kernels of its own."""
    return Class(
        lambda: [
            replace(p, direction=direction)
            for p in _listed("conv:full")
            if len(p.spatial) == 2 and p.groups == 1 and p.c % 8 == p.k % 8 == 0
        ],
        lambda p: (p.c, p.k, p.filter, p.stride, p.pad, p.dilation),
        128, Design(48, first=6, pool=64), 6e10, 0.17, False,
    )  # fmt: skip


CLASSES = {
    "gemm": Class(
        lambda: _listed("gemm:full"),
        lambda p: (p.n, p.k),
        320, Design(64, pool=200), 1.5e11, 0.3, False,
    ),
    "conv_forward": _convolutions("forward"),
    "conv_data": _convolutions("data"),
    "conv_weights": _convolutions("weights"),
    "attention": Class(
        lambda: load_problems(
            ("attention:prefill", "attention:decode"), arch.arch("sm_90")
        ).problems,
        lambda p: (p.heads, p.kv_heads, p.head_dim, p.head_dim_v),
        120, Design(48, first=6, pool=96), 1e11, 0.19, True,
    ),
}  # fmt: skip


def drawn(of: Class) -> list[Any]:
    """Problems by chance, the first of each kin before the second of any."""

    def chance(problem: Any) -> str:
        return hashlib.sha256(str(problem).encode()).hexdigest()

    turns: dict[Hashable, int] = defaultdict(int)
    placed = []
    for problem in sorted(of.problems(), key=chance):
        if problem.flops <= of.most_flops:
            kin = of.kin(problem)
            placed.append((turns[kin], chance(problem), problem))
            turns[kin] += 1
    return [problem for _, _, problem in sorted(placed)[: of.count]]


def draw(name: str) -> Sample:
    """The sample of a class."""
    of, device = CLASSES[name], arch.device(DEVICE)
    this = arch.arch(device.arch)
    expanded: dict[str, tuple[Any, ...]] = {}

    @cache
    def candidates(problem: Any) -> tuple[Any, ...]:
        family = ops.family(problem.family)
        spaces = [family.default_space(problem, this)]
        if of.tuned:
            spaces += family.tuning_spaces(problem, this)
        for space in spaces:
            if str(space) not in expanded:
                expanded[str(space)] = space.expand(this).configs
        found = (config for space in spaces for config in expanded[str(space)])
        return tuple(dict.fromkeys(found))

    return designs.sample(drawn(of), candidates, device, of.design)


# --- measuring --------------------------------------------------------------------------------


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

    def measure(self, sample: Sample, until: float) -> int:
        """Measure pairs until then; returns of how many problems."""
        for at in range(0, len(sample.pairs), TOGETHER):
            if time.monotonic() > until:
                return at
            some = [(self.group, sample.pairs[at : at + TOGETHER])]
            this = plan_some(some, SETTINGS, self.results.keys(), vendor=False)
            sweep(this, self.results, self.store, lambda: Lent(self.crew), measuring=self.counting)
        return len(sample.pairs)


def measure(args: argparse.Namespace) -> None:
    begun = time.monotonic()
    part, parts = map(int, args.part.split("/"))
    store = Store()
    found, start = groups(args.devices, store, SETTINGS, timeout=30)
    if len(found) > 1:
        raise SystemExit("the devices are of several kinds: name some with --devices")
    (group,) = found
    samples = {name: _part(name, group, part, parts) for name in args.classes}
    workers = max(1, len(os.sched_getaffinity(0)) - SPARED_CORES)

    def built(name: str) -> str:
        wanted = [(config, group.device.arch) for config in samples[name].configs]
        return str(build(wanted, store=store, workers=workers))

    with Results(args.out, write=True) as results, start() as crew, ThreadPoolExecutor(1) as pool:
        crew.prepare()
        run = Run(group, crew, results, store, begun + args.seconds)
        building: dict[str, Future[str]] = {
            name: pool.submit(built, name) for name in samples if not group.interpreted
        }
        until = begun
        try:
            for name, sample in samples.items():
                until += (
                    args.seconds * CLASSES[name].share / sum(CLASSES[one].share for one in samples)
                )
                said = building[name].result() if name in building else "nothing to build"
                at, before = time.monotonic(), run.made
                problems = run.measure(sample, until)
                took = time.monotonic() - at
                print(
                    f"{name}: {said}; {run.made - before} pairs of {problems} problems in "
                    f"{took:.0f} s, {(run.made - before) / max(took, 1e-9):.1f} a second; "
                    f"{time.monotonic() - begun:.0f} s since the start",
                    flush=True,
                )
        except OutOfTime:
            print(f"{name}: the time is over")
        for one in building.values():
            one.cancel()
    print(f"{run.made} pairs, {run.wrong} not ok; {time.monotonic() - begun:.0f} s")
    _pack(Path(args.out))


def _part(name: str, group: Group, part: int, parts: int) -> Sample:
    sample = designs.load(SAMPLES / f"{name}.json").legal(group.device.arch)
    return replace(sample, pairs=sample.pairs[part::parts])


def _pack(folder: Path) -> None:
    """Leave the results in one small file."""
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch, FILE)
        with sqlite3.connect(folder / FILE) as database:
            database.execute("VACUUM INTO ?", (str(whole),))
        (folder / PACKED).write_bytes(lzma.compress(whole.read_bytes(), preset=6))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for command in ("draw", "measure"):
        one = commands.add_parser(command)
        one.add_argument("--classes", nargs="+", choices=CLASSES, default=[*CLASSES])
    one.add_argument("--out", required=True, help="folder of the results")
    one.add_argument("--seconds", type=float, default=240.0, help="for all of it, builds included")
    one.add_argument("--part", default="0/1", help="I/N: every N-th problem from the I-th on")
    one.add_argument("--devices", default="all", help="as for `tilewright sweep`")
    args = parser.parse_args()
    if args.command == "measure":
        measure(args)
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
