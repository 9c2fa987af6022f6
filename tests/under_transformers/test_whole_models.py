"""Models of transformers with ``attn_implementation="tilewright"`` are those with ``sdpa``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tiny  # noqa: E402
import transformers as hf  # noqa: E402
from tiny import IDS, LEFT, RIGHT  # noqa: E402

import tilewright.transformers  # noqa: E402
from tilewright.errors import BadArgument  # noqa: E402

tilewright.transformers.register()
PACKED = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 0, 1, 0, 1]])
NOTHING = torch.ones_like(IDS)


def logits(model: Any, mask: Any = None, **said: Any) -> Any:
    return model(IDS, attention_mask=mask, **said).logits


def last_three(model: Any, mask: Any = None) -> Any:
    """Gemma 4's last layers compute these queries alone, and cut the mask for them."""
    return logits(model, mask, logits_to_keep=3)


def hidden(model: Any, mask: Any = None) -> Any:
    return model(IDS, attention_mask=mask).last_hidden_state


def both(model: Any, mask: Any = None) -> Any:
    """An encoder and a decoder, which read IDS."""
    return model(IDS, attention_mask=mask, decoder_input_ids=IDS).logits


def speech(model: Any, mask: Any = None) -> Any:
    features = torch.randn(2, 4, 20, generator=torch.Generator().manual_seed(0))
    return model(features, decoder_input_ids=IDS).logits


def generated(model: Any, mask: Any = None, **said: Any) -> Any:
    """The logits of four tokens that follow."""
    out = model.generate(
        IDS, attention_mask=mask, max_new_tokens=4, do_sample=False, eos_token_id=None,
        return_dict_in_generate=True, output_logits=True, **said,
    )  # fmt: skip
    return torch.stack(out.logits, 1)


def static(model: Any, mask: Any = None) -> Any:
    """A prompt, one token, and three tokens at once, in a cache of twice the room."""
    cache = hf.StaticCache(config=model.config, max_cache_len=20)
    found, seen = [], 0
    for tokens in (IDS, IDS[:, :1], IDS[:, :3]):
        seen += tokens.shape[1]
        padding = None
        if mask is not None:
            padding = torch.nn.functional.pad(mask, (0, seen - mask.shape[1]), value=1)
        found.append(model(tokens, attention_mask=padding, past_key_values=cache).logits)
    return torch.cat(found, 1)


def image(model: Any, mask: Any = None, **said: Any) -> Any:
    """Four patches of an image, a prefix that sees all of itself, and what follows."""
    ids = IDS.clone()
    ids[:, :4] = 49
    kinds = torch.tensor([[0] * 6 + [1] * 3] * 2)
    pixels = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    said |= {"pixel_values": pixels, "attention_mask": NOTHING}
    return model(ids, token_type_ids=kinds, **said).logits


def image_generated(model: Any, mask: Any = None) -> Any:
    ids = IDS.clone()
    ids[:, :4] = 49
    pixels = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    out = model.generate(
        ids, pixel_values=pixels, attention_mask=NOTHING, max_new_tokens=2, do_sample=False,
        return_dict_in_generate=True, output_logits=True,
    )  # fmt: skip
    return torch.stack(out.logits, 1)


def loss(model: Any, mask: Any = None, **said: Any) -> Any:
    """The gradients of all parameters, of a loss that leaves padding out."""
    labels = IDS if mask is None else IDS.masked_fill(mask == 0, -100)
    model.zero_grad()
    with torch.enable_grad():
        logits = model(IDS, attention_mask=mask, labels=labels, use_cache=False, **said)
        logits.loss.backward()
    return torch.cat([one.grad.flatten() for one in model.parameters()])


def packed(model: Any, mask: Any = None) -> Any:
    return logits(model, position_ids=PACKED, use_cache=False)


def packed_by_offsets(model: Any, mask: Any = None) -> Any:
    """What a collator hands to FlashAttention; ``sdpa`` reads the places alone."""
    offsets = torch.tensor([0, 3, 9, 14, 16, 18], dtype=torch.int32)
    said: dict[str, Any] = {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets}
    said |= {"max_length_q": 6, "max_length_k": 6}
    return logits(model, position_ids=PACKED, use_cache=False, **said)


