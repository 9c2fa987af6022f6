"""Models of transformers, as small as they come: random weights that make attention matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

TOKENS = 9
IDS = torch.randint(1, 50, (2, TOKENS), generator=torch.Generator().manual_seed(0))
LEFT = torch.tensor([[1] * TOKENS, [0] * 3 + [1] * 6])
RIGHT = LEFT.flip(1)

SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 50, "pad_token_id": 0,
    "initializer_range": 0.4, "eos_token_id": None, "bos_token_id": None,
}  # fmt: skip
ENCODER = {
    name: value for name, value in SIZES.items() if name not in ("num_key_value_heads", "head_dim")
}
WIDTHS: dict[str, Any] = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "vocab_size": 50,
    "init_std": 0.4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1, "forced_eos_token_id": None,
}  # fmt: skip
HYBRID = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}

CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: hf.LlamaConfig(**SIZES),
    "mistral": lambda: hf.MistralConfig(**SIZES, sliding_window=4),
    "gemma2": lambda: hf.Gemma2Config(
        **SIZES, **HYBRID, query_pre_attn_scalar=16, attn_logit_softcapping=2.0
    ),
    "gemma3": lambda: hf.Gemma3TextConfig(**SIZES, **HYBRID, query_pre_attn_scalar=16),
    "gpt_oss": lambda: hf.GptOssConfig(
        **SIZES, **HYBRID, num_local_experts=4, num_experts_per_tok=2
    ),
    "llama4": lambda: hf.Llama4TextConfig(
        **SIZES, attention_chunk_size=4, intermediate_size_mlp=32, moe_layers=[]
    ),
    "deepseek": lambda: hf.DeepseekV3Config(
        **{**SIZES, "num_key_value_heads": 2}, moe_intermediate_size=16, q_lora_rank=16,
        kv_lora_rank=16, qk_rope_head_dim=16, qk_nope_head_dim=8, v_head_dim=16,
        n_routed_experts=4, n_group=2, topk_group=1, num_experts_per_tok=2,
        first_k_dense_replace=1,
    ),
    "mixtral": lambda: hf.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2),
    "qwen3_moe": lambda: hf.Qwen3MoeConfig(
        **SIZES, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2
    ),
    "deepseek_v4": lambda: hf.DeepseekV4Config(
        **SIZES, num_experts_per_tok=2, n_routed_experts=4, moe_intermediate_size=16,
        q_lora_rank=16, qk_rope_head_dim=8, o_lora_rank=16, o_groups=1, index_n_heads=2,
        index_head_dim=16, index_topk=4, sliding_window=4,
    ),
    "deepseek_v32": lambda: hf.DeepseekV32Config(
        **{**SIZES, "num_key_value_heads": 2}, moe_intermediate_size=16, q_lora_rank=16,
        kv_lora_rank=16, qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=16,
        n_routed_experts=4, n_group=2, topk_group=1, num_experts_per_tok=2,
        first_k_dense_replace=1, index_n_heads=2, index_head_dim=32, index_topk=4,
    ),
    "gemma4": lambda: hf.Gemma4TextConfig(
        **{**SIZES, "num_hidden_layers": 4}, sliding_window=4,
        layer_types=HYBRID["layer_types"] * 2, hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=50, num_kv_shared_layers=2, global_head_dim=16,
    ),
    "gpt2": lambda: hf.GPT2Config(
        n_embd=32, n_layer=1, n_head=2, vocab_size=50, n_positions=32, initializer_range=0.4,
        bos_token_id=None, eos_token_id=None,
    ),
    "bert": lambda: hf.BertConfig(**ENCODER),
    "modernbert": lambda: hf.ModernBertConfig(
        **ENCODER, local_attention=4, cls_token_id=1, sep_token_id=2
    ),
    "whisper": lambda: hf.WhisperConfig(
        **WIDTHS, num_mel_bins=4, max_source_positions=10, suppress_tokens=None,
        begin_suppress_tokens=None,
    ),
    "bart": lambda: hf.BartConfig(**WIDTHS),
    "t5": lambda: hf.T5Config(
        d_model=32, d_kv=16, d_ff=32, num_layers=1, num_heads=2, vocab_size=50,
        decoder_start_token_id=0,
    ),
    "paligemma": lambda: hf.PaliGemmaConfig(
        text_config={"model_type": "gemma", **SIZES},
        vision_config={
            "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
            "num_attention_heads": 2, "image_size": 8, "patch_size": 4,
        },
        image_token_index=49, projection_dim=32, hidden_size=32,
    ),
}  # fmt: skip

AUTO = {
    "bert": hf.AutoModel, "modernbert": hf.AutoModel, "bart": hf.AutoModelForSeq2SeqLM,
    "t5": hf.AutoModelForSeq2SeqLM, "whisper": hf.AutoModelForSpeechSeq2Seq,
    "paligemma": hf.AutoModelForImageTextToText,
}  # fmt: skip


def model(name: str, **said: Any) -> Any:
    """A model in evaluation, the same at each call."""
    torch.manual_seed(0)
    auto = AUTO.get(name, hf.AutoModelForCausalLM)
    return auto.from_config(CONFIGS[name](), **said).eval()
