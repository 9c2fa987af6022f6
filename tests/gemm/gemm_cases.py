"""Pairs of (config, problem) that cover every dtype, layout, padding, pipeline and scheduler."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

from tilewright.arch import arch
from tilewright.dtypes import DTYPES
from tilewright.ops.gemm import FAMILY, GemmConfig, GemmProblem, calling
from tilewright.ops.gemm.config import REDUCTIONS
from tilewright.ops.gemm.layouts import gated
from tilewright.ops.gemm.problem import LAYOUTS
from tilewright.ops.nouns import Call
from tilewright.ops.products import OUTPUTS

TILE = 64
RAGGED = (67, 45, 83)
"""No size is a multiple of anything."""


def problem_of(inputs, out, options, **how) -> GemmProblem:
    """The problem of a call with these views."""
    outputs = None if out is None else (out,)
    return calling.problem_of(Call(tuple(inputs), {}, outputs, options), **how)


def config(arch_name: str = "sm_90", **fields: object) -> GemmConfig:
    """A legal config: the family's defaults with a small tile, and `fields`."""
    small = {"tile_m": TILE, "tile_n": TILE, "tile_k": TILE, "num_warps": 4, "num_stages": 2}
    return FAMILY.make_config({**FAMILY.axes(), **small, **fields}, arch(arch_name))


def signatures(arch_name: str) -> Iterator[dict[str, str]]:
    """Every operand dtype, precision and output dtype the architecture takes natively."""
    this = arch(arch_name)
    for dtype, outputs in OUTPUTS.items():
        if this.dtypes[dtype].support == "native":
            for out in outputs:
                yield {"dtype_a": dtype, "dtype_c": out, "precision": "ieee"}
    if this.dtypes["tf32"].support == "native":
        yield {"dtype_a": "fp32", "dtype_c": "fp32", "precision": "tf32"}


