"""Architectures: found by any driver's spelling, never guessed, and true to public figures."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.arch import Arch, arch, archs, words
from tilewright.arch.model import OPERANDS
from tilewright.dtypes import FP8_ALIASES
from tilewright.errors import UnknownArch

ALL = [arch(name) for name in archs()]


def each(value: Arch) -> str:
    return value.name


def test_the_known_architectures() -> None:
    assert set(archs()) == {
        *("sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121"),
        *("gfx908", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1151", "gfx1201", "gfx1250"),
    }
    assert list(archs()) == sorted(archs())


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("gfx942:sramecc+:xnack-", "gfx942"),
        ("GFX90A:xnack-", "gfx90a"),
        ("sm90", "sm_90"),
        ("SM_90a", "sm_90"),
        ("sm_120f", "sm_120"),
        (" sm_80 ", "sm_80"),
    ],
)
def test_spellings(spelling: str, name: str) -> None:
    assert arch(spelling).name == name


@given(
    st.sampled_from(archs()),
    st.lists(st.sampled_from(["sramecc+", "sramecc-", "xnack+", "xnack-"]), max_size=3),
    st.booleans(),
)
def test_feature_suffixes_and_case_do_not_matter(name: str, features: list[str], up: bool) -> None:
    spelling = ":".join([name, *features])
    assert arch(spelling.upper() if up else spelling) is arch(name)


@pytest.mark.turns(24)
@given(st.text().filter(lambda text: words.number(text) is None))  # hip is a GPU of this machine
def test_anything_else_is_unknown(text: str) -> None:
    try:
        found = arch(text)
    except UnknownArch:
        return
    assert found.name.replace("_", "") in text.lower().replace("_", "")


@pytest.mark.parametrize(
    "name", ["sm_75", "sm_9", "gfx940", "gfx90", "", "sm_", "sm_90b", "volta", "gfx943"]
)
def test_a_relative_is_never_taken_instead(name: str) -> None:
    with pytest.raises(UnknownArch, match=r"known: gfx1100, .*sm_90"):
        arch(name)


def test_import_is_light() -> None:
    code = (
        "import sys, tilewright.arch, tilewright.arch.detect;"
        "print([m for m in ('torch', 'triton', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("a", ALL, ids=each)
def test_every_operand_dtype_has_an_answer(a: Arch) -> None:
    assert set(a.dtypes) == OPERANDS
    for name, support in a.dtypes.items():
        if support.support != "native":
            assert support.note, f"{name} gives no reason"
        if support.support == "emulated":
            assert support.via, f"{name} does not say what computes it"


@pytest.mark.parametrize("a", ALL, ids=each)
def test_support_and_instructions_agree(a: Arch) -> None:
    with_instruction = {name for mma in a.mma for name in mma.dtypes}
    for name, support in a.dtypes.items():
        own = support.support == "native" and not support.via
        assert (name in with_instruction) == own
        assert support.via in {"", "fma", *with_instruction}
    assert a.fma_flops_per_cu_per_clock > 0


@pytest.mark.parametrize("a", ALL, ids=each)
def test_the_fp8_flavour_is_the_one_that_computes_best(a: Arch) -> None:
    rank = {"native": 0, "emulated": 1, "refused": 2}
    other = {"ocp": "fnuz", "fnuz": "ocp"}[a.fp8]
    for meanings in FP8_ALIASES.values():
        chosen, rejected = a.dtypes[meanings[a.fp8]], a.dtypes[meanings[other]]
        assert rank[chosen.support] <= rank[rejected.support]


@pytest.mark.parametrize("a", ALL, ids=each)
def test_figures_are_consistent(a: Arch) -> None:
    assert a.warp_size == (64 if a.name.startswith("gfx9") else 32)
    assert (a.vendor, a.backend) in {("nvidia", "cuda"), ("amd", "hip")}
    assert a.shared_memory + a.shared_memory_reserved <= a.shared_memory_per_cu
    assert a.max_registers <= a.registers_per_lane
    assert a.registers_per_lane // a.register_granule >= a.max_warps_per_simd
    assert max(a.num_warps) * a.warp_size <= a.max_threads
    assert a.mma_selectable == (a.vendor == "amd" and a.warp_size == 64)
    for values in (a.num_warps, a.num_stages):
        assert list(values) == sorted(set(values))


def test_a_selectable_shape_is_16_or_32_wide() -> None:
    for a in ALL:
        if a.mma_selectable:
            widths = {(m, n) for mma in a.mma for m, n, _ in mma.shapes}
            assert widths == {(16, 16), (32, 32)}


@pytest.mark.parametrize(
    ("name", "dtype", "shapes"),
    [
        ("gfx908", "bf16", {(16, 16, 8), (32, 32, 4)}),
        ("gfx908", "int8", {(16, 16, 16), (32, 32, 8)}),
        ("gfx90a", "bf16", {(16, 16, 16), (32, 32, 8)}),
        ("gfx942", "bf16", {(16, 16, 16), (32, 32, 8)}),
        ("gfx942", "e4m3fnuz", {(16, 16, 32), (32, 32, 16)}),
        ("gfx950", "bf16", {(16, 16, 32), (32, 32, 16)}),
        ("gfx1201", "e4m3fn", {(16, 16, 16)}),
        ("gfx1250", "bf16", {(16, 16, 32)}),
        ("gfx1250", "e5m2", {(16, 16, 64), (16, 16, 128)}),
    ],
)
def test_shapes_seen_in_compiled_kernels(
    name: str, dtype: str, shapes: set[tuple[int, int, int]]
) -> None:
    found = {s for mma in arch(name).mma if dtype in mma.dtypes for s in mma.shapes}
    assert found == shapes


@pytest.mark.parametrize(
    ("name", "native_fp8"),
    [
        ("sm_80", set()),
        ("sm_86", set()),
        ("sm_87", set()),
        ("sm_103", {"e4m3fn", "e5m2"}),
        ("sm_121", set()),
        ("gfx908", set()),
        ("gfx1151", set()),
        ("sm_89", {"e4m3fn", "e5m2"}),
        ("sm_90", {"e4m3fn", "e5m2"}),
        ("gfx90a", set()),
        ("gfx942", {"e4m3fnuz", "e5m2fnuz"}),
        ("gfx950", {"e4m3fn", "e5m2"}),
        ("gfx1100", set()),
        ("gfx1201", {"e4m3fn", "e5m2"}),
        ("gfx1250", {"e4m3fn", "e5m2"}),
    ],
)
def test_native_fp8(name: str, native_fp8: set[str]) -> None:
    dtypes = arch(name).dtypes
    found = {d for d in dtypes if d.startswith("e") and dtypes[d].support == "native"}
    assert found == native_fp8


@pytest.mark.parametrize(
    ("name", "dtype", "units", "gigahertz", "published"),
    [
        ("sm_80", "bf16", 108, 1.41, 312),
        ("sm_80", "int8", 108, 1.41, 624),
        ("sm_86", "bf16", 72, 1.695, 125),
        ("sm_86", "int8", 72, 1.695, 250),
        ("sm_87", "int8", 16, 1.3, 85),
        ("sm_89", "bf16", 142, 2.49, 362),
        ("sm_90", "bf16", 132, 1.83, 989),
        ("sm_90", "e4m3fn", 132, 1.83, 1979),
        ("sm_100", "bf16", 148, 1.86, 2250),
        ("sm_103", "e4m3fn", 148, 1.86, 4500),
        ("sm_103", "mxfp4", 148, 1.86, 13500),
        ("sm_103", "int8", 148, 1.965, 150),
        ("sm_120", "bf16", 170, 2.407, 209.5),
        ("sm_121", "bf16", 48, 2.525, 125),
        ("gfx908", "fp16", 120, 1.502, 184.6),
        ("gfx908", "bf16", 120, 1.502, 92.3),
        ("gfx908", "fp32", 120, 1.502, 46.1),
        ("gfx90a", "fp16", 220, 1.7, 383),
        ("gfx942", "bf16", 304, 2.1, 1307),
        ("gfx942", "fp32", 304, 2.1, 163.4),
        ("gfx950", "e4m3fn", 256, 2.4, 5033),
        ("gfx1100", "fp16", 96, 2.5, 123),
        ("gfx1151", "fp16", 40, 2.9, 59.4),
        ("gfx1201", "fp16", 64, 2.97, 195),
    ],
)
def test_rates_give_the_published_peaks(
    name: str, dtype: str, units: int, gigahertz: float, published: float
) -> None:
    rates = [m.flops_per_cu_per_clock for m in arch(name).mma if dtype in m.dtypes]
    assert max(rates) * units * gigahertz / 1e3 == pytest.approx(published, rel=0.01)
