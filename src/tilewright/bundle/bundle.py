"""`Bundle`: prebuilt kernels in a file, read one by one, as they are needed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from tilewright import ops
from tilewright.arch import arch as by_name
from tilewright.bundle.archive import Archive
from tilewright.bundle.layout import (
    LARGE,
    MANIFEST,
    SCHEMA,
    SMALL,
    TABLE,
    Built,
    Manifest,
    blob_path,
    decoded,
    kernel_at,
    of_bytes,
    source_digests,
)
from tilewright.compile import signing
from tilewright.compile.kernel import Blob, Kernel, called, check_limits
from tilewright.errors import BadFile, BuildFailed, StoreError, TilewrightError, UnknownName
from tilewright.files import read_whole
from tilewright.ops.nouns import MAIN
from tilewright.reading import located
from tilewright.registry import Entry, Registry
from tilewright.tables.file import from_bytes
from tilewright.tables.table import Table

PACKAGE = "tilewright_kernels"
"""The folder that wheels of kernels install their bundles into."""


class UntrustedBundle(StoreError):
    """The bundle is intact, but this user did not make it."""


class Bundle:
    """The kernels in the file `path`. Opening it reads its manifest, and its directory if it may be
    used.

    It may be used if this user signed it (the signature lies beside it), if pip installed it, or if
    the caller trusts it (`trusted`): the machine code in it is as good as its author. Digests and
    sizes are always checked, and nothing in it is executed, unpickled or unpacked to disk. `digest`
    is the SHA-256 of its manifest, which covers all of it.

    Thread-safe. Raises `UntrustedBundle`, `BadFile` for a damaged file, and `StoreError`.
    """

    def __init__(self, path: str | os.PathLike[str], trusted: bool = False) -> None:
        self.where = located(path)
        self.path = Path(self.where)
        self._archive = Archive(self.path)
        content = self._archive.first(MANIFEST, SMALL)
        self.digest = of_bytes(content).digest
        if not (trusted or is_installed(self.path) or _signed(self.path, content)):
            raise UntrustedBundle(
                f"{self.path} was not made by this user (or was altered since); if you trust "
                "whoever made it, say so with Bundle(path, trusted=True), --trust-bundle or "
                "TILEWRIGHT_BUNDLE_TRUSTED=1; your own signature lies in a file beside it, which "
                "must be copied with it"
            )
        # Each file has a digest of 64 digits in the manifest, and a kernel's file has a binary.
        self._archive.open_directory(2 + 2 * (len(content) // 64))
        _check_schema(content, self.where)
        self.manifest = decoded(content, Manifest, f"{self.where}: {MANIFEST}")
        self._files: dict[str, dict[str, dict[str, str]]] = {}
        """Paths of kernels by architecture, name and part."""
        for file in self.manifest.files:
            found = kernel_at(file)
            if found is not None:
                name, arch, part = found
                self._files.setdefault(arch, {}).setdefault(name, {})[part] = file
        self._lacking = {
            (name, arch)
            for arch, names in self._files.items()
            for name, parts in names.items()
            if [*parts] != [MAIN] and not _is_whole(name, arch, parts)
        }

    def __repr__(self) -> str:
        return f"Bundle({self.where!r})"

    @property
    def archs(self) -> tuple[str, ...]:
        """The architectures that it has kernels for."""
        return tuple(arch for arch in self._files if self.names(arch))

    def names(self, arch: str) -> tuple[str, ...]:
        """The configs that it has kernels of for an architecture. A config of which a part is
        lacking is not among them."""
        return tuple(n for n in self._files.get(arch, ()) if (n, arch) not in self._lacking)

    def has(self, name: str, arch: str) -> bool:
        """Whether it has a config's kernels for an architecture; reads nothing."""
        return name in self._files.get(arch, ()) and (name, arch) not in self._lacking

    def entries(self, arch: str) -> Iterator[Entry]:
        """Its kernels for an architecture, as a registry has them, without their builds. Kernels
        that this Tilewright does not know are left out."""
        for name in self.names(arch):
            try:
                config = ops.family_of(name).parse_name(name)
            except UnknownName:
                continue
            yield Entry(config, self.manifest.priorities.get(name, 0))

    def kernel(self, name: str, arch: str, part: str = MAIN) -> Kernel:
        """What is known of a kernel. Raises `UnknownName`, `BadFile`."""
        return self._built(name, arch, part).kernel

    def kernels(self, name: str, arch: str) -> dict[str, Kernel]:
        """What is known of a config's kernels, by part. Raises `UnknownName`, `BadFile`."""
        return {part: self.kernel(name, arch, part) for part in self._parts(name, arch)}

    def load(self, config: Any, arch: str) -> dict[str, tuple[Kernel, bytes]]:
        """A config's kernels and their binaries, ready to be launched, by part. Raises
        `UnknownName` where there are none, `BadFile` for damage, and `BuildFailed` if this
        Tilewright would build them from other sources, or if the architecture cannot launch one."""
        this = by_name(arch)
        built = {
            part: self._built(config.name, arch, part) for part in self._parts(config.name, arch)
        }
        if {part: one.source for part, one in built.items()} != source_digests(config, this):
            raise BuildFailed(
                f"{config.name} for {arch} in {self.where} was built from other sources than this "
                f"Tilewright has ({self._versions()}): make the bundle anew"
            )
        for one in built.values():
            verdict = check_limits(one.kernel, this)
            if not verdict:
                raise BuildFailed(f"{one.kernel.called} in {self.where}: {verdict}")
        return {part: (one.kernel, self._binary(one.kernel)) for part, one in built.items()}

    @cached_property
    def table(self) -> Table | None:
        """Its tuned choices, if it has any. Raises `BadFile`."""
        if TABLE not in self.manifest.files:
            return None
        return from_bytes(self._file(TABLE), self.where)

    def registry(self) -> Registry:
        """Its kernels with their priorities and builds. Reads them all; raises as `kernel` does."""
        found = Registry(self.path.stem)
        for arch in self.archs:
            for name in self.names(arch):
                for kernel in self.kernels(name, arch).values():
                    found.register(kernel, self.manifest.priorities.get(name, 0))
        return found

    def verify(self) -> list[str]:
        """Read everything; one sentence for each file that is not as it should be."""
        return [said for file in self.manifest.files if (said := self._problem(file))]

    def _problem(self, file: str) -> str:
        found = kernel_at(file)
        try:
            if found is None:
                self._file(file)
            else:
                self._binary(self.kernel(*found))
        except (BadFile, StoreError) as error:
            return str(error)
        return ""

    def _parts(self, name: str, arch: str) -> tuple[str, ...]:
        if not self.has(name, arch):
            raise UnknownName(f"{self.where} has no kernel '{name}' for {arch}")
        return tuple(self._files[arch][name])

    def _built(self, name: str, arch: str, part: str = MAIN) -> Built:
        file = self._files.get(arch, {}).get(name, {}).get(part)
        if file is None:
            raise UnknownName(f"{self.where} has no kernel '{called(name, part)}' for {arch}")
        built = decoded(self._file(file), Built, f"{self.where}: {file}")
        kernel = built.kernel
        asked = (name, arch, part)
        if (kernel.name, kernel.arch, kernel.part) != asked or kernel.binary not in kernel.blobs:
            raise BadFile(f"{self.where}: {file} is of another kernel, or has no binary")
        return built

    def _binary(self, kernel: Kernel) -> bytes:
        blob = kernel.blob(kernel.binary)
        return self._checked(blob_path(blob), blob)

    def _file(self, name: str) -> bytes:
        return self._checked(name, self.manifest.files[name])

    def _checked(self, name: str, blob: Blob) -> bytes:
        content = self._archive.read(name, min(blob.size, LARGE))
        if of_bytes(content) != blob:
            raise BadFile(f"{self.where}: {name} is damaged: it is not what its digest says")
        return content

    def _versions(self) -> str:
        return ", ".join(f"{name} {version}" for name, version in self.manifest.versions.items())


