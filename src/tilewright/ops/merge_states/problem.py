"""`MergeStatesProblem`: attention over parts of the keys, merged into attention over all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tilewright import checks
from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument, nearest
from tilewright.ops.problem import Problem

FORMS = ("stack", "pair", "in_place")
DTYPES_OF = ("bf16", "fp16", "fp32")
MOST = 2**31 - 1
MOST_STRIDE = 2**62
MOST_HEAD_DIM = 1024
Strides = tuple[int, ...]

LIKE = {
    "o_strides": "o", "lse_strides": "lse", "other_o_strides": "other_o",
    "other_lse_strides": "other_lse", "merged_o_strides": "merged_o",
    "merged_lse_strides": "merged_lse",
}  # fmt: skip
"""Fields of strides, and the arrays that they are of."""


@dataclass(frozen=True, slots=True, eq=False)
class MergeStatesProblem(Problem):
    """``lse' = log Σ exp(lse[s])``, ``o' = Σ exp(lse[s] - lse') · o[s]``, over states s.

    A state is what attention gives for some of the keys: O, [rows, heads, head_dim], and the
    natural logarithm of each row's sum of exponentials, fp32 [rows, heads]; -inf where no key was
    seen, and O may be anything there. Merged states without keys give 0, and -inf.

    rows, heads, head_dim: sizes; head_dim up to 1024.
    form: ``stack``: of `states` states in one array, o [rows, states, heads, head_dim], lse [rows,
        states, heads]; ``pair``: o, lse and other_o, other_lse; ``in_place``: as ``pair``, written
        to o and lse.
    states: of a stack; 1 else.
    masked: in place, a byte for each row says whether it is merged; 0: left as it is.
    dtype: of every O.
    o_strides, …: in elements; () is dense. Elements of a head are neighbours.
    alignment: bytes that all addresses and the other strides of O are multiples of, a power of two
        up to 16.

    Sizes may be 0. Raises `BadArgument` for an invalid problem.
    """

    family: ClassVar[str] = "merge_states"

    rows: int
    heads: int
    head_dim: int
    states: int = 1
    form: str = "stack"
    masked: bool = False
    dtype: str = "bf16"
    o_strides: Strides = ()
    lse_strides: Strides = ()
    other_o_strides: Strides = ()
    other_lse_strides: Strides = ()
    merged_o_strides: Strides = ()
    merged_lse_strides: Strides = ()
    alignment: int = 16

    def _complete(self) -> None:
        if self.form not in FORMS:
            raise BadArgument(
                f"form = {self.form!r}{nearest(str(self.form), FORMS)} is not one of "
                f"{', '.join(FORMS)}"
            )
        for name in ("rows", "heads", "states"):
            checks.whole(name, getattr(self, name), 0, MOST)
        checks.whole("head_dim", self.head_dim, 0, MOST_HEAD_DIM)
        if type(self.masked) is not bool:
            raise BadArgument(f"masked = {self.masked!r} is not true or false")
        if self.masked and self.form != "in_place":
            raise BadArgument("a mask says which rows are merged in place; form is in_place")
        if self.form != "stack" and self.states != 1:
            raise BadArgument(f"states = {self.states} are of a stack, not of a {self.form}")
        if self.dtype not in DTYPES_OF:
            raise BadArgument(f"dtype = {self.dtype!r} is not one of {', '.join(DTYPES_OF)}")
        if self.alignment not in (1, 2, 4, 8, 16):
            raise BadArgument(f"alignment = {self.alignment} is not one of 1, 2, 4, 8, 16 bytes")
        for field, array in LIKE.items():
            given, shape = getattr(self, field), self.shape_of(array)
            if given and len(given) != len(shape):
                raise BadArgument(f"{field} = {given} does not have {len(shape)} numbers")
            for stride in given:
                checks.whole(field, stride, 0, MOST_STRIDE)
            if given and given == dense(shape):
                object.__setattr__(self, field, ())

    def __str__(self) -> str:
        shown = f"merge_states {self.rows}x{self.heads}x{self.head_dim} {self.dtype} {self.form}"
        shown += f" of {self.states}" * (self.form == "stack") + " masked" * self.masked
        for field in LIKE:
            if strides := getattr(self, field):
                shown += f" {field} {','.join(map(str, strides))}"
        return shown + (f" alignment {self.alignment}" if self.alignment != 16 else "")

    def shape_of(self, array: str) -> tuple[int, ...]:
        """The shape of an array."""
        stacked = (self.states,) if self.form == "stack" and array in ("o", "lse") else ()
        last = (self.head_dim,) if array.endswith("o") else ()
        return (self.rows, *stacked, self.heads, *last)

    def strides_of(self, array: str) -> Strides:
        """The strides of an array."""
        given: Strides = getattr(self, f"{array}_strides")
        return given or dense(self.shape_of(array))

    @property
    def _read(self) -> int:
        """States that are read."""
        return self.states if self.form == "stack" else 2

    @property
    def flops(self) -> int:
        """A multiply-add for each element of O."""
        return 2 * self.rows * self.heads * self.head_dim * self._read

    @property
    def work(self) -> Mapping[str, int]:
        """On the vector units, in fp32; and an exponential for each state's logarithm."""
        return {"fp32": self.flops, "exp": self.rows * self.heads * self._read}

    @property
    def min_bytes(self) -> int:
        """Each state read once, the merged one written once."""
        one = self.rows * self.heads * (self.head_dim * DTYPES[self.dtype].bytes + 4)
        return one * (self._read + 1) + self.rows * self.masked


def dense(shape: tuple[int, ...]) -> Strides:
    """Strides of an array without gaps."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(1, shape[i + 1])
    return tuple(strides)
