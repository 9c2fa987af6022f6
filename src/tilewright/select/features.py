"""What a model is told of kernels for a problem: fields of the problem and of each config, the
estimate and the shares of its terms, and the family's traits. No feature names a device: data
sheets come in through the estimate.

A column of features is known by its name: ``problem.m``, ``config.tile_m``, ``term.memory``,
``trait.waves``, ``work`` or ``us`` (the estimate). Numbers are as they are: trees ask only which
of two is larger, so a logarithm would change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from typing import Any

from tilewright import ops
from tilewright.arch.model import Device
from tilewright.ops.estimate import Estimates, Ranking, ranked
from tilewright.ops.library import library_of
from tilewright.ops.pool import Columns, Each, Pool, each

US = "us"
CONFIG = "config"
"""The kind of a config's fields."""
SHARED = ("problem", "work")
"""Kinds of features that a problem's kernels share."""


class Described:
    """The kernels of `configs` that are built here, for `problem` on `device`.

    pool: these kernels. places: of all of them in the pool, the one with the best estimate first.
    us: their estimates in microseconds, in the order of the pool.
    """

    def __init__(self, problem: Any, configs: Sequence[Any], device: Device) -> None:
        self.problem, self.device = problem, device
        self._family = ops.family(problem.family)
        pool = Pool.of(configs)
        if pool and not (built := each(pool.columns, _built_here)).all():
            pool = pool.part(built.nonzero()[0])
        order = ranked(self._family, problem, pool, device) if pool else ()
        if isinstance(order, Ranking):
            self.pool, found, self.places = order.pool, order.found, [*order.places]
        else:
            self.pool = Pool(config for config, _ in order)
            found = Estimates.each([estimate for _, estimate in order])
            self.places = [*range(len(order))]
        self._terms = found.terms
        self._made: dict[str, Each] = {}
        self.us = found.total_us

    def __len__(self) -> int:
        return len(self.places)

    @cached_property
    def _traits(self) -> Mapping[str, Each]:
        traits: Mapping[str, Each] = self._family.traits(
            self.problem, self.pool.columns, self.device
        )
        return traits

    def column(self, name: str) -> Each:
        """The feature called `name`: an array of numbers or words, or one that holds for all
        kernels; None if there is no such feature. A term that no kernel has is 0."""
        if name not in self._made:
            self._made[name] = self._column(name)
        return self._made[name]

    def _column(self, name: str) -> Each:
        kind, _, word = name.partition(".")
        if kind == US:
            return self.us
        if kind == "term":
            return self._terms[word] / self.us if word in self._terms else 0.0
        if kind == "trait":
            return self._traits.get(word)
        if kind == "problem":
            return _plain(getattr(self.problem, word, None))
        if kind == CONFIG:
            return field_of(self.pool.columns, word)
        return self._work.get(word)

    @cached_property
    def _work(self) -> Mapping[str, float]:
        flops, least = self.problem.flops, self.problem.min_bytes
        return {"flops": float(flops), "bytes": float(least), "intensity": flops / max(1, least)}

    def names(self) -> list[str]:
        """Every feature that these kernels have."""
        of_problem = [f"problem.{f.name}" for f in fields(self.problem)]
        of_config = [f"{CONFIG}.{f.name}" for f in fields(self.pool[0])]
        known = [name for name in (*of_problem, *of_config) if self.column(name) is not None]
        return [
            *known,
            US,
            "work.flops", "work.bytes", "work.intensity",
            *(f"term.{word}" for word in self._terms),
            *(f"trait.{word}" for word in self._traits),
        ]  # fmt: skip


def _built_here(config: Any) -> bool:
    return not library_of(config)


def _plain(value: Any) -> Any:
    """A number or a word; None of anything else."""
    return value if isinstance(value, bool | int | float | str) else None


def field_of(columns: Columns, word: str) -> Each:
    """A field of configs, an array of numbers or words; None if there is no such field."""
    column = getattr(columns, word, None)
    kind = getattr(getattr(column, "dtype", None), "kind", "")
    return column if kind and kind in "biufU" else None
