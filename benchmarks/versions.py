"""Build and interpret under every supported Triton, each in an environment of its own.

For each Triton: pip installs Tilewright beside it, a few kernels of each kind in the default spaces
are built for sm_90 and gfx942, and the interpreter's tests run. What differs from the first
Triton in registers and spills is listed. `--torch` instead asks pip which Triton it would install
with Tilewright beside each torch, and installs nothing.

    python benchmarks/versions.py --json benchmarks/results/versions.json
    python benchmarks/versions.py --short --triton newest \\
        --python python3.10 python3.12 python3.13 --json benchmarks/results/versions_python.json
    python benchmarks/versions.py --torch --json benchmarks/results/versions_torch.json
    python benchmarks/versions.py --short --triton newest   # CI

Environments lie in `--work`, are kept, and used again. Exits with 1 if a kernel fails to build or a
test fails.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from environment import environment

HERE = Path(__file__).parent
ROOT = HERE.parent
TRITONS = ("3.6.0", "3.7.1", "3.8.0", "3.9.0")
"""The newest patch of each supported release."""
NEWEST_FOR_3_10 = "3.8.0"
"""Triton 3.9 has no wheels for Python 3.10."""
TORCHES = ("2.8", "2.9", "2.10", "2.11", "2.12", "2.13", "2.14", "2.15")
TESTS = (
    "tests/runtime/test_interpreted_numbers.py",
    "tests/runtime/test_interpreted_memory.py",
    "tests/runtime/test_interpreter.py",
    "tests/gemm/test_gemm_interpreted.py",
)
CHOSEN = "not quick"
"""Of these, those that do not depend on how busy the machine is."""
SHORT = "(bit or dot or gemm) and not quick"
"""Of the first file, those that `--short` runs: copies, products."""


def main() -> int:
    options = _options()
    document: dict[str, Any] = {"environment": environment(), "runs": []}
    if options.torch:
        for torch in TORCHES:
            document["runs"].append(beside(torch))
            print(document["runs"][-1])
            _write(options.json, document)
        return 0
    for python in options.python:
        for triton in options.triton:
            document["runs"].append(one(python, triton, options))
            _compare(document["runs"])
            _write(options.json, document)
    return sum(_say(run) for run in document["runs"]) > 0


def one(python: str, triton: str, options: argparse.Namespace) -> dict[str, Any]:
    """What came of one Triton under one Python."""
    version = _said([python, "-c", "import platform; print(platform.python_version())"])
    if triton == "newest":
        triton = NEWEST_FOR_3_10 if version.startswith("3.10.") else TRITONS[-1]
    run: dict[str, Any] = {"triton": triton, "python": version, "date": _now()}
    start = time.monotonic()
    folder = (options.work / f"python{version}-triton{triton}").resolve()
    refused = install(python, triton, folder)
    run["install_seconds"] = round(time.monotonic() - start, 1)
    if refused:
        return {**run, "refused": refused}
    built = build(folder, 1 if options.short else options.each)
    packages = built.pop("environment")["packages"]
    tests = (
        interpret(folder, TESTS[:1], SHORT) if options.short else interpret(folder, TESTS, CHOSEN)
    )
    return {**run, "packages": packages, **built, "interpreter": tests}


def install(python: str, triton: str, folder: Path) -> str:
    """Have Tilewright beside this Triton, as pip resolves it, in `folder`. Why not, or ``""``."""
    ready = folder / "ready"
    asked = [ROOT / "pyproject.toml", ROOT / "constraints.txt"]
    if ready.exists() and all(x.stat().st_mtime < ready.stat().st_mtime for x in asked):
        return ""
    subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
    others = [x for x in (ROOT / "constraints.txt").read_text().splitlines() if x[:6] != "triton"]
    pins = folder / "constraints.txt"
    pins.write_text("\n".join(others))
    tools = ("pytest", "pytest-timeout", "hypothesis")
    command = [folder / "bin" / "pip", "install", "--quiet", "--constraint", pins]
    done = subprocess.run(
        [*command, "--editable", ROOT, f"triton=={triton}", *tools],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        errors = [x for x in done.stderr.splitlines() if x.startswith("ERROR")]
        return " ".join(errors) or done.stderr[-500:]
    ready.touch()
    return ""


def build(folder: Path, each: int) -> dict[str, Any]:
    """The kernels by architecture and status, and what they take of the GPU."""
    result = folder / "kernels.json"
    command = [folder / "bin" / "python", HERE / "version_kernels.py", "--each", str(each)]
    subprocess.run([*command, "--json", result], check=True, env=_environment(folder))
    found = json.loads(result.read_text())
    archs: dict[str, Any] = {}
    resources: dict[str, Any] = {}
    for kernel in found["kernels"]:
        arch, status = kernel["arch"], kernel["status"]
        here = archs.setdefault(arch, {"built": 0, "rejected": [], "failed": []})
        if status == "built":
            here["built"] += 1
            resources[f"{kernel['name']} {arch}"] = kernel["resources"]
        else:
            here[status].append({"name": kernel["name"], "reason": kernel["reason"]})
    return {
        "environment": found["environment"],
        "build_seconds": found["seconds"],
        "archs": archs,
        "resources": resources,
    }


def interpret(folder: Path, files: Sequence[str], chosen: str) -> dict[str, Any]:
    """The interpreter's tests: how many passed and failed, and which."""
    report = folder / "tests.xml"
    report.unlink(missing_ok=True)
    command = [folder / "bin" / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *files, "-k", chosen, f"--junit-xml={report}"],
        cwd=ROOT,
        env=_environment(folder),
        capture_output=True,
        text=True,
        check=False,
    )
    if not report.exists():
        raise SystemExit(f"pytest did not run under {folder.name}:\n{done.stdout}{done.stderr}")
    suite = next(ET.parse(report).iter("testsuite"))
    total, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
    bad = [
        f"{case.get('name')}: {(outcome.get('message') or '')[:200]}"
        for case in suite.iter("testcase")
        for outcome in case
        if outcome.tag in ("failure", "error")
    ]
    return {
        "files": files,
        "chosen": chosen,
        "passed": total - skipped - len(bad),
        "skipped": skipped,
        "failed": bad,
        "seconds": round(float(suite.get("time", 0)), 1),
    }


