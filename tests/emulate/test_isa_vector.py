"""Each vector instruction alone, in each encoding, against a statement of its meaning in one lane
(`vector_statements`), over random and extreme inputs, in active and inactive lanes."""

from __future__ import annotations

import random

import numpy as np
import pytest
from exact import code, edges, is_nan, value
from one import OVERFLOW, execute, target, waves
from spelling import exists, spelt
from vector_statements import STATEMENTS, Statement, permuted

from tilewright.emulate.waves import Waves

KEEPS_HIGH = {"v_bitop3_b16"}
"""Of CDNA's 16-bit results, those that leave the upper half alone."""
SEED = 20260917


def registers(kind: str, first: int, file: str = "v") -> str:
    if kind in ("u64", "i64"):
        return f"{file}[{first}:{first + 1}]"
    return f"{file}{first}"


def operands(name: str, statement: Statement) -> str:
    """The operands of a test: the result in register 0, sources from register 2 on."""
    if name.startswith("v_accvgpr"):
        into, from_ = {"read": "va", "write": "av", "mov": "aa"}[name[10:].split("_b32")[0]]
        return f"{into}0, {from_}2"
    explicit = statement.sources[: len(statement.sources) - statement.accumulates]
    sources = [registers(kind, 2 + 2 * i) for i, kind in enumerate(explicit)]
    result = statement.result if statement.result[0] != "2" else "u32"
    return ", ".join([registers(result, 0), *sources])


def draw(
    statement: Statement, gpu: str, rng: random.Random, active: int | None, mode: int = 0
) -> tuple[Waves, list[list[int]]]:
    """Waves with random sources, and the sources' bits lane by lane."""
    made = waves(target(gpu), count=2, active=active, mode=mode)
    made.vector[0:2] = np.array(
        [rng.getrandbits(32) for _ in range(made.vector[0:2].size)], np.uint32
    ).reshape(made.vector[0:2].shape)
    drawn = []
    for number, kind in enumerate(statement.sources):
        at = 2 + 2 * number
        if statement.accumulates and number == len(statement.sources) - 1:
            at = 0
        pick = edges(kind)
        bits = [pick(rng) for _ in range(made.count * made.lanes)]
        shape = (made.count, made.lanes)
        made.vector[at] = np.array([x & 0xFFFFFFFF for x in bits], np.uint32).reshape(shape)
        made.vector[at + 1] = np.array([x >> 32 for x in bits], np.uint32).reshape(shape)
        if at + 256 < len(made.vector):  # the accumulation registers of the same number
            made.vector[at + 256] = made.vector[at]
        drawn.append(bits)
    return made, drawn


def same(kind: str, got: int, wanted: int) -> bool:
    """Whether two results are the same bits, or both NaN; of two packed numbers, each half."""
    if kind[0] == "2":
        return all(same(kind[1:], got >> at & 0xFFFF, wanted >> at & 0xFFFF) for at in (0, 16))
    return got == wanted or (is_nan(kind, got) and is_nan(kind, wanted))


def check(statement: Statement, gpu: str, text: str, active: int | None, mode: int = 0) -> None:
    """Execute a text, and compare every lane."""
    rng = random.Random(f"{SEED} {text} {gpu}")
    made, drawn = draw(statement, gpu, rng, active, mode)
    place = 256 if text.split()[1].startswith("a") else 0
    before = made.vector[place : place + 2].copy()
    execute(text, target(gpu), made)
    after = made.vector[place : place + 2]
    kind = statement.result
    base = text.split()[0].removesuffix("_e32").removesuffix("_e64")
    for number in range(made.count * made.lanes):
        wave, lane = divmod(number, made.lanes)
        old = int(before[0, wave, lane]) | int(before[1, wave, lane]) << 32
        got = int(after[0, wave, lane]) | int(after[1, wave, lane]) << 32
        sources = [
            value(each, bits[number]) for each, bits in zip(statement.sources, drawn, strict=True)
        ]
        if not made.active[wave, lane]:
            assert got == old, f"{text}: an inactive lane was written"
            continue
        result = statement.function(*sources)
        wanted = int(result) if kind[0] == "2" else code(kind, result)
        size = 32 if kind[0] == "2" else 16 if kind == "bf16" else int(kind[1:])
        said = f"{text} of {sources} on {gpu}: {got:#x} instead of {wanted:#x}"
        low = (1 << size) - 1
        assert same(kind, got & low, wanted & low), said
        if size == 16:
            zeroed = gpu in ("gfx90a", "gfx942", "gfx950") and base not in KEEPS_HIGH
            kept = 0 if zeroed else old >> 16 & 0xFFFF
            assert got >> 16 & 0xFFFF == kept, f"{said}; upper half {got >> 16 & 0xFFFF:#x}"
        if size <= 32:
            assert got >> 32 == old >> 32, f"{text} writes the next register"


