"""Figures of a live GPU that its driver does not report, from the known product."""

from __future__ import annotations

from typing import Any

from tilewright.arch.known import devices
from tilewright.arch.model import Device
from tilewright.errors import NoDriver


def fingerprint(*, trust_bandwidth: bool = True, **told: Any) -> Device:
    """The device with the fields that a driver told (0: the driver does not know), completed from
    the known device of the same name.

    A whole GPU takes that device's published matrix peaks. Bandwidth comes from there only if the
    driver's figure is missing or not to be trusted; a partition gets the share that its compute
    units are. Raises `NoDriver` if neither has a figure.
    """
    called = told["name"], told["arch"]
    product = next((d for d in devices().values() if (d.name, d.arch) == called), None)
    if product is not None:
        share = told["compute_units"] / product.compute_units if told["partition"] else 1.0
        if told["bandwidth_gbs"] <= 0 or not trust_bandwidth:
            told["bandwidth_gbs"] = product.bandwidth_gbs * share
        if not told["partition"] and told["compute_units"] == product.compute_units:
            told["matrix_tflops"] = product.matrix_tflops
    for field in ("compute_units", "l2_bytes", "memory_bytes", "bandwidth_gbs", "clock_mhz"):
        if told[field] <= 0:
            raise NoDriver(
                f"the driver does not report {field} of '{told['name']}'; "
                "describe the GPU in a JSON file instead"
            )
    return Device(**told)
