"""The build key: a digest of everything that decides a kernel's bytes.

It covers the kernel's module and every module that it imports (read, never imported), the family's
options for the compiler, the architecture's target, the compiler itself, and the code here that
drives it. It does not cover the environment, because the compiler's process gets a fixed one.
"""

from __future__ import annotations

import ast
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache, lru_cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from tilewright import triton_versions, version
from tilewright.arch.model import Arch
from tilewright.canonical import canonical, sha256
from tilewright.errors import BuildFailed
from tilewright.ops.nouns import MAIN, KernelSource

_SMALL = 1 << 20


def build_key(
    name: str, source: KernelSource, arch: Arch, module_digest: str, part: str = MAIN
) -> str:
    """The key of one kernel.

    name: the config's.
    source: what the kernel is made from.
    module_digest: `sources_digest(*source.modules)`.
    part: which of the config's kernels it is.
    """
    of_part = {} if part == MAIN else {"part": part}
    return sha256(
        canonical(
            {
                **of_part,
                "name": name,
                # All its fields are text, numbers and tuples of such, which need no copies.
                "source": {one.name: getattr(source, one.name) for one in fields(source)},
                "modules": module_digest,
                "target": [arch.name, arch.backend, arch.target, arch.warp_size],
                "compiler": compiler_digest(),
                "driver": _driver_digest(arch.backend),
            }
        )
    )


def config_key(keys: Mapping[str, str]) -> str:
    """One key for all kernels of a config, by part: of one kernel, its own; of several, a digest.
    ``""`` if there is no kernel."""
    return next(iter(keys.values()), "") if len(keys) < 2 else sha256(canonical(dict(keys)))


_Stamps = dict[str, tuple[int, int]]
"""By file: its ctime in nanoseconds, which nobody can set, and its size."""
_read: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[_Stamps, str]] = {}
"""Results of `sources_read` by the modules and the search path."""


def sources_digest(*modules: str) -> str:
    """One digest of the source of `modules` and of all they import, however indirectly.

    It follows modules under `tilewright`, under the modules' own top packages, and all others that
    are not installed in the environment. An installed package counts by its version. It does not
    see imports by computed names, data files, or the ``__init__`` of enclosing packages that are
    not imported by name. Raises `BuildFailed` if one of `modules` cannot be found or parsed.

    Files are read again when one of them was written since. A module that could not be found before
    is noticed only then.
    """
    return sources_read(*modules)[1]


def sources_read(*modules: str) -> tuple[Mapping[str, tuple[int, int]], str]:
    """`sources_digest`, and before it the files that were read: by path the ctime in nanoseconds,
    which nobody can set, and the size."""
    known = _read.get((modules, tuple(sys.path)))
    if known is not None and all(_stamp(path) == stamp for path, stamp in known[0].items()):
        return known
    stamps: _Stamps = {}
    texts = source_texts(*modules, stamps=stamps)
    digests = {
        name: sha256(text) if isinstance(text, bytes) else text for name, text in texts.items()
    }
    found = stamps, sha256(canonical(digests))
    _read[modules, tuple(sys.path)] = found
    return found


def _stamp(path: str) -> tuple[int, int]:
    try:
        found = Path(path).stat()
    except OSError:
        return 0, -1
    return found.st_ctime_ns, found.st_size


def source_texts(*modules: str, stamps: _Stamps | None = None) -> dict[str, bytes | str]:
    """What `sources_digest` digests: by module the text of its file, by installed package its
    version. A module that is not written in Python has its file's digest. Raises `BuildFailed` as
    `sources_digest` does.

    stamps: gets the stamp of each file that was read.
    """
    own = {"tilewright", *(module.partition(".")[0] for module in modules)}
    stamps = {} if stamps is None else stamps
    found: dict[str, bytes | str] = {}
    specs: dict[str, ModuleSpec | None] = {}
    todo = [*modules]
    while todo:
        name = todo.pop()
        if name in found or name.partition(".")[0] in sys.stdlib_module_names | {"triton"}:
            continue  # the standard library comes with libtriton's Python; triton: see below
        spec = _find(name, specs)
        if spec is None or spec.origin is None or not spec.has_location:
            if name in modules:
                raise BuildFailed(f"the kernel's module {name} cannot be found")
            continue  # a name inside a module, a namespace package, or not installed
        top = name.partition(".")[0]
        if top not in own and _installed(spec.origin):
            found[top] = _version(top, spec.origin)
            continue
        stamps[spec.origin] = _stamp(spec.origin)  # before it is read
        text = Path(spec.origin).read_bytes()
        if not spec.origin.endswith(".py"):
            found[name] = sha256(text)
            continue
        found[name] = text
        package = name if spec.submodule_search_locations else name.rpartition(".")[0]
        todo += _imports(text, name, package)
    return found


