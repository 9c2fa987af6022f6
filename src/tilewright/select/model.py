"""`Model`: what learned selection knows of one class of problems, and the files of models.

A model gives each kernel a number that, added to the logarithm of its estimate, orders the kernels
of a problem. It has the estimate's residual, so what the estimate knows need not be learned
(docs/learning.md).

A file is JSON. It has each model as a text, which is JSON too, with its SHA-256: a process reads
the models of the classes that it meets and no others. It holds numbers and names only, so reading a
stranger's file executes nothing, and every fault in it is a `BadFile`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from tilewright import variables
from tilewright.canonical import canonical, sha256
from tilewright.errors import BadArgument, BadFile, shown
from tilewright.files import write_whole
from tilewright.jsonfile import convert, parse_json
from tilewright.ops.pool import Columns
from tilewright.reading import text as read_text
from tilewright.select.features import CONFIG, SHARED, Described, field_of
from tilewright.select.probes import Probe, moved
from tilewright.select.trees import Trees

SCHEMA = 3
ENVIRONMENT = variables.MODELS
"""The variable that names files of models, separated as in PATH."""
SHIPPED = "shipped"
"""In place of a path: the models that come with the package."""
FOLDER = Path(__file__).with_name("models")
"""A file of models for each architecture that they were measured on."""
MOST_FEATURES, MOST_GAIN = 1000, 10.0

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Feature:
    """A feature (`features.Described.column`), and the values that a model may be asked about.

    words: of a word, the values seen, in the order of their numbers; () of a number.
    low, high: of a number, the least and the largest.
    """

    name: str
    words: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True)
class Model:
    """What was learned of one class of problems.

    lesson: the class (`Family.lesson`), of the operation `family`.
    archs: architectures that it was measured on. devices: the GPUs.
    versions: of packages that the kernels were built and measured with.
    features: what a row of the trees has, in order.
    trees: the logarithm of a kernel's time over its estimate, but for what all kernels of the
        problem have in common.
    probes: kernels with their estimates, which tell whether the estimate has changed since.
    least_gain: the logarithm of the ratio by which a kernel must be expected to be faster than the
        estimate's first to be chosen before it; set on problems that training did not see.
    silent_kinds: kinds of problems (`Family.kind`) of which the model was behind the estimate, on
        problems that training did not see.
    wide: whether it learned from kernels of tuning's spaces too, so that it is asked about them.
    made: how it was made and how good it was then, as plain data.
    """

    lesson: str
    family: str
    archs: tuple[str, ...]
    devices: tuple[str, ...]
    versions: dict[str, str]
    features: tuple[Feature, ...]
    trees: Trees
    probes: tuple[Probe, ...]
    least_gain: float
    silent_kinds: tuple[str, ...] = ()
    wide: bool = False
    made: dict[str, Any] = field(default_factory=dict)

    def check(self, where: str) -> None:
        """Raise `BadFile`, which begins with `where`, for what makes no sense."""
        names = [one.name for one in self.features]
        if not names or len(names) > MOST_FEATURES or len(set(names)) < len(names):
            raise BadFile(
                f"{where}: features are 1 to {MOST_FEATURES}, each with a name of its own"
            )
        for one in self.features:
            if len(set(one.words)) < len(one.words):
                raise BadFile(f"{where}: feature {shown(one.name)} has a word twice")
            if not (math.isfinite(one.low) and math.isfinite(one.high) and one.low <= one.high):
                raise BadFile(f"{where}: feature {shown(one.name)} is from {one.low} to {one.high}")
        if not 0 <= self.least_gain <= MOST_GAIN:
            raise BadFile(f"{where}: least_gain is {self.least_gain}, not from 0 to {MOST_GAIN}")
        if not self.archs:
            raise BadFile(f"{where}: it names no architecture")
        self.trees.check(len(names), where)
        if not self.probes:
            raise BadFile(f"{where}: it has no probes, by which it is known whether it is stale")
        for probe in self.probes:
            if not 0 < len(probe.kernels) == len(probe.estimated) == len(probe.answers):
                raise BadFile(
                    f"{where}: a probe has {len(probe.kernels)} kernels, {len(probe.estimated)} "
                    f"estimates and {len(probe.answers)} answers"
                )

    @cached_property
    def asked(self) -> Asked:
        """The features, sorted for asking."""
        return Asked(self.features)

    def answers(self, described: Described) -> Any:
        """What it adds to the logarithm of each kernel's estimate, in the order of the pool."""
        return self.trees.values(self.asked.rows(described)[0])

    @cached_property
    def stale(self) -> str:
        """Why it is not to be asked any more: the estimate that it corrects has changed since it
        was made; ``""`` if it has not."""
        found = moved(self.probes, self.answers)
        return found and f"the model of {self.lesson} is stale, train it again: {found}"

    def unseen(self, described: Described) -> str:
        """Why nothing can be said of the problem: a feature that all kernels share is not as
        training saw it; ``""`` if all are."""
        if described.device.arch not in self.archs:
            return f"it was measured on {', '.join(self.archs)}, not on {described.device.arch}"
        for at in self.asked.shared:
            one, value = self.features[at], described.column(self.features[at].name)
            if one.words and value not in one.words:
                return f"{_word(one)} {shown(value)} was not among the problems it learned from"
            if not one.words and not (_number(value) and one.low <= value <= one.high):
                return (
                    f"{_word(one)} {shown(value)} is outside the problems it learned from, "
                    f"{one.low:g} to {one.high:g}"
                )
        return ""


