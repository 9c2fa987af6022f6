"""Building with no GPU: 48 kernels cold and warm, one space for six architectures, and whether
two cold builds agree byte for byte.

    python benchmarks/build.py --json benchmarks/results/build.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from environment import environment
from tilewright import KernelSpace
from tilewright.arch import arch
from tilewright.compile import Store, build
from tilewright.errors import EmptySpace

ARCHS = ("sm_80", "sm_90", "gfx90a", "gfx942", "gfx950", "gfx1201")
REPRODUCED = ("sm_90", "gfx90a", "gfx942", "gfx950")


def forty_eight() -> KernelSpace:
    """48 bf16 kernels for sm_90, both pipelines."""
    return KernelSpace(
        "gemm",
        {
            "tile_m": (64, 128),
            "tile_n": (64, 128, 256),
            "num_stages": (2, 3),
            "pipeline": ("basic", "tma"),
            "scheduler": ("tile", "persistent"),
        },
    )


def everywhere() -> KernelSpace:
    """One space for every architecture; what cannot be there is dropped with its rule."""
    return KernelSpace(
        "gemm",
        {
            "dtype_a": ("fp16", "bf16", "fp8", "int8"),
            "tile_m": (64, 128),
            "tile_n": (128,),
            "num_stages": (2, 3),
            "pipeline": ("basic", "tma"),
        },
    )


def timed_process(store: Path) -> float:
    """Wall seconds of a fresh process that has the 48 kernels built in `store`."""
    start = time.monotonic()
    subprocess.run([sys.executable, __file__, "--only-48", str(store)], check=True)
    return time.monotonic() - start


def build_48(store: Path) -> None:
    configs = forty_eight().expand(arch("sm_90")).configs
    assert len(configs) == 48, len(configs)
    build([(c, "sm_90") for c in configs], store=Store(store)).raise_if_failed()


def build_everywhere(store: Path) -> dict[str, dict[str, object]]:
    """Every architecture in one call; what each came to."""
    requests, counts = [], {}
    for name in ARCHS:
        try:
            expansion = everywhere().expand(arch(name))
        except EmptySpace as error:
            raise SystemExit(f"{name}: {error}") from error
        requests += [(config, name) for config in expansion.configs]
        counts[name] = {"legal": len(expansion.configs), "dropped": expansion.summary()}
    report = build(requests, store=Store(store))
    for name in ARCHS:
        mine = [r for r in report.results if r.arch.name == name]
        statuses = {status: sum(r.status == status for r in mine) for status in ("built", "cached")}
        counts[name] |= statuses | {"failed": [str(r) for r in mine if not r.ok]}
    counts["seconds"] = {"wall": round(report.seconds, 2)}
    return counts


def agree(first: Path, second: Path) -> dict[str, object]:
    """Whether two stores hold the same binaries for the same keys."""
    stores = [Store(first), Store(second)]
    kernels = [{k.key: k for k in s.entries() if k.arch in REPRODUCED} for s in stores]
    same = kernels[0].keys() == kernels[1].keys() and all(
        stores[0].read(kernels[0][key]) == stores[1].read(kernels[1][key]) for key in kernels[0]
    )
    return {"archs": REPRODUCED, "kernels": len(kernels[0]), "byte_identical": same}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--only-48", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only_48:
        build_48(options.only_48)
        return
    with tempfile.TemporaryDirectory() as folder:
        stores = [Path(folder, name) for name in ("timed", "one", "two")]
        cold, warm = timed_process(stores[0]), timed_process(stores[0])
        print(f"48 bf16 kernels for sm_90: cold {cold:.1f} s, warm {warm:.2f} s")
        counts = build_everywhere(stores[1])
        for name in ARCHS:
            row = counts[name]
            print(f"{name:8} {row['built']} built, {len(row['failed'])} failed, {row['dropped']}")
        build_everywhere(stores[2])
        identical = agree(stores[1], stores[2])
        print(f"two cold builds: {identical}")
    if options.json:
        document = {
            "environment": environment(),
            "cold_48_seconds": round(cold, 2),
            "warm_48_seconds": round(warm, 2),
            "one_space_everywhere": counts,
            "two_cold_builds": identical,
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=1) + "\n")
        import claims  # here, since the process that builds 48 kernels is timed

        times = {
            "build 48 bf16 kernels for sm_90, cold, a whole process": cold * 1e6,
            "find them again, a whole process": warm * 1e6,
        }
        claims.save_times("host-build", times, options.json)


if __name__ == "__main__":
    main()
