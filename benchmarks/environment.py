"""The environment of a measurement; every result file carries it.

A machine with a GPU often has a copy of the tree without its commits. There the variable
TILEWRIGHT_COMMIT says which commit it is, with what this prints in the checkout:

    python benchmarks/environment.py
"""

from __future__ import annotations

import ast
import datetime
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.arch.model import Arch

# Some scripts time a whole process: the package is imported where it is needed.

PACKAGES = ("tilewright", "triton", "torch", "numpy")
COMMIT = "TILEWRIGHT_COMMIT"
"""The variable that says the commit of a copy."""
_CHANGED = "-changed"
_MEASURING = ("src", "benchmarks", ":!benchmarks/results", ":!benchmarks/claims")
"""The files that a measurement depends on. Results of a run before do not change the tree."""

ROOT = Path(__file__).resolve().parent.parent

Sources = dict[str, dict[str, str]]
"""By ``family/pipeline``, then by kernel module: the digest of `source_digest`."""


def environment() -> dict[str, Any]:
    """What a measurement was made with. No host name and no path. Null where it is not known.

    commit: of the tree, 40 digits.
    changed: whether the package or a benchmark differed from the commit.
    cpu, cores (that this process may use), platform, python, packages (versions).
    gpu: the current GPU's name.
    driver: the version of the GPU's kernel module.
    cuda: the toolkit that torch was built with.
    cublas, cudnn: the loaded libraries' versions, as these number themselves.
    clocks: MHz now and at most, of the SMs and of the memory; needs nvidia-ml-py.
    date: in UTC.
    command: the command line.
    """
    said = commit()
    return {
        "commit": said.removesuffix(_CHANGED) or None,
        "changed": said.endswith(_CHANGED) if said else None,
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        **_gpu(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(_plain(word) for word in sys.argv),
    }


def kernel_sources(configs: Iterable[Any], arch: Arch) -> Sources:
    """The sources that `configs` are built from on `arch`. The vendor's algorithms have none."""
    from tilewright import ops

    found: dict[str, set[str]] = {}
    for config in configs:
        parts = ops.family(config.family).sources(config, arch)
        modules = found.setdefault(f"{config.family}/{config.pipeline}", set())
        modules.update(module for part in parts.values() for module in part.modules)
    return {
        name: {module: str(source_digest(module)) for module in sorted(modules)}
        for name, modules in sorted(found.items())
    }


def source_digest(module: str) -> str | None:
    """The digest of the code of a kernel's module and of all that it imports: the set of their
    statements. Comments, docstrings and line breaks do not change it, nor does a function that
    moves to another file. None if there is no such module."""
    from tilewright.compile.key import sources_digest
    from tilewright.errors import BuildFailed

    with suppress(BuildFailed):
        return _code_digest(module, sources_digest(module))
    return None


@cache
def _code_digest(module: str, text: str) -> str:
    """`source_digest`, worked out once for each digest of the sources' text."""
    from tilewright.canonical import canonical, sha256
    from tilewright.compile.key import source_texts

    statements: set[str] = set()
    for name, found in source_texts(module).items():
        statements |= _statements(found) if isinstance(found, bytes) else {f"{name} {found}"}
    return sha256(canonical(sorted(statements)))


@cache
def _statements(text: bytes) -> frozenset[str]:
    """The digests of a module's statements. An import is what it names, wherever that lies."""
    from tilewright.canonical import canonical, sha256

    found: list[Any] = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found += [["import", one.name.rpartition(".")[2], one.asname] for one in node.names]
        elif not _unread(node):
            found.append(_tree(node))
    return frozenset(sha256(canonical(one)) for one in found)


def _tree(node: Any) -> Any:
    """A syntax tree as lists, without positions and strings that nothing reads (docstrings).

    Pythons differ in which empty fields a tree has, and in empty texts of an f-string. Both are
    left out.
    """
    if isinstance(node, ast.JoinedStr):
        return ["JoinedStr", *(_tree(v) for v in node.values if getattr(v, "value", None) != "")]
    if isinstance(node, ast.AST):
        fields = ((name, value) for name, value in ast.iter_fields(node) if value not in (None, []))
        return [type(node).__name__, *([name, _tree(value)] for name, value in fields)]
    if isinstance(node, list):
        return [_tree(one) for one in node if not _unread(one)]
    return repr(node)


def _unread(node: Any) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def commit() -> str:
    """What the variable `COMMIT` says; else the commit of the checkout, and ``-changed`` if files
    that measure differ from it; ``""`` if nobody knows."""
    if COMMIT not in os.environ and (ROOT / ".git").exists():
        with suppress(OSError, subprocess.CalledProcessError):
            head = _git("rev-parse", "HEAD").strip()
            return head + _CHANGED * bool(_git("status", "--porcelain", "--", *_MEASURING))
    return os.environ.get(COMMIT, "")


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def _plain(word: str) -> str:
    return Path(word).name if Path(word).is_absolute() else word


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpu() -> dict[str, Any]:
    found = dict.fromkeys(("gpu", "driver", "cuda", "cublas", "cudnn", "clocks"))
    try:
        import torch
    except ImportError:
        return found
    if not torch.cuda.is_available():
        return found
    from tilewright.errors import LibraryRefused
    from tilewright.measure import devices
    from tilewright.ops.library import LIBRARIES
    from tilewright.runtime import libraries

    backend = "hip" if torch.version.hip else "cuda"
    library = None
    with suppress(LibraryRefused):
        library = getattr(libraries.present(LIBRARIES[backend][0]), "version", None)
    uuid = getattr(torch.cuda.get_device_properties(), "uuid", "")
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": devices.environment(backend).driver or None,
        "cuda": torch.version.cuda,
        "cublas": library,
        "cudnn": torch.backends.cudnn.version(),
        "clocks": _clocks(f"GPU-{uuid}"),
    }


def _clocks(uuid: str) -> dict[str, dict[str, int | None]] | None:
    """MHz of the GPU that NVML calls `uuid`."""
    try:
        import pynvml as nvml
    except ImportError:
        return None

    def asked(ask: Any, kind: int) -> int | None:
        with suppress(nvml.NVMLError):
            return int(ask(nvml.nvmlDeviceGetHandleByUUID(uuid), kind))
        return None

    with suppress(nvml.NVMLError):
        nvml.nvmlInit()
        return {
            word: {
                "now": asked(nvml.nvmlDeviceGetClockInfo, kind),
                "most": asked(nvml.nvmlDeviceGetMaxClockInfo, kind),
            }
            for word, kind in (("sm", nvml.NVML_CLOCK_SM), ("memory", nvml.NVML_CLOCK_MEM))
        }
    return None


if __name__ == "__main__":
    print(commit())
