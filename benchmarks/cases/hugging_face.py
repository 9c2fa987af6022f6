"""Models of Hugging Face transformers, prefill and decode, with attention and experts taken from
here, and with transformers' own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from cases import Programs
from cases.llama import checked, graph_of, no_gradients

Steps = Mapping[str, Callable[[], object]]

SIZES: dict[str, Any] = {
    "hidden_size": 4096, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 32000,
}  # fmt: skip
"""Half of an 8B model's layers; the vocabulary is short, so that layers are what is timed."""
CACHED, ROOM = 1024, 2048
"""Keys that each sequence has when it decodes, and those that its static cache holds."""
CHECKED = 8192
"""Tokens up to which results are held to those in fp32: of more, torch's scores in fp32 need tens
of gigabytes."""


def config(name: str) -> Any:
    import transformers as hf

    if name == "llama":
        return hf.LlamaConfig(**SIZES, intermediate_size=14336)
    if name == "qwen":
        return hf.Qwen3Config(**SIZES, intermediate_size=12288)
    few = {**SIZES, "hidden_size": 2048, "num_hidden_layers": 8, "num_key_value_heads": 4}
    return hf.Qwen3MoeConfig(
        **few, moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8
    )


Take = Callable[[Any], object]
"""Lets a model compute with operations from here."""


def by_name(model: Any) -> None:
    """Attention and experts, by transformers' name for ours."""
    import tilewright.transformers

    tilewright.transformers.register()
    model.set_attn_implementation("tilewright")
    if hasattr(model.config, "num_experts"):
        model.set_experts_implementation("tilewright")


def models(name: str, device: str, take: Take = by_name) -> tuple[Any, Any, Any]:
    """The same weights with ours and with transformers' own, in bf16, and in fp32."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        exact = AutoModelForCausalLM.from_config(
            config(name), attn_implementation="sdpa", dtype=torch.float32
        ).eval()
    theirs = copy.deepcopy(exact).to(torch.bfloat16)
    ours = copy.deepcopy(theirs)
    take(ours)
    if hasattr(exact.config, "num_experts"):
        exact.set_experts_implementation("eager")  # products of groups in fp32 are not everywhere
    return ours, theirs, exact


def prefill(
    name: str, rows: int, compiled: bool, device: str = "cuda:0", take: Take = by_name
) -> Steps:
    """One prompt, which fills a cache. Raises `ValueError` where a result is wrong."""
    import torch

    ours, theirs, exact = models(name, device, take)
    ids = torch.randint(SIZES["vocab_size"], (1, rows), device=device)

    def last(forward: Any) -> Any:
        return forward(ids, logits_to_keep=1).logits

    right = no_gradients(last, exact) if rows <= CHECKED else None
    del exact
    if device != "cpu":
        from tilewright.torch import prepare

        no_gradients(partial(prepare, ours, ids, logits_to_keep=1))
    if compiled:
        ours, theirs = (torch.compile(model) for model in (ours, theirs))
    steps = {"ours": partial(no_gradients, last, ours)}
    steps["vendor"] = partial(no_gradients, last, theirs)
    found = {side: step() for side, step in steps.items()}
    if right is not None:
        checked(found["ours"], found["vendor"], right)
    return steps


def decode(name: str, batch: int, compiled: bool, device: str = "cuda:0") -> Steps:
    """One token of each sequence, with a static cache; compiled, in CUDA graphs, as `generate`
    runs it. Raises `ValueError` where a result is wrong."""
    import torch

    ours, theirs, exact = models(name, device)
    vocabulary = SIZES["vocab_size"]
    prompts = torch.randint(vocabulary, (batch, CACHED - 1), device=device)
    token = torch.randint(vocabulary, (batch, 1), device=device)
    right = no_gradients(step_of(exact, prompts, token, False))
    del exact
    steps = {
        side: partial(no_gradients, step_of(model, prompts, token, compiled))
        for side, model in (("ours", ours), ("vendor", theirs))
    }
    found = {side: step().clone() for side, step in steps.items()}
    checked(found["ours"], found["vendor"], right)
    return steps


def in_a_graph(name: str, batch: int, device: str = "cuda:0", take: Take = by_name) -> Steps:
    """One token of each sequence, with a static cache, the eager model in a replayed CUDA graph (on
    a CPU, as it is). Masks are made before, as `generate` makes them. Raises `ValueError` where a
    result is wrong."""
    import torch
    from transformers.masking_utils import create_masks_for_generate

    ours, theirs, exact = models(name, device, take)
    token = torch.randint(SIZES["vocab_size"], (batch, 1), device=device)
    place = torch.full_like(token, CACHED - 1)

    def run(model: Any) -> Callable[[], Any]:
        cache = filled(model, batch)
        embedded = model.get_input_embeddings()(token)
        shown = create_masks_for_generate(model.config, embedded, None, cache)
        said = {"attention_mask": shown, "position_ids": place}
        if model is ours and device != "cpu":
            from tilewright.torch import prepare

            prepare(model, token, **said, past_key_values=empty(model), backward=False)

        def step() -> Any:
            out = model(token, **said, past_key_values=cache)
            forget_token(cache)
            return out.logits

        return partial(no_gradients, step)

    right = no_gradients(run, exact)()
    del exact
    steps, found = {}, {}
    for side, model in (("ours", ours), ("vendor", theirs)):
        step = no_gradients(run, model)
        steps[side], found[side] = (step, step()) if device == "cpu" else graph_of(step)
    checked(found["ours"], found["vendor"], right)
    return steps


def empty(model: Any) -> Any:
    """A static cache."""
    from transformers import StaticCache

    return StaticCache(config=model.config, max_cache_len=ROOM)


def filled(model: Any, batch: int) -> Any:
    """A static cache with all keys but the token's, drawn: those of prompts would take long."""
    import torch

    cache, weight = empty(model), model.get_input_embeddings().weight
    heads, dim = model.config.num_key_value_heads, model.config.head_dim
    cache.early_initialization(batch, heads, dim, weight.dtype, weight.device)
    drawn = torch.Generator(weight.device).manual_seed(0)
    for layer in cache.layers:
        for x in (layer.keys, layer.values):
            x.copy_(torch.randn(x.shape, generator=drawn, device=x.device))
        layer.cumulative_length.fill_(CACHED - 1)
    return cache


