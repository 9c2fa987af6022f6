"""`port` and `unport`: models whose layers call our functions, and are as they were afterwards."""

from __future__ import annotations

import copy
import functools
import json
import pickle
import warnings
from types import FunctionType, MethodType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gradient_cases import far  # noqa: E402
from torch import nn  # noqa: E402

from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.errors import BadArgument, NoKernelFound  # noqa: E402
from tilewright.torch import port, unport  # noqa: E402

NEAR = 1e-5


class Attention(nn.Module):
    """Attention of two heads, by torch's function."""

    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        made = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + made.transpose(1, 2).flatten(-2)


class Own(nn.Linear):
    def forward(self, input):
        return super().forward(input) + 1


class Alike(nn.Linear):
    pass


def blocks() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(Attention(), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))


@pytest.fixture
def calls(monkeypatch):
    """The names of the operations that the dispatcher runs, in order."""
    found, run = [], Dispatcher.run_given

    def noted(self, op, operands, out, stream, options, *rest):
        found.append((op, options.get("epilogue", "")))
        return run(self, op, operands, out, stream, options, *rest)

    monkeypatch.setattr(Dispatcher, "run_given", noted)
    return found


X = torch.randn(2, 4, 16, generator=torch.Generator().manual_seed(2))


def grads(model: nn.Module, x: Any) -> list[Any]:
    return list(torch.autograd.grad(model(x).square().sum(), [*model.parameters()]))


def test_a_model_is_ported_and_taken_back_bit_for_bit(calls):
    model = blocks()
    before, gradients = model(X), grads(model, X)
    state = {name: x.clone() for name, x in model.state_dict().items()}
    report = port(model)
    assert report.swapped == ("", "0", "0.qkv", "1", "3")
    found = model(X)
    assert calls == [
        ("gemm", "bias"), ("attention", ""), ("gemm", "bias+relu"), ("gemm", "bias")
    ]  # fmt: skip
    assert far(found, before.double()) < NEAR
    for one, other in zip(grads(model, X), gradients, strict=True):
        assert far(one, other.double()) < NEAR
    assert state.keys() == model.state_dict().keys()
    assert type(model[1]) is nn.Linear and nn.Linear.forward.__module__.startswith("torch.")
    assert unport(model) == report.swapped
    assert torch.equal(model(X), before)
    assert not any("forward" in vars(one) for one in model.modules())


def test_the_report_is_a_table_and_json():
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), Own(8, 8), nn.LayerNorm(8), Alike(8, 8))
    report = port(model)
    assert report.kept == {"2": "its class Own has its own forward"}
    assert report.swapped == ("", "0", "3", "4")
    lines = str(report).splitlines()
    assert lines[0] == "4 modules ported, 1 kept"
    assert [line.split()[:2] for line in lines[1:]] == [
        ["(model)", "Sequential"], ["0", "Linear"], ["2", "Own"], ["3", "LayerNorm"], ["4", "Alike"]
    ]  # fmt: skip
    assert [one["name"] for one in json.loads(report.json)] == ["", "0", "2", "3", "4"]
    assert port(model) == report  # once more changes nothing
    unport(model)


def test_layers_that_have_no_function_here_are_said():
    model = nn.ModuleDict(
        {"rnn": nn.LSTM(8, 8), "cell": nn.GRUCell(8, 8), "both": nn.Bilinear(8, 8, 4)}
    )
    assert port(model).kept == dict.fromkeys(model, "no function here computes such a layer")


def test_hooks_are_called_and_an_activation_behind_them_is_not_joined(calls):
    model, seen = nn.Sequential(nn.Linear(16, 16), nn.ReLU()), []
    port(model)
    model(X)
    handle = model[0].register_forward_hook(lambda module, given, made: seen.append(made.min()))
    model(X)
    handle.remove()
    model[1].register_forward_pre_hook(lambda module, given: seen.append(given[0].min()))
    model(X)
    assert [epilogue for _, epilogue in calls] == ["bias+relu", "bias", "bias"]
    assert len(seen) == 2 and all(one < 0 for one in seen)


