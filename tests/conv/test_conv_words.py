"""Problems in words, and kernels' names: read, written, and shown."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conv_problems import problems
from hypothesis import given
from hypothesis import strategies as st

from tilewright import ops
from tilewright.arch import arch
from tilewright.errors import BadArgument, UnknownName
from tilewright.measure.problems import load_problems
from tilewright.ops.conv import ConvConfig, ConvProblem
from tilewright.ops.conv.config import ALIGNMENTS, REDUCTIONS_OF, SCHEDULERS, SHARING
from tilewright.ops.conv.pipelines import PIPELINES
from tilewright.ops.conv.problem import DIRECTIONS
from tilewright.ops.conv.stated import words_of

SM_90 = arch("sm_90")
FAMILY = ops.family("conv")
SIZES = "n=8 c=64 k=32 spatial=30x28 filter=3x3"


def parse(text: str, on: str = "sm_90") -> ConvProblem:
    return FAMILY.parse_problem(dict(word.split("=", 1) for word in text.split()), arch(on))


@pytest.mark.parametrize(
    ("said", "fields", "shown"),
    [
        ("", {}, "bf16"),
        ("pad=1 stride=2", {"pad": (1, 1), "stride": (2, 2)}, "bf16 stride 2x2 pad 1x1"),
        ("pad=1x0 pad_after=0x-1", {"pad": (1, 0), "pad_after": (0, -1)},
         "bf16 pad 1x0 pad_after 0x-1"),
        ("groups=4 dilation=1x2", {"groups": 4, "dilation": (1, 2)},
         "bf16 groups 4 dilation 1x2"),
        ("direction=data", {"direction": "data"}, "bf16 data"),
        ("dtype=fp32 precision=tf32 direction=weights",
         {"dtype": "fp32", "precision": "tf32", "direction": "weights"}, "fp32 weights tf32"),
        ("dtype=fp8 epilogue=scale+bias", {"dtype": "e4m3fn", "epilogue": "scale+bias"},
         "e4m3fn scale+bias"),
        ("dtype_out=fp32 alignment=4", {"dtype_out": "fp32", "alignment": 4},
         "bf16→fp32 alignment 4"),
        ("layout=channels_first",
         {"x_strides": (53760, 840, 28, 1), "w_strides": (576, 9, 3, 1),
          "y_strides": (23296, 728, 26, 1)}, "bf16 channels_first"),
        ("ndim=2 seen_in=resnet50", {}, "bf16"),
    ],
)  # fmt: skip
def test_what_words_mean(said, fields, shown):
    found = parse(f"{SIZES} {said}")
    assert found == ConvProblem(8, 64, 32, (30, 28), (3, 3), **fields)
    assert str(found) == f"conv n8 c64 k32 30x28 filter 3x3 {shown}"


def test_fp8_is_the_architectures():
    assert parse(f"{SIZES} dtype=fp8", "gfx942").dtype == "e4m3fnuz"


def test_a_transposed_convolution_is_the_gradient_of_a_convolution():
    """Its result has torch's size, and the other gradients follow."""
    words = "n=2 c=16 k=8 spatial=5x7 filter=4x3 stride=2 pad=1 output_pad=1x0 transposed=1"
    found = parse(words)
    assert (found.direction, found.c, found.k, found.out_sizes) == ("data", 8, 16, (5, 7))
    assert found.spatial == ((5 - 1) * 2 - 2 + 4 + 1, (7 - 1) * 2 - 2 + 3)
    assert parse(f"{words} direction=data").direction == "forward"
    assert parse(f"{words} direction=weights").shape_of("w") == (16, 8, 4, 3)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("strid=1", r"no 'strid' \(did you mean 'stride'"),
        ("stride=1x2x3", "stride = '1x2x3' does not have 2 numbers"),
        ("stride=0", "stride = 0 is not a whole number"),
        ("stride=-1", "stride = '-1' is not a whole number from 0"),
        ("transposed=1 pad=40", "a transposed convolution would make -.* pixels"),
        ("filter=40000x1", "filter = 40000 is not a whole number from 1 to 32768"),
        ("stride=99999", "stride = 99999 is not a whole number from 1 to 32768"),
        ("direction=back", "direction = 'back'.* is not one of forward, data, weights"),
        ("groups=3", "c = 64 is no multiple of groups = 3"),
        ("dilation=20", "filter reaches over 41 pixels, but padded x has 30"),
        ("ndim=3", "ndim = 3, but spatial = 30x28"),
        ("transposed=2", "transposed = '2' is neither 0 nor 1"),
        ("output_pad=1", "output_pad is a transposed convolution's"),
        ("layout=nchw", "layout = 'nchw' is not one of"),
        ("epilogue=swiglu", "swiglu is for rows or pairs of columns"),
        ("epilogue=row_scale", "row_scale is for rows"),
        ("epilogue=bias direction=weights", "gradient of weights has no epilogue"),
        ("dtype=int8 direction=data", "no gradient of data reads int8"),
        ("precision=tf32", "tf32 is a way to multiply fp32, not bf16"),
        ("dtype=int8 dtype_out=bf16", "convolution of int8 writes int32, not bf16"),
        ("x_strides=1,2,3", "x_strides = .* does not have 4 numbers"),
        ("alignment=3", "alignment = 3 is not one of"),
    ],
)
def test_what_is_refused(said, why):
    with pytest.raises(BadArgument, match=why):
        parse(f"{SIZES} {said}")