@lru_cache(maxsize=1024)
def _imports(text: bytes, name: str, package: str) -> tuple[str, ...]:
    """The modules that a module imports. Kernels of several families import the same ones."""
    return tuple(_imported(text, name, package))


def _imported(text: bytes, name: str, package: str) -> Iterator[str]:
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise BuildFailed(f"module {name} does not parse: {error}") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                parent = ".".join(parts[: len(parts) - node.level + 1])
                base = f"{parent}.{base}" if base else parent
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)  # submodules, if so


def _find(name: str, known: dict[str, ModuleSpec | None]) -> ModuleSpec | None:
    """Find a module without importing its parents, which `importlib.util.find_spec` would.

    known: what was found already, by name. Most names are those of functions, inside modules that
    many others name too.
    """
    if name not in known:
        known[name] = _sought(name, known)
    return known[name]


def _sought(name: str, known: dict[str, ModuleSpec | None]) -> ModuleSpec | None:
    path: list[str] | None = None
    if parent := name.rpartition(".")[0]:
        above = _find(parent, known)
        if above is None or above.submodule_search_locations is None:
            return None
        path = [*above.submodule_search_locations]
    found = (_spec(finder, name, path) for finder in sys.meta_path)
    return next((spec for spec in found if spec is not None), None)


def _spec(finder: Any, full: str, path: list[str] | None) -> ModuleSpec | None:
    try:
        found: ModuleSpec | None = finder.find_spec(full, path)
    except KeyError:
        # A namespace package works its folders out from its parent in `sys.modules`, where the
        # parent is missing since nothing is imported here. Asked for by its last name alone, it
        # takes `sys.path` for its parent's folders.
        found = finder.find_spec(full.rpartition(".")[2], path)
    return found


def _installed(origin: str) -> bool:
    return any(
        Path(origin).is_relative_to(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")
    )


def _version(package: str, origin: str) -> str:
    return version.installed(package) or sha256(Path(origin).read_bytes())


@cache
def compiler_digest() -> str:
    """A digest of the installed Triton: its version and all its files, without importing it.
    Raises `BuildFailed` if there is none, or one that is not supported.

    Small files are read. For a large one (libtriton, ptxas: 500 MB) the digest that its wheel
    recorded is taken, if the file still has the recorded size, and it is read otherwise.
    """
    refused = triton_versions.refusal(triton_versions.installed())
    if refused:
        raise BuildFailed(refused)
    import importlib.metadata

    triton = importlib.metadata.distribution("triton")
    recorded = {
        f.as_posix(): (f.hash.value, f.size) for f in triton.files or () if f.hash is not None
    }
    spec = _find("triton", {})
    if spec is None or spec.origin is None:
        raise BuildFailed("triton is installed but its package cannot be found")
    folder = Path(spec.origin).parent
    digests: dict[str, str] = {"version": triton.version}
    for path in sorted(folder.rglob("*")):
        if "__pycache__" in path.parts or not path.is_file():
            continue
        name = path.relative_to(folder.parent).as_posix()
        size = path.stat().st_size
        digest, recorded_size = recorded.get(name, ("", None))
        digests[name] = (
            digest if size > _SMALL and size == recorded_size else sha256(path.read_bytes())
        )
    return sha256(canonical(digests))


@cache
def _driver_digest(backend: str) -> str:
    """A digest of the code here that drives the compiler, edits the text of its stages, reads
    resources from its output, and, for AMD, adds wait states."""
    here = Path(__file__).parent
    names = ["compiler", "resources", "stages"]
    names += ["preloading"] if backend == "hip" else ["clusters", "setup"]
    files = [here / f"{name}.py" for name in names]
    if backend == "hip":
        files += sorted((here.parent / "listing").glob("*.py"))
    return sha256(b"".join(file.read_bytes() for file in files))
