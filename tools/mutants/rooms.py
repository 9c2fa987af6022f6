"""Which files belong to which room. Kernels are no host code: `benchmarks/emulation_mutations.py`
puts faults into them."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path("src/tilewright")

_RULES = ("cdna", "warpgroups", "swap", "sizes", "small_m", "scales", "lowbit", "shuffle", "pre",
          "batch", "warps", "two_stage", "odd_tiles", "legality", "support")  # fmt: skip
_MEASURED = ("algorithms", "compare", "counting", "database", "export", "filters", "groups",
             "measurement", "merge", "problems*", "progress", "queries", "results", "roofline",
             "statistics", "summary")  # fmt: skip

ROOMS: dict[str, tuple[str, ...]] = {
    "dispatch": (
        "dispatch.py",
        "ready.py",
        "launchable.py",
        "loader.py",
        "calls.py",
        "operation.py",
    ),
    "plan": ("plan.py", "candidates.py", "explain.py", "capturing.py"),
    "select": ("select/*.py",),
    "tables": ("tables/*.py",),
    "launcher": ("runtime/*.py", "runtime/python_launcher/*.py"),
    "estimates": (
        "ops/estimate.py",
        "ops/*/estimate*.py",
        "ops/*/rates.py",
        "ops/conv/pipelines/*/estimate.py",
    ),
    "rules": ("ops/*/rules.py", *(f"ops/gemm/{name}.py" for name in _RULES)),
    "masks": tuple(f"ops/attention/{n}.py" for n in ("mask", "rows", "reach", "splits", "append")),
    "geometry": tuple(
        f"ops/conv/{n}.py" for n in ("geometry", "windows", "boxes", "runs", "subpixel", "sharing")
    ),
    "bundles": ("bundle/*.py",),
    "serving": ("serving/*.py", "flash_attn/*.py"),
    "torch": ("torch/*.py",),
    "registry": ("registry.py",),
    "space": ("space.py", "space_file.py"),
    "tune": ("tune/*.py",),
    "measure": tuple(f"measure/{name}.py" for name in _MEASURED),
    "custom": ("custom/*.py",),
    "arch": ("arch/*.py",),
    "words": (
        "signature.py",
        *(f"ops/{name}.py" for name in ("spelling", "keywords", "help", "foreign", "formats")),
        "ops/*/words.py",
        "ops/*/stated.py",
        "ops/*/names.py",
    ),
}
"""Patterns below the package. A file belongs to the first room that names it. Of `measure`, what
needs no GPU."""


def rooms(tree: Path) -> dict[str, list[str]]:
    """The files of each room, relative to `tree`."""
    taken: set[str] = set()
    found: dict[str, list[str]] = {}
    for room, patterns in ROOMS.items():
        files = {
            path.relative_to(tree).as_posix()
            for pattern in patterns
            for path in (tree / PACKAGE).glob(pattern)
        }
        found[room] = sorted(files - taken)
        taken |= files
    return found
