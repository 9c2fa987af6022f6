"""Floating-point instructions that need more than one statement: minimum and maximum in IEEE mode,
approximate functions, products with a literal, and division."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from exact import F16, F32, bits32, edges, f32, fused, larger, smaller
from one import execute, target, waves
from spelling import CDNA, RDNA, exists
from test_isa_vector import SEED

from tilewright.emulate.waves import Waves
from tilewright.listing.target import Target


def same(got: float, wanted: float) -> bool:
    if math.isnan(wanted):
        return math.isnan(got)
    return got == wanted and math.copysign(1, got) == math.copysign(1, wanted)


def fill(made: Waves, at: int, kind: str, rng: random.Random) -> list[int]:
    pick = edges(kind)
    drawn = [pick(rng) for _ in range(made.count * made.lanes)]
    made.vector[at] = np.array(drawn, np.uint32).reshape(made.count, made.lanes)
    return drawn


@pytest.mark.parametrize("ieee", [False, True])
@pytest.mark.parametrize("name", ["v_min_f32", "v_max_f32", "v_min_f16", "v_max_f16"])
def test_minimum_and_maximum(name: str, ieee: bool) -> None:
    """In IEEE mode a signalling NaN gives NaN; otherwise a number beats any NaN."""
    choose = smaller if "min" in name else larger
    kind = name[-3:]
    form, quiet = (F32, 0x400000) if kind == "f32" else (F16, 0x200)
    for gpu in ("gfx942", "gfx1100"):
        chosen = target(gpu, ieee=ieee)
        for encoding in ("e32", "e64"):
            text = f"{name}_{encoding} v0, v2, v3"
            assert exists(text, gpu), text
            made = waves(chosen, count=8)
            rng = random.Random(f"{SEED} {text}")
            a, b = fill(made, 2, kind, rng), fill(made, 3, kind, rng)
            execute(text, chosen, made)
            mask = (1 << form.bits) - 1
            for number in range(made.count * made.lanes):
                wave, lane = divmod(number, made.lanes)
                x, y = a[number] & mask, b[number] & mask
                wanted = choose(form.decode(x), form.decode(y))
                if ieee and any(math.isnan(form.decode(c)) and not c & quiet for c in (x, y)):
                    wanted = math.nan
                got = form.decode(int(made.vector[0, wave, lane]) & mask)
                assert same(got, wanted), f"{text} of {x:#x}, {y:#x}"


def _log2(x: float) -> float:
    return -math.inf if x == 0 else math.nan if x < 0 else math.log2(x)


def _reciprocal(x: float) -> float:
    return math.copysign(math.inf, x) if x == 0 else 1 / x


def _root(x: float) -> float:
    return x if x == 0 else math.nan if x < 0 else math.sqrt(x)


def _exp2(x: float) -> float:
    return math.inf if x >= 1024 else 0.0 if x < -1080 else 2.0**x


APPROXIMATE: dict[str, Callable[[float], float]] = {
    "rcp": _reciprocal,
    "rcp_iflag": _reciprocal,
    "rsq": lambda x: _reciprocal(_root(x)) if x >= 0 else math.nan,
    "sqrt": _root,
    "exp": _exp2,
    "log": _log2,
}


def flushed(x: float) -> float:
    return math.copysign(0.0, x) if abs(x) < 2.0**-126 else x


def near(got: float, exact: float) -> bool:
    """Whether an fp32 result is within one unit in the last place, denormals flushed."""
    if math.isnan(exact):
        return math.isnan(got)
    if math.isinf(exact) or abs(exact) >= float(F32.largest) * (1 + 2.0**-24):
        return got == math.copysign(math.inf, exact)
    if abs(exact) < 2.0**-126:
        return abs(got) in (0, 2.0**-126) and math.copysign(1, got) == math.copysign(1, exact)
    step = 2.0 ** (math.frexp(exact)[1] - 24)
    return abs(got - exact) <= step and (got != 0 or exact == 0)


@pytest.mark.parametrize("name", APPROXIMATE)
def test_approximate_functions_of_fp32(name: str) -> None:
    """CDNA3 ISA: one unit in the last place, and denormals are flushed."""
    for gpu in ("gfx942", "gfx1201"):
        text = f"v_{name}_f32_e32 v0, v2"
        assert exists(text, gpu), text
        made = waves(target(gpu), count=16)
        drawn = fill(made, 2, "f32", random.Random(f"{SEED} {text}"))
        execute(text, target(gpu), made)
        for number, code in enumerate(drawn):
            wave, lane = divmod(number, made.lanes)
            x = f32(code)
            wanted = math.nan if math.isnan(x) else math.inf if x == math.inf else None
            if wanted is None or name in ("rcp", "rcp_iflag", "rsq", "exp"):
                special = {math.inf: 0.0 if name != "exp" else math.inf}
                if name in ("rcp", "rcp_iflag"):
                    special[-math.inf] = -0.0
                if name == "exp":
                    special[-math.inf] = 0.0
                if not math.isnan(x):
                    wanted = special.get(x)
                    if wanted is None:
                        wanted = APPROXIMATE[name](flushed(x)) if x != -math.inf else math.nan
            got = f32(int(made.vector[0, wave, lane]))
            assert near(got, flushed(wanted)), f"{text} of {x}: {got}, {wanted}"


@pytest.mark.grid(1)
@pytest.mark.parametrize("name", ["rcp", "rsq", "sqrt", "exp", "log"])
def test_approximate_functions_of_fp16(name: str) -> None:
    """Every fp16 number: rounded correctly, denormals kept."""
    text = f"v_{name}_f16_e32 v0, v2"
    for gpu in ("gfx942", "gfx1100"):
        if not exists(text, gpu):  # later GPUs want named halves
            continue
        made = waves(target(gpu), count=65536 // target(gpu).lanes)
        made.vector[2] = np.arange(65536).reshape(made.vector[2].shape)
        execute(text, target(gpu), made)
        got = (made.vector[0].reshape(-1) & 0xFFFF).tolist()
        for code in range(0, 65536, 7):
            x = F16.decode(code)
            if math.isnan(x) or math.isinf(x):
                continue
            exact = APPROXIMATE[name](x)
            wanted = exact if math.isnan(exact) else F16.rounded(exact)
            assert same(F16.decode(got[code]), wanted), f"{text} of {x}"


@pytest.mark.parametrize("name", ["v_fmaak_f32", "v_fmamk_f32"])
def test_products_with_a_literal(name: str) -> None:
    literal = "0x3fb8aa3b"
    operands = f"v2, v3, {literal}" if name == "v_fmaak_f32" else f"v2, {literal}, v3"
    for gpu in ("gfx950", "gfx1201"):
        text = f"{name} v0, {operands}"
        assert exists(text, gpu), text
        made = waves(target(gpu))
        rng = random.Random(SEED)
        a, b = fill(made, 2, "f32", rng), fill(made, 3, "f32", rng)
        execute(text, target(gpu), made)
        k = f32(0x3FB8AA3B)
        for lane in range(made.lanes):
            x, y = f32(a[lane]), f32(b[lane])
            wanted = fused(F32, x, y, k) if name == "v_fmaak_f32" else fused(F32, x, k, y)
            assert same(f32(int(made.vector[0, 0, lane])), wanted)


DIVISION = """
v_div_scale_f32 v4, {d}, v3, v3, v2
v_div_scale_f32 v5, {vcc}, v2, v3, v2
v_rcp_f32_e32 v6, v4
v_fma_f32 v7, -v4, v6, 1.0
v_fma_f32 v6, v7, v6, v6
v_mul_f32_e32 v8, v5, v6
v_fma_f32 v9, -v4, v8, v5
v_fma_f32 v8, v9, v6, v8
v_fma_f32 v9, -v4, v8, v5
v_div_fmas_f32 v9, v9, v6, v8
v_div_fixup_f32 v0, v9, v3, v2
"""
"""v2 / v3 as the compiler does it."""


def divide(gpu: Target, a: list[int], b: list[int]) -> list[int]:
    made = waves(gpu, count=len(a) // gpu.lanes)
    made.vector[2] = np.array(a, np.uint32).reshape(made.count, made.lanes)
    made.vector[3] = np.array(b, np.uint32).reshape(made.count, made.lanes)
    wide = gpu.lanes == 64
    for line in DIVISION.strip().splitlines():
        masks = {"d": "s[4:5]" if wide else "s4", "vcc": "vcc" if wide else "vcc_lo"}
        text = line.format(**masks)
        assert exists(text, gpu.name), text
        execute(text, gpu, made)
    result: list[int] = made.vector[0].reshape(-1).tolist()
    return result


def number(rng: random.Random, low: int, high: int) -> int:
    """fp32 bits with an exponent field from `low` up to below `high`."""
    return rng.getrandbits(23) | rng.randrange(low, high) << 23 | rng.getrandbits(1) << 31


@pytest.mark.parametrize("gpu", [CDNA[1], RDNA[0]])
def test_division_is_rounded_correctly(gpu: str) -> None:
    """Over the whole range of both: denormal, tiny, ordinary and huge, and special ones."""
    rng = random.Random(SEED)
    ranges = [(0, 3), (1, 30), (20, 40), (110, 140), (100, 160), (220, 255), (252, 255), (0, 255)]
    pairs = []
    for low, high in ranges:
        for first, last in ranges:
            pairs += [[number(rng, low, high), number(rng, first, last)] for _ in range(64)]
    pick = edges("f32")
    pairs += [[pick(rng), pick(rng)] for _ in range(1024)]
    got = divide(target(gpu), [a for a, _ in pairs], [b for _, b in pairs])
    for (a, b), code in zip(pairs, got, strict=True):
        n, d = f32(a), f32(b)
        if math.isnan(n) or math.isnan(d) or (n == 0 == d) or (math.isinf(n) and math.isinf(d)):
            wanted = math.nan
        elif math.isinf(n) or d == 0:
            wanted = math.copysign(math.inf, math.copysign(1, n) * math.copysign(1, d))
        elif math.isinf(d) or n == 0:
            wanted = math.copysign(0.0, math.copysign(1, n) * math.copysign(1, d))
        else:
            quotient = Fraction(n) / Fraction(d)
            wanted = math.copysign(F32.rounded(quotient), quotient)
        assert same(f32(code), wanted), f"{n} / {d}: {f32(code)} instead of {wanted}"


@pytest.mark.parametrize(
    ("n", "d", "scaled_d", "scaled_n", "flag"),
    [
        (1.0, 3.0, 3.0, 1.0, False),
        (2.0**100, 1.0, 2.0**64, 2.0**100, True),
        (2.0**-60, 2.0**-130, 2.0**-66, 2.0**4, False),
        (1.0, 2.0**126.5, 2.0**62.5, 1.0, True),
        (4.0, 2.0**126.5, 2.0**62.5, 2.0**-62, False),
        (2.0**-100, 2.0**40, 2.0**40, 2.0**-36, True),
        (2.0**-110, 2.0**-100, 2.0**-36, 2.0**-46, False),
        (2.0**-60, 2.0**126.75, 2.0**62.75, 2.0**-60, True),
    ],
)
def test_scaling_of_a_division(
    n: float, d: float, scaled_d: float, scaled_n: float, flag: bool
) -> None:
    """The cases of V_DIV_SCALE_F32 in the CDNA3 ISA manual, in its order."""
    made = waves(target("gfx942"), {2: bits32(n), 3: bits32(d)}, active=0xFF)
    execute("v_div_scale_f32 v4, vcc, v3, v3, v2", target("gfx942"), made)
    assert f32(int(made.vector[4, 0, 0])) == f32(bits32(scaled_d))
    assert made.scalar[106, 0] == (0xFF if flag else 0)
    execute("v_div_scale_f32 v4, vcc, v2, v3, v2", target("gfx942"), made)
    assert f32(int(made.vector[4, 0, 0])) == f32(bits32(scaled_n))
    assert made.scalar[106, 0] == (0xFF if flag else 0)


def test_one_rounding_where_two_would_differ() -> None:
    """Products whose float64 sum lies on a tie of fp32, or is denormal."""
    cases = [
        (1 + 2.0**-12, 1 + 2.0**-12, 2.0**-60),
        (1 + 2.0**-12, 1 + 2.0**-12, -(2.0**-60)),
        (1 + 2.0**-23, 1 + 2.0**-1, 2.0**-100),
        (2.0**-70, (1 + 2.0**-23) * 2.0**-60, 2.0**-149),
        (3 * 2.0**-75, 2.0**-75, 2.0**-149),
        (-(2.0**-75), 2.0**-75, 2.0**-149),
        (2.0**-75, 2.0**-75, 0.0),
        (2.0**-75 * (1 + 2.0**-23), 2.0**-75 * (1 - 2.0**-23), 2.0**-127 + 2.0**-149),
    ]
    for a, b, c in cases:
        codes = [bits32(each) for each in (a, b, c)]
        made = waves(target("gfx942"), dict(zip((2, 3, 4), codes, strict=True)))
        execute("v_fma_f32 v0, v2, v3, v4", target("gfx942"), made)
        wanted = fused(F32, *map(f32, codes))
        assert made.vector[0, 0, 0] == bits32(wanted), (a, b, c)
