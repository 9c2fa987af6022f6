"""Kernels of every supported Triton on one GPU: are they right, and which are faster?

`pack` builds the same sm_90 kernels under each Triton, with no GPU, in the environments that
benchmarks/versions.py makes, and packs their binaries and manifests into one tar. `run` needs a GPU
and torch, and neither a compiler nor any of these Tritons: it runs each kernel of each Triton on
fresh random data against float64, then times the four of a kind in turns, L2 flushed.

    python benchmarks/versions_gpu.py pack --stores /tmp/stores.tar
    python benchmarks/versions_gpu.py run --stores /tmp/stores.tar --json versions_gpu_h200.json
"""

from __future__ import annotations

import argparse
import json
import platform
import secrets
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from environment import environment
from tilewright import ops, verify
from tilewright.arch.detect import live_device
from tilewright.compile import Kernel, Store, build
from tilewright.dispatch import Dispatcher
from tilewright.errors import TilewrightError
from tilewright.measure import timing
from tilewright.measure.contenders import kernel_bind
from tilewright.measure.measurement import Settings
from tilewright.tables import file
from tilewright.tables.named import FOLDER
from version_kernels import cases
from versions import ROOT, TRITONS, install

ARCH = "sm_90"
GPU = "cuda:0"
MOST_USED = 5
"""Of each shipped table, the kernels that win the most problems."""
MOST_FLOPS = 1.2e12
"""Of a problem: about 8192×8192×8192, whose float64 reference takes a GPU 20 ms."""
SETTINGS = Settings(
    warm_up_seconds=0.02, precision=0.005, min_samples=30, max_samples=60, budget_seconds=0.2
)


