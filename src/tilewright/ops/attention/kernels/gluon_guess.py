"""Weights of a block of scores by a guessed maximum, in Gluon for sm_90; used by `gluon_blocks`.

A weight is 2^(score - base). Any base will do that lies near the row's maximum: the sum of weights
has the same factor. The maximum so far is a good guess, as it rarely grows by much after the first
block. So exponentials begin as soon as a block's products are there: no comparison of 64 numbers
comes before them, and no exchange of maxima between threads. Each thread adds up its own weights of
a row anyway. If one of its sums is over `LIMIT`, or NaN (as in a row that has seen no key yet), the
warp takes the block's maxima after all, and its exponentials once more. Then sums of earlier blocks
must be multiplied by a factor (`again`), which is 1 otherwise, and `rescaled` skips the
multiplication.

The branch is a warp's own, so the whole is one piece of assembly: 32 scores of two rows come in,
and words of weights come out. Branches also keep ptxas from moving the wait for the product of the
block before above the exponentials.

wgmma takes the weights as its left operand, whose words have two neighbouring keys, or four of an
8-bit type. 8-bit weights are multiplied by 2^RAISED: small ones would else be lost. 32 weights at
the base are 256 then, and `LIMIT` keeps each below the type's largest number, 448. So a block may
exceed the base by up to 5.8 bits without a second pass. A base that is too low costs no precision.

Measured in `gluon_ws`.
"""

from tilewright.ops.attention.kernels.gluon_pieces import (
    in_line,
    like_piece,
    pieces,
    whole,
)
from tilewright.ops.device.gluon_api import constexpr_function, gl, jit

RAISED = {"fp8e4nv": 3, "fp16": 0, "bf16": 0}
"""The power of 2 that weights, and their sums, are multiplied by, for each type of weights."""

LIMIT = {"fp8e4nv": 448, "fp16": 1 << 14, "bf16": 1 << 14}
"""Most that a thread's weights of a row may add up to. Beyond it values of over 10³⁴, or in fp16
the weights themselves, would overflow."""

_WORDS = {
    "fp8e4nv": "cvt.rn.satfinite.e4m3x2.f32 low, b, a;\n"
    "cvt.rn.satfinite.e4m3x2.f32 high, d, c;\n"
    "mov.b32 {word}, {{low, high}};",
    "fp16": "cvt.rn.f16x2.f32 {word}, b, a;",
    "bf16": "cvt.rn.bf16x2.f32 {word}, b, a;",
}
"""Assembly from weights a, b (and c, d) to a word, the first in its lowest bits."""

ROWS = (0, 1)
"""The two rows of a thread, eight apart. Each operand of the assembly is one element of both."""


@constexpr_function
def _in_word(name):
    """Weights in a word."""
    return 4 if name == "fp8e4nv" else 2


@constexpr_function
def words_of(count, name):
    """Words of `count` weights."""
    return int(count) // _in_word(name)


@constexpr_function
def raised(name):
    return RAISED[name]


