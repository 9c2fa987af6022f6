"""Devices: known ones by any name, described ones checked, JSON without loss."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.arch import Device, arch, archs, device, device_to_json, devices, peak_tflops
from tilewright.errors import BadArgument, BadFile

H200 = devices()["h200_sxm"]
FIELDS = dataclasses.asdict(H200)


def test_known_devices() -> None:
    assert {"h200_sxm", "h100_pcie", "a100_sxm_80gb", "mi300x", "rx_9070_xt"} <= set(devices())
    assert list(devices()) == sorted(devices())
    # AMD publishes no clock or count of compute units for gfx1250's products.
    assert {d.arch for d in devices().values()} == set(archs()) - {"gfx1250"}
    assert (H200.compute_units, H200.memory_bytes) == (132, 143771 * 2**20)


def test_two_devices_never_share_a_name() -> None:
    names = [d.name.lower() for d in devices().values()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "words", ["h200_sxm", "H200_SXM", "h200-sxm", "NVIDIA H200", "nvidia h200"]
)
def test_lookup_by_slug_or_name(words: str) -> None:
    assert device(words) is H200


def test_an_unknown_device_lists_the_known() -> None:
    with pytest.raises(BadArgument, match=r"'h300'; known: a10, a100_sxm_40gb.*mi300x"):
        device("h300")


def test_a_device_may_be_a_path_a_text_or_a_mapping(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(device_to_json(H200))
    for source in (file, str(file), file.read_text(), json.loads(file.read_text())):
        assert device(source) == H200


def test_bad_json_names_file_line_and_column(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text('{\n  "name": "x"\n  "arch": "sm_90"\n}')
    with pytest.raises(BadFile, match=r"mine\.json: is not JSON: line 3, column 3"):
        device(file)


def test_a_path_to_nothing_is_a_bad_file() -> None:
    with pytest.raises(BadFile, match=r"nowhere\.json: cannot be read"):
        device("nowhere.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"compute_unit": 1}, "unknown field 'compute_unit' .*'compute_units'"),
        ({"compute_units": "132"}, "compute_units: Expected `int`"),
        ({"compute_units": 0}, "compute_units must be positive, not 0"),
        ({"bandwidth_gbs": -1.0}, "bandwidth_gbs must be positive"),
        ({"bandwidth_gbs": 5e-324}, "bandwidth_gbs = 5e-324 is not a number from 1e-09"),
        ({"clock_mhz": 10**400}, "clock_mhz = "),
        ({"bandwidth_gbs": float("inf")}, "bandwidth_gbs = inf is not a number from 1e-09 to 1e"),
        ({"l2_bytes": 1.5}, "l2_bytes: Expected `int`"),
        ({"arch": "sm_75"}, "arch: unknown architecture 'sm_75'"),
        ({"matrix_tflops": [["bf61", 1.0]]}, r"unknown operand dtype 'bf61' .*'bf16'"),
        ({"matrix_tflops": [["bf16", 0.0]]}, "bf16 must be positive"),
    ],
)
def test_a_bad_description_says_what_is_wrong(change: dict[str, object], message: str) -> None:
    with pytest.raises(BadFile, match=message):
        device({**FIELDS, **change})


@pytest.mark.parametrize("field", ["name", "arch", "compute_units", "clock_mhz"])
def test_a_missing_field_is_named(field: str) -> None:
    with pytest.raises(BadFile, match=f"missing field '{field}'"):
        device({key: value for key, value in FIELDS.items() if key != field})


described = st.builds(
    Device,
    name=st.text(),
    arch=st.sampled_from(archs()),
    compute_units=st.integers(1, 2**31),
    l2_bytes=st.integers(1, 2**40),
    memory_bytes=st.integers(1, 2**50),
    bandwidth_gbs=st.floats(1e-6, 1e12),
    clock_mhz=st.integers(1, 10**5),
    partition=st.text(),
    matrix_tflops=st.lists(
        st.tuples(st.sampled_from(["bf16", "int8", "tf32"]), st.floats(1e-3, 1e6))
    ).map(tuple),
)


@pytest.mark.turns(12)
@given(described)
def test_json_round_trip_loses_nothing(one: Device) -> None:
    back = device(device_to_json(one))
    assert back == one
    assert hash(back) == hash(one)


def test_peak_is_rate_times_units_times_clock() -> None:
    mi300x = devices()["mi300x"]
    assert peak_tflops(arch("gfx942"), mi300x, "bf16") == pytest.approx(1307.4, rel=1e-3)
    half = dataclasses.replace(mi300x, compute_units=152)
    assert peak_tflops(arch("gfx942"), half, "bf16") == pytest.approx(1307.4 / 2, rel=1e-3)


def test_a_published_peak_wins_over_the_rate() -> None:
    assert peak_tflops(arch("sm_90"), devices()["h20"], "bf16") == 148.0
    assert peak_tflops(arch("sm_90"), H200, "bf16") == pytest.approx(989, rel=1e-3)
    rtx_4090 = devices()["rtx_4090"]  # half rate in float types only
    assert peak_tflops(arch("sm_89"), rtx_4090, "int8") == pytest.approx(660.6, rel=1e-3)
    assert peak_tflops(arch("sm_89"), rtx_4090, "bf16") == 165.2


def test_a_published_peak_is_never_above_the_rate() -> None:
    for slug, one in devices().items():
        plain = dataclasses.replace(one, matrix_tflops=())
        for dtype, tflops in one.matrix_tflops:
            assert tflops <= peak_tflops(arch(one.arch), plain, dtype) * 1.001, (slug, dtype)


def test_an_emulated_dtype_has_the_peak_of_what_computes_it() -> None:
    a100 = devices()["a100_sxm_40gb"]
    assert peak_tflops(arch("sm_80"), a100, "e5m2") == peak_tflops(arch("sm_80"), a100, "fp16")
    assert peak_tflops(arch("sm_80"), a100, "fp32") == pytest.approx(19.5, rel=1e-2)


def test_exponentials_are_a_unit_of_their_own_where_their_rate_is_known():
    per_second = 16 * 132 * H200.clock_mhz * 1e6
    assert peak_tflops(arch("sm_90"), H200, "exp") == pytest.approx(per_second / 1e12)
    mi355x = next(d for d in devices().values() if d.arch == "gfx950")
    with pytest.raises(BadArgument, match="the rate of exp is not known for gfx950"):
        peak_tflops(arch("gfx950"), mi355x, "exp")


@pytest.mark.parametrize(
    ("name", "dtype", "message"),
    [
        ("sm_80", "e4m3fn", "does not take e4m3fn operands: Triton"),
        ("sm_80", "bf61", r"'bf61' \(did you mean 'bf16'\?\)"),
        ("sm_90", "bf16", "has architecture sm_80, not sm_90"),
    ],
)
def test_no_peak_without_meaning(name: str, dtype: str, message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        peak_tflops(arch(name), devices()["a100_sxm_40gb"], dtype)