@pytest.mark.grid(40)
@pytest.mark.parametrize("name", STATEMENTS)
def test_meaning(name: str) -> None:
    statement = STATEMENTS[name]
    texts = spelt(name, operands(name, statement))
    assert texts, f"no GPU has {name}"
    for gpu, text in texts:
        check(statement, gpu, text, None)
        check(statement, gpu, text, 0x9669_F00D_1234_8001)


def test_a_constant_in_every_place() -> None:
    """Constants are bits for integers, and values or bits for floats."""
    cases = [
        ("v_add_u32_e32 v0, -16, v2", 0xFFFFFFF0 + 5),
        ("v_add_u32_e32 v0, 1.0, v2", 0x3F800000 + 5),
        ("v_add_u32_e32 v0, 0xdeadbeef, v2", 0xDEADBEEF + 5),
        ("v_mul_f32_e32 v0, 2.0, v2", 10),
        ("v_mul_f32_e32 v0, 0x40000000, v2", 10),
        ("v_or_b32_e32 v0, 0.15915494, v2", 0x3E22F983 | 5),
        ("v_mul_f16_e32 v0, 2.0, v2", 10),
        ("v_mul_f16_e32 v0, 0x4000, v2", 10),
        ("v_lshlrev_b16_e32 v0, -15, v2", 10),
    ]
    for text, wanted in cases:
        assert exists(text, "gfx942"), text
        made = waves(target("gfx942"), {2: 5})
        execute(text, target("gfx942"), made)
        assert (made.vector[0] == wanted).all(), (text, hex(int(made.vector[0, 0, 0])))


def test_scalar_sources() -> None:
    made = waves(target("gfx942"), {2: 5}, {7: [100, 200]}, count=2)
    execute("v_add_u32_e32 v0, s7, v2", target("gfx942"), made)
    assert (made.vector[0] == [[105], [205]]).all()
    execute("v_lshl_add_u64 v[0:1], s[6:7], 1, v[0:1]", target("gfx942"), made)
    assert (made.vector[1, :, 0] >= [200, 400]).all()


def test_bytes_that_all_lanes_choose_alike() -> None:
    rng = random.Random(SEED)
    for _ in range(200):
        chosen = int.from_bytes(bytes(rng.choice((*range(16), 255)) for _ in range(4)), "little")
        made = waves(target("gfx942"), {2: np.arange(64) * 0x9E3779B1 % 2**32, 3: 0x8010F0C3})
        execute(f"v_perm_b32 v0, v2, v3, {chosen:#x}", target("gfx942"), made)
        for lane in (0, 1, 17, 63):
            wanted = permuted(int(made.vector[2, 0, lane]), 0x8010F0C3, chosen)
            assert made.vector[0, 0, lane] == wanted, hex(chosen)


def test_a_register_as_source_and_destination() -> None:
    made = waves(target("gfx942"), {2: 3, 3: 5, 4: 1})
    execute("v_lshlrev_b64 v[2:3], v4, v[2:3]", target("gfx942"), made)
    assert made.vector[2:4, 0, 0].tolist() == [6, 10]


@pytest.mark.parametrize("active", [None, 0x5555_5555_5555_5555])
def test_fp16_overflow_mode(active: int | None) -> None:
    """With FP16_OVFL, what is too large for fp16 becomes its largest number; infinity stays."""
    big, infinite = 0x49742400, 0x7F800000  # 1e6
    for text, wanted in [
        ("v_cvt_f16_f32_e32 v0, v2", 0x7BFF),
        ("v_cvt_f16_f32_e64 v0, -v2", 0xFBFF),
        ("v_cvt_f16_f32_e32 v0, v3", 0x7C00),
        ("v_mul_f16_e32 v0, v4, v4", 0x7BFF),
        ("v_mul_f16_e32 v0, v5, v4", 0x7C00),
        ("v_pk_mul_f16 v0, v4, v4 op_sel_hi:[0,0]", 0x7BFF7BFF),
        ("v_fma_mixlo_f16 v0, v2, v2, v2", 0x7BFF),
    ]:
        made = waves(
            target("gfx942"),
            {0: 0, 2: big, 3: infinite, 4: 0x7800, 5: 0x7C00},
            active=active,
            mode=OVERFLOW,
        )
        execute(text, target("gfx942"), made)
        assert (made.vector[0][made.active] == wanted).all(), text
        assert (made.vector[0][~made.active] == 0).all(), text
