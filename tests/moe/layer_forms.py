"""Every form that a layer of experts has, small, at random routings, beside what is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from layer_cases import (
    LIMITS,
    by_block,
    by_row,
    by_tensor,
    in_fp8,
    in_int4,
    in_int4_with_zeros,
    operands,
)
from many_routings import chosen, of_every_expert

import tilewright as tw
from tilewright import moe

BF16, FP16, FP8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn
GPT_OSS = {"interleaved": True, "limit": 7.0, "alpha": 1.702, "shift": 1.0}
SIZES = {"hidden": 256, "inner": 128, "experts": 12, "k": 4}


@dataclass(frozen=True)
class LayerForm:
    """One form of a layer.

    how: what `moe.plan` takes; all but dtypes a call takes too.
    made: weights as they are stored, what they stand for, and how a call says it.
    exact: how far a result may be off, as `LIMITS` has it.
    """

    how: Mapping[str, Any] = field(default_factory=dict)
    made: Callable[..., Any] | None = None
    dtype: torch.dtype = BF16
    gated: bool = True
    exact: torch.dtype = BF16

    def plan(self, tokens: int, **more: Any) -> Any:
        """The plan of what `Layer.run` calls."""
        dtype = {BF16: "bf16", FP16: "fp16"}[self.dtype]
        return moe.plan(tokens=tokens, **SIZES, dtype=dtype, gated=self.gated, **self.how, **more)


IN_FP8 = {"dtype_b": "e4m3fn", "scale_a": "1x128", "scale_b": "128x128"}
ROWS = {"dtype_b": "e4m3fn", "scale_b": "row"}
INT4 = {"dtype_b": "int4", "scale_b": "32x1-bf16"}
FORMS = {
    "bf16": LayerForm(),
    "fp16 without a gate": LayerForm({"activation": "gelu"}, dtype=FP16, gated=False, exact=FP16),
    "gpt-oss": LayerForm({**GPT_OSS, "bias": True}),
    "weights first": LayerForm({"weights_first": True}),
    "fp8 by blocks": LayerForm(IN_FP8, in_fp8, exact=FP8),
    "fp8 by blocks, clamped": LayerForm({**IN_FP8, "limit": 0.5}, in_fp8, exact=FP8),
    "fp8 by rows": LayerForm({**ROWS, "scale_a": "row"}, by_row, exact=FP8),
    "int8 by rows": LayerForm(
        {**ROWS, "dtype_b": "int8", "scale_a": "row"},
        partial(by_row, dtype=torch.int8),
        exact=torch.int8,
    ),
    "fp8 by experts": LayerForm(
        {**ROWS, "scale_a": "row", "scale_b": "tensor"}, by_tensor, exact=FP8
    ),
    "fp8 beside bf16, rows": LayerForm(ROWS, by_row),
    "fp8 beside bf16, blocks": LayerForm({**ROWS, "scale_b": "64x64"}, by_block),
    "int4": LayerForm(INT4, in_int4),
    "int4 with zeros": LayerForm({**INT4, "zero_b": True}, in_int4_with_zeros),
}
TWICE = 2.0
"""A routing may choose the worst of results alone, and not average it with others."""


class Layer:
    """A form for so many tokens: its operands, and what each expert makes of each token."""

    def __init__(self, form: LayerForm, tokens: int, device: str, seed: int) -> None:
        x, w1, w2, weights, _ = operands(
            tokens, *SIZES.values(), gated=form.gated, dtype=form.dtype, seed=seed
        )
        stored, held, said = form.made(w1, w2) if form.made else ([w1, w2], [w1, w2], {})
        said |= {n: v for n, v in form.how.items() if n not in ("bias", "dtype_b", "zero_b")}
        said |= {"dtype_b": form.how["dtype_b"]} if form.how.get("dtype_b") == "int4" else {}
        own = {n: v for n, v in said.items() if n in ("activation", *GPT_OSS)}
        first = x
        if form.how.get("weights_first"):  # of a token all choices have one weight
            weights = weights[:, :1].expand(weights.shape).contiguous()
            first, weights_of = x.double() * weights[:, :1].double(), torch.ones_like(weights)
        else:
            weights_of = weights
        b1 = b2 = None
        if form.how.get("bias"):
            draw = torch.Generator().manual_seed(seed)
            b1, b2 = (torch.randn(w.shape[:2], generator=draw).to(form.dtype) for w in (w1, w2))
            said |= {"b1": b1, "b2": b2}
        self.every = of_every_expert(first, *held, b1=b1, b2=b2, **own).to(device)
        self.rms = self.every.square().mean().sqrt()
        self.limit = TWICE * LIMITS[form.exact]
        if form.how.get("weights_first"):  # k results are added as they are
            self.limit *= SIZES["k"] ** 0.5
        self.weights_of = weights_of.to(device)
        self.given = [one.to(device) for one in (x, *stored, weights)]
        self.said = {name: _on(value, device) for name, value in said.items()}

    def run(self, ids: Any) -> Any:
        """The layer's result for a routing [tokens, k]."""
        return tw.fused_moe(*self.given, ids, **self.said)

    def error(self, y: Any, ids: Any) -> Any:
        """How far `y` is off, beside the rms of one expert's results. A NaN stays."""
        wanted = chosen(self.every.to(y.device), self.weights_of.to(y.device), ids)
        return (y.double() - wanted).abs().max() / self.rms.to(y.device)

    def poison(self, experts: Any) -> None:
        """Fill the weights of experts that no routing chooses with NaN, where they can hold one."""
        for e in experts:
            self.every[e] = torch.nan
            for w in self.given[1:3]:
                if w.dtype.is_floating_point:
                    w[e] = torch.full_like(w[e], torch.nan, dtype=torch.float32).to(w.dtype)


def _on(value: Any, device: str) -> Any:
    if isinstance(value, tuple):
        return tuple([_on(one, device) for one in value])
    return value.to(device) if hasattr(value, "to") else value
