"""Whatever a caller passes to a public function: a typed error or an answer.

Others for each commit: the test prints its first seed. A failure names the seed:
``ARGUMENTS[name][0](Random(seed))`` makes the same call again.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from fuzz_arguments import ARGUMENTS, right_calls

import selection
from tilewright import without_gpu
from tilewright.errors import TilewrightError

TIMES = max(1, int(os.environ.get("TILEWRIGHT_FUZZ", "1")))


@pytest.fixture(autouse=True)
def _nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A call ends where its kernel would be interpreted."""
    monkeypatch.setattr(without_gpu, "interpret", lambda *given: None)
    monkeypatch.chdir(tmp_path)  # some arguments are names of files
    logging.getLogger("tilewright").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.getLogger("tilewright").setLevel(logging.NOTSET)


def test_right_calls_are_right() -> None:
    for call, given, named in right_calls():
        call(*given, **named)


@pytest.mark.turns(16)
@pytest.mark.grid(1)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_wrong_arguments_give_typed_errors(name: str) -> None:
    call, count = ARGUMENTS[name]
    first = selection.chance("arguments", name)
    print(f"{name}: seeds from {first}")
    for seed in range(first, first + selection.share(count, 4) * TIMES):
        _attempt(name, call, seed)


def _attempt(name: str, call: object, seed: int) -> None:
    assert callable(call)
    try:
        call(Random(seed))
    except TilewrightError:
        pass
    except Exception as error:
        raise AssertionError(f"{name}, seed {seed}: {type(error).__name__}: {error}") from error
