"""vLLM's tuned configs of fused mixtures of experts, read as spaces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tilewright.arch import arch
from tilewright.errors import BadArgument, BadFile
from tilewright.space_file import load_space

SM90, MI350 = arch("sm_90"), arch("gfx950")
NAME = "E=128,N=384,device_name=NVIDIA_H200{}.json"


def kernel(m: int = 16, n: int = 128, k: int = 128, **more: Any) -> dict[str, Any]:
    tile = {"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": n, "BLOCK_SIZE_K": k}
    return {**tile, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 3, **more}


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def made(document: Any, more: str = "", this: Any = SM90, **said: str) -> Any:
        path = tmp_path / NAME.format(more)
        path.write_text(json.dumps(document))
        return load_space(path, this, signature=said or None)

    return made


def test_each_kernel_is_one_config(read):
    document = {"triton_version": "3.4.0", "1": kernel(), "64": kernel(64, k=64), "128": kernel()}
    space, notes = read(document)
    assert space.family == "grouped_gemm" and not notes
    configs = space.expand(SM90).configs
    assert {(c.tile_m, c.tile_n, c.tile_k) for c in configs} == {(16, 128, 128), (64, 128, 64)}
    assert {(c.form, c.layout, c.dtype_a, c.pipeline, c.group_m) for c in configs} == {
        ("contiguous", "rcr", "bf16", "basic", 1)
    }


@pytest.mark.parametrize(
    ("more", "this", "fields"),
    [
        ("", SM90, {"dtype_a": "bf16", "scale_a": "", "epilogue": ""}),
        (",dtype=fp8_w8a8", SM90, {"dtype_a": "e4m3fn", "epilogue": "row_scale+col_scale"}),
        (",dtype=fp8_w8a8", arch("gfx942"), {"dtype_a": "e4m3fnuz"}),
        (
            ",dtype=fp8_w8a8,block_shape=[128,128]",
            SM90,
            {"dtype_a": "e4m3fn", "scale_a": "1x128", "scale_b": "128x128", "epilogue": ""},
        ),
        (",dtype=int8_w8a8", SM90, {"dtype_a": "int8", "dtype_c": "bf16"}),
        (
            ",dtype=int4_w4a16,block_shape=[0,64]",
            SM90,
            {"dtype_b": "int4", "scale_b": "64x1-bf16", "pipeline": "weights"},
        ),
        (
            ",dtype=fp8_w8a16",
            SM90,
            {"dtype_a": "bf16", "dtype_b": "e4m3fn", "scale_b": "", "epilogue": "col_scale"},
        ),
        (",dtype=fp8_w8a16", arch("gfx942"), {"dtype_b": "e4m3fnuz", "pipeline": "basic"}),
        (
            ",dtype=int8_w8a16,block_shape=[0,64]",
            SM90,
            {"dtype_b": "int8", "scale_b": "64x1-bf16", "pipeline": "weights"},
        ),
        (
            ",dtype=fp8_w8a16,block_shape=[64,128]",
            SM90,
            {"dtype_b": "e4m3fn", "scale_a": "", "scale_b": "128x64", "epilogue": ""},
        ),
        (",dtype=mxfp4_w4a4", MI350, {"dtype_a": "e2m1", "pipeline": "mx"}),
        (",dtype=mxfp4_w4a16", MI350, {"dtype_a": "bf16", "dtype_b": "e2m1"}),
    ],
)
def test_the_name_says_dtypes_and_scales(read, more, this, fields):
    space, _ = read({"8": kernel()}, more, this)
    (config,) = space.expand(this).configs
    assert {field: getattr(config, field) for field in fields} == fields


def test_the_caller_may_say_the_dtype_that_the_name_leaves_open(read):
    for word in ("dtype", "dtype_a"):
        space, _ = read({"8": kernel()}, **{word: "fp16"})
        assert {c.dtype_a for c in space.expand(SM90).configs} == {"fp16"}
    with pytest.raises(BadArgument, match="dtype_a is said by the file's name too"):
        read({"8": kernel()}, ",dtype=fp8_w8a8", dtype="fp16")


def test_what_has_no_counterpart_is_noted_once(read):
    document = {"1": kernel(SPLIT_K=16, kpack=2), "2": kernel(SPLIT_K=8, fast=1), "wide": {}}
    _, notes = read(document)
    assert sorted(notes) == [
        "$.wide ignored: it is no number of tokens",
        "SPLIT_K ignored: grouped kernels do not split K",
        "fast ignored: it is no key that is known",
        "kpack ignored: the compiler decides how operands are packed",
    ]
    assert read({"1": kernel(SPLIT_K=1)})[1] == []
    _, notes = read({"1": kernel()}, ",dtype=int4_w4a16")
    assert notes == ["groups of K are not said, and taken to be 128"]
    space, notes = read({"1": kernel()}, ",block_shape=[128,128]")
    assert notes == ["block_shape ignored: without a dtype there is nothing to scale"]
    assert {c.scale_a for c in space.expand(SM90).configs} == {""}


@pytest.mark.parametrize(
    ("document", "more", "said"),
    [
        ({}, "", "no kernel for any number of tokens"),
        ({"triton_version": "3.4.0"}, "", "no kernel for any number of tokens"),
        ({"8": []}, "", r"\$\.8: a kernel is an object"),
        ({"8": kernel(m=0)}, "", r"\$\.8\.BLOCK_SIZE_M: 0 is not a whole number from 1"),
        ({"8": {**kernel(), "num_warps": "4"}}, "", r"\$\.8\.num_warps: '4' is not"),
        ({"8": {"BLOCK_SIZE_M": 16}}, "", r"\$\.8\.BLOCK_SIZE_N: None is not"),
        ({"8": kernel()}, ",dtype=int8_w4a8", "dtype=int8_w4a8 in its name: no grouped kernel"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(read, document, more, said):
    with pytest.raises(BadFile, match=said) as caught:
        read(document, more)
    assert "E=128,N=384" in str(caught.value)


def test_other_names_are_other_documents(tmp_path):
    path = tmp_path / "E=128.json"
    path.write_text(json.dumps({"8": kernel()}))
    with pytest.raises(BadFile):
        load_space(path, SM90)
