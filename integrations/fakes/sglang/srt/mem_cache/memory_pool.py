"""Pools of keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


class ReqToTokenPool:
    req_to_token: torch.Tensor


@dataclass
class KVWriteLoc:
    loc: torch.Tensor
    swa_loc: torch.Tensor | None = None
    full_loc: torch.Tensor | None = None
    physical: bool = False

    @classmethod
    def for_layer(
        cls,
        forward_batch: Any,
        layer: Any,
        *,
        swa_loc: torch.Tensor | None = None,
        full_loc: torch.Tensor | None = None,
    ) -> KVWriteLoc:
        return cls(forward_batch.out_cache_loc)


class MHATokenToKVPool:
    def get_key_buffer(self, layer_id: int) -> torch.Tensor:
        raise NotImplementedError

    def get_value_buffer(self, layer_id: int) -> torch.Tensor:
        raise NotImplementedError

    def set_kv_buffer(
        self,
        layer: Any,
        loc_info: KVWriteLoc,
        cache_k: torch.Tensor,
        cache_v: torch.Tensor,
        k_scale: Any = None,
        v_scale: Any = None,
    ) -> None: ...
