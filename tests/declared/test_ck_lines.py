"""Command lines of CK Tile's examples of routing, moves, reductions and pooling."""

from __future__ import annotations

import pytest

from tilewright import ops
from tilewright.arch import arch
from tilewright.errors import BadArgument

GFX942 = arch("gfx942")


def read(name, line):
    return ops.family(name).parse_problem({"ck": line}, GFX942)


def fields(name, **said):
    return ops.family(name).problem_type(**said)


def test_routing():
    line = "tile_example_topk_softmax -t=5 -e=20 -k=3 -st_i=32 -pr_i=bf16 -seed=3"
    assert read("topk_routing", line) == fields(
        "topk_routing", rows=5, experts=20, k=3, logits_stride=32
    )
    assert read("topk_routing", "-activation=sigmoid").scoring == "sigmoid"
    assert read("sort_by_expert", "-t=9 -e=6 -k=2 -unit=16") == fields(
        "sort_by_expert", tokens=9, experts=6, k=2, block=16, id_dtype="int32", has_weights=True
    )


def test_local_experts_are_a_map_of_experts():
    assert read("sort_by_expert", "-e=9 -k=2 -local_eid=0,3,4 -ci=0 -dispatch=1") == fields(
        "sort_by_expert", tokens=128, experts=3, k=2, block=32, id_dtype="int32", has_weights=True,
        has_expert_map=True, global_experts=9,
    )  # fmt: skip


def test_moves():
    found = read("strided_copy", "bin/tile_example_permute -shape=2,5,3,7 -perm=0,2,1,3 -v=0")
    assert (found.n2, found.n3, found.n4, found.n5, found.dtype) == (2, 3, 5, 7, "fp16")
    assert (found.s2, found.s3, found.s4, found.s5) == (105, 7, 21, 1)
    turned = "tile_example_batched_transpose -N=2 -C=6 -H=4 -W=5 -pr=fp8"
    there, back = (
        read("strided_copy", f"{turned} -layout_in={a} -layout_out={b}")
        for a, b in (("NCHW", "NHWC"), ("NHWC", "NCHW"))
    )
    assert (there.n3, there.n4, there.n5, there.s4, there.s5) == (2, 20, 6, 1, 20)
    assert (back.n3, back.n4, back.n5, back.s4, back.s5) == (2, 6, 20, 1, 6)
    assert there.dtype == "e4m3fnuz"


def test_sums():
    assert read("reduction", "-m=7 -n=64 -prec=bf16") == fields(
        "reduction", outer=7, far=1, middle=1, near=64, inner=1, sum=True
    )
    line = "-N=3 -D=9 -H=8 -W=7 -C=5 -Z=1 -Y=3 -X=3 -Sz=1 -LeftPz=0 -RightPz=0 -RightPx=2"
    assert read("pool", line) == fields(
        "pool", images=3, depth=9, height=8, width=7, channels=5, dtype="fp16", index=True,
        kernel_h=3, kernel_w=3, stride_h=2, stride_w=2, pad_h=1, pad_w=1, over_w=1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "line", "why"),
    [
        ("topk_routing", "-pr_w=fp16", "weights are fp32"),
        ("topk_routing", "-st_o=5", "results lie contiguous"),
        ("topk_routing", "-activation=relu", "softmax or sigmoid"),
        ("sort_by_expert", "-moe_buf_size=16", "nothing else is filled"),
        ("sort_by_expert", "-local_t=5", "not read from memory"),
        ("rms_norm", "-save_unquant=1", "written once"),
        ("rms_norm", "-s=1", "nothing is rounded before"),
        ("strided_copy", "-perm=0,0,1", "no order of 3 dimensions"),
        ("strided_copy", "tile_example_batched_transpose -layout_out=NCHW", "turned into NHWC"),
        ("pool", "-RightPy=0", "as much as before it"),
        ("reduction", "-k=3", "tile_example_reduce has no -k"),
    ],
)
def test_what_has_no_counterpart_is_refused(name, line, why):
    with pytest.raises(BadArgument, match=why):
        read(name, line)
