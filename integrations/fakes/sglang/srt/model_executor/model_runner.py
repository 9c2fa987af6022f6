"""What runs a model."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.mem_cache.kv_index_translator import KVIndexTranslator
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool


class ModelRunner:
    device: str
    dtype: torch.dtype
    kv_cache_dtype: torch.dtype
    kv_index_translator: KVIndexTranslator
    model_config: ModelConfig
    page_size: int
    req_to_token_pool: ReqToTokenPool
    spec_algorithm: Any
    token_to_kv_pool: Any
    use_mla_backend: bool
