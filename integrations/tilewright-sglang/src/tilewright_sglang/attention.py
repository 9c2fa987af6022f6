"""SGLang's attention by `tilewright.flash_attn`, over SGLang's own pool of keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.arg_groups.choices import add_attention_backend_choices
from sglang.srt.layers.attention.attention_registry import register_attention_backend
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.mem_cache.memory_pool import KVWriteLoc, MHATokenToKVPool

from tilewright.flash_attn import flash_attn_varlen_func
from tilewright.serving.buffers import rounded_up

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner

NAME = "tilewright"


def register_attention() -> None:
    """Let SGLang have ``--attention-backend tilewright``."""
    add_attention_backend_choices([NAME])
    register_attention_backend(NAME)(made)


def made(runner: ModelRunner) -> TilewrightAttnBackend:
    """The backend of a runner. Raises `ValueError` with every reason against it."""
    reasons = refusals(runner)
    if reasons:
        raise ValueError(f"--attention-backend {NAME} is not there for {'; for '.join(reasons)}")
    return TilewrightAttnBackend(runner)


def refusals(runner: ModelRunner) -> list[str]:
    """What a model or a server has that is not supported."""
    pool, config = runner.token_to_kv_pool, runner.model_config
    found = {
        "latent attention (MLA)": runner.use_mla_backend,
        "encoders and decoders": config.is_encoder_decoder,
        "attention in chunks": config.attention_chunk_size is not None,
        "speculative decoding": not runner.spec_algorithm.is_none(),
        f"queries in {runner.dtype}": runner.dtype not in (torch.float16, torch.bfloat16),
        f"a cache in {runner.kv_cache_dtype}": runner.kv_cache_dtype
        not in (runner.dtype, torch.float8_e4m3fn, torch.float8_e4m3fnuz),
        f"the pool {type(pool).__name__} (--disable-hybrid-swa-memory gives layers with a window "
        "the plain one)": type(pool) is not MHATokenToKVPool,
        "pools whose places are translated": runner.kv_index_translator.is_translating,
    }
    return [what for what, there in found.items() if there]


@dataclass
class Step:
    """What the layers of one step share.

    q_starts: int32 [batch + 1], the first row of each sequence's queries, and the end.
    kv_used: int32 [batch], keys of each sequence, the new ones included.
    table: int32 [batch, pages of a sequence].
    max_q, max_kv: bounds of a sequence's queries and keys.
    """

    q_starts: torch.Tensor
    kv_used: torch.Tensor
    table: torch.Tensor
    max_q: int
    max_kv: int


class TilewrightAttnBackend(AttentionBackend):
    """Causal attention over pages of any size, with sliding windows, soft caps, sinks and grouped
    heads; prefills and decodes together."""

    forward_metadata: Step | None

    def __init__(self, model_runner: ModelRunner) -> None:
        super().__init__()
        self.forward_metadata = None
        self.device = model_runner.device
        self.page = int(model_runner.page_size or 1)
        self.context = int(model_runner.model_config.context_len)
        self.token_to_kv_pool: Any = model_runner.token_to_kv_pool
        self.req_to_token: torch.Tensor = model_runner.req_to_token_pool.req_to_token
        self.one = torch.ones(1, dtype=torch.float32, device=self.device)
        self.graph: Step | None = None

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        """Of a step that is no graph's."""
        batch = forward_batch.batch_size
        used = forward_batch.seq_lens.to(torch.int32)
        pages = self._pages(self._longest(forward_batch))
        if forward_batch.forward_mode.is_decode_or_idle():
            starts, most = self._starts(batch), 1
        else:
            assert forward_batch.extend_seq_lens is not None
            assert forward_batch.extend_seq_lens_cpu is not None
            ends = torch.cumsum(forward_batch.extend_seq_lens, 0, dtype=torch.int32)
            starts = torch.nn.functional.pad(ends, (1, 0))
            most = rounded_up(max(1, *forward_batch.extend_seq_lens_cpu, 1))
        table = self._table(forward_batch.req_pool_indices, pages)
        self.forward_metadata = Step(starts, used, table, most, pages * self.page)

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Arrays that graphs read at every replay."""
        pages = -(-self.context // self.page)
        self.graph = Step(
            self._starts(max_bs),
            torch.ones(max_bs, dtype=torch.int32, device=self.device),
            torch.zeros(max_bs, pages, dtype=torch.int32, device=self.device),
            1,
            pages * self.page,
        )

    def init_forward_metadata_out_graph(
        self, forward_batch: ForwardBatch, in_capture: bool = False
    ) -> None:
        """Fill the arrays of a graph, which is captured for all lengths of the context.

        Raises `ValueError` for a step that is no decode.
        """
        if not forward_batch.forward_mode.is_decode_or_idle():
            raise ValueError(f"{NAME} has no graphs of {forward_batch.forward_mode}")
        assert self.graph is not None
        batch, whole = forward_batch.batch_size, self.graph
        whole.kv_used[:batch].copy_(forward_batch.seq_lens[:batch])
        pages = self._pages(self._longest(forward_batch))
        whole.table[:batch, :pages].copy_(
            self._table(forward_batch.req_pool_indices[:batch], pages)
        )
        self.forward_metadata = Step(
            whole.q_starts[: batch + 1],
            whole.kv_used[:batch],
            whole.table[:batch],
            whole.max_q,
            whole.max_kv,
        )

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1

    def forward_decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        return self.forward_extend(q, k, v, layer, forward_batch, save_kv_cache, **kwargs)

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Write new keys and values into the pool, then attention of q over it: [rows, heads * head
        size]. Raises `NotImplementedError` for a layer that is not supported."""
        sinks = kwargs.pop("sinks", None)
        _check(layer, kwargs)
        step = self.forward_metadata
        assert step is not None
        pool = self.token_to_kv_pool
        if save_kv_cache and k is not None:
            place = KVWriteLoc.for_layer(forward_batch, layer)
            pool.set_kv_buffer(layer, place, k, v, layer.k_scale, layer.v_scale)
        keys, values = (
            rows.view(-1, self.page, *rows.shape[1:])
            for rows in (pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id))
        )
        scales: dict[str, Any] = {}
        if keys.element_size() == 1:
            scales = {
                "k_descale": self.one if layer.k_scale is None else layer.k_scale.reshape(1),
                "v_descale": self.one if layer.v_scale is None else layer.v_scale.reshape(1),
            }
        q = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        out = q.new_empty(*q.shape[:2], layer.v_head_dim)
        flash_attn_varlen_func(
            q,
            keys,
            values,
            step.q_starts,
            max_seqlen_q=step.max_q,
            max_seqlen_k=step.max_kv,
            softmax_scale=layer.scaling,
            causal=True,
            window_size=(layer.sliding_window_size, 0),
            softcap=layer.logit_cap,
            block_table=step.table,
            seqused_k=step.kv_used,
            s_aux=sinks,
            out=out,
            **scales,
        )
        return out.view(len(out), -1)

    def _starts(self, batch: int) -> torch.Tensor:
        return torch.arange(batch + 1, dtype=torch.int32, device=self.device)

    def _longest(self, forward_batch: ForwardBatch) -> int:
        """Keys of the longest sequence, or more: the host knows lengths only if SGLang copied
        them."""
        lengths = forward_batch.seq_lens_cpu
        if lengths is None or not len(lengths):
            return self.context
        return int(lengths.max())

    def _pages(self, longest: int) -> int:
        """Pages of a sequence that a table has: a round number, so that the steps of a decode loop
        state few problems."""
        most = max(longest, min(rounded_up(longest), self.context))
        return -(-most // self.page)

    def _table(self, requests: torch.Tensor, pages: int) -> torch.Tensor:
        """The pages of requests, int32 [batch, pages], from the place of each page's first row.
        Entries behind a sequence's end are anything."""
        firsts = self.req_to_token[:, : pages * self.page : self.page]
        return firsts[requests].to(torch.int32) // self.page


def _check(layer: RadixAttention, others: dict[str, Any]) -> None:
    """Raise `NotImplementedError` for a layer that is not supported."""
    found = {
        "cross attention": layer.is_cross_attention,
        f"attention of type {layer.attn_type.value}": layer.attn_type.value != "decoder",
        f"a cap by {layer.logit_capping_method}": layer.logit_cap
        and layer.logit_capping_method != "tanh",
        "a temperature by length": layer.xai_temperature_len > 0,
        f"positions {layer.pos_encoding_mode}": layer.pos_encoding_mode != "NONE",
        ", ".join(sorted(others)): any(value is not None for value in others.values()),
    }
    reasons = [what for what, there in found.items() if there]
    if reasons:
        raise NotImplementedError(f"{NAME} has no attention with {' and '.join(reasons)}")
