"""A damaged code object is one clear error."""

from __future__ import annotations

import struct

import pytest
from fuzz_seeds import METADATA, code_object

from tilewright.emulate.code_object import image_bytes, read, section
from tilewright.errors import BadFile

IMAGE = code_object(METADATA)


def test_what_is_there_is_read() -> None:
    found = read(IMAGE)
    assert found.text == section(IMAGE, ".text") and len(found.text) == 16
    entry = found.entries["scale"]
    assert [(a.offset, a.size, a.kind) for a in entry.arguments] == [
        (0, 8, "global_buffer"),
        (8, 4, "by_value"),
    ]
    assert (entry.argument_bytes, entry.most_threads, entry.wave) == (16, 256, 64)
    assert image_bytes(IMAGE[:64]) == len(IMAGE)


@pytest.mark.parametrize("length", range(0, len(IMAGE), 7))
def test_a_binary_that_is_cut_short(length: int) -> None:
    with pytest.raises(BadFile):
        read(IMAGE[:length])


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        (None, "object"),
        ({"amdhsa.kernels": [None]}, "object"),
        ({"amdhsa.kernels": [{".name": "scale"}]}, "kernarg_segment_size"),
        ({"amdhsa.kernels": [{**METADATA["amdhsa.kernels"][0], ".wavefront_size": -1}]}, ">= 0"),
    ],
)
def test_metadata_that_is_not_amds(metadata: object, said: str) -> None:
    with pytest.raises(BadFile, match=f"the binary's metadata is not AMD's: .*{said}"):
        read(code_object(metadata))


def test_names_of_sections_beyond_the_table() -> None:
    with pytest.raises(BadFile, match="no section 9, where the names"):
        read(IMAGE[:62] + struct.pack("<H", 9) + IMAGE[64:])
