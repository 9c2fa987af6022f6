"""Which kernels a sweep measures on each problem, where it cannot measure all: some that lie far
apart in the space of configs, and those that the estimate puts first. The kernels that lose are
kept as the winners are: what ranks kernels learns from both.

A `Sample` says every pair. Its file, ``sample.json`` in a sweep's directory, repeats the sweep
wherever the same kernels exist.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from tilewright import ops
from tilewright.arch import arch as arch_called
from tilewright.arch.model import Device
from tilewright.errors import BadArgument, BadFile, TilewrightError, UnknownName
from tilewright.files import write_whole
from tilewright.jsonfile import convert, load_json
from tilewright.ops.pool import Pool
from tilewright.tables.row import meant, said

FILE = "sample.json"
SCHEMA = 1

_SERVING = 4
"""The kernels of a limited pool are chosen among this many times as many."""

Method = Literal["sobol", "lhs"]
METHODS: tuple[Method, ...] = get_args(Method)
"""How points lie in the space of configs. sobol: Sobol's sequence, scrambled. lhs: a Latin
hypercube: along each axis, one point in each of equal stretches."""


@dataclass(frozen=True, slots=True)
class Design:
    """How many kernels are measured on each problem, and how they are chosen.

    count: at most this many.
    method: how the points lie that choose them.
    first: of these, so many are the estimate's first.
    slowest: no kernel is measured that the estimate has this many times slower than its first: such
        a kernel costs most and teaches least.
    pool: all problems choose the others from the same kernels, at most so many, so that building
        does not take longer than measuring; 0: any number.
    seed: another seed gives another choice.

    Raises `BadArgument`.
    """

    count: int
    method: Method = "sobol"
    first: int = 8
    slowest: float = 5.0
    pool: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise BadArgument(f"design '{self.method}' is not one of {', '.join(METHODS)}")
        if self.count < 1 or self.first < 0 or self.pool < 0 or self.slowest <= 1:
            raise BadArgument(
                f"{self}: count is at least 1, first and pool at least 0, slowest above 1"
            )


@dataclass(frozen=True, slots=True)
class Sample:
    """Problems, each with the configs to measure on it.

    made: how it was chosen, as plain data.
    """

    pairs: tuple[tuple[Any, tuple[Any, ...]], ...]
    made: Mapping[str, Any] = field(default_factory=dict)

    @property
    def configs(self) -> tuple[Any, ...]:
        """All configs, each once."""
        return tuple(dict.fromkeys(config for _, chosen in self.pairs for config in chosen))

    @property
    def count(self) -> int:
        """The number of pairs."""
        return sum(len(chosen) for _, chosen in self.pairs)

    def legal(self, arch_name: str) -> Sample:
        """Without the configs that are not legal on an architecture."""
        this = arch_called(arch_name)
        kept = {c for c in self.configs if ops.family(c.family).judge(c, this)}
        pairs = ((p, tuple(c for c in chosen if c in kept)) for p, chosen in self.pairs)
        return Sample(tuple((p, chosen) for p, chosen in pairs if chosen), self.made)

    def save(self, path: Path) -> None:
        """Write it. Raises `StoreError`."""
        numbers = {config.name: number for number, config in enumerate(self.configs)}
        pairs = [
            {"problem": said(problem), "kernels": [numbers[config.name] for config in chosen]}
            for problem, chosen in self.pairs
        ]
        document = {"made": dict(self.made), "kernels": [*numbers], "pairs": pairs}
        lines = ",\n".join(
            f'"{name}": [\n' + ",\n".join(map(json.dumps, value)) + "\n]"
            if isinstance(value, list)
            else f'"{name}": {json.dumps(value)}'
            for name, value in document.items()
        )
        write_whole(path, f'{{"sample": {SCHEMA},\n{lines}}}\n'.encode())


def is_sample(path: str) -> bool:
    """Whether a file is a sample's, by its beginning."""
    try:
        with Path(path).open("rb") as file:
            return file.read(10) == b'{"sample":'
    except (OSError, ValueError):
        return False


def load(path: str | Path) -> Sample:
    """The sample in the file at `path`. Raises `BadFile`."""
    where, document = str(path), load_json(path)
    if not isinstance(document, dict) or document.get("sample") != SCHEMA:
        raise BadFile(f"{where}: is no sample of version {SCHEMA}")
    names = convert(document.get("kernels"), list[str], f"{where}: kernels")
    made = convert(document.get("made"), dict[str, Any], f"{where}: made")
    try:
        configs = [ops.family_of(name).parse_name(name) for name in names]
    except UnknownName as error:
        raise BadFile(f"{where}: kernels: {error}") from None
    pairs = []
    for number, stated in enumerate(convert(document.get("pairs"), list[dict[str, Any]], where)):
        place = f"{where}: pairs[{number}]"
        chosen = convert(stated.get("kernels"), list[int], f"{place}: kernels")
        if not all(0 <= one < len(configs) for one in chosen):
            raise BadFile(f"{place}: a kernel's number is not below {len(configs)}")
        pairs.append((meant(stated.get("problem"), place), tuple(configs[one] for one in chosen)))
    return Sample(tuple(pairs), made)


