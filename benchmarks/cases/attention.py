"""Attention, forward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import rivals
import rivals_attention as others
from cases import Case, Part
from tilewright import verify
from tilewright.ops.attention import AttentionProblem

TOKENS = 1 << 14
"""Of a batch: sequences of 1k come by 16, of 16k one at a time."""
HEADS = {64: 32, 128: 16, 192: 16, 256: 8}
LENGTHS = (1024, 2048, 4096, 8192, 16384)
CAUSAL: tuple[dict[str, Any], ...] = ({}, {"right": 0})

Problems = Iterator[AttentionProblem]


def shape(length: int, head_dim: int, **more: Any) -> AttentionProblem:
    """Attention of `TOKENS` tokens in sequences of one length."""
    fields = {
        "batch": max(1, TOKENS // length), "heads": HEADS[head_dim], "q_len": length,
        "kv_len": length, "head_dim": head_dim, **more,
    }  # fmt: skip
    return AttentionProblem(**fields)


def dense(lengths: Sequence[int] = LENGTHS, **more: Any) -> Problems:
    for head_dim in (64, 128, 256):
        for length in lengths:
            for mask in CAUSAL:
                yield shape(length, head_dim, **mask, **more)


def gqa() -> Problems:
    """64 heads over 8, as in NVIDIA's published runs; and 8 over 1 at the other head dims."""
    for p in dense((1024, 4096, 16384)):
        heads = 64 if p.head_dim == 128 else p.heads
        yield shape(p.q_len, p.head_dim, heads=heads, kv_heads=heads // 8, right=p.right)


def two_dims() -> Problems:
    for length in (2048, 4096, 8192):
        for mask in CAUSAL:
            yield shape(length, 192, head_dim_v=128, **mask)


def windows() -> Problems:
    for head_dim in (64, 128):
        for length in (4096, 8192, 16384):
            yield shape(length, head_dim, left=1024, right=0)


def packed() -> Problems:
    """Sequences of all lengths up to 2k and 8k."""
    for head_dim in (64, 128):
        for length in (2048, 8192):
            for mask in CAUSAL:
                yield AttentionProblem(
                    4 * TOKENS // length, HEADS[head_dim], length, length, head_dim,
                    total_q=TOKENS, total_kv=TOKENS, others="packedq+packedkv", **mask,
                )  # fmt: skip


def features() -> Problems:
    said: tuple[dict[str, Any], ...] = ({"softcap": 30.0}, {"others": "alibi"}, {"others": "sinks"})
    for length in (4096, 8192):
        for each in said:
            yield shape(length, 128, right=0, **each)


def biases() -> Problems:
    """A bias that the sequences share."""
    for head_dim in (64, 128):
        for mask in CAUSAL:
            yield shape(4096, head_dim, batch=2, bias_shape=(1, HEADS[head_dim]), **mask)


def masks_of_blocks() -> Iterator[dict[str, Any]]:
    """The words of masks of blocks of 128 and 64, a mask for each head of head dim 128, of which a
    half to a tenth is seen."""
    for block_size, masks in ((128, CAUSAL), (64, CAUSAL[:1])):
        for density in (0.5, 0.25, 0.1):
            for mask in masks:
                said = {"blocks_shape": (1, HEADS[128]), "block_size": block_size}
                yield {**said, "density": density, **mask}


def blocks() -> Problems:
    for mask in masks_of_blocks():
        yield shape(8192, 128, **mask)


def eight(by_columns: bool = False) -> Problems:
    """fp8, with a scale for each head; values lie by rows or by columns."""
    for head_dim in (128, 256):
        for length in (4096, 8192, 16384):
            for mask in CAUSAL:
                columns = (HEADS[head_dim] * head_dim * length, 1, head_dim * length, length)
                strides = {"v_strides": columns} if by_columns else {}
                yield shape(length, head_dim, dtype="e4m3fn", others="hscale", **mask, **strides)


def in_bf16(p: AttentionProblem) -> AttentionProblem:
    """The same in bf16, without scales."""
    return replace(p, dtype="bf16", dtype_kv="", dtype_o="", others="", v_strides=())


PAGED: tuple[tuple[int, str], ...] = ((64, "pagetable"), (16, "pagetable"), (1, "pagelist"))


def decoding(latent: bool = False) -> Problems:
    """One query for each sequence, 32 heads over 4, over a contiguous cache and pages; or latent
    attention. Plain caches of 0.27, 0.27, 0.54 and 1.07 GB."""
    for batch, length in ((1, 131072), (8, 16384), (16, 16384), (32, 16384)):
        if latent:
            pages = batch * length // 64
            yield AttentionProblem(
                batch, 128, 1, length, 576, kv_heads=1, head_dim_v=512, page_size=64, pages=pages,
                page_entries=length // 64, others="usedkv+pagetable+latent",
            )  # fmt: skip
            continue
        yield AttentionProblem(batch, 32, 1, length, 128, kv_heads=4, others="usedkv")
        for page, table in PAGED:
            entries = length // page
            yield AttentionProblem(
                batch, 32, 1, length, 128, kv_heads=4, page_size=page, pages=batch * entries,
                page_entries=entries * (1 if table == "pagetable" else batch),
                others=f"usedkv+{table}",
            )  # fmt: skip


def full_caches(
    problem: AttentionProblem, seed: int, device: str, make: Any = verify.operands_of
) -> verify.Operands:
    """Operands whose caches are full to their length, in pages in random order."""
    import torch

    made: Any = make(problem, seed, device)
    made.inputs["kv_used"].fill_(problem.kv_len)
    if problem.paged:
        generator = torch.Generator(device=device).manual_seed(seed)
        pages = torch.randperm(problem.pages, device=device, generator=generator)
        name = "page_table" if "pagetable" in problem.words else "page_list"
        made.inputs[name].copy_(pages.reshape(made.inputs[name].shape))
        if name == "page_list":
            each = problem.pages // problem.batch
            starts = torch.arange(problem.batch + 1, device=device) * each
            made.inputs["page_starts"].copy_(starts)
    return made


CUDNN = "the fastest of cuDNN, FlashAttention-2 and, where installed, FlashAttention-3"
FLEX = "FlexAttention, compiled with max-autotune, the best of its options"
FLASH = (rivals.torch_calls, others.flash_3)

CASES = (
    Case(
        "attention-dense", "bf16, head dims 64, 128 and 256, 1k to 16k rows, causal and not",
        CUDNN, lambda: [*dense()], vendor=FLASH,
    ),
    Case(
        "attention-fp16", "fp16, head dims 64, 128 and 256, 2k and 8k rows, causal and not", CUDNN,
        lambda: [*dense((2048, 8192), dtype="fp16")], vendor=FLASH,
    ),
    Case(
        "attention-dense-gqa", "bf16, 8 heads to a group, 1k, 4k and 16k rows, causal and not",
        CUDNN, lambda: [*gqa()], vendor=FLASH,
    ),
    Case(
        "attention-192-128", "bf16, head dims 192 and 128, 2k to 8k rows, causal and not", CUDNN,
        lambda: [*two_dims()], vendor=FLASH,
    ),
    Case(
        "attention-packed", "bf16, packed sequences of all lengths up to 2k and 8k",
        "the faster of FlashAttention-2 and, where installed, FlashAttention-3",
        lambda: [*packed()], vendor=FLASH,
    ),
    Case(
        "attention-features", "bf16 with soft cap, ALiBi or sinks, 4k and 8k rows, causal", FLEX,
        lambda: [*features()], vendor=(others.flex,),
    ),
    Case(
        "attention-window", "bf16, windows of 1,024, 4k to 16k rows",
        "the fastest of FlexAttention (compiled with max-autotune) and FlashAttention",
        lambda: [*windows()], vendor=(*FLASH, others.flex),
    ),
    Case(
        "attention-bias", "bf16 with an elementwise bias, 4k rows, causal and not",
        "the faster of cuDNN (without a mask) and FlexAttention (compiled with max-autotune)",
        lambda: [*biases()], vendor=(rivals.torch_calls, others.flex),
    ),
    Case(
        "attention-blocks", "bf16, 8k rows, masks of blocks of 128 (causal and not) and 64, of "
        "which a half, a quarter and a tenth is seen", FLEX,
        lambda: [*blocks()], vendor=(others.flex,),
    ),
    Case(
        "attention-fp8", "fp8, values by rows, 4k to 16k rows, causal and not",
        "the faster of cuDNN in fp8 and FlashAttention-3, as far as installed",
        lambda: [*eight()],
        vendor=(others.flash_3, others.cudnn_fp8), exact=False,
    ),
    Case(
        "attention-fp8-columns", "fp8, values by columns, 4k to 16k rows, causal and not",
        "Tilewright in bf16", lambda: [*eight(by_columns=True)],
        vendor=(rivals.own_kernels(of=in_bf16, others=True),), exact=False,
    ),
    Case(
        "attention-decode", "bf16, one query, 32 heads over 4, contiguous and paged caches of 0.27 "
        "GB and more", "a copy of as many bytes", lambda: [*decoding()], vendor=(rivals.copy,),
        operands=full_caches, exact=False,
        parts=tuple(
            Part(end, "a copy of as many bytes", where=lambda p, size=size: p.page_size == size)
            for end, size in (("contiguous", 0), ("pages-64", 64), ("pages-16", 16), ("pages-1", 1))
        ),
    ),
    Case(
        "attention-decode-latent", "bf16, one query of latent attention (576, 512), 128 heads, "
        "pages of 64", "a copy of as many bytes", lambda: [*decoding(latent=True)],
        vendor=(rivals.copy,), operands=full_caches, exact=False,
    ),
)  # fmt: skip
