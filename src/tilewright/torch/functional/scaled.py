"""Products of operands in 8 bits with scales, and products of groups, with torch's arguments:
``scaled_mm`` and ``grouped_mm`` of ``torch.nn.functional``."""

from __future__ import annotations

from typing import Any

import torch

from tilewright.errors import BadArgument
from tilewright.operation import operation
from tilewright.torch.functional import checked
from tilewright.torch.functional.products import bmm, gemm

grouped_gemm = operation("grouped_gemm")
"""`tilewright.grouped_gemm`."""

FP8 = tuple(getattr(torch, f"float8_{kind}") for kind in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz"))

_BLOCKS = {
    "a": {"BlockWise1x128": "1x128", "BlockWise128x128": "128x128"},
    "b": {"BlockWise1x128": "128x1", "BlockWise128x128": "128x128"},
}
"""Torch's recipes as the blocks of A [m, k] and of B [k, n] that share a scale. A recipe says the
block of B's transpose."""

BLOCK = 128
"""Elements along K that share a scale, and rows of a square that does."""

_SCALED, _GROUPED = "nn.functional.scaled_mm", "nn.functional.grouped_mm"


def scaled_mm(
    mat_a: Any,
    mat_b: Any,
    scale_a: Any,
    scale_recipe_a: Any,
    scale_b: Any,
    scale_recipe_b: Any,
    swizzle_a: Any = None,
    swizzle_b: Any = None,
    bias: Any = None,
    output_dtype: Any = torch.bfloat16,
    contraction_dim: Any = (),
    use_fast_accum: bool = False,
) -> Any:
    """As ``torch.nn.functional.scaled_mm``: the product of matrices in fp8 with scales.

    mat_a: [m, k].
    mat_b: [k, n].
    scale_a, scale_b: float32. One, for a matrix (``TensorWise``); [m, 1] and [1, n]
        (``RowWise``); [m, ⌈k / 128⌉] and [n, ⌈k / 128⌉] (``BlockWise1x128``); [⌈k / 128⌉,
        ⌈m / 128⌉] and [⌈k / 128⌉, ⌈n / 128⌉] (``BlockWise128x128``; torch pads their first
        dimension to a multiple of 4, and rows past the blocks are not read). In any strides.
    scale_recipe_a, scale_recipe_b: torch's ``ScalingType``. A matrix with blocks wants blocks of
        the other.
    bias: [n], in the dtype of the result.
    output_dtype: bfloat16, float16 or float32.
    use_fast_accum: sums are in float32 either way.

    Other recipes, swizzled scales and a contraction_dim are refused. Raises `BadArgument`.
    """
    for name, x in (("mat_a", mat_a), ("mat_b", mat_b)):
        checked.strided(_SCALED, name, x)
        checked.dimensions(name, x, 2)
        if x.dtype not in FP8:
            raise BadArgument(
                f"{name} is {x.dtype}, but must be in fp8; for others, {checked.instead(_SCALED)}"
            )
    for name, swizzle in (("swizzle_a", swizzle_a), ("swizzle_b", swizzle_b)):
        if _name(swizzle) not in ("", "NO_SWIZZLE"):
            raise BadArgument(f"{name} is not supported: {checked.instead(_SCALED)}")
    if tuple(contraction_dim) not in ((), (1, 0)):
        raise BadArgument(f"contraction_dim is not supported: {checked.instead(_SCALED)}")
    blocks, said = _scales(
        mat_a, mat_b, _alone(scale_a), _alone(scale_b), _name(scale_recipe_a), _name(scale_recipe_b)
    )
    if bias is not None:
        checked.dimensions("bias", bias, 1)
        said["epilogue"] = "+".join(filter(None, (said.get("epilogue"), "bias")))
        said["bias"] = bias.contiguous()
    if output_dtype in (None, torch.bfloat16):
        return gemm(mat_a, mat_b, *blocks, **said)
    if output_dtype not in checked.FLOATS:
        raise BadArgument(
            f"output_dtype is {output_dtype}, but must be bfloat16, float16 or float32; for "
            f"others, {checked.instead(_SCALED)}"
        )
    made = mat_a.new_empty((mat_a.shape[0], mat_b.shape[1]), dtype=output_dtype)
    return gemm(mat_a, mat_b, *blocks, out=made, **said)


def _name(word: Any) -> str:
    """The name of one of torch's words, also in a list of its own; empty for None."""
    one = _alone(word)
    return "" if one is None else str(getattr(one, "name", one))


def _alone(value: Any) -> Any:
    """The one thing in a list, or the thing itself."""
    return value[0] if isinstance(value, list | tuple) and len(value) == 1 else value


def _scales(
    a: Any, b: Any, scale_a: Any, scale_b: Any, recipe_a: str, recipe_b: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Scales of blocks, as operands of a GEMM, and what it is told by keyword. Raises
    `BadArgument`."""
    for name, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
        checked.strided(_SCALED, name, scale)
    if recipe_a == recipe_b == "TensorWise":
        for name, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
            if scale.numel() != 1:
                raise BadArgument(f"{name} is {list(scale.shape)}, but TensorWise is one scale")
        one, other = scale_a.reshape(1), scale_b.reshape(1)
        return (), {"epilogue": "scale+scale", "scale": one, "scale_2": other}
    if recipe_a == recipe_b == "RowWise":
        for name, scale, size in (
            ("scale_a", scale_a, a.shape[0]), ("scale_b", scale_b, b.shape[1])
        ):  # fmt: skip
            if scale.numel() != size:
                raise BadArgument(f"{name} is {list(scale.shape)}, but RowWise wants {size} scales")
        rows, columns = scale_a.reshape(-1), scale_b.reshape(-1)
        return (), {"epilogue": "row_scale+col_scale", "row_scale": rows, "col_scale": columns}
    block_a, block_b = _BLOCKS["a"].get(recipe_a), _BLOCKS["b"].get(recipe_b)
    if not block_a or not block_b:
        raise BadArgument(
            f"scale_recipe_a and scale_recipe_b are {recipe_a} and {recipe_b}: TensorWise and "
            "RowWise of both, and BlockWise1x128 and BlockWise128x128, are computed here; for "
            f"others, {checked.instead(_SCALED)}"
        )
    k = a.shape[1]
    return (
        _blocks("scale_a", scale_a, recipe_a, a.shape[0], k),
        _blocks("scale_b", scale_b, recipe_b, b.shape[1], k).t(),
    ), {"scale_a": block_a, "scale_b": block_b}


def _blocks(name: str, scale: Any, recipe: str, rows: int, k: int) -> Any:
    """A matrix' scales of blocks as [rows, ⌈k / 128⌉] or [⌈rows / 128⌉, ⌈k / 128⌉]. Raises
    `BadArgument` if they have not torch's shape."""
    along_k, squares = -(-k // BLOCK), recipe == "BlockWise128x128"
    padded = -(-along_k // 4) * 4
    if squares:
        shapes = [(n, -(-rows // BLOCK)) for n in dict.fromkeys((along_k, padded))]
    else:
        shapes = [(rows, along_k)]
    if tuple(scale.shape) not in shapes:
        wanted = " or ".join(str(list(shape)) for shape in shapes)
        raise BadArgument(f"{name} is {list(scale.shape)}, but must be {wanted} for {recipe}")
    return scale[:along_k].t() if squares else scale


def grouped_mm(
    mat_a: Any, mat_b: Any, *, offs: Any = None, bias: Any = None, out_dtype: Any = None
) -> Any:
    """As ``torch.nn.functional.grouped_mm``: products of groups, whose sizes are on the device.

    mat_a, mat_b: with groups of rows, [m, k] and [groups, k, n]; along the sum, [m, k] and [k, n],
        whose result is [groups, m, n], 0 for a group without a part of k; of columns,
        [groups, m, k] and [k, n]; and [groups, m, k] and [groups, k, n], without `offs`.
    offs: int32 [groups], where each group ends. Rows or columns behind the last one are left
        uninitialised in the result, and have gradients of 0.

    A bias, and another out_dtype than the operands', are refused. Raises `BadArgument`.
    """
    checked.floats(_GROUPED, mat_a=mat_a, mat_b=mat_b)
    if bias is not None or out_dtype not in (None, mat_a.dtype):
        raise BadArgument(f"bias and out_dtype are not supported: {checked.instead(_GROUPED)}")
    for name, x in (("mat_a", mat_a), ("mat_b", mat_b)):
        checked.dimensions(name, x, 2, 3)
    if mat_a.dim() == mat_b.dim() == 3:
        if offs is not None:
            raise BadArgument("offs is for groups in two dimensions; leave it out")
        return bmm(mat_a, mat_b)
    if offs is None:
        raise BadArgument(
            f"mat_a is {list(mat_a.shape)} and mat_b {list(mat_b.shape)}: offs must say where the "
            "groups end"
        )
    checked.strided(_GROUPED, "offs", offs)
    groups = [x.shape[0] for x in (mat_a, mat_b) if x.dim() == 3]
    fits = offs.dim() == 1 and all(n == offs.shape[0] for n in groups)
    if offs.dtype is not torch.int32 or not fits:
        wanted = ", ".join(map(str, groups)) or "groups"
        raise BadArgument(f"offs is {offs.dtype} {list(offs.shape)}, but must be int32 [{wanted}]")
    of_rows = (mat_a.dim(), mat_b.dim()) == (2, 3)
    a = mat_a if not of_rows or mat_a.stride(-1) == 1 else mat_a.contiguous()
    return grouped_gemm(checked.readable(a), checked.readable(mat_b), offs)
