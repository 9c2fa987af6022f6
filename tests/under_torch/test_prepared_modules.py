"""The kernels of a module, built before its first step."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import tilewright as tw  # noqa: E402
from tilewright import default, loader, without_gpu  # noqa: E402
from tilewright.arch import arch, device  # noqa: E402
from tilewright.compile import BuildReport, BuildResult  # noqa: E402
from tilewright.errors import BadArgument  # noqa: E402
from tilewright.preparing import Preparation  # noqa: E402
from tilewright.torch import prepare, sums  # noqa: E402


class Block(torch.nn.Module):
    """An epilogue, a convolution, an attention and a view that begins within its tensor."""

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Parameter(torch.randn(32, 48))
        self.bias = torch.nn.Parameter(torch.zeros(48))
        self.filter = torch.nn.Parameter(torch.randn(8, 8, 3, 3))
        self.norm = torch.nn.BatchNorm1d(48)
        self.factor = torch.ones(48)  # no buffer, which torch does not know to be the module's

    def forward(self, x):
        factor = self.factor.to(x.device)
        x = self.norm(tw.gemm(x, self.up, bias=self.bias, epilogue="bias+gelu") * factor)
        image = tw.conv2d(x.reshape(1, 8, 16, -1), self.filter, padding=1)
        q = image.reshape(1, 16, 3, 16)
        o = tw.attention(q, q, q, causal=True)
        return tw.gemm(o.reshape(48, 16)[:, 1:], self.up[:15, :16])


@pytest.fixture
def recorded(monkeypatch):
    """What is recorded is not planned, which would take longer."""

    def prepared(problems, **how):
        plans = tuple(SimpleNamespace(problem=problem, config=problem) for problem in problems)
        return Preparation(device("h200_sxm"), plans, (), BuildReport((), 0.0))

    monkeypatch.setattr(default, "prepare", prepared)


def problems(found) -> set:
    assert found.stopped == ""
    return {plan.problem for plan in found.plans}


def launched(monkeypatch, step) -> set:
    """The problems that a step launches, none of which is computed."""
    seen = set()
    with monkeypatch.context() as patch:
        patch.setattr(
            without_gpu,
            "interpret",
            lambda planner, family, config, given, _: seen.add(given.problem),
        )
        patch.setattr(sums, "_ours", lambda x: True)  # as if on a GPU
        step()
    return seen


def test_the_problems_are_those_that_a_step_launches(monkeypatch, recorded):
    module, x = Block(), torch.randn(16, 32)
    real = launched(monkeypatch, lambda: module(x).backward(torch.empty(48, 16)))
    assert problems(prepare(module, x)) == real
    assert len({problem.family for problem in real}) == 5


class Pooled(torch.nn.Module):
    """Behind the mean, a gradient is not channels-last; behind the norm it is again."""

    def __init__(self):
        super().__init__()
        self.filter = torch.nn.Parameter(torch.randn(8, 8, 3, 3))
        self.norm = torch.nn.BatchNorm2d(8)

    def forward(self, x):
        return self.norm(tw.conv2d(x, self.filter)).mean((2, 3)).square().mean()


def test_gradients_lie_as_those_of_a_step_do(monkeypatch, recorded):
    module = Pooled().to(memory_format=torch.channels_last)
    x = torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last)
    real = launched(monkeypatch, lambda: module(x).backward())
    assert problems(prepare(module, x)) == real


class Decodes(torch.nn.Module):
    """Writes a cache in place, and an output by torch's operator."""

    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, 8, 2, 16))
        self.register_buffer("values", torch.zeros(1, 8, 2, 16))

    def forward(self, q, used):
        o = tw.attention(q, self.keys, self.values, new_k=q, new_v=q, kv_used=used)
        made = torch.empty(2, 2)
        torch.ops.tilewright.gemm.out([o[0, 0], o[0, 0].T.contiguous()], out=[made])
        return made


def test_calls_that_write_are_recorded(monkeypatch, recorded):
    module, given = Decodes(), (torch.ones(1, 1, 2, 16), torch.tensor([3], dtype=torch.int32))
    with torch.no_grad():
        real = launched(monkeypatch, lambda: module(*given))
        assert problems(prepare(module, *given)) == real
    assert len(real) == 2


