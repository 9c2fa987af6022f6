"""Comparisons, selections and carries: instructions that read or write a bit for each lane."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from exact import edges, f32, signed, value
from one import execute, target, waves
from spelling import spelt
from test_isa_vector import SEED

from tilewright.emulate.waves import Waves
from tilewright.listing.operand import EXEC, VCC

ACTIVE = (None, 0x9669_F00D_1234_8001)
ASKED: dict[str, Callable[[float, float], bool]] = {
    "lt": lambda a, b: a < b,
    "eq": lambda a, b: a == b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ne": lambda a, b: a != b,
    "ge": lambda a, b: a >= b,
    "lg": lambda a, b: a < b or a > b,
    "o": lambda a, b: not (math.isnan(a) or math.isnan(b)),
    "u": lambda a, b: math.isnan(a) or math.isnan(b),
    "nge": lambda a, b: not a >= b,
    "nlg": lambda a, b: not (a < b or a > b),
    "ngt": lambda a, b: not a > b,
    "nle": lambda a, b: not a <= b,
    "neq": lambda a, b: a != b,
    "nlt": lambda a, b: not a < b,
}
OF_INTEGERS = ("lt", "eq", "le", "gt", "ne", "ge")
OF_FLOATS = tuple(name for name in ASKED if name != "ne")
COMPARISONS = [
    *((name, kind) for kind in ("f16", "f32") for name in OF_FLOATS),
    *((n, k) for k in ("i16", "u16", "i32", "u32", "i64", "u64") for n in OF_INTEGERS),
]
COMPARED = {f"v_{cmp}_{name}_{kind}" for cmp in ("cmp", "cmpx") for name, kind in COMPARISONS}
CARRIES = {
    "v_add_co_u32": lambda a, b, carry: a + b,
    "v_sub_co_u32": lambda a, b, carry: a - b,
    "v_subrev_co_u32": lambda a, b, carry: b - a,
    "v_add_co_ci_u32": lambda a, b, carry: a + b + carry,
    "v_sub_co_ci_u32": lambda a, b, carry: a - b - carry,
    "v_subrev_co_ci_u32": lambda a, b, carry: b - a - carry,
    "v_addc_co_u32": lambda a, b, carry: a + b + carry,
    "v_subb_co_u32": lambda a, b, carry: a - b - carry,
    "v_subbrev_co_u32": lambda a, b, carry: b - a - carry,
}


def mask(made: Waves, register: int, wave: int = 0) -> int:
    """A bit for each lane, as one number."""
    low, high = (int(made.scalar[register + i, wave]) for i in (0, 1))
    return low if made.lanes == 32 else low | high << 32


def name_of(register: int, gpu: str) -> str:
    """A mask's registers, by the width of the GPU's waves."""
    wide = target(gpu).lanes == 64
    if register == VCC:
        return "vcc" if wide else "vcc_lo"
    return f"s[{register}:{register + 1}]" if wide else f"s{register}"


def pair(kind: str, first: int) -> str:
    return f"v[{first}:{first + 1}]" if "64" in kind else f"v{first}"


def fill(made: Waves, at: int, kind: str, rng: random.Random) -> list[int]:
    """Random bits of a kind in a register, or two; the bits lane by lane."""
    pick = edges(kind)
    drawn = [pick(rng) for _ in range(made.count * made.lanes)]
    shape = (made.count, made.lanes)
    made.vector[at] = np.array([x & 0xFFFFFFFF for x in drawn], np.uint32).reshape(shape)
    if "64" in kind:
        made.vector[at + 1] = np.array([x >> 32 for x in drawn], np.uint32).reshape(shape)
    return drawn


def texts(mnemonic: str, operands: Callable[[str], str]) -> list[tuple[str, str]]:
    """`spelt` with operands that depend on the width of waves."""
    found = []
    for gpu, text in spelt(mnemonic, operands("gfx942")):
        if target(gpu).lanes == 64:
            found.append((gpu, text))
    for gpu, text in spelt(mnemonic, operands("gfx1201")):
        if target(gpu).lanes == 32:
            found.append((gpu, text))
    return found


@pytest.mark.grid(21)
@pytest.mark.parametrize(("name", "kind"), COMPARISONS)
def test_comparison(name: str, kind: str) -> None:
    mnemonic = f"v_cmp_{name}_{kind}"
    found = texts(mnemonic, lambda gpu: f"{name_of(VCC, gpu)}, {pair(kind, 2)}, {pair(kind, 4)}")
    found += texts(mnemonic, lambda gpu: f"{name_of(8, gpu)}, {pair(kind, 2)}, {pair(kind, 4)}")
    assert found, mnemonic
    for gpu, text in found:
        for active in ACTIVE:
            rng = random.Random(f"{SEED} {text}")
            made = waves(target(gpu), active=active)
            a, b = fill(made, 2, kind, rng), fill(made, 4, kind, rng)
            execute(text, target(gpu), made)
            got = mask(made, VCC if "vcc" in text else 8)
            for lane in range(made.lanes):
                x, y = value(kind, a[lane]), value(kind, b[lane])
                wanted = bool(made.active[0, lane]) and ASKED[name](x, y)
                assert bool(got >> lane & 1) == wanted, f"{text} of {x}, {y} in lane {lane}"


@pytest.mark.parametrize(("name", "kind"), COMPARISONS)
def test_comparison_that_sets_exec(name: str, kind: str) -> None:
    """gfx9 writes a mask as well; later GPUs write EXEC alone."""
    sources = f"{pair(kind, 2)}, {pair(kind, 4)}"
    found = [
        (gpu, text)
        for gpu, text in texts(
            f"v_cmpx_{name}_{kind}", lambda gpu: sources if gpu == "gfx1201" else f"vcc, {sources}"
        )
    ]
    assert found, name
    for gpu, text in found:
        rng = random.Random(f"{SEED} {text}")
        made = waves(target(gpu), {}, {VCC: 7, VCC + 1: 7}, active=ACTIVE[1])
        a, b = fill(made, 2, kind, rng), fill(made, 4, kind, rng)
        before = made.active.copy()
        execute(text, target(gpu), made)
        wanted = [
            bool(before[0, lane]) and ASKED[name](value(kind, a[lane]), value(kind, b[lane]))
            for lane in range(made.lanes)
        ]
        assert made.active[0].tolist() == wanted, text
        bits = sum(each << lane for lane, each in enumerate(wanted))
        assert mask(made, EXEC) == bits
        assert mask(made, VCC) == (bits if gpu != "gfx1201" and "vcc" in text else mask(made, VCC))
        if "vcc" not in text:
            assert made.scalar[VCC, 0] == 7


def test_fp32_class() -> None:
    """Bits of the second source: signalling and quiet NaN, -inf, negative normal, denormal and
    zero, and the positive ones backwards."""

    def number(code: int) -> int:
        x = f32(code)
        if math.isnan(x):
            return 1 if code & 0x400000 else 0
        size = 0 if math.isinf(x) else 3 if x == 0 else 2 if abs(x) < 2.0**-126 else 1
        return 2 + size if code >> 31 else 9 - size

    for gpu, text in texts("v_cmp_class_f32", lambda gpu: f"{name_of(VCC, gpu)}, v2, v4"):
        made = waves(target(gpu), count=4, active=ACTIVE[1])
        rng = random.Random(SEED)
        a, asked = fill(made, 2, "f32", rng), fill(made, 4, "u32", rng)
        execute(text, target(gpu), made)
        for at, (code, bits) in enumerate(zip(a, asked, strict=True)):
            wave, lane = divmod(at, made.lanes)
            wanted = bool(made.active[wave, lane]) and bits >> number(code) & 1 == 1
            assert bool(mask(made, VCC, wave) >> lane & 1) == wanted, (text, hex(code))


@pytest.mark.parametrize("kind", ["b32", "b16"])
def test_selection(kind: str) -> None:
    """The second source where the bit is set. Signs change as in floats, NaN included."""
    mnemonic, low = f"v_cndmask_{kind}", (1 << int(kind[1:])) - 1
    found = texts(mnemonic, lambda gpu: f"v0, v2, v4, {name_of(VCC, gpu)}")
    found += texts(mnemonic, lambda gpu: f"v0, v2, v4, {name_of(8, gpu)}")
    assert found, kind
    for gpu, text in found:
        for active in ACTIVE:
            rng = random.Random(f"{SEED} {text}")
            chosen = rng.getrandbits(64)
            place = VCC if "vcc" in text else 8
            made = waves(
                target(gpu),
                {0: 0xABCD1234},
                {place: chosen & 0xFFFFFFFF, place + 1: chosen >> 32},
                active=active,
            )
            a, b = fill(made, 2, "u32", rng), fill(made, 4, "u32", rng)
            execute(text, target(gpu), made)
            for lane in range(made.lanes):
                wanted = (b if chosen >> lane & 1 else a)[lane] & low | 0xABCD1234 & ~low
                if not made.active[0, lane]:
                    wanted = 0xABCD1234
                assert int(made.vector[0, 0, lane]) == wanted, f"{text}, lane {lane}"
    made = waves(target("gfx942"), {2: 0x7FC00001, 4: 0x3F800000}, {VCC: 0xF0, VCC + 1: 0})
    execute("v_cndmask_b32_e64 v0, -v2, -|v4|, vcc", target("gfx942"), made)
    assert made.vector[0, 0, [0, 4]].tolist() == [0xFFC00001, 0xBF800000]


@pytest.mark.parametrize("name", CARRIES)
def test_carry(name: str) -> None:
    takes = name not in ("v_add_co_u32", "v_sub_co_u32", "v_subrev_co_u32")

    def operands(gpu: str, into: int, from_: int) -> str:
        base = f"v0, {name_of(into, gpu)}, v2, v4"
        return f"{base}, {name_of(from_, gpu)}" if takes else base

    found = texts(name, lambda gpu: operands(gpu, VCC, VCC))
    found += texts(name, lambda gpu: operands(gpu, 8, 10))
    assert found
    for gpu, text in found:
        for active in ACTIVE:
            rng = random.Random(f"{SEED} {text}")
            into, from_ = (VCC, VCC) if "vcc" in text else (8, 10)
            carries = rng.getrandbits(64)
            made = waves(
                target(gpu),
                {0: 99},
                {from_: carries & 0xFFFFFFFF, from_ + 1: carries >> 32},
                active=active,
            )
            a, b = fill(made, 2, "u32", rng), fill(made, 4, "u32", rng)
            execute(text, target(gpu), made)
            for lane in range(made.lanes):
                total = CARRIES[name](a[lane], b[lane], carries >> lane & 1)
                on = bool(made.active[0, lane])
                assert int(made.vector[0, 0, lane]) == (total % 2**32 if on else 99), text
                over = on and not 0 <= total < 2**32
                assert bool(mask(made, into) >> lane & 1) == over, f"{text}, lane {lane}"


@pytest.mark.parametrize("name", ["v_mad_u64_u32", "v_mad_co_u64_u32"])
def test_wide_product_with_carry(name: str) -> None:
    found = texts(name, lambda gpu: f"v[0:1], {name_of(8, gpu)}, v2, v4, v[6:7]")
    assert found
    for gpu, text in found:
        rng = random.Random(f"{SEED} {text}")
        made = waves(target(gpu), count=2, active=ACTIVE[1])
        a, b, c = (fill(made, at, kind, rng) for at, kind in ((2, "u32"), (4, "u32"), (6, "u64")))
        execute(text, target(gpu), made)
        for at in range(made.count * made.lanes):
            wave, lane = divmod(at, made.lanes)
            if not made.active[wave, lane]:
                assert not mask(made, 8, wave) >> lane & 1
                continue
            total = a[at] * b[at] + c[at]
            got = int(made.vector[0, wave, lane]) | int(made.vector[1, wave, lane]) << 32
            assert got == total % 2**64
            assert mask(made, 8, wave) >> lane & 1 == total >> 64
    made = waves(target("gfx1201"), {2: 3, 4: 4, 6: 5, 7: 0})
    execute("v_mad_co_u64_u32 v[6:7], null, v2, v4, v[6:7]", target("gfx1201"), made)
    assert (made.vector[6] == 17).all()


@pytest.mark.parametrize("name", ["v_mad_i64_i32", "v_mad_co_i64_i32"])
def test_wide_signed_product_with_its_sign(name: str) -> None:
    found = texts(name, lambda gpu: f"v[0:1], {name_of(8, gpu)}, v2, v4, v[6:7]")
    assert found
    for gpu, text in found:
        rng = random.Random(f"{SEED} {text}")
        made = waves(target(gpu), count=2, active=ACTIVE[1])
        a, b, c = (fill(made, at, kind, rng) for at, kind in ((2, "i32"), (4, "i32"), (6, "i64")))
        execute(text, target(gpu), made)
        for at in range(made.count * made.lanes):
            wave, lane = divmod(at, made.lanes)
            if not made.active[wave, lane]:
                assert not mask(made, 8, wave) >> lane & 1
                continue
            total = signed(a[at], 32) * signed(b[at], 32) + signed(c[at], 64)
            got = int(made.vector[0, wave, lane]) | int(made.vector[1, wave, lane]) << 32
            assert got == total % 2**64
            assert mask(made, 8, wave) >> lane & 1 == total >> 64 & 1


@pytest.mark.parametrize("half", ["lo", "hi"])
def test_bits_below_a_lane(half: str) -> None:
    text = f"v_mbcnt_{half}_u32_b32 v0, v2, v4"
    for gpu in ("gfx942", "gfx1201"):
        made = waves(target(gpu), active=ACTIVE[1])
        rng = random.Random(SEED)
        a, b = fill(made, 2, "u32", rng), fill(made, 4, "u32", rng)
        before = made.vector[0].copy()
        execute(text, target(gpu), made)
        for lane in range(made.lanes):
            first = 32 if half == "hi" else 0
            below = sum(a[lane] >> i & 1 for i in range(32) if first + i < lane)
            wanted = (below + b[lane]) % 2**32
            if not made.active[0, lane]:
                wanted = int(before[0, lane])
            assert int(made.vector[0, 0, lane]) == wanted


@pytest.mark.parametrize("width", [16, 32])
@pytest.mark.parametrize("table", [0, 0x6C, 0xC8, 0xE2, 0xF8, 0xFF, 0x96, 0x01])
def test_any_function_of_three_bits(width: int, table: int) -> None:
    for gpu in ("gfx950", "gfx1250"):
        text = f"v_bitop3_b{width} v0, v2, v4, v6 bitop3:{table:#x}"
        made = waves(target(gpu), {0: 0x5A5A5A5A})
        rng = random.Random(SEED)
        a, b, c = (fill(made, at, "u32", rng) for at in (2, 4, 6))
        execute(text, target(gpu), made)
        for lane in range(made.lanes):
            wanted = 0
            for bit in range(32):
                number = (a[lane] >> bit & 1) * 4 + (b[lane] >> bit & 1) * 2 + (c[lane] >> bit & 1)
                wanted |= (table >> number & 1) << bit
            if width == 16:
                wanted = wanted & 0xFFFF | 0x5A5A0000
            assert int(made.vector[0, 0, lane]) == wanted


def test_any_function_of_two_bits() -> None:
    made = waves(target("gfx1250"), {2: 0b1100, 3: 0b1010})
    for table, wanted in [(0x40, 0b1000), (0x54, 0b1110), (0x14, 0b0110)]:
        text = f"v_dual_bitop2_b32 v0, v2, v3 bitop3:{table:#x} :: v_dual_mov_b32 v5, v2"
        execute(text, target("gfx1250"), made)
        assert (made.vector[0] & 0xF == wanted).all()


def test_sums_that_saturate() -> None:
    """The clamp flag of integer sums."""
    cases: list[tuple[str, int, Callable[[int, int], int]]] = [
        ("v_add_u32_e64 v0, v2, v4 clamp", 0, lambda a, b: min(a + b, 2**32 - 1)),
        ("v_sub_u32_e64 v0, v2, v4 clamp", 0, lambda a, b: max(a - b, 0)),
        ("v_subrev_u32_e64 v0, v2, v4 clamp", 0, lambda a, b: max(b - a, 0)),
        ("v_add_i32 v0, v2, v4 clamp", 1, lambda a, b: max(-(2**31), min(a + b, 2**31 - 1))),
        ("v_sub_i32 v0, v2, v4 clamp", 1, lambda a, b: max(-(2**31), min(a - b, 2**31 - 1))),
    ]
    for text, is_signed, wanted in cases:
        made = waves(target("gfx942"))
        rng = random.Random(SEED)
        a, b = fill(made, 2, "u32", rng), fill(made, 4, "u32", rng)
        execute(text, target("gfx942"), made)
        for lane in range(64):
            x, y = a[lane], b[lane]
            if is_signed:
                x, y = signed(x, 32), signed(y, 32)
            assert int(made.vector[0, 0, lane]) == wanted(x, y) % 2**32, text
