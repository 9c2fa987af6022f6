"""A ported model on a GPU: torch's results and gradients, at first, repeated and compiled."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tilewright.torch import port, unport  # noqa: E402

pytestmark = pytest.mark.gpu


DIM, HEADS = 128, 4
CALLS = 4
"""A call like an earlier one takes another way."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.mlp(x)


def far(found: Any, exact: Any) -> float:
    return float((found.double() - exact.double()).norm() / exact.double().norm())


def step(model: nn.Module, x: Any) -> list[Any]:
    out = model(x)
    loss = out.float().square().mean()
    return [out.detach(), *torch.autograd.grad(loss, [*model.parameters()])]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_block_is_torch_s(compiled):
    torch._dynamo.reset()
    model = Block().cuda().bfloat16()
    x = torch.randn(2, 64, DIM, device="cuda", dtype=torch.bfloat16)
    wanted = step(model, x)
    assert len(port(model).swapped) == 6
    run = torch.compile(model, fullgraph=True) if compiled else model
    for _ in range(CALLS):
        for one, other in zip(step(run, x), wanted, strict=True):
            assert far(one, other) < 4e-2
        with torch.no_grad():
            assert far(run(x), wanted[0]) < 2e-2
    if not compiled:
        unport(model)
        assert torch.equal(model(x), wanted[0])


class Images(nn.LayerNorm):
    """A layer norm of channels."""

    def forward(self, x: Any) -> Any:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(DIM, 2 * DIM), nn.Linear(DIM, 2 * DIM)
        self.down_proj, self.act_fn = nn.Linear(2 * DIM, DIM), nn.SiLU()

    def forward(self, x: Any) -> Any:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Mlp(nn.Module):
    """As timm has it."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.fc1, self.act, self.drop1 = nn.Linear(DIM, 4 * DIM), act, nn.Dropout(0.0)
        self.norm, self.fc2, self.drop2 = nn.Identity(), nn.Linear(4 * DIM, DIM), nn.Dropout(0.0)

    def forward(self, x: Any) -> Any:
        return self.drop2(self.fc2(self.norm(self.drop1(self.act(self.fc1(x))))))


BETWEEN = {
    "perceptron": (Mlp(nn.GELU()), (2, 8, 8, DIM)),
    "perceptron with SiLU": (Mlp(nn.SiLU()), (128, DIM)),
    "perceptron with ReLU": (Mlp(nn.ReLU()), (2, 64, DIM)),
    "layer": (nn.LayerNorm(DIM), (2, 64, DIM)),
    "layer without weights": (nn.LayerNorm(DIM, elementwise_affine=False), (64, DIM)),
    "rms": (nn.RMSNorm(DIM), (2, 8, 4, DIM)),
    "channels": (Images(DIM), (2, DIM, 8, 8)),
    "gate": (Gated(), (2, 64, DIM)),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", BETWEEN)
def test_what_stands_between_products_is_torch_s(name, compiled):
    torch._dynamo.reset()
    model, shape = BETWEEN[name]
    model = copy.deepcopy(model).cuda().bfloat16()
    x = torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
    x = x.contiguous(memory_format=torch.channels_last) if name == "channels" else x
    x.requires_grad_()

    along = torch.randn_like(x, dtype=torch.float32)

    def results(run: Any, model: nn.Module, x: Any) -> list[Any]:
        out = run(x)
        loss = (out.float() * along).sum()
        return [out.detach(), *torch.autograd.grad(loss, [x, *model.parameters()])]

    exact = copy.deepcopy(model).float()
    wanted = results(exact, exact, x.detach().float().requires_grad_())
    before = model(x)
    assert "" in port(model).swapped
    run = torch.compile(model, fullgraph=True) if compiled else model
    for _ in range(CALLS):
        found = results(run, model, x)
        assert found[0].stride() == before.stride()
        for one, other in zip(found, wanted, strict=True):
            assert far(one, other) < 2e-2
        with torch.no_grad():
            assert far(run(x), wanted[0]) < 2e-2
    if not compiled:
        unport(model)
        assert torch.equal(model(x), before)
