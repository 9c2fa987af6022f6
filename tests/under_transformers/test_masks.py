"""What `tilewright.transformers` makes of masks: the cheapest form, of the same keys."""

from __future__ import annotations

import dataclasses
import itertools
import types
from functools import partial

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import (  # noqa: E402
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    masking_utils,
)
from transformers.masking_utils import (  # noqa: E402
    create_causal_mask,
    create_sliding_window_causal_mask,
    sdpa_mask,
)
from transformers.models.gpt_oss import modeling_gpt_oss  # noqa: E402, F401

import tilewright.transformers  # noqa: E402
from tilewright.errors import BadArgument  # noqa: E402
from tilewright.transformers.attention import REFUSED, attention  # noqa: E402
from tilewright.transformers.described import DescribedMask, Seen  # noqa: E402
from tilewright.transformers.masks import mask  # noqa: E402

tilewright.transformers.register()

TOKENS = 6
BOTH_WAYS = masking_utils.bidirectional_mask_function
CAUSAL = masking_utils.causal_mask_function
LEFT = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])
PLACES = torch.tensor([[0, 1, 2, 0, 1, 2], [0, 0, 1, 2, 3, 0]])


def chunked(size, padding=None):
    """As transformers makes it: chunks begin behind the padding on the left."""
    given = torch.ones(2, TOKENS) if padding is None else torch.tensor(padding)
    pads = (given.cumsum(-1) == 0).sum(-1)
    return masking_utils.chunked_causal_mask_function(size, pads)


PATTERNS = {
    "causal": CAUSAL,
    "window": masking_utils.sliding_window_causal_mask_function(3),
    "all keys": BOTH_WAYS,
    "window both ways": masking_utils.sliding_window_bidirectional_mask_function(2),
    "chunks": partial(chunked, 4),
    "one chunk": partial(chunked, 16),
    "unknown": masking_utils.or_masks(CAUSAL, lambda b, h, q, k: k == 4),
}
PADDINGS = {
    "none": None,
    "all ones": [[1] * 6] * 2,
    "left": LEFT.tolist(),
    "right": [[1] * 6, [1, 1, 1, 1, 0, 0]],
    "both": [[0, 1, 1, 1, 1, 0], [0, 0, 1, 1, 1, 1]],
    "between": [[1] * 6, [1, 1, 0, 0, 1, 1]],
    "nothing else": [[1] * 6, [0] * 6],
}
PLACED = {  # queries, keys, the first query's place, the first key's
    "prompt": (6, 6, 0, 0),
    "one more": (1, 6, 5, 0),
    "several more": (2, 6, 4, 0),
    "prompt in a longer cache": (6, 10, torch.tensor(0), 0),
    "one more in a longer cache": (1, 10, torch.tensor(5), 0),
    "several more in a longer cache": (2, 10, torch.tensor([4]), 0),
    "prompt in a longer cache, known": (6, 10, 0, 0),
    "one more in a longer cache, known": (1, 10, 5, 0),
    "one more behind a window": (1, 4, 5, 2),
}


def keys_of(found, pattern, shape):
    """What a mask shows, under the rule by which attention reads None."""
    if found is not None:
        return found.exact() if isinstance(found, DescribedMask) else found
    batch, _, n_q, n_kv = shape
    shown = torch.ones(batch, 1, n_q, n_kv, dtype=torch.bool)
    causal = n_q > 1 and not pattern.startswith(("all keys", "window both"))
    return shown.tril() if causal else shown


