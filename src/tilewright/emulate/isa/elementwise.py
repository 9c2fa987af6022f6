"""Instructions whose result in a lane is a function of the sources in that lane: how one line of a
table becomes a meaning."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from tilewright.emulate.isa.access import TYPES, Reader, Writer, destination, source
from tilewright.emulate.isa.registry import Context, Executor, means
from tilewright.emulate.waves import Array, Waves
from tilewright.listing.target import Generation
from tilewright.listing.text import Instruction

Function = Callable[..., Array]


def elementwise(
    mnemonics: str,
    kinds: str,
    function: Function,
    *,
    accumulates: bool = False,
    keeps_high: bool = False,
    saturates: bool = False,
    generations: Collection[Generation] = (),
) -> None:
    """Register instructions with one vector destination.

    kinds: of the result, and behind an arrow of the sources: ``"u32 <- u32 u32"`` (see `access`).
    function: takes arrays of the sources' types, and gives one of the result's.
    accumulates: the destination is the last source as well (``v_fmac_f32``).
    keeps_high: see `access.destination`.
    saturates: whether the clamp flag is known: the function is then computed on wide integers, and
        the result limited to its type.
    """
    result, _, rest = kinds.partition(" <- ")
    reads = rest.split()

    @means(*mnemonics.split(), generations=generations)
    def make(ins: Instruction, context: Context) -> Executor:
        explicit = len(reads) - accumulates
        if len(ins.operands) != explicit + 1:
            raise ValueError(f"it has {len(ins.operands)} operands instead of {explicit + 1}")
        target = context.target
        sources = [source(ins, 1 + i, kind, target) for i, kind in enumerate(reads[:explicit])]
        if accumulates:
            sources.append(source(ins, 0, reads[-1], target, explicit))
        write = destination(ins, 0, result, target, keeps_high)
        chosen = function
        if saturates and "clamp" in ins.flags:
            chosen = _saturating(function, result)
        return executor_of(write, chosen, sources)


def executor_of(write: Writer, function: Function, sources: list[Reader]) -> Executor:
    """An executor that writes the function of what the sources give."""
    if len(sources) == 1:
        (a,) = sources
        return lambda waves: write(waves, function(a(waves)))
    if len(sources) == 2:
        a, b = sources
        return lambda waves: write(waves, function(a(waves), b(waves)))

    def execute(waves: Waves) -> None:
        write(waves, function(*(each(waves) for each in sources)))

    return execute


def _saturating(function: Function, kind: str) -> Function:
    """The function on wide integers, its result limited to the range of `kind`."""
    type_ = TYPES[kind]
    limits = np.iinfo(type_)  # type: ignore[type-var]

    def limited(*sources: Array) -> Array:
        wide = function(*(each.astype(np.int64) for each in sources))
        return np.clip(wide, limits.min, limits.max).astype(type_)

    return limited
