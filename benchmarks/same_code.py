"""Whether the kernels of another commit are the same code: then a claim stands though the sources
of its kernels were written anew.

    python benchmarks/same_code.py COMMIT --each 24 --workers 2

A claim names the digests of its kernels' sources. Of each kernel module whose digest in a claim is
that of COMMIT, or is proven to be the same code, and no longer today's, this builds --each kernels
for sm_90 with both trees, by chance: of those that a dispatcher chooses for the problems of the
cases, then of their default spaces. A kernel that COMMIT has no name for, or cannot
build, is new, and not compared. If all binaries are the same, byte for byte, `same_code.json` says
that the two digests are the same code (`proven`). A binary that differs is printed,
its module is not recorded, and the exit status is 1. ptxas is not quite repeatable: where binaries
differ, the PTX decides.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from proven import FILE, known, same

HERE = Path(__file__).parent
ARCH, DEVICE = "sm_90", "h200_sxm"


# --- in either tree -----------------------------------------------------------------------------


def built(names: Iterable[str], digests: Iterable[str], folder: Path, workers: int) -> Any:
    """By kernel and part the digests of its binary and its PTX; by module its sources' digest."""
    from environment import source_digest
    from tilewright import ops
    from tilewright.canonical import sha256
    from tilewright.compile import Store, build, inspect
    from tilewright.errors import UnknownName

    store, wanted = Store(folder), []
    for name in names:
        with suppress(UnknownName):
            wanted.append((ops.family_of(name).parse_name(name), ARCH))
    report = build(wanted, store=store, workers=workers)
    kernels = {
        f"{one.name} {one.part}": (
            str(one.kernel.blobs[one.kernel.binary]),
            sha256(inspect(one.kernel, store, "ptx").encode()),
        )
        for one in report.results
        if one.kernel is not None
    }
    return {"kernels": kernels, "digests": {module: source_digest(module) for module in digests}}


def asked(tree: Path, names: Iterable[str], modules: Iterable[str], workers: int) -> Any:
    """What `built` says in a tree of sources."""
    with tempfile.TemporaryDirectory() as folder:
        said = json.dumps({"names": [*names], "modules": [*modules], "workers": workers})
        own = {
            "PYTHONPATH": f"{tree / 'src'}:{tree / 'benchmarks'}",
            "TILEWRIGHT_HOME": folder, "TILEWRIGHT_STORE": folder,
        }  # fmt: skip
        command = [sys.executable, str(Path(__file__).resolve()), "--build", folder]
        done = subprocess.run(
            command, input=said, env={**os.environ, **own}, stdout=subprocess.PIPE, text=True,
            check=True,
        )  # fmt: skip
        return json.loads(done.stdout.splitlines()[-1])


# --- what to compare ----------------------------------------------------------------------------


def changed() -> dict[str, set[str]]:
    """Kernel modules with digests in claims that are no longer today's."""
    from claims import load_all
    from environment import source_digest

    found: dict[str, set[str]] = defaultdict(set)
    for claim in load_all().values():
        for modules in (claim.kernels or {}).values():
            for module, digest in modules.items():
                if not same(module, digest, source_digest(module)):
                    found[module].add(digest)
    return found


def kernels_of(modules: Iterable[str], each: int) -> dict[str, set[str]]:
    """Names of kernels by module, `each` of them: first what is chosen for the cases' problems."""
    import cases
    from tilewright import Constraints, ops
    from tilewright.arch import arch
    from tilewright.canonical import sha256
    from tilewright.dispatch import Dispatcher
    from tilewright.errors import TilewrightError

    this, wanted = arch(ARCH), {*modules}
    dispatcher = Dispatcher(device=DEVICE, constraints=Constraints(only_ours=True))
    chosen: dict[str, set[str]] = defaultdict(set)
    more: dict[str, set[str]] = defaultdict(set)

    def note(config: Any, into: dict[str, set[str]]) -> None:
        sources = ops.family(config.family).sources(config, this)
        for source in sources.values():
            for module in source.modules:
                if module in wanted:
                    into[module].add(config.name)

    for case in cases.every().values():
        if not isinstance(case, cases.Case):
            continue
        problems = [*case.problems()]
        for number, problem in enumerate(problems):
            with suppress(TilewrightError):  # no kernel of ours
                note(dispatcher.select(problem).config, chosen)
                if number % max(1, len(problems) // 3) == 0:
                    space = ops.family(problem.family).default_space(problem, this)
                    for config in space.expand(this).configs:
                        note(config, more)
    return {
        module: {
            *sorted(
                chosen[module] | more[module],
                key=lambda name: (name not in chosen[module], sha256(name.encode())),
            )[:each]
        }
        for module in wanted
    }


def compare(commit: str, each: int, workers: int) -> bool:
    """Compare, print and record. Whether all that was compared is the same."""
    digests = changed()
    names = kernels_of(digests, each)
    every = sorted({name for some in names.values() for name in some})
    print(f"{len(digests)} modules changed; {len(every)} kernels", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ("git", "-C", str(HERE.parent), "worktree")
        subprocess.run((*git, "add", "--quiet", "--detach", str(tree), commit), check=True)
        try:
            before = asked(tree, every, digests, workers)
        finally:
            subprocess.run((*git, "remove", "--force", str(tree)), check=True)
    there = {part.split()[0] for part in before["kernels"]}
    after = asked(HERE.parent, there, digests, workers)
    ok = True
    proven = {module: dict(pairs) for module, pairs in known().items()}
    for module, some in sorted(names.items()):
        old, new = before["digests"][module], after["digests"][module]
        parts = [part for part in before["kernels"] if part.split()[0] in some]
        other = [p for p in parts if not _alike(before["kernels"][p], after["kernels"].get(p))]
        for part in other:
            print(f"differs: {part}")
        ok = ok and not other
        of_claims = any(same(module, digest, old) for digest in digests[module])
        if parts and not other and of_claims:
            proven.setdefault(module, {})[old] = new
            print(f"{module}: {len(parts)} kernels of {len(some)} configs are the same")
        elif not of_claims:
            print(f"{module}: no claim was measured with the sources of {commit}")
    said = {"says": __doc__.splitlines()[0], "same": {m: proven[m] for m in sorted(proven)}}
    FILE.write_text(json.dumps(said, indent=1, ensure_ascii=False) + "\n")
    return ok


def _alike(before: Any, after: Any) -> bool:
    return after is not None and (before[0] == after[0] or before[1] == after[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit", nargs="?")
    parser.add_argument("--each", type=int, default=24)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--build", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.build:
        said = json.loads(sys.stdin.read())
        found = built(said["names"], said["modules"], args.build, said["workers"])
        print(json.dumps(found))
        return 0
    return 0 if compare(args.commit, args.each, args.workers) else 1


if __name__ == "__main__":
    sys.exit(main())