def test_gelu_is_joined_where_no_gradients_are_recorded(calls):
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU("tanh"))
    wanted = model(X)
    port(model)
    assert far(model(X), wanted.double().detach()) < NEAR
    with torch.no_grad():
        assert far(model(X), wanted.double()) < NEAR
    assert [epilogue for _, epilogue in calls] == ["bias", "bias+gelu_tanh"]


def test_a_layer_of_a_sequential_called_alone_is_itself():
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
    wanted = model[0](X)
    port(model)
    assert far(model[0](X), wanted.double().detach()) < NEAR


CONVOLUTIONS = {
    "zeros": (nn.Conv2d(4, 8, 3, padding=1), (1, 4, 5, 5)),
    "circular": (nn.Conv1d(4, 8, 3, padding=1, padding_mode="circular"), (1, 4, 6)),
    "same": (nn.Conv1d(4, 8, 3, padding="same"), (1, 4, 6)),
    "transposed": (nn.ConvTranspose1d(4, 8, 3, stride=2), (1, 4, 5)),
}


@pytest.mark.grid(1)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(calls, name):
    layer, shape = CONVOLUTIONS[name]
    x = torch.randn(shape)
    wanted = layer(x)
    assert port(layer).swapped == ("",)
    assert far(layer(x), wanted.double().detach()) < NEAR
    assert [op for op, _ in calls] == ["conv"]
    unport(layer)


def test_a_convolution_and_relu_are_one_call(calls):
    model, x = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU()), torch.randn(1, 4, 5, 5)
    wanted = model(x)
    port(model)
    assert far(model(x), wanted.double().detach()) < NEAR
    assert calls == [("conv", "bias+relu")]


HEADS = {
    "one tensor": {},
    "causal": {"is_causal": True, "attn_mask": torch.ones(4, 4).triu(1).bool()},
    "padding": {"key_padding_mask": torch.tensor([[False] * 4, [False, False, True, True]])},
    "both": {
        "key_padding_mask": torch.tensor([[0.0] * 4, [0.0, 0.0, -1.0, float("-inf")]]),
        "attn_mask": torch.randn(4, 4, 4),
    },
}


@pytest.mark.grid(1)
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", HEADS)
def test_multi_head_attention(calls, name, first):
    layer = nn.MultiheadAttention(16, 2, batch_first=first)
    x = X if first else X.transpose(0, 1)
    wanted, _ = layer(x, x, x, need_weights=False, **HEADS[name])
    port(layer)
    found, weights = layer(x, x, x, need_weights=False, **HEADS[name])
    assert weights is None and far(found, wanted.double().detach()) < NEAR
    assert [op for op, _ in calls] == ["gemm", "attention", "gemm"]


def test_multi_head_attention_with_other_keys_and_weights():
    layer = nn.MultiheadAttention(16, 2, kdim=8, vdim=24, batch_first=True)
    given = X, torch.randn(2, 6, 8), torch.randn(2, 6, 24)
    wanted, weights = layer(*given)
    port(layer)
    found, again = layer(*given)
    assert torch.equal(found, wanted) and torch.equal(again, weights)
    found, _ = layer(*given, need_weights=False)
    assert far(found, wanted.double().detach()) < NEAR
    assert "adds a key" in port(nn.MultiheadAttention(16, 2, add_bias_kv=True)).kept[""]


def test_copies_are_ported_and_have_parameters_of_their_own(calls):
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
    port(model)
    for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(made(X), model(X))
        nn.init.zeros_(made[0].weight)
        nn.init.zeros_(made[0].bias)
        assert not made(X).any() and model(X).any()
        assert unport(made) == ("", "0")
    assert {op for op, _ in calls} == {"gemm"}


