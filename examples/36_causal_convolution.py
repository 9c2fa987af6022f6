"""A toy Mamba layer: a prompt at once, then token by token, gives the same as all at once."""

from __future__ import annotations

import torch

import tilewright as tw

where = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
batch, dim, width, prompt, new = 2, 32, 4, 21, 6
weights = {
    "in": torch.randn(dim, 16, device=where) / 4,
    "conv": torch.randn(dim, width, device=where) / 2,
    "bias": torch.randn(dim, device=where),
    "decay": torch.rand(dim, device=where),
    "out": torch.randn(16, dim, device=where) / 6,
}


def scan(x, h):  # h = decay·h + x, of each channel
    states = []
    for x_t in x.unbind(-1):
        h = weights["decay"] * h + x_t
        states.append(h)
    return torch.stack(states, -1), h


def layer(u, conv_state=None, h=None):
    """u [batch, 16, tokens]; the states are those behind the last token."""
    x = weights["in"] @ u
    if conv_state is not None and x.shape[-1] == 1:
        x = tw.causal_conv1d_update(
            x[..., 0], conv_state, weights["conv"], weights["bias"], activation="silu"
        )[..., None]
    else:
        x, conv_state = tw.causal_conv1d(
            x, weights["conv"], weights["bias"], return_final_states=True, activation="silu"
        )
    y, h = scan(x, torch.zeros(batch, dim, device=where) if h is None else h)
    return weights["out"] @ y, conv_state, h


u = torch.randn(batch, 16, prompt + new, device=where)
wanted, *_ = layer(u)

found, conv_state, h = layer(u[..., :prompt])  # prefill
for t in range(prompt, prompt + new):
    one, conv_state, h = layer(u[..., t : t + 1], conv_state, h)
    found = torch.cat([found, one], -1)
print(f"prefill of {prompt} tokens and {new} updates, state {list(conv_state.shape)}")
print(f"differ by {(found - wanted).abs().max().item():.1e} from all at once")

# Two sequences in one row, as training packs them.
seq_idx = torch.tensor([[0] * 15 + [1] * 12] * batch, dtype=torch.int32, device=where)
x = (weights["in"] @ u).requires_grad_()
packed = tw.causal_conv1d(x, weights["conv"], seq_idx=seq_idx)
alone = tw.causal_conv1d(x.detach()[..., 15:].contiguous(), weights["conv"])
print(f"packed, the second is as alone: {torch.allclose(packed[..., 15:], alone, atol=1e-4)}")
packed[..., 15:].sum().backward()
print(f"and its gradient does not reach the first: {not x.grad[..., :15].any()}")
