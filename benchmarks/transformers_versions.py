"""The tests of `tilewright.transformers` under other versions of transformers.

    python benchmarks/transformers_versions.py 5.20.0 5.24.0

Each version is installed into a folder of its own, with what it needs where this environment has
other versions, and stands before this environment's. Prints a line for each; exits with 1 if a
test failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests" / "under_transformers"


def run(version: str, folder: str) -> bool:
    """Whether all tests pass under a version. Raises `CalledProcessError` if pip has none."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder]
    subprocess.run([*pip, f"transformers=={version}"], check=True)
    paths = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    seen = "import transformers; print(transformers.__version__)"
    said = subprocess.run(
        [sys.executable, "-c", seen], env=environment, check=True, capture_output=True, text=True
    ).stdout.strip()
    tests = [sys.executable, "-m", "pytest", "-q", "--selection", "all", str(TESTS)]
    done = subprocess.run(tests, env=environment, cwd=ROOT, capture_output=True, text=True)
    print(f"transformers {said}: {done.stdout.strip().splitlines()[-1]}", flush=True)
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs="+")
    passed = []
    for version in parser.parse_args().versions:
        with tempfile.TemporaryDirectory() as folder:
            passed.append(run(version, folder))
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
