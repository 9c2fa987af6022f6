"""Patches of images and pooling. Filters, strides and padding are those that the pages' problems
have; images, pixels and channels are drawn: pixels from 8 to 256 along each dimension that has more
than one, channels to 2,048."""

from __future__ import annotations

import random

from declared_cases import Fields, Ranges, between, cases_of

SPATIAL = ("depth", "height", "width")


def images(by_chance: random.Random, fields: Fields, count: str) -> Fields:
    """The windows of a page's problem on other images.

    count: the name of the number of images.
    """
    drawn = {n: between(by_chance, 8, 256) for n in SPATIAL if fields.get(n, 1) > 1}
    drawn[count] = between(by_chance, 1, 4096)
    if fields.get("channels", 1) > 1:
        drawn["channels"] = between(by_chance, 3, 2048)
    return {**fields, **drawn}


def patches(by_chance: random.Random, fields: Fields) -> Fields:
    return images(by_chance, fields, "n")


def pooled(by_chance: random.Random, fields: Fields) -> Fields:
    return images(by_chance, fields, "images")


def summed(by_chance: random.Random, fields: Fields) -> Fields:
    """The rows of such images: as many windows as they have."""
    made = images(by_chance, fields, "n")
    taps = 1
    for axis, name in zip("dhw", SPATIAL, strict=True):
        taps *= made.get(f"filter_{axis}", 1)
        reach = (made.get(f"filter_{axis}", 1) - 1) * made.get(f"dilation_{axis}", 1) + 1
        padded = made.get(name, 1) + 2 * made.get(f"pad_{axis}", 0)
        made[f"out_{axis}"] = max(1, (padded - reach) // made.get(f"stride_{axis}", 1) + 1)
    return {**made, "columns": between(by_chance, 3, 2048) * taps}


RANGES: Ranges = {"im2col": patches, "col2im": summed, "pool": pooled, "pool_backward": pooled}

CASES = cases_of(RANGES)
