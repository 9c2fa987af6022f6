"""Whether an instruction exists: Triton's own assembler says so."""

from __future__ import annotations

from functools import cache
from typing import Any

CDNA = ("gfx950", "gfx942", "gfx90a")
RDNA = ("gfx1201", "gfx1100", "gfx1250")
ENCODINGS = ("", "_e32", "_e64")


@cache
def _assembler() -> Any:
    from triton._C.libtriton import amd, llvm

    llvm.init_targets()
    return amd


def exists(text: str, gpu: str) -> bool:
    """Whether the assembler takes one instruction for a GPU. What it says of errors goes to
    stderr."""
    listing = f'\t.amdgcn_target "amdgcn-amd-amdhsa--{gpu}"\n\t{text}\n'
    return len(_assembler().assemble_amdgcn(listing, gpu, "")) > 0


def spelt(mnemonic: str, operands: str) -> list[tuple[str, str]]:
    """Texts of an instruction, and a GPU that has it: every encoding on the first GPU of each line
    that has it."""
    found = []
    for line in (CDNA, RDNA):
        for gpu in line:
            texts = [f"{mnemonic}{each} {operands}" for each in ENCODINGS]
            here = [text for text in texts if exists(text, gpu)]
            if len(here) > 1:  # without a suffix the assembler chooses one of the others
                here = [text for text in here if text.split()[0] != mnemonic]
            if here:
                found += [(gpu, text) for text in here]
                break
    return found
