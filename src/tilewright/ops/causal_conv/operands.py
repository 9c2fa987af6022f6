"""The operands of a causal convolution, by name; the problem that a call states, and the options
that state a problem.

    forward    x, w by position; bias, seq_idx, initial_states by keyword; makes y, final_states
    backward   x, w by position; dy, dfinal_states and those of forward by keyword; makes dx, dw,
               dbias, dinitial_states
    update     x, conv_state, w by position, of which conv_state is updated in place; bias,
               cache_seqlens, conv_state_indices by keyword; makes y
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

from tilewright.errors import BadArgument, nearest
from tilewright.ops.causal_conv.problem import DIRECTIONS, EXTRAS, CausalConvProblem
from tilewright.ops.keywords import option
from tilewright.ops.nouns import Call, Operand, Role, Values, View

OPTIONS = {
    "direction": option("str", "forward"),
    "activation": option("str"),
    "final": option("bool", False),
}
ACTIVATIONS = ("silu", "swish")

POSITIONAL = {"forward": ("x", "w"), "backward": ("x", "w"), "update": ("x", "conv_state", "w")}
"""Operands by position."""

KEYWORDS = {
    "bias": "bias", "seq_idx": "packed", "initial_states": "initial", "cache_seqlens": "circular",
    "conv_state_indices": "indexed",
}  # fmt: skip
"""Operands by keyword that say a word of `EXTRAS`."""

OF_BACKWARD = ("dy", "dfinal_states")
"""Operands by keyword that a backward pass alone reads."""

FIELD = {
    "x": "x_strides", "w": "w_strides", "y": "y_strides", "dy": "y_strides", "dx": "dx_strides",
    "conv_state": "state_strides", "initial_states": "state_strides",
    "final_states": "final_strides", "dfinal_states": "final_strides",
}  # fmt: skip
"""The field that has the strides of an operand."""


def operands(p: CausalConvProblem) -> tuple[Operand, ...]:
    """The operands of `p`: by position, by keyword, outputs."""
    made = {
        "forward": ("y", "final_states"),
        "backward": ("dx", "dw", "dbias", "dinitial_states"),
        "update": ("y",),
    }[p.direction]
    named = (*OF_BACKWARD, *KEYWORDS)
    found = []
    for name in (*POSITIONAL[p.direction], *named, *made):
        if _is_there(p, name):
            role: Role = "inout" if name == "conv_state" else "out" if name in made else "in"
            found.append(_operand(p, name, role, keyword=name in named))
    return tuple(found)


def _is_there(p: CausalConvProblem, name: str) -> bool:
    if name in OF_BACKWARD:
        return p.direction == "backward" and (name == "dy" or p.has("final"))
    words = {**KEYWORDS, "final_states": "final", "dbias": "bias", "dinitial_states": "initial"}
    return name not in words or p.has(words[name])


def _operand(p: CausalConvProblem, name: str, role: Role, *, keyword: bool) -> Operand:
    if field := FIELD.get(name):
        dtype = p.dtype_w if name == "w" else p.dtype
        shape, strides = p.shape_of(field), p.strides_of(field)
        return Operand(name, shape, strides, dtype, role, keyword=keyword)
    if name in ("dw", "dinitial_states"):
        shape = p.shape_of("w_strides" if name == "dw" else "state_strides")
        strides = (p.taps, 1) if name == "dw" else _last(shape)
        return Operand(name, shape, strides, p.dtype_w if name == "dw" else p.dtype, role)
    if name in ("bias", "dbias"):
        return Operand(name, (p.channels,), (1,), p.dtype_w, role, keyword=keyword)
    made: dict[str, Values] = {
        "seq_idx": partial(_sequences, p.batch, p.tokens),
        "cache_seqlens": partial(_lengths, p.batch),
        "conv_state_indices": partial(_entries, p.batch, p.cache_entries),
    }
    shape = (p.batch, p.tokens) if name == "seq_idx" else (p.batch,)
    strides = (p.tokens, 1) if name == "seq_idx" else (1,)
    return Operand(name, shape, strides, "int32", role, made[name], keyword=keyword)


def _sequences(batch: int, tokens: int, seed: int) -> list[list[int]]:
    """Sequences one behind another, some of one position, and padding at the end."""
    rng = random.Random(seed)
    found = []
    for _ in range(batch):
        row: list[int] = []
        while len(row) < tokens:
            row += [len(row) + 7] * rng.choice((1, 2, 5, max(1, tokens // 3)))
        pad = rng.randint(0, tokens // 4)
        found.append(row[: tokens - pad] + [-1] * pad)
    return found


def _lengths(batch: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randint(0, 10000) for _ in range(batch)]


def _entries(batch: int, entries: int, seed: int) -> list[int]:
    """Different entries, and padding where there are too few, or by chance."""
    rng = random.Random(seed)
    order = rng.sample(range(entries), min(batch, entries))
    order += [-1] * (batch - len(order))
    if batch > 1:
        order[rng.randrange(batch)] = -1
    return order


def _last(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides with neighbouring channels."""
    _, channels, last = shape
    return channels * last, 1, channels