@pytest.mark.parametrize("placed", PLACED)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.grid(8)
def test_a_mask_shows_the_keys_that_sdpa_s_shows(pattern, placed):
    n_q, n_kv, q_offset, kv_offset = PLACED[placed]
    for padding, skip in itertools.product(PADDINGS.values(), (True, False)):
        given = None if padding is None else torch.tensor(padding).bool()
        function = PATTERNS[pattern]
        if isinstance(function, partial):
            function = function(padding)
        both = pattern in ("all keys", "window both ways")
        said = {
            "batch_size": 2, "q_length": n_q, "kv_length": n_kv, "q_offset": q_offset,
            "kv_offset": kv_offset, "mask_function": function, "attention_mask": given,
        }  # fmt: skip
        right = sdpa_mask(**said, allow_is_causal_skip=False)
        own = {"allow_is_causal_skip": False} if both else {"allow_is_causal_skip": skip}
        local = {"window": 3, "chunks": 4, "one chunk": 16, "window both ways": 2}.get(pattern)
        if pattern == "unknown":
            own["allow_is_causal_skip"] = False  # as transformers does with a function of a user
        if both:
            own["allow_is_bidirectional_skip"] = skip
        found = mask(**said, **own, local_size=local)
        assert skip or found is not None
        first = int(q_offset)
        real = torch.ones(2, n_q) if given is None else given[:, first : first + n_q]
        shown = keys_of(found, pattern, right.shape)
        assert torch.equal(
            shown & real[:, None, :, None].bool(), right & real[:, None, :, None].bool()
        )


def seen_of(found):
    assert isinstance(found, DescribedMask)
    lists = (None if x is None else x.tolist() for x in (found.used, found.left_pad, found.offsets))
    return (found.seen, *lists)


def made(function=CAUSAL, padding=None, placed="prompt", **own):
    n_q, n_kv, q_offset, kv_offset = PLACED[placed]
    given = None if padding is None else torch.tensor(PADDINGS[padding]).bool()
    return mask(2, n_q, n_kv, q_offset, kv_offset, function, given, **own)


def test_nothing_is_said_but_the_rule_where_it_suffices():
    window = masking_utils.sliding_window_causal_mask_function(6)
    plain = Seen(None, 0, top_left=True, plain=True)
    for found in (made(), made(padding="all ones"), made(window)):
        assert seen_of(found) == (plain, None, None, None)
    assert seen_of(made(placed="prompt in a longer cache"))[0] == plain
    # A query that is no padding sees none of it behind itself; ``sdpa`` would have a mask.
    rule = dataclasses.replace(plain, plain=False)
    assert seen_of(made(padding="right")) == (rule, None, None, None)
    assert seen_of(made(allow_is_causal_skip=False))[0] == rule
    assert made(placed="one more") is None
    both = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": True}
    assert made(BOTH_WAYS, "all ones", **both) is None


def test_windows_and_lengths_are_described():
    window = PATTERNS["window"]
    causal = Seen(None, 0)
    assert seen_of(made(window)) == (Seen(2, 0, top_left=True), None, None, None)
    assert seen_of(made(window, placed="one more")) == (Seen(2, 0), None, None, None)
    assert seen_of(made(placed="several more")) == (causal, None, None, None)
    longer = "one more in a longer cache"
    assert seen_of(made(placed=longer)) == (causal, [6, 6], None, None)
    assert seen_of(made(padding="left", placed=longer)) == (causal, [6, 6], [0, 2], None)
    assert seen_of(made(padding="left")) == (causal, [6, 6], [0, 2], None)
    found = made(BOTH_WAYS, "right", allow_is_causal_skip=False)
    assert seen_of(found) == (Seen(None, None), [6, 4], None, None)


def test_padding_between_tokens_and_other_functions_are_plain_masks():
    for found in (made(padding="between"), made(chunked(4), placed="several more")):
        assert type(found) is torch.Tensor
        assert found.dtype == torch.bool


def test_chunks_of_a_prompt_are_sequences():
    found = made(chunked(4, LEFT.tolist()), "left", local_size=4)
    assert seen_of(found) == (Seen(None, 0, longest=4), None, None, [0, 0, 4, 6, 8, 12, 12])
    found = made(chunked(4, LEFT.tolist()), "left", "one more in a longer cache", local_size=4)
    assert seen_of(found) == (Seen(None, 0), [6, 6], [4, 2], None)


