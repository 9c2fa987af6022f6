"""`port` on perceptrons of two linear layers and an activation between them."""

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
from tilewright.errors import BadArgument  # noqa: E402
from tilewright.torch import port, preparing, unport  # noqa: E402

NEAR = 1e-5
WIDTH, HIDDEN = 16, 24


@pytest.fixture
def calls(monkeypatch):
    """The epilogues of the products that the dispatcher runs, in order."""
    found, run = [], Dispatcher.run_given

    def noted(self, op, operands, out, stream, keywords, *rest):
        assert op == "gemm"
        found.append(keywords.get("epilogue", ""))
        return run(self, op, operands, out, stream, keywords, *rest)

    monkeypatch.setattr(Dispatcher, "run_given", noted)
    return found


def randn(*shape: int, seed: int = 2) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X = randn(2, 3, WIDTH)


class Mlp(nn.Module):
    """As timm has it."""

    def __init__(self, act: Any = None, drop: float = 0.0, norm: Any = None, bias=True) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.fc1 = nn.Linear(WIDTH, HIDDEN, bias=bias)
        self.act, self.drop1 = nn.GELU() if act is None else act, nn.Dropout(drop)
        self.norm = nn.Identity() if norm is None else norm
        self.fc2, self.drop2 = nn.Linear(HIDDEN, WIDTH, bias=bias), nn.Dropout(drop)

    def forward(self, x):
        return self.drop2(self.fc2(self.norm(self.drop1(self.act(self.fc1(x))))))


class MLP(nn.Module):
    """As CLIP has it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.activation_fn = nn.SiLU()
        self.fc1, self.fc2 = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, hidden_states):
        return self.fc2(self.activation_fn(self.fc1(hidden_states)))


class Called(Mlp):
    """Whose activation is a function."""

    def forward(self, x):
        return self.fc2(functional.gelu(self.fc1(x), approximate="tanh"))


class Residual(Mlp):
    def forward(self, x):
        hidden = self.act(self.fc1(x))
        return hidden.mean() + self.fc2(hidden)


class Behind(Mlp):
    def forward(self, x):
        return self.act(self.fc2(self.fc1(x)))


class DroppingMlp(Mlp):
    def forward(self, x):
        return self.fc2(functional.dropout(self.act(self.fc1(x)), 0.5, self.training))


class Scaled(Mlp):
    """With a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return super().forward(x) * self.gamma


class Other(Mlp):
    """Not named as a perceptron."""

    def forward(self, x):
        return self.fc2(self.fc1(x).tanh())


def results(model: nn.Module, x: Any = X) -> list[Any]:
    """A model's result and all gradients."""
    x = x.detach().requires_grad_()
    out = model(x)
    loss = (out * randn(*out.shape, seed=3)).sum()
    return [out.detach(), *torch.autograd.grad(loss, [x, *model.parameters()])]


def near(found: list[Any], wanted: list[Any]) -> bool:
    return all(far(one, other.double()) < NEAR for one, other in zip(found, wanted, strict=True))


def is_one(out: Any) -> bool:
    """Whether one node has recorded a perceptron: all before it are leaves."""
    before = [node for node, _ in out.grad_fn.next_functions if node is not None]
    return len(before) > 1 and all(node.name().endswith("AccumulateGrad") for node in before)


PERCEPTRONS = {
    "gelu": (Mlp, "fc1+gelu+fc2"),
    "gelu by tanh": (lambda: Mlp(nn.GELU("tanh")), "fc1+gelu_tanh+fc2"),
    "relu in place": (lambda: Mlp(nn.ReLU(inplace=True)), "fc1+relu+fc2"),
    "silu in place": (lambda: Mlp(nn.SiLU(inplace=True)), "fc1+silu+fc2"),
    "silu of CLIP": (MLP, "fc1+silu+fc2"),
    "a function": (Called, "fc1+gelu_tanh+fc2"),
    "an attribute": (lambda: Mlp(functional.silu), "fc1+silu+fc2"),
    "without biases": (lambda: Mlp(bias=False), "fc1+gelu+fc2"),
}


@pytest.mark.grid(1)
@pytest.mark.parametrize("name", PERCEPTRONS)
def test_perceptrons_and_their_gradients(calls, name):
    make, by = PERCEPTRONS[name]
    model = make()
    wanted = results(model)
    report = port(model)
    assert report.layers[0].by == f"one call of {by}" and not report.kept
    assert port(model) == report
    bias = "bias" if model.fc1.bias is not None else ""
    assert near(results(model), wanted)
    assert calls == [bias] * 2 + [""] * 4 and is_one(model(X))
    del calls[:]
    with torch.no_grad():
        assert far(model(X), wanted[0].double()) < NEAR
    assert calls == [f"{bias}+{by.split('+')[1]}".strip("+"), bias]
    assert unport(model) == ("", "fc1", "fc2")
    assert all(map(torch.equal, results(model), wanted))


