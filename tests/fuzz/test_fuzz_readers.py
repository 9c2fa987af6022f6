"""Whatever a file, a message or a word contains: a typed error or none, at once, in little memory.

20,000 mutated inputs, others for each commit: they begin with a seed that is the commit's. The
short suite tries a quarter of them, ``TILEWRIGHT_FUZZ=10`` ten times as many. A failure names the
reader and the seed:
``READERS[name][0](Random(seed), folder)`` reads the same input again.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import fuzz_seeds
import mutations
import pytest
from fuzz_readers import READERS, Reader

import selection
from tilewright import ops, space
from tilewright.errors import TilewrightError

TIMES = max(1, int(os.environ.get("TILEWRIGHT_FUZZ", "1")))
MOST_SECONDS = 3.0
"""Processor time of one input. The longest takes 0.7 s, and half as long again where other programs
share the processor's caches."""
MOST_BYTES = 200 << 20
TOO_MANY = (MOST_BYTES + (32 << 20)) >> 16
"""Pieces of 64 KiB."""


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    fuzz_seeds.rows()  # of whole spaces
    monkeypatch.setattr(space, "MAX_COMBINATIONS", 300)  # of thousands, each takes its time
    logging.getLogger("tilewright").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.getLogger("tilewright").setLevel(logging.NOTSET)


def attempt(reader: Reader, seed: int, folder: Path, said: str) -> None:
    """Read an input, which may raise typed errors. Fails for any other error, and for too much
    processor time or memory; `said` names the reader."""
    for again in (False, True):
        before, begun = fresh_peak(), time.process_time()
        try:
            reader(Random(seed), folder)
        except TilewrightError:
            pass
        except Exception as error:
            raise AssertionError(f"{said}, seed {seed}: {type(error).__name__}: {error}") from error
        seconds, taken = time.process_time() - begun, peak() - before
        if seconds < MOST_SECONDS and taken < MOST_BYTES:
            return
        # The first time may have been an import, or others' garbage.
        assert not again, f"{said}, seed {seed}: {seconds:.2f} s, {taken >> 20} MiB"


def fresh_peak() -> int:
    """Forget the most bytes that this process has had; returns how many it has now, without those
    that the C library keeps for later: small pieces would be cut from them unseen."""
    with suppress(AttributeError):  # not in every C library
        ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> int:
    """The most bytes that this process has had since `fresh_peak`."""
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


@pytest.mark.turns(8)
def test_twenty_thousand_inputs_are_tried() -> None:
    assert sum(count for _, count in READERS.values()) == 20_000


@pytest.mark.grid(2)
@pytest.mark.parametrize("name", READERS)
def test_mutated_inputs_give_typed_errors_at_once_and_in_little_memory(
    name: str, tmp_path: Path
) -> None:
    reader, count = READERS[name]
    first = selection.chance("reader", name)
    print(f"{name}: seeds from {first}")
    with suppress(TilewrightError):
        reader(Random(0), tmp_path)  # imports, and what is made once
    for seed in range(first, first + selection.share(count, 4) * TIMES):
        attempt(reader, seed, tmp_path, name)


@pytest.mark.grid(6)
@pytest.mark.parametrize("name", READERS)
def test_a_reader_reads_what_is_not_mutated(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So mutations of the seeds go further than the first check."""
    for change in ("raw", "words", "lines", "tree", "cell"):
        monkeypatch.setattr(mutations, change, lambda given, random: given)
    monkeypatch.setattr(mutations, "csv_text", lambda text, random: text.encode())
    monkeypatch.setattr(space, "MAX_COMBINATIONS", 3000)
    for seed in range(20):
        READERS[name][0](Random(seed), tmp_path)


@pytest.mark.grid(1)
@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (lambda random, folder: [][0], "IndexError"),
        (lambda random, folder: _spin(), r"\d s, "),
        (lambda random, folder: bytearray(MOST_BYTES + (32 << 20)), r"2\d\d MiB"),
        (lambda random, folder: [b"x" * (1 << 16) for _ in range(TOO_MANY)], r"2\d\d MiB"),
    ],
)
def test_what_is_too_much_is_noticed(bad: Reader, said: str, tmp_path: Path) -> None:
    """Whatever this process took before."""
    bytearray(MOST_BYTES * 2)
    with pytest.raises(AssertionError, match=f"bad, seed 7: .*{said}"):
        attempt(bad, 7, tmp_path, "bad")


def _spin() -> None:
    end = time.process_time() + MOST_SECONDS
    while time.process_time() < end:
        pass


def test_every_problem_in_words_is_one() -> None:
    """The readers above draw from these, and may not come upon each."""
    for family, pairs in fuzz_seeds.words():
        for on in (fuzz_seeds.SM90, fuzz_seeds.GFX942):
            ops.family(family).parse_problem(dict(pairs), on)
