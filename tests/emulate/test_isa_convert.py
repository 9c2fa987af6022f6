"""Conversions to and from 8-bit and 4-bit floats: every code, and every case of rounding."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest
from exact import BF16, F16, F32, SMALL, Format, bits16, bits32, edges, f32
from one import OVERFLOW, execute, target, waves
from spelling import exists

ACTIVE = 0x9669_F00D_1234_8001
HOMES = {"gfx942": " fnuz", "gfx950": "", "gfx1201": ""}


def form(name: str, gpu: str) -> Format:
    return SMALL[name + (HOMES[gpu] if name != "fp4" else "")]


def equal(kind: str, got: int, wanted: float) -> bool:
    decode = {"f32": F32, "f16": F16, "bf16": BF16}[kind].decode
    if math.isnan(wanted):
        return math.isnan(decode(got))
    return decode(got) == wanted and math.copysign(1, decode(got)) == math.copysign(1, wanted)


@pytest.mark.parametrize("gpu", HOMES)
@pytest.mark.parametrize("name", ["fp8", "bf8"])
def test_two_codes_to_fp32(name: str, gpu: str) -> None:
    """All 256 codes in both places."""
    texts = [(f"v_cvt_pk_f32_{name}_e32 v[0:1], v2", 0)]
    if gpu == "gfx1201":
        texts.append((f"v_cvt_pk_f32_{name}_e64 v[0:1], v2 op_sel:[1,0]", 16))
    else:
        texts.append((f"v_cvt_pk_f32_{name}_sdwa v[0:1], v2 src0_sel:WORD_1", 16))
    for text, shift in texts:
        assert exists(text, gpu), text
        for first in range(0, 256, target(gpu).lanes):
            codes = first + np.arange(target(gpu).lanes)
            halves = codes | (255 - codes) << 8
            made = waves(target(gpu), {0: 7, 1: 7, 2: halves << shift | 0x5A5A << 16 - shift})
            execute(text, target(gpu), made)
            for lane, code in enumerate(codes.tolist()):
                for register, each in ((0, code), (1, 255 - code)):
                    got = int(made.vector[register, 0, lane])
                    assert equal("f32", got, form(name, gpu).decode(each)), f"{text} of {each:#x}"


@pytest.mark.parametrize("name", ["fp8", "bf8"])
@pytest.mark.parametrize("byte", range(4))
def test_one_code_to_fp32(name: str, byte: int) -> None:
    for gpu in HOMES:
        text = f"v_cvt_f32_{name}_sdwa v0, v2 src0_sel:BYTE_{byte}"
        if gpu == "gfx1201":
            text = f"v_cvt_f32_{name}_e64 v0, v2 byte_sel:{byte}"
            text = text if byte else f"v_cvt_f32_{name}_e32 v0, v2"
        assert exists(text, gpu), text
        codes = (np.arange(target(gpu).lanes) * 4 + byte) % 256
        made = waves(target(gpu), {2: (codes << 8 * byte) | 0x01010101 & ~(0xFF << 8 * byte)})
        execute(text, target(gpu), made)
        for lane, code in enumerate(codes.tolist()):
            assert equal("f32", int(made.vector[0, 0, lane]), form(name, gpu).decode(code))


def encoded(format_: Format, x: float, saturates: bool) -> float:
    """What a conversion gives: with FP16_OVFL the largest number for all that is too large."""
    if math.isnan(x):
        return math.nan
    made = format_.rounded(x)
    if math.isinf(made):
        if saturates or format_.top == "none":
            return math.copysign(float(format_.largest), x)
        return made if format_.top == "ieee" else math.nan
    return made


def small_equal(format_: Format, got: int, wanted: float) -> bool:
    value = format_.decode(got)
    if math.isnan(wanted):
        return math.isnan(value)
    if wanted == 0 and format_.top == "fnuz":
        return got == 0
    return value == wanted and math.copysign(1, value) == math.copysign(1, wanted)


def interesting(format_: Format, count: int, rng: random.Random) -> list[int]:
    """fp32 bits near the format's numbers, half-way between them, too large, and special."""
    pick = edges("f32")
    found = [pick(rng) for _ in range(count // 2)]
    while len(found) < count:
        code = rng.getrandbits(format_.bits)
        low, high = format_.decode(code), format_.decode(code ^ 1)
        if math.isnan(low + high) or math.isinf(low + high):
            continue
        middle = bits32((low + high) / 2)
        found.append(max(0, middle + rng.choice((-1, 0, 0, 1))))
    return found


@pytest.mark.parametrize("gpu", HOMES)
@pytest.mark.parametrize("name", ["fp8", "bf8"])
@pytest.mark.parametrize("saturates", [False, True])
@pytest.mark.parametrize("high", [False, True])
def test_two_fp32_to_codes(name: str, gpu: str, saturates: bool, high: bool) -> None:
    """Into one half; the other stays."""
    text = f"v_cvt_pk_{name}_f32 v0, v2, v3" + (" op_sel:[0,0,1]" if high else "")
    assert exists(text, gpu), text
    rng = random.Random(text)
    made = waves(
        target(gpu),
        {0: 0xDEADBEEF},
        count=8,
        active=ACTIVE,
        mode=OVERFLOW if saturates else 0,
    )
    drawn = []
    for register in (2, 3):
        drawn.append(interesting(form(name, gpu), made.count * made.lanes, rng))
        made.vector[register] = np.array(drawn[-1], np.uint32).reshape(made.count, made.lanes)
    execute(text, target(gpu), made)
    at = 16 if high else 0
    for number in range(made.count * made.lanes):
        wave, lane = divmod(number, made.lanes)
        got = int(made.vector[0, wave, lane])
        if not made.active[wave, lane]:
            assert got == 0xDEADBEEF
            continue
        assert got >> 16 - at & 0xFFFF == 0xDEADBEEF >> 16 - at & 0xFFFF
        for place, codes in enumerate(drawn):
            x = f32(codes[number])
            wanted = encoded(form(name, gpu), x, saturates)
            part = got >> at + 8 * place & 0xFF
            assert small_equal(form(name, gpu), part, wanted), f"{text} of {x}: {part:#x}"


def test_saturation_is_of_each_wave() -> None:
    made = waves(target("gfx942"), {2: bits32(1e9), 3: bits32(-1e9)}, count=2)
    made.scalar[128] = [0, OVERFLOW]
    execute("v_cvt_pk_fp8_f32 v0, v2, v3", target("gfx942"), made)
    assert (made.vector[0] & 0xFFFF)[:, 0].tolist() == [0x8080, 0xFF7F]


WIDE = {"f32": F32, "f16": F16, "bf16": BF16}


@pytest.mark.parametrize("small", ["fp8", "bf8", "fp4"])
@pytest.mark.parametrize("wide", WIDE)
def test_scaled_from_small(wide: str, small: str) -> None:
    """Times 2 to the power of the scale's exponent alone; ``op_sel`` says which codes."""
    size = 4 if small == "fp4" else 8
    into = "v[0:1]" if wide == "f32" else "v0"
    for place in range(32 // (2 * size)):
        bits = (place & 1, place >> 1) if small == "fp4" else (place, 0)
        modifier = f" op_sel:[{bits[0]},{bits[1]},0]" if place else ""
        text = f"v_cvt_scalef32_pk_{wide}_{small} {into}, v2, v3{modifier}"
        assert exists(text, "gfx950"), text
        for exponent in (127, 130, 120, 1, 254):
            rng = random.Random(f"{text} {exponent}")
            given = np.array([rng.getrandbits(32) for _ in range(64)], np.uint32)
            scale = exponent << 23 | 0x123456
            made = waves(target("gfx950"), {0: 7, 1: 8, 2: given, 3: scale}, active=ACTIVE)
            execute(text, target("gfx950"), made)
            for lane in range(64):
                if not made.active[0, lane]:
                    assert made.vector[0:2, 0, lane].tolist() == [7, 8]
                    continue
                for half in range(2):
                    code = int(given[lane]) >> 2 * size * place + size * half & (1 << size) - 1
                    value = form(small, "gfx950").decode(code)
                    exact = value
                    if math.isfinite(value) and value:
                        product = Fraction(value) * Fraction(2) ** (exponent - 127)
                        exact = math.copysign(WIDE[wide].rounded(product), value)
                    if wide == "f32":
                        got = int(made.vector[half, 0, lane])
                    else:
                        got = int(made.vector[0, 0, lane]) >> 16 * half & 0xFFFF
                    assert equal(wide, got, exact), f"{text}, 2**{exponent - 127}, {code:#x}"


@pytest.mark.parametrize("small", ["fp8", "bf8", "fp4"])
@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("saturates", [False, True])
def test_scaled_to_small(wide: str, small: str, saturates: bool) -> None:
    """Divided by 2 to the power of the scale's exponent, and rounded once."""
    size = 4 if small == "fp4" else 8
    sources = "v2, v3, v4" if wide == "f32" else "v2, v4"
    count = 4 if wide == "f32" else 3
    for place in range(32 // (2 * size)):
        bits = [0] * 4
        if small == "fp4":
            bits[2], bits[3] = place & 1, place >> 1
        else:
            bits[count - 1] = place
        shown = bits[: 4 if small == "fp4" else count]
        modifier = f" op_sel:[{','.join(map(str, shown))}]" if place else ""
        text = f"v_cvt_scalef32_pk_{small}_{wide} v0, {sources}{modifier}"
        assert exists(text, "gfx950"), text
        for exponent in (127, 124, 131):
            rng = random.Random(f"{text} {exponent}")
            made = waves(
                target("gfx950"),
                {0: 0xDEADBEEF, 4: exponent << 23 | 0x7654},
                active=ACTIVE,
                mode=OVERFLOW if saturates else 0,
            )
            values: list[list[float]] = [[], []]
            for half in range(2):
                codes = interesting(form(small, "gfx950"), 64, rng)
                if wide == "f32":
                    made.vector[2 + half] = np.array(codes, np.uint32)
                    values[half] = [f32(code) for code in codes]
                    continue
                narrow = [
                    bits16(math.nan if math.isnan(f32(c)) else F16.rounded(f32(c)))
                    if wide == "f16"
                    else c >> 16
                    for c in codes
                ]
                values[half] = [WIDE[wide].decode(code) for code in narrow]
                shifted = np.array(narrow, np.uint32) << np.uint32(16 * half)
                made.vector[2] = shifted if half == 0 else made.vector[2] | shifted
            execute(text, target("gfx950"), made)
            for lane in range(64):
                got = int(made.vector[0, 0, lane])
                if not made.active[0, lane]:
                    assert got == 0xDEADBEEF
                    continue
                first = 2 * size * place
                others = ~((1 << 2 * size) - 1 << first)
                assert got & others == 0xDEADBEEF & others & 0xFFFFFFFF, text
                for half in range(2):
                    x = values[half][lane]
                    if math.isnan(x) and small == "fp4":
                        continue  # what NaN becomes is not known
                    if math.isfinite(x) and x:
                        exact: float | Fraction = Fraction(x) / Fraction(2) ** (exponent - 127)
                    else:
                        exact = x
                    if isinstance(exact, Fraction):
                        rounded = form(small, "gfx950").rounded(exact)
                        wanted = encoded(
                            form(small, "gfx950"), math.copysign(rounded, x), saturates
                        )
                    else:
                        wanted = encoded(form(small, "gfx950"), exact, saturates)
                    part = got >> first + size * half & (1 << size) - 1
                    assert small_equal(form(small, "gfx950"), part, wanted), (
                        f"{text} of {x} by 2**{exponent - 127}: {part:#x}"
                    )
