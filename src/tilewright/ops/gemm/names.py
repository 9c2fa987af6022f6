"""Which configs can be said, and the config that a kernel's name says."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from tilewright import blocks
from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument, UnknownName, shown
from tilewright.ops import epilogues
from tilewright.ops.gemm import pre, scales
from tilewright.ops.gemm.batch import BATCHINGS, check_batching
from tilewright.ops.gemm.config import (
    ALIGNMENTS,
    DEPENDENT_LAUNCHES,
    INDEX_BITS,
    REDUCTIONS,
    SCHEDULERS,
    SHARING,
    STORES,
    GemmConfig,
)
from tilewright.ops.gemm.pipelines import PIPELINES
from tilewright.ops.gemm.problem import LAYOUTS, SHUFFLED_LAYOUTS, check_layout, check_types
from tilewright.ops.names import choice, number, read

_CHOICES: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("scheduler", SCHEDULERS),
    ("reduction", REDUCTIONS),
    ("store", STORES),
    ("alignment", ALIGNMENTS),
    ("index_bits", INDEX_BITS),
    ("dependent_launch", DEPENDENT_LAUNCHES),
)


@lru_cache(maxsize=256)  # a space has thousands of algorithms for each signature
def _check_signature(
    layout: str, a: str, b: str, c: str, acc: str, precision: str, epilogue: str,
    pre_a: str, pre_b: str, scaled: bool,
) -> None:  # fmt: skip
    check_layout(layout)
    check_types(a, b, c, acc, precision, epilogue, scaled)
    pre.check(layout, a, pre_a, pre_b, epilogue)


def check(config: GemmConfig) -> GemmConfig:
    """`config` itself, if every field is one that a name can say. Raises `BadArgument`."""
    c = config
    types = (c.dtype_a, c.dtype_b, c.dtype_c, c.dtype_acc)
    for chain in (c.epilogue, c.pre_a, c.pre_b):
        epilogues.parse(chain)
    check_batching(c.batching)
    blocks.parse(c.scale_a), blocks.parse(c.scale_b)
    scaled = scales.count(c) > 0
    _check_signature(c.layout, *types, c.precision, c.epilogue, c.pre_a, c.pre_b, scaled)
    pre.check_alone(c)
    for field in ("tile_m", "tile_n", "tile_k", "num_warps", "num_stages", "split_k", "group_m"):
        value = getattr(config, field)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise BadArgument(f"{field} = {value!r} is not a positive integer")
    for field in ("pad_m", "pad_n", "pad_k", "swap_ab"):
        if not isinstance(getattr(config, field), bool):
            raise BadArgument(f"{field} = {getattr(config, field)!r} is not true or false")
    for field, known in (("pipeline", tuple(PIPELINES)), *_CHOICES):
        if getattr(config, field) not in known:
            listed = ", ".join(map(str, known))
            raise BadArgument(f"{field} = {getattr(config, field)!r} is not one of {listed}")
    if (c.scheduler == "split_k") != (c.split_k > 1):
        raise BadArgument(
            f"split_k = {c.split_k} with scheduler {c.scheduler}: more than one split is what "
            "scheduler split_k means"
        )
    if (c.scheduler in SHARING) != (c.reduction != "none"):
        raise BadArgument(
            f"reduction {c.reduction} with scheduler {c.scheduler}: partial sums are reduced by "
            f"{' and '.join(SHARING)}, and only there"
        )
    if (c.two_stage or c.clustered) and c.scheduler != "split_k":
        who = "a second kernel" if c.two_stage else "a cluster"
        raise BadArgument(
            f"reduction {c.reduction} with scheduler {c.scheduler}: {who} adds up equal parts of "
            "K, which split_k makes"
        )
    mma = config.mma
    if mma != (0, 0, 0) and not (
        isinstance(mma, tuple) and len(mma) == 3 and all(type(x) is int and x > 0 for x in mma)
    ):
        raise BadArgument(f"mma = {mma!r} is neither (m, n, k) nor (0, 0, 0)")
    return config


_TYPES = "_".join(choice(f"dtype_{x}", tuple(DTYPES)) for x in ("a", "b", "c", "acc"))
_SCHEDULE = (
    "(?P<scheduler>tile|persistent"
    f"|split_k(?=[1-9])|stream_k(?=_))(?:{number('split_k')})?"
    f"(?:_{choice('reduction', REDUCTIONS)})?"
)


@lru_cache(maxsize=8)
def _pattern(pipelines: tuple[str, ...]) -> re.Pattern[str]:
    """What names look like."""
    return re.compile(
        f"gemm_{choice('layout', (*LAYOUTS, *SHUFFLED_LAYOUTS))}_{_TYPES}"
        f"_{number('tile_m')}x{number('tile_n')}x{number('tile_k')}"
        f"_w{number('num_warps')}_s{number('num_stages')}"
        f"_{choice('pipeline', pipelines)}_{_SCHEDULE}"
        f"_g{number('group_m')}_{choice('store', STORES)}"
        f"_pad(?P<pads>m?n?k?|0)_al{choice('alignment', ALIGNMENTS)}"
        f"(?:_(?P<precision>tf32))?(?:_mma{number('mma_m')}x{number('mma_n')}x{number('mma_k')})?"
        "(?:_i(?P<index_bits>64))?(?:_(?P<swap_ab>swapab))?"
        f"(?:_pdl-{choice('dependent_launch', DEPENDENT_LAUNCHES[1:])})?"
        f"(?:_batch-{choice('batching', BATCHINGS[1:])})?"
        "(?:_prea-(?P<pre_a>[a-z0-9.-]+))?(?:_preb-(?P<pre_b>[a-z0-9.-]+))?"
        f"{scales.PATTERN}"
        "(?:_epi-(?P<epilogue>[a-z0-9_-]+))?",
        re.ASCII,  # else \d takes the digits of every script, and two names say one config
    )


_COUNTS = ("tile_m", "tile_n", "tile_k", "num_warps", "num_stages", "group_m", "alignment")
_WORDS = ("layout", "dtype_a", "dtype_b", "dtype_c", "dtype_acc", "pipeline", "scheduler", "store")


def _chain(said: str | None) -> str:
    return (said or "").replace("-", "+").replace(".", "_")


def parse(name: str) -> GemmConfig:
    """The config whose name this is. Raises `UnknownName` for a name that does not parse and
    for one whose fields contradict each other."""
    match = _pattern(tuple(PIPELINES)).fullmatch(name)
    if match is None or match["pads"] == "":
        raise UnknownName(
            f"{shown(name, 300)} is not the name of a GEMM kernel; one looks like "
            "gemm_rcr_bf16_bf16_bf16_fp32_128x128x64_w8_s3_basic_tile_g8_direct_padmnk_al16"
        )
    said = match.groupdict()
    fields: dict[str, Any] = {field: said[field] for field in _WORDS}
    fields |= {field: int(said[field]) for field in _COUNTS}
    fields |= {f"pad_{d}": d in said["pads"] for d in "mnk"}
    mma = tuple(int(said[f"mma_{d}"] or 0) for d in "mnk")

    def made() -> GemmConfig:
        return check(
            GemmConfig(
                **fields,
                precision=said["precision"] or "ieee",
                epilogue=_chain(said["epilogue"]),
                split_k=int(said["split_k"] or 1),
                reduction=said["reduction"] or "none",
                mma=(mma[0], mma[1], mma[2]),
                index_bits=int(said["index_bits"] or 32),
                swap_ab=bool(said["swap_ab"]),
                dependent_launch=said["dependent_launch"] or "none",
                batching=said["batching"] or "none",
                scale_a=said["scale_a"] or "",
                scale_b=said["scale_b"] or "",
                pre_a=_chain(said["pre_a"]),
                pre_b=_chain(said["pre_b"]),
            )
        )

    return read(name, "a GEMM kernel", made)