def _word(feature: Feature) -> str:
    return feature.name.partition(".")[2]


class Asked:
    """Features by where they come from. shared: places of those that a problem's kernels share."""

    def __init__(self, features: Sequence[Feature]) -> None:
        import numpy as np

        kinds = [one.name.partition(".")[0] for one in features]
        self.shared = [at for at, kind in enumerate(kinds) if kind in SHARED]
        self._own = [at for at, kind in enumerate(kinds) if kind == CONFIG]
        known = {*self.shared, *self._own}
        self._other = [at for at in range(len(features)) if at not in known]
        self._features = features
        ends = np.array([_ends(one) for one in features]).reshape(-1, 2, 1)
        self._low, self._high = ends[:, 0], ends[:, 1]

    def rows(self, described: Described, places: Any = None) -> tuple[Any, Any]:
        """The features of the kernels at `places` in the pool, by default of all of them, an array
        [kernels, features] with its columns one behind the other; and whether all of a kernel's are
        as training saw them, an array of flags."""
        import numpy as np

        x: Any = np.empty((len(self._features), len(described.pool)))
        for at in self._other:
            x[at] = self._numbers(at, described)
        x[self.shared] = np.array([self._numbers(at, described) for at in self.shared])[:, None]
        x[self._own] = described.pool.columns.table(_of_configs, self)
        if places is not None:
            x = x[:, places]
        return x.T, ((x >= self._low) & (x <= self._high)).all(axis=0)

    def _numbers(self, at: int, described: Described) -> Any:
        return _numbers(described.column(self._features[at].name), self._features[at])

    def of_configs(self, columns: Columns) -> Any:
        """Those features that are fields of configs, which are the same for every problem: an array
        [such features, configs]."""
        import numpy as np

        found = np.zeros((len(self._own), len(columns)))
        for at, place in enumerate(self._own):
            one = self._features[place]
            found[at] = _numbers(field_of(columns, _word(one)), one)
        return found


def _of_configs(columns: Columns, asked: Asked) -> Any:
    return asked.of_configs(columns)


def _numbers(column: Any, feature: Feature) -> Any:
    """A column as trees take it: a word by its number. NaN, which is in no range, for what is
    neither as training saw it nor a number."""
    if isinstance(column, bool | int | float) and not feature.words:
        return column
    if isinstance(column, str):
        return feature.words.index(column) if column in feature.words else math.nan
    if getattr(column, "dtype", None) is None or column.dtype.kind not in "biufU":
        return math.nan
    if feature.words:
        return coded(column, feature.words)
    return column if column.dtype.kind != "U" else math.nan


def _ends(feature: Feature) -> tuple[float, float]:
    """The least and the largest number that training saw."""
    return (0.0, len(feature.words) - 1.0) if feature.words else (feature.low, feature.high)


def coded(column: Any, words: Sequence[str]) -> Any:
    """The numbers of words; -1 of a word that is not among them."""
    import numpy as np

    known = np.array(words)
    given = np.asarray(column)
    if given.dtype.kind != "U":
        return np.full(given.shape, -1)
    order = np.argsort(known, kind="stable")
    places = np.clip(np.searchsorted(known[order], given), 0, len(known) - 1)
    found = order[places]
    return np.where(known[found] == given, found, -1)


def _number(value: Any) -> bool:
    return isinstance(value, bool | int | float) and math.isfinite(value)


@dataclass(frozen=True, slots=True)
class Text:
    """A model as a file has it.

    family: as the model's. digest: the SHA-256 of its text. model: its JSON.
    """

    family: str
    digest: str
    model: str


