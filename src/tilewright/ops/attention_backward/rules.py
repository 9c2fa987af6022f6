"""The rules of the backward pass: which configs an architecture can build, and which problems a
config can serve. Each rule is a function that returns a reason, or None."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.arch.model import Arch
from tilewright.ops import reasons
from tilewright.ops.attention import reach
from tilewright.ops.attention.gradients import DTYPES as DIFFERENTIABLE
from tilewright.ops.attention.problem import OUTPUTS
from tilewright.ops.attention_backward import library, pipelines
from tilewright.ops.attention_backward.config import AttentionBackwardConfig
from tilewright.ops.attention_backward.problem import GRADIENTS, AttentionBackwardProblem
from tilewright.ops.library import CUDNN
from tilewright.ops.library_engine import foreign
from tilewright.verdict import YES, Verdict, no


def _dtype(c: AttentionBackwardConfig, arch: Arch) -> str | None:
    if c.dtype not in DIFFERENTIABLE or c.dtype_o not in OUTPUTS[c.dtype]:
        return f"attention of {c.dtype} that writes {c.dtype_o} has no gradients"
    return reasons.dtypes(arch, (c.dtype, c.dtype_o))


def _gradients(c: AttentionBackwardConfig, arch: Arch) -> str | None:
    for word in c.grads.split("+"):
        if (needs := GRADIENTS[word]) and needs not in c.words:
            return f"{word} needs {needs}"
    return None


def _warps(c: AttentionBackwardConfig, arch: Arch) -> str | None:
    return reasons.warps(arch, c.num_warps)


def _pipeline(c: AttentionBackwardConfig, arch: Arch) -> str | None:
    if pipelines.of(c).runs_on(arch):
        return None
    return reasons.no_pipeline(arch, c.pipeline, pipelines.on(arch))


LEGALITY: tuple[tuple[str, Callable[[AttentionBackwardConfig, Arch], str | None]], ...] = (
    ("dtype", _dtype),
    ("gradients", _gradients),
    ("warps", _warps),
    ("pipeline", _pipeline),
)


def judge(config: AttentionBackwardConfig, arch: Arch) -> Verdict:
    """May `config` be built for `arch`? The first rule that refuses it."""
    if config.library_engine:
        reason = foreign(CUDNN, arch)
        return no("library", reason) if reason else YES
    for name, rule in (*LEGALITY, *pipelines.of(config).rules.items()):
        if (reason := rule(config, arch)) is not None:
            return no(name, reason)
    return YES


ROWS_BESIDE = 64
"""Most rows of a tile of the kernels that go along rows alone."""

SIGNATURE = ("dtype", "dtype_o", "head_dim", "head_dim_v", "grads", "dlse", "features")
"""Fields that a config and a problem share."""


def supports(
    config: AttentionBackwardConfig, problem: AttentionBackwardProblem, arch: Arch
) -> Verdict:
    """Can `config`, built for `arch`, compute `problem`?"""
    for field in SIGNATURE:
        if (has := getattr(config, field)) != (wants := getattr(problem, field)):
            return no("signature", f"is for {field} {has}, not {wants}")
    if config.mask != problem.mask.kind:
        return no("signature", f"is for mask {config.mask}, not {problem.mask.kind}")
    if config.library_engine:
        objection = library.refused(problem)
        return no(*objection) if objection else judge(config, arch)
    if problem.alignment < config.alignment:
        return no(
            "vector_width",
            f"addresses and rows are aligned to {problem.alignment} bytes, under "
            f"{config.alignment}",
        )
    if (reason := _reach(config, problem)) is not None:
        return no("reach", reason)
    for name, rule in pipelines.of(config).supports.items():
        if (reason := rule(config, problem)) is not None:
            return no(name, reason)
    return judge(config, arch)


def _reach(c: AttentionBackwardConfig, p: AttentionBackwardProblem) -> str | None:
    """Why a tile of an operand is too long (see `attention.reach`); None if none is."""
    rows = max(c.tile_rows, c.step_rows, ROWS_BESIDE)
    for name in ("q", "k", "v", "o", "do", *sorted(p.computed & {"dq", "dk", "dv"})):
        if not getattr(p, f"{name}_strides"):
            continue  # contiguous
        dim = p.head_dim if name in ("q", "k", "dq", "dk") else p.head_dim_v
        if (reason := reach.beyond(name, p.strides_of(name), rows, dim)) is not None:
            return reason
    return None
