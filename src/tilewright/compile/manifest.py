"""What stands where in a store, and how a manifest is read.

entries/ab/<key>.json          a manifest: one kernel in canonical JSON
entries/ab/<key>.<signer>.sig  its signature by a user who made it
blobs/ab/<SHA-256>             a file of kernels, named by its content
"""

from __future__ import annotations

from pathlib import Path

from tilewright.canonical import canonical, sha256
from tilewright.compile.kernel import Blob, Kernel, to_data
from tilewright.errors import BadArgument, BadFile, shown
from tilewright.jsonfile import convert, parse_json
from tilewright.reading import decoded

MANIFEST_LIMIT = 1 << 20
BLOB_LIMIT = 1 << 30
SIGNATURE_LIMIT = 1024
"""Most bytes of each."""


def entry_name(key: str) -> str:
    """The file of a manifest, below the store. Raises `BadArgument` for what is no key."""
    if not is_digest(key):
        raise BadArgument(f"{shown(key)} is not a build key (64 hexadecimal digits)")
    return f"entries/{key[:2]}/{key}.json"


def signature_name(key: str, signer: str) -> str:
    """The file of a manifest's signature, below the store. Raises as `entry_name` does."""
    return f"{entry_name(key).removesuffix('.json')}.{signer}.sig"


def blob_name(digest: str) -> str:
    """The file of a blob, below the store."""
    return f"blobs/{digest[:2]}/{digest}"


def checked_blob(blob: Blob, content: bytes | None, where: str | Path) -> bytes:
    """`content`, if it is what a manifest says. Raises `BadFile`, which begins with `where`."""
    if content is None:
        raise BadFile(f"{where} is missing")
    if len(content) != blob.size:
        raise BadFile(f"{where} has {len(content)} bytes instead of {blob.size}")
    if sha256(content) != blob.digest:
        raise BadFile(f"{where} was altered: its content does not have the digest of its name")
    return content


def manifest_of(key: str, content: bytes, where: str | Path) -> Kernel:
    """As `parse_manifest`, for the manifest of this key."""
    kernel = parse_manifest(content, where)
    if kernel.key != key:
        raise BadFile(f"{where} is the manifest of another key, {kernel.key}")
    return kernel


def parse_manifest(content: bytes, path: str | Path) -> Kernel:
    """A manifest's kernel. Raises `BadFile` naming `path` unless it is exactly what `Store.save`
    would write: right fields, types and ranges, in canonical JSON."""
    where = f"{path} is not a kernel's manifest"
    kernel = convert(parse_json(decoded(content, where), where), Kernel, where)
    if canonical(to_data(kernel)) != content:
        raise BadFile(f"{path} is not a kernel's manifest: not in canonical form")
    if kernel.binary not in kernel.blobs:
        raise BadFile(f"{path} names no {kernel.binary}")
    return kernel


def is_digest(text: str) -> bool:
    """Whether this is a SHA-256 in hexadecimal digits."""
    return isinstance(text, str) and len(text) == 64 and set(text) <= set("0123456789abcdef")
