"""Packed and mixed-precision instructions, with every choice of halves and signs."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from exact import (
    BF16,
    F16,
    F32,
    added,
    bits16,
    bits32,
    edges,
    f32,
    fused,
    larger,
    multiplied,
    signed,
    smaller,
)
from one import execute, target, waves
from spelling import CDNA, RDNA, exists
from test_isa_vector import SEED

from tilewright.emulate.waves import Waves

HALVES: dict[str, tuple[int, str, Callable[..., float]]] = {
    "v_pk_add_f16": (2, "f16", lambda a, b: added(F16, a, b)),
    "v_pk_mul_f16": (2, "f16", lambda a, b: multiplied(F16, a, b)),
    "v_pk_fma_f16": (3, "f16", lambda a, b, c: fused(F16, a, b, c)),
    "v_pk_min_f16": (2, "f16", smaller),
    "v_pk_max_f16": (2, "f16", larger),
    "v_pk_min_num_f16": (2, "f16", smaller),
    "v_pk_max_num_f16": (2, "f16", larger),
    "v_pk_add_u16": (2, "u16", lambda a, b: a + b),
    "v_pk_sub_u16": (2, "u16", lambda a, b: a - b),
    "v_pk_add_i16": (2, "i16", lambda a, b: a + b),
    "v_pk_sub_i16": (2, "i16", lambda a, b: a - b),
    "v_pk_mul_lo_u16": (2, "u16", lambda a, b: a * b),
    "v_pk_mad_u16": (3, "u16", lambda a, b, c: a * b + c),
    "v_pk_min_u16": (2, "u16", min),
    "v_pk_max_u16": (2, "u16", max),
    "v_pk_min_i16": (2, "i16", min),
    "v_pk_max_i16": (2, "i16", max),
    "v_pk_lshlrev_b16": (2, "u16", lambda a, b: b * 2 ** (a % 16)),
    "v_pk_lshrrev_b16": (2, "u16", lambda a, b: b // 2 ** (a % 16)),
    "v_pk_ashrrev_i16": (2, "i16", lambda a, b: b // 2 ** (a % 16)),
}
PAIRS: dict[str, tuple[int, Callable[..., float]]] = {
    "v_pk_add_f32": (2, lambda a, b: added(F32, a, b)),
    "v_pk_mul_f32": (2, lambda a, b: multiplied(F32, a, b)),
    "v_pk_fma_f32": (3, lambda a, b, c: fused(F32, a, b, c)),
}
ACTIVE = 0x9669_F00D_1234_8001


def stated(name: str, bits: tuple[int, ...]) -> str:
    return f" {name}:[{','.join(map(str, bits))}]"


def choices(count: int, signs: bool) -> list[tuple[str, list[tuple[int, ...]]]]:
    """Modifiers as text and as bits: op_sel, op_sel_hi, neg_lo, neg_hi."""
    zeros, ones = (0,) * count, (1,) * count
    flips = [bits for bits in itertools.product((0, 1), repeat=count) if any(bits)]
    found = [("", [zeros, ones, zeros, zeros])]
    for bits in flips:
        rest = tuple(1 - each for each in bits)
        found.append((stated("op_sel", bits), [bits, ones, zeros, zeros]))
        found.append((stated("op_sel_hi", rest), [zeros, rest, zeros, zeros]))
        if signs:
            found.append((stated("neg_lo", bits), [zeros, ones, bits, zeros]))
            found.append((stated("neg_hi", bits), [zeros, ones, zeros, bits]))
    return found


def homes(text: str) -> list[str]:
    """The first GPU of each line that has an instruction."""
    found = []
    for line in (CDNA, RDNA):
        found += [gpu for gpu in line if exists(text, gpu)][:1]
    return found


def fill(made: Waves, at: int, kind: str, rng: random.Random) -> list[int]:
    pick = edges(kind)
    drawn = [pick(rng) for _ in range(made.lanes)]
    made.vector[at] = np.array(drawn, np.uint32)
    return drawn


def equal16(got: int, wanted: float) -> bool:
    return math.isnan(F16.decode(got)) if math.isnan(wanted) else got == bits16(wanted)


@pytest.mark.parametrize("name", HALVES)
def test_halves(name: str) -> None:
    count, kind, function = HALVES[name]
    names = ", ".join(f"v{2 + i}" for i in range(count))
    seen = False
    for modifiers, (low, high, negate_low, negate_high) in choices(count, kind == "f16"):
        text = f"{name} v0, {names}{modifiers}"
        for gpu in homes(text):
            seen = True
            rng = random.Random(f"{SEED} {text}")
            made = waves(target(gpu, ieee=False), {0: 5}, active=ACTIVE)
            drawn = [fill(made, 2 + i, kind, rng) for i in range(count)]
            execute(text, target(gpu, ieee=False), made)
            for lane in range(made.lanes):
                got = int(made.vector[0, 0, lane])
                if not made.active[0, lane]:
                    assert got == 5
                    continue
                for half, (chosen, negated) in enumerate(((low, negate_low), (high, negate_high))):
                    codes = [
                        (drawn[i][lane] >> 16 * chosen[i] & 0xFFFF) ^ 0x8000 * negated[i]
                        for i in range(count)
                    ]
                    part = got >> 16 * half & 0xFFFF
                    if kind == "f16":
                        wanted = function(*map(F16.decode, codes))
                        assert equal16(part, wanted), f"{text} of {codes}"
                    else:
                        if kind == "i16":
                            codes = [signed(each, 16) for each in codes]
                        assert part == int(function(*codes)) % 2**16, f"{text} of {codes}"
    assert seen, name


@pytest.mark.parametrize("name", PAIRS)
def test_pairs(name: str) -> None:
    count, function = PAIRS[name]
    names = ", ".join(f"v[{2 + 2 * i}:{3 + 2 * i}]" for i in range(count))
    for modifiers, (low, high, negate_low, negate_high) in choices(count, True):
        text = f"{name} v[0:1], {names}{modifiers}"
        gpus = [gpu for gpu in ("gfx90a", "gfx1250") if exists(text, gpu)]
        assert "gfx90a" in gpus, text
        for gpu in gpus:
            rng = random.Random(f"{SEED} {text}")
            made = waves(target(gpu), {0: 5, 1: 6}, active=ACTIVE)
            drawn = [fill(made, 2 + i, "f32", rng) for i in range(2 * count)]
            execute(text, target(gpu), made)
            for lane in range(made.lanes):
                for half, (chosen, negated) in enumerate(((low, negate_low), (high, negate_high))):
                    got = int(made.vector[half, 0, lane])
                    if not made.active[0, lane]:
                        assert got == 5 + half
                        continue
                    codes = [
                        drawn[2 * i + chosen[i]][lane] ^ negated[i] << 31 for i in range(count)
                    ]
                    wanted = function(*map(f32, codes))
                    right = math.isnan(f32(got)) if math.isnan(wanted) else got == bits32(wanted)
                    assert right, f"{text} of {[f32(each) for each in codes]}: {f32(got)}"


def test_a_signalling_nan_of_a_packed_minimum() -> None:
    """In IEEE mode it gives NaN; otherwise the number wins."""
    for ieee in (True, False):
        gpu = target("gfx942", ieee=ieee)
        made = waves(gpu, {2: 0x7C013C00, 3: 0x40007C01})
        execute("v_pk_min_f16 v0, v2, v3", gpu, made)
        halves = [int(made.vector[0, 0, 0]) >> at & 0xFFFF for at in (0, 16)]
        assert [math.isnan(F16.decode(each)) for each in halves] == [ieee, ieee]
        assert ieee or halves == [0x3C00, 0x4000]


def test_constants_and_scalars_of_packed_instructions() -> None:
    """A constant stands in the lower half; op_sel_hi must choose it for the upper result too."""
    made = waves(target("gfx942"), {2: 0x40003C00}, {6: 0x4000, 7: 0xBF800000})
    for text, wanted in [
        ("v_pk_mul_f16 v0, v2, 2.0 op_sel_hi:[1,0]", 0x44004000),
        ("v_pk_mul_f16 v0, v2, 2.0", 0x00004000),
        ("v_pk_mul_f16 v0, v2, s6 op_sel_hi:[1,0]", 0x44004000),
        ("v_pk_add_u16 v0, v2, 1 op_sel_hi:[1,0]", 0x40013C01),
        ("v_pk_lshrrev_b16 v0, 8, v2 op_sel_hi:[0,1]", 0x0040003C),
    ]:
        assert exists(text, "gfx942"), text
        execute(text, target("gfx942"), made)
        assert (made.vector[0] == wanted).all(), (text, hex(int(made.vector[0, 0, 0])))
    made = waves(
        target("gfx942"), {2: bits32(3.0), 3: bits32(5.0)}, {6: bits32(2.0), 7: bits32(4.0)}
    )
    for text, wanted in [
        ("v_pk_mul_f32 v[0:1], v[2:3], 0.5 op_sel_hi:[1,0]", [1.5, 2.5]),
        ("v_pk_mul_f32 v[0:1], v[2:3], s[6:7]", [6.0, 20.0]),
        ("v_pk_mul_f32 v[0:1], v[2:3], s[6:7] op_sel:[0,1] op_sel_hi:[1,0]", [12.0, 10.0]),
        ("v_pk_add_f32 v[2:3], v[2:3], v[2:3] op_sel:[1,0] op_sel_hi:[0,1]", [8.0, 8.0]),
    ]:
        assert exists(text, "gfx942"), text
        execute(text, target("gfx942"), made)
        first = 2 if "v[2:3], v[2:3], v" in text else 0
        assert made.vector[first : first + 2, 0, 0].view(np.float32).tolist() == wanted, text


@pytest.mark.parametrize("selected", ["", " op_sel:[1,0]", " op_sel:[0,1]", " op_sel:[1,1]"])
def test_two_registers_of_four(selected: str) -> None:
    text = f"v_pk_mov_b32 v[2:3], v[2:3], v[4:5]{selected}"
    assert exists(text, "gfx942")
    made = waves(target("gfx942"), {2: 10, 3: 11, 4: 20, 5: 21})
    execute(text, target("gfx942"), made)
    first = 11 if "[1," in selected else 10
    second = 21 if ",1]" in selected else 20
    assert made.vector[2:4, 0, 0].tolist() == [first, second]


@pytest.mark.parametrize(
    "name", ["v_fma_mix_f32", "v_fma_mixlo_f16", "v_fma_mixhi_f16", "v_fma_mix_f32_bf16"]
)
def test_mixed_precision(name: str) -> None:
    """Each source fp32, or either half in fp16 (bf16); one rounding to fp32, and one more to
    fp16."""
    kind, form = ("bf16", BF16) if name.endswith("bf16") else ("f16", F16)
    for halves in itertools.product((0, 1), repeat=3):
        for high in {(0, 0, 0), halves}:
            sources = ["v2", "-v3", "-|v4|"]
            text = f"{name} v0, {', '.join(sources)}"
            text += (stated("op_sel", high) if any(high) else "") + (
                stated("op_sel_hi", halves) if any(halves) else ""
            )
            for gpu in ("gfx1250",) if kind == "bf16" else ("gfx942", "gfx1100"):
                assert exists(text, gpu), text
                rng = random.Random(f"{SEED} {text}")
                made = waves(target(gpu), {0: 0xDEADBEEF}, active=ACTIVE)
                drawn = [fill(made, 2 + i, kind if halves[i] else "f32", rng) for i in range(3)]
                execute(text, target(gpu), made)
                for lane in range(made.lanes):
                    values = [
                        form.decode(drawn[i][lane] >> 16 * high[i] & 0xFFFF)
                        if halves[i]
                        else f32(drawn[i][lane])
                        for i in range(3)
                    ]
                    wanted = fused(F32, values[0], -values[1], -abs(values[2]))
                    got = int(made.vector[0, 0, lane])
                    said = f"{text} of {values}: {got:#x}"
                    if not made.active[0, lane]:
                        assert got == 0xDEADBEEF, said
                    elif "mix_f32" in name:
                        assert got == bits32(wanted) or math.isnan(wanted), said
                    else:
                        half = math.nan if math.isnan(wanted) else F16.rounded(wanted)
                        at = 16 if name == "v_fma_mixhi_f16" else 0
                        assert equal16(got >> at & 0xFFFF, half), said
                        assert got >> 16 - at & 0xFFFF == 0xDEADBEEF >> 16 - at & 0xFFFF, said
