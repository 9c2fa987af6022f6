"""Attention problems to check with: any legal combination of features, drawn from a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from tilewright import ops
from tilewright.arch.model import Arch
from tilewright.dtypes import DTYPES
from tilewright.errors import EmptySpace
from tilewright.ops.attention import AttentionConfig, AttentionProblem
from tilewright.ops.attention.features import CHOICES, REQUIRED, join
from tilewright.ops.attention.operands import operands
from tilewright.ops.attention.problem import OUTPUTS

FREE = (
    "lse", "alibi", "sinks", "random", "packedq", "packedkv", "usedq", "usedkv", "leftpad",
    "pagetable", "pagelist", "vectorised", "latent", "tscale", "hscale", "bscale", "oscale",
    "rotaryi", "rotaryh",
)  # fmt: skip
"""Words that `AttentionProblem.others` says."""

SAID = ("softcap", "bias", "dropout", "append")
"""Words that fields say."""


def drawn(
    seed: int,
    most: int = 130,
    dtypes: tuple[str, ...] = ("bf16", "fp16", "fp32", "e4m3fn"),
    words: frozenset[str] | None = None,
    **sizes: Any,
) -> AttentionProblem:
    """A problem of sequences of up to `most` rows.

    words: its features; None: drawn. sizes: batch, heads, lengths, head dims, dtypes, in place of
    drawn ones.
    """
    rng = random.Random(seed)
    given = legal(rng) if words is None else words
    by_block = random.Random(~seed)  # by itself: other draws are as they were
    if words is None and by_block.random() < 0.12:
        given |= {"blocks"}
    p: dict[str, Any] = {"batch": rng.choice((1, 2, 3, 4))}
    p["kv_heads"] = 1 if "latent" in given else rng.choice((1, 1, 2, 3))
    p["heads"] = p["kv_heads"] * rng.choice((1, 1, 2, 4, 5))
    p["head_dim"] = rng.choice((16, 32, 32, 48, 64))
    p["head_dim_v"] = rng.choice((16, 32, 48)) if rng.random() < 0.3 else p["head_dim"]
    if "latent" in given:
        p["head_dim"], p["head_dim_v"] = rng.choice(((48, 32), (64, 64), (80, 64)))
    p["q_len"], p["kv_len"] = (rng.choice((1, 2, rng.randint(1, most), most)) for _ in "qk")
    if rng.random() < 0.5:
        p["q_len"] = p["kv_len"]
    p["dtype"] = sizes.get("dtype", rng.choice(dtypes))
    if p["dtype"] in ("bf16", "fp16") and "e4m3fn" in dtypes and rng.random() < 0.3:
        p["dtype_kv"] = "e4m3fn"
    p |= sizes
    p.setdefault("dtype_o", rng.choice(OUTPUTS[p["dtype"]]))
    p |= _mask(rng, p)
    if "vectorised" in given:
        p |= {name: -(-p[name] // 16) * 16 for name in ("head_dim", "head_dim_v")}
    if "softcap" in given:
        p["softcap"] = rng.choice((2.0, 15.0, 30.0))
    if "bias" in given:
        p["bias_shape"] = (rng.choice((1, p["batch"])), rng.choice((1, p["heads"])))
        # With words given, they say it.
        whole = seed % 3 == 0 if words is None else "bias32" in given
        flags = seed % 3 == 1 if words is None else "biasbool" in given
        if p["dtype"] != "fp32" and whole:
            p["bias_dtype"] = "fp32"
        elif flags:
            p["bias_dtype"] = "bool"
    if "blocks" in given:
        p["blocks_shape"] = by_block.choice((1, p["batch"])), by_block.choice((1, p["heads"]))
        p["block_size"] = by_block.choice((32, 64))
        p["density"] = by_block.choice((0.0, 0.4))
    if "alibi" in given:
        p["slopes_batched"] = rng.random() < 0.5
    if "dropout" in given:
        p["dropout"] = rng.choice((1, 44, 128)) / 256
    if "bscale" in given:
        p["scale_block"] = 128
    p |= _memory(rng, p, given)
    p |= _strides(rng, p, given)
    p["others"] = join({word for word in given if word in FREE})
    made = AttentionProblem(**p)
    return replace(made, alignment=alignment(made))


def alignment(p: AttentionProblem) -> int:
    """Bytes, at most 16, that all strides of Q, K, V and O but those of 1 are multiples of."""
    return math.gcd(16, *(
        stride * DTYPES[one.dtype].bytes
        for one in operands(p)
        if one.name in ("q", "k", "v", "o")
        for size, stride in zip(one.shape, one.strides, strict=True)
        if size > 1 and stride != 1
    ))  # fmt: skip


def legal(
    rng: random.Random,
    share: float = 0.2,
    must: str = "",
    among: Collection[str] = (*FREE, *SAID),
) -> frozenset[str]:
    """Features that go together: each of `among` with a chance of `share`, and `must`."""
    kept = {must} if must else set()
    for _ in REQUIRED:  # and what it needs, and what that needs
        for word in sorted(kept & {*REQUIRED}):
            if not kept.intersection(REQUIRED[word]):
                kept.add(rng.choice([one for one in REQUIRED[word] if one in among]))
    found = kept | {word for word in among if rng.random() < share}
    changed = True
    while changed:
        changed = False
        for word, others in REQUIRED.items():
            if word in found and not found.intersection(others):
                found.add(rng.choice([one for one in others if one in among]))
                changed = True
        for choice in CHOICES:
            both = [word for word in choice if word in found]
            if len(both) > 1:
                lost = rng.choice([word for word in both if word not in kept])
                found -= {lost} | {word for word, of in REQUIRED.items() if lost in of} - kept
                changed = True
    return frozenset(found)


def _mask(rng: random.Random, p: dict[str, Any]) -> dict[str, Any]:
    """None, causal, a window to both sides, or any bounds."""
    near = max(p["q_len"], p["kv_len"])
    kind = rng.choice(("none", "causal", "causal", "window", "any"))
    corner = rng.choice(("bottom_right", "top_left"))
    if kind == "none":
        return {}
    if kind == "causal":
        return {"right": 0, "corner": corner}
    if kind == "window":
        left, right = rng.randint(0, near), rng.choice((0, 0, rng.randint(0, near)))
    else:
        left, right = (rng.choice((None, rng.randint(-3, near))) for _ in "lr")
    first = rng.choice((0, 0, 3)) if left is not None else 0
    return {"left": left, "right": right, "first": first, "corner": corner}


def _memory(rng: random.Random, p: dict[str, Any], words: frozenset[str]) -> dict[str, Any]:
    """Layouts, packed rows, pages, room to append."""
    found: dict[str, Any] = {name: rng.choice(("bshd", "bhsd")) for name in ("layout", "kv_layout")}
    batch, kv_len = p["batch"], p["kv_len"]
    if "packedq" in words:
        found["total_q"] = rng.randint(1, batch * p["q_len"])
    if "packedkv" in words:
        found["total_kv"] = rng.randint(min(1, kv_len), batch * kv_len)
    if "append" in words:
        found["new_kv"] = rng.choice((1, 1, rng.randint(1, p["q_len"] + 2)))
        kv_len = found["kv_len"] = kv_len + found["new_kv"]
    if words & {"rotaryi", "rotaryh"}:
        found["rotary_dim"] = rng.choice((p["head_dim"], p["head_dim"] // 2))
        found["rotary_len"] = kv_len + max(p["q_len"], found["new_kv"])
    if words & {"pagetable", "pagelist"}:
        page = found["page_size"] = rng.choice((16, 16, 32) if "vectorised" in words else
                                               (1, 2, 4, 16, 64))  # fmt: skip
        entries = -(-kv_len // page)
        least = batch * -(-found.get("new_kv", 0) // page)
        found["pages"] = max(least, rng.randint(0, batch * entries)) + rng.randint(0, 3)
        found["page_entries"] = entries + rng.randint(0, 2)
        if "pagelist" in words:
            found["page_entries"] = batch * entries + rng.randint(0, 2)
    return found


def _strides(rng: random.Random, p: dict[str, Any], words: frozenset[str]) -> dict[str, Any]:
    """Rows further apart than they are long, of some operands."""
    found: dict[str, Any] = {}
    if 0 in (p["kv_len"], p.get("pages", 1), p.get("total_kv", 1)):
        return found  # arrays without elements have no strides to speak of
    for name in ("q", "k", "v", "o"):
        of_q, dim = name in "qo", p["head_dim" if name in "qk" else "head_dim_v"]
        if rng.random() < 0.8 or (name in "kv" and "vectorised" in words):
            continue
        if name == "v" and "latent" in words:
            continue
        rows = p["q_len"] if of_q else p.get("page_size", p["kv_len"])
        row = (p["heads" if of_q else "kv_heads"] + rng.randint(1, 3)) * dim
        packed = ("packedq" if of_q else "packedkv") in words
        found[f"{name}_strides"] = (0 if packed else rows * row, row, dim, 1)
    return found


def ways(p: AttentionProblem, arch: Arch, interpreted: bool = True) -> list[AttentionConfig]:
    """A kernel of each kind of the default space that serves `p`: pipeline, scheduler, packing.

    interpreted: those alone that the interpreter runs itself.
    """
    family = ops.family("attention")
    try:
        configs = family.default_space(p, arch).expand(arch).configs
    except EmptySpace:
        return []
    found: dict[tuple[Any, ...], AttentionConfig] = {}
    for one in configs:
        kind = (one.pipeline, one.scheduler, one.split_len, one.pack)
        if interpreted and family.interpreted(one) != one:
            continue
        if kind not in found and family.supports(one, p, arch):
            found[kind] = one
    return [*found.values()]