def test_packed_sequences_are_offsets():
    """Through transformers' own call, as versions make packed masks of different functions."""
    config = MistralConfig(sliding_window=3, attn_implementation="tilewright")
    said = config, torch.zeros(2, TOKENS, 4), None, None, PLACES
    found = create_sliding_window_causal_mask(*said)
    assert seen_of(found) == (Seen(2, 0, longest=4), None, None, [0, 3, 6, 7, 11, 12])
    config._attn_implementation = "sdpa"
    assert torch.equal(found.exact(), create_sliding_window_causal_mask(*said))


def test_a_described_mask_is_a_boolean_tensor_to_torch():
    found = made(PATTERNS["window"], "left")
    exact = found.exact()
    assert found.dtype == torch.bool
    assert torch.equal(found[:, :, :, :3], exact[:, :, :, :3])
    assert torch.equal(torch.where(found, 0.0, -1.0), torch.where(exact, 0.0, -1.0))
    assert type(found.detach()) is type(found.to("meta")) is DescribedMask


def test_a_model_without_sdpa_has_masks_that_are_added():
    """As those of ``eager``, also where the model computes with them."""
    said = {"batch_size": 2, "q_length": 6, "kv_length": 6, "attention_mask": LEFT.bool()}
    for function in (CAUSAL, masking_utils.or_masks(CAUSAL, lambda b, h, q, k: k == 4)):
        found = mask(**said, mask_function=function, config=GptOssConfig())
        right = masking_utils.eager_mask(**said, mask_function=function)
        assert found.dtype == torch.float32
        assert torch.equal(found + 1, right + 1)
    assert isinstance(mask(**said, config=GptOssConfig()), DescribedMask)


FORMS = {
    "window": made(PATTERNS["window"]),
    "one of a window": made(PATTERNS["window"], placed="one more"),
    "several more": made(placed="several more"),
    "longer cache": made(placed="one more in a longer cache"),
    "left": made(padding="left"),
    "left, window": made(PATTERNS["window"], "left"),
    "left, longer cache": made(padding="left", placed="several more in a longer cache"),
    "right, all keys": made(BOTH_WAYS, "right", allow_is_causal_skip=False),
    "left, all keys": made(BOTH_WAYS, "left", allow_is_causal_skip=False),
    "window both ways": made(PATTERNS["window both ways"], allow_is_causal_skip=False),
    "packed": DescribedMask(
        (2, 1, 6, 6), "cpu", Seen(2, 0, longest=4), offsets=torch.tensor([0, 3, 6, 7, 11, 12]).int()
    ),
    "chunks": made(chunked(4, LEFT.tolist()), "left"),
    "one of a chunk": made(chunked(4, LEFT.tolist()), "left", "one more in a longer cache"),
    "between": made(padding="between"),
}


def operands(shape, recorded=False):
    batch, _, n_q, n_kv = shape
    torch.manual_seed(0)
    sizes = ((batch, 2, n_q, 16), (batch, 1, n_kv, 16), (batch, 1, n_kv, 16))
    return [torch.randn(size, requires_grad=recorded) for size in sizes]


