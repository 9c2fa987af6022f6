"""A pytest plugin: which of the tests a run has.

    python -m pytest                    # the short suite, as `make test`
    python -m pytest --selection all    # every test, as `make test-all`
    python -m pytest --turn 4f1c        # the short suite of another commit
    python -m pytest FILE::TEST         # what the command names, whatever the suite selects

The short suite is a selection of each commit's own. A test without a mark is always in it.

- ``@pytest.mark.grid(most)``: of a function's cases, a covering selection of at most `most`. Three
  quarters of them are the same for every commit: they have every value of every axis and, as far as
  they go, every pair of values of two axes. The rest changes from commit to commit.
- ``@pytest.mark.edge``: a case that every run has, whatever a grid selects. Edges that have failed
  once, and those that a covering selection does not know to be edges, are named like this.
- ``@pytest.mark.turns(n)``: a test that every n-th commit has. Tests that share a costly fixture
  have turns together: ``turns(n, of=word)``.
- `some`: a covering selection of a list, as of a grid, where a fixture needs the list as well.
- `share`: of many alike trials of a test, a part.
- `architectures`: of the architectures that a test compiles for, sm_90, and by turns one of
  NVIDIA's others, one of AMD's with waves of 64 lanes and one with waves of 32.

The turn is the hash of the commit. All chance in the tests is the turn's, Hypothesis's too, so two
runs of a commit are the same, and a run can be repeated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import hashlib
import os
import subprocess
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

SHORT, ALL = "short", "all"
CORE = 0.75
"""The share of a grid's selection that is every commit's."""
MOST_VALUES = 16
"""An axis with more values than these (a size, a seed) is not covered."""
Case = TypeVar("Case")
_CHOSEN, _TURN = "TILEWRIGHT_TEST_SELECTION", "TILEWRIGHT_TEST_TURN"
"""How the processes of a run agree."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("selection")
    group.addoption("--selection", choices=(SHORT, ALL), help="default: short, or what is named")
    group.addoption("--turn", help="the commit whose short suite to run; default: the present one")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "grid(most): cases that the short suite selects from")
    config.addinivalue_line("markers", "edge: a case that every run has")
    config.addinivalue_line("markers", "turns(n): a test that the short suite has every n-th time")
    if not hasattr(config, "workerinput"):
        named = any("::" in word for word in config.args)
        os.environ[_CHOSEN] = config.getoption("--selection") or (ALL if named else SHORT)
        os.environ[_TURN] = config.getoption("--turn") or _commit()
    with contextlib.suppress(ImportError):  # the GPU tests do without it
        _prepare_hypothesis()


def pytest_report_header() -> str:
    return "selection: all" if everything() else f"selection: short, --turn {turn()}"


@pytest.hookimpl(trylast=True)  # after -m and -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if everything():
        return
    grids: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("grid") and hasattr(item, "callspec"):
            grids[item.nodeid.partition("[")[0]].append(item)
    out = {item.nodeid for cases in grids.values() for item in _left_out(cases)}
    out |= {item.nodeid for item in items if not _is_turn_of(item)}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in out])
    items[:] = [item for item in items if item.nodeid not in out]


def everything() -> bool:
    return os.environ.get(_CHOSEN, SHORT) == ALL


def turn() -> str:
    return os.environ.get(_TURN, "")


def chance(*words: object) -> int:
    """A number that is the turn's: the same in all processes."""
    return _number(turn(), *words)


