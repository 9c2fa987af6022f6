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

from tilewright import home, variables, within
from tilewright.canonical import canonical, sha256
from tilewright.compile import signing
from tilewright.compile.kernel import Blob, Kernel, to_data
from tilewright.compile.manifest import (
    BLOB_LIMIT,
    MANIFEST_LIMIT,
    SIGNATURE_LIMIT,
    blob_name,
    checked_blob,
    entry_name,
    is_digest,
    manifest_of,
    signature_name,
)
from tilewright.compile.shared import SharedStore
from tilewright.compile.shared import of_environment as shared_of_environment
from tilewright.compile.signing import UntrustedEntry
from tilewright.errors import BadFile, StoreError
from tilewright.files import read_whole
from tilewright.reading import located

log = logging.getLogger(__name__)


def default_store_path() -> Path:
    """``TILEWRIGHT_STORE`` if it is set, else a folder of `home.cache`."""
    given = os.environ.get(variables.STORE)
    return Path(given) if given else home.cache() / "store"


class Store:
    """The kernels under one folder. Opening it touches nothing; the first write makes the folder.

    path: the folder; by default `default_store_path`.
    trusted: whether to use entries that others made. Their digests are still checked, but the
        machine code in them is as good as its author.
    shared: a store of several machines, from which an entry is copied that this store lacks; by
        default, without `path`, the one that ``TILEWRIGHT_SHARED_STORE`` names.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        trusted: bool = False,
        shared: SharedStore | None = None,
    ) -> None:
        self.path = Path(located(path)) if path is not None else default_store_path()
        self.trusted = trusted
        self.shared = shared_of_environment() if path is None and shared is None else shared

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r}, trusted={self.trusted})"

    # --- reading ------------------------------------------------------------------------
    def load(self, key: str) -> Kernel | None:
        """The kernel built under `key`, all its files checked; None if there is none or it is
        damaged (which is logged). Raises `UntrustedEntry`, and `StoreError` if the system
        refuses to read, or to write what the shared store has."""
        kernel = self._own(key)
        if kernel is None and self.shared is not None and (found := self.shared.fetch(key)):
            return self.save(*found)
        return kernel

    def _own(self, key: str) -> Kernel | None:
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
            if is_digest(path.stem) and path.parent.name == path.stem[:2]:
                yield path.stem

    def _manifest(self, key: str) -> Kernel | None:
        path = self._entry(key)
        content = read_whole(path, MANIFEST_LIMIT)
        if content is None:
            return None
        kernel = manifest_of(key, content, path)
        if not self.trusted:
            signing.require(
                content,
                read_whole(self._signature(key), SIGNATURE_LIMIT),
                f"{path} was not made by this user (or was altered since); if you trust whoever "
                f"wrote {self.path}, say so with --trust-store or Store(path, trusted=True)",
            )
        return kernel

    def _blob(self, blob: Blob) -> bytes:
        path = self._blob_path(blob.digest)
        return checked_blob(blob, read_whole(path, min(blob.size, BLOB_LIMIT)), path)

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
        return self.path / entry_name(key)

    def _signature(self, key: str) -> Path:
        return self.path / signature_name(key, signing.signer())

    def _blob_path(self, digest: str) -> Path:
        return self.path / blob_name(digest)
