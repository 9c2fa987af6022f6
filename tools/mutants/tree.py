"""The work folder: the sample, and copies of the repository with the woven files.

sample.json             the mutants that were drawn, with their rooms and numbers
tree-0, tree-1          a copy for each process that runs tests
short-map-0.jsonl       what the suite `short` reaches: a line for each test
short-outcomes.jsonl    what became of the mutants under that suite: a line for each
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import probe
from .changes import Mutant, Text, mutants
from .places import Place, Uses
from .rooms import PACKAGE, rooms
from .weave import can_be_woven, woven

ROOT = Path(__file__).resolve().parents[2]
PROBE = Path("src/tilewright_probe.py")
STATE = PROBE.with_suffix(".state")


@dataclass(frozen=True)
class Drawn:
    """A mutant of the sample. Its number stays its own while other mutants come and go."""

    number: int
    room: str
    mutant: Mutant


@dataclass(frozen=True)
class Work:
    """The work folder, for a number of processes."""

    folder: Path
    jobs: int

    def tree(self, job: int) -> Path:
        return self.folder / f"tree-{job}"

    def maps(self, suite: str) -> list[Path]:
        return sorted(self.folder.glob(f"{suite}-map-*.jsonl"))

    def map(self, suite: str, job: int) -> Path:
        return self.folder / f"{suite}-map-{job}.jsonl"

    def outcomes(self, suite: str) -> Path:
        return self.folder / f"{suite}-outcomes.jsonl"

    def sample(self) -> list[Drawn]:
        path = self.folder / "sample.json"
        if not path.exists():
            return []
        read: list[dict[str, Any]] = json.loads(path.read_text())
        return [Drawn(one["number"], one["room"], Mutant(**one["mutant"])) for one in read]

    def write(self, chosen: Sequence[Drawn]) -> None:
        written = [asdict(one) for one in chosen]
        (self.folder / "sample.json").write_text(json.dumps(written, indent=1))

    def draw(self, count: int, seed: int) -> list[Drawn]:
        """Draw the sample, and make the trees anew with it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        before = {one.mutant.key: one.number for one in self.sample()}
        free = iter(range(max(before.values(), default=0) + 1, count + len(before) + 1))
        chosen = [
            Drawn(before.get(one.key) or next(free), room, one)
            for room, some in sampled(ROOT, count, seed).items()
            for one in some
        ]
        self.write(chosen)
        for job in range(self.jobs):
            copy(ROOT, self.tree(job))
            weave(self.tree(job), {one.number: one.mutant for one in chosen})
        return chosen


def sampled(tree: Path, count: int, seed: int) -> dict[str, list[Mutant]]:
    """As many of each room as of every other, to one; all of a room that has fewer."""
    by_room = {}
    for room, files in rooms(tree).items():
        every = [one for file in files for one in _woven_mutants(tree, file)]
        by_room[room] = sorted(every, key=lambda one: one.turn(seed))
    taken = dict.fromkeys(by_room, 0)
    while sum(taken.values()) < count and (
        more := [r for r in taken if taken[r] < len(by_room[r])]
    ):
        for room in sorted(more, key=lambda room: taken[room])[: count - sum(taken.values())]:
            taken[room] += 1
    return {room: by_room[room][:number] for room, number in taken.items()}


def _woven_mutants(tree: Path, file: str) -> list[Mutant]:
    text = (tree / file).read_bytes()
    return mutants(file, text) if can_be_woven(text) else []


def copy(root: Path, to: Path) -> None:
    """The repository as git sees it, changes that are not committed included."""
    shutil.rmtree(to, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, check=True, capture_output=True, text=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (root / name).exists():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name)


def weave(tree: Path, numbered: Mapping[int, Mutant]) -> None:
    """Put the mutants into the files of a copy, and the probe beside the package."""
    texts = {
        path.relative_to(tree).as_posix(): path.read_bytes()
        for path in sorted((tree / PACKAGE).rglob("*.py"))
        if "kernels" not in path.parts and "device" not in path.parts
    }
    texts = {file: text for file, text in texts.items() if can_be_woven(text)}
    uses = Uses.of({file: Text(text) for file, text in texts.items()})
    here: dict[str, list[tuple[int, Mutant]]] = defaultdict(list)
    used: dict[str, list[tuple[int, Place]]] = defaultdict(list)
    for number, one in numbered.items():
        here[one.file].append((number, one))
        if one.at_import:
            for place in uses.places_of(one):
                used[place[0]].append((number, place))
    for file in {*here, *used}:
        (tree / file).write_bytes(woven(texts[file], here[file], used[file]))
    shutil.copy2(Path(probe.__file__), tree / PROBE)
    (tree / STATE).write_bytes(bytes(probe.NUMBER_BYTES + max(numbered, default=0) + 1))


def switch(tree: Path, number: int) -> None:
    """Turn one mutant on in a tree, for processes that begin; 0: none."""
    with (tree / STATE).open("r+b") as file:
        file.write(number.to_bytes(probe.NUMBER_BYTES, "little"))


def pytest(tree: Path, words: list[str], quiet: bool = False) -> int:
    """Run pytest in a tree, where everything is imported from the tree. Returns its exit code."""
    path = [tree / "src", tree / "tools", tree / "docs" / "site"]
    command = [os.sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "TILEWRIGHT_TEST_STORE": os.fspath(tree.parent / "kernels"),
    }
    out = subprocess.DEVNULL if quiet else None
    done = subprocess.run(
        [*command, "-p", "mutants.plugin", *words], cwd=tree, env=env, check=False, stdout=out
    )
    return done.returncode
