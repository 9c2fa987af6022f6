"""A store that several machines read: a folder, or the same folder behind a web server.

It is read where a user's own store lacks an entry, and never written.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tilewright import variables
from tilewright.checks import flag
from tilewright.compile import signing
from tilewright.compile.kernel import Kernel
from tilewright.compile.manifest import (
    BLOB_LIMIT,
    MANIFEST_LIMIT,
    SIGNATURE_LIMIT,
    blob_name,
    checked_blob,
    entry_name,
    manifest_of,
    signature_name,
)
from tilewright.compile.signing import UntrustedEntry
from tilewright.errors import BadArgument, BadFile, StoreError, shown
from tilewright.files import read_whole
from tilewright.reading import located

log = logging.getLogger(__name__)

VARIABLE, TRUST_VARIABLE = variables.SHARED_STORE, variables.SHARED_STORE_TRUSTED
"""Environment variables: the shared store, and whether to use what others built in it (``1``)."""

SECONDS = 10.0
"""How long a web server may take before it says more."""

Read = Callable[[str, int], "bytes | None"]
"""The file of this name below the store, of at most so many bytes; None if there is none."""


class SharedStore:
    """A store to read from. Thread-safe.

    where: a folder, or a URL (``https://…``) below which a web server has the files of one.
    trusted: whether to use entries that others made, as in `Store`.

    Raises `BadArgument` for what is neither, and for a URL that is trusted and not encrypted:
    others could change the machine code on its way.
    """

    def __init__(self, where: str | os.PathLike[str], trusted: bool = False) -> None:
        given = located(where)
        self.where = given.rstrip("/") or "/"
        self.trusted = trusted
        web = "://" in given
        self._read: Read = _web(self.where, trusted) if web else partial(_folder, Path(self.where))
        self._lacking: set[str] = set()
        self._given_up = False

    def __repr__(self) -> str:
        return f"SharedStore({self.where!r}, trusted={self.trusted})"

    def fetch(self, key: str) -> tuple[Kernel, dict[str, bytes]] | None:
        """The kernel built under `key` with its files by kind, all checked; None if there is none,
        or none that may be used, which is logged. If the store cannot be reached, this is logged
        once, and it is asked no more. It is asked once for a key that it lacks."""
        if self._given_up or key in self._lacking:
            return None
        found = None
        try:
            found = self._fetched(key)
        except (BadFile, UntrustedEntry) as error:
            log.warning("entry of the shared store left out: %s", error)
        except (OSError, StoreError) as error:
            self._given_up = True
            log.warning("the shared store %s is read no more: %s", self.where, error)
            return None
        if found is None:
            self._lacking.add(key)
        return found

    def _fetched(self, key: str) -> tuple[Kernel, dict[str, bytes]] | None:
        name = entry_name(key)
        content = self._read(name, MANIFEST_LIMIT)
        if content is None:
            return None
        where = f"{self.where}/{name}"
        kernel = manifest_of(key, content, where)
        if not self.trusted:
            signing.require(
                content,
                self._read(signature_name(key, signing.signer()), SIGNATURE_LIMIT),
                f"{where} was not made by this user (or was altered since); if you trust whoever "
                f"wrote it, set {TRUST_VARIABLE}=1",
            )
        files = {}
        for kind, blob in kernel.blobs.items():
            name = blob_name(blob.digest)
            content = self._read(name, min(blob.size, BLOB_LIMIT))
            files[kind] = checked_blob(blob, content, f"{self.where}/{name}")
        return kernel, files


def of_environment() -> SharedStore | None:
    """The shared store that the environment names, if it names one. Raises `BadArgument`."""
    where = os.environ.get(VARIABLE, "")
    return SharedStore(where, flag(TRUST_VARIABLE, False)) if where else None


def _folder(folder: Path, name: str, limit: int) -> bytes | None:
    return read_whole(folder / name, limit)


def _web(base: str, trusted: bool) -> Read:
    """Reads below a URL. A server that answers with another place is not followed there."""
    # They are imported here since few need them.
    from http.client import HTTPException
    from urllib import error, request
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(base)
    except ValueError as wrong:
        raise BadArgument(f"shared store {shown(base)}: {wrong}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadArgument(f"shared store {shown(base)} is neither a folder nor an http(s) URL")
    if trusted and parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1"):
        raise BadArgument(
            f"shared store {shown(base)} is trusted and not encrypted, so others could change "
            "machine code on its way: use https, or entries signed by this user"
        )
    opener = request.OpenerDirector()
    for handler in (
        request.ProxyHandler(),
        request.HTTPHandler(),
        request.HTTPSHandler(),
        request.HTTPDefaultErrorHandler(),
        request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)

    def read(name: str, limit: int) -> bytes | None:
        try:
            with opener.open(f"{base}/{name}", timeout=SECONDS) as answer:
                content: bytes = answer.read(limit)
        except error.HTTPError as refused:
            refused.close()
            if refused.code in (404, 410):
                return None
            raise
        except HTTPException as broken:
            raise OSError(f"{type(broken).__name__}: {broken}") from None
        return content

    return read
