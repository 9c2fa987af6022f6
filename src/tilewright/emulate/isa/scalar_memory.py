"""Scalar loads."""

from __future__ import annotations

import numpy as np

from tilewright.emulate.isa import transfer
from tilewright.emulate.isa.registry import Context, Executor, means
from tilewright.emulate.waits import Entry
from tilewright.emulate.waves import Waves
from tilewright.listing.effects import bits
from tilewright.listing.text import Instruction

_GFX9 = ("dword", "dwordx2", "dwordx4", "dwordx8", "dwordx16")
_LATER = ("b32", "b64", "b96", "b128", "b256", "b512")


@means(*(f"s_load_{word}" for word in _GFX9), generations=transfer.GFX9)
@means(*(f"s_load_{word}" for word in _LATER), generations=transfer.LATER)
def _load(ins: Instruction, context: Context) -> Executor:
    """From a base in two scalar registers, a constant or a scalar register, and a further constant.
    The lowest two bits of the address count for nothing. ``scale_offset`` multiplies the register
    by the size of the access, as for global loads (LLVM: ``hasScaleOffset``)."""
    wide = transfer.width(ins.base.removeprefix("s_load_"))
    data, base, offset = ins.operands
    if data.file != "s" or data.count != wide.registers or base.file != "s" or base.count != 2:
        raise ValueError(f"operands {data.text}, {base.text}")
    transfer.plain(ins)
    constant, register = ins.modifiers.whole("offset"), -1
    if offset.file == "constant" and isinstance(offset.value, int):
        constant += offset.value
    elif offset.file == "s":
        register = offset.first
    elif offset.file != "none":
        raise ValueError(f"an offset {offset.text}")
    first, registers = data.first, bits(data)
    to = transfer.waiting(context, "scalar")
    scale = wide.size if "scale_offset" in ins.flags else 1
    if scale != 1 and register < 0:
        raise ValueError("scale_offset without a register")

    def execute(waves: Waves) -> None:
        at = transfer.scalar_address(waves, base.first) + constant
        if register >= 0:
            at = at + waves.scalar[register].astype(np.int64) * scale
        everyone = np.ones((waves.count, 1), bool)
        values, time = transfer.load(
            context, ins, waves, (at & ~np.int64(3))[:, None], wide.size, everyone
        )
        waves.scalar[first : first + wide.registers] = values[..., 0]
        waves.counters.issue(to, Entry("scalar", registers, time=time))

    return execute
