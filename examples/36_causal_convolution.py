"""A toy Mamba layer: a prompt at once, then token by token, gives the same as all at once."""

from __future__ import annotations

import torch

import tilewright as tw

where = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
batch, dim, prompt, new = 2, 32, 21, 6
w_in, w_out = (torch.randn(shape, device=where) / 5 for shape in ((dim, 16), (16, dim)))
w, bias, decay = (torch.rand(shape, device=where) for shape in ((dim, 4), (dim,), (dim,)))


def layer(u, conv_state=None, h=None):
    """u [batch, 16, tokens]; the states are those behind the last token."""
    x = w_in @ u
    if conv_state is not None:  # which is updated in place
        x = tw.causal_conv1d_update(x, conv_state, w, bias, activation="silu")
    else:
        x, conv_state = tw.causal_conv1d(x, w, bias, return_final_states=True, activation="silu")
    states, h = [], torch.zeros(batch, dim, device=where) if h is None else h
    for x_t in x.unbind(-1):
        h = decay * h + x_t
        states.append(h)
    return w_out @ torch.stack(states, -1), conv_state, h


u = torch.randn(batch, 16, prompt + new, device=where)
wanted, *_ = layer(u)
found, conv_state, h = layer(u[..., :prompt])
for t in range(prompt, prompt + new):
    one, conv_state, h = layer(u[..., t : t + 1], conv_state, h)
    found = torch.cat([found, one], -1)
print(f"prefill of {prompt} tokens and {new} updates, state {list(conv_state.shape)}")
print(f"the same as all at once: {torch.allclose(found, wanted, atol=1e-4)}")
