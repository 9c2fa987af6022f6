"""What rules of wait states ask of an instruction, and what such a rule is (`hazard_rules` has
them)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tilewright.listing.effects import Effects, bits
from tilewright.listing.passes import passes
from tilewright.listing.target import Generation
from tilewright.listing.text import Instruction

_TRANSCENDENTAL = re.compile(r"v_(exp|log|rcp|rcp_iflag|rsq|sqrt|sin|cos|tanh)_b?f\d+")
_MEMORY = re.compile(r"(buffer|global|flat|scratch)_(load|store|atomic)")
_FP32 = re.compile(r"v_\w+\d_?f32")


@dataclass(frozen=True, slots=True)
class Facts:
    """What rules ask of an instruction. Registers are bitmasks as in `effects`.

    states: wait states that it takes.
    valu: whether it is a vector instruction, matrix instructions included.
    memory: whether it accesses global memory or scratch; lds: shared memory by ``ds_…``.
    a, b, c, d: the registers of a matrix instruction's operands; `d` is 0 of all others.
    xdl: whether a matrix instruction multiplies another type than fp32 (and fp64).
    passes: of an MFMA.
    """

    ins: Instruction
    reads: int
    writes: int
    states: int
    valu: bool
    memory: bool
    lds: bool
    a: int
    b: int
    c: int
    d: int
    xdl: bool
    passes: int

    @property
    def base(self) -> str:
        """The mnemonic."""
        return self.ins.base

    @property
    def plain(self) -> bool:
        """Whether it is a vector instruction, and no matrix instruction."""
        return self.valu and not self.d

    @property
    def transcendental(self) -> bool:
        """Whether the unit for exponentials, reciprocals and the like executes it."""
        return bool(_TRANSCENDENTAL.fullmatch(self.ins.base))


def facts(ins: Instruction, touched: Effects, generation: Generation) -> Facts:
    """The facts of an instruction. touched: its registers."""
    base = ins.base
    d = a = b = c = 0
    if base.startswith(("v_mfma", "v_wmma")):
        d, a, b, c = (bits(ins.at(place)) for place in range(4))
    return Facts(
        ins,
        touched.reads | touched.tied,
        touched.writes,
        ins.whole(0) + 1 if base == "s_nop" else 1,
        base.startswith("v_"),
        bool(_MEMORY.match(base)),
        base.startswith("ds_"),
        a,
        b,
        c,
        d,
        bool(d) and not _FP32.fullmatch(base),
        passes(ins, generation) if base.startswith("v_mfma") else 0,
    )


def nops(missing: int) -> tuple[str, ...]:
    """Instructions that take wait states, eight at most each."""
    full, rest = divmod(missing, 8)
    return ("s_nop 7",) * full + ((f"s_nop {rest - 1}",) if rest else ())


def vector_nops(missing: int) -> tuple[str, ...]:
    """Vector instructions."""
    return ("v_nop",) * missing


@dataclass(frozen=True, slots=True)
class Rule:
    """An instruction must not come too soon behind another.

    asks: what the rule is about.
    cause: the registers that an instruction endangers. effect: those that an instruction must not
        touch too soon. The rule is about pairs that share some.
    most: the most wait states that it asks for. states: how many of a pair, by default all.
    counts: how many an instruction between them gives, by default those that it takes.
    ends: whether an instruction between them ends the danger; stops: whether so much between them
        does, by default `most`.
    remedy: instructions that give so many missing wait states, or end the danger.
    """

    asks: str
    generations: tuple[Generation, ...]
    cause: Callable[[Facts], int]
    effect: Callable[[Facts], int]
    most: int
    states: Callable[[Generation, Facts, Facts], int] | None = None
    counts: Callable[[Facts], int] = lambda f: f.states
    ends: Callable[[Facts], bool] | None = None
    stops: Callable[[int], bool] | None = None
    remedy: Callable[[int], tuple[str, ...]] = nops

    def asked(self, generation: Generation, cause: Facts, effect: Facts) -> int:
        """The wait states that must lie between two instructions."""
        return self.most if self.states is None else self.states(generation, cause, effect)
