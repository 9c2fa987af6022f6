"""What a live GPU's product is known for and its driver does not say."""

from __future__ import annotations

import dataclasses

from tilewright.arch.known import devices
from tilewright.arch.model import Device
from tilewright.errors import NoDriver


def fingerprint(seen: Device, trust_bandwidth: bool = True) -> Device:
    """`seen`, as its driver describes it, completed from the known device of the same name.

    A whole GPU takes that device's published matrix peaks. Bandwidth is taken from there only
    where the driver's figure is missing or not to be trusted; a partition gets the share that
    its compute units are. Raises `NoDriver` when a figure can be had from neither.
    """
    product = next(
        (d for d in devices().values() if (d.name, d.arch) == (seen.name, seen.arch)), None
    )
    if product is not None:
        share = seen.compute_units / product.compute_units if seen.partition else 1.0
        if seen.bandwidth_gbs <= 0 or not trust_bandwidth:
            seen = dataclasses.replace(seen, bandwidth_gbs=product.bandwidth_gbs * share)
        if not seen.partition and seen.compute_units == product.compute_units:
            seen = dataclasses.replace(seen, matrix_tflops=product.matrix_tflops)
    for field in ("compute_units", "l2_bytes", "memory_bytes", "bandwidth_gbs", "clock_mhz"):
        if getattr(seen, field) <= 0:
            raise NoDriver(
                f"the driver does not report {field} of '{seen.name}'; "
                "describe the GPU in a JSON file instead"
            )
    return seen
