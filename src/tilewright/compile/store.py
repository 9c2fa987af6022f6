"""A content-addressed store of kernels on disk, safe to share and safe to distrust.

    blobs/ab/<sha256>                      bytes, named by their digest
    entries/ab/<build key>.json            a manifest: a `Kernel` in canonical JSON, the same on
                                           every machine
    entries/ab/<build key>.<signer>.sig    the signature of a user who made the manifest

Each file appears whole or not at all, and the manifest last, so builders need no locks and a crash
leaves nothing half-made. Every byte is checked when it is read, and nothing is unpickled or
evaluated. A manifest is used only if this user signed it, or if the caller trusts the store.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tilewright import home, within
from tilewright.canonical import canonical, sha256
from tilewright.compile import signing
from tilewright.compile.kernel import Blob, Kernel, to_data
from tilewright.errors import BadArgument, BadFile, StoreError, shown
from tilewright.files import read_whole
from tilewright.jsonfile import convert, parse_json
from tilewright.reading import decoded, located

log = logging.getLogger(__name__)

_MANIFEST_LIMIT = 1 << 20
_BLOB_LIMIT = 1 << 30


class UntrustedEntry(StoreError):
    """The store has the kernel, but somebody else made it."""


def default_store_path() -> Path:
    """``TILEWRIGHT_STORE`` if it is set, else a folder of `home.cache`."""
    given = os.environ.get("TILEWRIGHT_STORE")
    return Path(given) if given else home.cache() / "store"


class Store:
    """The kernels under one folder. Opening it touches nothing; the first write makes the folder.

    path: the folder; by default `default_store_path`.
    trusted: whether to use entries that others made. Their digests are still checked, but the
        machine code in them is as good as its author.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, trusted: bool = False) -> None:
        self.path = Path(located(path)) if path is not None else default_store_path()
        self.trusted = trusted

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r}, trusted={self.trusted})"

    # --- reading ------------------------------------------------------------------------
    def load(self, key: str) -> Kernel | None:
        """The kernel built under `key`, all its files checked; None if there is none or it is
        damaged (which is logged). Raises `UntrustedEntry`, and `StoreError` if the system
        refuses to read."""
        try:
            kernel = self._manifest(key)
            if kernel is not None:
                for blob in kernel.blobs.values():
                    self._blob(blob)
        except BadFile as error:
            log.warning("damaged store entry, ignored: %s", error)
            return None
        return kernel

    def has(self, key: str) -> bool:
        """Whether there is an entry under `key`, usable or not. Reads nothing."""
        return self._entry(key).is_file()

    def read(self, kernel: Kernel, kind: str = "") -> bytes:
        """The bytes of one of a kernel's files, by default its loadable binary. Raises
        `UnknownName` for a kind that it does not have, and `BadFile` if they are not what was
        stored."""
        return self._blob(kernel.blob(kind or kernel.binary))

    def entries(self) -> Iterator[Kernel]:
        """Every usable kernel, in the order of keys. The others are logged and left out."""
        for key in self._keys():
            try:
                kernel = self._manifest(key)
            except (BadFile, UntrustedEntry) as error:
                log.warning("store entry left out: %s", error)
                continue
            if kernel is not None:
                yield kernel

    def verify(self) -> list[str]:
        """Read everything; one sentence for each damaged entry or file."""
        return [problem for key in self._keys() if (problem := self._problem(key))]

    def _problem(self, key: str) -> str:
        try:
            kernel = self._manifest(key)
            for blob in kernel.blobs.values() if kernel else ():
                self._blob(blob)
        except (BadFile, StoreError) as error:
            return str(error)
        return ""

    def _keys(self) -> Iterator[str]:
        for path in sorted((self.path / "entries").glob("*/*.json")):
            if _is_digest(path.stem) and path.parent.name == path.stem[:2]:
                yield path.stem

    def _manifest(self, key: str) -> Kernel | None:
        path = self._entry(key)
        content = read_whole(path, _MANIFEST_LIMIT)
        if content is None:
            return None
        kernel = parse_manifest(content, path)
        if kernel.key != key:
            raise BadFile(f"{path} is the manifest of another key, {kernel.key}")
        if not self.trusted:
            signature = read_whole(self._signature(key), 1024)
            if signature is None or not signing.signed(content, signature):
                raise UntrustedEntry(
                    f"{path} was not made by this user (or was altered since); if you trust "
                    f"whoever wrote {self.path}, say so with --trust-store or "
                    "Store(path, trusted=True)"
                )
        return kernel

    def _blob(self, blob: Blob) -> bytes:
        path = self._blob_path(blob.digest)
        content = read_whole(path, min(blob.size, _BLOB_LIMIT))
        if content is None:
            raise BadFile(f"{path} is missing")
        if len(content) != blob.size:
            raise BadFile(f"{path} has {len(content)} bytes instead of {blob.size}")
        if sha256(content) != blob.digest:
            raise BadFile(f"{path} was altered: its content does not have the digest of its name")
        return content

    # --- writing ------------------------------------------------------------------------
    def check_writable(self) -> None:
        """Raises `StoreError` if a kernel could not be stored now."""
        # First of all: making the secret makes its folder for this user alone, and the store may
        # lie in that folder.
        signing.sign(b"")
        within.check_writable(self.path)

    def save(self, kernel: Kernel, files: Mapping[str, bytes]) -> Kernel:
        """Store a kernel with its files by kind; returns it with `blobs` filled in.

        Any number of processes may save at once. Raises `StoreError` (full disk, no
        permission); whatever was stored before stays intact.
        """
        blobs = {kind: Blob(sha256(data), len(data)) for kind, data in sorted(files.items())}
        kernel = replace(kernel, blobs=blobs)
        manifest = canonical(to_data(kernel))
        signature = signing.sign(manifest).encode()  # before anything is written: see above
        for kind, blob in blobs.items():
            path = self._blob_path(blob.digest)
            if not self._intact(blob):
                self._write(path, files[kind])
        self._write(self._signature(kernel.key), signature)
        self._write(self._entry(kernel.key), manifest)
        return kernel

    def remove(self, key: str) -> bool:
        """Forget an entry; False if there was none. Its blobs stay, since others may share them."""
        path = self._entry(key)
        try:
            for signature in path.parent.glob(f"{key}.*.sig"):
                with suppress(FileNotFoundError):
                    self._remove(signature)
            self._remove(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoreError(f"cannot remove {path}: {error.strerror}") from error
        return True

    def _write(self, path: Path, data: bytes) -> None:
        within.write(self.path, str(path.relative_to(self.path)), data)

    def _remove(self, path: Path) -> None:
        within.remove(self.path, str(path.relative_to(self.path)))

    def _intact(self, blob: Blob) -> bool:
        try:
            self._blob(blob)
        except (BadFile, StoreError):
            return False
        return True

    # --- paths --------------------------------------------------------------------------
    def _entry(self, key: str) -> Path:
        if not _is_digest(key):
            raise BadArgument(f"{shown(key)} is not a build key (64 hexadecimal digits)")
        return self.path / "entries" / key[:2] / f"{key}.json"

    def _signature(self, key: str) -> Path:
        return self._entry(key).with_name(f"{key}.{signing.signer()}.sig")

    def _blob_path(self, digest: str) -> Path:
        return self.path / "blobs" / digest[:2] / digest


def parse_manifest(content: bytes, path: Path) -> Kernel:
    """A manifest's kernel. Raises `BadFile` naming `path` unless it is exactly what `Store.save`
    would write: right fields, types and ranges, in canonical JSON."""
    where = f"{path} is not a kernel's manifest"
    kernel = convert(parse_json(decoded(content, where), where), Kernel, where)
    if canonical(to_data(kernel)) != content:
        raise BadFile(f"{path} is not a kernel's manifest: not in canonical form")
    if kernel.binary not in kernel.blobs:
        raise BadFile(f"{path} names no {kernel.binary}")
    return kernel


def _is_digest(text: str) -> bool:
    return isinstance(text, str) and len(text) == 64 and set(text) <= set("0123456789abcdef")
