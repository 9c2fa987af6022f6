"""Signatures of manifests, with a secret that only this user has.

A secret is refused, as ssh refuses a key, if others can read it, write it or replace it: it could
be theirs, and so could every kernel that it signed.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from functools import cache
from pathlib import Path

from tilewright import home
from tilewright.errors import StoreError
from tilewright.files import WRITE, cannot_write, check_own, make_own, read_whole

_BYTES = 32


class UntrustedEntry(StoreError):
    """The store has the kernel, but somebody else made it."""


def sign(data: bytes) -> str:
    """The HMAC-SHA256 of `data` under the user's secret, which is made if there is none.
    Raises `StoreError` if it cannot be made, or is not the user's alone."""
    secret = _secret(home.data(), create=True)
    assert secret is not None
    return hmac.new(secret, data, hashlib.sha256).hexdigest()


def signed(data: bytes, signature: bytes) -> bool:
    """Whether `data` was signed with the user's secret. Raises `StoreError` if others can read the
    secret."""
    secret = _secret(home.data(), create=False)
    if secret is None:
        return False
    expected = hmac.new(secret, data, hashlib.sha256).hexdigest().encode()
    return hmac.compare_digest(expected, signature)


def require(data: bytes, signature: bytes | None, otherwise: str) -> None:
    """Raise `UntrustedEntry`, which says `otherwise`, unless `data` was signed with the user's
    secret; and as `signed` does."""
    if signature is None or not signed(data, signature):
        raise UntrustedEntry(otherwise)


def signer() -> str:
    """A short public name of the user's secret, so that several users can sign one entry;
    ``""`` while there is no secret."""
    secret = _secret(home.data(), create=False)
    return hashlib.sha256(b"signer" + secret).hexdigest()[:16] if secret else ""


def _secret(folder: Path, create: bool) -> bytes | None:
    found = _read(folder)
    if found is None and create:
        _create(folder)
        found = _read(folder)
    return found


@cache
def _known(folder: Path) -> list[bytes]:
    return []


def _read(folder: Path) -> bytes | None:
    known = _known(folder)  # only a found secret is remembered: it may be made later
    if not known:
        path = folder / "signing-key"
        with contextlib.suppress(OSError, RuntimeError):  # it is not there, or cannot be read
            real = folder.resolve()  # the folder may be a link: to another disk, say
            check_own(real, real.lstat(), WRITE)
        content = read_whole(path, 4096, secret=True)
        if content is None:
            return None
        if len(content) != _BYTES:
            raise StoreError(
                f"{path} is damaged; delete it, and what it signed is built again when needed"
            )
        known.append(content)
    return known[0]


def _create(folder: Path) -> None:
    path = folder / "signing-key"
    temporary = folder / f".signing-key-{secrets.token_hex(8)}"
    try:
        make_own(folder)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(secrets.token_bytes(_BYTES))
                file.flush()
                os.fsync(fd)
            with contextlib.suppress(FileExistsError):  # another process was first: use its key
                os.link(temporary, path)
        finally:
            temporary.unlink()
    except OSError as error:
        raise cannot_write(path, error) from error
