"""Words that other libraries' attention has, and what to say here instead."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.errors import BadArgument, nearest

CHUNKS = (
    "of a prompt, pass each chunk as a sequence of its own (q_offsets and kv_offsets at multiples "
    "of the chunk, mask='causal'); of one new query, pass left_pad=(kv_used - 1) // chunk * chunk"
)

INSTEAD = {
    "attn_mask": "pass it as bias=; with layout='bhsd' the operands lie as torch's",
    "attn_bias": "pass it as bias=",
    "mask_mod": "pass what torch.nn.attention.flex_attention.create_mask makes of it as bias=, or "
    "say it by mask=, window= and first=",
    "block_mask": "pass block_mask.to_dense().bool() as blocks= and its BLOCK_SIZE as block_size=, "
    "if its blocks are seen whole but for what mask=, window= and first= say; else what "
    "torch.nn.attention.flex_attention.create_mask makes of its mask_mod as bias=",
    "score_mod": "scores are changed by softcap=, bias=, slopes= and sinks= alone",
    "custom_mask": "pass it as bias=, True for a key that takes part: [1 or batch, 1 or heads, "
    "queries, keys]",
    "packed_custom_mask": "unpack it, and pass it as bias=, True for a key that takes part",
    "attention_chunk": CHUNKS,
    "enable_gqa": "leave it out: heads that share keys are seen from the shapes of q and k",
    "kpe": "latent attention has one cache, whose rows are [ckv, kpe]: let both be views of it",
    "k_pe": "latent attention has one cache, whose rows are [ckv, kpe]: let both be views of it",
    "ckv": "latent attention has one cache, whose rows are [ckv, kpe]: let both be views of it",
    "q_pe": "the queries of latent attention are one array, whose rows are [q_nope, q_pe]",
    "qv": "latent attention is attention(q, k), without v; rows of q are [q_nope, q_pe]",
}
"""By word."""


def unknown(name: str, kind: str, known: Iterable[str], has: str) -> BadArgument:
    """The error for a keyword that attention does not have.

    kind: ``option`` or ``operand``. known: keywords that may be meant. has: what there is.
    """
    if name in INSTEAD:
        return BadArgument(f"attention has no {kind} '{name}': {INSTEAD[name]}")
    return BadArgument(f"attention has no {kind} '{name}'{nearest(name, known)}; it has {has}")
