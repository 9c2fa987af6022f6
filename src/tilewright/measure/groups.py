"""Groups the devices that words name: devices that are alike form one group, and one crew works on
all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tilewright.arch import arch as arch_called
from tilewright.arch import device as device_called
from tilewright.arch.model import Device
from tilewright.compile import Store
from tilewright.errors import WrongDevice
from tilewright.measure.crew import Crew
from tilewright.measure.devices import Place
from tilewright.measure.measurement import Environment, Settings
from tilewright.measure.places import parse
from tilewright.measure.sweep import Group
from tilewright.measure.telemetry import say_if_shared
from tilewright.plan import PLANNING_DEVICE


def groups(
    words: str, store: Store, settings: Settings, *, timeout: float, arch: str | None = None
) -> tuple[list[Group], Callable[[], Crew]]:
    """The groups of the devices that `words` name (see `places.parse`), and a function that starts
    their crew.

    arch: the architecture that the interpreter plays; default: the architecture that plans are made
        for. A GPU of another architecture raises `WrongDevice`.

    Warns of a GPU that somebody else works on.
    """
    named = arch_called(arch or device_called(PLANNING_DEVICE).arch).name
    alike: dict[tuple[Device, Environment], list[Place]] = {}
    places = parse(words)
    for place in places:
        if place.backend == "cuda" and not place.machine:
            say_if_shared(place.uuid, str(place))
    for place in places:
        device = place.device_for(named) if place.device is None else place.device
        if device is None or (arch is not None and device.arch != named):
            raise WrongDevice(f"{place} is not of architecture {named}")
        alike.setdefault((device, place.environment), []).append(place)
    found = [
        Group(
            device,
            environment,
            len(same),
            interpreted=same[0].device is None,
            emulated=same[0].emulated,
            place=same[0],
        )
        for (device, environment), same in alike.items()
    ]
    return found, partial(Crew, places, store, settings, timeout=timeout)
