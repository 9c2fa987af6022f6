"""The instruction sets that the emulator knows, and what a kernel's descriptor sets of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tilewright.errors import BadArgument

Generation = Literal["cdna1", "cdna2", "cdna3", "cdna4", "rdna3", "rdna4", "gfx1250"]

GENERATIONS: dict[str, Generation] = {
    "gfx908": "cdna1",
    "gfx90a": "cdna2",
    "gfx942": "cdna3",
    "gfx950": "cdna4",
    "gfx1100": "rdna3",
    "gfx1151": "rdna3",
    "gfx1201": "rdna4",
    "gfx1250": "gfx1250",
}
"""The generation of instructions of each target."""

CDNA = frozenset({"cdna1", "cdna2", "cdna3", "cdna4"})
GFX12 = frozenset({"rdna4", "gfx1250"})


@dataclass(frozen=True, slots=True)
class Target:
    """What a kernel is compiled for.

    name: LLVM's name.
    lanes: of a wave, 32 or 64.
    denormals_32: whether instructions keep denormal inputs and results of fp32; otherwise both are
        flushed to zero.
    ieee: whether minimum and maximum quieten signalling NaNs (the descriptor's IEEE mode).
    """

    name: str
    generation: Generation
    lanes: int
    denormals_32: bool = True
    ieee: bool = False

    @property
    def cdna(self) -> bool:
        """Whether this is a data-centre GPU of the CDNA line, with MFMA and waves of 64."""
        return self.generation in CDNA

    @property
    def gfx12(self) -> bool:
        """Whether waits have a counter for each kind of memory (gfx12 and later)."""
        return self.generation in GFX12


def target_of(name: str, lanes: int, descriptor: Mapping[str, int]) -> Target:
    """The target of a kernel. descriptor: its ``.amdhsa_`` directives.

    Raises `BadArgument` for a target or a mode that the emulator does not know.
    """
    generation = GENERATIONS.get(name)
    if generation is None:
        known = ", ".join(GENERATIONS)
        raise BadArgument(f"the emulator has no instruction set for {name}; it has {known}")
    if lanes not in (32, 64):
        raise BadArgument(f"the kernel has waves of {lanes} lanes; a wave has 32 or 64")
    for mode, only in _ONLY.items():
        if descriptor.get(mode, only) != only:
            raise BadArgument(
                f"the kernel sets {mode} to {descriptor[mode]}; the emulator knows {only} alone"
            )
    return Target(
        name,
        generation,
        lanes,
        denormals_32=descriptor.get("float_denorm_mode_32", 0) == _KEPT,
        ieee=bool(descriptor.get("ieee_mode", 0)),
    )


_KEPT = 3
"""The descriptor's denormal mode that flushes neither inputs nor results."""

_ONLY = {
    "float_round_mode_32": 0,
    "float_round_mode_16_64": 0,
    "float_denorm_mode_16_64": _KEPT,
    "fp16_overflow": 0,
    "dx10_clamp": 1,
}
"""The modes of the descriptor of which the emulator knows one, Triton's: rounding to nearest,
denormals of fp16 and fp64 kept, FP16_OVFL clear at the beginning, and clamp that makes NaN zero."""
