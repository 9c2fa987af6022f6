"""How scales reach the products of a layer.

Scales of blocks are operands of the product itself. One scale for each row or column, or for a
whole operand, is a factor of its sums: an operation in front of its epilogue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.blocks import parse
from tilewright.errors import BadArgument
from tilewright.moe.form import packed
from tilewright.ops import epilogues

ROW, TENSOR = "row", "tensor"
QUANT = {"1x128": "block", ROW: ROW, TENSOR: TENSOR}
"""What rows are rounded in, and what the operations that round call it."""

Factor = tuple[str, Any]
"""An operation that multiplies a product's sums, and its operand."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """The words of a layer's scales, as `fused_moe` takes them."""

    scale_a: str = ""
    scale_b: str = ""
    dtype_b: str = ""
    zero_b: bool = False

    def check(self) -> None:
        """Raise `BadArgument` unless the words fit together."""
        if self.scale_a not in ("", *QUANT):
            raise BadArgument(f"scale_a = {self.scale_a!r}; rows are rounded by {', '.join(QUANT)}")
        if self.scale_a and packed(self.dtype_b) > 1:
            raise BadArgument(
                f"weights in {self.dtype_b} take rows of 16 bits: leave scale_a = "
                f"'{self.scale_a}' out"
            )
        if self.zero_b and (self.dtype_b != "int4" or not self.block_b):
            raise BadArgument(
                "zero points are of int4 weights with scales of blocks; here dtype_b is "
                f"'{self.dtype_b}' and scale_b '{self.scale_b}'"
            )

    @property
    def quant(self) -> str:
        """How rows are rounded to 8 bits, as `quantise_rows` takes it; "" if they are not."""
        return QUANT.get(self.scale_a, "")

    def has_whole_blocks(self, columns: int) -> bool:
        """Whether rows of so many columns are rounded in whole blocks."""
        block = parse(self.scale_a) if self.quant == "block" else None
        return block is not None and columns % block.columns == 0

    @property
    def blocks(self) -> dict[str, Any]:
        """What a grouped product is told: scales of blocks, and what weights are in."""
        said: dict[str, Any] = {}
        if self.quant == "block":
            said["scale_a"] = self.scale_a
        if self.block_b:
            said["scale_b"] = self.block_b
        if self.dtype_b:
            said["dtype_b"] = self.dtype_b
        if self.zero_b:
            said["zero_b"] = True
        return said

    @property
    def block_b(self) -> str:
        """The blocks of weights that share a scale; "" if none do."""
        return "" if self.scale_b in (ROW, TENSOR) else self.scale_b

    @property
    def by_columns(self) -> bool:
        """Whether each column of a product has a factor: a weight's row."""
        return self.scale_b == ROW

    def factors(
        self, weights: Any, of_rows: Any, of_experts: Any, of_all: Any, of_columns: Any
    ) -> tuple[Factor, ...]:
        """What multiplies a product's sums, in this order.

        weights: of the routing, for each row; None where they come later.
        of_rows, of_all: scales of what the product takes, for each row or for all of it.
        of_experts, of_columns: scales of weights, for each row by its expert or for each column.
        """
        found: list[Factor] = [] if weights is None else [("row_scale", weights)]
        if self.scale_a == ROW:
            found.append(("row_scale", of_rows))
        if self.scale_b == TENSOR:
            found.append(("row_scale", of_experts))
        if self.scale_a == TENSOR:
            found.append(("scale", of_all))
        if self.by_columns:
            found.append(("col_scale", of_columns))
        return tuple(found)


def chained(factors: Sequence[Factor], epilogue: str) -> str:
    """An epilogue with factors in front."""
    return "+".join((*(name for name, _ in factors), *([epilogue] if epilogue else ())))


def operands(factors: Sequence[Factor]) -> dict[str, Any]:
    """The operands of factors, by the names that an epilogue has for them."""
    if not factors:
        return {}
    names = epilogues.chain_names(chained(factors, ""))
    return dict(zip(names, (operand for _, operand in factors), strict=True))
