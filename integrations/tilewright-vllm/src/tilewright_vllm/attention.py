"""vLLM's attention by `tilewright.flash_attn`, over vLLM's own cache in pages.

vLLM asks a backend's methods before it takes the backend. They refuse what is not supported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm.platforms import current_platform
from vllm.platforms.interface import DeviceCapability
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionLayer,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

from tilewright.flash_attn import flash_attn_varlen_func
from tilewright.ops.attention.problem import MOST_HEAD_DIM
from tilewright.serving import append_paged_kv_cache
from tilewright.serving.buffers import rounded_up

FP8 = ("fp8", "fp8_e4m3")
"""vLLM's words for a cache in e4m3."""
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
"""vLLM's words for a cache in 16 bits."""


def register_attention() -> None:
    """Let ``--attention-backend CUSTOM`` mean `TilewrightAttentionBackend`."""
    register_backend(
        AttentionBackendEnum.CUSTOM, f"{__name__}.{TilewrightAttentionBackend.__name__}"
    )


class TilewrightAttentionBackend(AttentionBackend):
    """What vLLM may ask of this attention: causal attention of decoders over pages of any size,
    with sliding windows, soft caps, sinks, ALiBi and grouped heads."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", *DTYPES, *FP8]
    forward_includes_kv_cache_update: bool = False

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"  # a member of AttentionBackendEnum, by which vLLM finds it

    @staticmethod
    def get_impl_cls() -> type[TilewrightAttentionImpl]:
        return TilewrightAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[TilewrightMetadataBuilder]:
        return TilewrightMetadataBuilder

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return 0 < head_size <= MOST_HEAD_DIM

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type == AttentionType.DECODER

    @classmethod
    def supports_compute_capability(cls, capability: DeviceCapability) -> bool:
        return capability.major >= 8

    @classmethod
    def supports_combination(
        cls,
        head_size: int,
        dtype: torch.dtype,
        kv_cache_dtype: Any,
        block_size: int | None,
        use_mla: bool,
        has_sink: bool,
        use_sparse: bool,
        use_mm_prefix: bool,
        device_capability: DeviceCapability,
    ) -> str | None:
        if DTYPES.get(kv_cache_dtype, dtype) != dtype:
            return f"a cache in {kv_cache_dtype} under queries in {dtype} is not supported"
        return None


@dataclass
class TilewrightMetadata:
    """What the layers of one step share.

    tokens: rows of queries, without padding.
    q_starts: int32 [batch + 1], the first row of each sequence, and the end.
    kv_used: int32 [batch], keys of each sequence, the new ones included.
    table: int32 [batch, pages of a sequence].
    max_q, max_kv: bounds of a sequence's queries and keys.
    """

    tokens: int
    q_starts: torch.Tensor
    kv_used: torch.Tensor
    table: torch.Tensor
    max_q: int
    max_kv: int


class TilewrightMetadataBuilder(AttentionMetadataBuilder[TilewrightMetadata]):
    """Takes vLLM's arrays as they are: they stay on the device, and nothing waits for them."""

    # A captured launch serves all lengths up to its bounds. Batches with prefills run eagerly
    # until they were captured on a GPU.
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.page = int(kv_cache_spec.block_size)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> TilewrightMetadata:
        """Raises `NotImplementedError` for a step that is not causal."""
        return self._built(common_attn_metadata, common_attn_metadata.max_seq_len)

    def build_for_cudagraph_capture(
        self, common_attn_metadata: CommonAttentionMetadata
    ) -> TilewrightMetadata:
        """A graph is replayed with any lengths that the table has room for."""
        return self._built(common_attn_metadata, self._room(common_attn_metadata))

    def _room(self, common: CommonAttentionMetadata) -> int:
        return int(common.block_table_tensor.shape[1]) * self.page

    def _built(self, common: CommonAttentionMetadata, max_kv: int) -> TilewrightMetadata:
        if common.causal is not True:
            raise NotImplementedError("Tilewright's backend has causal attention alone")
        # Round bounds, so that the steps of a decode loop state few problems.
        return TilewrightMetadata(
            tokens=common.num_actual_tokens,
            q_starts=common.query_start_loc,
            kv_used=common.seq_lens,
            table=common.block_table_tensor,
            max_q=rounded_up(common.max_query_len),
            max_kv=min(rounded_up(max_kv), self._room(common)),
        )


class TilewrightAttentionImpl(AttentionImpl[TilewrightMetadata]):
    """Attention of one layer. Raises `NotImplementedError` for what the backend refuses."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        if attn_type != AttentionType.DECODER:
            raise NotImplementedError(f"Tilewright's backend has no attention of type {attn_type}")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.window = (-1 if sliding_window is None else sliding_window - 1, 0)
        self.softcap = logits_soft_cap or 0.0
        self.slopes = (
            None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        )
        self.loaded_sinks = sinks
        self.sinks: torch.Tensor | None = None
        self.fp8 = current_platform.fp8_dtype() if kv_cache_dtype in FP8 else None

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        """Sinks are loaded now. The kernels read them in fp32."""
        if self.loaded_sinks is not None:
            self.sinks = self.loaded_sinks.detach().float()

    def forward(
        self,
        layer: AttentionLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: TilewrightMetadata,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention of query [tokens, heads, head size] over the cache, written to `output`, of the
        same shape. Keys and values are in the cache already."""
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("Tilewright's backend does not quantise its output")
        if attn_metadata is None:  # vLLM measures how much memory the model takes
            return output.fill_(0)
        step = attn_metadata
        keys, values = self._pages(kv_cache)
        scales: dict[str, Any] = {}
        if self.fp8 is not None:
            scales = {
                "k_descale": layer._k_scale.reshape(1),
                "v_descale": layer._v_scale.reshape(1),
            }
        flash_attn_varlen_func(
            query[: step.tokens],
            keys,
            values,
            step.q_starts,
            max_seqlen_q=step.max_q,
            max_seqlen_k=step.max_kv,
            softmax_scale=self.scale,
            causal=True,
            window_size=self.window,
            softcap=self.softcap,
            alibi_slopes=self.slopes,
            block_table=step.table,
            seqused_k=step.kv_used,
            s_aux=self.sinks,
            out=output[: step.tokens],
            **scales,
        )
        return output

    def do_kv_cache_update(
        self,
        layer: AttentionLayer,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Write new keys and values [tokens, heads of keys, head size] into the cache, each in its
        slot: page * page size + row. A slot of -1 is none."""
        keys, values = self._pages(kv_cache)
        rows, size = len(slot_mapping), keys.shape[1]
        key, value = key[:rows], value[:rows]
        if self.fp8 is not None:
            key = _quantised(key, layer._k_scale, self.fp8)
            value = _quantised(value, layer._v_scale, self.fp8)
        # Each row is a sequence of one page.
        starts = torch.arange(rows + 1, dtype=torch.int32, device=slot_mapping.device)
        append_paged_kv_cache(
            key,
            value,
            starts[:-1],
            slot_mapping % size,
            (keys, values),
            slot_mapping // size,
            starts,
        )

    def _pages(self, kv_cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [pages, page, heads of keys, head size] in vLLM's cache, [pages, heads of
        keys, page, keys and values]."""
        if self.fp8 is not None and kv_cache.dtype != self.fp8:
            kv_cache = kv_cache.view(self.fp8)
        rows = kv_cache.transpose(1, 2)
        return rows[..., : self.head_size], rows[..., self.head_size :]


def _quantised(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x / scale in fp8, saturated."""
    most = torch.finfo(dtype).max
    return (x.float() / scale).clamp(-most, most).to(dtype)