def beside(torch: str) -> dict[str, Any]:
    """The Triton that the newest patch of this torch asks for, and the one that pip would install
    with Tilewright to satisfy both. torch's CUDA libraries are not resolved."""
    found: dict[str, Any] = {"torch": torch, "python": platform.python_version(), "date": _now()}
    chosen, refused = _resolved("--no-deps", f"torch=={torch}.*")
    if not refused and "+" in (version := chosen["torch"]["version"]):  # built for CPUs alone
        chosen, refused = _resolved("--no-deps", f"torch==={version.partition('+')[0]}")
    if refused:
        return {**found, "refused": refused}
    wanted = chosen["torch"]["requires_dist"]
    found |= {
        "torch": chosen["torch"]["version"],
        "requires_python": chosen["torch"]["requires_python"],
    }
    found["asks"] = [x for x in wanted if x.startswith("triton")]
    chosen, refused = _resolved(str(ROOT), *found["asks"])
    if refused:
        return {**found, "refused": refused}
    return {**found, **{name: chosen[name]["version"] for name in ("triton", "numpy")}}


def _resolved(*asked: str) -> tuple[dict[str, Any], str]:
    """The metadata of what pip would install, by name; or why it would not."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        done = subprocess.run(
            [*command, "--report", report, *asked], capture_output=True, text=True, check=False
        )
        if done.returncode:
            return {}, " ".join(x for x in done.stderr.splitlines() if x.startswith("ERROR"))
        installed = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    return {item["name"]: item for item in installed}, ""


def _compare(runs: list[dict[str, Any]]) -> None:
    """Beside each run, how its kernels' registers and spills differ from the first run's, whose
    own stay; kernels that are the same are counted."""
    first = runs[0].get("resources", {})
    for run in runs[1:]:
        mine = run.pop("resources", None)
        if mine is None:
            continue
        both = [name for name in first if name in mine]
        fields = ("registers", "spill_bytes")
        changed = {
            name: {f: [first[name][f], mine[name][f]] for f in fields}
            for name in both
            if any(first[name][f] != mine[name][f] for f in fields)
        }
        registers = [c["registers"] for c in changed.values()]
        spills = {name: c["spill_bytes"] for name, c in changed.items()}
        run["against_first"] = {
            "compared": len(both),
            "more_registers": sum(x > y for y, x in registers),
            "fewer_registers": sum(x < y for y, x in registers),
            "spill_more": [n for n, (y, x) in spills.items() if x > y],
            "spill_less": [n for n, (y, x) in spills.items() if x < y],
            "changed": changed,
        }


def _say(run: dict[str, Any]) -> bool:
    """Print a run in one line; whether anything in it failed."""
    line = f"triton {run['triton']} python {run['python']}:"
    if "refused" in run:
        print(line, run["refused"])
        return True
    for arch, found in run["archs"].items():
        line += f" {arch} {found['built']} built, {len(found['rejected'])} rejected,"
        line += f" {len(found['failed'])} failed;"
    tests = run["interpreter"]
    print(f"{line} interpreter {tests['passed']} passed, {len(tests['failed'])} failed")
    failed = [f for found in run["archs"].values() for f in found["failed"]]
    for what in (*(f"{f['name']}: {f['reason']}" for f in failed), *tests["failed"]):
        print(f"  {what}")
    return bool(failed or tests["failed"])


def _environment(folder: Path) -> dict[str, str]:
    """This process's, for the Python in `folder`: nothing is found but by its own paths."""
    left_out = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**kept, "TILEWRIGHT_HOME": str(folder / "home")}


def _said(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _write(path: Path | None, document: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(document, indent=1) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--triton", nargs="+", default=list(TRITONS), help="versions, or newest")
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters")
    parser.add_argument("--each", type=int, default=2, help="kernels of each kind")
    parser.add_argument("--short", action="store_true", help="one kernel of each kind, few tests")
    parser.add_argument(
        "--torch", action="store_true", help="only ask pip what goes with each torch"
    )
    parser.add_argument("--work", type=Path, default=ROOT / ".venv" / "versions")
    parser.add_argument("--json", type=Path, help="where to write the results")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
