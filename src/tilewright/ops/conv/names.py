"""Names of convolutions' kernels: from a name to its config, and what a name can say."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from tilewright import checks
from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument, UnknownName, shown
from tilewright.ops import epilogues
from tilewright.ops.conv.config import (
    ALIGNMENTS,
    INDEX_BITS,
    REDUCTIONS_OF,
    SCHEDULERS,
    TURNED,
    VENDOR,
    ConvConfig,
    of_engine,
    of_gemm,
    of_words,
    product_of,
)
from tilewright.ops.conv.pipelines import PIPELINES
from tilewright.ops.conv.problem import DIRECTIONS
from tilewright.ops.gemm.config import REDUCTIONS
from tilewright.ops.library_engine import PATTERN, said
from tilewright.ops.names import choice, number, read
from tilewright.ops.products import PRECISIONS


def check(config: ConvConfig) -> ConvConfig:
    """`config` itself, if every field is one that a name can say. Raises `BadArgument`."""
    c = config
    if c.gemm:
        return _check_gemm(c)
    if c.library_engine or c.pipeline == VENDOR:
        return _check_engine(c)
    _check_words(
        c,
        {
            **_SIGNATURE,
            "pipeline": PIPELINES,
            "scheduler": SCHEDULERS,
            "reduction": REDUCTIONS,
            "merged": (False, True),
            "runs": (False, True),
            "grouped": (False, True),
            "alignment": ALIGNMENTS,
            "alignment_out": ALIGNMENTS,
            "index_bits": INDEX_BITS,
            "turned": TURNED,
        },
    )
    has = REDUCTIONS_OF.get(c.scheduler, ("none",))
    if c.reduction not in has:
        raise BadArgument(
            f"reduction {c.reduction} with scheduler {c.scheduler}, which has {', '.join(has)}"
        )
    for field in _CHECKED:
        checks.whole(field, getattr(c, field), 1)
    checks.whole("spread", c.spread, 0)
    if not _BOX.fullmatch(c.box):
        raise BadArgument(f"box = {c.box!r} is not sizes such as 1x8x16")
    if not _HELD[c.spatial_dims].fullmatch(c.held):
        raise BadArgument(
            f"held = {c.held!r} is not a filter of {c.spatial_dims} dimensions and its strides of "
            "height and width, such as 3x3s1x1, or a row of one, such as 31s1"
        )
    epilogues.parse(c.epilogue)
    return config


_SIGNATURE: Mapping[str, Collection[Any]] = {
    "direction": DIRECTIONS,
    "spatial_dims": (1, 2, 3),
    "dtype": DTYPES,
    "dtype_out": DTYPES,
    "precision": PRECISIONS,
}


def _check_words(c: ConvConfig, words: Mapping[str, Collection[Any]]) -> None:
    """Raises `BadArgument` for a field that has none of its words."""
    for field, known in words.items():
        value = getattr(c, field)
        if value not in known or type(value) is not type(next(iter(known))):
            listed = ", ".join(map(str, known))
            raise BadArgument(f"{field} = {value!r} is not one of {listed}")


def _check_gemm(c: ConvConfig) -> ConvConfig:
    known = of_words(c.direction, c.spatial_dims, c.gemm, c.turned)
    if c != known:
        for field in fields(c):
            value, of = getattr(c, field.name), getattr(known, field.name)
            if value != of:
                raise BadArgument(f"{field.name} = {value!r}, but gemm = {c.gemm} says {of!r}")
    return c


def _check_engine(c: ConvConfig) -> ConvConfig:
    said(c.library_engine)
    _check_words(c, {**_SIGNATURE, "alignment": ALIGNMENTS})
    known = of_engine(
        c.direction, c.spatial_dims, c.dtype, c.dtype_out, c.precision, c.alignment,
        c.library_engine,
    )  # fmt: skip
    for field in fields(c):
        if (value := getattr(c, field.name)) != (of := getattr(known, field.name)):
            raise BadArgument(f"{field.name} = {value!r}: an engine of a library has {of!r}")
    return c


_BOX = re.compile(r"([1-9]\d{0,3}(x[1-9]\d{0,3}){1,3})?", re.ASCII)
_TAPS = r"[1-9]\d{0,4}"
_HELD = {
    rank: re.compile(
        rf"({_TAPS}(x{_TAPS}){{{rank - 1}}}s[124](x[124]){{{min(rank, 2) - 1}}}|{_TAPS}s[124])?",
        re.ASCII,
    )
    for rank in (1, 2, 3)
}
_COUNTS = ("tile_m", "tile_n", "tile_k", "num_warps", "num_stages", "group_m")
_CHECKED = (*_COUNTS, "merged_groups", "classes")


_PATTERN = re.compile(
    f"conv_{choice('direction', tuple(DIRECTIONS))}_(?P<spatial_dims>[123])d"
    f"_{choice('dtype', tuple(DTYPES))}_{choice('dtype_out', tuple(DTYPES))}"
    f"_{number('tile_m')}x{number('tile_n')}x{number('tile_k')}"
    f"_w{number('num_warps')}_s{number('num_stages')}"
    f"_{choice('pipeline', tuple(PIPELINES))}_{choice('scheduler', SCHEDULERS)}"
    f"(?:_{choice('reduction', REDUCTIONS[1:])})?_g{number('group_m')}"
    f"_al{choice('alignment', ALIGNMENTS)}-{choice('alignment_out', ALIGNMENTS)}"
    "(?:_b(?P<box>[0-9x]+))?(?:_f(?P<held>[0-9x]+(?:s[0-9x]+)?))?"
    f"(?:_sp{number('spread')})?(?:_cl{number('classes')})?"
    "(?:_(?P<grouped>grouped))?(?:_(?P<precision>tf32))?"
    f"(?:_(?P<merged>merged))?(?:_(?P<runs>runs))?(?:_mg{number('merged_groups')})?(?:_(?P<wide>i64))?"
    "(?:_turn-(?P<turned>s|tw?|r?[xpo]?w?y?))?"
    "(?:_epi-(?P<epilogue>[a-z0-9_-]+))?",
    re.ASCII,
)
_OF_GEMM = re.compile(
    f"conv_{choice('direction', tuple(DIRECTIONS))}_(?P<spatial_dims>[123])d"
    "(?:_turn-(?P<turned>s|tw?|r?[xpo]?w?y?))?_(?P<name>gemm_.+)",
    re.ASCII,
)
_ENGINE = re.compile(
    f"conv_{choice('direction', tuple(DIRECTIONS))}_(?P<spatial_dims>[123])d"
    f"_{choice('dtype', tuple(DTYPES))}_{choice('dtype_out', tuple(DTYPES))}_{VENDOR}"
    f"_{PATTERN}_al{choice('alignment', ALIGNMENTS)}"
    "(?:_(?P<precision>tf32))?",
    re.ASCII,
)
_WORDS = ("direction", "dtype", "dtype_out", "pipeline", "scheduler")
_NUMBERS = ("spatial_dims", *_COUNTS, "alignment", "alignment_out")


def parse(name: str) -> ConvConfig:
    """The config whose name this is. Raises `UnknownName` for a name that does not parse and for
    one whose fields contradict each other."""
    if of := _OF_GEMM.fullmatch(name):
        kernel = product_of(of["name"].removeprefix("gemm_"))
        return of_gemm(of["direction"], int(of["spatial_dims"]), kernel, of["turned"] or "")
    if of := _ENGINE.fullmatch(name):
        vendors = of_engine(
            of["direction"], int(of["spatial_dims"]), of["dtype"], of["dtype_out"],
            of["precision"] or "ieee", int(of["alignment"]), of["engine"],
        )  # fmt: skip
        return read(name, "an engine of the vendor's library", lambda: check(vendors))
    match = _PATTERN.fullmatch(name)
    if match is None:
        raise UnknownName(
            f"{shown(name, 300)} is not the name of a kernel of conv; one looks like "
            "conv_forward_2d_bf16_bf16_128x128x64_w8_s3_implicit_tile_g8_al16-16"
        )
    said = match.groupdict()
    fields: dict[str, Any] = {word: said[word] for word in _WORDS}
    fields |= {field: int(said[field]) for field in _NUMBERS}
    fields |= {
        "box": said["box"] or "",
        "held": said["held"] or "",
        "reduction": said["reduction"] or "none",
        "precision": said["precision"] or "ieee",
        "merged": said["merged"] is not None,
        "runs": said["runs"] is not None,
        "grouped": said["grouped"] is not None,
        "merged_groups": int(said["merged_groups"] or 1),
        "spread": int(said["spread"] or 0),
        "classes": int(said["classes"] or 1),
        "index_bits": 64 if said["wide"] else 32,
        "turned": said["turned"] or "",
        "epilogue": (said["epilogue"] or "").replace("-", "+"),
    }
    return read(name, "a kernel of conv", lambda: check(ConvConfig(**fields)))
