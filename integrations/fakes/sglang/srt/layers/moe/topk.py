"""What routing gives."""

from __future__ import annotations

from typing import NamedTuple

import torch


class StandardTopKOutput(NamedTuple):
    topk_weights: torch.Tensor
    topk_ids: torch.Tensor
    router_logits: torch.Tensor