def test_sizes_are_needed():
    with pytest.raises(BadArgument, match=r"needs k, filter \(as in k=64\)"):
        parse("n=4 c=8 spatial=7")


@given(problems())
def test_words_written_and_read_are_the_problem(problem):
    assert FAMILY.parse_problem(words_of(problem), SM_90) == problem


@given(problems())
def test_problems_alike_share_one_key(problem):
    key = FAMILY.tuning_key(problem)
    assert FAMILY.tuning_key(key) == key
    assert key.out_sizes == problem.out_sizes and key.flops == problem.flops
    assert all(key.rows_alignment(x) == problem.rows_alignment(x) for x in "xwy")
    for near in FAMILY.nearby(problem):
        assert FAMILY.tuning_key(near.problem) == near.problem != key


def test_the_recorded_layers_are_read():
    layers = load_problems(["conv:full"], SM_90).problems
    transposed = load_problems(["conv:transposed"], SM_90).problems
    assert len(layers) == 1106 and len(transposed) == 15
    assert {p.direction for p in transposed} == {"data"}
    assert sum(p.depthwise for p in layers) == 231


COUNTS = st.sampled_from((1, 2, 16, 64, 128, 256))


@given(
    st.builds(
        ConvConfig,
        direction=st.sampled_from(sorted(DIRECTIONS)), spatial_dims=st.integers(1, 3),
        dtype=st.sampled_from(("bf16", "e4m3fn", "int8")),
        dtype_out=st.sampled_from(("bf16", "fp32", "int32")),
        precision=st.sampled_from(("ieee", "tf32")), tile_m=COUNTS, tile_n=COUNTS, tile_k=COUNTS,
        num_warps=COUNTS, num_stages=COUNTS, pipeline=st.sampled_from(sorted(PIPELINES)),
        scheduler=st.sampled_from(SCHEDULERS), group_m=COUNTS, merged=st.booleans(),
        alignment=st.sampled_from(ALIGNMENTS), alignment_out=st.sampled_from(ALIGNMENTS),
        index_bits=st.sampled_from((32, 64)),
        epilogue=st.sampled_from(("", "bias", "col_scale+bias+gelu_tanh")),
        box=st.sampled_from(("", "1x64", "2x4x8", "1x1x8x16")),
    ),
    st.integers(0, 2),
)  # fmt: skip
def test_a_name_says_its_config(config, number):
    if config.scheduler in SHARING:
        config = replace(config, reduction=REDUCTIONS_OF[config.scheduler][number])
    assert FAMILY.parse_name(config.name) == config


NAME = "conv_forward_2d_bf16_bf16_128x128x64_w8_s3_implicit_tile_g8_al16-16"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (NAME.replace("2d", "4d"), "one looks like"),
        (NAME + "_epi-bais", "unknown operation 'bais'"),
        (NAME.replace("128x128x64", "0x128x64"), "one looks like"),
        (NAME + "_i64_tf32", "one looks like"),
        (NAME + "_b4x", "box = '4x' is not sizes such as 1x8x16"),
    ],
)
def test_a_name_that_says_none(name, why):
    with pytest.raises(UnknownName, match=why):
        FAMILY.parse_name(name)
