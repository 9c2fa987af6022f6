"""Problems as other libraries' drivers write them."""

from __future__ import annotations

import pytest

from tilewright import ops
from tilewright.arch import arch
from tilewright.errors import BadArgument
from tilewright.ops.conv import ConvProblem
from tilewright.ops.conv.stated import first_strides


def parse(**words: str) -> ConvProblem:
    return ops.family("conv").parse_problem(words, arch("sm_90"))


def first(problem: ConvProblem) -> ConvProblem:
    from dataclasses import replace

    return replace(problem, **first_strides(problem))


LAYER = ConvProblem(32, 64, 128, (56, 28), (3, 3), pad=(1, 1), stride=(2, 2), dtype="bf16")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("convbfp16 -n 32 -c 64 -H 56 -W 28 -k 128 -y 3 -x 3 -p 1 -q 1 -u 2 -v 2 -l 1 -j 1 -m conv "
         "-g 1 -F 1 -t 1", first(LAYER)),
        ("./bin/MIOpenDriver convfp16 --batchsize 2 --in_channels 8 --in_h 5 --in_w 6 "
         "--out_channels 4 --fil_h 3 --fil_w 2 --group_count 2 --in_layout NHWC --out_layout NHWC "
         "--fil_layout NHWC --forw 4",
         ConvProblem(2, 8, 4, (5, 6), (3, 2), 2, direction="weights", dtype="fp16")),
        ("conv -n 1 -c 4 -_ 3 -! 5 -H 6 -W 7 -k 8 -@ 1 -y 2 -x 3 -$ 0 -p 1 -q 1 -# 1 -u 1 -v 2 "
         "-F 2 -I NDHWC",
         ConvProblem(1, 4, 8, (5, 6, 7), (1, 2, 3), pad=(0, 1, 1), stride=(1, 1, 2),
                     direction="data", dtype="fp32")),
        ("convfp16 -n 1 -c 8 -H 3 -W 3 -k 4 -y 2 -x 2 -u 2 -v 2 -m trans -I NHWC",
         ConvProblem(1, 4, 8, (6, 6), (2, 2), stride=(2, 2), direction="data", dtype="fp16")),
    ],
)  # fmt: skip
def test_miopens_lines(line, problem):
    assert parse(miopen=line) == problem


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("mb32ic64ih56oc128oh28kh3sh2ph1",
         ConvProblem(32, 64, 128, (56, 56), (3, 3), pad=(1, 1), pad_after=(0, 0), stride=(2, 2),
                     dtype="fp32")),
        ('--dir=BWD_W --dt=bf16 g4mb1ic8iw20oc4kw3dw1n"a:name*2"',
         ConvProblem(1, 8, 4, (20,), (3,), 4, dilation=(2,), direction="weights", dtype="bf16")),
        ("--dir=BWD_D ic4id3ih4iw5oc8od3oh4ow5kd3kh3kw1pd1ph1pw0",
         ConvProblem(2, 4, 8, (3, 4, 5), (3, 3, 1), pad=(1, 1, 0), direction="data", dtype="fp32")),
        # A dimension that is said has its own strides and padding, not those of the one before.
        ("mb1_g16ic16oc16_ih15oh7kh6sh2ph3_iw10ow10kw3",
         ConvProblem(1, 16, 16, (15, 10), (6, 3), 16, stride=(2, 1), pad=(3, 1), pad_after=(0, 1),
                     dtype="fp32")),
        ("mb1ic3oc4ih3oh5kh2", ConvProblem(1, 3, 4, (3, 3), (2, 2), pad=(1, 1), pad_after=(2, 2),
                                        dtype="fp32")),
        ("ic3oc4_iw5kw2sh1ph0dd0", ConvProblem(2, 3, 4, (5,), (2,), dtype="fp32")),
        ("ic3oc4_id5kd3pd1", ConvProblem(2, 3, 4, (5,) * 3, (3,) * 3, pad=(1,) * 3, dtype="fp32")),
        ("mb1_ic8ih7_oc8oh3_kh3sh2", ConvProblem(1, 8, 8, (7, 7), (3, 3), stride=(2, 2),
                                                 dtype="fp32")),
    ],
)  # fmt: skip
def test_onednns_lines(line, problem):
    assert parse(onednn=line) == problem


