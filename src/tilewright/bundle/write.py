"""Making a bundle: the same content gives the same bytes, in whatever order and wherever."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tilewright import ops
from tilewright.arch import arch as by_name
from tilewright.bundle.archive import packed
from tilewright.bundle.bundle import Bundle, signature_path
from tilewright.bundle.layout import (
    LICENSE,
    MANIFEST,
    SCHEMA,
    TABLE,
    Built,
    Manifest,
    blob_path,
    encoded,
    kernel_path,
    of_bytes,
    source_digests,
    versions_here,
)
from tilewright.compile import Store, signing
from tilewright.compile.kernel import Kernel
from tilewright.errors import BadArgument, StoreError
from tilewright.files import read_whole, write_whole
from tilewright.tables.file import to_bytes
from tilewright.tables.table import Table


@dataclass(frozen=True, slots=True)
class Written:
    """A bundle in a file: the digest of its manifest, its size in bytes, how many kernels."""

    path: Path
    digest: str
    size: int
    kernels: int


@dataclass(slots=True)
class Content:
    """What goes into a bundle. Kernels are added with their binaries; of two of one name and part
    for one architecture, the last counts.

    table: the tuned choices, if any.
    priorities: by the kernel's name, those that are not 0.
    """

    table: Table | None = None
    priorities: dict[str, int] = field(default_factory=dict)
    _kernels: dict[str, Built] = field(default_factory=dict)
    _blobs: dict[str, bytes] = field(default_factory=dict)
    _parts: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """The parts of each config that has a kernel here, by name and architecture."""

    def __len__(self) -> int:
        """How many configs have kernels here, one for each architecture."""
        return len(self._parts)

    def add(self, kernel: Kernel, binary: bytes) -> None:
        """Add a built kernel, whose sources are those here. Raises `BadArgument`, `UnknownName`."""
        config: Any = ops.family_of(kernel.name).parse_name(kernel.name)
        kernel = replace(kernel, blobs={kernel.binary: of_bytes(binary)})
        path = kernel_path(kernel.name, kernel.arch, kernel.part)
        digests = source_digests(config, by_name(kernel.arch))
        if kernel.part not in digests:
            raise BadArgument(
                f"{kernel.name} for {kernel.arch} has no part '{kernel.part}'; it has "
                f"{', '.join(digests)}"
            )
        self._parts[kernel.name, kernel.arch] = {*digests}
        self._kernels[path] = Built(kernel, digests[kernel.part])
        self._blobs[path] = binary

    def add_built(self, kernels: Iterable[Kernel], store: Store) -> None:
        """Add kernels of a store. Raises as `add` and `Store.read` do."""
        for kernel in kernels:
            self.add(kernel, store.read(kernel))

    def add_bundle(self, bundle: Bundle) -> None:
        """Add the kernels of another bundle, with their priorities. Raises `BadArgument` if it was
        made with other versions, and as `Bundle.load` does."""
        here = versions_here()
        if bundle.manifest.versions != here:
            raise BadArgument(
                f"{bundle.where} was made with {_listed(bundle.manifest.versions)}, and here is "
                f"{_listed(here)}: give the inputs it was made of, and it is made anew"
            )
        for arch in bundle.archs:
            for name in bundle.names(arch):
                for kernel, binary in bundle.load(
                    ops.family_of(name).parse_name(name), arch
                ).values():
                    self.add(kernel, binary)
        self.priorities = {**bundle.manifest.priorities, **self.priorities}

    def to_bytes(self) -> tuple[bytes, bytes]:
        """The manifest and the whole bundle. Raises `BadArgument` if it has no kernel, or not all
        parts of one."""
        if not self._kernels:
            raise BadArgument("a bundle needs at least one kernel")
        for (name, arch), parts in self._parts.items():
            absent = [p for p in sorted(parts) if kernel_path(name, arch, p) not in self._kernels]
            if absent:
                raise BadArgument(
                    f"{name} for {arch} needs its {', '.join(absent)} kernel in the bundle too: "
                    "add all parts of a kernel"
                )
        files = {path: encoded(built) for path, built in self._kernels.items()}
        files[LICENSE] = licence()
        if self.table is not None:
            files[TABLE] = to_bytes(self.table)
        names = {built.kernel.name for built in self._kernels.values()}
        manifest = encoded(
            Manifest(
                SCHEMA,
                versions_here(),
                {path: of_bytes(content) for path, content in files.items()},
                {name: n for name, n in self.priorities.items() if n and name in names},
            )
        )
        blobs = {blob_path(of_bytes(content)): content for content in self._blobs.values()}
        return manifest, packed(MANIFEST, {MANIFEST: manifest, **files, **blobs})


def write(content: Content, path: Path) -> Written:
    """Write a bundle to `path`, whole or not at all, and this user's signature beside it. Raises
    `BadArgument`, `StoreError`."""
    path = path.absolute()
    manifest, whole = content.to_bytes()
    signature = signing.sign(manifest).encode()
    write_whole(path, whole)
    write_whole(signature_path(path), signature)
    return Written(path, of_bytes(manifest).digest, len(whole), len(content))


def licence() -> bytes:
    """The text of the licence that Tilewright was installed with, or that lies in the checkout it
    runs from. Raises `StoreError`."""
    import importlib.metadata

    with suppress(importlib.metadata.PackageNotFoundError):
        found = importlib.metadata.distribution("tilewright").read_text("licenses/LICENSE")
        if found is not None:
            return found.encode()
    checkout = read_whole(Path(__file__).parents[3] / "LICENSE", 1 << 20)
    if checkout is None:
        raise StoreError("Tilewright's LICENSE is not installed with it; install Tilewright anew")
    return checkout


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
