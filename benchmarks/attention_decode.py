"""Decoding against the bandwidth of a copy, in one interleaved run.

    python benchmarks/attention_decode.py --json benchmarks/results/attention_decode_h200.json
    python benchmarks/attention_decode.py --on cpu

One query for each sequence over caches of bf16: contiguous, in pages of 16 and 64 tokens by a table
and of 1 by a list, all of 8 query heads to a head of keys; and latent attention (576/512). Every
kernel of the default space (`--wide`: of the tuning's spaces too) is first checked against float64,
on a small problem of its signature with lengths of all kinds. Those that are right are timed
briefly on each large one, full to its length, in pages in random order; the fastest few are timed
against each other with a clean L2 (see `harness`), and beside them the fastest that does not split,
and what a dispatcher picks that knows no measurements (``untuned``). Bytes are those of
`AttentionProblem.min_bytes`, and are set against those of a large copy in the same run.

`--on cpu` checks in the interpreter and times nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from environment import environment
from gemm_vs_vendor import copy_bandwidth
from harness import bound, compare, warm_up
from tilewright import ops, verify
from tilewright.arch import arch, device
from tilewright.arch.detect import live_device
from tilewright.compile import Store, build
from tilewright.dispatch import Dispatcher
from tilewright.errors import EmptySpace
from tilewright.ops.attention import AttentionConfig, AttentionProblem

FAMILY = ops.family("attention")
BRIEF, FINALISTS = 3, 4
MOST_BYTES = 60 << 30
"""Of a cache that is timed."""

FORMS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "pages of 16": {"page_size": 16, "others": "usedkv+pagetable"},
    "pages of 64": {"page_size": 64, "others": "usedkv+pagetable"},
    "pages of 1": {"page_size": 1, "others": "usedkv+pagelist"},
    "latent, pages of 64": {
        "page_size": 64, "others": "usedkv+pagetable+latent", "head_dim": 576, "head_dim_v": 512,
        "kv_heads": 1,
    },
}  # fmt: skip
PLAIN = {"heads": 32, "kv_heads": 4, "q_len": 1, "head_dim": 128, "dtype": "bf16"}
BATCHES, LENGTHS = (1, 8, 32, 128), (1024, 8192, 65536, 131072)
LATENT_HEADS, LATENT_LENGTHS = (16, 64, 128), (4096, 16384, 65536)


def problem(form: str, batch: int, kv_len: int, **more: Any) -> AttentionProblem:
    """A problem of a form; the cache has as many pages as its sequences need."""
    fields = {**PLAIN, **FORMS[form], "batch": batch, "kv_len": kv_len, **more}
    if page := fields.get("page_size", 0):
        entries = -(-kv_len // page)
        table = "pagetable" in fields["others"]
        fields |= {"pages": batch * entries, "page_entries": entries if table else batch * entries}
    return AttentionProblem(**fields)


def large(
    form: str, batches: Sequence[int], lengths: Sequence[int] | None, heads: Sequence[int] | None
) -> Iterator[AttentionProblem]:
    """The problems of a form that are timed. None: those of its kind."""
    latent = "latent" in form
    for each in (heads or LATENT_HEADS) if latent else (32,):
        for batch in batches:
            for kv_len in lengths or (LATENT_LENGTHS if latent else LENGTHS):
                p = problem(form, batch, kv_len, heads=each)
                if p.min_bytes <= MOST_BYTES:
                    yield p


def small(p: AttentionProblem) -> AttentionProblem:
    """A problem of the same signature that is quickly checked."""
    form = next(
        name
        for name, fields in FORMS.items()
        if fields.get("page_size", 0) == p.page_size and fields.get("others", "") == p.others
    )
    return problem(form, 3, 300, heads=p.heads if "latent" in form else 16)


def full(p: AttentionProblem, on: str) -> verify.Operands:
    """Random operands; all sequences as long as they may be, and pages in random order."""
    made = verify.Operands({}, {})
    for one in FAMILY.operands(p):
        if one.name in ("o", "lse"):
            made.outputs[one.name] = torch.empty(one.shape, dtype=torch.bfloat16, device=on)
        elif one.dtype == "bf16":
            array = torch.empty(one.shape, dtype=torch.bfloat16, device=on)
            made.inputs[one.name] = array.normal_()
    if p.paged:
        made.inputs["kv_used"] = torch.full((p.batch,), p.kv_len, dtype=torch.int32, device=on)
        pages = torch.randperm(p.pages, device=on).to(torch.int32)
        if "pagetable" in p.words:
            made.inputs["page_table"] = pages.reshape(p.batch, p.page_entries)
        else:
            starts = torch.arange(p.batch + 1, dtype=torch.int32, device=on)
            made.inputs["page_list"] = pages
            made.inputs["page_starts"] = starts * (p.pages // p.batch)
    return made


def configs_of(
    p: AttentionProblem, name: str, wide: bool, lengths: Sequence[int] = ()
) -> list[AttentionConfig]:
    """Every kernel of its spaces that can win: few rows, and all heads of a group in a tile.

    lengths: of splits, in keys; those kernels that split equally are there with each of them too.
    """
    this, found = arch(name), dict[AttentionConfig, None]()
    for space in FAMILY.tuning_spaces(p, this) if wide else [FAMILY.default_space(p, this)]:
        with contextlib.suppress(EmptySpace):
            found |= dict.fromkeys(space.expand(this).configs)
    kernels = [c for c in found if c.tile_q <= 64 and (c.pack or p.group == 1)]
    equal = [c for c in kernels if c.scheduler == "split" and not c.split_len]
    for length in lengths:
        cut = [replace(c, split_len=length) for c in equal]
        kernels += [c for c in cut if FAMILY.judge(c, this) and length < p.kv_len]
    return list(dict.fromkeys(kernels))


def right(
    dispatcher: Dispatcher, p: AttentionProblem, c: AttentionConfig, gpu: str, on: str
) -> bool:
    """Whether a kernel computes a small problem of its signature."""
    little = small(p)
    if not FAMILY.supports(c, little, arch(gpu)):
        return False
    return verify.verify(dispatcher, little, c.name, device=on, seed=1).ok


def timed(
    p: AttentionProblem, configs: list[AttentionConfig], store: Store, rounds: int, copy: float
) -> dict[str, Any]:
    """One line of the results."""
    made = full(p, "cuda:0")
    inputs = [made.inputs[name] for name in ("q", "k", "v") if name in made.inputs]
    said = {n: x for n, x in made.inputs.items() if n not in ("q", "k", "v")}
    said |= {**FAMILY.options(p), "out": made.outputs["o"]}
    calls = {
        c.name: bound(store, c, *inputs, **said)
        for c in configs
        if FAMILY.supports(c, p, arch(live_device(0).arch))
    }
    brief = compare(calls, BRIEF, clean=True)
    order = sorted(brief, key=lambda name: brief[name].median)
    chosen = order[:FINALISTS]
    chosen += [name for name in order if "_split" not in name][:1]
    untuned = Dispatcher(store=store)
    named = {name: calls[name] for name in dict.fromkeys(chosen)}
    named["untuned"] = lambda: untuned.run("attention", *inputs, **said)
    named["untuned"]()
    warm_up(named[order[0]])
    found = compare(named, rounds, clean=True)
    line = {
        "problem": str(p),
        "bytes": p.min_bytes,
        "untuned": untuned.select(p).config.name,
        "times_us": {name: round(one.median, 2) for name, one in found.items()},
    }
    best = min(found, key=lambda name: found[name].median)
    rate = p.min_bytes / found[best].median / 1e3
    line |= {"best": best, "gbs": round(rate, 1), "of_copy": round(rate / copy, 3)}
    line["tflops"] = round(p.flops / found[best].median / 1e6, 1)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the results, line by line")
    parser.add_argument("--rounds", type=int, default=30, help="samples of each finalist")
    parser.add_argument("--forms", nargs="+", default=[*FORMS], choices=FORMS)
    parser.add_argument("--on", default="cuda:0", help="cuda:0, or cpu: check and time nothing")
    parser.add_argument("--wide", action="store_true", help="the tuning's spaces too")
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES)
    parser.add_argument("--lengths", nargs="+", type=int, help="of caches, in tokens")
    parser.add_argument("--heads", nargs="+", type=int, help="of latent attention")
    parser.add_argument(
        "--split-lengths", nargs="+", type=int, default=(), help="further lengths of splits"
    )
    parser.add_argument("--pipelines", nargs="+", help="of the kernels; by default all")
    options = parser.parse_args()

    gpu = device("h200") if options.on == "cpu" else live_device(0)
    store = Store()
    dispatcher = Dispatcher(store=store, device=gpu)
    lines: list[dict[str, Any]] = []
    copy = 0.0
    if options.on != "cpu":
        copy = copy_bandwidth()
        lines.append({"environment": environment(), "copy_gbs": round(copy, 1)})
    for form in options.forms:
        checked: dict[AttentionConfig, bool] = {}
        for p in large(form, options.batches, options.lengths, options.heads):
            configs = configs_of(p, gpu.arch, options.wide, options.split_lengths)
            if options.pipelines:
                configs = [c for c in configs if c.pipeline in options.pipelines]
            new = [c for c in configs if c not in checked]
            if options.on != "cpu":
                report = build([(c, gpu.arch) for c in new], store=store)
                built = {r.config.name for r in report.results if r.ok}
                new = [c for c in new if c.name in built]
            checked |= {c: right(dispatcher, p, c, gpu.arch, options.on) for c in new}
            wrong = [c.name for c in new if not checked[c]]
            print(form, p, f"{len(new)} new kernels, not right: {wrong}", flush=True)
            if options.on == "cpu":
                break
            line = timed(p, [c for c in configs if checked.get(c)], store, options.rounds, copy)
            lines.append({"form": form, "wrong": wrong, **line})
            print(json.dumps(lines[-1]), flush=True)
            if options.json:
                options.json.write_text("\n".join(map(json.dumps, lines)) + "\n")


if __name__ == "__main__":
    main()
