"""Two GPUs of one machine: each way to our kernels on the second GPU, and between both."""

from __future__ import annotations

import copy
import threading
from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import tilewright as tw  # noqa: E402
import tilewright.torch as tt  # noqa: E402
from tilewright import capture_file, capturing  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU"),
]
GPUS = "cuda:0", "cuda:1"
F = torch.nn.functional
DIM, HEADS, CALLS = 128, 4, 3
"""A call like an earlier one takes another way."""


class Model(nn.Module):
    """A convolution, attention over its pixels, and layers."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Conv2d(16, DIM, 3, padding=1)
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(DIM),
            nn.Linear(DIM, 3 * DIM),
            nn.Linear(DIM, DIM),
        )
        self.mlp = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x: Any) -> Any:
        rows = self.norm(self.image(x).flatten(2).transpose(1, 2))
        q, k, v = self.qkv(rows).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        rows = rows + self.out(mixed.transpose(1, 2).flatten(-2))
        return rows + self.mlp(rows)


def far(found: Any, exact: Any) -> float:
    found, exact = found.detach().double().cpu(), exact.detach().double().cpu()
    return float((found - exact).norm() / exact.norm())


def step(run: Any, model: nn.Module, x: Any) -> list[Any]:
    out = run(x)
    loss = out.float().square().mean()
    return [out.detach(), *torch.autograd.grad(loss, [*model.parameters()])]


def right(found: list[Any], exact: list[Any]) -> bool:
    return all(far(one, other) < 4e-2 for one, other in zip(found, exact, strict=True))


@pytest.fixture(scope="module")
def whole() -> tuple[Model, Any, list[Any]]:
    """A model and its input in bf16 on the CPU, and its results there in fp32."""
    torch.manual_seed(0)
    model, x = Model().bfloat16(), torch.randn(2, 16, 8, 8).bfloat16()
    exact = copy.deepcopy(model).float()
    return model, x, step(exact, exact, x.float())


@pytest.fixture
def waiting(monkeypatch):
    """Calls wait for their kernels, so that what is compared is ours."""
    monkeypatch.setattr(tw.default_dispatcher(), "waits", True)
    torch._dynamo.reset()
    yield
    tt.uninstall()


FUNCTIONS: dict[str, tuple[Any, Any, tuple[tuple[int, ...], ...]]] = {
    "linear": (tt.linear, F.linear, ((4, 64, 128), (128, 128), (128,))),
    "bmm": (tt.bmm, torch.bmm, ((3, 64, 128), (3, 128, 96))),
    "attention": (
        tt.scaled_dot_product_attention,
        F.scaled_dot_product_attention,
        ((2, 8, 128, 64),) * 3,
    ),
    "conv2d": (tt.conv2d, F.conv2d, ((2, 32, 16, 16), (64, 32, 3, 3), (64,))),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_computes_where_its_tensors_are(name, waiting):
    """Forward and backward, by turns, while the first GPU is the current one."""
    ours, theirs, shapes = FUNCTIONS[name]
    given = [torch.randn(shape).bfloat16() / shape[-1] ** 0.25 for shape in shapes]
    floats = [x.float().requires_grad_() for x in given]
    exact = theirs(*floats)
    incoming = torch.randn_like(exact)
    wanted = [exact, *torch.autograd.grad(exact, floats, incoming)]
    leaves = {gpu: [x.to(gpu).requires_grad_() for x in given] for gpu in GPUS}
    for gpu in GPUS * CALLS:
        made = ours(*leaves[gpu])
        found = [made, *torch.autograd.grad(made, leaves[gpu], incoming.bfloat16().to(gpu))]
        assert all(str(x.device) == gpu for x in found)
        assert right(found, wanted)


def test_operands_of_two_gpus_are_refused():
    a, b = (torch.randn(64, 64, device=gpu, dtype=torch.bfloat16) for gpu in GPUS)
    for _ in range(2):
        with pytest.raises((tw.errors.TilewrightError, RuntimeError)):
            tt.mm(a, b)
        assert tt.mm(a, a).device == a.device  # what is refused spoils no later call


@pytest.mark.parametrize("compiled", [False, True])
def test_a_ported_model_is_right_on_each_gpu_and_after_it_moved(whole, waiting, compiled):
    model, x, exact = whole
    models = {gpu: copy.deepcopy(model).to(gpu) for gpu in GPUS}
    for one in models.values():
        assert len(tt.port(one).swapped) >= 6
    runs = {gpu: torch.compile(one) if compiled else one for gpu, one in models.items()}
    for gpu in GPUS * CALLS:
        assert right(step(runs[gpu], models[gpu], x.to(gpu)), exact)
    moved = models[GPUS[0]].to(GPUS[1])
    assert right(step(moved, moved, x.to(GPUS[1])), exact)
    again = copy.deepcopy(moved).to(GPUS[0])
    assert right(step(again, again, x.to(GPUS[0])), exact)


def test_install_serves_both_gpus(whole, waiting):
    model, x, exact = whole
    models = {gpu: copy.deepcopy(model).to(gpu) for gpu in GPUS}
    with tt.install("all") as ours:
        for number, gpu in enumerate(GPUS * CALLS, 1):
            assert right(step(models[gpu], models[gpu], x.to(gpu)), exact)
            counts: Counter[str] = Counter()
            for one in ours.report()["served"]:
                counts[one["operator"]] += one["calls"]
            assert counts["addmm"] >= 4 * number and counts["convolution"] >= number


def test_listening_hears_both_gpus(whole, tmp_path):
    model, x, _ = whole
    with tt.listen(tmp_path / "one.jsonl"):
        one = copy.deepcopy(model).to(GPUS[0])
        step(one, one, x.to(GPUS[0]))
    with tt.listen(tmp_path / "both.jsonl"):
        for gpu in GPUS:
            other = copy.deepcopy(model).to(gpu)
            step(other, other, x.to(gpu))
    one, both = (capture_file.load(tmp_path / f"{name}.jsonl") for name in ("one", "both"))
    assert both == {problem: 2 * count for problem, count in one.items()}


def test_prepare_builds_for_the_gpu_of_the_model(whole):
    model, x, exact = whole
    model, x = copy.deepcopy(model).to(GPUS[1]), x.to(GPUS[1])
    tt.port(model)
    tt.prepare(model, x)
    for _ in range(CALLS):
        assert right(step(model, model, x), exact)
    assert not tw.default_dispatcher().standing()


def test_graphs_on_two_gpus(whole, waiting):
    """Captured one after the other, and replayed at once."""
    model, x, exact = whole
    graphs, made, inputs = [], [], []
    for gpu in GPUS:
        here, given = copy.deepcopy(model).to(gpu), x.to(gpu)
        tt.port(here)
        with torch.cuda.device(gpu), torch.no_grad():
            here(given)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                made.append(here(given))
        graphs.append(graph)
        inputs.append(given)
    for given in inputs:
        given.zero_()
    for given in inputs:
        given.copy_(x)
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    for _ in range(20):
        for graph in graphs:
            graph.replay()
    assert all(far(one, exact[0]) < 4e-2 for one in made)


def test_threads_train_a_model_each(whole, waiting):
    """Eight threads, four on each GPU, with streams of their own."""
    model, x, exact = whole
    wrong: list[str] = []

    def train(number: int) -> None:
        gpu = GPUS[number % 2]
        try:
            with torch.cuda.device(gpu), torch.cuda.stream(torch.cuda.Stream()):
                mine = copy.deepcopy(model).to(gpu)
                tt.port(mine)
                for _ in range(CALLS):
                    assert right(step(mine, mine, x.to(gpu)), exact)
        except Exception as error:
            wrong.append(f"{gpu}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=train, args=(number,)) for number in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong


def test_a_model_over_both_gpus(whole, waiting, tmp_path):
    """The first layers on one GPU, the others on the other, which autograd crosses."""
    model, x, exact = whole
    model = copy.deepcopy(model).to(GPUS[0])
    model.mlp.to(GPUS[1])
    model.mlp.register_forward_pre_hook(lambda module, given: (given[0].to(GPUS[1]),))
    model.mlp.register_forward_hook(lambda module, given, made: made.to(GPUS[0]))
    tt.port(model)
    with tw.capture(tmp_path / "calls.jsonl"):
        for _ in range(CALLS):
            assert right(step(model, model, x.to(GPUS[0])), exact)
    counts = capturing.load(tmp_path / "calls.jsonl")
    assert {problem.family for problem in counts} >= {"gemm", "attention", "conv"}


def test_transformers_by_name_on_the_second_gpu():
    pytest.importorskip("transformers")
    import tiny

    import tilewright.transformers

    tilewright.transformers.register()
    mask = tiny.LEFT
    model = tiny.model("llama", attn_implementation="tilewright").bfloat16()
    with torch.no_grad():
        model.set_attn_implementation("eager")
        exact = copy.deepcopy(model).float()(tiny.IDS, attention_mask=mask)[0][mask.bool()]
        model.set_attn_implementation("tilewright")
        for gpu in GPUS * CALLS:
            model.to(gpu)
            found = model(tiny.IDS.to(gpu), attention_mask=mask.to(gpu))[0]
            assert far(found.cpu()[mask.bool()], exact) < 6e-2