def sample(
    problems: Sequence[Any],
    candidates: Callable[[Any], Sequence[Any]],
    device: Device,
    design: Design,
) -> Sample:
    """Choose kernels for each problem as `design` says.

    candidates: the configs to choose from for a problem; the same sequence where it is the same.

    Problems that no candidate serves are left out. Raises `TilewrightError` without scipy.
    """
    ranked = in_range(problems, candidates, device, design.slowest)
    shared = _shared(ranked, design)
    pairs = tuple((p, choose(order, shared, design)) for p, order in ranked.items())
    return Sample(pairs, made_by(design, device))


def in_range(
    problems: Sequence[Any],
    candidates: Callable[[Any], Sequence[Any]],
    device: Device,
    slowest: float,
) -> dict[Any, list[Any]]:
    """For each problem, the candidates that serve it and are estimated at less than `slowest` times
    the least, the estimate's first one first. Problems without any are left out."""
    this = arch_called(device.arch)
    pools: dict[tuple[Any, ...], Pool] = {}
    found: dict[Any, list[Any]] = {}
    for problem in problems:
        family = ops.family(problem.family)
        given = tuple(c for c in candidates(problem) if c.family == problem.family)
        pool = pools.setdefault(given, Pool.of(given))
        served = pool.part(family.serving(problem, pool, this)) if pool else pool
        order = [(c, e.total_us) for c, e in family.rank(problem, served, device)] if served else []
        if order:
            least = min(us for _, us in order)
            found[problem] = [c for c, us in order if us < least * slowest]
    return found


def made_by(design: Design, device: Device) -> dict[str, Any]:
    """How a sample is made, as plain data. Raises `PackageNotFoundError` without scipy."""
    return {
        **{f.name: getattr(design, f.name) for f in fields(design)},
        "device": device.name,
        "arch": device.arch,
        "versions": {name: importlib.metadata.version(name) for name in ("tilewright", "scipy")},
    }


def _shared(ranked: Mapping[Any, Sequence[Any]], design: Design) -> set[Any]:
    """The kernels that problems choose from behind the estimate's first: some that lie far apart,
    among those that serve the most problems."""
    served = Counter(c for order in ranked.values() for c in order[design.first :])
    if not design.pool or len(served) <= design.pool:
        return set(served)
    most = sorted(served, key=lambda c: (-served[c], c.name))[: _SERVING * design.pool]
    return {*spread(most, design.pool, design)}


def choose(order: Sequence[Any], shared: set[Any], design: Design) -> tuple[Any, ...]:
    """The first ones of a problem's kernels, and others that lie far apart among `shared`."""
    first = order[: min(design.first, design.count)]
    others = [config for config in order[len(first) :] if config in shared]
    return (*first, *spread(others, design.count - len(first), design))


def spread(configs: Sequence[Any], count: int, design: Design) -> list[Any]:
    """`count` of `configs` that lie far apart, as points of the unit cube choose them: along one
    axis after another, a point's coordinate chooses a value among those that the configs left
    have. So a legal config is chosen whatever rules forbid, and each only once."""
    if count >= len(configs):
        return [*configs]
    names = dict.fromkeys(
        f.name for kind in dict.fromkeys(map(type, configs)) for f in fields(kind)
    )
    axes = [values for name in names if len(set(values := _values(configs, name))) > 1]
    if count < 1 or not axes:
        return [*configs[: max(count, 0)]]
    left, found = [*range(len(configs))], []
    for point in _points(len(axes), count, design):
        few = left
        for values, at in zip(axes, point, strict=True):
            ordered = sorted({values[i] for i in few}, key=_in_order)
            value = ordered[min(int(at * len(ordered)), len(ordered) - 1)]
            few = [i for i in few if values[i] == value]
        found.append(few[0])
        left.remove(few[0])
    return [configs[i] for i in found]


def _values(configs: Iterable[Any], name: str) -> list[Hashable]:
    return [getattr(config, name, None) for config in configs]


def _in_order(value: Any) -> tuple[str, Any]:
    """A sort key: numbers by size, anything else by kind and text."""
    plain = isinstance(value, int | float)
    return ("", value) if plain else (type(value).__name__, str(value))


def _points(axes: int, count: int, design: Design) -> Any:
    try:
        import numpy as np
        from scipy.stats import qmc
    except ImportError:
        raise TilewrightError(
            "sampling needs scipy: pip install 'tilewright[learn]'; --max-kernels needs nothing"
        ) from None
    rng = np.random.default_rng(design.seed)
    if design.method == "lhs":
        return qmc.LatinHypercube(axes, rng=rng).random(count)
    return qmc.Sobol(axes, rng=rng).random_base2((count - 1).bit_length())[:count]
