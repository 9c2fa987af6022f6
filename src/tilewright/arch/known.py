"""Known devices, and devices described by JSON."""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import Any

from tilewright.arch import files, words
from tilewright.arch.load import archs, named
from tilewright.arch.model import Device
from tilewright.errors import BadFile, nearest
from tilewright.jsonfile import convert, load_json


def devices() -> dict[str, Device]:
    """The known devices by slug (``h200_sxm``), sorted: the package's, and those of files that
    ``TILEWRIGHT_GPUS`` names. Raises `BadFile` for such a file that cannot be read."""
    return dict(_known())


def called(name: str) -> Device | None:
    """The known device with this slug or driver's name, in any case, with spaces, dashes or
    underscores between its parts; None if there is none."""
    return _by_word().get(words.joined(name))


def described(data: Any, where: str) -> Device:
    """The device that parsed JSON describes. Raises `BadFile`, which begins with `where`."""
    found = convert(data, Device, where)
    if found.arch not in archs():
        raise BadFile(
            f"{where}: arch: unknown architecture '{found.arch}'; known: {', '.join(archs())}"
        )
    operands = named(found.arch).dtypes
    for name, _ in found.matrix_tflops:
        if name not in operands:
            raise BadFile(
                f"{where}: matrix_tflops: unknown operand dtype '{name}'{nearest(name, operands)}"
            )
    return found


def device_to_json(device: Device) -> str:
    """The device as JSON text; `tilewright.arch.device` reads it back equal."""
    return json.dumps(dataclasses.asdict(device), indent=2)


@functools.cache
def _known() -> dict[str, Device]:
    return {slug: described(load_json(file), str(file)) for slug, file in files.devices().items()}


@functools.cache
def _by_word() -> dict[str, Device]:
    by_name = {words.joined(found.name): found for found in _known().values()}
    return {**by_name, **{words.joined(slug): found for slug, found in _known().items()}}