def chosen() -> Iterator[tuple[Any, list[Any]]]:
    """Configs, each with the problems to run: the shipped tables' most frequent winners, each with
    the middle and the largest of its problems, then a kernel of each kind in the default spaces."""
    names = set()
    for path in sorted((FOLDER / ARCH).glob("*.json")):
        rows = [row for row in file.load(path) if row.problem.flops <= MOST_FLOPS]
        for name, _ in Counter(row.kernel for row in rows).most_common(MOST_USED):
            names.add(name)
            won = [row.problem for row in rows if row.kernel == name]
            won.sort(key=lambda problem: problem.flops)
            config = ops.family(won[0].family).parse_name(name)
            yield config, [*dict.fromkeys((won[len(won) // 2], won[-1]))]
    for name, (config, problem) in cases(ARCH, 1).items():
        if name not in names:
            yield config, [problem]


def pack(options: argparse.Namespace) -> int:
    """A store for each Triton, in one tar."""
    with tempfile.TemporaryDirectory() as folder:
        for triton in TRITONS:
            home = (options.work / f"python{platform.python_version()}-triton{triton}").resolve()
            refused = install(sys.executable, triton, home)
            if refused:
                raise SystemExit(f"triton {triton}: {refused}")
            command = [home / "bin" / "python", __file__, "build", "--store"]
            subprocess.run([*command, Path(folder) / triton], check=True)
        with tarfile.open(options.stores, "w") as tar:
            for path in sorted(Path(folder).rglob("*")):
                if path.is_file():
                    tar.add(path, path.relative_to(folder))
    print(f"{options.stores}: {options.stores.stat().st_size / 1e6:.1f} MB")
    return 0


def build_here(options: argparse.Namespace) -> int:
    """Build under this environment's Triton, and keep manifests and binaries only."""
    store = Store(options.store)
    report = build([(config, ARCH) for config, _ in chosen()], store=store, workers=2)
    print(report)
    report.raise_if_failed()
    wanted = {kernel.blobs[kernel.binary].digest for kernel in store.entries()}
    for path in options.store.rglob("*"):
        if path.is_file() and path.suffix != ".json" and path.name not in wanted:
            path.unlink()
    return 0


class Prebuilt(Dispatcher):
    """Runs kernels out of a store by name, whichever Triton made them."""

    def __init__(self, store: Store) -> None:
        super().__init__(store=store, build_missing=False)
        self.kernels = {kernel.name: kernel for kernel in store.entries()}

    def _kernel(self, config: Any, target: Any) -> tuple[Kernel, bytes]:
        kernel = self.kernels[config.name]
        return kernel, self.store.read(kernel)


def run(options: argparse.Namespace) -> int:
    """Verify everything, then time; results are written after each kernel."""
    start = time.monotonic()
    document: dict[str, Any] = {"environment": environment(), "kernels": []}
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(options.stores) as tar:
            tar.extractall(folder, filter="data")
        made = {t: Prebuilt(Store(Path(folder) / t, trusted=True)) for t in TRITONS}
        document["made_by"] = {
            triton: sorted({kernel.triton for kernel in dispatcher.kernels.values()})
            for triton, dispatcher in made.items()
        }
        todo = [*chosen()]
        for triton, dispatcher in made.items():
            missing = [config.name for config, _ in todo if config.name not in dispatcher.kernels]
            if missing:
                raise SystemExit(f"the store of triton {triton} lacks {missing}; pack it anew")
        flush = timing.flusher(live_device(0).l2_bytes, GPU)
        for number, (config, problems) in enumerate(todo, 1):
            found: dict[str, Any] = {"name": config.name, "resources": {}, "problems": []}
            document["kernels"].append(found)
            for triton, dispatcher in made.items():
                resources = dispatcher.kernels[config.name].resources
                found["resources"][triton] = [resources.registers, resources.spill_bytes]
            for problem in problems:
                found["problems"].append(one(config, problem, made, flush))
                if time.monotonic() - start > options.seconds:
                    document["left_out"] = len(todo) - number
                    break
            _write(options.json, document)
            print(f"{number}/{len(todo)} {config.name}: {_said(found['problems'])}", flush=True)
            if "left_out" in document:
                print(f"{options.seconds} s are over: {document['left_out']} kernels left out")
                break
    document["summary"] = summary(document["kernels"])
    _write(options.json, document)
    print(json.dumps(document["summary"], indent=1))
    return any(s["wrong"] for s in document["summary"].values())


def one(
    config: Any, problem: Any, made: Mapping[str, Dispatcher], flush: timing.Call
) -> dict[str, Any]:
    """How far each Triton's output is from float64, and the time of those that are right."""
    seed = secrets.randbits(31)
    operands = verify.operands_of(problem, seed, GPU)
    before = verify.snapshot(problem, operands.inputs)
    wanted = verify.reference(problem, operands.inputs)
    found: dict[str, Any] = {"problem": str(problem), "seed": seed, "worst": {}, "errors": {}}
    calls = {}
    for triton, dispatcher in made.items():
        call = kernel_bind(dispatcher, config.name, problem)(operands.inputs, operands.outputs)
        verify.reset(operands, before)
        try:
            call()
            check = verify.compare_all(problem, config, operands.written(problem), wanted)
        except TilewrightError as error:
            found["errors"][triton] = str(error)
            continue
        found["worst"][triton] = check.worst
        if check.ok:
            calls[triton] = [call]
        else:
            found["errors"][triton] = str(check)
    taken = timing.measure(calls, timing.Events(flush, GPU), SETTINGS) if calls else {}
    found["median_us"] = {t: statistics.median(s.samples_us) for t, s in taken.items()}
    found["interval_us"] = {t: s.interval_us for t, s in taken.items()}
    found["samples"] = {t: len(s.samples_us) for t, s in taken.items()}
    return found


def summary(kernels: list[dict[str, Any]]) -> dict[str, Any]:
    """Of each Triton: products run and wrong, and the first Triton's time over its (above 1:
    faster)."""
    products = [(k["name"], p) for k in kernels for p in k["problems"]]
    said = {}
    for triton in TRITONS:
        times = [
            (p["median_us"][TRITONS[0]] / p["median_us"][triton], name, p["problem"])
            for name, p in products
            if triton in p["median_us"] and TRITONS[0] in p["median_us"]
        ]
        ratios = [ratio for ratio, *_ in times] or [1.0]
        said[triton] = {
            "products": len(products),
            "wrong": sum(triton in p["errors"] for _, p in products),
            "geomean": round(statistics.geometric_mean(ratios), 4),
            "slowest": sorted(times)[:5],
            "fastest": sorted(times)[-5:],
        }
    return said


def _said(problems: list[dict[str, Any]]) -> str:
    words = []
    for p in problems:
        words += [f"{triton} WRONG: {error}" for triton, error in p["errors"].items()]
        words.append(" ".join(f"{us:.1f}" for us in p["median_us"].values()) + " µs")
    return "; ".join(words)


def _write(path: Path | None, document: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(document, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    packing = commands.add_parser("pack", help="build under each Triton, with no GPU")
    packing.add_argument("--stores", type=Path, required=True, help="the tar to write")
    packing.add_argument("--work", type=Path, default=ROOT / ".venv" / "versions")
    packing.set_defaults(command=pack)
    building = commands.add_parser("build", help="build under this environment's Triton")
    building.add_argument("--store", type=Path, required=True)
    building.set_defaults(command=build_here)
    running = commands.add_parser("run", help="verify and time on a GPU")
    running.add_argument("--stores", type=Path, required=True, help="the tar that pack wrote")
    running.add_argument("--seconds", type=float, default=210, help="begin nothing after these")
    running.add_argument("--json", type=Path, help="where to write the results")
    running.set_defaults(command=run)
    options = parser.parse_args()
    return int(options.command(options))


if __name__ == "__main__":
    sys.exit(main())
