"""The places that words name: this machine's GPUs, the interpreter, emulated GPUs, a Ray cluster's
devices."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.arch.words import NATIVE, emulated, joined, product_of
from tilewright.arch.words import number as numbered
from tilewright.errors import BadArgument, NoDriver
from tilewright.measure import cluster, devices
from tilewright.measure.devices import CPU, Place, emulated_place, interpreter_place

WITHOUT = "--devices cpu takes the interpreter"


def parse(words: str, here: Sequence[Place] | None = None) -> list[Place]:
    """The places that `words` name:

    ``all``, ``native``: all GPUs.
    ``4``: the first four GPUs.
    ``0,3``, ``cuda:3``, ``3,``: GPUs by number, in a list; ``3,`` is a list of one.
    ``GPU-1b2c``: in such a list, the GPU whose UUID begins so.
    ``h200``: in such a list, all GPUs of this product.
    ``cpu``: the interpreter, also in a list, once for each worker.
    ``emulated:mi300x``: an emulated GPU, also in a list, once for each worker.
    ``ray``, ``ray:cpu``: a Ray cluster's GPUs and CPUs (see `cluster.places`).

    `here` gives the GPUs of this machine; by default they are detected. Raises `BadArgument`,
    `NoDriver` and `NoCluster`.
    """
    if words.partition(":")[0] == "ray":
        return [*cluster.places(words)]
    items = [word.strip() for word in words.split(",") if word.strip()]
    if not items:
        raise BadArgument(f"devices '{words}' names none; give all, cpu, a count, or a list")
    if all(map(_on_cpu, items)):
        return [_processor(item) for item in items]
    try:
        found = list(devices.gpus() if here is None else here)
    except NoDriver as error:
        raise NoDriver(f"{error} ({WITHOUT})") from None
    if not found:
        raise NoDriver(f"no GPU can be used here ({WITHOUT})")
    if items in (["all"], [NATIVE]):
        return found
    if items[0].isdigit() and "," not in words:
        if not 1 <= (count := int(items[0])) <= len(found):
            raise BadArgument(
                f"{count} GPUs are asked for, this machine has {len(found)} "
                f"(GPU number {count} alone is '{count},')"
            )
        return found[:count]
    chosen: list[Place] = []
    for item in items:
        chosen += [_processor(item)] if _on_cpu(item) else _called(item, found)
    twice = {p.uuid for p in chosen if p.backend != CPU and chosen.count(p) > 1}
    if twice:
        raise BadArgument(f"devices '{words}' names {', '.join(sorted(twice))} more than once")
    return chosen


def _on_cpu(word: str) -> bool:
    return word == CPU or emulated(word)


def _processor(word: str) -> Place:
    return interpreter_place() if word == CPU else emulated_place(word)


def _called(word: str, found: Sequence[Place]) -> list[Place]:
    """The GPU with this number, or with a UUID that begins like this; or all GPUs of this
    product."""
    number = int(word) if word.isdigit() else numbered(word)
    if number is not None:
        if number < len(found):
            return [found[number]]
        raise BadArgument(f"there is no GPU {number}: this machine has {len(found)}, from 0")
    product = product_of(word)
    if product and joined(product) == joined(word):
        same = [p for p in found if p.device is not None and product_of(p.device.name) == product]
        if same:
            return same
    begins = word.lower().removeprefix("gpu-")
    same = [p for p in found if p.uuid.lower().removeprefix("gpu-").startswith(begins)]
    if len(same) == 1:
        return same
    if same:
        listed = ", ".join(p.uuid for p in same)
        raise BadArgument(f"'{word}' is the beginning of {len(same)} GPUs' UUIDs ({listed})")
    raise BadArgument(f"there is no GPU '{word}' here; these are: {', '.join(map(str, found))}")
