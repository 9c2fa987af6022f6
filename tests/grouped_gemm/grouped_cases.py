"""Pairs of (config, problem) that cover every form, dtype, layout, pipeline and kind of edge."""

from __future__ import annotations

import itertools

from gemm_cases import signatures

from tilewright.arch import arch
from tilewright.dtypes import DTYPES
from tilewright.ops.gemm.problem import LAYOUTS
from tilewright.ops.grouped_gemm import FAMILY, GroupedGemmConfig, GroupedGemmProblem
from tilewright.ops.grouped_gemm.problem import turned

TILE = 64
SIZES = (
    (67, 45, 83),
    (0, 45, 83),
    (64, 128, 64),
    (1, 1, 1),
    (5, 0, 9),
    (70, 60, 0),
    (130, 64, 128),
)
"""Groups of a list: ragged, empty in each dimension, whole, tiny, several tiles."""


def config(arch_name: str = "sm_90", **fields: object) -> GroupedGemmConfig:
    """A legal config: the family's defaults with a small tile, and `fields`."""
    small = {"tile_m": TILE, "tile_n": TILE, "tile_k": TILE, "num_warps": 4, "num_stages": 2}
    return FAMILY.make_config({**FAMILY.axes(), **small, **fields}, arch(arch_name))


def cases(arch_name: str) -> list[tuple[GroupedGemmConfig, GroupedGemmProblem]]:
    """For each signature and layout: unaligned and padded through pointers, a list among them;
    through pointers without padding; and through the copy engine, by each of its pipelines, with
    rows of whole 16 bytes. Forms, stores and the kind of offsets take turns."""
    made = []
    for number, (signature, layout) in enumerate(
        itertools.product(signatures(arch_name), ("rcr", "rrr"))
    ):
        form = ("contiguous", "masked")[number // 2 % 2]
        common = {"layout": layout, **signature}
        bounds = form == "contiguous" and number % 3 == 0
        ragged = {"groups": 5, "m": 151 if form == "contiguous" else 67, "n": 45, "k": 83}
        made.append(
            (
                config(arch_name, form=form, alignment=1, **common),
                GroupedGemmProblem(form, **ragged, **common, bounds=bounds),
            )
        )
        if number % 2:
            listed = {**common, "layout": LAYOUTS[number // 2 % 8]}
            made.append(
                (
                    config(arch_name, form="list", alignment=1, **listed),
                    GroupedGemmProblem("list", sizes=SIZES, **listed, alignment=1),
                )
            )
        unit = 16 // DTYPES[signature["dtype_a"]].bytes
        whole = {"groups": 4, "m": 150, "n": 2 * TILE, "k": 2 * TILE}
        unpadded = {"pad_n": False, "pad_k": False}
        made.append(
            (
                config(arch_name, form=form, **unpadded, **common),
                GroupedGemmProblem(form, **whole, **common),
            )
        )
        edges = {"groups": 6, "m": 3 * TILE + 7, "n": TILE + 3 * unit, "k": 2 * TILE + unit}
        for pipeline in FAMILY.wildcard("pipeline", arch(arch_name))[1:]:
            warps, tile_m = ((4, TILE), (8, 2 * TILE))[number % 2]
            fields = {"pipeline": pipeline, "store": ("direct", "split")[number // 2 % 2]}
            kernel = config(
                arch_name, form=form, num_warps=warps, tile_m=tile_m, **fields, **common
            )
            made.append((kernel, GroupedGemmProblem(form, **edges, **common, bounds=bounds)))
    return [case for case in made if FAMILY.judge(case[0], arch(arch_name))]


SERVES: dict[str, dict[str, object]] = {
    "weights": {"dtype_b": "int8"},
    "gluon_scaled": {
        "dtype_a": "e4m3fn", "dtype_b": "e4m3fn", "scale_a": "1x128", "scale_b": "128x128",
        "tile_k": 128,
    },
    "mx": {
        "dtype_a": "e2m1", "dtype_b": "e2m1", "scale_a": "1x32-e8m0", "scale_b": "32x1-e8m0",
        "tile_k": 128,
    },
}  # fmt: skip
"""What pipelines take that do not take the default dtypes."""


def of_any_number(
    arch_name: str, form: str, groups: int
) -> list[tuple[GroupedGemmConfig, GroupedGemmProblem]]:
    """A kernel of each pipeline that is legal here, with a problem of so many groups."""
    made = []
    sizes = {"groups": groups, "m": 5000 if form == "contiguous" else 40, "n": 144, "k": 224}
    for pipeline in FAMILY.wildcard("pipeline", arch(arch_name)):
        fields = SERVES.get(pipeline, {})
        stated = {name: value for name, value in fields.items() if name != "tile_k"}
        kernel = config(arch_name, form=form, pipeline=pipeline, **fields)
        problem = GroupedGemmProblem(form, **sizes, **stated)
        served = FAMILY.supports(kernel, problem, arch(arch_name))
        assert served, f"{kernel.name} on {problem}: {served}"
        made.append((kernel, problem))
    return made


def other_axes(arch_name: str) -> list[tuple[GroupedGemmConfig, GroupedGemmProblem]]:
    """Groups along K (``weights``) and along the columns: for each signature and layout, ragged and
    unaligned, and of whole 16 bytes; through the copy engine where K is outside; with epilogues."""
    made = []
    layouts = [layout for layout in LAYOUTS if layout[2] == "r"]
    for number, (signature, layout) in enumerate(itertools.product(signatures(arch_name), layouts)):
        form = ("weights", "columns")[number % 2]
        unit = 16 // DTYPES[signature["dtype_a"]].bytes
        bounds = number // 2 % 2 == 0
        common = {"layout": layout, "bounds": bounds, **signature}
        kernel = dict(signature)
        kernel["layout"] = layout if form == "weights" else turned(layout)
        kernel["form"] = "weights" if form == "weights" else "contiguous"
        ragged = {"groups": 5, "m": 71, "n": 83, "k": 151}
        made.append(
            (config(arch_name, alignment=1, **kernel), GroupedGemmProblem(form, **ragged, **common))
        )
        whole = {"groups": 4, "m": TILE + 3 * unit, "n": TILE + unit, "k": 2 * TILE}
        made.append((config(arch_name, **kernel), GroupedGemmProblem(form, **whole, **common)))
    for number, signature in enumerate(signatures(arch_name)):
        unit = 16 // DTYPES[signature["dtype_a"]].bytes
        edges = {"groups": 6, "m": 2 * TILE + unit, "n": TILE + 3 * unit, "k": 2 * TILE + 7}
        common = {"layout": "crr", **signature}
        problem = GroupedGemmProblem("weights", **edges, **common, bounds=number % 3 == 0)
        for pipeline in FAMILY.wildcard("pipeline", arch(arch_name))[1:]:
            warps, tile_m = ((4, TILE), (8, 2 * TILE))[number % 2]
            fields = {"pipeline": pipeline, "store": ("direct", "split")[number // 2 % 2]}
            kernel = config(
                arch_name, form="weights", num_warps=warps, tile_m=tile_m, **fields, **common
            )
            made.append((kernel, problem))
    pipelines = FAMILY.wildcard("pipeline", arch(arch_name))[:2]
    chains = ("bias+silu", "row_scale+col_scale+add", "swiglu", "scale")
    for chain, pipeline in itertools.product(chains, pipelines):
        said = {"layout": "crr", "epilogue": chain}
        problem = GroupedGemmProblem("weights", groups=3, m=72, n=80, k=140, **said)
        made.append((config(arch_name, form="weights", pipeline=pipeline, **said), problem))
    return [case for case in made if FAMILY.judge(case[0], arch(arch_name))]


def epilogues(arch_name: str) -> list[tuple[GroupedGemmConfig, GroupedGemmProblem]]:
    """Chains with every kind of operand, in every form that takes them."""
    made = []
    chains = (
        "bias+silu",
        "row_scale+col_scale+add",
        "swiglu",
        "swiglu+bias",
        "scale+clamp",
        "relu",
    )
    here = FAMILY.wildcard("pipeline", arch(arch_name))
    pipelines = [name for name in ("basic", "tma", "gluon_ws") if name in here]
    for number, (chain, pipeline) in enumerate(itertools.product(chains, pipelines)):
        form = ("contiguous", "masked")[(number + number // 2) % 2]
        kernel = config(arch_name, form=form, pipeline=pipeline, epilogue=chain)
        made.append((kernel, GroupedGemmProblem(form, groups=3, m=140, n=80, k=72, epilogue=chain)))
    for chain in ("swiglu", "scale+clamp"):
        kernel = config(arch_name, form="list", alignment=1, epilogue=chain)
        sizes = ((70, 66, 40), (0, 8, 8), (3, 130, 65))
        problem = GroupedGemmProblem("list", sizes=sizes, epilogue=chain, alignment=1)
        made.append((kernel, problem))
    return made


def gathered(arch_name: str) -> list[tuple[GroupedGemmConfig, GroupedGemmProblem]]:
    """Rows by a map, of every kind of edge, and columns that become one, by turns and apart."""
    made = []
    for number, signature in enumerate(signatures(arch_name)):
        layout = ("rcr", "rrr")[number % 2]
        common = {"form": "gathered", "layout": layout, **signature}
        sizes = {"groups": 5, "m": 151, "n": 45, "k": 83, "rows_a": 40, "per_row": 1 + number % 3}
        bounds = number % 3 == 0
        made.append(
            (
                config(arch_name, alignment=1, **common),
                GroupedGemmProblem(**sizes, **common, bounds=bounds),
            )
        )
    whole = {"groups": 3, "m": 140, "n": 2 * TILE, "k": 2 * TILE, "rows_a": 70, "per_row": 2}
    for chain, apart in (
        ("", False),
        ("swiglu", False),
        ("swiglu", True),
        ("clamped_swiglu", True),
        ("bias+clamped_swiglu_plus", False),
        ("row_scale+add", False),
    ):
        kernel = config(arch_name, form="gathered", epilogue=chain, pad_n=False, pad_k=False)
        made.append(
            (kernel, GroupedGemmProblem("gathered", **whole, epilogue=chain, gates_apart=apart))
        )
    for form, pipeline in itertools.product(("contiguous", "masked"), ("basic", "tma")):
        fields = {"form": form, "pipeline": pipeline, "epilogue": "swiglu+bias"}
        kernel = config(arch_name, **fields)
        sizes = {"groups": 3, "m": 100, "n": 80, "k": 72, "gates_apart": True}
        made.append((kernel, GroupedGemmProblem(form, **sizes, epilogue="swiglu+bias")))
    return [case for case in made if FAMILY.judge(case[0], arch(arch_name))] + roles(arch_name)


def roles(arch_name: str) -> list[tuple[GroupedGemmConfig, GroupedGemmProblem]]:
    """Rows that threads of Hopper gather for warp roles, and gates and ups that its copy engine
    takes by turns."""
    made = []
    chains = (
        ("", False),
        ("swiglu", True),
        ("bias+swiglu", False),
        ("clamped_swiglu_plus", True),
        ("row_scale+add", False),
    )
    for warps, (chain, apart) in itertools.product((4, 8), chains):
        for form in ("gathered", "contiguous") if apart else ("gathered",):
            layout = "rrr" if chain == "row_scale+add" else "rcr"
            common = {"form": form, "layout": layout, "epilogue": chain}
            kernel = config(
                arch_name, pipeline="gluon_ws", tile_m=16 * warps, num_warps=warps, **common
            )
            sizes = {"groups": 4, "m": 150, "n": 144, "k": 136, "gates_apart": apart}
            if form == "gathered":
                sizes |= {"rows_a": 70, "per_row": 2}
            made.append((kernel, GroupedGemmProblem(**common, **sizes)))
    for dtype in ("fp16", "e4m3fn"):
        common = {"form": "gathered", "dtype_a": dtype}
        kernel = config(arch_name, pipeline="gluon_ws", num_warps=4, tile_k=128, **common)
        sizes = {"groups": 3, "m": 90, "n": 80, "k": 208, "rows_a": 90, "zero_rest": True}
        made.append((kernel, GroupedGemmProblem(**common, **sizes, bounds=True)))
    scaled = {"form": "gathered", "dtype_a": "e4m3fn", "scale_a": "1x128", "scale_b": "128x128"}
    for warps, tile_m, tile_n in ((4, 64, 128), (4, 128, 128), (8, 256, 128), (8, 128, 256)):
        fields = {"tile_m": tile_m, "tile_n": tile_n, "tile_k": 128, "num_warps": warps}
        kernel = config(arch_name, pipeline="gluon_scaled", **fields, **scaled)
        sizes = {"groups": 4, "m": 150, "n": 272, "k": 272, "rows_a": 50, "per_row": 3}
        made.append((kernel, GroupedGemmProblem(**scaled, **sizes)))
    return [case for case in made if FAMILY.judge(case[0], arch(arch_name))]


def turned_tiles() -> list[tuple[GroupedGemmConfig, GroupedGemmProblem]]:
    """Low tiles that sm_90 multiplies turned: forms, dtypes, scales and epilogues of both kernels,
    with groups and columns that end inside a tile."""
    made = []
    blocks = {"dtype_a": "e4m3fn", "dtype_c": "bf16", "scale_a": "1x128", "scale_b": "128x128"}
    of_rows = {"dtype_a": "int8", "dtype_c": "bf16", "epilogue": "row_scale+col_scale"}
    for number, (signature, form) in enumerate(
        itertools.product(
            (
                {"dtype_a": "bf16", "epilogue": "swiglu"},
                blocks,
                of_rows,
                {"dtype_a": "fp16", "epilogue": "bias"},
                {**blocks, "epilogue": "swiglu"},
            ),
            ("gathered", "contiguous", "masked"),
        )
    ):
        more = {"rows_a": 20, "per_row": 3} if form == "gathered" else {}
        tile_n, tile_m = ((64, 16), (128, 32), (128, 16))[number % 3]
        for pipeline in ("basic", "tma")[: 1 if form == "gathered" else 2]:
            kernel = config(
                form=form, pipeline=pipeline, tile_m=tile_m, tile_n=tile_n, tile_k=128, **signature
            )
            sizes = {"groups": 4, "m": 60, "n": 176, "k": 208}
            made.append((kernel, GroupedGemmProblem(form, **sizes, **signature, **more)))
    return made


def label(case: tuple[GroupedGemmConfig, GroupedGemmProblem]) -> str:
    kernel, problem = case
    words = (problem.form, kernel.pipeline, problem.layout, problem.dtype_a, problem.dtype_c)
    return "-".join((*words, problem.precision, problem.epilogue, f"al{kernel.alignment}"))