def share(count: int, part: int) -> int:
    """How many of `count` alike trials a test makes: the short suite one of `part`."""
    return count if everything() else max(1, count // part)


def architectures(names: Iterable[str]) -> tuple[str, ...]:
    """Those of `names` that this run compiles for."""
    from tilewright.arch import arch

    listed = tuple(names)
    if everything():
        return listed
    kinds: dict[str, list[str]] = defaultdict(list)
    for name in listed:
        kind = f"{arch(name).vendor} {arch(name).warp_size}"
        kinds[name if name == "sm_90" else kind].append(name)
    chosen = {some[chance(kind) % len(some)] for kind, some in kinds.items()}
    return tuple(name for name in listed if name in chosen)


def covering(cases: Sequence[tuple[str, Any]], most: int) -> list[int]:
    """Places of at most `most` of the cases, each a name and a value with axes (`axes`).

    First comes the core: greedily, the case that adds the most values and pairs of values. The
    other cases are in an order that the turn decides; those that still add a pair go first.
    """
    if len(cases) <= most:
        return [*range(len(cases))]
    masks = _masks([value for _, value in cases])
    order = [_number(name) for name, _ in cases]  # among cases that add as much
    had, chosen = 0, dict[int, None]()
    for _ in range(int(most * CORE)):
        gain, _, place = max(
            ((mask & ~had).bit_count(), order[i], i) for i, mask in enumerate(masks)
        )
        if not gain:
            break
        chosen[place] = None
        had |= masks[place]
    rest = sorted(
        (i for i in range(len(cases)) if i not in chosen), key=lambda i: chance(cases[i][0])
    )
    new: list[int] = []
    for i in rest:
        if masks[i] & ~had:
            had |= masks[i]
            new.append(i)
    for i in (*new, *rest):
        if len(chosen) < most:
            chosen[i] = None
    return sorted(chosen)


def some(cases: Sequence[Case], most: int) -> list[Case]:
    """At most `most` of a list of cases, as of a grid."""
    if everything():
        return [*cases]
    places = covering([(f"{place} {case}", case) for place, case in enumerate(cases)], most)
    return [cases[place] for place in places]


def axes(value: object, name: str = "") -> Iterator[tuple[str, Hashable]]:
    """The axes of a case and its values of them: the fields of a config or a problem, the items
    of a tuple or a mapping, or the value itself."""
    if isinstance(value, (str, int, float, bool, enum.Enum, type(None))):
        yield name, value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from axes(getattr(value, field.name), f"{name}.{field.name}")
    elif isinstance(value, dict):
        for key, below in value.items():
            yield from axes(below, f"{name}.{key}")
    elif isinstance(value, (tuple, list)):
        for place, below in enumerate(value):
            yield from axes(below, f"{name}.{place}")
    else:
        yield name, getattr(value, "name", None) or getattr(value, "__name__", type(value).__name__)


def _masks(values: Sequence[object]) -> list[int]:
    """Of each case the values and the pairs of values that it has, a bit each."""
    found = [dict(axes(value)) for value in values]
    kinds: dict[str, set[Hashable]] = defaultdict(set)
    for case in found:
        for axis, value in case.items():
            kinds[axis].add(value)
    covered = {axis for axis, seen in kinds.items() if 1 < len(seen) <= MOST_VALUES}
    numbers: dict[Hashable, int] = {}
    owns = [
        [
            numbers.setdefault((axis, value), len(numbers))
            for axis, value in case.items()
            if axis in covered
        ]
        for case in found
    ]
    # The pair of the numbers i <= j is bit i x count + j - i; a value is a pair with itself.
    masks = []
    for own in owns:
        values_of = sum(1 << number for number in own)
        mask = 0
        for number in own:
            mask |= (values_of >> number) << (number * len(numbers))
        masks.append(mask)
    return masks


def _left_out(items: list[pytest.Item]) -> list[pytest.Item]:
    most = min(item.get_closest_marker("grid").args[0] for item in items)
    others = [item for item in items if not item.get_closest_marker("edge")]
    chosen = {*covering([(item.nodeid, _parameters(item)) for item in others], most)}
    return [item for place, item in enumerate(others) if place not in chosen]


def _parameters(item: Any) -> dict[str, object]:
    """A test of CASES[number] has that case's axes."""
    found = dict(item.callspec.params)
    known = getattr(item.module, "CASES", None)
    if isinstance(number := found.get("number"), int) and isinstance(known, list):
        found["number"] = known[number]
    return found


def _is_turn_of(item: pytest.Item) -> bool:
    mark = item.get_closest_marker("turns")
    return mark is None or chance(mark.kwargs.get("of", item.nodeid)) % mark.args[0] == 0


def _prepare_hypothesis() -> None:
    import hypothesis.core
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "patient",
        deadline=None,
        max_examples=share(60, 3),
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("patient")
    hypothesis.core.global_force_seed = chance("hypothesis")


def _number(*words: object) -> int:
    text = "\n".join(map(str, words))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _commit() -> str:
    """The commit, or nothing where there is no git."""
    asked = ("git", "-C", os.fspath(Path(__file__).parent), "rev-parse", "--short=12", "HEAD")
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
