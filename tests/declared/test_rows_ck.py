"""Command lines of CK Tile's examples, read as problems."""

from __future__ import annotations

import pytest

from tilewright import ops
from tilewright.arch import arch
from tilewright.errors import BadArgument
from tilewright.measure.problems import lines

GFX942 = arch("gfx942")


def read(name, line, **words):
    return ops.family(name).parse_problem({"ck": line, **words}, GFX942)


def fields(name, **said):
    return ops.family(name).problem_type(**said)


def test_a_norm_is_read_with_ck_s_defaults():
    usual = {"rows": 3328, "columns": 4096, "dtype": "fp16", "has_w": True}
    assert read("rms_norm", "tile_rmsnorm2d_fwd -v=0 -e=1e-6") == fields("rms_norm", **usual)
    assert read("rms_norm", "") == fields("rms_norm", **usual)
    assert read("rms_norm", "-save_rms=1") == fields("rms_norm", **usual, statistics=True)
    assert read("layer_norm", "-m=7 -n=64 -prec_i=bf16 -x_stride=80") == fields(
        "layer_norm", rows=7, columns=64, x_stride=80, has_w=True, has_b=True
    )


def test_sums_and_rounding_are_read():
    line = "bin/tile_example_rmsnorm2d_fwd -m=9 -n=128 -fadd=1 -xr_stride=256 -fquant=1 -prec_o=fp8"
    assert read("rms_norm", line) == fields(
        "rms_norm", rows=9, columns=128, dtype="fp16", has_w=True, has_residual=True,
        residual_stride=256, has_smooth=True, quant="row", out_dtype="e4m3fnuz",
    )  # fmt: skip
    assert read("rms_norm", "tile_add_rmsnorm2d_rdquant_fwd -prec=bf16 -m=3 -n=64") == fields(
        "rms_norm", rows=3, columns=64, has_w=True, has_residual=True, quant="row",
        out_dtype="int8",
    )  # fmt: skip
    assert read("quantise_rows", "-m=3 -n=64 -prec=bf16 -x_stride=70") == fields(
        "quantise_rows", rows=3, columns=64, x_stride=70, has_smooth=True
    )
    line = "tile_example_moe_smoothquant -t=5 -h=64 -e=7 -k=3 -prec_o=fp8"
    assert read("quantise_expert_rows", line) == fields(
        "quantise_expert_rows", tokens=5, columns=64, experts=7, slots=3, dtype="fp16",
        out_dtype="e4m3fnuz", slots_first=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "line", "why"),
    [
        ("rms_norm", "-fadd=2", "the sum with the residual is an output"),
        ("rms_norm", "-y_stride=5000", "results lie contiguous"),
        ("rms_norm", "-fquant=3", "there are 0, 1 and 2"),
        ("rms_norm", "-prec_sy=fp16", "scales are fp32"),
        ("rms_norm", "-fquant=2", "does not go with out_dtype = fp16"),
        ("rms_norm", "tile_add_rmsnorm2d_rdquant_fwd -save_x=0", "is an output"),
        ("rms_norm", "tile_layernorm2d_fwd", "is not -WORD=VALUE"),
        ("rms_norm", "-m=3 -m=4", "given twice"),
        ("rms_norm", "-mm=3", "tile_rmsnorm2d_fwd has no -mm"),
        ("rms_norm", "-x_stride=far", "-x_stride"),
        ("layer_norm", "-stride=5000", "results lie contiguous"),
        ("layer_norm", "-xbias=1", "residual"),
    ],
)
def test_what_has_no_counterpart_is_refused(name, line, why):
    with pytest.raises(BadArgument, match=why):
        read(name, line)


def test_a_word_is_said_once():
    with pytest.raises(BadArgument, match="columns is said by ck= too"):
        read("rms_norm", "-m=3", columns="64")


def test_files_of_lines_say_the_program(tmp_path):
    file = tmp_path / "lines.txt"
    file.write_text("tile_rmsnorm2d_fwd -m=3 -n=64\n./tile_smoothquant -m=3 -n=64\n")
    found = [line.problems[0].family for line in lines(str(file), GFX942, {})]
    assert found == ["rms_norm", "quantise_rows"]
