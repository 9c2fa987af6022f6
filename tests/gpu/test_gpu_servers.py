"""What servers' engines call of our packages on a real GPU: captured in graphs, as engines do, and
replayed with other lengths and other routing. The engines are fakes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
from one_sequence import attention  # noqa: E402

import frameworks  # noqa: E402

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
HEADS, KV_HEADS, SIZE, PAGE, ROOM = 16, 4, 128, 16, 32
"""ROOM: pages of a sequence."""
CAPTURED, LATER = (1, 1, 1, 1), (300, 17, 512, 64)
"""Lengths of sequences."""


@pytest.fixture(scope="module")
def vllm():
    with frameworks.standing_in("vllm"):
        yield


@pytest.fixture(scope="module")
def sglang():
    with frameworks.standing_in("sglang"):
        yield


def randn(*shape):
    return torch.randn(*shape, device=DEVICE).bfloat16()


def captured(run):
    """What replays `run`, which has run before."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def tables(seed):
    """Pages of each sequence, none shared, and room besides."""
    order = torch.randperm(len(LATER) * ROOM, generator=torch.Generator().manual_seed(seed))
    return order.view(len(LATER), ROOM).int().to(DEVICE)


def close(ours, right):
    torch.testing.assert_close(ours.float(), right.float(), rtol=0.02, atol=0.02)


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize("dtype", ["auto", "fp8"])
@pytest.mark.parametrize("window", [None, 100])
def test_a_decode_of_vllm_is_captured_for_all_lengths(dtype, window):
    from vllm.v1.attention.backend import CommonAttentionMetadata

    from tilewright_vllm.attention import TilewrightAttentionImpl, TilewrightMetadataBuilder

    batch = len(LATER)
    one = torch.ones((), device=DEVICE)
    layer = SimpleNamespace(_k_scale=one / 4, _v_scale=one / 2)
    impl = TilewrightAttentionImpl(HEADS, SIZE, 0.1, KV_HEADS, None, window, dtype)
    cache = randn(batch * ROOM, KV_HEADS, PAGE, 2 * SIZE)
    if dtype == "fp8":
        cache = cache.to(torch.float8_e4m3fn).view(torch.uint8)
    q, out = randn(2, batch, HEADS, SIZE)
    k, v = randn(2, batch, KV_HEADS, SIZE)
    starts = torch.arange(batch + 1, dtype=torch.int32, device=DEVICE)
    common = CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts.cpu(),
        seq_lens=torch.tensor(CAPTURED, dtype=torch.int32, device=DEVICE),
        num_reqs=batch,
        num_actual_tokens=batch,
        max_query_len=1,
        max_seq_len=1,
        block_table_tensor=tables(0),
        slot_mapping=torch.full((batch,), -1, device=DEVICE),
    )
    spec = SimpleNamespace(block_size=PAGE)
    builder = TilewrightMetadataBuilder(spec, ["layer"], None, torch.device(DEVICE))
    step = builder.build_for_cudagraph_capture(common)

    def run():
        impl.do_kv_cache_update(layer, k, v, cache, common.slot_mapping)
        impl.forward(layer, q, k, v, cache, step, out)

    replay = captured(run)
    for seed, lengths in enumerate((LATER, LATER[::-1])):
        used = torch.tensor(lengths, device=DEVICE)
        common.seq_lens.copy_(used)
        common.block_table_tensor.copy_(tables(seed))
        last = used - 1
        pages = common.block_table_tensor.gather(1, (last // PAGE)[:, None]).squeeze(1)
        common.slot_mapping.copy_(pages * PAGE + last % PAGE)
        q.copy_(randn(*q.shape))
        replay()
        kept = cache.view(torch.float8_e4m3fn).float() if dtype == "fp8" else cache.float()
        scales = (0.25, 0.5) if dtype == "fp8" else (1, 1)
        for i, n in enumerate(lengths):
            rows = kept[common.block_table_tensor[i].long()].transpose(1, 2).flatten(0, 1)[:n]
            keys, values = (x * s for x, s in zip(rows.split(SIZE, -1), scales, strict=True))
            left = None if window is None else window - 1
            close(out[i : i + 1], attention(q[i : i + 1], keys, values, 0.1, left=left))


@pytest.mark.usefixtures("sglang")
@pytest.mark.parametrize("page", [1, PAGE])
def test_a_decode_of_sglang_is_captured_for_all_lengths(page):
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    from tilewright_sglang.attention import TilewrightAttnBackend

    batch, context = len(LATER), ROOM * PAGE
    both = randn(2, batch * context, KV_HEADS, SIZE)
    order = torch.randperm(batch * context // page) * page
    places = (order[:, None] + torch.arange(page)).reshape(batch, context).int().to(DEVICE)
    pool = SimpleNamespace(
        get_key_buffer=lambda layer_id: both[0], get_value_buffer=lambda layer_id: both[1]
    )
    backend = TilewrightAttnBackend(
        SimpleNamespace(
            device=DEVICE,
            page_size=page,
            model_config=SimpleNamespace(context_len=context),
            token_to_kv_pool=pool,
            req_to_token_pool=SimpleNamespace(req_to_token=places),
        )
    )
    layer = RadixAttention(HEADS, SIZE, 0.1, KV_HEADS, layer_id=0)
    q = randn(batch, HEADS * SIZE)
    step = SimpleNamespace(
        forward_mode=ForwardMode.DECODE,
        batch_size=batch,
        req_pool_indices=torch.arange(batch, device=DEVICE),
        seq_lens=torch.tensor(CAPTURED, device=DEVICE),
        seq_lens_cpu=torch.tensor(CAPTURED),
    )
    backend.init_cuda_graph_state(batch, batch)
    backend.init_forward_metadata_out_graph(step, in_capture=True)
    results = []
    replay = captured(
        lambda: results.append(backend.forward_decode(q, None, None, layer, step, False))
    )
    for lengths in (LATER, LATER[::-1]):
        step.seq_lens_cpu = torch.tensor(lengths)
        step.seq_lens = step.seq_lens_cpu.to(DEVICE)
        backend.init_forward_metadata_out_graph(step)
        q.copy_(randn(*q.shape))
        replay()
        for i, n in enumerate(lengths):
            keys, values = both[:, places[i, :n].long()]
            one = q[i].view(1, HEADS, SIZE)
            close(results[-1][i].view(1, HEADS, SIZE), attention(one, keys, values, 0.1))


@pytest.mark.usefixtures("vllm")
def test_experts_of_vllm_are_captured_for_any_routing():
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.config import FusedMoEQuantConfig

    from tilewright_vllm.moe import TilewrightExperts

    tokens, k, experts, hidden, inner = 24, 2, 8, 256, 128
    made = TilewrightExperts(None, FusedMoEQuantConfig())
    silu = MoEActivation.SILU
    shapes = made.workspace_shapes(tokens, 2 * inner, hidden, k, experts, experts, None, silu)
    first, second, out = (randn(*shape) for shape in shapes)
    x, up = randn(tokens, hidden), randn(experts, 2 * inner, hidden) / 16
    down = randn(experts, hidden, inner) / 8
    weights = torch.rand(tokens, k, device=DEVICE)
    ids = torch.zeros(tokens, k, dtype=torch.int32, device=DEVICE)
    given = (x, up, down, weights, ids, silu, experts, None, None, None, first, second, None, False)
    replay = captured(lambda: made.apply(out, *given))
    for _ in range(2):
        ids.copy_(torch.stack([torch.randperm(experts)[:k] for _ in range(tokens)]))
        replay()
        right = torch.zeros(tokens, hidden, device=DEVICE)
        for choice in range(k):
            chosen = ids[:, choice].long()
            gate, value = torch.einsum("tnh,th->tn", up[chosen].float(), x.float()).chunk(2, -1)
            middle = torch.nn.functional.silu(gate) * value
            result = torch.einsum("thn,tn->th", down[chosen].float(), middle)
            right += weights[:, choice, None] * result
        close(out, right)


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize("by_token", [False, True])
@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("rows", [1, 17, 256])
def test_a_product_of_vllm_in_fp8_is_right(rows, by_token, by_channel):
    from tilewright_vllm.fp8 import TilewrightFP8LinearKernel

    kernel = object.__new__(TilewrightFP8LinearKernel)
    a, b = (randn(n, 512).to(torch.float8_e4m3fn) for n in (rows, 384))
    of_rows = torch.rand(rows if by_token else 1, 1, device=DEVICE)
    of_columns = torch.rand(384 if by_channel else 1, 1, device=DEVICE)
    bias = randn(384)
    y = kernel.apply_scaled_mm(
        A=a, B=b.t(), out_dtype=torch.bfloat16, As=of_rows, Bs=of_columns, bias=bias,
        output_shape=[rows, 384],
    )  # fmt: skip
    right = (a.float() @ b.float().t()) * of_rows * of_columns.t() + bias
    torch.testing.assert_close(y.float(), right, rtol=0.02, atol=0.1)
