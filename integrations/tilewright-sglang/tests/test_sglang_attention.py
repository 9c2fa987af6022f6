"""SGLang's steps over its pool, against attention of each sequence by itself."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from one_sequence import attention

pytestmark = pytest.mark.usefixtures("sglang")
HEADS, KV_HEADS, SIZE, CONTEXT = 4, 2, 32, 64
USED = (20, 5, 30)
REQUESTS = (2, 0, 3)
"""Rows of the table of requests."""
FP8 = torch.float8_e4m3fn


def _runner(page=1, cache=torch.bfloat16, **changed):
    """What SGLang's runner has, and each request's places in the pool."""
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    torch.manual_seed(0)
    slots = 4 * CONTEXT + page
    pages = torch.randperm(slots // page - 1)[: 4 * CONTEXT // page] + 1  # page 0 is no request's
    places = (pages[:, None] * page + torch.arange(page)).reshape(4, CONTEXT).int()
    pool = object.__new__(MHATokenToKVPool)
    both = torch.randn(2, slots, KV_HEADS, SIZE).bfloat16().to(cache)
    written = []

    def write(layer, loc_info, k, v, k_scale=None, v_scale=None):
        for rows, new, scale in zip(both, (k, v), (k_scale, v_scale), strict=True):
            new = (new if scale is None else new / scale).to(cache)
            kind = torch.uint8 if cache == FP8 else cache
            rows.view(kind)[loc_info.loc] = new.view(kind)
        written.append(loc_info.loc)

    pool.get_key_buffer = lambda layer_id: both[0]
    pool.get_value_buffer = lambda layer_id: both[1]
    pool.set_kv_buffer = write
    runner = SimpleNamespace(
        device="cpu",
        dtype=torch.bfloat16,
        kv_cache_dtype=cache,
        kv_index_translator=SimpleNamespace(is_translating=False),
        model_config=SimpleNamespace(
            context_len=CONTEXT, is_encoder_decoder=False, attention_chunk_size=None
        ),
        page_size=page,
        req_to_token_pool=SimpleNamespace(req_to_token=places),
        spec_algorithm=SimpleNamespace(is_none=lambda: True),
        token_to_kv_pool=pool,
        use_mla_backend=False,
    )
    vars(runner).update(changed)
    return runner, places, both, written


def _batch(places, new, mode):
    """A step with `new` rows of each request."""
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode

    made = object.__new__(ForwardBatch)
    loc = [places[r, used - n : used] for r, used, n in zip(REQUESTS, USED, new, strict=True)]
    said = {
        "forward_mode": ForwardMode[mode],
        "batch_size": len(new),
        "req_pool_indices": torch.tensor(REQUESTS),
        "seq_lens": torch.tensor(USED),
        "seq_lens_cpu": torch.tensor(USED),
        "out_cache_loc": torch.cat(loc).long(),
        "out_cache_loc_is_physical": False,
        "extend_seq_lens": torch.tensor(new, dtype=torch.int32),
        "extend_seq_lens_cpu": list(new),
    }
    vars(made).update(said)
    return made


def _layer(**said):
    from sglang.srt.layers.radix_attention import RadixAttention

    return RadixAttention(HEADS, SIZE, 0.3, KV_HEADS, layer_id=0, **said)


def _right(q, places, both, new, scales=(1.0, 1.0), **said):
    starts = [0, *torch.tensor(new).cumsum(0).tolist()]
    made = []
    for i, (request, used) in enumerate(zip(REQUESTS, USED, strict=True)):
        at = places[request, :used].long()
        keys, values = (x[at].float() * s for x, s in zip(both, scales, strict=True))
        made.append(attention(q[starts[i] : starts[i + 1]], keys, values, 0.3, **said))
    return torch.cat(made).flatten(1)


FEATURES = {
    "plain": ({}, {}),
    "window": ({"sliding_window_size": 7}, {"left": 7}),
    "softcap": ({"logit_cap": 2.0}, {"softcap": 2.0}),
    "sinks": ({}, {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])}),
}


@pytest.mark.grid(2)
@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("mode", ["MIXED", "DECODE"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, FP8], ids=["bf16", "fp8"])
@pytest.mark.parametrize("page", [1, 16])
def test_a_step_is_attention_of_each_sequence(name, mode, dtype, page):
    from tilewright_sglang.attention import made

    words, said = FEATURES[name]
    runner, places, both, written = _runner(page, dtype)
    new = (1, 5, 3) if mode == "MIXED" else (1, 1, 1)
    batch, layer, backend = _batch(places, new, mode), _layer(**words), made(runner)
    if dtype == FP8:
        layer.k_scale, layer.v_scale = torch.tensor(0.25), torch.tensor(0.5)
    rows = sum(new)
    q = torch.randn(rows, HEADS * SIZE).bfloat16()
    k, v = torch.randn(2, rows, KV_HEADS, SIZE).bfloat16()
    backend.init_forward_metadata(batch)
    others = {"sinks": said["sinks"]} if "sinks" in said else {}
    out = backend.forward(q, k, v, layer, batch, **others)
    assert torch.equal(written[0], batch.out_cache_loc)
    scales = (0.25, 0.5) if dtype == FP8 else (1.0, 1.0)
    right = _right(q.view(rows, HEADS, SIZE), places, both, new, scales, **said)
    torch.testing.assert_close(out.float(), right, rtol=0.03, atol=0.03)


def test_a_layer_may_leave_the_pool_as_it_is():
    from tilewright_sglang.attention import made

    runner, places, both, written = _runner()
    batch, backend = _batch(places, (1, 1, 1), "DECODE"), made(runner)
    backend.init_forward_metadata(batch)
    q = torch.randn(3, HEADS * SIZE).bfloat16()
    out = backend.forward(q, None, None, _layer(), batch, save_kv_cache=False)
    assert not written
    right = _right(q.view(3, HEADS, SIZE), places, both, (1, 1, 1))
    torch.testing.assert_close(out.float(), right, rtol=0.03, atol=0.03)


def test_a_graph_reads_the_same_arrays_at_every_replay():
    from tilewright_sglang.attention import made

    runner, places, both, _ = _runner(16)
    batch, backend = _batch(places, (1, 1, 1), "DECODE"), made(runner)
    backend.init_cuda_graph_state(4, 4)
    batch.seq_lens = batch.seq_lens_cpu = torch.ones(3, dtype=torch.long)
    backend.init_forward_metadata_out_graph(batch, in_capture=True)
    captured = backend.forward_metadata
    assert captured.max_kv == CONTEXT
    batch.seq_lens = batch.seq_lens_cpu = torch.tensor(USED)
    backend.init_forward_metadata_out_graph(batch)
    replayed = backend.forward_metadata
    for name in ("q_starts", "kv_used", "table"):
        assert getattr(captured, name).data_ptr() == getattr(replayed, name).data_ptr()
    backend.forward_metadata = captured  # what the graph has
    q = torch.randn(3, HEADS * SIZE).bfloat16()
    out = backend.forward_decode(q, None, None, _layer(), batch)
    right = _right(q.view(3, HEADS, SIZE), places, both, (1, 1, 1))
    torch.testing.assert_close(out.float(), right, rtol=0.03, atol=0.03)
    batch = _batch(places, (1, 5, 3), "MIXED")
    with pytest.raises(ValueError, match="has no graphs of"):
        backend.init_forward_metadata_out_graph(batch)


def test_lengths_that_the_host_does_not_know_are_bounded_by_the_context():
    from tilewright_sglang.attention import made

    runner, places, *_ = _runner()
    batch, backend = _batch(places, (1, 1, 1), "DECODE"), made(runner)
    batch.seq_lens_cpu = None
    backend.init_forward_metadata(batch)
    assert backend.forward_metadata.max_kv == CONTEXT


class _OtherPool:
    pass


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"use_mla_backend": True}, r"latent attention \(MLA\)"),
        ({"spec_algorithm": SimpleNamespace(is_none=lambda: False)}, "speculative decoding"),
        ({"dtype": torch.float32}, "queries in torch.float32"),
        ({"kv_cache_dtype": torch.float8_e5m2}, "a cache in torch.float8_e5m2"),
        ({"token_to_kv_pool": _OtherPool()}, "the pool _OtherPool .*disable-hybrid-swa-memory"),
        ({"kv_index_translator": SimpleNamespace(is_translating=True)}, "translated"),
    ],
)
def test_what_is_not_served_is_refused_when_the_server_starts(changed, reason):
    from tilewright_sglang.attention import made

    runner, *_ = _runner(**changed)
    with pytest.raises(ValueError, match=f"--attention-backend tilewright is not .*{reason}"):
        made(runner)


@pytest.mark.parametrize("name", ["is_encoder_decoder", "attention_chunk_size"])
def test_a_model_that_is_not_served_is_refused_when_the_server_starts(name):
    from tilewright_sglang.attention import made

    runner, *_ = _runner()
    setattr(runner.model_config, name, 16)
    with pytest.raises(ValueError, match=r"encoders|chunks"):
        made(runner)


def test_a_layer_that_is_not_served_is_refused():
    from sglang.srt.layers.radix_attention import AttentionType

    from tilewright_sglang.attention import made

    runner, places, *_ = _runner()
    batch, backend = _batch(places, (1, 1, 1), "DECODE"), made(runner)
    backend.init_forward_metadata(batch)
    q = torch.randn(3, HEADS * SIZE).bfloat16()
    for words, others, reason in (
        ({"is_cross_attention": True}, {}, "cross attention"),
        ({"attn_type": AttentionType.ENCODER_ONLY}, {}, "type encoder_only"),
        ({"logit_cap": 1.0, "logit_capping_method": "other"}, {}, "cap by other"),
        ({"pos_encoding_mode": "ALIBI"}, {}, "positions ALIBI"),
        ({}, {"k_rope": q}, "k_rope"),
    ):
        with pytest.raises(NotImplementedError, match=reason):
            backend.forward(q, None, None, _layer(**words), batch, **others)


def test_sglang_finds_the_backend_by_name():
    from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS

    import tilewright_sglang
    from tilewright_sglang.attention import made

    tilewright_sglang.register()
    tilewright_sglang.register()
    assert ATTENTION_BACKEND_CHOICES.count("tilewright") == 1
    assert ATTENTION_BACKENDS["tilewright"] is made