def test_a_forward_is_a_method_which_compiled_code_passes_over(calls):
    """Of a pickled model it is one when the model is ported again."""
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.LayerNorm(16), nn.Conv1d(4, 4, 1))
    before = [set(vars(one)) for one in model.modules()]
    port(model)
    loaded = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    wanted = model(X[:, :4])
    for made in (model, copy.deepcopy(model), loaded):
        assert torch.equal(made(X[:, :4]), wanted)
        port(made)
        for one, kind in ((made, MethodType), (made[0], FunctionType), (made[2], MethodType)):
            assert type(one.forward) is kind
            assert getattr(one.forward, "pickled", one.forward).__self__ is one
        unport(made)
        assert [set(vars(one)) for one in made.modules()] == before


class Three(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Conv1d(4, 4, 1)
        self.c = nn.LayerNorm(16)

    def forward(self, x):
        return self.c(self.b(self.a(x)))


def test_torch_takes_ported_modules_for_such_as_it_may_pass_over(calls):
    """Where its guards compare the ``__dict__`` of modules alone, as some versions do."""
    dynamo = torch._dynamo
    if not hasattr(dynamo.config, "use_recursive_dict_tags_for_guards"):
        pytest.skip("this torch has no such guards")
    model = Three()
    port(model)
    dynamo.reset()
    with dynamo.config.patch(use_recursive_dict_tags_for_guards=True), torch.no_grad():
        torch.compile(model, backend="eager")(X)
    (entry,) = dynamo.eval_frame._debug_get_cache_entry_list(Three.forward.__code__)
    guards = str(entry.guard_manager).splitlines()
    for name in "abc":
        (found,) = [one for one in guards if f"_modules['{name}'], accessed_by" in one]
        assert "tag_safe=(True, " in found
    # In Python, at each call: that a method is its module's.
    assert not any("LAMBDA_GUARD" in one and "_modules['a']" in one for one in guards)


def test_compiled_code_reads_the_parameters_that_a_layer_has(calls):
    model = port_and_return(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16, bias=False)))
    made = copy.deepcopy(model)
    with torch.no_grad():
        made[0].weight.mul_(2)
    made[1].weight = nn.Parameter(torch.randn(16, 16))
    nn.utils.parametrizations.weight_norm(made[1])
    unported = copy.deepcopy(made)
    unport(unported)
    torch._dynamo.reset()
    found = torch.compile(made, backend="eager", fullgraph=True)(input=X)
    assert far(found, unported(X).double().detach()) < NEAR
    assert [op for op, _ in calls] == ["gemm", "gemm"]
    assert far(made[0](input=X), unported[0](X).double().detach()) < NEAR


def test_a_method_of_the_caller_s_is_pickled_as_torch_s_modules_are(calls):
    model = nn.Sequential(nn.Linear(16, 16))
    port(model)
    model[0].__dict__["extra"] = model[0].extra_repr
    loaded = pickle.loads(pickle.dumps(model))
    assert loaded[0].extra() == model[0].extra_repr() and loaded[0].extra.__self__ is loaded[0]


@pytest.mark.turns(8)
def test_copies_attend_with_modules_of_their_own(calls):
    model = port_and_return(Attention())
    for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(made(X), model(X))
        nn.init.zeros_(made.qkv.weight)
        nn.init.zeros_(made.qkv.bias)
        assert torch.equal(made(X), X)
    assert {op for op, _ in calls} == {"gemm", "attention"}


def _by_a_function(x: Any) -> Any:
    return nn.functional.scaled_dot_product_attention(x, x, x)


attend = nn.functional.scaled_dot_product_attention


class ByAFunction(nn.Module):
    def forward(self, x):
        return _by_a_function(x)


class ByAnotherName(nn.Module):
    def forward(self, x):
        return attend(x, x, x)


class ByAMethod(nn.Module):
    def forward(self, x):
        return self.mixed(x)

    def mixed(self, x):
        (made,) = (torch.nn.functional.scaled_dot_product_attention(y, y, y) for y in (x,))
        return made


class Inherited(ByAMethod):
    pass