def right_of(q, k, v, shown, **said):
    k, v = (x.expand(-1, q.shape[1], -1, -1) for x in (k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, shown, **said)
    return out.transpose(1, 2)


MODULE = types.SimpleNamespace(is_causal=True)


def agreed(found, recorded):
    q, k, v = operands(found.shape, recorded)
    exact = found.exact() if isinstance(found, DescribedMask) else found
    out, weights = attention(MODULE, q, k, v, found, scaling=0.5)
    right = right_of(q, k, v, exact, scale=0.5)
    rows = exact.any(-1)[:, 0]  # padding's rows aside
    assert weights is None
    torch.testing.assert_close(out[rows], right[rows], atol=2e-5, rtol=2e-5)
    assert not out[~rows].any()  # of a token that sees none
    if recorded:
        sums = [x[rows].square().sum() for x in (out, right)]
        ours, theirs = (torch.autograd.grad(x, (q, k, v)) for x in sums)
        torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.grid(2)
def test_attention_reads_each_form(form):
    agreed(FORMS[form], recorded=False)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.grid(3)
@pytest.mark.turns(16, of="gradients of masks")
def test_gradients_of_each_form(form):
    agreed(FORMS[form], recorded=True)


@pytest.mark.turns(12)
def test_a_bias_of_places_goes_with_a_mask():
    bias = torch.randn(1, 2, 6, 6)
    forms = {
        "left": FORMS["left"],
        "packed": FORMS["packed"],
        "plain": FORMS["between"],
        "none": None,
    }
    for name, found in forms.items():
        q, k, v = operands((2, 1, 6, 6))
        out, _ = attention(MODULE, q, k, v, found, scaling=0.25, position_bias=bias)
        exact = torch.ones(2, 1, 6, 6).tril().bool() if found is None else found.clone()
        right = right_of(q, k, v, torch.where(exact, bias, -torch.inf), scale=0.25)
        rows = exact.any(-1)[:, 0]
        torch.testing.assert_close(out[rows], right[rows], atol=2e-5, rtol=2e-5, msg=name)


def test_a_plain_mask_is_read_as_none_by_a_module_that_is_not_causal():
    """As PaliGemma's, whose prompts see all of themselves with ``sdpa``."""
    q, k, v = operands((2, 1, 6, 6))
    module = types.SimpleNamespace(is_causal=False)
    out, _ = attention(module, q, k, v, made())
    torch.testing.assert_close(out, right_of(q, k, v, None), atol=2e-5, rtol=2e-5)


@pytest.mark.turns(12)
def test_dropout_drops_as_many_weights():
    q, k, _ = operands((2, 1, 6, 6))
    v = torch.eye(16)[:6].expand(2, 1, 6, 16)  # so that the result is the weights
    kept, _ = attention(MODULE, q, k, v, None)
    torch.manual_seed(1)
    found, _ = attention(MODULE, q, k, v, None, dropout=0.25)
    dropped = (found == 0) & (kept > 0)
    assert 0.05 < dropped.sum() / (kept > 0).sum() < 0.5
    torch.testing.assert_close(found[~dropped], kept[~dropped] / 0.75)
    again, _ = attention(MODULE, q, k, v, None, dropout=0.25)
    assert not torch.equal(again, found)


@pytest.mark.turns(12)
def test_packed_sequences_by_their_offsets():
    q, k, v = operands((2, 1, 6, 6))
    offsets = torch.tensor([0, 3, 6, 7, 11, 12])
    said = {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets, "max_length_q": 4}
    out, _ = attention(MODULE, q, k, v, None, **said, max_length_k=4)
    plain = dataclasses.replace(FORMS["packed"].seen, left=None)
    exact = DescribedMask((2, 1, 6, 6), "cpu", plain, offsets=offsets).exact()
    torch.testing.assert_close(out, right_of(q, k, v, exact), atol=2e-5, rtol=2e-5)
    padded, _ = attention(MODULE, q, k, v, FORMS["left"], **said, max_length_k=4)
    rows = FORMS["left"].any(-1)[:, 0]  # padding that a mask hides is not overlooked
    right = right_of(q, k, v, FORMS["left"].exact())
    torch.testing.assert_close(padded[rows], right[rows], atol=2e-5, rtol=2e-5)
    with pytest.raises(BadArgument, match="max_length_k"):
        attention(MODULE, q, k, v, None, **said)


@pytest.mark.parametrize("name", [*REFUSED])
def test_what_changes_the_result_is_refused(name):
    q, k, v = operands((2, 1, 6, 6))
    with pytest.raises(BadArgument, match=f"does not take {name}: .*pass attn_implementation="):
        attention(MODULE, q, k, v, None, **{name: torch.ones(1)})


def test_another_mask_function_is_computed():
    """Through transformers' own call, which passes a user's function on."""
    config = LlamaConfig(attn_implementation="tilewright")
    embedded = torch.zeros(2, TOKENS, 4)
    said = {
        "or_mask_function": lambda b, h, q, k: k == 4,
        "and_mask_function": lambda b, h, q, k: k != 1,
    }
    found = create_causal_mask(config, embedded, LEFT, None, **said)
    config._attn_implementation = "sdpa"
    assert type(found) is torch.Tensor
    assert torch.equal(found, create_causal_mask(config, embedded, LEFT, None, **said))
