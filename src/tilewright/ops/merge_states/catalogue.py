"""What the parameters of the kernel that merges states are, and what is launched."""

from __future__ import annotations

from dataclasses import replace

from tilewright.dtypes import DTYPES
from tilewright.ops.binder import Array, Catalogue, Context, Numbers, Part, sizes
from tilewright.ops.merge_states.config import MergeStatesConfig
from tilewright.ops.merge_states.problem import MergeStatesProblem
from tilewright.ops.nouns import MAIN


def _elements(c: MergeStatesConfig) -> int:
    """Elements of O that addresses, strides and head dims are multiples of."""
    return max(1, c.alignment // DTYPES[c.dtype].bytes)


def _array(name: str, rank: int) -> Catalogue:
    """O or LSE of a state, and its `rank` strides: along rows, states of a stack if it may have
    them, and heads; 0 along dimensions of one element, so that they are multiples of whatever was
    promised. ``to_o`` and ``to_lse`` are outputs, or in place the first state."""
    of_o = name.endswith("o")

    def there(c: MergeStatesConfig) -> bool:
        return c.form != "stack" or not name.startswith("other")

    def operand(x: Context) -> str:
        return name.replace("to_", "" if x.problem.form == "in_place" else "merged_")

    def strides(x: Context) -> tuple[int, ...]:
        p, of = x.problem, operand(x)
        given = zip(p.shape_of(of), p.strides_of(of), strict=True)
        found = [0 if n <= 1 else s for n, s in given]
        outer = found[:-1] if of_o else found
        if len(outer) < rank:
            outer.insert(1, 0)
        return tuple(outer)

    return {
        name: Array(
            "dtype" if of_o else "fp32",
            operand,
            there,
            aligned=lambda c: c.alignment if of_o else 1,
        ),
        f"{name}_strides": Numbers(
            ("i64",) * rank, strides, there, lambda c: _elements(c) if of_o else 1
        ),
    }


CATALOGUE: Catalogue = {
    **_array("o", 3),
    **_array("lse", 3),
    **_array("other_o", 2),
    **_array("other_lse", 2),
    **_array("to_o", 2),
    **_array("to_lse", 2),
    "mask": Array("uint8", there=lambda c: c.masked),
    "count": Numbers("i32", lambda x: x.problem.rows * x.problem.heads),
    **sizes("states", "heads"),
    "head_dim": replace(sizes("head_dim")["head_dim"], multiples=_elements),
    "MASK": lambda c, _: c.masked,
}


def workgroups(c: MergeStatesConfig, p: MergeStatesProblem) -> int:
    """Workgroups of the launch."""
    return -(-p.rows * p.heads // c.tile_m)


PARTS = (
    Part(
        name=MAIN,
        kernel="tilewright.ops.merge_states.kernels.merge:merge",
        grid=lambda x: workgroups(x.config, x.problem),
        options=lambda c, arch: (("num_warps", c.num_warps), ("num_stages", 1)),
    ),
)
