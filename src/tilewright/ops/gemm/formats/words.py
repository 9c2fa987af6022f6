"""The words of CK Tile Engine's sweeps: what an axis may hold, and how a value of it is checked."""

from __future__ import annotations

from typing import Any

from tilewright.dtypes import DTYPES, FP8_ALIASES, spelled
from tilewright.errors import BadArgument, BadFile, nearest
from tilewright.ops import epilogues
from tilewright.ops.gemm import spaces
from tilewright.ops.gemm.config import REDUCTIONS, SCHEDULERS, STORES
from tilewright.ops.gemm.pipelines import PIPELINES
from tilewright.ops.gemm.problem import LAYOUTS
from tilewright.ops.products import PRECISIONS
from tilewright.space import WILDCARDS

STREAM_K = "streamk_config"
"""The block of a sweep of stream-K kernels."""

PRESHUFFLED = ("preshufflev1", "preshufflev2", "regv1", "preshuffle_tdm")
CK_PIPELINES: dict[str, tuple[tuple[str, int], ...]] = {
    **dict.fromkeys(("compv3", "compv5", "basicv2"), (("basic", 2),)),
    **dict.fromkeys(("compv4", "compv6", "comp_async"), (("basic", 3),)),
    "mem": (("basic", 2), ("basic", 4)),
    **dict.fromkeys(("basicv1", "compv1"), (("basic", 1),)),
    "basic_async_v1": (("basic", 2),),
    **dict.fromkeys(("comp_tdm", "comp_tdm_v1", "comp_tdm_v2"), (("tma", 3),)),
    **dict.fromkeys(PRESHUFFLED, (("preshuffle", 2),)),
}
"""(`pipeline`, `num_stages`) of each of CK's pipelines."""

CK_SCHEDULERS = ("intrawave", "interwave", "default")
CK_EPILOGUES = ("cshuffle", "default", "default2d", "tdm")
WARPS = ("warp_m", "warp_n", "warp_k")
WARP_TILES = ("warp_tile_m", "warp_tile_n", "warp_tile_k")
LETTERS = ("layout_a", "layout_b", "layout_c")

ALIASES = {
    "datatype": "dtype_a",
    "dtype": "dtype_a",
    "reduction_strategy": "reduction",
    **{f"datatype_{x}": f"dtype_{x}" for x in ("a", "b", "c", "acc")},
    **{f"kPad{x.upper()}": f"pad_{x}" for x in "mnk"},
}

CK_DTYPES = {"fp4": "e2m1", "pk_fp4": "e2m1", "pk_int4": "int4", "i4": "int4"}
_DTYPE_WORDS = (*DTYPES, *FP8_ALIASES, *CK_DTYPES)
CK_REDUCTIONS = {"reduction": "linear"}
"""CK's first word for adding partial tiles in order; `atomic`, `linear` and `tree` are the same."""

_WORDS: dict[str, tuple[str, ...]] = {
    "layout": LAYOUTS,
    **dict.fromkeys(LETTERS, ("r", "c")),
    **dict.fromkeys(("dtype_a", "dtype_b", "dtype_c", "dtype_acc"), _DTYPE_WORDS),
    "precision": PRECISIONS,
    "pipeline": (*PIPELINES, *CK_PIPELINES),
    "scheduler": (*SCHEDULERS, *CK_SCHEDULERS),
    "epilogue": (*CK_EPILOGUES, *epilogues.OPERATIONS),
    "store": STORES,
    "reduction": (*REDUCTIONS, *CK_REDUCTIONS),
}
_FLAGS = ("pad_m", "pad_n", "pad_k", "persistent")
FIELDS = (*spaces.AXES, *LETTERS, *WARPS, *WARP_TILES, "persistent", "epilogue")

COMPILER = "the compiler decides"


def is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def checked(name: str, value: Any, place: str) -> Any:
    """`value` as axis `name` has it. Raises `BadFile` for a wrong type or an unknown word."""
    if isinstance(value, str | int) and not isinstance(value, bool) and value in WILDCARDS:
        return value
    if name in _FLAGS:
        if not isinstance(value, bool):
            raise BadFile(f"{place}: {value!r} is not true or false")
        return value
    if name == "mma":
        if not (isinstance(value, list) and len(value) == 3 and all(map(is_int, value))):
            raise BadFile(f"{place}: {value!r} is not [m, n, k]")
        return tuple(value)
    if name not in _WORDS:
        if not is_int(value) or value < 1:
            raise BadFile(f"{place}: {value!r} is not a positive integer")
        return value
    if not isinstance(value, str):
        raise BadFile(f"{place}: {value!r} is not a string")
    if name.startswith("layout"):
        value = value.lower()
    follows = value == "" and spaces.AXES.get(name) == ""
    if name == "epilogue" and value not in _WORDS[name]:
        try:
            epilogues.parse(value)
            return value
        except BadArgument as error:
            if "+" in value:
                raise BadFile(f"{place}: {error}") from None
    value = CK_DTYPES.get(value) or spelled(value) if name.startswith("dtype") else value
    fourth = name == "layout" and len(value) == 4 and value[3] in "rc"  # D's, for multi-D
    if value[:3] in LAYOUTS if fourth else follows or value in _WORDS[name]:
        return value
    known = ", ".join(_WORDS[name])
    raise BadFile(
        f"{place}: unknown {name} '{value}'{nearest(value, _WORDS[name])}; known: {known}"
    )
