"""The assembler's child process: a listing in, the machine code out.

The assembler is the one in Triton's library, which made the code object too.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.child import Blob, Message, serve
from tilewright.emulate.code_object import section
from tilewright.errors import BadFile


def handle(message: Message, blobs: list[bytes]) -> tuple[Message, Sequence[Blob]]:
    """Answer ``{"target": name}`` and a listing with the bytes of ``.text``, or with
    ``{"error": …}``; the assembler writes its reasons to standard error."""
    from triton._C.libtriton import amd

    (listing,) = blobs
    made = amd.assemble_amdgcn(listing.decode(), message["target"], "")
    try:
        return {}, [section(made, ".text")]
    except BadFile:
        return {"error": "it does not assemble"}, []


def main() -> None:
    from triton._C.libtriton import llvm

    llvm.init_targets()
    serve(handle)
