"""Known devices, and devices described by a file."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.arch import words
from tilewright.arch.load import arch, archs, known_arch
from tilewright.arch.model import Device
from tilewright.errors import BadArgument, BadFile, nearest
from tilewright.jsonfile import convert, load_json, parse_json

_FILES = Path(__file__).parent / "devices"


def devices() -> dict[str, Device]:
    """The known devices by slug (``h200_sxm``), sorted."""
    return dict(_known())


def device(source: str | os.PathLike[str] | Mapping[str, Any]) -> Device:
    """A device from any description of one.

    `source` is the slug or the driver's name of a known device, in any case (``h200_sxm``,
    ``NVIDIA H200``); a product of which one device is known (``H200``, ``mi300x``); a GPU of this
    machine (``cuda:0``, ``native``); the path of a JSON file, a JSON text, or a mapping of its
    fields.

    Raises `BadArgument` for an unknown name and for a product of which several devices are known,
    `NoDriver` for a GPU of a machine without one, and `BadFile` for a bad description.
    """
    if isinstance(source, Mapping):
        return _checked(dict(source), "device")
    if not isinstance(source, str):
        return _checked(load_json(source), os.fspath(source))
    if source.lstrip().startswith("{"):
        return _checked(parse_json(source, "device"), "device")
    found = called(source)
    if found is not None:
        return found
    if source.endswith(".json") or os.sep in source:
        return _checked(load_json(source), source)
    found = words.gpu(source)
    if found is not None:
        return found
    product = words.product_of(source)
    of_product = [slug for slug in _known() if product and words.product_of(slug) == product]
    if len(of_product) == 1 and words.joined(product) == words.joined(source):
        return _known()[of_product[0]]
    raise BadArgument(_unknown(source, product, of_product))


def called(name: str) -> Device | None:
    """The known device with this slug or driver's name, however its parts are held together; None
    if there is none."""
    return _by_word().get(words.joined(name))


def _unknown(name: str, product: str, of_product: list[str]) -> str:
    """Why there is no device of this name. A hint is at devices of the same product or architecture
    alone: two GPUs whose names are spelt alike are two GPUs."""
    or_file = "or give the path of a JSON file"
    exact = words.joined(product) == words.joined(name)
    if of_product:
        says = "may be any of" if exact else f"is not known; {product} is known as"
        return f"device '{name}' {says} {', '.join(of_product)}: say which, {or_file}"
    this = known_arch(name)
    if this is not None:
        what = f"is a product of {this.name}" if product else "is an architecture"
        listed = ", ".join(slug for slug, one in _known().items() if one.arch == this.name)
        return f"device '{name}' {what}, of which these are known: {listed}; {or_file}"
    return f"unknown device '{name}'; known: {', '.join(_known())}; {or_file}"


def device_to_json(device: Device) -> str:
    """The device as JSON text; `tilewright.arch.device` reads it back equal."""
    return json.dumps(dataclasses.asdict(device), indent=2)


@functools.cache
def _known() -> dict[str, Device]:
    files = sorted(_FILES.glob("*.json"))
    return {file.stem: _checked(load_json(file), str(file)) for file in files}


@functools.cache
def _by_word() -> dict[str, Device]:
    named = {words.joined(found.name): found for found in _known().values()}
    return {**named, **{words.joined(slug): found for slug, found in _known().items()}}


def _checked(data: Any, where: str) -> Device:
    found = convert(data, Device, where)
    if found.arch not in archs():
        raise BadFile(
            f"{where}: arch: unknown architecture '{found.arch}'; known: {', '.join(archs())}"
        )
    operands = arch(found.arch).dtypes
    for name, _ in found.matrix_tflops:
        if name not in operands:
            raise BadFile(
                f"{where}: matrix_tflops: unknown operand dtype '{name}'{nearest(name, operands)}"
            )
    return found
