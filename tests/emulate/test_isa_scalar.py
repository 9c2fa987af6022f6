"""Each scalar instruction alone, against a statement of its result and of SCC."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from exact import (
    F16,
    F32,
    added,
    code,
    edges,
    fused,
    is_nan,
    larger,
    multiplied,
    signed,
    smaller,
    value,
)
from one import OVERFLOW, execute, one, target, waves
from spelling import CDNA, RDNA, exists
from test_isa_compare import ASKED
from test_isa_floats import APPROXIMATE, flushed, near
from test_isa_vector import SEED

from tilewright.emulate.findings import Findings
from tilewright.emulate.isa.registry import Context
from tilewright.emulate.waves import Waves
from tilewright.errors import UnknownInstruction
from tilewright.listing.operand import EXEC, MODE, VCC

Scc = bool | None
"""What SCC becomes; None: it stays."""

STATEMENTS: dict[str, tuple[str, tuple[str, ...], Callable[..., tuple[float, Scc]]]] = {}


def state(names: str, kinds: str, function: Callable[..., tuple[float, Scc]]) -> None:
    """`function` gives the result, before it wraps, and SCC."""
    result, _, sources = kinds.partition(" = ")
    for name in names.split():
        assert name not in STATEMENTS, name
        STATEMENTS[name] = result, tuple(sources.split()), function


def bits_set(size: int, function: Callable[..., int]) -> Callable[..., tuple[int, bool]]:
    """SCC is whether the result has a bit set."""

    def both(*sources: int) -> tuple[int, bool]:
        made = function(*sources) % 2**size
        return made, made != 0

    return both


def alone(function: Callable[..., float]) -> Callable[..., tuple[float, None]]:
    """SCC stays."""
    return lambda *sources: (function(*sources), None)


def overflow(function: Callable[..., int]) -> Callable[..., tuple[int, bool]]:
    def both(*sources: int) -> tuple[int, bool]:
        made = function(*sources)
        return made, not -(2**31) <= made < 2**31

    return both


U2, I2, Q2 = "u32 = u32 u32", "i32 = i32 i32", "u64 = u64 u64"
state("s_add_u32 s_add_co_u32", U2, lambda a, b: (a + b, a + b >= 2**32))
state("s_sub_u32 s_sub_co_u32", U2, lambda a, b: (a - b, a < b))
state("s_add_i32 s_add_co_i32", I2, overflow(lambda a, b: a + b))
state("s_sub_i32 s_sub_co_i32", I2, overflow(lambda a, b: a - b))
state("s_add_nc_u64", Q2, alone(lambda a, b: a + b))
state("s_sub_nc_u64", Q2, alone(lambda a, b: a - b))
state("s_mul_u64", Q2, alone(lambda a, b: a * b))
state("s_mul_i32", U2, alone(lambda a, b: a * b))
state("s_mul_hi_u32", U2, alone(lambda a, b: a * b // 2**32))
state("s_mul_hi_i32", I2, alone(lambda a, b: a * b // 2**32))
state("s_min_i32", I2, lambda a, b: (min(a, b), a < b))
state("s_max_i32", I2, lambda a, b: (max(a, b), a > b))
state("s_min_u32", U2, lambda a, b: (min(a, b), a < b))
state("s_max_u32", U2, lambda a, b: (max(a, b), a > b))
for size, kinds in ((32, U2), (64, Q2)):
    all_ones = 2**size - 1
    state(f"s_and_b{size}", kinds, bits_set(size, lambda a, b: a & b))
    state(f"s_or_b{size}", kinds, bits_set(size, lambda a, b: a | b))
    state(f"s_xor_b{size}", kinds, bits_set(size, lambda a, b: a ^ b))
    state(f"s_nand_b{size}", kinds, bits_set(size, lambda a, b, m=all_ones: m - (a & b)))
    state(f"s_nor_b{size}", kinds, bits_set(size, lambda a, b, m=all_ones: m - (a | b)))
    state(f"s_xnor_b{size}", kinds, bits_set(size, lambda a, b, m=all_ones: m - (a ^ b)))
    state(
        f"s_andn2_b{size} s_and_not1_b{size}",
        kinds,
        bits_set(size, lambda a, b, m=all_ones: a & (m - b)),
    )
    state(
        f"s_orn2_b{size} s_or_not1_b{size}",
        kinds,
        bits_set(size, lambda a, b, m=all_ones: a | (m - b)),
    )
state("s_lshl_b32", U2, bits_set(32, lambda a, b: a * 2 ** (b % 32)))
state("s_lshr_b32", U2, bits_set(32, lambda a, b: a // 2 ** (b % 32)))
state("s_ashr_i32", "i32 = i32 u32", bits_set(32, lambda a, b: a // 2 ** (b % 32)))
state("s_lshl_b64", "u64 = u64 u32", bits_set(64, lambda a, b: a * 2 ** (b % 64)))
state("s_lshr_b64", "u64 = u64 u32", bits_set(64, lambda a, b: a // 2 ** (b % 64)))
state("s_ashr_i64", "i64 = i64 u32", bits_set(64, lambda a, b: a // 2 ** (b % 64)))


def field(size: int, is_signed: bool) -> Callable[[int, int], int]:
    """Bits from place % size, as many as bits 16 to 22 of the place say."""

    def taken(a: int, place: int) -> int:
        width = min(place >> 16 & 0x7F, size)
        bits = a % 2**size // 2 ** (place % size) % 2**width
        return signed(bits, width) if is_signed and width else bits

    return taken


state("s_bfe_u32", U2, bits_set(32, field(32, False)))
state("s_bfe_i32", "i32 = i32 u32", bits_set(32, field(32, True)))
state("s_bfe_u64", "u64 = u64 u32", bits_set(64, field(64, False)))
state("s_bfe_i64", "i64 = i64 u32", bits_set(64, field(64, True)))
state("s_bfm_b32", U2, alone(lambda a, b: (2 ** (a % 32) - 1) * 2 ** (b % 32)))
state("s_pack_ll_b32_b16", U2, alone(lambda a, b: a % 2**16 + b % 2**16 * 2**16))
state("s_pack_lh_b32_b16", U2, alone(lambda a, b: a % 2**16 + b // 2**16 * 2**16))
state("s_pack_hl_b32_b16", U2, alone(lambda a, b: a // 2**16 + b % 2**16 * 2**16))
state("s_pack_hh_b32_b16", U2, alone(lambda a, b: a // 2**16 + b // 2**16 * 2**16))
state("s_mov_b32", "u32 = u32", alone(lambda a: a))
state("s_mov_b64", "u64 = u64", alone(lambda a: a))
state("s_not_b32", "u32 = u32", bits_set(32, lambda a: -1 - a))
state("s_not_b64", "u64 = u64", bits_set(64, lambda a: -1 - a))
state("s_abs_i32", "i32 = i32", bits_set(32, abs))
state("s_brev_b32", "u32 = u32", alone(lambda a: int(f"{a:032b}"[::-1], 2)))
state("s_bcnt1_i32_b32", "u32 = u32", bits_set(32, lambda a: bin(a).count("1")))
state("s_bcnt1_i32_b64", "u32 = u64", bits_set(32, lambda a: bin(a).count("1")))
for size, kind in ((32, "u32"), (64, "u64")):
    state(
        f"s_ff1_i32_b{size} s_ctz_i32_b{size}",
        f"i32 = {kind}",
        alone(lambda a: (a & -a).bit_length() - 1),
    )
    state(
        f"s_flbit_i32_b{size} s_clz_i32_u{size}",
        f"i32 = {kind}",
        alone(lambda a, size=size: size - a.bit_length() if a else -1),
    )
state("s_sext_i32_i8", "i32 = i32", alone(lambda a: signed(a, 8)))
state("s_sext_i32_i16", "i32 = i32", alone(lambda a: signed(a, 16)))

F2 = "f32 = f32 f32"
state("s_add_f32", F2, alone(lambda a, b: added(F32, a, b)))
state("s_sub_f32", F2, alone(lambda a, b: added(F32, a, -b)))
state("s_mul_f32", F2, alone(lambda a, b: multiplied(F32, a, b)))
state("s_min_num_f32", F2, alone(smaller))
state("s_max_num_f32", F2, alone(larger))


def whole(choose: Callable[[float], int]) -> Callable[[float], float]:
    return lambda a: a if math.isnan(a) or math.isinf(a) else math.copysign(choose(a), a)


state("s_ceil_f32", "f32 = f32", alone(whole(math.ceil)))
state("s_floor_f32", "f32 = f32", alone(whole(math.floor)))
state("s_trunc_f32", "f32 = f32", alone(whole(math.trunc)))
state("s_rndne_f32", "f32 = f32", alone(whole(round)))
state("s_cvt_f32_i32", "f32 = i32", alone(F32.rounded))
state("s_cvt_f32_u32", "f32 = u32", alone(F32.rounded))
state("s_cvt_f32_f16", "f32 = f16", alone(lambda a: a))
state("s_cvt_f16_f32", "f16 = f32", alone(F16.rounded))


def truncated(low: int, high: int) -> Callable[[float], int]:
    return lambda a: 0 if math.isnan(a) else low if a <= low else high if a >= high else int(a)


state("s_cvt_i32_f32", "i32 = f32", alone(truncated(-(2**31), 2**31 - 1)))
state("s_cvt_u32_f32", "u32 = f32", alone(truncated(0, 2**32 - 1)))

COUNT = 96
"""Waves of a test, each with its own scalars."""


def registers(kind: str, first: int) -> str:
    return f"s[{first}:{first + 1}]" if "64" in kind else f"s{first}"


def draw(made: Waves, at: int, kind: str, rng: random.Random) -> list[int]:
    pick = edges(kind)
    drawn = [pick(rng) for _ in range(made.count)]
    made.scalar[at] = np.array([x & 0xFFFFFFFF for x in drawn], np.uint32)
    if "64" in kind:
        made.scalar[at + 1] = np.array([x >> 32 for x in drawn], np.uint32)
    return drawn


def fresh(gpu: str, seed: str, rng: random.Random) -> Waves:
    made = waves(target(gpu), {}, {0: 77, 1: 78}, count=COUNT)
    made.scc[:] = [rng.random() < 0.5 for _ in range(COUNT)]
    return made


def home(text: str) -> str:
    """A GPU that has an instruction."""
    return next(gpu for gpu in (*CDNA, *RDNA) if exists(text, gpu))


@pytest.mark.parametrize("name", STATEMENTS)
def test_meaning(name: str) -> None:
    result, sources, function = STATEMENTS[name]
    operands = [registers(result, 0), *(registers(k, 2 + 2 * i) for i, k in enumerate(sources))]
    text = f"{name} {', '.join(operands)}"
    gpu = home(text)
    rng = random.Random(f"{SEED} {text}")
    made = fresh(gpu, text, rng)
    before = made.scc.copy()
    drawn = [draw(made, 2 + 2 * i, kind, rng) for i, kind in enumerate(sources)]
    execute(text, target(gpu), made)
    for wave in range(COUNT):
        given = [value(kind, bits[wave]) for kind, bits in zip(sources, drawn, strict=True)]
        wanted, scc = function(*given)
        got = int(made.scalar[0, wave]) | int(made.scalar[1, wave]) << 32
        size = 64 if "64" in result else 32  # the upper half of an fp16 result is zero
        low = got % 2**size
        said = f"{text} of {given}: {low:#x}"
        if result in ("f32", "f16") and math.isnan(wanted):
            assert is_nan(result, low), said
        else:
            assert low == code(result, wanted) % 2**size, said
        assert size == 64 or got >> 32 == 78, said
        assert bool(made.scc[wave]) == (bool(before[wave]) if scc is None else scc), said


CARRIES: dict[str, Callable[[int, int, int], int]] = {
    "s_addc_u32": lambda a, b, carry: a + b + carry,
    "s_add_co_ci_u32": lambda a, b, carry: a + b + carry,
    "s_subb_u32": lambda a, b, carry: a - b - carry,
    "s_sub_co_ci_u32": lambda a, b, carry: a - b - carry,
}


@pytest.mark.parametrize("name", CARRIES)
def test_carry(name: str) -> None:
    text = f"{name} s0, s2, s4"
    gpu, rng = home(text), random.Random(text)
    made = fresh(gpu, text, rng)
    carry = made.scc.tolist()
    a, b = draw(made, 2, "u32", rng), draw(made, 4, "u32", rng)
    execute(text, target(gpu), made)
    for wave in range(COUNT):
        total = CARRIES[name](a[wave], b[wave], int(carry[wave]))
        assert int(made.scalar[0, wave]) == total % 2**32
        assert bool(made.scc[wave]) == (not 0 <= total < 2**32)


@pytest.mark.parametrize("size", [32, 64])
def test_selection_by_scc(size: int) -> None:
    kind = f"u{size}"
    for name, text in [
        ("cselect", f"s_cselect_b{size} {registers(kind, 0)}, {registers(kind, 2)}, -1"),
        ("cmov", f"s_cmov_b{size} {registers(kind, 0)}, {registers(kind, 2)}"),
    ]:
        assert exists(text, "gfx942")
        rng = random.Random(text)
        made = fresh("gfx942", text, rng)
        a = draw(made, 2, kind, rng)
        execute(text, target("gfx942"), made)
        for wave in range(COUNT):
            got = int(made.scalar[0, wave]) | int(made.scalar[1, wave]) << 32
            otherwise = 2**64 - 1 if name == "cselect" else 77 | 78 << 32
            wanted = a[wave] if made.scc[wave] else otherwise
            assert got % 2**size == wanted % 2**size, text


INTEGERS = {name: ASKED[name] for name in ("eq", "lg", "lt", "le", "gt", "ge")}
COMPARISONS = [
    *((name, kind) for name in INTEGERS for kind in ("i32", "u32")),
    *(("eq", "u64"), ("lg", "u64")),
    *((name, "f32") for name in ASKED if name != "ne"),
]


@pytest.mark.parametrize(("name", "kind"), COMPARISONS)
def test_comparison(name: str, kind: str) -> None:
    text = f"s_cmp_{name}_{kind} {registers(kind, 2)}, {registers(kind, 4)}"
    gpu, rng = home(text), random.Random(text)
    made = fresh(gpu, text, rng)
    a, b = draw(made, 2, kind, rng), draw(made, 4, kind, rng)
    execute(text, target(gpu), made)
    for wave in range(COUNT):
        x, y = value(kind, a[wave]), value(kind, b[wave])
        assert bool(made.scc[wave]) == ASKED[name](x, y), f"{text} of {x}, {y}"


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("kind", ["i32", "u32"])
@pytest.mark.parametrize("constant", ["0x7f", "0xff80"])
def test_comparison_with_a_short_constant(name: str, kind: str, constant: str) -> None:
    """16 bits, extended by their sign where the comparison is of signed numbers."""
    text = f"s_cmpk_{name}_{kind} s2, {constant}"
    assert exists(text, "gfx942") and exists(text, "gfx1100")
    rng = random.Random(text)
    made = fresh("gfx942", text, rng)
    a = draw(made, 2, kind, rng)
    made.scalar[2, :3] = [0x7F, 0xFF80, 0xFFFFFF80]
    a[:3] = [0x7F, 0xFF80, 0xFFFFFF80]
    execute(text, target("gfx942"), made)
    y = signed(int(constant, 0), 16) if kind == "i32" else int(constant, 0)
    for wave in range(COUNT):
        assert bool(made.scc[wave]) == ASKED[name](value(kind, a[wave]), y), text


@pytest.mark.parametrize("constant", ["5", "0x7fff", "0x8000", "-3", "0xffff"])
def test_short_constants(constant: str) -> None:
    k = signed(int(constant, 0), 16)
    assert one(f"s_movk_i32 s2, {constant}").scalar[2, 0] == k % 2**32
    for name in ("s_addk_i32", "s_addk_co_i32", "s_mulk_i32"):
        text = f"{name} s2, {constant}"
        gpu, rng = home(text), random.Random(text)
        made = fresh(gpu, text, rng)
        before, a = made.scc.copy(), draw(made, 2, "i32", rng)
        execute(text, target(gpu), made)
        for wave in range(COUNT):
            x = signed(a[wave], 32)
            total = x * k if "mul" in name else x + k
            assert int(made.scalar[2, wave]) == total % 2**32, text
            over = not -(2**31) <= total < 2**31
            assert bool(made.scc[wave]) == (bool(before[wave]) if "mul" in name else over), text


@pytest.mark.parametrize("wanted", [0, 1])
def test_one_bit(wanted: int) -> None:
    text = f"s_bitcmp{wanted}_b32 s2, s4"
    rng = random.Random(text)
    made = fresh("gfx942", text, rng)
    a, b = draw(made, 2, "u32", rng), draw(made, 4, "u32", rng)
    execute(text, target("gfx942"), made)
    for wave in range(COUNT):
        assert bool(made.scc[wave]) == ((a[wave] >> b[wave] % 32 & 1) == wanted)


@pytest.mark.parametrize("sets", [0, 1])
@pytest.mark.parametrize("size", [32, 64])
def test_a_bit_is_set_or_cleared(sets: int, size: int) -> None:
    kind = f"u{size}"
    text = f"s_bitset{sets}_b{size} {registers(kind, 2)}, s4"
    assert exists(text, "gfx90a") and exists(text, "gfx1201")
    rng = random.Random(text)
    made = fresh("gfx90a", text, rng)
    a, b = draw(made, 2, kind, rng), draw(made, 4, "u32", rng)
    execute(text, target("gfx90a"), made)
    for wave in range(COUNT):
        digits = list(f"{a[wave]:0{size}b}"[::-1])
        digits[b[wave] % size] = str(sets)
        got = int(made.scalar[2, wave]) | (int(made.scalar[3, wave]) << 32 if size == 64 else 0)
        assert got == int("".join(digits[::-1]), 2)


SAVING: dict[str, Callable[[int, int], int]] = {
    "and": lambda s, e: s & e,
    "or": lambda s, e: s | e,
    "xor": lambda s, e: s ^ e,
    "andn2": lambda s, e: s & ~e,
    "and_not1": lambda s, e: s & ~e,
    "orn2": lambda s, e: s | ~e,
    "or_not1": lambda s, e: s | ~e,
    "andn1": lambda s, e: ~s & e,
    "and_not0": lambda s, e: ~s & e,
    "orn1": lambda s, e: ~s | e,
    "or_not0": lambda s, e: ~s | e,
}


@pytest.mark.parametrize("name", SAVING)
def test_exec_is_saved_and_changed(name: str) -> None:
    """The source may be the destination."""
    seen = False
    for gpu, size in (("gfx942", 64), ("gfx1100", 32)):
        into, from_ = (registers(f"u{size}", at) for at in (2, 4))
        for text, at in [
            (f"s_{name}_saveexec_b{size} {into}, {from_}", 4),
            (f"s_{name}_saveexec_b{size} {into}, {into}", 2),
        ]:
            if not exists(text, gpu):
                continue
            seen = True
            for given, active in ((0xF0F0_1234_5678_FFFF, 0x8421_0000_FFFF_0F0F), (0, 2**64 - 1)):
                made = waves(
                    target(gpu),
                    {},
                    {at: given & 0xFFFFFFFF, at + 1: given >> 32},
                    active=active % 2**size,
                )
                execute(text, target(gpu), made)
                saved, now = (
                    (int(made.scalar[r, 0]) | int(made.scalar[r + 1, 0]) << 32) % 2**size
                    for r in (2, EXEC)
                )
                wanted = SAVING[name](given, active) % 2**size
                assert (saved, now) == (active % 2**size, wanted), text
                assert bool(made.scc[0]) == (wanted != 0)
                bits = [bool(wanted >> lane & 1) for lane in range(made.lanes)]
                assert made.active[0].tolist() == bits
    assert seen, name


def test_special_registers() -> None:
    made = one("s_mov_b64 exec, s[2:3]", scalar={2: 0xF, 3: 0})
    assert made.active[0].sum() == 4 and not made.full
    made = one("s_mov_b32 exec_lo, s2", "gfx1201", scalar={2: 0xFF})
    assert made.active[0].sum() == 8
    assert one("s_mov_b32 exec_hi, 0").active[0].sum() == 32
    assert one("s_and_b64 vcc, exec, s[2:3]", scalar={2: 5, 3: 0}).scalar[VCC, 0] == 5
    assert one("s_mov_b32 m0, -1").scalar[124, 0] == 0xFFFFFFFF
    assert one("s_mov_b32 s2, ttmp9", "gfx1201", scalar={117: 9}).scalar[2, 0] == 9
    made = one("s_add_co_i32 null, s2, s2", "gfx1201", scalar={2: 0x7FFFFFFF})
    assert made.scc[0]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("s_mov_b64 s[0:1], -1", 2**64 - 1),
        ("s_mov_b64 s[0:1], 1.0", 0x3FF0000000000000),
        ("s_mov_b64 s[0:1], 0xffff0000", 0xFFFF0000),
        ("s_mov_b64 s[0:1], src_scc", 1),
        ("s_add_nc_u64 s[0:1], s[2:3], 0x80000000", 0x80000005),
    ],
)
def test_constants_of_64_bits(text: str, wanted: int) -> None:
    made = one(text, home(text), scalar={2: 5, 3: 0}, scc=True)
    assert int(made.scalar[0, 0]) | int(made.scalar[1, 0]) << 32 == wanted


@pytest.mark.parametrize("name", ["s_fmaak_f32", "s_fmamk_f32", "s_fmac_f32"])
def test_fused_products(name: str) -> None:
    operands = {
        "s_fmaak_f32": "s6, s2, s4, 0x3fb8aa3b",
        "s_fmamk_f32": "s6, s2, 0x3fb8aa3b, s4",
        "s_fmac_f32": "s6, s2, s4",
    }[name]
    text = f"{name} {operands}"
    assert exists(text, "gfx1201"), text
    rng = random.Random(text)
    made = fresh("gfx1201", text, rng)
    a, b, c = (draw(made, at, "f32", rng) for at in (2, 4, 6))
    execute(text, target("gfx1201"), made)
    k = F32.decode(0x3FB8AA3B)
    for wave in range(COUNT):
        x, y, z = (F32.decode(each[wave]) for each in (a, b, c))
        wanted = {
            "s_fmaak_f32": lambda x=x, y=y: fused(F32, x, y, k),
            "s_fmamk_f32": lambda x=x, y=y: fused(F32, x, k, y),
            "s_fmac_f32": lambda x=x, y=y, z=z: fused(F32, x, y, z),
        }[name]()
        got = int(made.scalar[6, wave])
        assert is_nan("f32", got) if math.isnan(wanted) else got == code("f32", wanted), text


@pytest.mark.parametrize("name", [name for name in APPROXIMATE if name != "rcp_iflag"])
def test_approximate_functions_of_scalars(name: str) -> None:
    text = f"v_s_{name}_f32 s0, s2"
    assert exists(text, "gfx1201"), text
    values = [1.0, 0.5, 3.0, 100.0, 2.0**-130, 7.25]
    made = waves(target("gfx1201"), {}, {2: [code("f32", x) for x in values]}, count=len(values))
    execute(text, target("gfx1201"), made)
    for wave, x in enumerate(values):
        exact = APPROXIMATE[name](flushed(x))
        assert near(F32.decode(int(made.scalar[0, wave])), flushed(exact)), x


def test_fp16_overflow_mode_is_set_and_cleared() -> None:
    for gpu, name in [("gfx942", "HW_REG_MODE"), ("gfx1201", "HW_REG_WAVE_MODE")]:
        for bit in (1, 0):
            text = f"s_setreg_imm32_b32 hwreg({name}, 23, 1), {bit}"
            assert exists(text, gpu), text
            made = one(text, gpu, mode=0x10 | (0 if bit else OVERFLOW))
            assert made.scalar[MODE, 0] == (0x10 | OVERFLOW if bit else 0x10)
    made = one("s_cvt_f16_f32 s0, s2", "gfx1201", scalar={2: 0x49742400}, mode=OVERFLOW)
    assert made.scalar[0, 0] == 0x7BFF


def test_clusters() -> None:
    """No workgroup is of a cluster."""
    text = "s_getreg_b32 s2, hwreg(HW_REG_IB_STS2, 6, 4)"
    assert exists(text, "gfx1250")
    assert one(text, "gfx1250").scalar[2, 0] == 0


def test_a_long_branch() -> None:
    """The program counter, differences of labels added to it, and a jump there."""
    for forward in (True, False):
        labels = {".Lpost_getpc0": 11, ".LBB0_7": 500 if forward else 3}
        context = Context(target("gfx1201"), Findings(), labels)
        made = waves(target("gfx1201"), count=2)
        difference = "(.LBB0_7-.Lpost_getpc0)"
        for index, text in enumerate(
            [
                "s_getpc_b64 s[2:3]",
                f"s_add_co_u32 s2, s2, {difference}&4294967295",
                f"s_add_co_ci_u32 s3, s3, {difference}>>32",
                "s_setpc_b64 s[2:3]",
            ],
            10,
        ):
            assert execute(text, target("gfx1201"), made, context, index) is None
        assert made.position == labels[".LBB0_7"]


def test_a_long_branch_in_one_instruction() -> None:
    for forward in (True, False):
        labels = {".Lpost_addpc0": 11, ".LBB0_7": 500 if forward else 3}
        context = Context(target("gfx1250"), Findings(), labels)
        made = waves(target("gfx1250"), count=2)
        text = "s_add_pc_i64 .LBB0_7-.Lpost_addpc0"
        assert execute(text, target("gfx1250"), made, context, 10) is None
        assert made.position == labels[".LBB0_7"]
    with pytest.raises(UnknownInstruction, match="a difference of labels only"):
        execute("s_add_pc_i64 s[2:3]", target("gfx1250"), made, context, 10)
