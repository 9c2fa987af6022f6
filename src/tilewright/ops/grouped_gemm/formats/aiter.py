"""aiter's tables of fused mixture-of-experts layers: the two grouped products of each line.

A line is a layer: `token` rows, each sent to `topk` of `expert` experts, through two stages.

    stage 1    token·topk rows × model_dim,  by model_dim × inter_dim   (twice as wide with a gate)
    stage 2    token·topk rows × inter_dim,  by inter_dim × model_dim

Columns of both kinds of table: `COLUMNS`. A tuned table adds the time and the kernel of each
stage (``us1``, ``kernelName1``, ``us2``, ``kernelName2``). A line with ``run_1stage`` has one
kernel for the whole layer, and so no time for either product.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.dtypes import DTYPES, torch_called
from tilewright.ops.foreign import Foreign, flag, microseconds, whole
from tilewright.ops.gemm import lowbit
from tilewright.ops.products import WIDENED

COLUMNS = (
    "token", "model_dim", "inter_dim", "expert", "topk", "act_type", "dtype", "q_dtype_a",
    "q_dtype_w", "q_type", "use_g1u1", "doweight_stage1",
)  # fmt: skip

_MORE = (
    "aiter's stages also gather rows and add up the experts of a token, and its times may include "
    "sorting and quantising; a grouped GEMM's time has none of that"
)

_EPILOGUES: dict[str, tuple[str, ...]] = {
    "No": (),
    # One scale for each expert's weights, times the one of all rows.
    "per_Tensor": ("col_scale",),
    "per_Token": ("row_scale", "col_scale"),
}
"""Scales of `q_type` that do not change along K, as operations of an epilogue."""

_BLOCKS: dict[str, tuple[str, str]] = {
    "per_1x128": ("1x128", "128x128"),
    "per_1x32": lowbit.MX_SCALES,
}
"""Scales of `q_type` that change along K: the blocks of A and of B."""

_ACTIVATIONS = {
    (True, "Silu"): "swiglu",
    (True, "Gelu"): "geglu",
    (True, "Swiglu"): "clamped_swiglu_plus",  # gpt-oss's
    (False, "Silu"): "silu",
    (False, "Gelu"): "gelu",
}
"""The operation that is an activation, by whether there is a gate and aiter's name for it."""


def states(titles: Iterable[str]) -> bool:
    """Whether a table with these columns is one of these."""
    return {*COLUMNS} <= {*titles}


class Layers:
    """Reads these tables (`tilewright.ops.foreign.Reader`)."""

    differs = ""

    def strange(self, titles: Sequence[str]) -> tuple[str, ...]:
        """None: what else a line has is passed over."""
        return ()

    def read(self, cells: Mapping[str, str]) -> tuple[Foreign, ...] | str:
        return problems(cells)


@dataclass(frozen=True, slots=True)
class _Layer:
    """A line: its cells, the words for the dtypes and block scales of its operands, the scales that
    are operations, and whether the router's weights are applied in the first stage."""

    cells: Mapping[str, str]
    types: Mapping[str, str]
    scales: tuple[str, ...]
    weights_first: bool

    def stage(self, number: int, n: int, k: int, then: str = "", differs: str = "") -> Foreign:
        weighed = self.weights_first == (number == 1)
        # A row's scale and the router's weight of it are one factor.
        rows = ("row_scale",) if weighed or "row_scale" in self.scales else ()
        others = (scale for scale in self.scales if scale != "row_scale")
        chain = [operation for operation in (*rows, *others, then) if operation]
        words = {
            "form": "contiguous",
            "groups": str(whole(self.cells, "expert")),
            "m": str(whole(self.cells, "token") * whole(self.cells, "topk")),
            "n": str(n),
            "k": str(k),
            **self.types,
        }
        if chain:
            words["epilogue"] = "+".join(chain)
        us = None if flag(self.cells, "run_1stage") else microseconds(self.cells, f"us{number}")
        kernel = self.cells.get(f"kernelName{number}", "")
        said = tuple(filter(None, (differs, _MORE if us is not None else "")))
        return Foreign(tuple(words.items()), kernel, us, said)


def problems(cells: Mapping[str, str]) -> tuple[Foreign, ...] | str:
    """The grouped products of a line; or why no problem here is what the line states. Raises
    `BadArgument` for a cell that cannot be meant."""
    quantised = cells["q_type"].removeprefix("QuantType.")
    columns = ("q_dtype_a", "q_dtype_w", "dtype")
    a, b, c = (_dtype(cells, column) for column in columns)
    by = f"{cells['q_dtype_a']} by {cells['q_dtype_w']}"
    if quantised not in _EPILOGUES and quantised not in _BLOCKS:
        return (
            f"scales {quantised.removeprefix('per_')} of {by}: groups begin at any row, so A's "
            "scales here are of one row"
        )
    if a is None or b is None or c is None or b not in (a, *_narrower(a)):
        return (
            f"{by} to {cells['dtype']}: a grouped GEMM here multiplies two operands of one dtype, "
            "int4 and fp4 weights by OCP fp8 and 16 bits, or weights in 8 bits by 16"
        )
    types = {"dtype": a, "dtype_b": b, "dtype_c": c}
    scale_a, scale_b = _BLOCKS.get(quantised, ("", ""))
    whole_a = DTYPES[a].bits >= 16  # A then has no scales
    if scale_a and not whole_a:
        types["scale_a"] = scale_a
    if scale_b:
        types["scale_b"] = scale_b
    operations = _EPILOGUES.get(quantised, ())
    if whole_a:
        operations = tuple(scale for scale in operations if scale != "row_scale")
    if cells["topk"] == "-1":
        return "topk -1: the line is for any number of experts a token, so it says no rows"
    layer = _Layer(cells, types, operations, flag(cells, "doweight_stage1"))
    gated = flag(cells, "use_g1u1")
    activation = cells["act_type"].removeprefix("ActivationType.")
    then = _ACTIVATIONS.get((gated, activation), "")
    without = (
        f"activation {activation}{' of a gate' if gated else ''} has no operation here; the first "
        "product stands without it"
    )
    inter, model = whole(cells, "inter_dim"), whole(cells, "model_dim")
    return (
        layer.stage(1, inter * (2 if gated else 1), model, then, "" if then else without),
        layer.stage(2, model, inter),
    )


def _narrower(a: str) -> tuple[str, ...]:
    """What B may be in fewer bits than A."""
    return (*lowbit.PARTNERS.get(a, ()), *WIDENED.get(a, ()))


_OF_4_BITS = {"int4": "int4", "float4_e2m1fn_x2": "e2m1"}
"""Element types that torch keeps in bytes, by aiter's names for them."""


def _dtype(cells: Mapping[str, str], column: str) -> str | None:
    name = cells[column].removeprefix("torch.")
    return _OF_4_BITS.get(name) or torch_called(name)
