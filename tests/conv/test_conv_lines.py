"""Problems as other libraries' drivers write them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright import ops
from tilewright.arch import arch
from tilewright.errors import BadArgument
from tilewright.ops.conv import ConvProblem
from tilewright.ops.conv.stated import first_strides


def parse(**words: str) -> ConvProblem:
    return ops.family("conv").parse_problem(words, arch("sm_90"))


def first(problem: ConvProblem) -> ConvProblem:
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
         "-F 2 -I NDHWC -O NDHWC -f NDHWC",
         ConvProblem(1, 4, 8, (5, 6, 7), (1, 2, 3), pad=(0, 1, 1), stride=(1, 1, 2),
                     direction="data", dtype="fp32")),
        ("convfp16 -n 1 -c 8 -H 3 -W 3 -k 4 -y 2 -x 2 -u 2 -v 2 -m trans -I NHWC -O NHWC -f NHWC",
         ConvProblem(1, 4, 8, (6, 6), (2, 2), stride=(2, 2), direction="data", dtype="fp16")),
    ],
)  # fmt: skip
def test_miopens_lines(line, problem):
    assert parse(miopen=line) == problem


MODEL = (
    "./bin/MIOpenDriver conv --batchsize 2 --spatial_dim 2 --pad_h 1 --pad_w 2 --pad_d 0 "
    "--conv_stride_h 1 --conv_stride_w 1 --conv_stride_d 0 --dilation_h 1 --dilation_w 1 "
    "--dilation_d 0 --group_count 1 --mode conv --pad_mode default --trans_output_pad_h 0 "
    "--trans_output_pad_w 0 --trans_output_pad_d 0 --out_layout {} --in_d 1 --in_h 7 --in_w 9 "
    "--fil_d 1 --fil_h 3 --fil_w 5 --in_channels 6 --out_channels 4 --forw 1"
)


def test_a_line_of_miopens_models():
    plain = ConvProblem(2, 6, 4, (7, 9), (3, 5), pad=(1, 2), dtype="fp32")
    assert parse(miopen=MODEL.format("NCHW")) == first(plain)
    # The arrays whose layout the line leaves out are channels-first.
    mixed = parse(miopen=MODEL.format("NHWC"))
    assert mixed.y_strides == ()
    assert {"x_strides": mixed.x_strides, "w_strides": mixed.w_strides} == {
        name: strides for name, strides in first_strides(plain).items() if name[0] != "y"
    }
    turned = parse(miopen="conv -n 2 -c 6 -H 7 -W 9 -k 4 -m trans -O NHWC -F 1")
    assert turned.x_strides == () and turned.y_strides == first_strides(turned)["y_strides"]


def test_what_miopens_lines_leave_out_is_as_the_driver_has_it():
    assert parse(miopen="convfp16 -F 4 -g 0") == first(
        ConvProblem(100, 3, 32, (32, 32), (3, 3), direction="weights", dtype="fp16")
    )
    assert parse(miopen="conv -_ 3 -F 1").spatial == (32, 32, 32)


@pytest.mark.parametrize(
    ("said", "pad"),
    [("-z same", (1, 2)), ("-z same -u 2 -v 3 -H 8 -W 7", (0, 2)), ("-z valid", (0, 0)),
     ("-z default", (4, 4)), ("-z same -l 2", (4, 4))],
)  # fmt: skip
def test_padding_of_miopens_modes(said, pad):
    # By its rule: half of filter − (size mod stride, or stride), where nothing is dilated.
    line = f"convbfp16 -n 1 -c 8 -H 9 -W 9 -k 8 -y 3 -x 5 -p 4 -q 4 -F 1 {said}"
    assert parse(miopen=line).pad == pad == parse(miopen=line).pad_after


def test_miopens_bias_transposed_padding_and_ways_to_run():
    line = "convbfp16 -n 1 -c 8 -H 9 -W 9 -k 8 -b 1 -S 0 -G 0 -C folder -o 0 -r 0 -Z 0 -L 1 -U -1"
    assert parse(miopen=f"{line} -F 1").epilogue == "bias"
    assert parse(miopen=f"{line} -F 2").epilogue == parse(miopen=f"{line} -F 4").epilogue == ""
    turned = parse(miopen="conv -n 1 -c 8 -H 4 -W 4 -k 8 -u 2 -v 2 -m trans -Y 1 -X 0 -F 1")
    # (4 − 1)·2 + 3 pixels, and one more in height.
    assert (turned.direction, turned.spatial, turned.out_sizes) == ("data", (10, 9), (4, 4))


def test_the_layout_of_each_array():
    plain = ConvProblem(2, 6, 4, (7, 9), (3, 5))
    words = {"n": "2", "c": "6", "k": "4", "spatial": "7x9", "filter": "3x5"}
    strides = first_strides(plain)
    assert parse(**words, w_layout="channels_first") == replace(
        plain, w_strides=strides["w_strides"]
    )
    three = {f"{name}_layout": "channels_first" for name in "xwy"}
    assert parse(**words, **three) == parse(**words, layout="channels_first") == first(plain)
    assert parse(**words, x_layout="channels_last") == plain
    for wrong, why in (
        ({"layout": "channels_first", "x_layout": "channels_last"}, "x_layout says it again"),
        ({"x_layout": "channels_first", "x_strides": "1,1,1,1"}, "both say how arrays lie"),
        ({"y_layout": "nhwc"}, "y_layout = 'nhwc' is not one of channels_last"),
    ):
        with pytest.raises(BadArgument, match=why):
            parse(**words, **wrong)


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


PLAIN = ConvProblem(1, 8, 4, (5, 7), (3, 2), pad=(1, 0), dtype="fp32")
SIZES = "mb1ic8ih5iw7oc4kh3kw2ph1pw0"


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ("--conv --dir=FWD_B --dt=f16:f16:f32", {"dtype": "fp16", "epilogue": "bias"}),
        ("--dir=FWD_D --bia-dt=bf16 --dt=bf16", {"dtype": "bf16", "dtype_out": "bf16",
                                                 "epilogue": "bias"}),
        ("--dir=bwd_d --dt=f32:bf16:bf16", {"direction": "data", "dtype": "bf16"}),
        ("--dir=BWD_WB --dt=bf16:f32:bf16 --mode=P -v5 --skip-impl=ref,gemm --alg=wino",
         {"direction": "weights", "dtype": "bf16"}),
        ("--dt=s8:s8:s32", {"dtype": "int8", "dtype_out": "int32"}),
        ("--dt=s8:s8:s8 --attr-scales=src:common:2+wei:per_oc",
         {"dtype": "int8", "dtype_out": "int8", "epilogue": "scale+col_scale"}),
        ("--dt=s8:s8:s8 --attr-scales=wei:common:2+dst:common:2 --attr-post-ops=relu",
         {"dtype": "int8", "dtype_out": "int8", "epilogue": "scale+relu+scale"}),
        ("--attr-post-ops=eltwise_relu+binary_mul:f16:per_oc+binary_add:f32:2+sum --mb=3",
         {"n": 3, "epilogue": "relu+col_scale+bias+add"}),
        ("--attr-post-ops=swish:1+clip:-1:1+linear:2+gelu_erf+add:f32:per_tensor",
         {"epilogue": "silu+clamp+scale+gelu+add"}),
        ("--attr-fpmath=tf32", {"precision": "tf32"}),
        ("--attr-fpmath=bf16 --attr-post-ops= --attr-zero-points=", {}),
    ],
)  # fmt: skip
def test_options_of_onednns_lines(options, changed):
    assert parse(onednn=f"{options} {SIZES}") == replace(PLAIN, **{"dtype_out": "fp32", **changed})


def strides(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """Those of an array whose dimensions lie in this order, by NumPy."""
    laid = np.empty([shape[at] for at in order], np.int8).transpose(np.argsort(order))
    return laid.strides


@pytest.mark.parametrize(
    ("said", "x", "w", "y"),
    [
        ("--stag=axb --dtag=acdb", (0, 2, 3, 1), (0, 2, 3, 1), (0, 2, 3, 1)),
        ("--stag=abx --wtag=abx --dtag=any", (0, 1, 2, 3), (0, 1, 2, 3), (0, 2, 3, 1)),
        ("--stag=nchw --wtag=hwio", (0, 1, 2, 3), (2, 3, 1, 0), (0, 2, 3, 1)),
        ("--wtag=xba --dtag=cdba", (0, 2, 3, 1), (2, 3, 1, 0), (2, 3, 1, 0)),
    ],
)
def test_layouts_of_onednns_lines(said, x, w, y):
    problem = parse(onednn=f"{said} {SIZES}")
    for name, order in (("x", x), ("w", w), ("y", y)):
        assert problem.strides_of(name) == strides(problem.shape_of(name), order)
    given = parse(onednn=f"--strides=1000x1x200x16::2000x500x100x1 {SIZES}")
    assert (given.x_strides, given.w_strides) == ((1000, 1, 200, 16), ())
    assert given.y_strides == (2000, 500, 100, 1)


def test_groups_and_the_layouts_of_their_weights():
    sizes = "g2mb1ic8ih5oc4kh3"
    dense = parse(onednn=f"--wtag=abx {sizes}")  # groups, filters, channels, taps
    assert dense.w_strides == strides(dense.shape_of("w"), (0, 1, 2, 3))
    assert parse(onednn=f"--wtag=gohwi {sizes}").w_strides == ()
    # Filters of a group are 1 apart and groups are 72·2: no stride goes from one to the next.
    with pytest.raises(BadArgument, match="groups apart from filters"):
        parse(onednn=f"--wtag=ghwio {sizes}")


def test_onednns_deconvolutions():
    line = '--deconv --dt=bf16 mb1ic8ih5oc4oh9kh3sh2ph1n"name 1"'
    forward = parse(onednn=line.replace(" 1", "_1"))
    # 2·(5 − 1) + 3 − 2·1 = 9 pixels of 4 channels, made of 5 of 8.
    expected = ConvProblem(
        1, 4, 8, (9, 9), (3, 3), stride=(2, 2), pad=(1, 1), direction="data", dtype="bf16"
    )
    assert forward == expected and forward.out_sizes == (5, 5)
    assert parse(onednn="--deconv --dt=bf16 mb1ic8ih5oc4kh3sh2ph1") == expected
    data = parse(onednn="--deconv --dir=BWD_D --dt=bf16 mb1ic8ih5oc4oh9kh3sh2ph1")
    assert data == replace(expected, direction="forward")
    # Its source is y here, and its weights' first dimension is x's channels.
    laid = parse(onednn="--deconv --dt=bf16 --stag=abx --wtag=abx mb1ic8ih5oc4oh9kh3sh2ph1")
    assert laid.x_strides == () and laid.y_strides == strides((1, 8, 5, 5), (0, 1, 2, 3))
    assert laid.w_strides == strides((8, 4, 3, 3), (1, 0, 2, 3))


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
        ({"miopen": "conv -z half"}, "-z 'half' is not one of default, same, valid"),
        ({"miopen": "conv -r 1"}, "padding is of zeros here"),
        ({"miopen": "convint8 -Z 1 -L 4"}, "no vectors of channels"),
        ({"miopen": "conv -U fp8"}, "operands are converted before a call"),
        ({"miopen": "convint8 -b 1"}, "-b of convint8 adds to integers"),
        ({"miopen": "conv -I CHWN"}, "layout 'CHWN' is not one of NCHW"),
        ({"miopen": "conv -_ 4"}, "4 spatial dimensions are not 2 or 3"),
        ({"miopen": "conv -u 0 -z same"}, "a stride of 0"),
        ({"miopen": "conv -n 1 -c 2 -H 3 -W 3 -k 4 -y 1 -x 1 -F 3"}, "-F 3 is several directions"),
        ({"miopen": "conv -n 1 -c 2 -H 3 -W 3 -k 4 -y 1 -x 1 -A 3"}, "-A is not known"),
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
        ({"onednn": "--dt=u8:s8:f32 mb1ic8ih5kh3oc8"}, "'u8' is no dtype of operands"),
        ({"onednn": "--dt=f32:bf16:bf16 mb1ic8ih5kh3oc8"}, "fp32 with bf16: both operands"),
        ({"onednn": "--dt=f32,f16 mb1ic8ih5kh3oc8"}, "states several problems"),
        ({"onednn": "--matmul 3x4:4x5"}, "--matmul is another operation than conv, deconv"),
        ({"onednn": "--dir=FWD_D"}, "states no problem"),
        ({"onednn": "--batch=shapes_1d"}, "--batch names a file of problems, 'shapes_1d'"),
        ({"onednn": "--reset --dtype=f32 mb1ic8ih5kh3oc8"}, "--dtype='f32' is not known"),
        ({"onednn": "--skip mb1ic8ih5kh3oc8"}, "'--skip' is no option with a value"),
        ({"onednn": "--dir=FWD mb1ic8ih5kh3oc8"}, "--dir='FWD' is not one of FWD_D"),
        ({"onednn": "--stag=aBx16b mb1ic8ih5kh3oc8"}, "--stag='aBx16b' is no order of 4"),
        ({"onednn": "--strides=1x2 mb1ic8ih5kh3oc8"}, "--strides has three parts"),
        ({"onednn": "--attr-zero-points=src:common:1 mb1ic8ih5kh3oc8"}, "zero points have no"),
        ({"onednn": "--attr-post-ops=dw:k3s1p1 mb1ic8ih5kh3oc8"}, "'dw:k3s1p1' is no operation"),
        ({"onednn": "--attr-post-ops=relu:0.5 mb1ic8ih5kh3oc8"}, "'relu:0.5' is no operation"),
        ({"onednn": "--attr-post-ops=sum:0.5 mb1ic8ih5kh3oc8"}, "old values are added as they"),
        ({"onednn": "--attr-post-ops=add:f16:15 mb1ic8ih5kh3oc8"}, "a matrix has the result's"),
        ({"onednn": "--attr-post-ops=relu:x mb1ic8ih5kh3oc8"}, "parameter that is no number"),
        ({"onednn": "--match=.*kh3.* mb1ic8ih5kh3oc8"}, "an expression that picks problems"),
    ],
)
def test_what_is_refused(words, why):
    with pytest.raises(BadArgument, match=why):
        parse(**words)
