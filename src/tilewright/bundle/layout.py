"""What stands in a bundle, and where.

    manifest.json                 `Manifest`: versions, and the digest and size of every file below
    kernels/<arch>/<name>.json    `Built`: one kernel, and what it was built from
    blobs/<sha256>                a binary, named by its content
    table.twt                     the tuned choices, where there are any
    LICENSE                       Tilewright's, which the kernels are under

All JSON is canonical, so the same kernels give the same bytes. The manifest's digest covers every
kernel, and a kernel's says the digest of its binary; to sign the manifest is to sign all.
"""

from __future__ import annotations

import json
import platform
import re
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import msgspec

from tilewright import ops, triton_versions
from tilewright.arch.model import Arch
from tilewright.canonical import canonical, sha256
from tilewright.compile.kernel import Blob, Digest, Kernel
from tilewright.compile.key import sources_digest
from tilewright.errors import BadArgument, BadFile
from tilewright.ops.nouns import MAIN
from tilewright.version import __version__

SCHEMA = 1
"""Version of the layout; a bundle of a newer one is refused."""

MANIFEST, TABLE, LICENSE = "manifest.json", "table.twt", "LICENSE"
SMALL, LARGE = 64 << 20, 1 << 30
"""Most bytes of a file of text, and of any other."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Manifest:
    """versions: of tilewright, triton and python (major and minor), which built the kernels. files:
    the others in the bundle, binaries aside. priorities: of kernels by name, those that are not 0
    (see `Registry`)."""

    schema: int
    versions: dict[str, str]
    files: dict[str, Blob]
    priorities: dict[str, int]


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel, and the digest of what it was built from (see `source_digest`)."""

    kernel: Kernel
    source: Digest


def kernel_path(name: str, arch: str) -> str:
    """Where a kernel stands. Raises `BadArgument` for a name that is no plain word."""
    if not _KERNEL.fullmatch(f"kernels/{arch}/{name}.json"):
        raise BadArgument(f"'{name}' for {arch} cannot be in a bundle: its name is no plain word")
    return f"kernels/{arch}/{name}.json"


def kernel_at(path: str) -> tuple[str, str] | None:
    """The name and the architecture of the kernel at a path; None for another file."""
    found = _KERNEL.fullmatch(path)
    return (found[2], found[1]) if found else None


_KERNEL = re.compile(r"kernels/(\w+)/([\w.+-]+)\.json", re.ASCII)


def blob_path(blob: Blob) -> str:
    return f"blobs/{blob.digest}"


def of_bytes(content: bytes) -> Blob:
    """The digest and size of a file."""
    return Blob(sha256(content), len(content))


def versions_here() -> dict[str, str]:
    """The versions that a bundle made here has. Raises `BadArgument` where there is no Triton."""
    triton = triton_versions.installed()
    if not triton:
        raise BadArgument(
            "triton is not installed, so no bundle can be made here; pip install triton (Linux)"
        )
    python = ".".join(platform.python_version_tuple()[:2])
    return {"tilewright": __version__, "triton": triton, "python": python}


def source_digest(config: Any, arch: Arch) -> str:
    """A digest of what `config` is compiled from on `arch`: the text of its modules, and how they
    are specialised. A binary serves only the Tilewright that would compile the same. The compiler
    does not count, so it is the same with any Triton, or none, and under any Python."""
    source = ops.family(config.family).sources(config, arch)[MAIN]
    modules = sources_digest(*source.modules)
    return sha256(canonical({"source": asdict(source), "modules": modules}))


def encoded(value: Any) -> bytes:
    """A dataclass as canonical JSON."""
    return canonical(asdict(value))


def decoded(content: bytes, kind: type[T], where: str) -> T:
    """What `encoded` made the bytes of. Raises `BadFile` for any others."""
    try:
        value = msgspec.convert(json.loads(content), kind)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise BadFile(f"{where} is not as bundles have it: {error}") from None
    if encoded(value) != content:
        raise BadFile(f"{where} is not as bundles have it: not in canonical form")
    return value
