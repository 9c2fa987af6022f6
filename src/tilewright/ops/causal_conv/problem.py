"""`CausalConvProblem`: a causal depthwise convolution of sequences, as in state-space models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tilewright import checks
from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument, nearest
from tilewright.ops.problem import Problem

DIRECTIONS = ("forward", "backward", "update")

EXTRAS: dict[str, tuple[str, ...]] = {
    "bias": DIRECTIONS,
    "silu": DIRECTIONS,
    "initial": ("forward", "backward"),
    "final": ("forward", "backward"),
    "packed": ("forward", "backward"),
    "circular": ("update",),
    "indexed": ("update",),
}
"""What a convolution may have besides, in the order of names, and the directions that have it."""

DTYPES_OF = ("bf16", "fp16", "fp32")
MOST = 2**31 - 1
MOST_TAPS = 16
Strides = tuple[int, ...]

LIKE = {
    "x_strides": 3, "w_strides": 2, "y_strides": 3, "dx_strides": 3, "state_strides": 3,
    "final_strides": 3,
}  # fmt: skip
"""Fields of strides, and how many numbers each has."""


@dataclass(frozen=True, slots=True, eq=False)
class CausalConvProblem(Problem):
    """``y[b, c, t] = act(bias[c] + Σ w[c, k] · x[b, c, t - (taps - 1) + k])``, its gradients, or
    new positions of it over a state.

    Shapes, as in Dao-AILab's causal-conv1d: x and y [batch, channels, tokens], w [channels, taps].

    direction: ``forward``; ``backward``: the gradients of x, w, bias and initial states;
        ``update``: positions behind a state [cache_entries, channels, state_len], which is
        updated in place.
    batch, channels, tokens: sizes of x; tokens are positions. taps: of a filter, up to `MOST_TAPS`.
    state_len: positions that a state has, taps - 1 or more; 0 as many. cache_entries: of a state;
        0 as batch.
    extras: words of `EXTRAS` in their order, joined by ``+``. bias; silu: act is ``z·sigmoid(z)``;
        initial: what is before the first position, [batch, channels, taps - 1], else zeros; final:
        the last taps - 1 positions, also of initial states, are an output; packed: an int32 for
        each position says of which sequence it is: others are not seen, and negative numbers are
        padding, whose results are 0. circular: int32 lengths [batch] say, modulo state_len, where
        new positions are written; else states move up. indexed: int32 [batch] say which entry of
        the state is a sequence's; negative numbers are padding.
    dtype: of x, y and states. dtype_w: of w and the bias; ``""`` is the same.
    x_strides, y_strides, …: in elements; () is without gaps, with neighbouring channels.
        `y_strides` is that of dY too, `state_strides` of initial states and the state,
        `final_strides` of final states and their gradient. Of w, () has neighbouring taps.
    alignment: bytes that all addresses are multiples of, a power of two up to 16.

    Sizes may be 0, but taps and state_len. Raises `BadArgument` for an invalid problem.
    """

    family: ClassVar[str] = "causal_conv"

    batch: int
    channels: int
    tokens: int
    taps: int = 4
    direction: str = "forward"
    extras: str = ""
    dtype: str = "bf16"
    dtype_w: str = ""
    state_len: int = 0
    cache_entries: int = 0
    x_strides: Strides = ()
    w_strides: Strides = ()
    y_strides: Strides = ()
    dx_strides: Strides = ()
    state_strides: Strides = ()
    final_strides: Strides = ()
    alignment: int = 16

    def _complete(self) -> None:
        if self.direction not in DIRECTIONS:
            raise BadArgument(
                f"direction = {self.direction!r}{nearest(self.direction, DIRECTIONS)} is not one "
                f"of {', '.join(DIRECTIONS)}"
            )
        for name in ("batch", "channels", "tokens", "state_len", "cache_entries"):
            checks.whole(name, getattr(self, name), 0, MOST)
        checks.whole("taps", self.taps, 1, MOST_TAPS)
        self._check_extras()
        if not self.dtype_w:
            object.__setattr__(self, "dtype_w", self.dtype)
        for name in ("dtype", "dtype_w"):
            if getattr(self, name) not in DTYPES_OF:
                raise BadArgument(
                    f"{name} = {getattr(self, name)!r} is not one of {', '.join(DTYPES_OF)}"
                )
        if self.alignment not in (1, 2, 4, 8, 16):
            raise BadArgument(f"alignment = {self.alignment} is not one of 1, 2, 4, 8, 16 bytes")
        update = self.direction == "update"
        if not update and (self.state_len or self.cache_entries):
            raise BadArgument(
                f"state_len and cache_entries are of updates, not of {self.direction}"
            )
        if update:
            if not self.state_len:
                object.__setattr__(self, "state_len", max(1, self.taps - 1))
            if not self.cache_entries:
                object.__setattr__(self, "cache_entries", self.batch)
            if self.state_len < self.taps - 1:
                raise BadArgument(
                    f"a state of {self.state_len} positions is shorter than {self.taps - 1}, which "
                    f"{self.taps} taps see behind them"
                )
            if not self.has("indexed") and self.cache_entries != self.batch:
                raise BadArgument(
                    f"a state of {self.cache_entries} entries is not one for each of {self.batch} "
                    "sequences: say conv_state_indices"
                )
        for name, count in LIKE.items():
            given = getattr(self, name)
            if given and len(given) != count:
                raise BadArgument(f"{name} = {given} does not have {count} numbers")
            for stride in given:
                checks.whole(name, stride)
            if given and given == self._dense(name):
                object.__setattr__(self, name, ())

    def _check_extras(self) -> None:
        said = self.words
        for word in said:
            if word not in EXTRAS:
                raise BadArgument(
                    f"a causal convolution has no '{word}'{nearest(word, EXTRAS)}; it has "
                    f"{', '.join(EXTRAS)}"
                )
            if self.direction not in EXTRAS[word]:
                raise BadArgument(f"'{word}' is nothing that direction {self.direction} has")
        if said != tuple(word for word in EXTRAS if word in said):
            raise BadArgument(f"extras = '{self.extras}' must be in order: {'+'.join(EXTRAS)}")
        if "packed" in said and ("initial" in said or "final" in said):
            raise BadArgument("packed sequences (seq_idx) have no initial or final states")

    def __str__(self) -> str:
        shown = f"causal_conv b{self.batch} c{self.channels} t{self.tokens} taps {self.taps}"
        shown += f" {self.dtype}" + (f"·{self.dtype_w}" if self.dtype_w != self.dtype else "")
        shown += f" {self.direction}" * (self.direction != "forward")
        if self.direction == "update":
            shown += f" state_len {self.state_len}"
            shown += f" cache_entries {self.cache_entries}" * (self.cache_entries != self.batch)
        shown += f" {self.extras}" * bool(self.extras)
        for name in LIKE:
            if strides := getattr(self, name):
                shown += f" {name} {','.join(map(str, strides))}"
        return shown + (f" alignment {self.alignment}" if self.alignment != 16 else "")

    @property
    def words(self) -> tuple[str, ...]:
        """The words of `extras`."""
        return tuple(self.extras.split("+")) if self.extras else ()

    def has(self, word: str) -> bool:
        """Whether `extras` says a word."""
        return word in self.words

    def shape_of(self, field: str) -> tuple[int, ...]:
        """The shape of the array that a field of strides is of."""
        if field == "w_strides":
            return self.channels, self.taps
        if field == "state_strides" and self.direction == "update":
            return self.cache_entries, self.channels, self.state_len
        last = self.taps - 1 if field in ("state_strides", "final_strides") else self.tokens
        return self.batch, self.channels, last

    def _dense(self, field: str) -> Strides:
        if field == "w_strides":
            return self.taps, 1
        _, channels, last = self.shape_of(field)
        return channels * last, 1, channels

    def strides_of(self, field: str) -> Strides:
        """The strides of the array that a field of strides is of."""
        given: Strides = getattr(self, field)
        return given or self._dense(field)

    def most_span(self) -> int:
        """Bytes from the first to past the last element of the largest array."""
        most = 0
        for field in LIKE:
            shape, strides = self.shape_of(field), self.strides_of(field)
            if 0 not in shape:
                reach = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
                most = max(most, reach * DTYPES[self.dtype].bytes)
        return most

    @property
    def _count(self) -> int:
        """Elements of x."""
        return self.batch * self.channels * self.tokens

    @property
    def flops(self) -> int:
        """Two for each product, backward of both gradients."""
        return 2 * self._count * self.taps * (2 if self.direction == "backward" else 1)

    @property
    def work(self) -> Mapping[str, int]:
        """On the vector units, in fp32; and the exponentials of SiLU."""
        found = {"fp32": self.flops}
        return found | ({"exp": self._count} if self.has("silu") else {})

    @property
    def min_bytes(self) -> int:
        """x, w and states read once, results written once."""
        size, size_w = DTYPES[self.dtype].bytes, DTYPES[self.dtype_w].bytes
        moved = self._count * size * (3 if self.direction == "backward" else 2)
        weights = self.channels * (self.taps + self.has("bias")) * size_w
        moved += weights * (2 if self.direction == "backward" else 1)
        states = self.batch * self.channels * size
        if self.direction == "update":
            return moved + 2 * states * self.state_len
        times = self.has("initial") * (2 if self.direction == "backward" else 1) + self.has("final")
        return (
            moved
            + times * states * (self.taps - 1)
            + 4 * self.batch * self.tokens * self.has("packed")
        )


def vector(p: CausalConvProblem) -> tuple[str, int]:
    """Along which dimension x and y (dY, dX) have neighbouring elements, ``channels``, ``tokens``
    or ``any``, and the bytes, up to 16, that those may be read by at a time."""
    fields = ["x_strides", "y_strides", *["dx_strides"] * (p.direction == "backward")]
    size = DTYPES[p.dtype].bytes
    each = [p.strides_of(field) for field in fields]
    if p.direction != "update":
        for word, inner, outer in (("channels", 1, (0, 2)), ("tokens", 2, (0, 1))):
            shape = p.shape_of("x_strides")
            if all(strides[inner] == 1 for strides in each):
                apart = [s[i] * size for s in each for i in outer if shape[i] > 1]
                return word, math.gcd(p.alignment, *apart, shape[inner] * size)
    return "any", min(p.alignment, size)
