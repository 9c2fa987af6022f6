"""How many of its arguments a kernel finds in scalar registers when it starts (AMD).

Triton marks every argument to be preloaded, and LLVM preloads the first of them, as many as there
are registers: on gfx1250, all 32 that a launch can set. The LLVM of Triton 3.6 writes this number
into a field of five bits, so that it becomes 0, and its assembler stops. (Later ones have six:
``COMPUTE_PGM_RSRC2_GFX125(USER_SGPR_COUNT…)`` in AMDHSAKernelDescriptor.h.) So only arguments that
leave one register are marked here; a kernel loads from memory what is not preloaded.
"""

from __future__ import annotations

import re

WORDS = {"gfx1250": 29}
"""Words of 4 bytes that may be preloaded, by target: 31 registers, two of which hold the address of
the arguments. Of a target that is not here, LLVM knows it."""
_KERNEL = re.compile(r"define amdgpu_kernel void @[^\s(]+\(([^<[{]*?)\)[^()\n]*\{\n")
_BYTES = {
    "ptr": 8, "half": 2, "bfloat": 2, "float": 4, "double": 8,
    "i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8,
}  # fmt: skip
_BETWEEN = re.compile(rf", (?=(?:{'|'.join(_BYTES)}) )")


def preloading_fewer(llir: str, words: int) -> str:
    """LLVM's IR of a kernel whose arguments are to be preloaded, without the marks of those that
    are not within the first `words` words. One with other arguments than numbers and pointers, the
    only ones that Triton's kernels have, is returned as it is."""
    found = _KERNEL.search(llir)
    arguments = _BETWEEN.split(found[1]) if found else []
    sizes = [_BYTES.get(argument.partition(" ")[0]) for argument in arguments]
    if found is None or None in sizes:
        return llir
    end = 0
    for place, size in enumerate(filter(None, sizes)):
        end += -end % size + size
        if end > 4 * words:
            arguments[place] = arguments[place].replace(" inreg", "", 1)
    return llir[: found.start(1)] + ", ".join(arguments) + llir[found.end(1) :]
