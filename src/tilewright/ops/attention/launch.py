"""The launch of an attention config for a problem: the steps that `source` names."""

from __future__ import annotations

import math

from tilewright.arch.model import Device
from tilewright.ops.attention import parts, pipelines
from tilewright.ops.attention.arguments import ARGUMENTS, Context, rotates
from tilewright.ops.attention.config import AttentionConfig
from tilewright.ops.attention.operands import lse_shape
from tilewright.ops.attention.problem import AttentionProblem
from tilewright.ops.attention.splits import splits_of
from tilewright.ops.nouns import (
    Argument,
    Descriptor,
    Launch,
    Pointer,
    Step,
    Temporary,
)

APPENDED_ROWS = 8
"""Rows that a workgroup of the appending kernel has; a constant of that kernel."""

COMBINED_COLUMNS = 128
"""Columns that a workgroup of the combining kernel has; a constant of that kernel."""


def launch(config: AttentionConfig, problem: AttentionProblem, device: Device) -> Launch:
    """The launch of `config` for `problem` on `device`, over the operands of `operands`."""
    record = pipelines.of(config)
    splits = splits_of(config, problem, device)
    context = Context(config, problem, device, splits)
    steps, temporaries = [], []
    if rotates(config):
        shape = (problem.total_q or problem.batch * problem.q_len, problem.heads, problem.head_dim)
        temporaries.append(Temporary("rotated_q", shape, problem.dtype))
    if "append" in config.words:
        # Rows are heads of tokens: of keys, of values, and of queries that are rotated.
        rows = problem.new_kv * problem.kv_heads
        if rotates(config):
            rows = max(rows, problem.q_len * problem.heads)
        kinds = 3 if rotates(config) else 2
        grid = (-(-rows // APPENDED_ROWS), kinds, problem.batch)
        steps.append(_part(parts.APPEND, context, grid))
    for one in record.before:
        temporaries.append(one.temporary(config, problem))
        steps.append(_part(one.part, context, one.grid(config, problem)))
    grid = record.grid(config, problem, device, splits)
    arguments: list[Argument] = []
    described = _descriptors(context)
    for name in record.arguments:
        if name in described:
            arguments.append(described[name])
        else:
            arguments += _values(context, name)
    steps.append(Step(grid, tuple(arguments)))
    if record.counter:
        temporaries.append(Temporary("counter", (1,), "int32", "kept_zero"))
    if config.scheduler == "split":
        rows = math.prod(lse_shape(problem))
        temporaries.append(Temporary("partial_o", (splits, rows, problem.head_dim_v), "fp32"))
        kinds = 2 if problem.bias_shape else 1  # see `combine`
        temporaries.append(Temporary("partial_lse", (kinds, splits, rows), "fp32"))
        columns = -(-problem.head_dim_v // COMBINED_COLUMNS)
        grid = (problem.q_len * problem.heads * problem.batch, columns, 1)
        steps.append(_part(parts.COMBINE, context, grid))
    return Launch(tuple(steps), tuple(temporaries))


def _part(part: parts.Part, context: Context, grid: tuple[int, int, int]) -> Step:
    arguments: list[Argument] = []
    for name in part.arguments:
        plain = part is parts.APPEND and name == "q"  # here it is the caller's
        arguments += [Pointer("q")] if plain else _values(context, name)
    return Step(grid, tuple(arguments), part.name)


def _values(context: Context, name: str) -> tuple[Argument, ...]:
    one = ARGUMENTS[name]
    if not one.passed(context.config):
        return ()
    if name == "q" and rotates(context.config):
        return (Pointer("rotated_q"),)
    return one.values(context)


def _descriptors(context: Context) -> dict[str, Argument]:
    record, p = pipelines.of(context.config), context.problem
    boxes = record.boxes(context.config)
    types = {"q": p.dtype, "o": p.dtype_o}
    found: dict[str, Argument] = {}
    for name, view in record.views(context.config, p).items():
        operand = view.operand or name
        if name == "q" and rotates(context.config):
            operand = "rotated_q"
        if name == "v" and "latent" in p.words:
            operand = "k"
        dtype = types.get(name, p.dtype_kv)
        found[name] = Descriptor(operand, dtype, view.shape, view.strides, boxes[name])
    return found
