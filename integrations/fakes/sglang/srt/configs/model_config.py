"""What a model is."""

from __future__ import annotations


class ModelConfig:
    context_len: int
    is_encoder_decoder: bool
    attention_chunk_size: int | None
