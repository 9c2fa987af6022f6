"""vLLM's tuned configs of fused mixtures of experts, as spaces.

A file is named for the layer and the GPU, and has a kernel for each number of tokens:

    E=128,N=384,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json
    {"64": {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1,
            "num_warps": 4, "num_stages": 3}, …}

Both products of a layer run with the kernel, so it is one of ours for rows sorted by expert. E is
the number of experts and N the width between the products; the width of the model is not said, so
there is no problem to read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tilewright.arch.model import Arch
from tilewright.dtypes import resolve
from tilewright.errors import BadArgument, BadFile
from tilewright.ops.gemm.lowbit import MX_SCALES
from tilewright.space import KernelSpace

_NAME = re.compile(
    r"E=\d+,N=\d+,device_name=[^,]+(?:,dtype=(?P<dtype>\w+))?"
    r"(?:,block_shape=\[(?P<rows>\d+), ?(?P<columns>\d+)\])?\.json",
    re.ASCII,
)

_AXES = {
    "BLOCK_SIZE_M": "tile_m",
    "BLOCK_SIZE_N": "tile_n",
    "BLOCK_SIZE_K": "tile_k",
    "GROUP_SIZE_M": "group_m",
    "num_warps": "num_warps",
    "num_stages": "num_stages",
}
"""Our axis for each key of a kernel."""

_IGNORED = {
    "SPLIT_K": "grouped kernels do not split K",
    "waves_per_eu": "the compiler decides how many waves share a SIMD",
    "matrix_instr_nonkdim": "the compiler picks the matrix instruction",
    "kpack": "the compiler decides how operands are packed",
    "num_ctas": "a kernel here is no cluster",
}
"""Why a further key of a kernel says nothing here."""

_SCALED = {"epilogue": "row_scale+col_scale"}
_WIDENED = {"fp8_w8a16": "fp8", "int8_w8a16": "int8"}
"""Our dtype of weights beside tokens in bf16, by the name's."""
_GROUP = 128
"""Elements of K that share a scale of int4 weights, where the name does not say it."""


def space(
    file: str, document: Mapping[str, Any], arch: Arch, signature: Mapping[str, str] | None = None
) -> tuple[KernelSpace, list[str]] | None:
    """The space of a document, and a note for each part without a counterpart here; None if `file`,
    its name, is not that of such a file. Raises `BadFile`."""
    match = _NAME.fullmatch(file)
    if match is None:
        return None
    notes: list[str] = []
    said = _signature(match["dtype"] or "", match["rows"], match["columns"], notes)
    given = {"dtype_a" if word == "dtype" else word: v for word, v in (signature or {}).items()}
    if match["dtype"] and (twice := sorted({*given} & {"dtype_a", "dtype_b"})):
        raise BadArgument(f"{twice[0]} is said by the file's name too; leave it out")
    fixed = {"form": "contiguous", "layout": "rcr", **said, **given}
    for field in ("dtype_a", "dtype_b"):
        if field in fixed:
            fixed[field] = resolve(fixed[field], arch.fp8)
    rows = []
    for tokens, kernel in document.items():
        if tokens.isdecimal():
            rows.append(_kernel(tokens, kernel, notes))
        elif tokens != "triton_version":
            notes.append(f"$.{tokens} ignored: it is no number of tokens")
    if not rows:
        raise BadFile("$: no kernel for any number of tokens")
    axes = {axis: [value] for axis, value in fixed.items()}
    linked = {tuple(_AXES.values()): list(dict.fromkeys(rows))}
    return KernelSpace("grouped_gemm", axes, linked=linked), list(dict.fromkeys(notes))


def _signature(
    dtype: str, rows: str | None, columns: str | None, notes: list[str]
) -> dict[str, str]:
    """What a name's dtype and block mean: dtypes, scales, and the pipeline that takes them."""
    if dtype in ("", "fp8_w8a8", "int8_w8a8"):
        said = {"dtype_a": {"": "bf16", "fp8_w8a8": "fp8", "int8_w8a8": "int8"}[dtype]}
        if rows and columns and not dtype:
            notes.append("block_shape ignored: without a dtype there is nothing to scale")
        elif rows and columns:
            said |= {"scale_a": f"1x{columns}", "scale_b": f"{columns}x{rows}"}
        elif dtype:
            said |= _SCALED
        return {"pipeline": "basic", **said}
    if dtype == "int4_w4a16":
        group = columns or str(_GROUP)
        if not columns:
            notes.append(f"groups of K are not said, and taken to be {_GROUP}")
        return {"pipeline": "weights", "dtype_b": "int4", "scale_b": f"{group}x1-bf16"}
    if dtype == "mxfp4_w4a16":
        return {"pipeline": "mx", "dtype_b": "e2m1", "scale_b": MX_SCALES[1]}
    if dtype == "mxfp4_w4a4":
        scales = {"scale_a": MX_SCALES[0], "scale_b": MX_SCALES[1]}
        return {"pipeline": "mx", "dtype_a": "e2m1", "dtype_b": "e2m1", **scales}
    if dtype in _WIDENED:
        kind = _WIDENED[dtype]
        if not columns:
            return {"pipeline": "basic", "dtype_b": kind, "epilogue": "col_scale"}
        across = int(rows or 0)  # 0: groups of K, for each column
        block = f"{columns}x{across or 1}" + ("" if across else "-bf16")
        return {"pipeline": "weights", "dtype_b": kind, "scale_b": block}
    raise BadFile(f"dtype={dtype} in its name: no grouped kernel here has such operands")


def _kernel(tokens: str, kernel: Any, notes: list[str]) -> tuple[int, ...]:
    """The values of our axes, of the kernel for a number of tokens."""
    if not isinstance(kernel, dict):
        raise BadFile(f"$.{tokens}: a kernel is an object with {', '.join(_AXES)}")
    for key, value in kernel.items():
        if (key in _IGNORED and value not in (1, 0)) or key not in (*_IGNORED, *_AXES):
            notes.append(f"{key} ignored: {_IGNORED.get(key, 'it is no key that is known')}")
    found = []
    for key in _AXES:
        value = kernel.get(key)
        if type(value) is not int or value < 1:
            raise BadFile(f"$.{tokens}.{key}: {value!r} is not a whole number from 1")
        found.append(value)
    return tuple(found)
