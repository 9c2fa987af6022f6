"""The files of a bundle.

    manifest.json                        `Manifest`: versions, and the digest and size of every file
                                         below, binaries aside
    kernels/<arch>/<name>.json           `Built`: a config's kernel, and what it was built from
    kernels/<arch>/<name>/<part>.json    the same for a part of another name than `MAIN`
    blobs/<sha256>                       a binary, named by its content
    table.twt                            the tuned choices, if there are any
    LICENSE                              Tilewright's licence, which covers the kernels

All JSON is canonical, so the same kernels give the same bytes. The manifest has the digest of every
kernel's file, and that file the digest of its binary, so a signature of the manifest covers all.
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
from tilewright.compile.kernel import Blob, Digest, Kernel, called, to_data
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
    """versions: of tilewright, triton and python (major and minor), which built the kernels.
    files: the other files of the bundle, except binaries.
    priorities: by the kernel's name, those that are not 0 (see `Registry`).
    """

    schema: int
    versions: dict[str, str]
    files: dict[str, Blob]
    priorities: dict[str, int]


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel, and the digest of what it was built from (see `source_digest`)."""

    kernel: Kernel
    source: Digest


def kernel_path(name: str, arch: str, part: str = MAIN) -> str:
    """The path of a kernel's file. Raises `BadArgument` for a name that is no plain word."""
    path = f"kernels/{arch}/{name}.json" if part == MAIN else f"kernels/{arch}/{name}/{part}.json"
    if kernel_at(path) != (name, arch, part):
        raise BadArgument(
            f"'{called(name, part)}' for {arch} cannot be in a bundle: its name is no plain word"
        )
    return path


def kernel_at(path: str) -> tuple[str, str, str] | None:
    """The name, the architecture and the part of the kernel at a path; None for another file."""
    found = _KERNEL.fullmatch(path)
    return (found[2], found[1], found[3] or MAIN) if found else None


_KERNEL = re.compile(r"kernels/(\w+)/([\w.+-]+?)(?:/([a-z][a-z0-9_]*))?\.json", re.ASCII)


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


def source_digests(config: Any, arch: Arch) -> dict[str, str]:
    """A digest of what each kernel of `config` is compiled from on `arch`, by part: the text of its
    modules, and how they are specialised. A binary serves only a Tilewright that would compile the
    same. The compiler does not count, so the digest is the same with any Triton, or none, and under
    any Python."""
    found = {}
    for part, source in ops.family(config.family).sources(config, arch).items():
        modules = sources_digest(*source.modules)
        found[part] = sha256(canonical({"source": asdict(source), "modules": modules}))
    return found


def encoded(value: Any) -> bytes:
    """A `Manifest` or a `Built` as canonical JSON."""
    data = asdict(value)
    if isinstance(value, Built):
        data["kernel"] = to_data(value.kernel)
    return canonical(data)


def decoded(content: bytes, kind: type[T], where: str) -> T:
    """What `encoded` made the bytes of. Raises `BadFile` for any others."""
    try:
        value = msgspec.convert(json.loads(content), kind)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise BadFile(f"{where} is not as bundles have it: {error}") from None
    if encoded(value) != content:
        raise BadFile(f"{where} is not as bundles have it: not in canonical form")
    return value
