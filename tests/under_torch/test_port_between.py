"""`port` on what stands between products: norms, and activations that gate."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gradient_cases import far  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.torch import port, unport  # noqa: E402

NEAR = 1e-5
WIDTH = 16


@pytest.fixture
def calls(monkeypatch):
    """The names of the operations that the dispatcher runs, in order."""
    found, run = [], Dispatcher.run_given

    def noted(self, op, *rest):
        found.append(op)
        return run(self, op, *rest)

    monkeypatch.setattr(Dispatcher, "run_given", noted)
    return found


def randn(*shape: int, seed: int = 2) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X = randn(2, 3, WIDTH)


class OwnRMSNorm(nn.Module):
    """As models of transformers have it."""

    def __init__(self, width: int = WIDTH, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, width))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        x = hidden_states.float()
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * x.to(hidden_states.dtype)


class CentredRMSNorm(OwnRMSNorm):
    """As Gemma has it."""

    def forward(self, hidden_states):
        x = hidden_states.float()
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon)
        return (x * (1.0 + self.weight.float())).to(hidden_states.dtype)


class OtherRMSNorm(OwnRMSNorm):
    """Of another definition: eps lies outside of the root."""

    def forward(self, hidden_states):
        size = hidden_states.square().mean(-1, keepdim=True).sqrt() + self.variance_epsilon
        return self.weight * (hidden_states / size)


class DroppingRMSNorm(OwnRMSNorm):
    def forward(self, hidden_states):
        return functional.dropout(super().forward(hidden_states), 0.5, self.training)


class OtherwiseNamedRMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(WIDTH))


class OwnLayerNorm(nn.LayerNorm):
    """As timm has it: of torch's, with a forward of its own."""

    def forward(self, x):
        return functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class LayerNorm2d(nn.LayerNorm):
    def forward(self, x):
        x = x.permute(0, 2, 3, 1)
        x = functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class GatedMLP(nn.Module):
    def __init__(self, act: Any = None, width: int = WIDTH) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(width, 24, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(24, width, bias=False)
        self.act_fn = nn.SiLU() if act is None else act

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class HalvedMLP(nn.Module):
    """As Phi 3 has it: one projection for both."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj, self.down_proj = nn.Linear(WIDTH, 48), nn.Linear(24, WIDTH)
        self.activation_fn = nn.GELU("tanh")

    def forward(self, hidden_states):
        gate, up = self.gate_up_proj(hidden_states).chunk(2, dim=-1)
        return self.down_proj(up * self.activation_fn(gate))


class Block(nn.Module):
    """Norms of each kind, and a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = OwnRMSNorm(), nn.LayerNorm(WIDTH)
        self.mlp = GatedMLP()

    def forward(self, x):
        return x + self.mlp(self.second(self.first(x)))


def block() -> Block:
    torch.manual_seed(1)
    return Block()


def drawn(model: nn.Module) -> nn.Module:
    """The model with weights that are not 1 and 0."""
    for place, one in enumerate(model.parameters()):
        one.data.add_(0.3 * randn(*one.shape, seed=place))
    return model


def results(model: nn.Module, x: Any) -> list[Any]:
    """A model's result and all gradients."""
    x = x.detach().requires_grad_()
    out = model(x)
    loss = (out * randn(*out.shape, seed=3)).sum()
    return [out.detach(), *torch.autograd.grad(loss, [x, *model.parameters()])]


NORMS = {
    "rms": (lambda: nn.RMSNorm(WIDTH), "rms_norm"),
    "rms with eps, without weight": (
        lambda: nn.RMSNorm(WIDTH, eps=1e-2, elementwise_affine=False), "rms_norm"
    ),
    "layer": (lambda: nn.LayerNorm(WIDTH, eps=1e-2), "layer_norm"),
    "layer without bias": (lambda: nn.LayerNorm(WIDTH, bias=False), "layer_norm"),
    "layer without weights": (lambda: nn.LayerNorm(WIDTH, elementwise_affine=False), "layer_norm"),
    "of transformers": (OwnRMSNorm, "rms_norm"),
    "of Gemma": (CentredRMSNorm, "rms_norm with weight + 1"),
    "of timm": (lambda: OwnLayerNorm(WIDTH), "layer_norm"),
}  # fmt: skip


@pytest.mark.grid(1)
@pytest.mark.parametrize("name", NORMS)
def test_norms_and_their_gradients(calls, name):
    make, by = NORMS[name]
    model = drawn(make())
    wanted = results(model, X)
    (layer,) = port(model).layers
    assert layer.by == by
    for one, other in zip(results(model, X), wanted, strict=True):
        assert far(one, other.double()) < NEAR
    op = by.split()[0]
    assert calls == [op, f"{op}_backward"]
    assert unport(model) == ("",)
    assert all(map(torch.equal, results(model, X), wanted))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", [lambda: nn.RMSNorm(WIDTH), OwnRMSNorm])
def test_half_precision(calls, dtype, kind):
    model, x = drawn(kind()).to(dtype), (0.05 * X).to(dtype)
    wanted = model(x).detach()
    port(model)
    found = model(x)
    assert found.dtype is dtype and calls == ["rms_norm"]
    assert far(found, wanted.double()) < 2 * torch.finfo(dtype).eps


def test_channels_of_images_that_lie_innermost_are_not_copied(calls):
    model = drawn(LayerNorm2d(8))
    x = randn(2, 8, 3, 4).contiguous(memory_format=torch.channels_last)
    wanted = results(model, x)
    (layer,) = port(model).layers
    assert layer.by == "layer_norm of channels"
    found = results(model, x)
    for one, other in zip(found, wanted, strict=True):
        assert far(one, other.double()) < NEAR
    assert found[0].stride() == wanted[0].stride() == x.stride()
    assert calls == ["layer_norm", "layer_norm_backward"]
    model(x.contiguous())  # torch copies these
    assert len(calls) == 2


@pytest.mark.parametrize("width", [2, 3, 5])
def test_images_of_few_channels_are_not_taken_for_rows(width):
    assert port(LayerNorm2d(width)).layers[0].by == "layer_norm of channels"


def test_rows_apart_are_read_as_they_lie_and_others_are_torch_s(calls):
    model = drawn(OwnRMSNorm(8))
    wide, turned = X[..., :8], randn(2, 3, 4, 8).transpose(1, 2)
    wanted = model(wide), model(turned)
    port(model)
    found = model(wide)
    assert far(found, wanted[0].detach().double()) < NEAR and calls == ["rms_norm"]
    assert found.stride() == wanted[0].stride()
    found = model(hidden_states=turned)
    assert torch.equal(found, wanted[1]) and found.stride() == wanted[1].stride()
    assert torch.equal(model(turned), wanted[1]) and len(calls) == 1


KEPT = {
    "eps outside of the root": (OtherRMSNorm, "its class OtherRMSNorm computes another norm"),
    "dropout": (DroppingRMSNorm, "its class DroppingRMSNorm computes another norm"),
    "no weight": (OtherwiseNamedRMSNorm, "it has no weight for each column"),
    "two dimensions": (lambda: nn.LayerNorm((3, WIDTH)), "it norms over 2 dimensions"),
    "float64": (lambda: nn.LayerNorm(WIDTH).double(), "its weight is float64"),
    "another gate": (lambda: GatedMLP(nn.Tanh()), "its class GatedMLP gates otherwise"),
    "a gate with parameters": (lambda: GatedMLP(nn.PReLU()), "its act_fn has parameters"),
}


@pytest.mark.parametrize("name", KEPT)
def test_the_report_says_why_a_module_is_kept(name):
    make, why = KEPT[name]
    assert port(make()).kept == {"": why}


def test_a_forward_that_somebody_replaced_is_kept():
    for model in (nn.LayerNorm(WIDTH), OwnRMSNorm(), GatedMLP()):
        model.forward = lambda x: x
        assert port(model).kept[""] == "its forward was replaced"


def test_recognising_changes_nothing(calls):
    model, seen = nn.ModuleList([DroppingRMSNorm(), OwnRMSNorm(), GatedMLP()]), []
    model[2].act_fn.register_forward_hook(lambda *given: seen.append(given))
    state, before = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    port(model)
    assert torch.equal(torch.get_rng_state(), before) and not seen and not calls
    assert all(torch.equal(x, state[name]) for name, x in model.state_dict().items())
    assert all(x.grad is None for x in model.parameters())


GATES = {
    "silu": lambda: GatedMLP(),
    "gelu": lambda: GatedMLP(nn.GELU()),
    "gelu_tanh": lambda: GatedMLP(nn.GELU("tanh")),
    "relu": lambda: GatedMLP(functional.relu),
    "sigmoid": lambda: GatedMLP(nn.Sigmoid()),
}


@pytest.mark.grid(1)
@pytest.mark.parametrize("name", GATES)
def test_gates_and_their_gradients(calls, name):
    model = GATES[name]()
    wanted = results(model, X)
    assert port(model).layers[0].by == f"gated_activation ({name})"
    for one, other in zip(results(model, X), wanted, strict=True):
        assert far(one, other.double()) < NEAR
    assert [op for op in calls if op != "gemm"] == ["gated_activation", "gated_activation_backward"]


def test_one_projection_for_gate_and_up(calls):
    model = HalvedMLP()
    wanted = model(X)
    assert port(model).layers[0].by == "gated_activation (gelu_tanh)"
    assert far(model(X), wanted.detach().double()) < NEAR
    assert calls == ["gemm", "gated_activation", "gemm"]


def test_an_activation_that_is_hooked_or_replaced_is_called(calls):
    model, seen = GatedMLP(), []
    port(model)
    handle = model.act_fn.register_forward_hook(lambda *given: seen.append(given))
    hooked = model(X)
    handle.remove()
    assert len(seen) == 1 and "gated_activation" not in calls
    assert far(model(X), hooked.detach().double()) < NEAR and "gated_activation" in calls
    model.act_fn = nn.Tanh()
    wanted = model.down_proj(model.gate_proj(X).tanh() * model.up_proj(X))
    assert far(model(X), wanted.detach().double()) < NEAR


def test_hooks_of_norms_and_projections_are_called():
    model, seen = block(), []
    port(model)
    for one in (model.first, model.mlp, model.mlp.gate_proj, model.mlp.down_proj):
        one.register_forward_hook(lambda module, *_: seen.append(module))
    model(X)
    assert seen == [model.first, model.mlp.gate_proj, model.mlp.down_proj, model.mlp]


@pytest.mark.turns(16)
def test_copies_are_ported_and_have_parameters_of_their_own(calls):
    model = block()
    assert port(model).swapped[:3] == ("first", "second", "mlp")
    for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        calls.clear()
        assert torch.equal(made(X), model(X))
        assert calls[:5] == ["rms_norm", "layer_norm", "gemm", "gemm", "gated_activation"]
        assert calls == calls[:6] * 2
        nn.init.zeros_(made.second.weight)
        assert torch.equal(made(X), X) and not torch.equal(model(X), X)
        assert len(unport(made)) == 6


@pytest.mark.turns(8)
def test_compiled_and_exported_code_has_torch_s(calls):
    model = block()
    wanted = model(X)
    port(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert far(compiled(X), wanted.detach().double()) < NEAR
    exported = torch.export.export(model, (X,), strict=False)
    named = {str(n.target) for n in exported.graph.nodes if "tilewright" in str(n.target)}
    assert named == {"tilewright.gemm.default"}
    assert set(calls) == {"gemm"}


def test_what_our_functions_do_not_take_goes_to_torch(calls):
    model = nn.ModuleList([nn.LayerNorm(WIDTH), OwnRMSNorm(), GatedMLP()])
    port(model)
    norms = nn.Sequential(*model[:2])
    assert norms.double()(X.double()).dtype is torch.float64
    norms.float()
    stacked = torch.func.vmap(lambda x: torch.func.functional_call(norms, {}, (x,)))(X)
    assert stacked.shape == X.shape
    assert norms(torch.zeros(0, WIDTH)).shape == (0, WIDTH)
    with torch.autocast("cpu", torch.bfloat16):
        assert norms(X).dtype is torch.float32
    assert not calls
    for shape in ((2, 8), (8,)):
        with pytest.raises(RuntimeError):
            norms(torch.zeros(*shape))
    without = nn.LayerNorm(WIDTH, elementwise_affine=False)
    port(without)
    with pytest.raises(RuntimeError):
        without(torch.zeros(2, 8))
    assert model.to("meta")[1](X.to("meta")).device.type == "meta"


def test_a_model_without_memory_is_ported(calls):
    with torch.device("meta"):
        model = Block()
    assert len(port(model).swapped) == 6
    model.to_empty(device="cpu").load_state_dict(block().state_dict())
    assert far(model(X), block()(X).detach().double()) < NEAR
    assert "rms_norm" in calls


def test_the_eps_of_a_norm_is_read_at_each_call():
    for model, name in ((nn.RMSNorm(WIDTH), "eps"), (OwnRMSNorm(), "variance_epsilon")):
        port(model)
        setattr(model, name, 1.0)
        assert far(model(X), type(model).forward(model, X).detach().double()) < NEAR


@pytest.mark.turns(32)
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
@pytest.mark.parametrize("sharded_first", [False, True])
def test_trained_in_parallel(tmp_path, calls, sharded_first):
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    wanted = [x.detach() for x in results(block(), X)[2:]]
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1
    )
    try:
        replicated, sharded = block(), block()
        port(replicated)
        DistributedDataParallel(replicated)(X).mul(randn(*X.shape, seed=3)).sum().backward()
        if not sharded_first:
            port(sharded)
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        fully_shard(sharded.mlp, mesh=mesh)
        fully_shard(sharded, mesh=mesh)
        if sharded_first:
            assert len(port(sharded).swapped) == 6
        sharded(X).mul(randn(*X.shape, seed=3)).sum().backward()
        found = [x.grad.to_local() for x in sharded.parameters()]
    finally:
        torch.distributed.destroy_process_group()
    for made in ([x.grad for x in replicated.parameters()], found):
        assert all(far(x, y.double()) < NEAR for x, y in zip(made, wanted, strict=True))
    for op in ("rms_norm", "layer_norm", "gated_activation"):
        assert calls.count(op) == calls.count(f"{op}_backward") == 2
