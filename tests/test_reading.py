"""The one reader of files: what is no regular file of a size is refused at once, by every user."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tilewright import capturing, reading
from tilewright.arch import arch, device
from tilewright.errors import BadArgument, BadFile, TilewrightError
from tilewright.jsonfile import load_json, parse_json
from tilewright.measure.problems import _json_rows, load_problems
from tilewright.registry import Registry
from tilewright.space_file import load_space
from tilewright.tables import aiter, file

SM90 = arch("sm_90")
READERS = {
    "json": load_json,
    "device.json": device,
    "r.json": Registry.load,
    "s.json": lambda path: load_space(path, SM90),
    "t.json": file.load,
    "t.twt": file.load,
    "c.jsonl": capturing.load,
    "p.json": lambda path: load_problems([path], SM90),
    "p.csv": lambda path: load_problems([path], SM90),
    "bf16_tuned_gemm.csv": aiter.read_aiter,
}


@pytest.fixture(params=READERS)
def reader(request, tmp_path):
    return READERS[request.param], tmp_path / request.param


def test_a_pipe_an_endless_device_and_a_folder_are_refused_at_once(reader):
    read, path = reader
    os.mkfifo(path)
    with pytest.raises(BadFile, match="not a regular file"):
        read(str(path))
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(BadFile, match="not a regular file"):
        read(str(path))
    path.unlink()
    path.mkdir()
    with pytest.raises(BadFile, match="not a regular file"):
        read(str(path))


def test_a_huge_file_is_refused_before_it_is_read(reader):
    read, path = reader
    with path.open("wb") as sparse:
        sparse.truncate(reading.MOST_BYTES + 1)
    with pytest.raises(BadFile, match=f"has {reading.MOST_BYTES + 1} bytes where at most"):
        read(str(path))


@pytest.mark.parametrize("odd", ["\0", "\ud800"])
def test_a_path_that_cannot_be_is_a_typed_error(reader, odd):
    read, path = reader
    with pytest.raises(TilewrightError):
        read(f"{path.parent}/a{odd}{path.name}")


def test_nothing_is_captured_into_a_pipe_or_an_impossible_path(tmp_path: Path):
    os.mkfifo(tmp_path / "c.jsonl")
    for path in (tmp_path / "c.jsonl", "a\0b.jsonl"):
        with pytest.raises(BadArgument, match="cannot capture into"):
            capturing.Capture(path)


def test_a_cell_longer_than_csv_reads_is_an_error_with_its_line(tmp_path: Path):
    path = tmp_path / "p.csv"
    path.write_text("m,n,k\n8,8,8\n" + "8" * 140_000 + ",8,8\n")
    with pytest.raises(BadFile, match=r"p\.csv: line 3: field larger than"):
        load_problems([path], SM90)


def test_a_registry_from_text_is_as_strict_as_one_from_a_file():
    for text in ("[" * 100_000, "9" * 5000, '{"schema": 1, "schema": 1}', r'"\ud800"'):
        with pytest.raises(BadFile, match=r"^there: "):
            Registry.from_json(text, "there")


@pytest.mark.grid(1)
@pytest.mark.parametrize(
    "work",
    [
        lambda: parse_json("{" + '"a": 1, ' * 100_000 + '"b": 2, "b": 3}', "here"),
        lambda: parse_json(
            "{" + ", ".join(f'"{n}": 1' for n in range(60_000)) + ', "0": 1}', "here"
        ),
        lambda: [
            *_json_rows("[" + (",\n" * 1 + "\n" * 9).join(["{}"] * 100_000) + ",\n7]", "here")
        ],
    ],
    ids=["one key often", "many keys", "many lines"],
)
def test_work_does_not_grow_with_the_square_of_a_file(work):
    begun = time.process_time()
    with pytest.raises(BadFile, match=r"appears twice|line 999992: a problem is an object, not 7"):
        work()
    assert time.process_time() - begun < 10  # of CPU time; with the square, more
