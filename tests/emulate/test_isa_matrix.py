"""Matrix instructions against an independent statement of where their elements are and of what they
compute: loops over the formulas of AMD's manuals, and exact fractions."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from tilewright.emulate.findings import Findings
from tilewright.emulate.isa.formats import FORMATS
from tilewright.emulate.isa.matrix import MNEMONICS
from tilewright.emulate.isa.registry import Context, executor
from tilewright.emulate.waves import Waves
from tilewright.errors import UnknownInstruction
from tilewright.listing.target import GENERATIONS, Target
from tilewright.listing.text import instruction

WAVES = 2
NAMES = {generation: name for name, generation in GENERATIONS.items()}


def target_of(generation: str) -> Target:
    return Target(NAMES[generation], generation, 64 if generation.startswith("cdna") else 32)


def run(text: str, generation: str, registers: dict[int, np.ndarray]) -> Waves:
    """Execute one instruction on two waves with the same registers."""
    target = target_of(generation)
    waves = Waves(np.zeros(WAVES, int), np.arange(WAVES), target.lanes, 128)
    for number, lanes in registers.items():
        waves.vector[number] = lanes
    executor(instruction(text), Context(target, Findings(), {}))(waves)
    return waves


# Where elements are -------------------------------------------------------------------------------
#
# (lane, bit) of each element, the bit counted from the first register's lowest.


def operand_place(
    generation: str, across: int, depth: int, bits: int, i: int, k: int
) -> Iterator[tuple[int, int]]:
    """The places of A[i][k], or of B[k][i]."""
    if generation.startswith("cdna"):
        # The calculator's formulas: each group of M lanes has K / (64 / M) elements; 32 elements
        # of 8 bits are two times 16.
        groups = 64 // across
        each = depth // groups
        if bits == 8 and each == 32:
            yield i + across * (k // 16 % groups), bits * (k % 16 + (0 if k < depth // 2 else 16))
        else:
            yield i + across * (k // each), bits * (k % each)
    elif generation == "rdna3":
        yield i, bits * k
        yield i + 16, bits * k
    elif generation == "rdna4":
        yield (i, bits * k) if k < depth // 2 else (i + 16, bits * (k - depth // 2))
    else:
        block = {32: 2, 16: 8, 8: 16, 6: 32, 4: 32}[bits]
        pair, rest = divmod(k, 2 * block)
        yield i + (16 if rest >= block else 0), bits * (pair * block + rest % block)


def result_place(generation: str, columns: int, row: int, column: int) -> tuple[int, int]:
    """The (register, lane) of D[row][column]."""
    if generation.startswith("cdna"):
        if columns == 32:
            return row % 4 + 4 * (row // 8), column + 32 * (row // 4 % 2)
        return row % 4, column + 16 * (row // 4)
    if generation == "rdna3":
        return row // 2, column + 16 * (row % 2)
    return row % 8, column + 16 * (row // 8)


# Formats ------------------------------------------------------------------------------------------

FLOATS = {
    # exponent bits, mantissa bits, bias, specials
    "f16": (5, 10, 15, "ieee"),
    "bf16": (8, 7, 127, "ieee"),
    "f32": (8, 23, 127, "ieee"),
    "xf32": (8, 23, 127, "ieee"),
    "e4m3fn": (4, 3, 7, "fn"),
    "e5m2": (5, 2, 15, "ieee"),
    "e4m3fnuz": (4, 3, 8, "fnuz"),
    "e5m2fnuz": (5, 2, 16, "fnuz"),
    "e2m3": (2, 3, 1, "finite"),
    "e3m2": (3, 2, 3, "finite"),
    "e2m1": (2, 1, 1, "finite"),
}


def width(name: str) -> int:
    if name in FLOATS:
        exponent, mantissa, *_ = FLOATS[name]
        return 1 + exponent + mantissa
    return int(name[1:])


def value(name: str, code: int) -> Fraction | float:
    """The number that a code means, by the format's definition."""
    if name[0] in "su":
        bits = width(name)
        return Fraction(code - (1 << bits) if name[0] == "s" and code >> bits - 1 else code)
    exponent_bits, mantissa_bits, bias, special = FLOATS[name]
    if name == "xf32":
        code &= ~0x1FFF
    sign = -1 if code >> (exponent_bits + mantissa_bits) else 1
    exponent = code >> mantissa_bits & (1 << exponent_bits) - 1
    mantissa = code & (1 << mantissa_bits) - 1
    top = (1 << exponent_bits) - 1
    if special == "fnuz" and sign < 0 and exponent == mantissa == 0:
        return math.nan
    if special == "fn" and exponent == top and mantissa == (1 << mantissa_bits) - 1:
        return math.nan
    if special == "ieee" and exponent == top:
        return math.nan if mantissa else sign * math.inf
    if exponent == 0:
        return sign * Fraction(mantissa, 1 << mantissa_bits) * Fraction(2) ** (1 - bias)
    return sign * (1 + Fraction(mantissa, 1 << mantissa_bits)) * Fraction(2) ** (exponent - bias)


