"""Reductions: sums, means, products, L2 norms, the largest and the smallest with their places.

    x [outer, far, middle, near, inner]  →  each result [outer, middle, inner]

`far` and `near` are reduced. Any reduction over axes of an array has this form once neighbouring
axes are taken as one: `tilewright.reduce` brings it there. Several results are made in one read.
Places count the reduced elements in order, `far` before `near`; of equal elements the first counts.
NaN counts as the largest and as the smallest.

CK Tile's single and multiple reductions are such operations; its AMAX is `absmax`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tilewright.arch.figures import DEVICE
from tilewright.custom import Declaration, Gradient, In, Out, Scratch, declare, kernel
from tilewright.declared._arrays import functions
from tilewright.declared.sums import _ck, _reduce, _tile_engine, _tiles
from tilewright.dtypes import DTYPES
from tilewright.ops.formats import Formats
from tilewright.ops.powers import power_of_two

RESULTS = {
    "sum": "sums",
    "mean": "means",
    "norm": "norms",
    "prod": "products",
    "max": "maxima",
    "min": "minima",
    "absmax": "largest",
    "argmax": "max_at",
    "argmin": "min_at",
}
"""The result that each option asks for, in the order of a call's results."""

FILLED = 1056
"""Workgroups that are wanted at least: eight for each of 132 SMs."""
SPLITS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Workgroups that share the elements of a result. ONCE, the axis beside it: whether one tile has
all elements of its results, so that nothing is added up from tile to tile."""
VALUES, PLACES = 6, 2
"""Partial results of a result: sum, sum of squares, product, largest, smallest, largest absolute
value; and two places."""


def reference(x: Any, problem: Any) -> tuple[Any, ...]:
    f, kind = functions(x), DTYPES[problem.dtype]
    signed = kind.kind == "int" and not kind.name.startswith("u")
    most = 2 ** (kind.bits - 1) - 1 if signed else math.inf
    moved: Any = x.swapaxes(1, 2).swapaxes(2, 4)  # [outer, middle, inner, near, far]
    moved = moved.swapaxes(3, 4).reshape(problem.outer, problem.middle, problem.inner, -1)
    made: dict[str, Callable[[], Any]] = {
        "sum": lambda: moved.sum(-1),
        "mean": lambda: moved.sum(-1) / moved.shape[-1],
        "norm": lambda: f.sqrt((moved * moved).sum(-1) / 1),
        "prod": lambda: moved.prod(-1),
        "max": lambda: f.amax(moved, -1),
        "min": lambda: f.amin(moved, -1),
        "absmax": lambda: f.amax(abs(moved), -1).clip(-1, most),
        "argmax": lambda: moved.argmax(-1),
        "argmin": lambda: moved.argmin(-1),
    }
    return tuple(make() for name, make in made.items() if getattr(problem, name))


def refused(problem: Any) -> str:
    if not any(getattr(problem, name) for name in RESULTS):
        return f"no result is asked for; there are {', '.join(RESULTS)}"
    if not problem.far * problem.near:
        return "there are no elements to reduce"
    kind, made = DTYPES[problem.dtype], DTYPES[problem.out_dtype]
    if kind.bits < 8 or (kind.kind == "float" and kind.bits < 16):
        return f"elements are {problem.dtype}; cast them to bf16, fp16, fp32 or whole numbers"
    if kind.kind == "float" and made.kind != "float":
        return f"out_dtype = {problem.out_dtype} for elements of {problem.dtype}"
    if made.kind == "int" and (problem.mean or problem.norm):
        return "mean and norm of whole numbers want a floating out_dtype"
    if made.kind == "int" and made.bits < 32 and (problem.sum or problem.prod):
        return f"sums and products in {problem.out_dtype}; state out_dtype = 'int64' or 'int32'"
    return _tiles.refused(problem)


def split(problem: Any) -> tuple[int, ...]:
    """In how many parts a result is made: one where results fill the GPU, else a few numbers with
    which parts do, as far as there are elements."""
    results = problem.outer * problem.middle * problem.inner
    count = results * problem.far * problem.near
    kept = min(_tiles.WIDE[1], problem.inner) if _tiles.by_columns(problem) else 1
    wanted = min(FILLED // max(1, results // kept), count // 4096)
    if wanted < 2:
        return (1,)
    most = min(1024, power_of_two(wanted))
    return tuple(dict.fromkeys((most, max(1, most // 2), max(1, most // 4), 1)))


def fits(problem: Any, config: Any) -> bool | str:
    if config.SPLIT not in split(problem):
        return f"{config.SPLIT} parts, where {', '.join(map(str, split(problem)))} are taken"
    if _tiles.pieces(problem, config) < config.SPLIT:
        return f"{config.SPLIT} parts of {_tiles.pieces(problem, config)} tiles"
    once = _tiles.pieces(problem, config) == 1
    if once != config.ONCE:
        return f"ONCE = {config.ONCE} of {_tiles.pieces(problem, config)} tiles"
    return _tiles.fits(problem, config)


def narrows(problem: Any) -> dict[str, Any]:
    return {**_tiles.narrows(problem), "SPLIT": split(problem)}


def running(problem: Any) -> int:
    """Numbers that a lane keeps for each element of its tile: in 32 bits, or twice as many."""
    values = sum(getattr(problem, name) for name in ("norm", "prod", "max", "min", "absmax"))
    values += (problem.sum or problem.mean) + 2 * (problem.argmax + problem.argmin)
    return int(values) * (1 if DTYPES[problem.dtype].kind == "float" else 2)


def prefers(problem: Any, config: Any) -> float:
    """Microseconds, about: of reading, and of the kernel that puts parts together."""
    finish = DEVICE.SECOND_US if config.SPLIT > 1 else 0.0
    kept = running(problem)
    if config.ONCE and DTYPES[problem.dtype].kind == "float":
        kept -= bool(problem.sum or problem.mean)  # which is not kept from tile to tile
    return _tiles.pace(problem, config, config.SPLIT, kept) + finish


def results(problem: Any, config: Any) -> int:
    return int(problem.outer * problem.middle * problem.inner)


def partial(count: int, dtype: str, kinds: tuple[str, ...] = ("float", "int")) -> Scratch:
    """Memory for `count` partial results of each result, for elements of these kinds."""
    return Scratch(
        lambda problem, config: (count, results(problem, config), config.SPLIT),
        dtype,
        there=lambda config: config.SPLIT > 1 and DTYPES[config.dtype].kind in kinds,
    )


def gradients(problem: Any) -> tuple[Gradient, ...] | str:
    for name in ("prod", "absmax"):
        if getattr(problem, name):
            return f"reduction states no gradient of {name}"
    for name in ("max", "min"):
        if getattr(problem, name) and not getattr(problem, f"arg{name}"):
            return f"the gradient of {name} goes to its place: ask for arg{name} too"
    return (
        Gradient(
            "x",
            "reduction_backward",
            ("x",),
            keywords={
                "d_sum": "grad sums",
                "d_mean": "grad means",
                "d_norm": "grad norms",
                "norm": "norms",
                "d_max": "grad maxima",
                "max_at": "max_at",
                "d_min": "grad minima",
                "min_at": "min_at",
            },
        ),
    )


declare(
    Declaration(
        name="reduction",
        module=__name__,
        operands={
            "x": In(
                "outer",
                "far",
                "middle",
                "near",
                "inner",
                strides=("outer_stride", "far_stride", "middle_stride", "near_stride", 1),
            ),
            "sums": Out("outer", "middle", "inner", dtype="out_dtype", when="sum"),
            "means": Out("outer", "middle", "inner", dtype="out_dtype", when="mean"),
            "norms": Out("outer", "middle", "inner", dtype="out_dtype", when="norm"),
            "products": Out(
                "outer", "middle", "inner", dtype="out_dtype", when="prod", differentiable=False
            ),
            "maxima": Out("outer", "middle", "inner", when="max", exact=True),
            "minima": Out("outer", "middle", "inner", when="min", exact=True),
            "largest": Out(
                "outer", "middle", "inner", when="absmax", differentiable=False, exact=True
            ),
            "max_at": Out("outer", "middle", "inner", dtype="int64", when="argmax", exact=True),
            "min_at": Out("outer", "middle", "inner", dtype="int64", when="argmin", exact=True),
        },
        options=dict.fromkeys(RESULTS, False),
        axes={**_tiles.AXES, "SPLIT": SPLITS, "ONCE": (False, True)},
        parts=(
            kernel(
                "main",
                f"{__package__}.kernels.reduction:reduction",
                lambda problem, config: (_tiles.tiles(problem, config), config.SPLIT),
            ),
            kernel(
                "finish",
                f"{__package__}.kernels.reduction:finish",
                lambda problem, config: (
                    -(-results(problem, config) // max(1, 1024 // config.SPLIT)),
                ),
                lambda config: bool(config.SPLIT > 1),
                dependent=True,
            ),
        ),
        values={"results": results},
        constants={"LANES": lambda config: 32 * config.num_warps},
        temporaries={
            "parts": partial(VALUES, "fp32"),
            "whole_parts": partial(VALUES, "int64", ("int",)),
            "at_parts": partial(PLACES, "int32"),
        },
        refuses=refused,
        supports=fits,
        narrows=narrows,
        prefers=prefers,
        multiples=_tiles.multiples,
        reference=reference,
        terms="near",
        amplifies=4.0,
        gradients=gradients,
        functions={"reduce": _reduce.made},
        formats=Formats(_tile_engine.read_reduce, _tile_engine.VARIANTS),
        drivers=(_ck.REDUCE,),
        problems=(
            # Llama 3 8B (arXiv:2407.21783): hidden states [4096 tokens, 4096], along both.
            {"outer": 4096, "far": 1, "middle": 1, "near": 4096, "inner": 1, "sum": True},
            {"outer": 1, "far": 1, "middle": 1, "near": 4096, "inner": 4096, "sum": True},
            {"outer": 1, "far": 1, "middle": 1, "near": 2**26, "inner": 1, "norm": True},
            # Its logits of 128256 tokens: the most probable one.
            {"outer": 256, "far": 1, "middle": 1, "near": 128256, "inner": 1, "argmax": True},
            # ResNet-50 (arXiv:1512.03385), 64 images: means of whole images, and of channels.
            {"outer": 131072, "far": 1, "middle": 1, "near": 49, "inner": 1, "mean": True},
            {"outer": 64, "far": 1, "middle": 1, "near": 49, "inner": 2048, "mean": True},
            {"outer": 1, "far": 64, "middle": 256, "near": 3136, "inner": 1, "mean": True},
            {"outer": 1, "far": 1, "middle": 1, "near": 200704, "inner": 256, "mean": True},
        ),
    )
)
