"""Words as people type them: other spellings of a word say the same problem."""

from __future__ import annotations

import random

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright import dtypes, ops
from tilewright.arch import arch
from tilewright.cli.options import words
from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument, nearest
from tilewright.ops.help import helps

PROBLEMS = [(name, text) for name, said in helps().items() for text in said.problems.values()]
SPELLINGS = {
    "bf16": ("bfloat16", "torch.bfloat16", "BF16", "BFloat16"),
    "fp16": ("float16", "half", "np.float16", "FP16", "f16"),
    "fp32": ("float32", "float", "torch.float32", "single"),
    "e4m3fn": ("float8_e4m3fn", "torch.float8_e4m3fn", "E4M3FN", "fp8", "fp8_e4m3", "float8_e4m3"),
    "e5m2": ("float8_e5m2", "bf8", "fp8_e5m2"),
    "int8": ("torch.int8", "i8", "INT8"),
    "e2m1": ("float4_e2m1fn_x2", "fp4"),
}


def parse(family, pairs):
    return ops.family(family).parse_problem(words(pairs), arch("sm_90"))


def typed(pair, rng):
    """A word in another spelling."""
    word, _, text = pair.partition("=")
    word = rng.choice((word, word.upper(), word.capitalize(), word.replace("_", "-"), f"--{word}"))
    return f"{word}={text}"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("family", "text"), PROBLEMS)
def test_a_problem_in_other_spellings(family, text, seed):
    rng = random.Random(f"{family} {text} {seed}")
    wanted = parse(family, text.split())
    pairs = [typed(pair, rng) for pair in text.split()]
    rng.shuffle(pairs)
    assert parse(family, pairs) == wanted
    together = [",".join(pairs)] if seed == 0 else [", ".join(pairs[:2]), *pairs[2:]]
    assert parse(family, [one.replace("--", "") for one in together]) == wanted


@pytest.mark.parametrize("family", helps())
def test_a_word_said_in_two_spellings_is_refused(family):
    first = helps()[family].problems["tiny"].split()
    word = first[0].partition("=")[0]
    with pytest.raises(BadArgument, match=f"says {word} twice"):
        parse(family, [*first, f"--{word}=7"])
    with pytest.raises(BadArgument, match=r"no 'dtypex' \(did you mean 'dtype'\?\)"):
        parse(family, [*first, "dtypex=7"])


@pytest.mark.parametrize(("name", "spelled"), [(n, s) for n, all in SPELLINGS.items() for s in all])
def test_an_element_type_in_other_spellings(name, spelled):
    assert dtypes.resolve(spelled, "ocp") == name
    assert dtypes.resolve(spelled.upper(), "ocp") == name
    if spelled not in ("fp8", "bf8", "fp8_e4m3", "float8_e4m3", "fp8_e5m2"):
        assert dtypes.named(spelled) == name


def test_every_name_of_torch_and_of_numpy_is_understood():
    for name, one in DTYPES.items():
        assert dtypes.spelled(name) == name
        if one.bits > 4:
            assert dtypes.spelled(one.torch) == dtypes.spelled(f"torch.{one.torch}") == name


def test_other_words_stay_what_they_are():
    for word in ("float17", "", "fp", "torch", "16", "b f16"):
        assert dtypes.spelled(word) == word
        with pytest.raises(BadArgument, match="unknown dtype"):
            dtypes.resolve(word, "ocp")


@pytest.mark.parametrize("kind", ["float16", "half", np.float16, np.dtype("float16"), "FP16"])
def test_problems_take_element_types_as_people_call_them(kind):
    assert tw.GemmProblem(4, 8, 16, dtype_a=kind).dtype_b == "fp16"
    assert tw.AttentionProblem(1, 2, 4, 8, 16, dtype=kind).dtype_kv == "fp16"
    assert tw.ConvProblem(1, 8, 8, (4, 4), (3, 3), dtype=kind).dtype == "fp16"
    assert tw.CausalConvProblem(1, 8, 4, dtype=kind).dtype == "fp16"
    assert tw.GroupedGemmProblem("contiguous", 2, 8, 8, 16, dtype_a=kind).dtype_c == "fp16"
    bf16 = tw.GemmProblem(4, 8, 16, dtype_a=ml_dtypes.bfloat16)
    assert bf16 == tw.GemmProblem(4, 8, 16)
    for wrong in ("float17", 3, None, ["fp16"]):
        with pytest.raises(BadArgument):
            tw.GemmProblem(4, 8, 16, dtype_a=wrong)


def test_commas_part_words_only_before_another_word():
    assert words(["m=64,n=64", "k=3"]) == {"m": "64", "n": "64", "k": "3"}
    assert words(["window=4,0,mask=causal", "dtype=fp8,bf16"]) == {
        "window": "4,0", "mask": "causal", "dtype": "fp8,bf16",
    }  # fmt: skip
    assert words(["ck=-b=2 -h=8,-s=4"]) == {"ck": "-b=2 -h=8,-s=4"}
    for wrong in ("m=64,m=3", "m=64,n=", "m=64,n"):
        with pytest.raises(BadArgument):
            parse("gemm", [wrong, "k=3"])


def test_hints_see_through_upper_case_and_hyphens():
    known = ["gemm", "grouped_gemm", "dtype_b", "dtype_c"]
    for word, meant in (("GEMM", "gemm"), ("grouped-gemm", "grouped_gemm"), ("DTYPE_B", "dtype_b")):
        assert nearest(word, known) == f" (did you mean '{meant}'?)"
    assert nearest("DTYPE_D", known) == nearest("dtype_d", known) == ""