CK_FORWARD = "grouped_conv_fwd {} {} 0 1 1 0 1 2 2 8 5 16 3 2 7 9 2 1 1 2 1 0 2 3"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        # It counts channels of a group.
        (CK_FORWARD.format(2, 1),
         ConvProblem(8, 32, 10, (7, 9), (3, 2), 2, (2, 1), (1, 0), (2, 3), (1, 2))),
        (f"./bin/ckProfiler {CK_FORWARD.format(8, 3)}",
         first(ConvProblem(8, 32, 10, (7, 9), (3, 2), 2, (2, 1), (1, 0), (2, 3), (1, 2),
                           dtype="fp32", precision="tf32"))),
        ("grouped_conv_bwd_data 1 0 1 1 0 1 1 1 4 8 16 3 20 1 1 1 1",
         ConvProblem(4, 16, 8, (20,), (3,), pad=(1,), direction="data", dtype="fp16")),
        ("grouped_conv_bwd_data 3 1 0 1 1 0 1 1 4 8 16 3 20 1 1 1 1 2",
         ConvProblem(4, 16, 8, (20,), (3,), pad=(1,), direction="data", dtype="fp32",
                     precision="tf32")),
        ("ckProfiler grouped_conv_bwd_weight 2 2 0 0 0 1 3 1 2 3 4 1 2 3 5 6 7 1 1 1 1 1 1 0 0 1 "
         "0 0 1 all",
         ConvProblem(2, 4, 3, (5, 6, 7), (1, 2, 3), pad=(0, 0, 1), direction="weights",
                     dtype_out="fp32")),
    ],
)  # fmt: skip
def test_lines_of_ckprofiler(line, problem):
    assert parse(ck=line) == problem


def test_a_line_whose_pixels_alone_are_channels_first():
    problem = parse(ck=CK_FORWARD.format(1, 2))
    theirs = first_strides(problem)
    assert problem.w_strides == () and problem.dtype == "fp16"
    assert (problem.x_strides, problem.y_strides) == (theirs["x_strides"], theirs["y_strides"])


FIELDS = {"N": "2", "C": "8", "K": "4", "Hi": "5", "Wi": "6", "Y": "3", "X": "2"}


def test_the_fields_of_tile_engine():
    plain = ConvProblem(2, 8, 4, (5, 6), (3, 2))
    assert parse(**FIELDS) == plain
    # Columns of its results.
    ran = {"kernel": "a", "problem_idx": "0", "latency_ms": "1.5", "tflops": "3", "non_zero": "9"}
    assert parse(**FIELDS, **ran, Di="1", Z="1", stride_d="1", direction="forward") == plain
    assert parse(
        **FIELDS, G="2", Di="7", stride_h="2", pad_d="1", dilation_w="3", direction="bwd_weight",
        dtype="fp16",
    ) == ConvProblem(
        2, 8, 4, (7, 5, 6), (1, 3, 2), 2, (1, 2, 1), (1, 0, 0), dilation=(1, 1, 3),
        direction="weights", dtype="fp16",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"miopen": "pool -n 1"}, "'pool' is not one of conv, convfp16"),
        ({"miopen": "conv -n 1 -c 2 -H 3 -k 4 -y 1 -x 1"}, "does not say spatial in all 2"),
        ({"miopen": "conv -n 1 -c 2 -H 3 -W 3 -k 4 -y 1 -x 1 -F 3"}, "-F 3 is several directions"),
        ({"miopen": "conv -n 1 -c 2 -H 3 -W 3 -k 4 -y 1 -x 1 -Z 3"}, "-Z is not known"),
        ({"miopen": "conv -n"}, "-n has no value"),
        ({"miopen": "conv n 1"}, "'n' is no switch"),
        ({"miopen": "conv -n 1 -c 2 -H 3 -W 3 -k 4 -y 1 -x 1", "n": "2"}, "n is said by miopen="),
        ({"ck": "grouped_conv_forward 1"}, "'grouped_conv_forward' is not one of grouped_conv_fwd"),
        ({"ck": "grouped_conv_fwd 1 1 0 1"}, "4 numbers behind grouped_conv_fwd, not 8 or more"),
        ({"ck": CK_FORWARD.format(1, 1) + " 1"}, "25 numbers behind grouped_conv_fwd, not 24"),
        ({"ck": CK_FORWARD.format(1, 0)}, "layout 0 of grouped_conv_fwd has groups outermost"),
        ({"ck": CK_FORWARD.format(1, 9)}, "no layout '9'; it has 0, 1, 2, 3"),
        ({"ck": CK_FORWARD.format(3, 1)}, "3 writes int8 without a scale"),
        ({"ck": CK_FORWARD.format(9, 1)}, "has no dtype 9"),
        ({"N": "2", "C": "8", "Hi": "5"}, "with CK's fields needs K, Wi, Y, X"),
        ({**FIELDS, "pad": "1"}, "pad is said by CK's fields too"),
        ({"onednn": "mb1ic8kh3oc8"}, "does not say ih"),
        ({"onednn": "mb1ic8ih5kh3oc8qq3"}, "'qq3' in .* is no size"),
        ({"onednn": "mb1ic8ih5ih5kh3oc8"}, "is no size"),
        ({"onednn": "mb1ic8ih5kh3"}, "does not say oc"),
        ({"onednn": "mb1ic8oc8id5kd3iw5kw3"}, "says only one of height and width"),
        ({"onednn": "mb1ic8oc8ih5kh3sh0"}, "sh = 0 in .* is no stride"),
        ({"onednn": "mb1ic8oc8"}, "does not say iw"),
        ({"onednn": "--dt=u8:s8:f32 mb1ic8ih5kh3oc8"}, "is not known to say a problem"),
    ],
)
def test_what_is_refused(words, why):
    with pytest.raises(BadArgument, match=why):
        parse(**words)