def forget_token(cache: Any) -> None:
    """The next token has the place of the last. Static layers of transformers 5.17 have no
    `crop`."""
    for layer in cache.layers:
        layer.cumulative_length.sub_(1)


def step_of(model: Any, prompts: Any, token: Any, compiled: bool) -> Callable[[], Any]:
    """Decodes the token behind the prompts, at each call anew."""
    import torch
    from transformers.masking_utils import create_masks_for_generate

    cache = empty(model)
    no_gradients(partial(model, prompts, past_key_values=cache, logits_to_keep=1))
    place = torch.full_like(token, prompts.shape[1])
    forward = model.forward
    if compiled:
        mode = "reduce-overhead" if token.is_cuda else "default"
        forward = torch.compile(forward, mode=mode, fullgraph=True)

    def step() -> Any:
        embedded = model.get_input_embeddings()(token)
        shown = create_masks_for_generate(model.config, embedded, None, cache)
        out = forward(token, attention_mask=shown, position_ids=place, past_key_values=cache)
        forget_token(cache)
        return out.logits

    return step


def named(make: Callable[..., Steps], word: str, sizes: tuple[int, ...]) -> Mapping[str, Any]:
    """Programs by name: of each model and size, eager and compiled."""
    return {
        f"transformers-{word}-{name}-{size}{end}": partial(make, name, size, compiled)
        for end, compiled in (("", False), ("-compiled", True))
        for name in ("llama", "qwen", "mixture")
        for size in sizes
    }


CASES = (
    Programs(
        "transformers-prefill", "bf16, models of transformers, prompts of 1,000 to 8,192 tokens "
        "that fill a cache: 16 layers of an 8B Llama and an 8B Qwen3, 8 of a Qwen3 mixture of 128 "
        "experts",
        "sdpa, and grouped_mm of the experts", named(prefill, "prefill", (1000, 2048, 8192)),
    ),
    Programs(
        "transformers-decode", f"bf16, the same models, one token of 1 or 16 sequences of {CACHED} "
        f"in a static cache of {ROOM}", "sdpa, and grouped_mm of the experts",
        named(decode, "decode", (1, 16)),
    ),
)  # fmt: skip
