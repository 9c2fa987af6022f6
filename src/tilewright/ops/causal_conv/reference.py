"""What a causal convolution must give, in float64, and how far a kernel may be from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tilewright import arrays
from tilewright.ops.causal_conv.operands import operands
from tilewright.ops.causal_conv.problem import CausalConvProblem
from tilewright.tolerance import Tolerance, tolerance

SILU_AMPLIFIES = 2.0
"""How much larger an error is behind SiLU or its derivative, relative to the result's rms."""


def _zeros(like: Any, shape: tuple[int, ...]) -> Any:
    if arrays.is_torch(like):
        return like.new_zeros(shape)
    import numpy as np

    return np.zeros(shape)


def _exp(x: Any) -> Any:
    if arrays.is_torch(x):
        return x.exp()
    import numpy as np

    return np.exp(x)


def _behind_states(p: CausalConvProblem, inputs: Mapping[str, Any]) -> Any:
    """x behind its initial states, or zeros."""
    x = inputs["x"]
    found = _zeros(x, (p.batch, p.channels, p.taps - 1 + p.tokens))
    if p.has("initial"):
        found[..., : p.taps - 1] = inputs["initial_states"]
    found[..., p.taps - 1 :] = x
    return found


def _masks(p: CausalConvProblem, inputs: Mapping[str, Any]) -> list[Any]:
    """For each tap, 1 where the position that it sees is of the result's sequence."""
    if not p.has("packed"):
        return [1.0] * p.taps
    of = inputs["seq_idx"]
    wide = _zeros(inputs["x"], (p.batch, p.taps - 1 + p.tokens)) - 1
    wide[:, p.taps - 1 :] = of
    found = []
    for k in range(p.taps):
        mask = _zeros(inputs["x"], (p.batch, 1, p.tokens))
        mask[:, 0] = (wide[:, k : k + p.tokens] == of) & (of >= 0)
        found.append(mask)
    return found


def _sums(p: CausalConvProblem, inputs: Mapping[str, Any], wide: Any, masks: list[Any]) -> Any:
    tokens = wide.shape[-1] - (p.taps - 1)
    z = _zeros(wide, (wide.shape[0], p.channels, tokens))
    if p.has("bias"):
        z += inputs["bias"][None, :, None]
    for k in range(p.taps):
        z += inputs["w"][None, :, k, None] * wide[..., k : k + tokens] * masks[k]
    return z


def _sigmoid(z: Any) -> Any:
    return 1.0 / (1.0 + _exp(-z))


def _last_states(p: CausalConvProblem, wide: Any) -> Any:
    return arrays.copied(wide[..., p.tokens :])


def reference(p: CausalConvProblem, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs by name, and the updated state, for float64 `inputs`, NumPy's or torch's."""
    if p.direction == "update":
        return _update(p, inputs)
    wide, masks = _behind_states(p, inputs), _masks(p, inputs)
    z = _sums(p, inputs, wide, masks)
    live = _live(p, inputs)
    if p.direction == "forward":
        y = (z * _sigmoid(z) if p.has("silu") else z) * live
        return {"y": y} | ({"final_states": _last_states(p, wide)} if p.has("final") else {})
    g = inputs["dy"] * live
    if p.has("silu"):
        s = _sigmoid(z)
        g = g * (s * (1.0 + z * (1.0 - s)))
    dwide = _zeros(g, tuple(wide.shape))
    dw = _zeros(g, (p.channels, p.taps))
    for k in range(p.taps):
        dwide[..., k : k + p.tokens] += inputs["w"][None, :, k, None] * g * masks[k]
        dw[:, k] = (wide[..., k : k + p.tokens] * g * masks[k]).sum((0, 2))
    if p.has("final"):
        dwide[..., p.tokens :] += inputs["dfinal_states"]
    found = {"dx": dwide[..., p.taps - 1 :], "dw": dw}
    if p.has("bias"):
        found["dbias"] = g.sum((0, 2))
    if p.has("initial"):
        found["dinitial_states"] = dwide[..., : p.taps - 1]
    return found


def _live(p: CausalConvProblem, inputs: Mapping[str, Any]) -> Any:
    """1 where a position is no padding."""
    if not p.has("packed"):
        return 1.0
    live = _zeros(inputs["x"], (p.batch, 1, p.tokens))
    live[:, 0] = inputs["seq_idx"] >= 0
    return live


def _update(p: CausalConvProblem, inputs: Mapping[str, Any]) -> dict[str, Any]:
    x, state = inputs["x"], arrays.copied(inputs["conv_state"])
    y = _zeros(x, (p.batch, p.channels, p.tokens))
    for b in range(p.batch):
        entry = int(inputs["conv_state_indices"][b]) if p.has("indexed") else b
        if not 0 <= entry < len(state):
            continue
        begin = max(int(inputs["cache_seqlens"][b]), 0) % p.state_len if p.has("circular") else 0
        wide = _zeros(x, (1, p.channels, p.taps - 1 + p.tokens))
        for k in range(p.taps - 1):
            wide[0, :, k] = state[entry, :, (begin + k - (p.taps - 1)) % p.state_len]
        wide[0, :, p.taps - 1 :] = x[b]
        z = _sums(p, inputs, wide, [1.0] * p.taps)[0]
        y[b] = z * _sigmoid(z) if p.has("silu") else z
        if p.has("circular"):
            for i in range(p.tokens):
                state[entry, :, (begin + i) % p.state_len] = x[b, :, i]
        else:
            moved = _zeros(x, (p.channels, p.state_len + p.tokens))
            moved[:, : p.state_len], moved[:, p.state_len :] = state[entry], x[b]
            state[entry] = moved[:, p.tokens :]
    return {"y": y, "conv_state": state}


def tolerances(p: CausalConvProblem) -> Mapping[str, Tolerance]:
    """How far each output may be from the reference. States are copies. The gradients of the
    weights are sums over all positions."""
    amplified = SILU_AMPLIFIES if p.has("silu") else 0.0
    short = tolerance(p.dtype, p.dtype, 2 * p.taps + 1, 1, amplified)
    positions = max(1, p.batch * p.tokens)
    long = tolerance(p.dtype, p.dtype_w, positions, 1, amplified * math.sqrt(p.taps))
    found = {}
    for one in operands(p):
        if one.written:
            found[one.name] = long if one.name in ("dw", "dbias") else short
    return found
