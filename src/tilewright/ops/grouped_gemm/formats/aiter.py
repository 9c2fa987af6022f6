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

from tilewright.dtypes import torch_called
from tilewright.ops.foreign import Foreign, flag, microseconds, whole

COLUMNS = (
    "token", "model_dim", "inter_dim", "expert", "topk", "act_type", "dtype", "q_dtype_a",
    "q_dtype_w", "q_type", "use_g1u1", "doweight_stage1",
)  # fmt: skip

_MORE = (
    "aiter's stages also gather rows and add up the experts of a token, and its times may include "
    "sorting and quantising; a grouped GEMM's time has none of that"
)

_ROWS_AND_COLUMNS = ("row_scale", "col_scale")
_SCALES: dict[str, tuple[str, ...]] = {
    "No": (),
    # One scale for each expert's weights, times the one of all rows.
    "per_Tensor": ("col_scale",),
    "per_Token": _ROWS_AND_COLUMNS,
}
"""Scales of `q_type` that an epilogue applies; the others change along K."""

_ACTIVATIONS = {(True, "Silu"): "swiglu", (False, "Silu"): "silu", (False, "Gelu"): "gelu"}
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
    """A line: its cells, the dtypes and scales of its operands, and whether the router's weights
    are applied in the first stage."""

    cells: Mapping[str, str]
    dtype: str
    dtype_c: str
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
            "dtype": self.dtype,
            "dtype_c": self.dtype_c,
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
    inputs, outputs = (_dtype(cells, column) for column in ("q_dtype_a", "dtype"))
    if quantised not in _SCALES:
        return (
            f"scales {quantised.removeprefix('per_')} of {cells['q_dtype_a']} by "
            f"{cells['q_dtype_w']}: a grouped GEMM here takes one scale a row and a column"
        )
    if cells["q_dtype_w"] != cells["q_dtype_a"] or inputs is None or outputs is None:
        return (
            f"{cells['q_dtype_a']} by {cells['q_dtype_w']} to {cells['dtype']}: a grouped GEMM "
            "here multiplies two operands of one dtype that it knows"
        )
    layer = _Layer(cells, inputs, outputs, _SCALES[quantised], flag(cells, "doweight_stage1"))
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


def _dtype(cells: Mapping[str, str], column: str) -> str | None:
    return torch_called(cells[column].removeprefix("torch."))
