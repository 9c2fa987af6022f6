"""Valid inputs, found in the files and the words of every family: a new family's are there too."""

from __future__ import annotations

import csv
import io
import json
import re
import struct
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from tilewright import ops
from tilewright.arch import arch, device
from tilewright.canonical import sha256
from tilewright.compile import Kernel, Resources
from tilewright.compile.kernel import Blob, TensorMap
from tilewright.listing.target import GENERATIONS
from tilewright.measure.problems import load_problems, profiles, sets
from tilewright.ops.help import helps
from tilewright.tables.aiter import forms, write_aiter
from tilewright.tables.row import Row, said

ROOT = Path(ops.__path__[0])
TESTS = Path(__file__).parents[1]
SM90, GFX942 = arch("sm_90"), arch("gfx942")
H200, MI300X = device("h200_sxm"), device("mi300x")


@cache
def problems() -> tuple[Any, ...]:
    """The first and the last problem of each set and of each profile of each family."""
    found: dict[Any, None] = {}
    for name in [*sets(), *profiles()]:
        listed = load_problems([name], SM90).problems
        found.update(dict.fromkeys((listed[0], listed[-1])))
    return tuple(found)


@cache
def configs() -> tuple[Any, ...]:
    """For each family: the config with all defaults, and some of the first problem's space on each
    architecture."""
    found: dict[Any, None] = {}
    for name in ops.families():
        family = ops.family(name)
        problem = next(p for p in problems() if p.family == name)
        found[family.make_config(family.axes(), SM90)] = None
        for this in (SM90, GFX942):
            listed = family.default_space(problem, this).expand(this).configs
            found.update(dict.fromkeys(listed[:: max(1, len(listed) // 4)]))
    return tuple(found)


@cache
def names() -> tuple[str, ...]:
    return tuple(config.name for config in configs())


def kernel_of(problem: Any) -> str:
    """The name of a config of the problem's family."""
    return next(config.name for config in configs() if config.family == problem.family)


@cache
def spaces() -> tuple[Any, ...]:
    """The documents of spaces in the families' folders and on the pages, and those of CK Tile
    Engine."""
    found = [json.loads(path.read_text()) for path in sorted(ROOT.glob("*/*/**/*.json"))]
    shortened = [_shortened(one) for one in found if isinstance(one, dict)]
    return (*shortened, *TILE_ENGINE)


def _shortened(document: dict[str, Any]) -> dict[str, Any]:
    """With one or two values of each axis, so that few kernels are judged."""
    many = len(document) > 8
    return {
        axis: values[: 1 if many else 2] if isinstance(values, list) else values
        for axis, values in document.items()
    }


TILE_ENGINE: tuple[Any, ...] = (
    {
        "problem": {"datatype_a": {"values": ["fp16"]}, "layout_b": {"values": ["c", "r"]}},
        "tile_config": {
            "tile_m": {"min": 64, "max": 256, "step": 64, "exclude": [192]},
            "tile_n": {"values": [64, 128]}, "tile_k": {"values": [64]},
            "warp_m": {"values": [2, 4]}, "warp_n": {"values": [2]}, "warp_k": {"values": [1]},
            "warp_tile_m": {"values": [32, 16]}, "warp_tile_k": {"values": [16]},
        },
        "trait_config": {
            "pipeline": {"values": ["compv3", "mem"]}, "scheduler": {"values": ["intrawave"]},
            "epilogue": {"values": ["cshuffle"]}, "pad_m": {"values": [False]},
            "persistent": {"values": [True, False]},
        },
        "k_block_per_cu": 1,
    },
    {"streamk_config": {"reduction_strategy": {"values": ["linear", "tree"]}}, "tile_m": 64},
    {"family": "gemm", "dtype_a": "fp8", "tile_m": [64, "*"], "num_stages": -1, "mma": [0, 0, 0]},
    {
        "variant": "bwd_weight",
        "trait_config": {
            "data_type": {"values": ["bf16"]}, "pipeline": {"values": ["mem", "compv4"]},
            "scheduler": {"values": ["intrawave"]}, "ndim_spatial": {"values": [2]},
            "num_groups_to_merge": {"values": [1, 2]}, "two_stage": {"values": [False, True]},
        },
    },
    {
        "variant": "bwd_weight", "ndim_spatial": 2, "datatype": "bf16",
        "instances": [
            {"id": 0, "tile_m": 64, "tile_n": 32, "tile_k": 32, "warp_m": 2, "warp_n": 1,
             "warp_k": 1, "vector_size_a": 8, "pipeline": "compv1", "two_stage": True},
            {"tile_m": 64, "tile_n": 32, "tile_k": 32, "warp_m": 2, "warp_n": 1, "warp_k": 1,
             "pipeline": "mem", "explicit_gemm": True, "streamk_reduction_strategy": None},
        ],
    },
    {
        "variant": "gemm_decode",
        "tile_config": {"tile_m": [1], "tile_n": [1], "tile_k": [512], "warps_per_block": [1]},
        "trait_config": {"split_k": [1, 2], "epilogue": ["atomic_add"], "has_bias": [True],
                         "x_scale_layout": ["Block2D<1, 128>"],
                         "w_scale_layout": ["Block2D<128, 128>"]},
        "datatypes": [{"a": "fp8", "b": "fp8", "c": "bf16", "acc": "fp32"}],
    },
)  # fmt: skip
"""CK Tile Engine's documents, in the forms in which it publishes them."""


@cache
def tables_of_problems() -> tuple[tuple[str, str], ...]:
    """Family and the first lines of each list of problems (CSV) in the families' folders."""
    return tuple(
        (path.relative_to(ROOT).parts[0], "".join(path.read_text().splitlines(True)[:6]))
        for path in sorted(ROOT.glob("**/problems.csv"))
    )


@cache
def words() -> tuple[tuple[str, dict[str, str]], ...]:
    """Problems in words: of the families' help, and of each list of problems."""
    found = []
    for family, help_ in helps().items():
        for text in help_.problems.values():
            pairs = [pair.partition("=") for pair in text.split()]
            found.append((family, {word: value for word, equal, value in pairs if equal}))
    for family, text in tables_of_problems():
        lines = [line for line in io.StringIO(text) if not line.startswith("#")]
        row = next(csv.DictReader(lines))
        found.append((family, {word: value for word, value in row.items() if value}))
    found += [(family, {word: text}) for family, word, text in LINES]
    return tuple(found)


LINES = (
    ("conv", "miopen", "convbfp16 -n 32 -c 64 -H 56 -W 56 -k 64 -p 1 -q 1 -u 1 -v 1 -l 1 -j 1"),
    ("conv", "miopen", "convfp16 --batchsize 2 -z same -m trans -Y 1 -X 0 -F 1 -b 1 -I NHWC -S 0"),
    ("conv", "onednn", "mb32ic64ih56oc64oh56kh3ph1"),
    ("conv", "onednn", "--conv --dir=BWD_W --dt=bf16:bf16:bf16 g32mb8ic64ih14oc64oh14kh3ph1"),
    ("conv", "onednn", "--deconv --dt=bf16 --stag=axb --wtag=xba "
     "--attr-scales=src:common:2+wei:per_oc --attr-post-ops=relu+add:f32:per_oc+sum "
     "mb1ic8ih5oc4oh9kh3sh2ph1"),
    ("gemm", "onednn", "--strides=8x4x1:24x6x1:21x7x1 3x2x4:3x4x6:3x2x6"),
    ("gemm", "onednn", "--matmul --dt=f8_e4m3:f8_e4m3:bf16 --wtag=ba "
     "--attr-scales=src:per_tensor:f32:1x128+wei:per_tensor:f32:128x1 --bia-dt=f32 --bia_mask=2 "
     "30x256:256x50"),
    ("grouped_gemm", "onednn",
     "--matmul --grouped=0:4:8+0+16+8 --dt=bf16 --wtag=acb 32x64:4x64x128"),
    ("attention", "ck", "tile_example_fmha_fwd -mode=1 -b=2 -h_k=2 -s=9,5 -s_k=16,7 -s_qpad=16,8 "
     "-vlayout=c -prec=fp8bf16 -qscale=bs -mask=b:4,35"),
    ("conv", "ck", "grouped_conv_fwd 1 1 0 1 1 0 1 2 32 4 192 192 3 3 28 28 1 1 1 1 1 1 1 1"),
)  # fmt: skip
"""Lines of other programs that state a problem, by the word that reads them."""


@cache
def rows() -> tuple[Row, ...]:
    return tuple(
        Row(
            on, problem, kernel_of(problem), (), 10.0 + n, (10.0, 11.0 + n), 0.5,
            "2026-01-02T03:04:05", (("tilewright", "0.1.0"),), "570.1", '{"cache":"flushed"}',
        )
        for on in (H200, MI300X)
        for n, problem in enumerate(problems())
    )  # fmt: skip


@cache
def foreign_tables() -> tuple[tuple[str, str], ...]:
    """File name and text of a table of each form that can be written, and of others."""
    found = []
    for name in forms():
        text = write_aiter(rows(), name).text
        if lines := text.splitlines(True)[1:]:
            found.append((f"{name}_tuned_gemm.csv", text.partition("\n")[0] + "\n" + lines[0]))
    return (*found, *AITER)


AITER = (
    (
        "a8w8_tuned_gemm.csv",
        "cu_num,M,N,K,q_dtype_w,kernelId,splitK,us,kernelName,tflops,bw,errRatio\n"
        "304,64,128,256,torch.int8,7,0,20.5,a8w8_256x128,1.0,2.0,0.01\n",
    ),
    ("a8w8_blockscale_untuned_gemm.csv", "M,N,K\n64,512,512\n128,512,512\n"),
    (
        "untuned_fmoe.csv",
        "token,model_dim,inter_dim,expert,topk,act_type,dtype,q_dtype_a,q_dtype_w,q_type,use_g1u1,"
        "doweight_stage1\n1,4096,256,32,5,ActivationType.Silu,torch.bfloat16,torch.bfloat16,"
        "torch.bfloat16,QuantType.No,1,0\n",
    ),
)


@cache
def listed() -> list[dict[str, Any]]:
    """Problems field by field and in words, as lists in JSON have them."""
    stated = [said(problem) for problem in problems()]
    # An object without a list or null states a problem in words.
    by_field = [one for one in stated if any(isinstance(v, list | tuple) for v in one.values())]
    return [*by_field, *({"family": family, **pairs} for family, pairs in words())]


# --- what compilers and other programs write ---------------------------------------------------


def kernel() -> Kernel:
    return Kernel(
        name=names()[-1], arch="sm_90", key=sha256(b"k"), triton="3.6.0", binary="cubin",
        entry="scale", num_warps=4, num_ctas=1, shared=1024, global_scratch=0,
        global_scratch_align=1, profile_scratch=0, profile_scratch_align=1,
        cooperative=False, pdl=False, arguments=(("x", "*fp32"),),
        tensor_maps=(TensorMap(3, 2, 10, (128, 64), False),),
        resources=Resources(32, 0, 0, 0, 0, 0),
        blobs={"cubin": Blob(sha256(b"x"), 1)},
    )  # fmt: skip


@cache
def listings() -> tuple[str, ...]:
    """A listing for each generation, with every instruction that our kernels have on it."""
    known = json.loads((TESTS / "emulate" / "instructions.json").read_text())["instructions"]
    found = []
    for target, generation in GENERATIONS.items():
        code = [text for texts in known.get(generation, {}).values() for text in texts[:1]]
        code = [text for text in code if not _ELSEWHERE.search(text)]
        found += [_listing(target, code[begin : begin + 20]) for begin in range(0, len(code), 20)]
    return tuple(found)


_ELSEWHERE = re.compile(r"\.LBB|v\[?[2-9]\d\d|vgpr_msb")
"""Labels, and registers that need a mode."""


def _listing(target: str, code: list[str]) -> str:
    lanes = 64 if target.startswith("gfx9") else 32
    lines = "\n".join(f"\t{one}" for one in code)
    return f"""\t.amdgcn_target "amdgcn-amd-amdhsa--{target}"
\t.text
\t.type\tscale,@function
scale:
\t.file\t1 "/tmp" "scale.py"
\t.loc\t1 12 5
{lines}
.LBB0_1:
\ts_cbranch_scc1 .LBB0_1
\ts_endpgm
\t.section\t.rodata,"a",@progbits
\t.amdhsa_kernel scale
\t\t.amdhsa_group_segment_fixed_size 0
\t\t.amdhsa_next_free_vgpr 32
\t\t.amdhsa_float_denorm_mode_32 3
\t.end_amdhsa_kernel
\t.amdgpu_metadata
---
amdhsa.kernels:
  - .args:
      - .address_space:  global
        .offset:         0
        .size:           8
        .value_kind:     global_buffer
      - .offset:         8
        .size:           4
        .value_kind:     by_value
    .group_segment_fixed_size: 0
    .kernarg_segment_size: 16
    .private_segment_fixed_size: 0
    .sgpr_count:     18
    .vgpr_count:     32
    .vgpr_spill_count: 0
    .wavefront_size: {lanes}
...
\t.end_amdgpu_metadata
"""


def code_object(metadata: Any) -> bytes:
    """An ELF file with machine code and this metadata, as HIP's runtime reads it."""
    note = msgspec.msgpack.encode(metadata)
    size = len(note)
    note += b"\0" * (-size % 4)
    contents = [b"", b"\x01\x02\x03\x04" * 4,
                struct.pack("<III8s", 7, size, 32, b"AMDGPU\0\0") + note]  # fmt: skip
    titles = ["", ".text", ".note", ".shstrtab"]
    strings = b"".join(title.encode() + b"\0" for title in titles)
    contents.append(strings)
    at, sections, body = 64, b"", b""
    for title, kind, content in zip(titles, (0, 1, 7, 3), contents, strict=True):
        sections += struct.pack(
            "<IIQQQQIIQQ", strings.index(title.encode() + b"\0"), kind, 0, 0, at + len(body),
            len(content), 0, 0, 1, 0,
        )  # fmt: skip
        body += content
    header = b"\x7fELF\x02\x01" + bytes(10) + struct.pack(
        "<HHIQQQIHHHHHH", 3, 224, 1, 0, 0, at + len(body), 0, 64, 0, 0, 64, len(titles), 3
    )  # fmt: skip
    return header + body + sections


METADATA: Any = {
    "amdhsa.version": [1, 2],
    "amdhsa.kernels": [
        {
            ".name": "scale",
            ".args": [{".offset": 0, ".size": 8, ".value_kind": "global_buffer"},
                      {".offset": 8, ".size": 4, ".value_kind": "by_value"}],
            ".kernarg_segment_size": 16, ".group_segment_fixed_size": 0,
            ".max_flat_workgroup_size": 256, ".wavefront_size": 64,
        }
    ],
}  # fmt: skip

NCU = (TESTS / "tune" / "ncu" / "gemm.txt").read_text()
