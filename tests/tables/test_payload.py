"""A compact table whose digest is right and whose parts do not fit together is refused at once."""

from __future__ import annotations

import os
import struct
from array import array

import msgspec
import pytest
from table_cases import H20, PLAIN, WIDE, gemm, row

from tilewright.arch.model import Device
from tilewright.errors import BadArgument, BadFile
from tilewright.tables import file, packed
from tilewright.tables.table import Table

DEVICES, FAMILIES, ORIGINS, BLOCKS, TEXTS, TEXT_ENDS, TIES, TIMES, REFERENCES = range(9)


def parts():
    """What a table of three rows on two devices is made of."""
    rows = [row(gemm(64), ties=(WIDE,)), row(gemm(128), WIDE), row(gemm(128), PLAIN, on=H20)]
    return msgspec.msgpack.decode(packed.pack(rows))


def doubles(said: bytes, at: int, value: float) -> bytes:
    numbers = array("d", said)
    numbers[at] = value
    return numbers.tobytes()


def words(said: bytes, at: int, value: int) -> bytes:
    numbers = array("I", said)
    numbers[at] = value
    return numbers.tobytes()


def altered(part: int, change) -> bytes:
    said = parts()
    said[part] = change(said[part])
    return msgspec.msgpack.encode(said)


def device_of(**fields):
    return lambda devices: [{**devices[0], **fields}, *devices[1:]]


def block_of(place: int, value):
    return lambda blocks: [[*blocks[0][:place], value, *blocks[0][place + 1 :]], *blocks[1:]]


def column_of(name: str, values):
    return lambda families: [
        [n, [[f, values if f == name else v] for f, v in columns]] for n, columns in families
    ]


@pytest.mark.parametrize(
    ("part", "change", "says"),
    [
        (DEVICES, device_of(compute_units=-5), "device: compute_units must be positive, not -5"),
        (DEVICES, device_of(bandwidth_gbs=0.0), "bandwidth_gbs must be positive"),
        (DEVICES, lambda devices: [devices[0]] * 2, "a device stands there twice"),
        (FAMILIES, lambda families: families * 2, "a family stands there twice"),
        (FAMILIES, column_of("m", [128, 64]), "values of m are not sorted"),
        (FAMILIES, column_of("m", [64]), "its columns are of different lengths"),
        (FAMILIES, column_of("m", ["64", "128"]), "values of m: .* Expected `int`"),
        (FAMILIES, column_of("dtype_b", [[]]), "values of dtype_b: .* Expected `str`"),
        (BLOCKS, block_of(0, 9), "a device or a family that is not there"),
        (BLOCKS, block_of(0, -1), "is no table: Expected `int` >= 0"),
        (BLOCKS, block_of(1, 1), "a device or a family that is not there"),
        (BLOCKS, block_of(2, 2**40), "of different lengths, or point outside"),
        (BLOCKS, block_of(3, b""), "of different lengths"),
        (BLOCKS, lambda blocks: [[*b[:3], b[3][:-1] + b"\x09"] for b in blocks], "a value that is"),
        (BLOCKS, lambda blocks: [blocks[0], blocks[0]], "two blocks are of the same"),
        (BLOCKS, lambda blocks: [[d, f, n, k[::-1]] for d, f, n, k in blocks], "out of order"),
        (TEXTS, lambda texts: texts[1:], "texts do not end where it says"),
        (TEXTS, lambda texts: b"\xff" + texts[1:], "texts do not end where it says"),
        (TEXT_ENDS, lambda ends: ends[:-1], "texts do not end where it says"),
        (TEXT_ENDS, lambda ends: words(ends, 0, 2**31), "texts do not end where it says"),
        (TIES, lambda ties: struct.pack("<I", 999), "point outside"),
        (TIES, lambda ties: ties * 2, "point outside"),
        (TIMES, lambda times: times[:-3], "of different lengths, or point outside"),
        (REFERENCES, lambda said: said[:-3], "of different lengths, or point outside"),
        (TIMES, lambda times: doubles(times, 0, 0.0), "times or error are none"),
        (TIMES, lambda times: doubles(times, 1, 5e-324), "times or error are none"),
        (TIMES, lambda times: doubles(times, 2, float("inf")), "times or error are none"),
        (TIMES, lambda times: doubles(times, 2, float("nan")), "times or error are none"),
        (TIMES, lambda times: doubles(times, 3, -0.5), "times or error are none"),
        (REFERENCES, lambda said: words(said, 0, 999), "point outside"),
        (REFERENCES, lambda said: words(said, 2, 999), "point outside"),
        (REFERENCES, lambda said: words(said, 3, 2**32 - 1), "point outside"),
    ],
)
def test_parts_that_do_not_fit_are_refused_when_the_table_is_read(part, change, says):
    with pytest.raises(BadFile, match=f"^here: .*{says}"):
        Table(altered(part, change), "here")


@pytest.mark.parametrize("said", [[0, 999, 0], [0, 1], [0, 0, 0, 1]], ids=str)
def test_the_best_built_here_is_a_text_that_is_there_for_each_row(said):
    found = [*parts(), array("I", said).tobytes()]
    with pytest.raises(BadFile, match="of different lengths, or point outside"):
        Table(msgspec.msgpack.encode(found), "here")


@pytest.mark.parametrize(
    ("part", "change", "says"),
    [
        (FAMILIES, column_of("m", [-64, 128]), "here: row 2: m = -64 is outside"),
        (ORIGINS, lambda origins: [[[["b", "1"], ["a", "1"]], "", ""]], "versions are in the ord"),
    ],
)
def test_a_row_that_cannot_be_is_a_bad_file_when_it_is_made(part, change, says):
    table = Table(altered(part, change), "here")
    with pytest.raises(BadFile, match=says):
        list(table)


def test_a_row_that_cannot_be_is_a_bad_file_when_it_is_looked_up():
    table = Table(altered(ORIGINS, lambda origins: [[[["b", "1"], ["a", "1"]], "", ""]]), "here")
    with pytest.raises(BadFile, match="here: row "):
        table.get(gemm(128), H20)


def test_a_device_checks_itself_wherever_it_is_made():
    with pytest.raises(BadArgument, match="compute_units must be positive, not 0"):
        Device("X", "sm_90", 0, 1, 1, 1.0, 1)
    with pytest.raises(BadArgument, match="matrix_tflops: bf16 = nan is not a number"):
        Device("X", "sm_90", 1, 1, 1, 1.0, 1, matrix_tflops=(("bf16", float("nan")),))


@pytest.mark.parametrize("ending", [".twt", ".json"])
def test_a_pipe_is_no_table(tmp_path, ending):
    path = tmp_path / f"pipe{ending}"
    os.mkfifo(path)
    with pytest.raises(BadFile, match="not a regular file"):
        file.load(path)