def test_a_forward_pass_alone(monkeypatch, recorded):
    module, x = Block(), torch.randn(16, 32)
    forward = launched(monkeypatch, lambda: module(x))
    assert problems(prepare(module, x, backward=False)) == forward
    with torch.no_grad():
        forward = launched(monkeypatch, lambda: module(x))
        assert problems(prepare(module, x)) == forward


def test_their_kernels_are_built(monkeypatch, tmp_path):
    names = []

    def build(requests, **how):
        names.extend(config.name for config, _ in requests)
        results = (BuildResult(c, c.name, arch(a), "built") for c, a in requests)
        return BuildReport(tuple(results), 0.0)

    monkeypatch.setattr(loader, "build", build)
    found = prepare(Product(), torch.randn(16, 32), device="h200_sxm", store=tw.Store(tmp_path))
    assert found.ok and len(found.plans) == 2
    assert names == [*dict.fromkeys(plan.config.name for plan in found.plans)]


def test_nothing_of_the_module_changes(recorded):
    module, x = Block(), torch.randn(16, 32, requires_grad=True)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    chance = torch.get_rng_state()
    assert problems(prepare(module, x))
    assert all(type(p) is torch.nn.Parameter and p.grad is None for p in module.parameters())
    assert x.grad is None and torch.equal(torch.get_rng_state(), chance)
    after = module.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_a_module_without_memory_is_prepared_alike(recorded):
    module, x = Block(), torch.randn(16, 32)
    found = problems(prepare(module, x))
    meta, given = module.to("meta"), x.to("meta")
    assert problems(prepare(meta, given)) == found
    with torch._subclasses.fake_tensor.FakeTensorMode():
        fake = Block(), torch.randn(16, 32)
    assert problems(prepare(*fake)) == found


def test_autocast_decides_the_types(recorded):
    module, x = Block(), torch.randn(16, 32)
    with torch.autocast("cpu", torch.bfloat16):
        found = prepare(module, x)
    assert {p.dtype_a for p in problems(found) if p.family == "gemm"} == {"bf16"}


@pytest.mark.turns(32)
def test_what_a_compiled_module_calls_is_seen(recorded):
    module, x = Block(), torch.randn(16, 32)
    found = problems(prepare(module, x))
    graphs = []
    compiled = torch.compile(
        module, fullgraph=True, backend=lambda graph, _: graphs.append(graph) or graph
    )
    assert problems(prepare(compiled, x)) == found
    assert graphs == [], "it is run uncompiled"


class Product(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(32, 48))

    def forward(self, x):
        return tw.gemm(x, self.w)


class Asks(torch.nn.Module):
    def forward(self, x):
        y = tw.gemm(x, x)
        return tw.gemm(y, x) if y.sum().item() > 0 else y


class Writes(torch.nn.Module):
    def forward(self, x):
        y = tw.gemm(x, x)
        return tw.gemm(x, x, out=y)


@pytest.mark.parametrize(
    ("module", "why"), [(Asks(), "DataDependentOutput"), (Writes(), "without memory of its own")]
)
def test_where_the_run_stops_is_said_and_what_came_before_is_built(module, why, recorded):
    found = prepare(module, torch.randn(16, 16))
    assert why in found.stopped and not found.ok and why in str(found)
    assert len(found.plans) == 1


def test_a_function_is_refused():
    with pytest.raises(BadArgument, match=r"takes a torch\.nn\.Module"):
        prepare(tw.gemm, torch.randn(16, 16))


def test_measuring_is_handed_on_and_is_no_keyword_of_the_module(monkeypatch):
    seen = []

    def prepared(problems, **how):
        seen.append(how)
        return Preparation(device("h200_sxm"), (), (), BuildReport((), 0.0))

    monkeypatch.setattr(default, "prepare", prepared)
    few = tw.Measuring(candidates=2, seconds=60.0)
    for measure in (True, few):
        prepare(torch.nn.ReLU(), torch.randn(16, 16), measure=measure)
    prepare(torch.nn.ReLU(), torch.randn(16, 16))
    assert [how["measure"] for how in seen] == [True, few, False]
