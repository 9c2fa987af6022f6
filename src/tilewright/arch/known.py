"""Known devices, and devices described by a file."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.arch.load import arch
from tilewright.arch.model import Device
from tilewright.errors import BadArgument, BadFile, UnknownArch, nearest
from tilewright.jsonfile import convert, load_json, parse_json

_FILES = Path(__file__).parent / "devices"


def devices() -> dict[str, Device]:
    """The known devices by slug (``h200_sxm``), sorted."""
    return dict(_known())


def device(source: str | os.PathLike[str] | Mapping[str, Any]) -> Device:
    """A device from any description of one.

    `source` is the slug or the driver's name of a known device, in any case (``h200_sxm``,
    ``NVIDIA H200``), the path of a JSON file, a JSON text, or a mapping of its fields. Raises
    `BadArgument` for an unknown name and `BadFile` for a bad description.
    """
    if isinstance(source, Mapping):
        return _checked(dict(source), "device")
    if not isinstance(source, str):
        return _checked(load_json(source), os.fspath(source))
    if source.lstrip().startswith("{"):
        return _checked(parse_json(source, "device"), "device")
    found = _by_word().get(_word(source))
    if found is not None:
        return found
    if source.endswith(".json") or os.sep in source:
        return _checked(load_json(source), source)
    slugs = list(_known())
    raise BadArgument(
        f"unknown device '{source}'{nearest(_word(source), list(_by_word()))}; "
        f"known: {', '.join(slugs)}; or give the path of a JSON file"
    )


def device_to_json(device: Device) -> str:
    """The device as JSON text; `tilewright.arch.device` reads it back equal."""
    return json.dumps(dataclasses.asdict(device), indent=2)


@functools.cache
def _known() -> dict[str, Device]:
    files = sorted(_FILES.glob("*.json"))
    return {file.stem: _checked(load_json(file), str(file)) for file in files}


@functools.cache
def _by_word() -> dict[str, Device]:
    by_name = {_word(found.name): found for found in _known().values()}
    return {**by_name, **_known()}


def _word(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().lower())


def _checked(data: Any, where: str) -> Device:
    found = convert(data, Device, where)
    try:
        operands = arch(found.arch).dtypes
    except UnknownArch as error:
        raise BadFile(f"{where}: arch: {error}") from error
    for name, _ in found.matrix_tflops:
        if name not in operands:
            raise BadFile(
                f"{where}: matrix_tflops: unknown operand dtype '{name}'{nearest(name, operands)}"
            )
    return found
