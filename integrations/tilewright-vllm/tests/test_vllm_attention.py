"""vLLM's steps, of prefills and decodes together, against attention of each sequence by itself."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from one_sequence import attention

pytestmark = pytest.mark.usefixtures("vllm")
HEADS, KV_HEADS, SIZE, PAGE, PAGES = 4, 2, 32, 16, 8
NEW, USED = (1, 5, 3), (20, 5, 30)
TABLE = ((0, 1), (2, 5), (3, 4))
PADDED = 2
"""Rows that vLLM adds to a batch."""


def _common(new=NEW, used=USED, table=TABLE):
    from vllm.v1.attention.backend import CommonAttentionMetadata

    starts = torch.tensor((0, *torch.tensor(new).cumsum(0)), dtype=torch.int32)
    slots = [
        pages[place // PAGE] * PAGE + place % PAGE
        for n, rows, pages in zip(new, used, table, strict=True)
        for place in range(rows - n, rows)
    ]
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor(used, dtype=torch.int32),
        num_reqs=len(new),
        num_actual_tokens=sum(new),
        max_query_len=max(new),
        max_seq_len=max(used),
        block_table_tensor=torch.tensor(table, dtype=torch.int32),
        slot_mapping=torch.tensor([*slots, -1]),
    )


def _builder(page=PAGE):
    from tilewright_vllm.attention import TilewrightAttentionBackend

    made = TilewrightAttentionBackend.get_builder_cls()
    return made(SimpleNamespace(block_size=page), ["layer"], None, torch.device("cpu"))


FEATURES = {
    "plain": {},
    "window": {"left": 6},
    "softcap, sinks": {"softcap": 2.0, "sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
    "ALiBi": {"slopes": [0.5, 0.25, 0.125, 0.0625]},
}


@pytest.mark.grid(2)
@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("dtype", ["auto", "fp8"])
def test_a_mixed_step_is_attention_of_each_sequence(name, dtype):
    from tilewright_vllm.attention import TilewrightAttentionBackend

    said = FEATURES[name]
    torch.manual_seed(0)
    layer = SimpleNamespace(_k_scale=torch.tensor(0.25), _v_scale=torch.tensor(0.5))
    impl = TilewrightAttentionBackend.get_impl_cls()(
        HEADS,
        SIZE,
        0.3,
        KV_HEADS,
        said.get("slopes"),
        said["left"] + 1 if "left" in said else None,  # vLLM counts the key itself
        dtype,
        said.get("softcap"),
        sinks=said.get("sinks"),
    )
    impl.process_weights_after_loading(torch.bfloat16)
    # vLLM's cache, its rows in any order: here by heads within a row of a page.
    cache = torch.randn(PAGES, PAGE, KV_HEADS, 2 * SIZE).bfloat16().transpose(1, 2)
    if dtype == "fp8":
        cache = cache.to(torch.float8_e4m3fn).view(torch.uint8)
    common = _common()
    step = _builder().build(0, common)
    tokens = sum(NEW)
    q = torch.randn(tokens + PADDED, HEADS, SIZE).bfloat16()
    k, v = torch.randn(2, tokens + PADDED, KV_HEADS, SIZE).bfloat16()
    before = cache.clone()
    impl.do_kv_cache_update(layer, k, v, cache, common.slot_mapping)
    written = (cache != before).any(-1).any(1).flatten().nonzero().flatten().tolist()
    assert written == sorted(common.slot_mapping[:-1].tolist())

    out = torch.full((tokens + PADDED, HEADS, SIZE), 7.0).bfloat16()
    assert impl.forward(layer, q, k, v, cache, step, out) is out
    assert (out[tokens:] == 7).all()
    kept = cache.view(torch.float8_e4m3fn).float() if dtype == "fp8" else cache.float()
    scales = (0.25, 0.5) if dtype == "fp8" else (1.0, 1.0)
    starts = common.query_start_loc.tolist()
    for i, (used, pages) in enumerate(zip(USED, TABLE, strict=True)):
        rows = slice(starts[i], starts[i + 1])
        both = kept[list(pages)].transpose(1, 2).flatten(0, 1)[:used]
        keys, values = (x * s for x, s in zip(both.split(SIZE, -1), scales, strict=True))
        if dtype == "auto":
            assert torch.equal(keys[used - NEW[i] :].bfloat16(), k[rows])
        else:
            torch.testing.assert_close(
                values[used - NEW[i] :], v[rows].float(), rtol=0.07, atol=0.01
            )
        right = attention(q[rows], keys, values, 0.3, **said)
        torch.testing.assert_close(out[rows].float(), right, rtol=0.03, atol=0.03)


def test_vllm_finds_the_backend_by_name():
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    import tilewright_vllm

    tilewright_vllm.register()
    path = AttentionBackendEnum.CUSTOM.get_path()
    assert path == "tilewright_vllm.attention.TilewrightAttentionBackend"
    from tilewright_vllm.attention import TilewrightAttentionBackend

    assert TilewrightAttentionBackend.get_name() == AttentionBackendEnum.CUSTOM.name


def _reasons(**changed):
    from vllm.platforms.interface import DeviceCapability

    from tilewright_vllm.attention import TilewrightAttentionBackend

    asked = {
        "head_size": 128,
        "dtype": torch.bfloat16,
        "kv_cache_dtype": "auto",
        "block_size": 16,
        "use_mla": False,
        "has_sink": True,
        "use_sparse": False,
        "use_mm_prefix": False,
        "use_per_head_quant_scales": False,
        "device_capability": DeviceCapability(9, 0),
        "attn_type": "decoder",
        "has_sliding_window": True,
    }
    return TilewrightAttentionBackend.validate_configuration(**asked | changed)


def test_what_is_served_has_no_reason_against_it():
    assert _reasons() == _reasons(kv_cache_dtype="fp8", dtype=torch.float16) == []


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"head_size": 640}, "head_size"),
        ({"dtype": torch.float32}, "dtype"),
        ({"kv_cache_dtype": "fp8_e5m2"}, "kv_cache_dtype"),
        ({"kv_cache_dtype": "float16"}, "a cache in float16 under queries in torch.bfloat16"),
        ({"use_mla": True}, "MLA"),
        ({"use_sparse": True}, "sparse"),
        ({"use_mm_prefix": True}, "multimodal"),
        ({"use_per_head_quant_scales": True}, "per-head"),
        ({"attn_type": "encoder_only"}, "attention type encoder_only"),
        ({"use_non_causal": True}, "non-causal"),
        ({"use_batch_invariant": True}, "batch invariance"),
        ({"use_dcp": True}, "DCP"),
        ({"use_pcp": True}, "PCP"),
        ({"use_rswa": True}, "R-SWA"),
    ],
)
def test_what_is_not_served_is_refused(changed, reason):
    assert any(reason in found for found in _reasons(**changed))


def test_an_old_gpu_is_refused():
    from vllm.platforms.interface import DeviceCapability

    assert _reasons(device_capability=DeviceCapability(7, 5))


def test_a_graph_is_captured_for_all_lengths_that_the_table_has_room_for():
    from vllm.v1.attention.backend import AttentionCGSupport

    builder = _builder()
    assert builder.get_cudagraph_support(None, None) is AttentionCGSupport.UNIFORM_BATCH
    common = _common(new=(1, 1, 1), used=(3, 5, 4))
    captured = builder.build_for_cudagraph_capture(common)
    assert captured.max_kv == 2 * PAGE
    assert captured.kv_used is common.seq_lens
    assert captured.table is common.block_table_tensor
    common.max_seq_len = 17
    assert 17 <= builder.build(0, common).max_kv < 2 * PAGE


def test_a_step_that_is_not_causal_is_refused():
    common = _common()
    common.causal = torch.tensor([True, False, True])
    with pytest.raises(NotImplementedError, match="causal"):
        _builder().build(0, common)


def test_vllm_measures_memory_without_a_step():
    from tilewright_vllm.attention import TilewrightAttentionImpl

    impl = TilewrightAttentionImpl(HEADS, SIZE, 0.3, KV_HEADS)
    x = torch.randn(3, HEADS, SIZE)
    out = impl.forward(None, x, x, x, torch.empty(0), None, torch.ones_like(x))
    assert not out.any()
