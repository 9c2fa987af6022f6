"""Ways of measuring: which there are, and what tells them apart."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from tilewright.errors import BadArgument
from tilewright.measure.measurement import Measurement, Settings, Telemetry


@pytest.mark.parametrize(
    "changes, word",
    [
        ({"confidence": 1.0}, "confidence = 1.0"),
        ({"precision": 0.0}, "precision = 0.0"),
        ({"min_samples": 0}, "min_samples = 0"),
        ({"min_samples": 300}, "max_samples = 200"),
        ({"warm_up_seconds": -1.0}, "warm_up_seconds"),
        ({"budget_seconds": 0.0}, "budget_seconds"),
        ({"interleave": 0}, "interleave = 0"),
        ({"places": 0}, "places = 0"),
        ({"race": -0.1}, "race = -0.1"),
        ({"race": float("nan")}, "race = nan"),
        ({"budget_seconds": float("inf")}, "budget_seconds = inf"),
        ({"warm_up_seconds": float("nan")}, "warm_up_seconds = nan"),
        ({"precision": float("nan")}, "precision = nan"),
        ({"max_samples": 10**9}, "max_samples = 1000000000"),
        ({"take": -1}, "take = -1"),
    ],
)
def test_settings_that_mean_nothing_are_refused(changes, word):
    with pytest.raises(BadArgument, match=word):
        Settings(**changes)


def test_every_setting_is_part_of_what_a_measurement_is_of():
    plain = Settings()
    other = {
        "verify": False, "cache": "rotated", "timer": "graph", "warm_up_seconds": 1.0,
        "confidence": 0.9, "precision": 0.5, "min_samples": 2, "max_samples": 500,
        "budget_seconds": 2.0, "interleave": 2, "race": 0.5, "places": 2, "take": 1,
    }  # fmt: skip
    assert other.keys() == {field.name for field in fields(Settings)}
    digests = {replace(plain, **{name: value}).digest for name, value in other.items()}
    assert len(digests | {plain.digest}) == len(other) + 1


def test_the_interpreter_has_a_wall_clock_and_one_place():
    asked = Settings(cache="rotated", places=4, take=2)
    assert asked.interpreted == replace(asked, timer="wall", places=1)
    assert asked.interpreted.interpreted == asked.interpreted


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"samples_us": (1.0, 5e-324)}, "a sample, in µs, = 5e-324"),
        ({"samples_us": (float("inf"),)}, "a sample, in µs, = inf"),
        ({"interval_us": (2.0, 1.0)}, "not an interval"),
        ({"seconds": float("nan")}, "seconds = nan"),
        ({"attempts": -1}, "attempts = -1"),
        ({"status": "fine"}, "status 'fine' is not one of ok"),
    ],
)
def test_a_measurement_has_numbers_that_a_clock_gives(changes, word):
    good = {"status": "ok", "samples_us": (1.0, 2.0), "interval_us": (1.0, 2.0)}
    made = {"kernel": "k", "problem": None, "device": None, "environment": None, "settings": None}
    Measurement(**made, **good)
    with pytest.raises(BadArgument, match=word):
        Measurement(**made, **{**good, **changes})


@pytest.mark.parametrize(
    ("reading", "word"),
    [
        ({"clock_mhz": (1200, -1)}, "clock_mhz = -1"),
        ({"temperature_c": 61.5}, "temperature_c = 61.5"),
        ({"temperature_c": -2000}, "temperature_c = -2000"),
        ({"power_w": float("nan")}, "power_w = nan"),
        ({"others": -1}, "others = -1"),
        ({"others": True}, "others = True"),
    ],
)
def test_telemetry_has_numbers_that_a_device_says(reading, word):
    Telemetry((1200, 1980), -5, 450.5, ("thermal",), 1)
    with pytest.raises(BadArgument, match=word):
        Telemetry(**reading)