@pytest.mark.parametrize("kind", [ByAFunction, ByAnotherName, ByAMethod, Inherited])
def test_attention_is_found_wherever_a_module_calls_it(calls, kind):
    model = kind()
    wanted = model(X[None])
    (layer,) = port(model).layers
    name = "mixed" if isinstance(model, ByAMethod) else "forward"
    assert layer.by == f"scaled_dot_product_attention, in {name}"
    assert far(model(X[None]), wanted.double()) < NEAR
    assert [op for op, _ in calls] == ["attention"]
    kind()(X[None])
    unport(model)
    assert torch.equal(model(X[None]), wanted) and len(calls) == 1


def test_dropout_stays_torch_s(calls):
    class Dropping(nn.Module):
        def forward(self, x):
            return nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)

    port_and_return(Dropping())(X[None])
    assert not calls


def port_and_return(model: nn.Module) -> nn.Module:
    port(model)
    return model


@pytest.fixture
def alone(tmp_path):
    """A group of this process alone."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.turns(64)
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed")
@pytest.mark.parametrize("sharded_first", [False, True])
def test_trained_in_parallel(alone, calls, sharded_first):
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    wanted = grads(blocks(), X)
    replicated = DistributedDataParallel(port_and_return(blocks()))
    replicated(X).square().sum().backward()
    sharded = blocks()
    if not sharded_first:
        port(sharded)
    mesh = torch.distributed.init_device_mesh("cpu", (1,))
    fully_shard(sharded[1], mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    if sharded_first:
        port(sharded)
    sharded(X).square().sum().backward()
    found = [x.grad.to_local() for x in sharded.parameters()]
    for made in ([x.grad for x in replicated.parameters()], found):
        assert all(far(x, y.double()) < NEAR for x, y in zip(made, wanted, strict=True))
    assert calls.count(("gemm", "bias+relu")) == 1  # with FSDP's hooks, layers are called apart
    assert calls.count(("gemm", "bias")) == 2 + 3


def test_tied_and_parametrised_weights():
    model = nn.Sequential(nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False))
    model[1].weight = model[0].weight
    nn.utils.parametrizations.weight_norm(model[0])
    wanted = model(X)
    assert port(model).swapped == ("0", "1")
    assert far(model(X), wanted.double().detach()) < NEAR
    with torch.no_grad():
        model[0].parametrizations.weight.original0.mul_(2)
    assert far(model[0](X), nn.functional.linear(X, model[0].weight).double().detach()) < NEAR


@pytest.mark.turns(8)
def test_what_our_functions_do_not_take_goes_to_torch(calls):
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
    port(model)
    assert model.double()(X.double()).dtype is torch.float64
    model.float()
    stacked = torch.func.vmap(lambda x: torch.func.functional_call(model, {}, (x,)))(X)
    assert stacked.shape == X.shape
    assert model.to("meta")(X.to("meta")).device.type == "meta"
    assert not calls
    lacking = nn.Sequential(nn.Linear(8, 8).double(), nn.LazyLinear(8))
    assert port(lacking).kept == {
        "0": "its weight is float64",
        "1": "its parameters have no shapes yet; port it after its first call",
    }


def test_what_no_kernel_serves_goes_to_torch_and_is_said_once(monkeypatch, caplog):
    def refuse(self, op, *rest):
        raise NoKernelFound(f"none of 9 kernels serves this {op}")

    model = nn.Sequential(Attention(), nn.MultiheadAttention(16, 2), nn.Conv1d(4, 8, 3))
    wide, heads, conv = model
    inputs = X, torch.randn(3, 2, 16), torch.randn(1, 4, 9)

    def made() -> list[Any]:
        (rows, _), images = heads(*[inputs[1]] * 3, need_weights=False), conv(inputs[2])
        return [wide(inputs[0]), rows, images]

    want = made()
    port(model)
    monkeypatch.setattr(Dispatcher, "run_given", refuse)
    for _ in range(2):
        assert all(map(torch.equal, made(), want))
    for op in ("gemm", "attention", "conv"):
        assert caplog.text.count(f"none of 9 kernels serves this {op}") == 1, op


def test_only_and_skip_name_modules():
    model = nn.ModuleDict({"a": blocks(), "b": blocks(), "head": nn.Linear(16, 16)})
    report = port(model, only=["a", "b.0"], skip=["*.qkv"])
    assert report.swapped == ("a", "a.0", "a.1", "a.3", "b.0")
    assert report.kept["head"] == "only= does not name it"
    assert report.kept["a.0.qkv"] == "skip= names it"
    for word in ("only", "skip"):
        with pytest.raises(BadArgument, match=f"{word}: the model has no module 'c'"):
            port(model, **{word: ["c"]})


def test_a_forward_that_somebody_wraps_is_theirs():
    """`functools.wraps` gives what wraps a forward of ours all attributes that this has."""
    for kind in (lambda call: call, functools.partial):
        model = port_and_return(nn.Sequential(nn.Linear(16, 16), nn.ReLU()))
        layer, met = model[0], []
        own = layer.forward
        layer.forward = functools.wraps(own)(
            kind(lambda x, own=own, met=met: met.append(x) or own(x))
        )
        model(X)
        copy.deepcopy(model)(X)
        assert len(met) == 2
        assert port(model).kept == {"0": "its forward was replaced"}
        assert unport(model) == ("",) and "forward" in vars(layer)


def test_a_forward_that_somebody_replaced_is_kept():
    layer = nn.Linear(16, 16)
    layer.forward = lambda x: x
    assert port(layer).kept == {"": "its forward was replaced"}
    assert layer(X) is X and unport(layer) == ()


def test_nothing_is_changed_for_other_models():
    port(blocks())
    attend = nn.functional.scaled_dot_product_attention
    assert attend.__module__ == "torch._C._nn" or "torch" in str(attend)
    other = blocks()
    assert not any("forward" in vars(one) for one in other.modules())


def test_what_is_no_module_or_compiled_is_refused():
    with pytest.raises(BadArgument, match="must be a torch"):
        port(torch.nn.functional.linear)
    layer = nn.Linear(4, 4)
    layer._compiled_call_impl = layer._call_impl  # as layer.compile() sets it
    with pytest.raises(BadArgument, match=r"before torch\.compile"):
        port(nn.Sequential(layer))


@pytest.mark.turns(64)
def test_compiled_and_exported():
    model = blocks()
    port(model)
    with torch.no_grad():
        wanted = model(X)
        torch._dynamo.reset()
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        assert far(compiled(X), wanted.double()) < NEAR
        exported = torch.export.export(model, (X,))
    named = [str(n.target) for n in exported.graph.nodes if "tilewright" in str(n.target)]
    assert named == [f"tilewright.{op}.default" for op in ("gemm", "attention", "gemm", "gemm")]
    assert far(compiled(X.clone().requires_grad_()), wanted.double()) < NEAR


class Convolved(nn.Module):
    """A convolution of each kind; one with the activation behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.row, self.up = nn.Conv1d(4, 4, 3), nn.ConvTranspose2d(4, 4, 2, 2)
        self.image = nn.Sequential(
            nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), nn.ReLU()
        )
        self.volume = nn.Conv3d(1, 2, 1)

    def forward(self, x: Any) -> Any:
        x = self.image(self.up(x))
        return self.volume(self.row(x.flatten(2)).unflatten(2, (1, -1, 2)).transpose(1, 2))


@pytest.mark.turns(64)
def test_convolutions_compile_as_one_graph():
    torch._dynamo.reset()
    model, x = Convolved(), torch.randn(1, 4, 3, 4)
    wanted = model(x)
    port(model)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Dynamo")
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        assert far(compiled(x), wanted.double()) < NEAR
        assert far(compiled(x.clone().requires_grad_()), wanted.double()) < NEAR
