"""Models of transformers with Tilewright's attention and experts on a real GPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tiny  # noqa: E402
import transformers as hf  # noqa: E402
from tiny import IDS, LEFT, RIGHT  # noqa: E402

import tilewright.transformers  # noqa: E402

pytestmark = pytest.mark.gpu
tilewright.transformers.register()
ROOM = {torch.float32: 1e-3, torch.bfloat16: 0.05}
"""Of the largest result."""


@pytest.fixture(autouse=True)
def afresh():
    torch._dynamo.reset()


def far(ours, theirs):
    return ((ours.double() - theirs.double()).abs().max() / theirs.double().abs().max()).item()


def of(name, dtype, **said):
    return tiny.model(name, attn_implementation="tilewright", **said).to("cuda", dtype)


@pytest.mark.parametrize("dtype", ROOM, ids=str)
@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3", "gpt_oss", "deepseek", "bert"])
def test_prompts_give_what_they_give_with_eager(name, padding, dtype):
    mask = {"none": torch.ones_like(IDS), "left": LEFT, "right": RIGHT}[padding].cuda()
    model = of(name, dtype)
    with torch.no_grad():
        ours = model(IDS.cuda(), attention_mask=mask)[0][mask.bool()]
        model.set_attn_implementation("eager")
        theirs = model(IDS.cuda(), attention_mask=mask)[0][mask.bool()]
    assert far(ours, theirs) < ROOM[dtype]


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_a_batch_is_generated_as_with_sdpa(name, cache):
    """`generate` compiles the forward pass of a static cache on a GPU."""
    model = of(name, torch.float32)

    def generated():
        out = model.generate(
            IDS.cuda(), attention_mask=LEFT.cuda(), max_new_tokens=6, do_sample=False,
            eos_token_id=None, cache_implementation=cache, return_dict_in_generate=True,
            output_logits=True,
        )  # fmt: skip
        return torch.stack(out.logits)

    ours = generated()
    model.set_attn_implementation("sdpa")
    assert far(ours, generated()) < ROOM[torch.float32]


@pytest.mark.parametrize("kind", ["none", "left", "packed"])
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_are_those_with_sdpa(kind, compiled):
    said = {"none": {}, "left": {"attention_mask": LEFT.cuda()}}.get(kind)
    if said is None:
        said = {"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4, 5]] * 2).cuda()}
    labels = IDS.masked_fill(LEFT == 0, -100).cuda()
    model = of("llama", torch.float32)

    def gradients():
        run = torch.compile(model) if compiled else model
        model.zero_grad()
        run(IDS.cuda(), labels=labels, use_cache=False, **said).loss.backward()
        return torch.cat([one.grad.flatten() for one in model.parameters()])

    ours = gradients()
    model.set_attn_implementation("sdpa")
    assert far(ours, gradients()) < 1e-2


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "deepseek", "gpt_oss"])
@pytest.mark.parametrize("dtype", ROOM, ids=str)
def test_mixtures_compute_what_eager_ones_do(name, dtype):
    model = of(name, dtype, experts_implementation="tilewright")
    with torch.no_grad():
        ours = model(IDS.cuda()).logits
        model.set_experts_implementation("eager")
        assert far(ours, model(IDS.cuda()).logits) < ROOM[dtype]


def test_decoding_with_a_static_cache_is_captured():
    """Without padding to look at, nothing waits: the mask is made within the graph."""
    model = of("llama", torch.float32)
    cache = hf.StaticCache(config=model.config, max_cache_len=16)
    token, place = IDS[:, :1].cuda(), torch.full((2, 1), 9, device="cuda")
    said = {"past_key_values": cache, "position_ids": place}
    with torch.no_grad():
        model(IDS.cuda(), past_key_values=cache)
        right = model(token, **said).logits
        cache.crop(-1)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            model(token, **said)
            cache.crop(-1)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = model(token, **said).logits
        graph.replay()
    assert far(found, right) < ROOM[torch.float32]