def cases(arch_name: str) -> list[tuple[GemmConfig, GemmProblem]]:
    """Kinds for each signature and layout: padded and unaligned; unpadded, with ragged sizes
    where nothing gates them; and, where there are such, through the copy engine with rows of
    whole 16 bytes but no whole tile, by each of its pipelines. Schedulers alternate."""
    made = []
    for number, (signature, layout) in enumerate(itertools.product(signatures(arch_name), LAYOUTS)):
        scheduler = ("tile", "persistent")[number % 2]
        common = {"layout": layout, "scheduler": scheduler, **signature}
        made.append((config(arch_name, alignment=1, **common), _problem(RAGGED, common)))
        whole = (3 * TILE, 2 * TILE, 2 * TILE)
        sizes = tuple(
            w if gate else r for gate, w, r in zip(gated(layout), whole, RAGGED, strict=True)
        )
        unpadded = {**common, "pad_m": False, "pad_n": False, "pad_k": False}
        rows = 16 // DTYPES[signature["dtype_a"]].bytes
        made.append((config(arch_name, **unpadded), _problem(sizes, common, aligned=True)))
        if "tma" in FAMILY.pipelines(arch(arch_name)):
            store = ("direct", "split")[number // 2 % 2]
            ragged = (TILE + 2 * rows, TILE + 3 * rows, 2 * TILE + rows)
            made.append(
                (
                    config(arch_name, pipeline="tma", store=store, **common),
                    _problem(ragged, common),
                )
            )
        if "gluon_ws" in FAMILY.pipelines(arch(arch_name)):
            # Four warps, and eight; two tiles of K and more than the ring's stages of them.
            warps, tile_m, deep = ((4, TILE, 2), (8, 2 * TILE, 5))[number // 2 % 2]
            gluon = {**common, "pipeline": "gluon_ws", "scheduler": "persistent"}
            kernel = config(arch_name, **gluon, num_warps=warps, tile_m=tile_m, store=store)
            if FAMILY.judge(kernel, arch(arch_name)):
                sizes = (TILE + 2 * rows, 2 * TILE + 3 * rows, deep * TILE + rows)
                made.append((kernel, _problem(sizes, common)))
    return made


def few_rows(arch_name: str) -> list[tuple[GemmConfig, GemmProblem]]:
    """The pipelines for few rows, for each signature and layout: on the vector units, and on
    the matrix units with columns for every warp, and with K
    shared out among them; ragged through pointers, with rows of whole 16 bytes through
    descriptors. Schedulers alternate."""
    this = arch(arch_name)
    schedulers: tuple[dict[str, object], ...] = (
        {"scheduler": "tile"},
        {"scheduler": "split_k", "split_k": 2, "reduction": "linear"},
        {"scheduler": "split_k", "split_k": 3, "reduction": "atomic"},
        {"scheduler": "split_k", "split_k": 3, "reduction": "tree"},
    )
    least = this.min_dot[1]
    made = []
    for number, (signature, layout) in enumerate(itertools.product(signatures(arch_name), LAYOUTS)):
        common = {"layout": layout, **signature}
        how = schedulers[number % 4]
        how = {**how, "group_m": 1}
        pointers = {"pipeline": "small_m", "alignment": 1, **common, **how}
        rows = (1, 2, 4)[number % 3]
        vector = {"tile_m": rows, "tile_n": 16, "tile_k": 128, "num_stages": 1 + number // 3 % 2}
        sizes = (max(1, rows - 1), 45, 403) if number % 2 else (rows, 16, 384)
        if signature["precision"] != "tf32":
            made.append((config(arch_name, **pointers, **vector), _problem(sizes, common)))
        matrix = ({"tile_n": 64}, {"tile_n": 32, "tile_k": 128})[number % 2]
        matrix = {"tile_m": least, **matrix}
        made.append((config(arch_name, **pointers, **matrix), _problem((3, 67, 403), common)))
        if "small_m_tma" in FAMILY.pipelines(this):
            each = 16 // DTYPES[signature["dtype_a"]].bytes
            tiles = {**matrix, "tile_m": 16}
            kernel = config(arch_name, pipeline="small_m_tma", **tiles, **common, **how)
            made.append((kernel, _problem((each, 64 + each, 384 + each), common)))
    return [case for case in made if FAMILY.judge(case[0], this)]


def sharing(arch_name: str) -> list[tuple[GemmConfig, GemmProblem]]:
    """Every way for workgroups to share a tile's K: schedulers, reductions, pipelines, layouts,
    dtypes, splits that divide and that do not."""
    made = []
    number = 0
    pipelines = [p for p in ("basic", "tma", "gluon_ws") if p in FAMILY.pipelines(arch(arch_name))]
    for reduction, pipeline in itertools.product(REDUCTIONS[1:], pipelines):
        for signature in signatures(arch_name):
            number += 1
            layout = ("rcr", "rrr", "ccr", "crr", "rcc")[number % 5]
            parts = (2, 4) if reduction == "cluster" else (2, 3, 5)
            split = {"scheduler": "split_k", "split_k": parts[number % len(parts)]}
            alike = number % 2 or reduction in ("two_stage", "cluster")
            how = split if alike else {"scheduler": "stream_k"}
            kernel = config(
                arch_name, layout=layout, reduction=reduction, pipeline=pipeline, **how, **signature
            )
            sizes = (TILE + 16, 2 * TILE + 32, 7 * TILE + 48)
            if FAMILY.judge(kernel, arch(arch_name)):
                made.append((kernel, _problem(sizes, {"layout": layout, **signature})))
    return made


def odd_tiles() -> list[tuple[GemmConfig, GemmProblem]]:
    """Tiles of gluon_ws with an edge that is no power of two: its dtypes, layouts, stores, with
    epilogues too."""
    made = []
    edges = (
        (64, 192, 4), (128, 160, 8), (192, 128, 12), (64, 96, 4), (192, 192, 12), (64, 160, 4),
        (128, 192, 8), (128, 96, 8), (192, 160, 12), (64, 72, 4), (128, 88, 8), (192, 208, 12),
        (64, 8, 4), (128, 136, 8), (64, 112, 4), (128, 224, 8),
    )  # fmt: skip
    kinds = [
        *itertools.product(("bf16", "fp16"), ("rcr", "rrr", "ccc", "crr")),
        *itertools.product(("e4m3fn", "e5m2", "int8", "fp32"), ("rcr", "rcc")),
    ]
    for number, ((dtype, layout), (tile_m, tile_n, warps)) in enumerate(
        itertools.product(kinds, edges)
    ):
        epilogue = ("", "bias+gelu", "", "bias+swiglu")[number // 2 % 4]
        signature = {
            "dtype_a": dtype,
            "layout": layout,
            "precision": "tf32" if dtype == "fp32" else "ieee",
            "epilogue": epilogue,
        }
        kernel = config(
            pipeline="gluon_ws",
            scheduler="persistent",
            tile_m=tile_m,
            tile_n=tile_n,
            tile_k=128 // DTYPES[dtype].bytes,
            num_warps=warps,
            store=("direct", "split")[number % 2],
            **signature,
        )
        if FAMILY.judge(kernel, arch("sm_90")):
            made.append((kernel, GemmProblem(tile_m + 80, 2 * tile_n + 112, 448, **signature)))
    return random.Random(0).sample(made, 36)


def by_turns() -> list[tuple[GemmConfig, GemmProblem]]:
    """Pipeline gluon_pingpong: its dtypes, layouts, widths, stores and rings; one tile, an odd
    number of them, and several for each warp group of every workgroup; with epilogues too."""
    made = []
    kinds = [
        *itertools.product(("bf16", "fp16"), ("rcr", "rrr", "ccc", "crr")),
        *itertools.product(("e4m3fn", "e5m2", "int8", "fp32"), ("rcr", "rcc")),
    ]
    tiles = (
        (64, 64, 3), (128, 128, 3), (128, 192, 4), (64, 256, 3), (64, 128, 7), (128, 160, 4),
        (64, 96, 5), (64, 72, 8), (128, 144, 4), (64, 88, 5), (128, 200, 3),
    )  # fmt: skip
    for number, ((dtype, layout), (rows, columns)) in enumerate(
        itertools.product(kinds, ((1, 1), (3, 1), (31, 23)))
    ):
        tile_m, tile_n, stages = tiles[number % len(tiles)]
        tile_k = 128 // DTYPES[dtype].bytes
        signature = {
            "dtype_a": dtype,
            "layout": layout,
            "precision": "tf32" if dtype == "fp32" else "ieee",
            "epilogue": ("", "bias+gelu", "", "bias+swiglu")[number // 2 % 4],
        }
        kernel = config(
            pipeline="gluon_pingpong",
            scheduler="persistent",
            tile_m=tile_m,
            tile_n=tile_n,
            tile_k=tile_k,
            num_warps=8,
            num_stages=stages,
            store=("split", "direct")[number % 2],
            **signature,
        )
        k = (1, 2, 9)[number // 3 % 3] * tile_k - 16
        sizes = (rows * tile_m - 16, columns * tile_n - 32, k)
        made.append((kernel, GemmProblem(*sizes, **signature)))
    return [case for case in made if FAMILY.judge(case[0], arch("sm_90"))]


def _problem(
    sizes: tuple[int, int, int], signature: dict[str, str], aligned: bool = False
) -> GemmProblem:
    fields = {k: v for k, v in signature.items() if k != "scheduler"}
    tight = GemmProblem(*sizes, **fields)
    if not aligned:
        return tight
    # Whole 16-byte rows, with room behind each, so that strides are not extents.
    types = (tight.dtype_a, tight.dtype_b, tight.dtype_c)
    lds = [
        -(-inner * DTYPES[d].bytes // 16) * 16 // DTYPES[d].bytes + 16
        for inner, d in zip(tight.inner, types, strict=True)
    ]
    return GemmProblem(*sizes, **fields, lda=lds[0], ldb=lds[1], ldc=lds[2])


def awkward() -> list[GemmProblem]:
    """Sizes that trip kernels: ones everywhere, a row, a column, K = 1."""
    sizes = [(1, 1, 1), (1, 130, 64), (130, 1, 64), (65, 33, 1), (1, 1, 300), (2, 3, 5)]
    return [
        GemmProblem(*size, dtype_a=dtype) for size in sizes for dtype in ("bf16", "fp32", "int8")
    ]


def swapped() -> list[tuple[GemmConfig, GemmProblem]]:
    """Kernels that compute the transpose: pipelines, schedulers, dtypes, layouts, tiles with a
    height that is no power of two, epilogues along either axis, and ragged last tiles."""
    hows: tuple[dict[str, object], ...] = (
        {"pipeline": "gluon_ws", "scheduler": "persistent"},
        {"pipeline": "tma", "scheduler": "tile"},
        {"pipeline": "gluon_pingpong", "scheduler": "persistent"},
        {
            "pipeline": "gluon_ws",
            "scheduler": "split_k",
            "split_k": 2,
            "reduction": "linear",
        },
        {"pipeline": "tma", "scheduler": "persistent"},
        {"pipeline": "gluon_ws", "scheduler": "stream_k", "reduction": "tree"},
        {"pipeline": "tma", "scheduler": "split_k", "split_k": 3, "reduction": "atomic"},
    )
    tiles = (
        (96, 128), (32, 64), (160, 64), (64, 128), (192, 192), (128, 64), (72, 64), (88, 128),
        (144, 192),
    )  # fmt: skip
    kinds = [
        *itertools.product(("bf16", "fp16"), LAYOUTS),
        *itertools.product(("e4m3fn", "int8", "fp32"), ("rcr", "rcc")),
    ]
    chains = ("", "bias+gelu", "row_scale+col_scale", "", "bias+add")
    made = []
    for number, ((dtype, layout), how, (tile_m, tile_n)) in enumerate(
        itertools.product(kinds, hows, tiles)
    ):
        pingpong = how["pipeline"] == "gluon_pingpong"
        signature = {
            "dtype_a": dtype,
            "layout": layout,
            "precision": "tf32" if dtype == "fp32" else "ieee",
            "epilogue": chains[number % len(chains)],
        }
        kernel = config(
            **how,
            **signature,
            tile_m=tile_m,
            tile_n=tile_n,
            tile_k=128 // DTYPES[dtype].bytes,
            num_warps=8 if pingpong else tile_n // 16,
            num_stages=3,
            store=("split", "direct")[number % 2],
            swap_ab=True,
        )
        each = 16 // DTYPES[dtype].bytes
        sizes = (2 * tile_m - 3 * each, tile_n + 5 * each, 4 * kernel.tile_k + each)
        if FAMILY.judge(kernel, arch("sm_90")):
            made.append((kernel, _problem(sizes, signature)))
    return made[::3]


def dependent() -> list[tuple[GemmConfig, GemmProblem]]:
    """Kernels for sm_90 that may start before the kernel before them has ended, by every pipeline
    and scheduler that has such kernels, with A and B as they are and swapped."""
    deep = {"tile_k": 64, "tile_m": 64, "num_warps": 4, "num_stages": 4}
    ring = {"pipeline": "gluon_ws", **deep}
    turns = {"pipeline": "gluon_pingpong", **deep, "num_warps": 8, "scheduler": "persistent"}
    parts = {"scheduler": "split_k", "split_k": 3}
    hows: tuple[dict[str, object], ...] = (
        {**ring, "scheduler": "persistent", "tile_n": 64},
        {**ring, "scheduler": "persistent", "tile_m": 128, "num_warps": 8},
        {**ring, "scheduler": "persistent", "tile_n": 72},
        {**ring, **parts, "reduction": "linear"},
        {**ring, **parts, "reduction": "atomic", "tile_n": 64},
        {**ring, "scheduler": "stream_k", "reduction": "tree"},
        {**ring, "scheduler": "persistent", "swap_ab": True, "tile_m": 16, "tile_n": 64},
        {**ring, **parts, "reduction": "linear", "swap_ab": True, "tile_m": 8, "tile_n": 64},
        {**ring, **parts, "reduction": "two_stage"},
        {**ring, **parts, "reduction": "two_stage", "tile_n": 72},
        {**turns, "tile_n": 128},
        {**turns, "tile_n": 64, "swap_ab": True},
        {"pipeline": "tma", **deep, "scheduler": "persistent"},
        {"pipeline": "tma", **deep, "scheduler": "stream_k", "reduction": "linear"},
    )
    few = {"scheduler": "tile", "group_m": 1, "tile_k": 64, "num_stages": 4, "num_warps": 4}
    few_rows: tuple[dict[str, object], ...] = (
        {**few, "pipeline": "small_m", "tile_m": 16, "tile_n": 32},
        {**few, "pipeline": "small_m", "tile_m": 2, "tile_n": 2, "tile_k": 512, "num_stages": 1},
        {**few, **parts, "pipeline": "small_m", "tile_m": 16, "tile_n": 64, "reduction": "linear"},
        {**few, "pipeline": "small_m_tma", "tile_m": 16, "tile_n": 32},
    )
    made = []
    for number, how in enumerate((*hows, *few_rows)):
        for word in ("wait", "ahead"):
            signature = {
                "layout": "rcr" if "swap_ab" in how else ("rcr", "rrr", "ccr")[number % 3],
                "epilogue": ("", "", "bias")[number % 3],
            }
            if how in few_rows:
                signature["layout"] = "rcr"
            kernel = config(**how, **signature, dependent_launch=word)
            if FAMILY.judge(kernel, arch("sm_90")):
                rows = min(24 + 16 * number, how["tile_m"]) if how in few_rows else 24 + 16 * number
                sizes = (rows, 264, 520)
                made.append((kernel, GemmProblem(*sizes, **signature, constant_b=True)))
    return made