def codes(name: str, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """Random codes of finite numbers of moderate size."""
    if name[0] in "su":
        return random.integers(0, 1 << width(name), shape)
    if name in ("f32", "xf32"):
        return random.normal(size=shape).astype(np.float32).view(np.uint32).astype(np.int64)
    if name == "f16":
        return random.normal(size=shape).astype(np.float16).view(np.uint16).astype(np.int64)
    if name == "bf16":
        values = random.normal(size=shape).astype(ml_dtypes.bfloat16)
        return values.view(np.uint16).astype(np.int64)
    finite = [code for code in range(1 << width(name)) if math.isfinite(value(name, code))]
    return random.choice(np.array(finite), shape)


# Instructions -------------------------------------------------------------------------------------

SELECTED = ["e4m3fn", "e5m2", "e2m3", "e3m2", "e2m1"]
WORDS = ["FP8", "BF8", "FP6", "BF6", "FP4"]


def forms(generation: str, name: str) -> Iterator[tuple[str, str, str]]:
    """Modifiers of an instruction, and the formats of A and B that they choose."""
    types = re.fullmatch(r"\w+_[fi]32_\d+x\d+x\d+_?([a-z]\w*)", name)[1].removesuffix("_1k")
    if types == "f8f6f4":
        for a, b in [(0, 0), (1, 0), (0, 1), (2, 3), (4, 4), (0, 4), (3, 1)]:
            stated = f" cbsz:{a} blgp:{b}"
            if generation == "gfx1250":
                stated = f" matrix_a_fmt:MATRIX_FMT_{WORDS[a]} matrix_b_fmt:MATRIX_FMT_{WORDS[b]}"
            yield stated, SELECTED[a], SELECTED[b]
        yield "", "e4m3fn", "e4m3fn"
    elif types.startswith("iu"):
        for a, b in [(1, 1), (0, 1), (1, 0), (0, 0)]:
            yield f" neg_lo:[{a},{b},0]", "us"[a] + types[2:], "us"[b] + types[2:]
    elif "_" in types:
        eights = {"fp8": "e4m3fn", "bf8": "e5m2"}
        if generation == "cdna3":
            eights = {"fp8": "e4m3fnuz", "bf8": "e5m2fnuz"}
        yield "", *(eights[each] for each in types.split("_"))
    else:
        kind = "s8" if types == "i8" else types
        yield "", kind, kind


CASES = [
    (generation, name, *form)
    for generation, names in MNEMONICS.items()
    for name in names
    for form in forms(generation, name)
]


class Wave:
    """Registers of a wave, filled matrix by matrix."""

    def __init__(self, generation: str) -> None:
        self.generation = generation
        self.lanes = target_of(generation).lanes
        self.registers: dict[int, np.ndarray] = {}
        self.next = 0

    def room(self, count: int, random: np.random.Generator) -> str:
        """The next `count` registers, with random contents, as an operand."""
        first, self.next = self.next, self.next + count
        for number in range(first, self.next):
            self.registers[number] = random.integers(0, 1 << 32, self.lanes).astype(np.uint32)
        return f"v{first}" if count == 1 else f"v[{first}:{self.next - 1}]"

    def put(self, first: int, lane: int, bit: int, bits: int, code: int) -> None:
        """Put a code at a bit of a lane, counted from register `first`."""
        for number in range(bits):
            register, place = divmod(bit + number, 32)
            line = self.registers[first + register]
            one = np.uint32(1 << place)
            line[lane] = line[lane] | one if code >> number & 1 else line[lane] & ~one

    def operand(self, matrix: np.ndarray, kind: str, random: np.random.Generator) -> str:
        """Lay out A, or B transposed."""
        across, depth = matrix.shape
        bits = width(kind)
        copies = 2 if self.generation == "rdna3" else 1
        first = self.next
        text = self.room(matrix.size * bits * copies // (32 * self.lanes), random)
        for (i, k), code in np.ndenumerate(matrix):
            for lane, bit in operand_place(self.generation, across, depth, bits, i, k):
                self.put(first, lane, bit, bits, int(code))
        return text

    def result(self, matrix: np.ndarray, random: np.random.Generator) -> str:
        """Lay out C, 32-bit elements."""
        first = self.next
        text = self.room(matrix.size // self.lanes, random)
        for (row, column), code in np.ndenumerate(matrix.view(np.uint32)):
            register, lane = result_place(self.generation, matrix.shape[1], row, column)
            self.registers[first + register][lane] = code
        return text

    def scales(self, exponents: np.ndarray, select: int, random: np.random.Generator) -> str:
        """Lay out the scales of rows of A, or of columns of B: bytes (across, blocks)."""
        first = self.next
        text = self.room(1, random)
        for (i, block), code in np.ndenumerate(exponents):
            if self.generation == "gfx1250":
                self.put(first, i + 16 * select, 8 * block, 8, int(code))
            else:
                self.put(first, i + len(exponents) * block, 8 * select, 8, int(code))
        return text


def laid_out(waves: Waves, generation: str, rows: int, columns: int, kind: type) -> np.ndarray:
    """D of the last wave, whose registers begin at 0."""
    made = np.empty((rows, columns), kind)
    for row in range(rows):
        for column in range(columns):
            register, lane = result_place(generation, columns, row, column)
            made[row, column] = waves.vector[register, WAVES - 1, lane].view(kind)
    return made


def meant(kind: str, matrix: np.ndarray) -> np.ndarray:
    """The numbers that codes mean."""
    return np.array([[float(value(kind, int(code))) for code in line] for line in matrix])


@pytest.mark.grid(11)
@pytest.mark.parametrize(
    ("generation", "name", "modifiers", "a", "b"),
    CASES,
    ids=[f"{case[0]} {case[1]}{case[2]}" for case in CASES],
)
def test_product(generation, name, modifiers, a, b):
    random = np.random.default_rng([ord(each) for each in name + modifiers])
    rows, columns, depth = map(int, re.search(r"_(\d+)x(\d+)x(\d+)", name).groups())
    kind = np.int32 if "_i32_" in name else np.float32
    wave = Wave(generation)
    if kind is np.int32:
        c = random.integers(-(2**31), 2**31, (rows, columns)).astype(np.int32)
    else:
        c = random.normal(size=(rows, columns)).astype(np.float32)
    d = wave.result(c, random)
    codes_a, codes_b = codes(a, (rows, depth), random), codes(b, (columns, depth), random)
    text = f"v_{name} {d}, {wave.operand(codes_a, a, random)}, {wave.operand(codes_b, b, random)}"
    text += f", {d}"
    x, y = meant(a, codes_a), meant(b, codes_b)
    if "_scale_" in name:
        selects = (1, 0) if generation == "gfx1250" else (3, 1)
        for number, matrix in enumerate((x, y)):
            exponents = random.integers(117, 137, (len(matrix), depth // 32))
            matrix *= np.repeat(2.0 ** (exponents - 127), 32, axis=1)
            text += ", " + wave.scales(exponents, selects[number], random)
        if generation == "gfx1250":
            modifiers += " matrix_a_scale:MATRIX_SCALE_ROW1"
        else:
            modifiers = " op_sel:[1,1,0] op_sel_hi:[1,0,0]" + modifiers
    waves = run(text + modifiers, generation, wave.registers)
    got = laid_out(waves, generation, rows, columns, kind)
    exact = x @ y.T + c  # integers below 2^53
    if kind is np.int32:
        assert (got == (exact.astype(np.int64) + 2**31) % 2**32 - 2**31).all()
    else:
        terms = np.abs(x) @ np.abs(y).T + np.abs(c)
        assert (np.abs(got - exact) <= 2.0**-24 * np.abs(exact) + 2.0**-48 * terms).all()


@pytest.mark.parametrize("name", [name for name in FORMATS if width(name) <= 8])
def test_formats(name):
    """Every code of a format, by its definition."""
    bits, every = width(name), range(1 << width(name))
    packed = sum(code << bits * code for code in every)
    words = np.frombuffer(packed.to_bytes(bits * len(every) // 8, "little"), np.uint32)
    expected = [float(value(name, code)) for code in every]
    np.testing.assert_array_equal(FORMATS[name].decode(words), expected)


def ones(generation: str, text: str, given: dict[range, float | int]) -> np.ndarray:
    """The first register that an instruction writes. given: what all lanes of registers hold."""
    registers = {}
    for numbers, content in given.items():
        word = np.float32(content).view(np.uint32) if isinstance(content, float) else content
        for number in numbers:
            registers[number] = np.full(target_of(generation).lanes, word, np.uint32)
    return run(text, generation, registers).vector[0]


@pytest.mark.parametrize(
    ("clamp", "c", "expected"),
    [
        ("", 2**31 - 1, 15 - 2**31),
        (" clamp", 2**31 - 1, 2**31 - 1),
        (" clamp", 100, 116),
    ],
)
def test_whole_sums_wrap_or_are_limited(clamp, c, expected):
    text = f"v_wmma_i32_16x16x16_iu8 v[0:7], v[8:9], v[10:11], v[0:7] neg_lo:[1,1,0]{clamp}"
    given = {range(8): c, range(8, 12): 0x01010101}
    assert (ones("rdna4", text, given).view(np.int32) == expected).all()


def test_accumulator_may_be_a_constant():
    text = "v_mfma_f32_16x16x4_f32 v[0:3], v4, v5, {}"
    given = {range(4): 9.0, range(4, 6): 2.0}
    assert (ones("cdna3", text.format("0"), given).view(np.float32) == 16).all()
    assert (ones("cdna3", text.format("1.0"), given).view(np.float32) == 17).all()
    text = "v_mfma_i32_16x16x32_i8 v[0:3], v[4:5], v[6:7], -3"
    assert (ones("cdna3", text, {range(4, 8): 0}).view(np.int32) == -3).all()


FP16_TINY, BF16_TINY, FP32_TINY = 0x03FF, 0x007F, 0x007FFFFF
"""The largest denormals."""


@pytest.mark.parametrize(
    ("generation", "text", "a", "kept"),
    [
        ("cdna2", "v_mfma_f32_16x16x16f16 v[0:3], v[8:9], v[10:11], 0", FP16_TINY, False),
        ("cdna2", "v_mfma_f32_16x16x16bf16_1k v[0:3], v[8:9], v[10:11], 0", BF16_TINY, False),
        ("cdna3", "v_mfma_f32_16x16x16_f16 v[0:3], v[8:9], v[10:11], 0", FP16_TINY, True),
        ("cdna3", "v_mfma_f32_16x16x16_bf16 v[0:3], v[8:9], v[10:11], 0", BF16_TINY, True),
        ("rdna3", "v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], 0", FP16_TINY, True),
        ("rdna3", "v_wmma_f32_16x16x16_bf16 v[0:7], v[8:15], v[16:23], 0", BF16_TINY, False),
        ("rdna4", "v_wmma_f32_16x16x16_bf16 v[0:7], v[8:11], v[12:15], 0", BF16_TINY, True),
    ],
)
def test_denormal_inputs(generation, text, a, kept):
    """A denormal times a large number is no denormal: 0 only if the input was flushed."""
    half = "bf16" if "bf16" in text else "f16"
    large = 0x7F00 if half == "bf16" else 0x7800
    width_a = 8 if generation == "rdna3" else 4 if generation == "rdna4" else 2
    given = {
        range(8, 8 + width_a): a * 0x10001,
        range(8 + width_a, 8 + 2 * width_a): large * 0x10001,
    }
    got = ones(generation, text, given).view(np.float32)
    expected = 16 * float(value(half, a)) * float(value(half, large)) if kept else 0
    assert (got == expected).all()


@pytest.mark.parametrize(
    ("generation", "text", "kept"),
    [
        ("cdna2", "v_mfma_f32_16x16x16f16 v[0:3], v[8:9], v[10:11], v[0:3]", False),
        ("cdna2", "v_mfma_f32_16x16x4f32 v[0:3], v8, v9, v[0:3]", True),
        ("cdna3", "v_mfma_f32_16x16x16_f16 v[0:3], v[8:9], v[10:11], v[0:3]", True),
        ("rdna3", "v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]", False),
        ("rdna4", "v_wmma_f32_16x16x16_f16 v[0:7], v[8:11], v[12:15], v[0:7]", True),
    ],
)
def test_denormal_results(generation, text, kept):
    given = {range(8): FP32_TINY, range(8, 24): 0}
    assert (ones(generation, text, given) == (FP32_TINY if kept else 0)).all()


def test_a_scale_of_255_is_no_number():
    text = "v_mfma_scale_f32_16x16x128_f8f6f4 v[0:3], v[8:15], v[16:23], 0, v24, v25"
    given = {range(8, 24): 0x38383838, range(24, 25): 127, range(25, 26): 127}
    assert (ones("cdna4", text, given).view(np.float32) == 128).all()
    given[range(24, 25)] = 255
    assert np.isnan(ones("cdna4", text, given).view(np.float32)).all()


def test_inactive_lanes_take_part():
    wave = {number: np.full(64, np.float32(1).view(np.uint32)) for number in range(6)}
    target = target_of("cdna3")
    waves = Waves(np.zeros(1, int), np.arange(1), 64, 8)
    for number, lanes in wave.items():
        waves.vector[number] = lanes
    waves.activate(np.arange(64) < 3)
    ins = instruction("v_mfma_f32_16x16x4_f32 v[0:3], v4, v5, v[0:3]")
    executor(ins, Context(target, Findings(), {}))(waves)
    assert (waves.vector[:4].view(np.float32) == 5).all()


@pytest.mark.parametrize(
    ("generation", "text"),
    [
        ("cdna3", "v_mfma_f32_16x16x4_f32 v[0:3], v4, v5, v[0:3] cbsz:1"),
        ("cdna3", "v_mfma_f32_16x16x4_f32 v[0:3], v4, v5, v[0:3] blgp:1"),
        ("cdna4", "v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[8:15], v[16:23], v[0:3] cbsz:5"),
        ("cdna4", "v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[8:15], v[16:23], v[0:3] cbsz:4"),
        ("rdna3", "v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7] neg_lo:[1,0,0]"),
        ("rdna4", "v_wmma_i32_16x16x16_iu8 v[0:7], v[8:9], v[10:11], v[0:7] neg_lo:[1,1,1]"),
        ("gfx1250", "v_wmma_f32_16x16x32_f16 v[0:7], v[8:15], v[16:23], v[0:7] matrix_a_reuse"),
        (
            "gfx1250",
            "v_wmma_scale_f32_16x16x128_f8f6f4 v[0:7], v[8:23], v[24:39], v[0:7], v40, v41 "
            "matrix_a_scale_fmt:MATRIX_SCALE_FMT_E4M3",
        ),
        ("cdna3", "v_mfma_f32_16x16x4_f32 v[0:3], v4, v5, s[0:3]"),
    ],
)
def test_unknown_forms(generation, text):
    with pytest.raises(UnknownInstruction, match="line 1"):
        run(text, generation, {})
