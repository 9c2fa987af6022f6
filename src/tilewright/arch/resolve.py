"""Architectures and devices by any word for them: a name, a product, or a GPU of this machine."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any

from tilewright.arch import known, load, words
from tilewright.arch.model import Arch, Device
from tilewright.errors import BadArgument, UnknownArch, shown
from tilewright.jsonfile import load_json, parse_json


def arch(name: str | Arch) -> Arch:
    """The architecture called `name`, in any case; an `Arch` is returned as it is.

    `name` may be:

    - a name as compilers and drivers spell it: ``sm90`` and ``sm_90a`` for ``sm_90``,
      ``gfx942:sramecc+:xnack-`` for ``gfx942``
    - a product or a known device: ``H100``, ``rtx4090``, ``h100_pcie``
    - a GPU of this machine, which is asked then: ``cuda:0``, ``native``

    Raises `UnknownArch` if no data file describes it. There is no default and no nearest relative,
    because limits and instructions differ between relatives. For a GPU of this machine, raises
    `NoDriver`, and `BadArgument` if the word may mean several that differ.
    """
    if isinstance(name, Arch):
        return name
    if not isinstance(name, str):
        raise UnknownArch(f"an architecture is a name such as 'sm_90', not {shown(name)}")
    found = _without_looking(name)
    if found is not None:
        return found
    gpu = _gpu_here(name)
    if gpu is not None:
        return load.named(gpu.arch)
    product = words.product_of(name)
    # No hint at a name that is spelt alike: sm_86, gfx90c and V100 are other GPUs.
    hint = f" ({product} is of {words.arch_of(product)})" if product else ""
    raise load.unknown(name, hint)


def device(source: str | os.PathLike[str] | Mapping[str, Any]) -> Device:
    """A device from any description of it.

    `source` may be:

    - the slug or the driver's name of a known device, in any case: ``h200_sxm``, ``NVIDIA H200``
    - a product of which one device is known: ``H200``, ``mi300x``
    - a GPU of this machine: ``cuda:0``, ``native``
    - the path of a JSON file, a JSON text, or a mapping of its fields

    Raises `BadArgument` for an unknown name and for a product of which several devices are known,
    `NoDriver` for a GPU of a machine without one, and `BadFile` for a bad description.
    """
    if isinstance(source, Mapping):
        return known.described(dict(source), "device")
    if not isinstance(source, str):
        return known.described(load_json(source), os.fspath(source))
    if source.lstrip().startswith("{"):
        return known.described(parse_json(source, "device"), "device")
    found = known.called(source)
    if found is not None:
        return found
    if source.endswith(".json") or os.sep in source:
        return known.described(load_json(source), source)
    found = _gpu_here(source)
    if found is not None:
        return found
    product = words.product_of(source)
    slugs = [s for s in known.devices() if product and words.product_of(s) == product]
    if len(slugs) == 1 and words.joined(product) == words.joined(source):
        return known.devices()[slugs[0]]
    raise BadArgument(_unknown_device(source, product, slugs))


def emulated(word: str) -> Device:
    """The device that an emulated GPU plays: ``emulated:`` and any word for an AMD device, or for
    an AMD architecture, which means the first known device of it.

    An architecture of which no device is known gets round figures: only the choice of a kernel, and
    the number of workgroups that go round several tiles, depend on them.

    Raises `BadArgument` for another GPU, and what `device` raises.
    """
    name = word.strip()[len(words.EMULATED) :].strip()
    if not words.emulated(word) or not name:
        raise BadArgument(
            f"'{word}' names no emulated GPU: say {words.EMULATED} and an AMD architecture or "
            f"device, as {words.EMULATED}gfx942 or {words.EMULATED}mi300x"
        )
    this = load.find(name)
    if this is None:
        found = device(name)
    else:
        same = (d for d in known.devices().values() if d.arch == this.name)
        found = next(same, None) or _round_figures(this)
    if load.named(found.arch).backend != "hip":
        raise BadArgument(f"'{word}': {found.arch} is not AMD's, and only AMD's GPUs are emulated")
    return found


def _round_figures(this: Arch) -> Device:
    return Device(
        this.name,
        this.name,
        compute_units=128,
        l2_bytes=1 << 25,
        memory_bytes=1 << 37,
        bandwidth_gbs=4000.0,
        clock_mhz=2000,
    )


@functools.cache
def _without_looking(name: str) -> Arch | None:
    """As `arch`, but without the GPUs of this machine; None if unknown."""
    found = load.find(name)
    if found is not None:
        return found
    device = known.called(name)
    if device is not None:
        return load.named(device.arch)
    product = words.product_of(name)
    exact = product and words.joined(product) == words.joined(name)
    return load.named(words.arch_of(product)) if exact else None


def _gpu_here(word: str) -> Device | None:
    """The GPU of this machine that a word names: ``cuda:1`` (also for AMD's; ``cuda`` is the
    first), or ``native`` if all are alike. None for other words.

    Raises `NoDriver`, and `BadArgument` for a number that is not here and for GPUs that differ.
    """
    # Imported only here: looking at GPUs needs ctypes, and most calls look at none.
    from tilewright.arch.detect import live_device, live_devices

    if word.strip().lower() == words.NATIVE:
        here = live_devices()
        if len(set(here)) > 1:
            listed = ", ".join(f"cuda:{number} {d.name}" for number, d in enumerate(here))
            raise BadArgument(f"the GPUs of this machine differ; say which one: {listed}")
        return here[0]
    number = words.number(word)
    return None if number is None else live_device(number)


def _unknown_device(name: str, product: str, slugs: list[str]) -> str:
    """Why no device has this name. Hints only at devices of the same product or architecture: two
    GPUs with similar names are two GPUs."""
    or_file = "or give the path of a JSON file"
    exact = words.joined(product) == words.joined(name)
    if slugs:
        says = "may be any of" if exact else f"is not known; {product} is known as"
        return f"device '{name}' {says} {', '.join(slugs)}: say which, {or_file}"
    this = _without_looking(name)
    if this is not None:
        is_of = f"is a product of {this.name}" if product else "is an architecture"
        listed = ", ".join(slug for slug, d in known.devices().items() if d.arch == this.name)
        return f"device '{name}' {is_of}, of which these are known: {listed}; {or_file}"
    return f"unknown device '{name}'; known: {', '.join(known.devices())}; {or_file}"