@dataclass(frozen=True, slots=True)
class Unread:
    """The model of the class `lesson`, in a file that was not read further. where: begins
    errors."""

    lesson: str
    text: Text
    where: str

    @property
    def family(self) -> str:
        """The operation."""
        return self.text.family

    def read(self) -> Model:
        """The model. Raises `BadFile`, which says what is wrong with it."""
        if self.text.digest != sha256(self.text.model.encode()):
            raise BadFile(f"{self.where}: was changed or damaged: its digest is of other content")
        model = convert(parse_json(self.text.model, self.where), Model, self.where)
        model.check(self.where)
        if (model.lesson, model.family) != (self.lesson, self.family):
            raise BadFile(
                f"{self.where}: it is of {shown(model.lesson)}, of operation {shown(model.family)}"
            )
        return model


class Models:
    """Models by class of problems. Those in a file are read when they are asked for, and raise
    `BadFile` then. where: the files, for errors and explanations."""

    def __init__(self, models: Iterable[Model | Unread], where: str = "") -> None:
        self.where = where
        self._models: dict[str, Model | Unread] = {}
        for model in models:
            if model.lesson in self._models:
                raise BadArgument(f"{where}: there are two models of {model.lesson}: give one")
            self._models[model.lesson] = model

    def __iter__(self) -> Iterator[Model]:
        return filter(None, map(self.get, [*self._models]))

    def __len__(self) -> int:
        return len(self._models)

    def get(self, lesson: str) -> Model | None:
        """The model of a class of problems."""
        found = self._models.get(lesson)
        if isinstance(found, Unread):
            found = self._models[lesson] = found.read()
        return found

    def listed(self) -> Iterable[Model | Unread]:
        """All of them, as far as they were read."""
        return self._models.values()

    @property
    def digest(self) -> str:
        """Equal for equal models."""
        return sha256(canonical([asdict(model) for model in self]))


def save(models: Models, path: PathLike) -> None:
    """Write the models to `path`, whole or not at all. The same models give the same bytes. Raises
    `StoreError`."""
    texts = {}
    for model in models:
        text = canonical(asdict(model))
        texts[model.lesson] = asdict(Text(model.family, sha256(text), text.decode()))
    write_whole(Path(path), canonical({"tilewright_models": SCHEMA, "models": texts}))


def load(path: PathLike) -> Models:
    """The models in the file at `path`. Raises `BadFile`, which names the file and what is wrong
    with it; what is wrong with one of the models, that raises when it is asked for."""
    where = os.fspath(path)
    document = parse_json(read_text(path), where)
    if not isinstance(document, Mapping) or "tilewright_models" not in document:
        raise BadFile(f"{where}: is no file of models: it does not begin as one")
    schema = document["tilewright_models"]
    if schema != SCHEMA:
        raise BadFile(
            f"{where}: its schema is {shown(schema)}; this Tilewright reads {SCHEMA}: train the "
            "models again"
        )
    if unknown := document.keys() - {"tilewright_models", "models"}:
        raise BadFile(f"{where}: unknown field {shown(min(unknown))}")
    texts = convert(document.get("models"), dict[str, Text], f"{where}: models")
    unread = (
        Unread(lesson, text, f"{where}: the model of {shown(lesson)}")
        for lesson, text in texts.items()
    )
    return Models(unread, where)


GivenModels = Models | PathLike | Sequence[PathLike]


def gather(given: GivenModels | None) -> Models | None:
    """The models to choose by: `given`, loaded where they are files, or those of the package for
    `SHIPPED`; for None, those that ``TILEWRIGHT_MODELS`` names so, or None if it names none. Raises
    `BadFile`, and `BadArgument` for two models of one class."""
    if isinstance(given, Models):
        return given
    if given is None:
        paths: list[PathLike] = [
            path for path in os.environ.get(ENVIRONMENT, "").split(os.pathsep) if path
        ]
    elif isinstance(given, str | os.PathLike):
        paths = [given]
    elif isinstance(given, Sequence):
        paths = [*given]
    else:
        raise BadArgument(f"{shown(given)} is neither models nor the path of some")
    if not paths:
        return None
    files = [
        file for path in paths for file in (shipped() if os.fspath(path) == SHIPPED else [path])
    ]
    loaded = [load(file) for file in files]
    where = ", ".join(models.where for models in loaded)
    return Models((model for models in loaded for model in models.listed()), where)


def shipped() -> Sequence[PathLike]:
    """The files of the models that come with the package."""
    return sorted(FOLDER.glob("*.json"))