def _is_whole(name: str, arch: str, parts: Collection[str]) -> bool:
    """Whether these are all parts of the config of this name. A config that this Tilewright does
    not know is not whole."""
    try:
        family = ops.family_of(name)
        return set(parts) == {*family.sources(family.parse_name(name), by_name(arch))}
    except TilewrightError:
        return False


def signature_path(path: Path) -> Path:
    """Where this user's signature of the bundle at `path` lies."""
    return path.with_name(f"{path.name}.{signing.signer()}.sig")


def _signed(path: Path, manifest: bytes) -> bool:
    signature = read_whole(signature_path(path), 1024)
    return signature is not None and signing.signed(manifest, signature)


def is_installed(path: Path) -> bool:
    """Whether a file lies where wheels of kernels put theirs."""
    return path.absolute().parent in package_folders()


def package_folders() -> list[Path]:
    """`PACKAGE` in each folder that pip installs into and that this process imports from. Other
    folders of the search path, the current one among them, do not count."""
    kinds = ("site-packages", "dist-packages")
    return [Path(p).absolute() / PACKAGE for p in sys.path if Path(p).name in kinds]


def _check_schema(content: bytes, where: str) -> None:
    try:
        schema = json.loads(content).get("schema")
    except (ValueError, AttributeError, RecursionError):
        return  # what is wrong is said when it is decoded
    if isinstance(schema, int) and schema > SCHEMA:
        raise BadFile(
            f"{where}: its schema is {schema}, made by a newer Tilewright; this one reads up to "
            f"{SCHEMA}"
        )