@constexpr_function
def _keys_of(word, count, name):
    """The scores whose weights are in a word. Keys of 8-bit types: see `gluon_scores.keys`."""
    first = (2 * word, 2 * word + 1)
    far = tuple(i + count // 2 for i in first)
    return first + far if _in_word(name) == 4 else first


@constexpr_function
def _exponentials(count, name, out, given):
    """From bases b0 and b1 to words, and sums s0 and s1."""
    lines = [f"mov.f32 s{r}, 0f00000000;" for r in ROWS]
    for word in range(words_of(count, name)):
        for r in ROWS:
            for weight, i in zip("abcd", _keys_of(word, count, name), strict=False):
                lines += [
                    f"fma.rn.ftz.f32 t, {given(i, r)}, {given(count + 2, r)}, b{r};",
                    f"ex2.approx.ftz.f32 {weight}, t;",
                    f"add.ftz.f32 s{r}, s{r}, {weight};",
                ]
            lines.append(_WORDS[name].format(word=out(word, r)))
    return lines


@constexpr_function
def _maxima(count, out, most, given):
    """From scores to maxima so far, `again`, and the bases of `_exponentials`."""
    lines = [f"mov.f32 m{r}, {given(0, r)};" for r in ROWS]
    lines += [f"max.ftz.f32 m{r}, m{r}, {given(i, r)};" for i in range(1, count) for r in ROWS]
    for distance in (1, 2):  # the four threads of a row
        for r in ROWS:
            lines += [
                f"shfl.sync.bfly.b32 t, m{r}, {distance}, 31, 0xffffffff;",
                f"max.ftz.f32 m{r}, m{r}, t;",
            ]
    for r in ROWS:
        lines += [
            f"mul.ftz.f32 m{r}, m{r}, {given(count + 2, r)};",
            f"max.ftz.f32 m{r}, m{r}, {given(count, r)};",
            f"mov.f32 {out(most, r)}, m{r};",
            f"setp.eq.f32 unseen, m{r}, 0fFF800000;",  # minus infinity: no key was seen
            f"selp.f32 m{r}, 0f00000000, m{r}, unseen;",
            f"sub.ftz.f32 t, {given(count, r)}, m{r};",
            f"ex2.approx.ftz.f32 {out(most + 2, r)}, t;",
        ]
    return lines


@constexpr_function
def assembly(count, name, guess):
    """Assembly of `count` scores of a row in a thread.

    In: the scores; the row's maximum so far; the thread's sum so far; a factor from a score to base
    2. Out: words; maximum; sum; again. guess: whether exponentials come before maxima.
    """
    count = int(count)
    most = words_of(count, name)

    def out(i, r):
        return f"${2 * i + r}"

    def given(i, r):
        return f"${2 * (most + 3 + i) + r}"

    def bases(of):
        return [f"sub.ftz.f32 b{r}, 0f{_bits(RAISED[name])}, {of(r)};" for r in ROWS]

    lines = [
        ".reg .pred unseen, wrong;",
        ".reg .b16 low, high;",
        ".reg .f32 t, a, b, c, d, b0, b1, s0, s1, m0, m1;",
    ]
    if guess:
        lines += bases(lambda r: given(count, r))
        lines += _exponentials(count, name, out, given)
        lines += [
            f"setp.gtu.f32 wrong, s0, 0f{_bits(LIMIT[name])};",  # also if it is NaN
            f"setp.gtu.or.f32 wrong, s1, 0f{_bits(LIMIT[name])}, wrong;",
            "vote.sync.any.pred wrong, wrong, 0xffffffff;",
        ]
        for r in ROWS:
            lines += [
                f"mov.f32 {out(most, r)}, {given(count, r)};",
                f"add.ftz.f32 {out(most + 1, r)}, {given(count + 1, r)}, s{r};",
                f"mov.f32 {out(most + 2, r)}, 0f3F800000;",
            ]
        lines.append("@!wrong bra DONE;")
    lines += _maxima(count, out, most, given)
    lines += bases(lambda r: f"m{r}")
    lines += _exponentials(count, name, out, given)
    for r in ROWS:
        sums = f"{given(count + 1, r)}, {out(most + 2, r)}, s{r}"
        lines.append(f"fma.rn.ftz.f32 {out(most + 1, r)}, {sums};")
    return "\n".join(["{", *lines, "DONE:", "}"])


@constexpr_function
def _bits(number):
    """A positive whole number as PTX writes fp32, in hexadecimal."""
    if number == 0:
        return "00000000"
    power = int(number).bit_length() - 1
    return f"{(power + 127 << 23) | (int(number) << 23 >> power) - (1 << 23):08X}"


@constexpr_function
def _constraints(count, name):
    words = words_of(count, name)
    return ",".join(["=&r"] * (2 * words) + ["=&f"] * 6 + ["f"] * (2 * (int(count) + 3)))


@constexpr_function
def _types(count, name):
    return tuple([gl.int32] * words_of(count, name) + [gl.float32] * 3)


@jit
def weights_of(s, most, total, scale, NAME: gl.constexpr, GUESS: gl.constexpr):
    """(words, maximum, sum, again) after one more block.

    s: scores, [rows, keys]; minus infinity where a query does not see a key.
    most, total: pieces; of `total` each thread has its own part of a row.
    scale: what makes a score one of base 2; not negative.
    NAME: the type of weights. Returns words as a tuple of pieces.
    """
    COUNT: gl.constexpr = s.shape[1] // 4
    WORDS: gl.constexpr = words_of(COUNT, NAME)
    found = gl.inline_asm_elementwise(
        assembly(COUNT, NAME, GUESS), _constraints(COUNT, NAME),
        pieces(s) + (most, total, scale), _types(COUNT, NAME), is_pure=False, pack=2,
    )  # fmt: skip
    return found[:WORDS], found[WORDS], found[WORDS + 1], found[WORDS + 2]


@jit
def operand(words, DTYPE: gl.constexpr, OF_P: gl.constexpr):
    """Words of weights as they pass from step to step: of 16-bit types, wgmma's left operand. Of
    8-bit types each element would take a whole register, which words fill: see `unpacked`."""
    if DTYPE.primitive_bitwidth == 8:
        p = in_line(words)
    else:
        found = ()
        for i in gl.static_range(len(words)):
            low = words[i].to(gl.int16).to(DTYPE, bitcast=True)
            high = (words[i] >> 16).to(gl.int16).to(DTYPE, bitcast=True)
            found = found + (low, high)
        p = whole(found, OF_P)
    return p


@jit
def unpacked(words, DTYPE: gl.constexpr, OF_P: gl.constexpr):
    """Words of four 8-bit weights as wgmma's left operand. Nothing moves between threads."""
    LINES: gl.constexpr = words.shape[0]
    KEYS: gl.constexpr = words.shape[1] * 4
    low = words.to(gl.int16)
    high = (words >> 16).to(gl.int16)
    left = gl.join(low.to(gl.int8), (low >> 8).to(gl.int8))
    right = gl.join(high.to(gl.int8), (high >> 8).to(gl.int8))
    p = gl.reshape(gl.permute(gl.join(left, right), (0, 1, 3, 2)), (LINES, KEYS))
    return gl.convert_layout(p.to(DTYPE, bitcast=True), OF_P, assert_trivial=True)


@constexpr_function
def skipping(count):
    """Assembly that multiplies `count` numbers of a row by one, unless it is 1 in all of a warp's
    rows."""
    by = 2 * int(count)
    lines = [
        ".reg .pred other;",
        f"setp.neu.f32 other, ${2 * by}, 0f3F800000;",
        f"setp.neu.or.f32 other, ${2 * by + 1}, 0f3F800000, other;",
        "vote.sync.any.pred other, other, 0xffffffff;",
        "@!other bra DONE;",
        *(f"mul.ftz.f32 ${i}, ${i}, ${2 * by + i % 2};" for i in range(by)),
    ]
    return "\n".join(["{", *lines, "DONE:", "}"])


@constexpr_function
def _in_place(count):
    by = 2 * int(count)
    return ",".join(["=f"] * by + [str(i) for i in range(by)] + ["f", "f"])


@constexpr_function
def _floats(count):
    return tuple([gl.float32] * int(count))


@jit
def rescaled(acc, again):
    """Sums times `again`, a piece."""
    LAYOUT: gl.constexpr = acc.type.layout
    COUNT: gl.constexpr = acc.shape[1] // 4
    found = pieces(acc)
    found = gl.inline_asm_elementwise(
        skipping(COUNT), _in_place(COUNT), found + (like_piece(again, found[0]),), _floats(COUNT),
        is_pure=True, pack=2,
    )  # fmt: skip
    return whole(found, LAYOUT)


@jit
def multiplied(acc, by):
    """Sums times a piece that is not 1."""
    LAYOUT: gl.constexpr = acc.type.layout
    found = pieces(acc)
    by = like_piece(by, found[0])
    product = ()
    for i in gl.static_range(len(found)):
        product = product + (found[i] * by,)
    return whole(product, LAYOUT)
