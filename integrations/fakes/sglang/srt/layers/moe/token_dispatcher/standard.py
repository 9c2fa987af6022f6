"""Rows as they are."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from sglang.srt.layers.moe.token_dispatcher.base import DispatchOutputFormat


class StandardDispatchOutput(NamedTuple):
    hidden_states: torch.Tensor
    hidden_states_scale: torch.Tensor | None
    topk_output: Any

    @property
    def format(self) -> DispatchOutputFormat:
        return DispatchOutputFormat.STANDARD


class StandardCombineInput(NamedTuple):
    hidden_states: torch.Tensor