def own_mask(model: Any, mask: Any = None) -> Any:
    shown = torch.ones(2, 1, 9, 9, dtype=torch.bool).tril()
    shown[:, :, 3:, 1] = False
    if mask is None:
        return logits(model, shown)
    return logits(model, torch.where(shown, 0.0, torch.finfo(torch.float32).min))


def lowered(model: Any, mask: Any = None) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return logits(model, mask).float()


Run = Callable[..., Any]
CASES: list[tuple[str, Run, Any]] = [
    *((name, logits, LEFT) for name in ("llama", "gemma2", "gemma3", "gpt_oss", "deepseek")),
    ("llama", logits, None), ("llama", logits, RIGHT), ("mistral", logits, None),
    ("mistral", logits, RIGHT), ("gpt_oss", logits, None), ("gemma2", logits, None),
    ("llama", generated, LEFT), ("mistral", generated, LEFT), ("gemma3", generated, LEFT),
    ("llama", static, None), ("llama", static, LEFT), ("mistral", static, LEFT),
    ("gemma2", static, LEFT), ("gemma3", static, None),
    ("llama", packed, None), ("mistral", packed, None), ("llama", packed_by_offsets, None),
    ("mistral", packed_by_offsets, None),
    ("gpt2", logits, LEFT), ("deepseek_v4", logits, LEFT), ("deepseek_v4", logits, None),
    ("gemma4", last_three, LEFT), ("gemma4", last_three, None), ("gemma4", static, LEFT),
    ("llama4", logits, LEFT), ("llama4", generated, LEFT), ("llama4", logits, None),
    ("bert", hidden, None), ("bert", hidden, LEFT), ("bert", hidden, RIGHT),
    ("modernbert", hidden, None), ("modernbert", hidden, LEFT), ("modernbert", hidden, RIGHT),
    ("whisper", speech, None), ("bart", both, RIGHT), ("bart", both, LEFT), ("t5", both, RIGHT),
    ("paligemma", image, None), ("paligemma", image_generated, None),
    ("llama", own_mask, None), ("llama", own_mask, LEFT),
    ("llama", loss, None), ("llama", loss, LEFT), ("mistral", loss, RIGHT),
    ("llama", lowered, LEFT),
]  # fmt: skip
PADDED = (logits, hidden, static, lowered)
"""Whose result has a row for each token."""


@pytest.mark.parametrize("number", range(len(CASES)))
@pytest.mark.grid(2)
def test_a_model_computes_what_it_computes_with_sdpa(number):
    name, run, mask = CASES[number]
    model = tiny.model(name, attn_implementation="tilewright")
    with torch.no_grad():
        ours = run(model, mask)
        # ``sdpa`` has no soft cap, and leaves it out in transformers 5.20.
        right = "sdpa" if model._supports_sdpa and name != "gemma2" else "eager"
        model.set_attn_implementation(right)
        theirs = run(model, mask)
    if mask is not None and run in PADDED:
        kept = torch.nn.functional.pad(mask, (0, ours.shape[1] - mask.shape[1]), value=1).bool()
        ours, theirs = ours[kept], theirs[kept]
    room = 0.3 if run is lowered else 1e-4
    torch.testing.assert_close(ours, theirs, atol=room, rtol=room)


def test_padding_matters_to_these_models():
    """Or the comparisons above would show nothing."""
    model = tiny.model("llama", attn_implementation="sdpa")
    with torch.no_grad():
        assert (logits(model, LEFT) - logits(model))[1, 3:].abs().max() > 1


@pytest.mark.turns(32)
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_a_prompt_compiles_into_one_graph(name):
    torch._dynamo.reset()
    model = tiny.model(name, attn_implementation="tilewright")
    with torch.no_grad():
        compiled = torch.compile(model.forward, fullgraph=True, backend="aot_eager")
        found = compiled(IDS, use_cache=False).logits
        torch.testing.assert_close(found, model(IDS, use_cache=False).logits)


