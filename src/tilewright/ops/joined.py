"""What a family says of calls that are made over one more dimension, as ``jax.vmap`` makes them."""

from __future__ import annotations

from dataclasses import dataclass

FRONT = -1
"""A further dimension becomes a new first one."""


@dataclass(frozen=True, slots=True)
class Joined:
    """How calls that differ in some of their operands are one call with a further dimension.

    operands: for each operand, by position and then by keyword: `FRONT`; or the dimension whose
        outer part the further one becomes; or None for an operand that all calls share, and that
        the one call takes as it is. An operand that all calls share is repeated where this is a
        number.
    outputs: `FRONT`, or a dimension, for each output.
    """

    operands: tuple[int | None, ...]
    outputs: tuple[int, ...]
