"""Attention's Hopper kernels against cuDNN, FlashAttention-2 and FlexAttention, in one interleaved
run.

    python benchmarks/attention_vendor.py --json benchmarks/results/attention_h200.json
    python benchmarks/attention_vendor.py --set dense --kernels 128x128_w8_s2 128x64_w8_s3
    python benchmarks/attention_vendor.py --build

For each problem of the sets, every kernel of the default space (`--wide`: of the tuning's spaces
too) and every call of torch is checked against float64 at full size; what fails is reported, and
not timed. The kernels then race, beside the calls of torch: single calls, with L2 flushed. The
fastest is timed again against those calls, with L2 flushed and in graphs of several replayed calls.
A ratio is a call's median over the kernel's, so more than 1 is faster. `--build` builds the kernels
and lists them, without a GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from environment import environment
from tilewright import ops, verify
from tilewright.arch import arch
from tilewright.compile import Store, build
from tilewright.dispatch import Dispatcher
from tilewright.errors import TilewrightError
from tilewright.measure import timing
from tilewright.measure.contenders import Contender, kernel_bind, results
from tilewright.measure.measurement import Settings
from tilewright.ops.attention import AttentionConfig, AttentionProblem

FAMILY = ops.family("attention")
GPU = "cuda:0"
FLEX = "torch.flex_attention"
FLEX_BACKWARD = "torch.flex_attention, backward"
TOKENS = 1 << 14
"""Of a batch: sequences of 1k come by 16, of 16k one at a time."""

HEADS = {64: 32, 128: 16, 192: 16, 256: 8}
LENGTHS = (1024, 2048, 4096, 8192, 16384)
CAUSAL: tuple[dict[str, Any], ...] = ({}, {"right": 0})

RACE = Settings(min_samples=8, max_samples=40, precision=0.01, race=0.02, budget_seconds=0.3)
FINAL = Settings(min_samples=40, max_samples=120, precision=0.003, budget_seconds=0.8)
REPLAYED = 4


def _shape(length: int, head_dim: int, **more: Any) -> AttentionProblem:
    fields = {
        "batch": max(1, TOKENS // length), "heads": HEADS[head_dim], "q_len": length,
        "kv_len": length, "head_dim": head_dim, **more,
    }  # fmt: skip
    return AttentionProblem(**fields)


def _dense(lengths: Sequence[int] = LENGTHS, **more: Any) -> Iterator[AttentionProblem]:
    for head_dim in (64, 128, 256):
        for length in lengths:
            for mask in CAUSAL:
                yield _shape(length, head_dim, **mask, **more)


def _gqa() -> Iterator[AttentionProblem]:
    """64 heads over 8, as in NVIDIA's published runs; and 8 over 1 at the other head dims."""
    for p in _dense((1024, 4096, 16384)):
        heads = 64 if p.head_dim == 128 else p.heads
        yield _shape(p.q_len, p.head_dim, heads=heads, kv_heads=heads // 8, right=p.right)


def _packed(length: int, head_dim: int, **more: Any) -> AttentionProblem:
    """Sequences of up to `length` rows, of all lengths."""
    batch = 4 * TOKENS // length
    total = TOKENS
    return AttentionProblem(
        batch, HEADS[head_dim], length, length, head_dim, total_q=total, total_kv=total,
        others="packedq+packedkv", **more,
    )  # fmt: skip


def _features() -> Iterator[AttentionProblem]:
    for length in (4096, 8192):
        for said in ({"softcap": 30.0}, {"others": "alibi"}, {"others": "sinks"}):
            yield _shape(length, 128, right=0, **said)


def _bias() -> Iterator[AttentionProblem]:
    """A bias that the sequences share."""
    for head_dim in (64, 128):
        for mask in CAUSAL:
            yield _shape(4096, head_dim, batch=2, bias_shape=(1, HEADS[head_dim]), **mask)


def _eight() -> Iterator[AttentionProblem]:
    """Each shape in bf16, then in fp8 with values by columns and by rows, of which torch has no
    call."""
    for head_dim in (128, 256):
        for length in (4096, 8192, 16384, 32768):
            for mask in CAUSAL:
                p = _shape(length, head_dim, **mask)
                yield p
                eight = {"dtype": "e4m3fn", "others": "hscale", **mask}
                columns = (p.heads * head_dim * length, 1, head_dim * length, length)
                yield _shape(length, head_dim, v_strides=columns, **eight)
                yield _shape(length, head_dim, **eight)


SETS: dict[str, Callable[[], Iterator[AttentionProblem]]] = {
    "dense": _dense,
    "fp16": lambda: _dense((2048, 8192), dtype="fp16"),
    "gqa": _gqa,
    "window": lambda: (
        _shape(n, d, left=1024, right=0) for d in (64, 128) for n in (4096, 8192, 16384)
    ),
    "192/128": lambda: (
        _shape(n, 192, head_dim_v=128, **mask) for n in (2048, 4096, 8192) for mask in CAUSAL
    ),
    "varlen": lambda: (
        _packed(n, d, **mask) for d in (64, 128) for n in (2048, 8192) for mask in CAUSAL
    ),
    "features": _features,
    "bias": _bias,
    "fp8": _eight,
}


def kernels(p: AttentionProblem, wide: bool, words: list[str]) -> list[AttentionConfig]:
    """The configs of Hopper's kernels for many queries that can serve `p`, of which the name has
    one of `words`."""
    this = arch("sm_90")
    spaces = FAMILY.tuning_spaces(p, this) if wide else [FAMILY.default_space(p, this)]
    found = {c.name: c for space in spaces for c in space.expand(this).configs}
    return [
        c
        for name, c in found.items()
        if c.pipeline in ("gluon_ws", "gluon_turned")
        and FAMILY.supports(c, p, this)
        and (not words or any(f"_{word}_" in name for word in words))
    ]


def flex(p: AttentionProblem, inputs: Mapping[str, Any], outputs: Any) -> Callable[[], Any]:
    """FlexAttention, compiled, of batches in bshd."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()  # it compiles a function a few times and no more
    q, k, v = (inputs[name].transpose(1, 2) for name in ("q", "k", "v"))
    shift = p.kv_len - p.q_len if p.mask.bottom_right else 0
    left, right = (math.inf if bound is None else bound for bound in (p.left, p.right))
    slopes, sinks, bias = (inputs.get(name) for name in ("slopes", "sinks", "bias"))

    def seen(b: Any, h: Any, i: Any, j: Any) -> Any:
        found = j <= i + shift + right
        return found if p.left is None else found & (j >= i + shift - left)

    def changed(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        if p.softcap:
            s = p.softcap * torch.tanh(s / p.softcap)
        if slopes is not None:
            s = s - slopes[h] * (i + shift - j).abs()
        if bias is not None:
            s = s + bias[b % bias.shape[0], h % bias.shape[1], i, j]
        return s

    blocks = None
    if p.mask.kind != "none":
        blocks = create_block_mask(seen, None, None, p.q_len, p.kv_len, device=q.device)
    how = {
        "score_mod": changed if p.softcap or slopes is not None or bias is not None else None,
        "block_mask": blocks,
        "scale": inputs["scale"],
        "enable_gqa": p.group > 1,
        "return_lse": sinks is not None,
    }

    @torch.compile(fullgraph=True, dynamic=False)
    def call() -> Any:
        found = flex_attention(q, k, v, **how)
        if sinks is None:
            return found.transpose(1, 2)
        o, lse = found
        return (o * torch.sigmoid(lse - sinks[:, None])[..., None]).to(o.dtype).transpose(1, 2)

    return call


def torch_calls(p: AttentionProblem) -> list[Contender]:
    """Torch's calls that compute `p`."""
    calls = [Contender(name, None, bind) for name, bind in FAMILY.vendor(p).items()]
    if p.softcap or p.left is not None or p.words & {"alibi", "bias", "sinks"}:
        calls.append(Contender(FLEX, None, lambda i, o: flex(p, i, o)))
    return calls


def checked(
    contenders: list[Contender], p: AttentionProblem
) -> tuple[dict[str, timing.Call], dict[str, str]]:
    """Calls, on the same operands, of the contenders that are right; and what is wrong with the
    others."""
    operands = verify.operands_of(p, 1, GPU)
    before = verify.snapshot(p, operands.inputs)
    wanted = verify.reference(p, operands.inputs)
    calls: dict[str, timing.Call] = {}
    wrong: dict[str, str] = {}
    for one in contenders:
        print(f"{one.label} on {p}", file=sys.stderr, flush=True)  # a kernel that hangs is the last
        verify.reset(operands, before)
        reason = ""
        try:
            call = one.bind(operands.inputs, operands.outputs)
            found = verify.compare_all(p, one.config, results(p, operands, call()), wanted)
            reason = "" if found.ok else str(found)
        except (RuntimeError, TilewrightError) as error:  # torch refuses it, or it does not run
            reason = f"{type(error).__name__}: {error}"[:300]
        if reason:
            wrong[one.label] = reason
        else:
            calls[one.label] = call
    return calls, wrong


def measure(
    p: Any, configs: list[Any], of_torch: list[Contender], dispatcher: Dispatcher,
    flush: timing.Call,
) -> dict[str, Any]:  # fmt: skip
    """One problem's line of the result."""
    contenders = [Contender(c.name, c, kernel_bind(dispatcher, c.name, p)) for c in configs]
    calls, wrong = checked([*contenders, *of_torch], p)
    ours = [c.name for c in configs if c.name in calls]
    others = [one.label for one in of_torch if one.label in calls]
    line: dict[str, Any] = {"problem": str(p), "flops": p.flops, "wrong": wrong}
    if not ours:
        return line
    named = {name: [call] for name, call in calls.items()}
    first = timing.measure(named, timing.Events(flush, GPU), RACE, beside=others)
    brief = {name: statistics.median(series.samples_us) for name, series in first.items()}
    best = min(ours, key=brief.__getitem__)
    line |= {"kernel": best, "brief_us": {name: round(us, 2) for name, us in brief.items()}}
    for way, timer in (
        ("flushed", timing.Events(flush, GPU)),
        ("replayed", timing.Graphs(flush, GPU, REPLAYED)),
    ):
        # Autograd computes gradients on the stream of the forward pass, so none is captured.
        beside = [name for name in others if way == "flushed" or name != FLEX_BACKWARD]
        final = {name: named[name] for name in (best, *beside)}
        series = timing.measure(final, timer, FINAL)
        us = {name: statistics.median(taken.samples_us) for name, taken in series.items()}
        line[way] = {
            "us": {name: round(value, 2) for name, value in us.items()},
            "interval_us": {
                name: [round(end, 2) for end in taken.interval_us] for name, taken in series.items()
            },
            "tflops": {name: round(p.flops / value / 1e6, 1) for name, value in us.items()},
            "ratio": {name: round(us[name] / us[best], 3) for name in beside},
        }
    return line


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """By way of timing and call of torch: of the ratios the geometric mean, the tenth percentile
    and the least."""
    found: dict[str, Any] = {}
    for way in ("flushed", "replayed"):
        ratios: dict[str, list[float]] = {}
        for line in lines:
            for name, ratio in line.get(way, {}).get("ratio", {}).items():
                ratios.setdefault(name, []).append(ratio)
            if line.get(way, {}).get("ratio"):
                ratios.setdefault("the fastest", []).append(min(line[way]["ratio"].values()))
        found[way] = {
            name: {
                "geomean": round(statistics.geometric_mean(each), 3),
                "p10": round(float(np.quantile(each, 0.1)), 3),
                "least": min(each), "count": len(each),
            }
            for name, each in ratios.items()
        }  # fmt: skip
    return found


def compare(
    what: str,
    sets: Mapping[str, Callable[[], Iterator[Any]]],
    kernels: Callable[[Any, bool, list[str]], list[Any]],
    torch_calls: Callable[[Any], list[Contender]],
) -> None:
    """Compare kernels with calls of torch over sets of problems, as the command line says."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--set", nargs="+", choices=sets, default=[*sets], dest="sets")
    parser.add_argument("--kernels", nargs="+", default=[], help="parts of names, as 128x128_w8_s2")
    parser.add_argument("--wide", action="store_true", help="the tuning's spaces too")
    parser.add_argument("--most", type=int, default=32768, help="longest sequence")
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--build", action="store_true", help="build and list, without a GPU")
    options = parser.parse_args()
    problems = {
        name: [p for p in sets[name]() if max(p.q_len, p.kv_len) <= options.most]
        for name in options.sets
    }
    asked = {
        name: [(p, kernels(p, options.wide, options.kernels)) for p in each]
        for name, each in problems.items()
    }
    every = {c.name: c for each in asked.values() for _, configs in each for c in configs}
    store = Store()
    report = build([(c, "sm_90") for c in every.values()], store=store)
    print(report)
    if options.build:
        for name, each in asked.items():
            for p, configs in each:
                print(f"{name}: {p!s}: {', '.join(c.name for c in configs)}")
        return
    from tilewright.arch.detect import live_device

    here = live_device(0)
    assert here.arch == "sm_90", f"these kernels are for sm_90; this GPU is {here.arch}"
    built = {r.config.name for r in report.results if r.ok}
    dispatcher = Dispatcher(device=here, store=store, build_missing=False)
    flush = timing.flusher(here.l2_bytes, GPU)
    document: dict[str, Any] = {"environment": environment(), "sets": {}, "summary": {}}
    for name, each in asked.items():
        lines = document["sets"][name] = []
        for p, configs in each:
            usable = [c for c in configs if c.name in built]
            lines.append(measure(p, usable, torch_calls(p), dispatcher, flush))
            print(json.dumps({"set": name, **lines[-1]}), flush=True)
        document["summary"][name] = summary(lines)
        print(f"{name}: {document['summary'][name]}", flush=True)
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    compare(__doc__.partition("\n\n")[0], SETS, kernels, torch_calls)
