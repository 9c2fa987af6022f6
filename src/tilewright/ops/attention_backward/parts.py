"""The kernels of a backward pass: what each computes, takes and needs, in the order in which they
run. A config has those that its gradients ask for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilewright.arch.model import Arch, Device
from tilewright.ops.attention.arguments import Context
from tilewright.ops.attention.operands import lse_shape
from tilewright.ops.attention.source import kernel_source
from tilewright.ops.attention_backward.arguments import ARGUMENTS, CONSTANTS, aligned
from tilewright.ops.attention_backward.config import AttentionBackwardConfig
from tilewright.ops.attention_backward.problem import AttentionBackwardProblem
from tilewright.ops.nouns import Argument, KernelSource, Launch, Step, Temporary

KERNELS = "tilewright.ops.attention_backward.kernels"

SUMMED_ROWS = 32
"""Rows of a workgroup of `row_sums`; a constant of the kernel's."""

ROW_WARPS = 4


@dataclass(frozen=True, slots=True)
class Part:
    """One kernel.

    name: of the part, and of the kernel's function. module: where it is.
    makes: the gradients for which it runs; (): for any.
    grid: workgroups, for a config and a problem.
    arguments, constants: names in the catalogue (`arguments`), in the kernel's order.
    tiled: whether the config's warps and stages are for it.
    """

    name: str
    module: str
    makes: tuple[str, ...]
    grid: Callable[[AttentionBackwardConfig, AttentionBackwardProblem], int]
    arguments: tuple[str, ...]
    constants: tuple[str, ...]
    tiled: bool = True

    def runs(self, config: AttentionBackwardConfig) -> bool:
        """Whether a config has it."""
        return not self.makes or not config.words.isdisjoint(self.makes)


def _up(size: int, by: int) -> int:
    return -(-size // by)


_SHAPE = ("TILE", "STEP", "HEAD_DIM", "HEAD_DIM_V", "MASK", "SOFTCAP")
_LENGTHS = ("PACKEDQ", "PACKEDKV", "USEDQ", "USEDKV")
_SAID = ("left", "right", "first", "bottom_right", "softcap", "dropped", "scale", "seed", "offset")

PARTS = (
    Part(
        name="row_sums",
        module="rows",
        makes=("dq", "dk", "dbias", "dsinks", "dslopes"),
        grid=lambda c, p: _up(p.q_len, SUMMED_ROWS) * p.heads * p.batch,
        arguments=(
            "q", "o", "do", "lse", "dlse", "delta", "q_offsets", "q_used", "o_strides",
            "do_strides", "heads", "q_len", "total_q",
        ),
        constants=("HEAD_DIM_V", "PACKEDQ", "USEDQ", "DLSE", "UNIT"),
        tiled=False,
    ),
    Part(
        name="gradients_of_keys",
        module="keys_values",
        makes=("dk", "dv"),
        grid=lambda c, p: _up(p.kv_len, c.tile_rows) * p.kv_heads * p.batch,
        arguments=(
            "q", "k", "v", "do", "lse", "delta", "dk", "dv", "bias", "slopes", "q_offsets",
            "kv_offsets", "q_used", "kv_used", "q_strides", "k_strides", "v_strides", "do_strides",
            "dk_strides", "dv_strides", "bias_strides", "batch", "heads", "kv_heads", "group",
            "q_len", "kv_len", "total_q", "total_kv", "slopes_stride", "accumulate", *_SAID,
        ),
        constants=(*_SHAPE, "BIAS", "ALIBI", "DROPOUT", *_LENGTHS, "DK", "DV", "UNIT"),
    ),
    Part(
        name="gradients_of_queries",
        module="queries",
        makes=("dq", "dslopes"),
        grid=lambda c, p: _up(p.q_len, c.tile_rows) * p.heads * p.batch,
        arguments=(
            "q", "k", "v", "do", "lse", "delta", "dq", "distances", "bias", "slopes", "q_offsets",
            "kv_offsets", "q_used", "kv_used", "q_strides", "k_strides", "v_strides", "do_strides",
            "dq_strides", "bias_strides", "batch", "heads", "group", "q_len", "kv_len", "total_q",
            "slopes_stride", "accumulate", *_SAID,
        ),
        constants=(*_SHAPE, "BIAS", "ALIBI", "DROPOUT", *_LENGTHS, "DQ", "DSLOPES", "UNIT"),
    ),
    Part(
        name="gradients_of_bias",
        module="bias",
        makes=("dbias",),
        grid=lambda c, p: (
            _up(p.q_len, c.tile_rows) * _up(p.kv_len, c.step_rows) * math.prod(p.bias_shape)
        ),
        arguments=(
            "q", "k", "v", "do", "lse", "delta", "dbias", "bias", "q_offsets", "kv_offsets",
            "q_used", "kv_used", "q_strides", "k_strides", "v_strides", "do_strides",
            "bias_strides", "bias_batch", "bias_heads", "batch", "heads", "group", "q_len",
            "kv_len", "total_q", "accumulate", *_SAID,
        ),
        constants=(*_SHAPE, "DROPOUT", *_LENGTHS, "UNIT"),
    ),
    Part(
        name="row_totals",
        module="rows",
        makes=("dsinks", "dslopes"),
        grid=lambda c, p: p.heads * (p.batch if p.slopes_batched else 1),
        arguments=(
            "lse", "delta", "distances", "sinks", "dsinks", "dslopes", "q_offsets", "q_used",
            "batch", "heads", "q_len", "total_q", "slopes_stride", "accumulate",
        ),
        constants=("PACKEDQ", "USEDQ", "DSINKS", "DSLOPES"),
        tiled=False,
    ),
)  # fmt: skip


def sources(config: AttentionBackwardConfig, arch: Arch) -> Mapping[str, KernelSource]:
    """What to compile for `config` on `arch`, by part."""
    found = {}
    for part in PARTS:
        if part.runs(config):
            warps = config.num_warps if part.tiled else ROW_WARPS
            stages = config.num_stages if part.tiled else 1
            found[part.name] = kernel_source(
                config,
                (f"{KERNELS}.{part.module}", part.name, "triton"),
                part.arguments,
                {name: CONSTANTS[name](config) for name in part.constants},
                {},
                (("num_warps", warps), ("num_stages", stages)),
                ARGUMENTS,
                aligned(config),
            )
    return found


def launch(
    config: AttentionBackwardConfig, problem: AttentionBackwardProblem, device: Device
) -> Launch:
    """The launch of `config` for `problem` on `device`; a part that has nothing to do is left
    out."""
    given: object = config
    context = Context(given, problem, device)  # type: ignore[arg-type]  # it has what is read
    steps = []
    for part in PARTS:
        if not part.runs(config) or not (groups := part.grid(config, problem)):
            continue
        arguments: list[Argument] = []
        for name in part.arguments:
            one = ARGUMENTS[name]
            if one.passed(given):  # type: ignore[arg-type]
                arguments += one.values(context)
        steps.append(Step((groups, 1, 1), tuple(arguments), part.name))
    shape = lse_shape(problem)
    temporaries = [Temporary("delta", shape, "fp32")]
    if "dslopes" in config.words:
        temporaries.append(Temporary("distances", shape, "fp32"))
    return Launch(tuple(steps), tuple(temporaries))
