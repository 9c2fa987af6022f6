"""Gates in an epilogue: of columns gate, up, gate, up… each two become one.

`swiglu` is in `epilogue`. These are the gates with other activations, and SwiGLU whose halves are
clamped first. A tile's halves are split in registers: each thread has whole pairs.
"""

import triton
import triton.language as tl

from tilewright.ops.device.epilogue import clamp, gelu, gelu_tanh, relu


@triton.jit
def halves(acc):
    return tl.split(tl.reshape(acc, (acc.shape[0], acc.shape[1] // 2, 2)))


@triton.jit
def geglu(acc):
    gate, up = halves(acc)
    return gelu(gate) * up


@triton.jit
def geglu_tanh(acc):
    gate, up = halves(acc)
    return gelu_tanh(gate) * up


@triton.jit
def reglu(acc):
    gate, up = halves(acc)
    return relu(gate) * up


@triton.jit
def glu(acc):
    gate, up = halves(acc)
    return up / (1.0 + tl.exp(-gate))


@triton.jit
def clamped_swiglu(acc, limit, alpha):
    gate, up = halves(acc)
    gate = tl.where(gate > limit, limit, gate)
    return gate / (1.0 + tl.exp(-alpha * gate)) * clamp(up, -limit, limit)


@triton.jit
def clamped_swiglu_plus(acc, limit, alpha):
    gate, up = halves(acc)
    gate = tl.where(gate > limit, limit, gate)
    return gate / (1.0 + tl.exp(-alpha * gate)) * (clamp(up, -limit, limit) + 1.0)