@pytest.mark.parametrize("name", ["gelu", "relu in place"])
def test_the_backward_pass_keeps_what_torch_s_keeps(name):
    model = PERCEPTRONS[name][0]()
    own = {one.untyped_storage().data_ptr() for one in model.parameters()}

    def kept():
        found = {}

        def keep(one):
            found[one.untyped_storage().data_ptr()] = one.numel()
            return one

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one):
            out = model(X)
        return out, sorted(n for pointer, n in found.items() if pointer not in own)

    wanted = kept()[1]
    port(model)
    out, found = kept()
    assert is_one(out) and found == wanted


@pytest.mark.parametrize("shape", [(5,), (), (2, 3, 2), (2, 1, 2, 3)])
def test_every_shape(shape):
    model, x = Mlp(), randn(*shape, WIDTH)
    wanted = results(model, x)
    port(model)
    assert near(results(model, x), wanted)


def test_half_precision_keeps_the_layout_of_gradients():
    model, x = Mlp().bfloat16(), X.bfloat16()
    wanted = results(model, x)
    port(model)
    for one, other in zip(results(model, x), wanted, strict=True):
        assert (one.dtype, one.stride()) == (other.dtype, other.stride())
        assert far(one, other.double()) < 4 * torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize("frozen", [("x",), ("fc1.bias",), ("fc1.weight", "fc1.bias"),
                                    ("fc2.weight",), ("fc1.weight", "fc2.weight")])  # fmt: skip
def test_gradients_of_some(frozen):
    model, along = Mlp(), randn(*X.shape, seed=3)
    for name in frozen:
        if name != "x":
            model.get_parameter(name).requires_grad_(False)
    x = X.clone().requires_grad_("x" not in frozen)

    def some():
        leaves = [one for one in (x, *model.parameters()) if one.requires_grad]
        return torch.autograd.grad((model(x) * along).sum(), leaves)

    wanted = some()
    port(model)
    assert near(some(), wanted)
    assert is_one(model(x)) is not any("weight" in name for name in frozen)


def test_a_frozen_model_has_the_activation_in_the_product(calls):
    model = Mlp().requires_grad_(False)
    port(model)
    model(X)
    assert calls == ["bias+gelu", "bias"]


@pytest.mark.parametrize("name", ["gelu", "gelu by tanh", "silu of CLIP"])
def test_second_derivatives(name):
    model = PERCEPTRONS[name][0]()

    def twice():
        x = X.detach().requires_grad_()
        leaves = [x, *model.parameters()]
        first = torch.autograd.grad(model(x).square().sum(), leaves, create_graph=True)
        return torch.autograd.grad(
            sum(one.square().sum() for one in first), leaves, allow_unused=True
        )

    wanted = twice()
    port(model)
    assert near(twice(), wanted)


KEPT = {
    "another activation": lambda: Mlp(nn.Tanh()),
    "more than a perceptron": Residual,
    "an activation behind both": Behind,
    "dropout by a function": DroppingMlp,
    "another activation, in place": lambda: Mlp(torch.abs_),
    "an activation that is like GELU": lambda: Mlp(lambda x: x * (1.702 * x).sigmoid()),
}


@pytest.mark.parametrize("name", KEPT)
def test_the_report_says_why_a_perceptron_is_kept(name):
    model = KEPT[name]()
    kind = type(model).__name__
    wanted, report = model.eval()(X), port(model)
    if "Mlp" in kind:
        assert report.kept == {"": f"its class {kind} computes another perceptron"}
    assert report.swapped == ("fc1", "fc2")
    assert far(model(X), wanted.detach().double()) < NEAR


def test_other_modules_are_no_matter_of_perceptrons():
    for model in (Other(), Scaled(), Mlp(norm=nn.BatchNorm1d(HIDDEN)), Mlp(nn.PReLU())):
        assert [one.name for one in port(model).layers] == ["fc1", "fc2"]
    model = Mlp()
    assert port(model, skip=["fc1"]).swapped == ("fc2",)
    model = Mlp()
    model.forward = lambda x: x
    assert port(model).kept == {"": "its forward was replaced"}


class DropPath(nn.Module):
    """A class of anybody's that drops."""

    def forward(self, x):
        return x * (torch.rand_like(x) < 0.5) if self.training else x


@pytest.mark.parametrize("drops", [DropPath, lambda: nn.AlphaDropout(0.5)])
@pytest.mark.parametrize("training", [False, True])
def test_other_modules_that_drop_keep_a_perceptron_ported_in_either_mode(drops, training):
    model = Mlp(norm=drops()).train(training)
    assert port(model).swapped == ("fc1", "fc2")
    assert not torch.equal(model.train()(X), model(X))


