"""The operands of GEMM: their names, and their shapes, strides and dtypes for a problem."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from tilewright.dtypes import DTYPES
from tilewright.ops import epilogues, keywords
from tilewright.ops.gemm import lowbit, scales, shuffle
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.keywords import Keyword
from tilewright.ops.nouns import Operand, Role

SCALES = ("scale_a", "scale_b")
"""Options that each come with an array of scales."""

MATRICES = ("A", "B", "C")
_ROLES: tuple[Role, ...] = ("in", "in", "out")


@dataclass(frozen=True, slots=True)
class Names:
    """Names of the operands besides `MATRICES`.

    chains: the operands of `pre_a`, of `pre_b` and of the epilogue.
    scales: A's and B's scales, if there are any.
    """

    chains: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
    scales: tuple[str, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        of_a, of_b, of_c = self.chains
        return ("A", "B", *of_a, *of_b, *self.scales, *of_c)


def names(of: Any) -> Names:
    """The names of the operands of a problem or a config. If an operation occurs twice, its
    operands' names are numbered: ``add``, ``add_2``."""
    return names_of(of.pre_a, of.pre_b, of.epilogue, bool(of.scale_a), bool(of.scale_b))


def names_of_call(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the operands that a call with these options reads, in order."""
    chains = [options.get(name, "") for name in ("pre_a", "pre_b", "epilogue")]
    return names_of(*chains, *(bool(options.get(name)) for name in SCALES)).inputs


def lowered(inputs: int, named: Sequence[str], options: Mapping[str, Any]) -> tuple[int, ...]:
    """See `tilewright.ops.protocols.Differentiation`."""
    chains = [options.get(name, "") for name in ("pre_a", "pre_b", "epilogue")]
    wanted = {"A", "B"} | epilogues.chain_lowered(*chains)
    return places(names_of_call(options), inputs, named, wanted)


def places(
    names: Iterable[str], inputs: int, named: Sequence[str], wanted: Collection[str]
) -> tuple[int, ...]:
    """Places of operands among those by position and then those by keyword.

    names: of all operands that are read, in order. inputs: how many are given by position. named:
        those given by keyword. wanted: those whose places are wanted.
    """
    by_position = [name for name in names if name not in named][:inputs]
    return tuple(i for i, name in enumerate((*by_position, *named)) if name in wanted)


def chain_keywords() -> dict[str, Keyword]:
    """The operands of all operations that there are, as keywords."""
    return {
        takes.name: keywords.operand(takes.dtype if takes.kind == "s" else "")
        for takes in epilogues.every_operand()
    }


def chain_keyword(name: str) -> Keyword | None:
    """An operand of a chain, perhaps with a number behind its name; None for any other word."""
    known = chain_keywords()
    return known.get(name) or known.get(_NUMBER.sub("", name))


_NUMBER = re.compile(r"_[0-9]+$")


@lru_cache(maxsize=1024)
def names_of(pre_a: str, pre_b: str, epilogue: str, scale_a: bool, scale_b: bool) -> Names:
    """The names of the operands under these chains, with or without scales."""
    scaled = tuple(name for name, there in zip(SCALES, (scale_a, scale_b), strict=True) if there)
    chains = epilogues.operand_names(pre_a, pre_b, epilogue, after=scaled)
    return Names((chains[0], chains[1], chains[2]), scaled)


def operands(problem: GemmProblem) -> tuple[Operand, ...]:
    """A, B, the operands of `pre_a` and of `pre_b`, scales, the epilogue's operands and C, with
    their layouts in memory."""
    p = problem
    shapes = ((p.m, p.k), (p.k, p.n), (p.m, p.columns))
    types, lds = (p.dtype_a, p.dtype_b, p.dtype_c), (p.lda, p.ldb, p.ldc)
    a, b, c = (
        lowbit.stored(name, shape, (ld, 1) if row == "r" else (1, ld), d, -1 if place == 0 else -2)
        if DTYPES[d].packed > 1
        else _in_batch(
            Operand(name, shape, (ld, 1) if row == "r" else (1, ld), d, role),
            p,
            place,
            p.batching == "pointers",
        )
        for place, (name, role, shape, row, ld, d) in enumerate(
            zip(MATRICES, _ROLES, shapes, p.layout, lds, types, strict=True)
        )
    )
    if p.layout[1] == "s":
        blocks = shuffle.shape(p.n, p.k, p.dtype_b)
        b = replace(b, shape=blocks, strides=(p.ldb, blocks[2] * blocks[3], blocks[3], 1))
    # A sum of k products is about as large as the root of k, the epilogue's other operands about as
    # large as 1. Two scales of 1/64 bring int8's sums, near 5000, down to that.
    integers = p.dtype_acc == "int32"
    usual, down = math.sqrt(p.k * p.addends), 1 / 64 if integers else 1.0
    if p.dtype_c == "int8":  # together, the scales bring values to the middle of the range
        scaling = sum(t.values == "scale" for t in epilogues.takes(p.epilogue))
        down = (40 / max(1.0, usual * (5000 if integers else 1))) ** (1 / scaling)
    chains = (
        (p.pre_a, p.pre_a_shapes, p.layout[0], p.ldpa, _made_up(1.0)),
        (p.pre_b, p.pre_b_shapes, p.layout[1], p.ldpb, _made_up(1.0)),
        (p.epilogue, p.extra_shapes, p.layout[2], p.ldd, _made_up(usual, down)),
    )
    extra: list[list[Operand]] = []
    for (chain, found, row, ld, values), named in zip(chains, names(p).chains, strict=True):
        extra.append([])
        for t, name, (shape, d) in zip(epilogues.takes(chain), named, found, strict=True):
            strides = (1,) if len(shape) == 1 else (ld, 1) if row == "r" else (1, ld)
            one = Operand(name, shape, strides, d, values=values[t.values])
            extra[-1].append(_in_batch(one, p, 3) if t.kind == "d" else one)
    before_a, before_b, after = extra
    return a, b, *before_a, *before_b, *(s.operand for s in scales.of(p)), *after, c


def _in_batch(one: Operand, problem: GemmProblem, place: int, by_pointers: bool = False) -> Operand:
    """Matrix A, B, C or D (`place` 0 to 3) of `problem` with its whole batch. A matrix that the
    whole batch shares is a single matrix. A matrix shared by part of a nested batch has strides of
    0."""
    stride = problem.batch_strides[place]
    if problem.batching == "nested":
        sizes = (problem.batch // problem.batch_inner, problem.batch_inner)
        steps = (problem.outer_strides[place], stride)
        return replace(one, shape=(*sizes, *one.shape), strides=(*steps, *one.strides))
    if not stride and not by_pointers:
        return one
    shape, strides = (problem.batch, *one.shape), (stride, *one.strides)
    return replace(one, shape=shape, strides=strides, pointers=by_pointers)


def _made_up(usual: float, down: float = 1.0) -> dict[str, tuple[float, float] | None]:
    """Bounds of the random values of each operand of the chains, from `Takes.values`.

    usual: usual size of the values that the chain is applied to.
    down: size of scales; bounds on values lie about where the values end.
    """
    return {
        "normal": None,
        "scale": (0.5 * down, 2.0 * down),
        "below": (-1.5 * usual, -0.5 * usual),
        "above": (0.5 * usual, 1.5 * usual),
    }