def outputs(call: Call) -> tuple[Operand, ...]:
    """The outputs of a call that passes none. Sizes may be symbols (``torch.compile``), so no
    problem is stated of them. y and dX lie as x does: channels or positions are neighbours."""
    said = call.options
    direction = str(said.get("direction", "forward"))
    x, w = call.inputs[0], call.inputs[-1]
    batch, channels, tokens = x.shape
    like: tuple[int, ...] = (channels * tokens, tokens, 1)
    if x.strides[1] == 1 and channels > 1:
        like = _last(x.shape)
    states = (batch, channels, w.shape[1] - 1)
    if direction != "backward":
        found = [Operand("y", x.shape, like, x.dtype, "out")]
        if said.get("final"):
            found.append(Operand("final_states", states, _last(states), x.dtype, "out"))
        return tuple(found)
    found = [
        Operand("dx", x.shape, like, x.dtype, "out"),
        Operand("dw", w.shape, (w.shape[1], 1), w.dtype, "out"),
    ]
    if "bias" in call.named:
        found.append(Operand("dbias", (channels,), (1,), w.dtype, "out"))
    if "initial_states" in call.named:
        found.append(Operand("dinitial_states", states, _last(states), x.dtype, "out"))
    return tuple(found)


def problem_of(call: Call) -> CausalConvProblem:
    """The problem that a call states. Raises `BadArgument`."""
    said = dict(call.options)
    for name in said:
        if name not in OPTIONS:
            raise BadArgument(
                f"causal_conv has no option '{name}'{nearest(name, OPTIONS)}; it has "
                f"{', '.join(OPTIONS)}"
            )
    direction = said.get("direction", "forward")
    if direction not in DIRECTIONS:
        raise BadArgument(
            f"direction = {direction!r}{nearest(str(direction), DIRECTIONS)} is not one of "
            f"{', '.join(DIRECTIONS)}"
        )
    names = POSITIONAL[direction]
    if len(call.inputs) != len(names):
        raise BadArgument(
            f"causal_conv of direction {direction} takes {len(names)} operands "
            f"({', '.join(names)}) by position and was given {len(call.inputs)}"
        )
    views = dict(zip(names, call.inputs, strict=True)) | dict(call.named)
    _check_ranks(views)
    fields = _fields(direction, views, said)
    problem = CausalConvProblem(**fields)
    declared = operands(problem)
    for name in call.named:
        if all(one.name != name for one in declared):
            raise BadArgument(
                f"causal_conv of direction {direction} takes no operand '{name}'"
                f"{nearest(name, KEYWORDS)}"
            )
    made = [one.name for one in declared if one.role == "out"]
    given = outputs(call) if call.outputs is None else call.outputs
    if len(given) != len(made):
        raise BadArgument(
            f"causal_conv of direction {direction} makes {', '.join(made)}, but out= has "
            f"{len(given)}"
        )
    if missing := [one.name for one in declared if one.read and one.name not in views]:
        raise BadArgument(f"causal_conv of direction {direction} needs {missing[0]}=")
    every: dict[str, Any] = {**views, **dict(zip(made, given, strict=True))}
    for name, view in every.items():
        if name in FIELD:
            fields[FIELD[name]] = () if 0 in view.shape else tuple(view.strides)
    passed = [*views.values(), *(call.outputs or ())]
    fields["alignment"] = math.gcd(16, *(view.address for view in passed))
    problem = CausalConvProblem(**fields)
    _check(problem, every)
    return problem


def _check_ranks(views: dict[str, View]) -> None:
    for name, rank, shape in (
        ("x", 3, "[batch, channels, positions]"), ("w", 2, "[channels, taps]"),
        ("conv_state", 3, "[entries, channels, positions]"),
    ):  # fmt: skip
        if name in views and len(views[name].shape) != rank:
            raise BadArgument(f"{name} is {list(views[name].shape)}, but must be {shape}")


def _fields(direction: str, views: dict[str, View], said: dict[str, Any]) -> dict[str, Any]:
    activation = said.get("activation")
    if activation is not None and activation not in ACTIVATIONS:
        raise BadArgument(f"activation = {activation!r} is not None, silu or swish")
    extras = {word for name, word in KEYWORDS.items() if name in views}
    if activation:
        extras.add("silu")
    if said.get("final") or "dfinal_states" in views:
        extras.add("final")
    x, w = views["x"], views["w"]
    batch, channels, tokens = x.shape
    found = {
        "batch": batch, "channels": channels, "tokens": tokens, "taps": w.shape[1],
        "direction": direction, "extras": "+".join(word for word in EXTRAS if word in extras),
        "dtype": x.dtype, "dtype_w": w.dtype,
    }  # fmt: skip
    if direction == "update":
        state = views["conv_state"]
        found |= {"state_len": state.shape[2], "cache_entries": state.shape[0]}
    return found


def _check(p: CausalConvProblem, views: dict[str, Any]) -> None:
    """Raise `BadArgument` unless the arrays are the problem's operands."""
    for one in operands(p):
        view = views[one.name]
        if tuple(view.shape) != one.shape:
            raise BadArgument(
                f"{one.name} is {list(view.shape)}, but beside the others must be {list(one.shape)}"
            )
        if view.dtype != one.dtype:
            raise BadArgument(f"{one.name} is {view.dtype}, but must be {one.dtype}")
        if any(stride < 0 for stride in view.strides):
            raise BadArgument(f"{one.name} has negative strides; pass a copy")
        each = zip(view.shape, view.strides, one.strides, strict=True)
        if 0 not in view.shape and not all(n == 1 or have == want for n, have, want in each):
            raise BadArgument(
                f"{one.name} has strides {list(view.strides)}, but must have {list(one.strides)}"
            )


def options(p: CausalConvProblem) -> dict[str, Any]:
    """The options that, with the operands, state `p`."""
    said: dict[str, Any] = {}
    if p.direction != "forward":
        said["direction"] = p.direction
    if p.has("silu"):
        said["activation"] = "silu"
    if p.has("final") and p.direction == "forward":
        said["final"] = True
    return said