def stated(**said: Any) -> set[str]:
    """In what words a compiled prompt of a Llama calls attention, which is right."""
    torch._dynamo.reset()
    model = tiny.model("llama", attn_implementation="tilewright")
    words: set[str] = set()

    def backend(graph: Any, _: Any) -> Any:
        calls = [n for n in graph.graph.nodes if "tilewright.attention" in str(n.target)]
        words.update(call.args[1] for call in calls)
        return graph.forward

    with torch.no_grad():
        found = torch.compile(model.forward, fullgraph=True, backend=backend)(IDS, **said).logits
        wanted = model(IDS, **said).logits
    seen = slice(None) if "attention_mask" not in said else said["attention_mask"].bool()
    torch.testing.assert_close(found[seen], wanted[seen])
    torch._dynamo.reset()
    return words


@pytest.mark.turns(32)
@pytest.mark.parametrize(
    ("said", "computed"),
    [({}, False), ({"attention_mask": LEFT}, True), ({"use_cache": False}, True)],
)
def test_a_compiled_prompt_without_padding_is_the_rule_alone(said, computed, monkeypatch):
    """Also where torch takes each graph for an export, as older ones do. Without a cache,
    transformers asks a graph for sequences that may be packed."""
    monkeypatch.setattr(hf.masking_utils, "is_torchdynamo_exporting", lambda: True, raising=False)
    (words,) = stated(**said)
    assert ("causal" in words) is not computed and ("bias" in words) is computed


@pytest.mark.turns(32)
@pytest.mark.parametrize("mask", [None, LEFT])
def test_decoding_compiles_into_one_graph(mask):
    from torch._dynamo.testing import CompileCounterWithBackend
    from transformers.masking_utils import create_masks_for_generate

    model = tiny.model("llama", attn_implementation="tilewright")
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model.forward, fullgraph=True, backend=counter)

    def decoded(forward, padding=mask):
        cache = hf.StaticCache(config=model.config, max_cache_len=16)
        model(IDS, attention_mask=padding, past_key_values=cache)
        found = []
        for place in (9, 10):
            if padding is not None:
                padding = torch.nn.functional.pad(padding, (0, 1), value=1)
            embedded = model.get_input_embeddings()(IDS[:, :1])
            shown = create_masks_for_generate(model.config, embedded, padding, cache)
            at = {"past_key_values": cache, "position_ids": torch.tensor([[place]] * 2)}
            found.append(forward(IDS[:, :1], attention_mask=shown, **at).logits)
        return torch.cat(found, 1)

    with torch.no_grad():
        ours = decoded(compiled)
        model.set_attn_implementation("sdpa")
        torch.testing.assert_close(ours, decoded(model), atol=1e-4, rtol=1e-4)
    assert counter.frame_count == 1
    torch._dynamo.reset()


def test_a_model_that_computes_attention_itself_is_refused():
    config = hf.BloomConfig(hidden_size=32, n_layer=1, n_head=2, vocab_size=50)
    model = hf.AutoModel.from_config(config, attn_implementation="tilewright")
    with pytest.raises(BadArgument, match="computes attention itself"):
        model(IDS)


def test_attention_to_keys_that_are_picked_is_refused():
    """The model says which, and hides the others only with ``sdpa`` and ``eager``."""
    model = tiny.model("deepseek_v32", attn_implementation="tilewright")
    with pytest.raises(BadArgument, match="does not take indices"):
        model(IDS)


def test_weights_are_refused():
    model = tiny.model("bert", attn_implementation="tilewright")
    with pytest.raises(BadArgument, match="does not take output_attentions"):
        model(IDS, output_attentions=True)


@pytest.mark.turns(16)
def test_nothing_is_registered_before_it_is_asked_for():
    program = (
        "import sys, tilewright.transformers; assert 'transformers' not in sys.modules\n"
        "import transformers\n"
        "assert 'tilewright' not in transformers.AttentionInterface()\n"
        "tilewright.transformers.register()\n"
        "tilewright.transformers.register()\n"
        "assert 'tilewright' in transformers.AttentionInterface()\n"
        "assert 'tilewright' in transformers.AttentionMaskInterface()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_other_interfaces_are_refused(monkeypatch):
    def sdpa_mask(batch_size, cache_position):
        """As that of transformers 5.0."""

    from tilewright.transformers import interfaces

    monkeypatch.setattr(interfaces, "EXPECTED", ((sdpa_mask, ("batch_size", "q_length")),))
    with pytest.raises(BadArgument, match="sdpa_mask has no q_length"):
        tilewright.transformers.register()