def test_what_drops_is_called(calls):
    model = Mlp(drop=0.5)
    port(model)
    assert not is_one(model(X)) and (model(X) == 0).any()
    assert is_one(model.eval()(X))
    model.train()
    model.drop1.p = model.drop2.p = 0.0
    assert is_one(model(X))


@pytest.mark.parametrize("name", ["act", "fc1", "fc2", "drop1", "norm"])
def test_hooks_within_are_called(name):
    model, seen = Mlp(), []
    port(model)
    handle = model.get_submodule(name).register_forward_hook(lambda *given: seen.append(given))
    hooked = model(X)
    assert len(seen) == 1
    handle.remove()
    assert far(model(X), hooked.detach().double()) < NEAR and len(seen) == 1
    handle = nn.modules.module.register_module_forward_hook(lambda one, *_: seen.append(one))
    try:
        model(X)
    finally:
        handle.remove()
    assert len(seen) == 1 + 7


def test_layers_that_are_replaced_later_are_called():
    model = Mlp()
    port(model)
    model.act = nn.Tanh()
    wanted = type(model).forward(model, X)
    assert torch.equal(model(X), wanted) and not is_one(wanted)
    model = Mlp()
    port(model)
    model.fc2 = nn.Identity()
    assert model(X).shape[-1] == HIDDEN


def test_recognising_changes_nothing(calls):
    model, seen = Mlp(drop=0.5), []
    model.act.register_forward_hook(lambda *given: seen.append(given))
    before = torch.get_rng_state()
    port(model)
    assert torch.equal(torch.get_rng_state(), before) and not seen and not calls


@pytest.mark.turns(8)
def test_copies_are_ported_and_have_parameters_of_their_own():
    model = Mlp()
    port(model)
    for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(made(X), model(X)) and is_one(made(X))
        nn.init.zeros_(made.fc2.weight)
        assert torch.equal(made(X)[0, 0], made.fc2.bias) and not torch.equal(model(X), made(X))
        assert len(unport(made)) == 3


def test_parametrised_weights_are_read_at_each_call():
    model = Mlp()
    nn.utils.parametrizations.weight_norm(model.fc1)
    wanted = results(model)
    port(model)
    assert near(results(model), wanted)


class Noted(nn.Module):
    """A parametrisation that notes when it is computed."""

    def __init__(self, seen: list[Any]) -> None:
        super().__init__()
        self.seen = seen

    def forward(self, w):
        self.seen.append(w.shape)
        return w * 2


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("name", ["fc1.weight", "fc2.weight", "fc2.bias"])
def test_parametrised_ones_are_computed_once_a_call(name, recorded):
    model, seen = Mlp(), []
    port(model)
    layer, _, word = name.partition(".")
    nn.utils.parametrize.register_parametrization(
        model.get_submodule(layer), word, Noted(seen), unsafe=True
    )
    del seen[:]
    with torch.set_grad_enabled(recorded):
        made = model(X)
        assert len(seen) == 1 and not (recorded and is_one(made))
        wanted = type(model).forward(model, X)
    assert far(made.detach(), wanted.detach().double()) < NEAR


def test_prepare_knows_the_kernels_of_a_step():
    model = Mlp()
    port(model)
    assert is_one(model(X))

    def epilogues():
        recorder = preparing.Recorder()
        preparing._run(recorder, model, (X.clone().requires_grad_(),), {}, True)
        return [one.epilogue if one.family == "gemm" else one.family for one in recorder.problems]

    assert sorted(epilogues()) == [""] * 4 + ["bias"] * 2 + ["reduction"] * 2
    with torch.no_grad():
        assert epilogues() == ["bias+gelu", "bias"]


@pytest.mark.turns(8)
def test_compiled_code_has_torch_s_activation(calls):
    model = Mlp()
    wanted = model(X)
    port(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert far(compiled(X), wanted.detach().double()) < NEAR
    exported = torch.export.export(model, (X,), strict=False)
    named = [str(n.target) for n in exported.graph.nodes if n.op == "call_function"]
    assert "aten.gelu.default" in named and set(calls) == {"bias"}


def test_what_is_not_served_goes_to_torch(calls):
    model = Mlp()
    port(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert model(X).dtype is torch.bfloat16
    del calls[:]
    assert (
        torch.func.vmap(lambda x: torch.func.functional_call(model, {}, (x,)))(X).shape == X.shape
    )
    assert model.double()(X.double()).dtype is torch.float64
    model.float()
    assert not calls
    with pytest.raises(BadArgument, match="8 columns"):
        model(torch.zeros(2, 8))
    assert model(torch.zeros(0, WIDTH)).shape == (0, WIDTH)
    turned = X.transpose(0, 1)
    assert far(model(turned), model(turned.contiguous()).detach().double()) < NEAR
    checkpointed = torch.utils.checkpoint.checkpoint(model, X, use_reentrant=False)
    assert torch.equal(checkpointed, model(X))
    checkpointed.sum().backward()
