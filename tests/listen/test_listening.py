"""Listening to a model that is not ported: every product counts, as by hand."""

from __future__ import annotations

import multiprocessing
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402

import tilewright.torch  # noqa: E402
from tilewright import capture_file, capturing, listen_hook, ops  # noqa: E402
from tilewright.arch import arch  # noqa: E402
from tilewright.errors import BadArgument  # noqa: E402
from tilewright.measure.problems import load_problems  # noqa: E402
from tilewright.torch.listening import epilogues, hooks  # noqa: E402
from tilewright.torch.listening.heard import Kind  # noqa: E402
from tilewright.torch.listening.listener import Listener  # noqa: E402

F = torch.nn.functional


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    """Threads spin, and the products are small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "shapes.jsonl"


def heard(file: Path) -> Counter[tuple[str, str]]:
    """(operation here, operation of aten) with counts."""
    found: Counter[tuple[str, str]] = Counter()
    recorded = capture_file.read(file)
    for problem, count in recorded.counts.items():
        found[problem.family, recorded.heard[problem].by] += count
    return found


def gemm(m: int, n: int, k: int, layout: str, **fields: Any) -> Any:
    kind = ops.family("gemm").problem_type
    return kind(m, n, k, layout=layout, **{"dtype_a": "fp32", **fields})


class Small(torch.nn.Module):
    """Two layers with a relu between them, an attention of four heads, and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.Linear(16, 32)
        self.two = torch.nn.Linear(32, 16, bias=False)
        self.conv = torch.nn.Conv2d(4, 8, 3)

    def forward(self, x: Any, images: Any) -> Any:
        x = self.two(torch.relu(self.one(x)))
        heads = x.view(2, 4, 4, 4).transpose(1, 2)
        o = F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        return o.square().sum() + self.conv(images).square().sum()


def train(model: Any, steps: int) -> None:
    """The images want a gradient too, and the rows do not."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images = torch.randn(2, 4, 6, 6, requires_grad=True)
    for _ in range(steps):
        model(torch.randn(8, 16), images).backward()
        optimizer.step()
        optimizer.zero_grad()


PRODUCTS = {
    gemm(8, 32, 16, "rcr", epilogue="bias"),  # one, forward
    gemm(8, 16, 32, "rcr"),  # two, forward
    gemm(16, 32, 8, "crr"),  # two's weights
    gemm(8, 32, 16, "rrr"),  # two's input
    gemm(32, 16, 8, "crr"),  # one's weights; its input wants no gradient
}
"""The products of a step, by hand."""

ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu"


def check_a_training(file: Path, steps: int) -> None:
    recorded = capture_file.read(file)
    products = {p: n for p, n in recorded.counts.items() if p.family == "gemm"}
    assert products == dict.fromkeys(PRODUCTS, steps)
    others = {what: n for what, n in heard(file).items() if what[0] != "gemm"}
    assert others == {
        ("attention", ATTENTION): steps,
        ("attention_backward", f"{ATTENTION}_backward"): steps,
        ("conv", "aten.convolution"): steps,
        ("conv", "aten.convolution_backward"): 2 * steps,
    }
    assert [p.others for p in recorded.counts if p.family == "attention"] == ["lse"]
    assert {p.direction for p in recorded.counts if p.family == "conv"} == {
        "forward", "data", "weights",
    }  # fmt: skip
    (run,) = recorded.processes
    assert (run.steps, run.unstated, run.device) == (steps, (), "cpu")
    assert run.torch == torch.__version__


def test_a_training_counts_as_by_hand(file: Path) -> None:
    with tilewright.torch.listen(file):
        train(Small(), 3)
    check_a_training(file, 3)


@pytest.mark.turns(16)
def test_a_compiled_training_counts_as_by_hand(file: Path) -> None:
    """What dynamo and AOTAutograd make, without Inductor."""
    model = torch.compile(Small(), backend="aot_eager", fullgraph=True)
    with tilewright.torch.listen(file):
        train(model, 3)
    check_a_training(file, 3)


@pytest.mark.turns(32)
def test_what_inductor_makes_counts_as_by_hand(file: Path) -> None:
    model = torch.compile(Small(), fullgraph=True)
    with tilewright.torch.listen(file):
        train(model, 3)
    check_a_training(file, 3)


def test_inference_needs_no_logarithms(file: Path) -> None:
    model, x, images = Small(), torch.randn(8, 16), torch.randn(2, 4, 6, 6)
    with tilewright.torch.listen(file):
        with torch.no_grad():
            model(x, images)
        model(x, images)
    counts = capture_file.load(file)
    assert {p.others: n for p, n in counts.items() if p.family == "attention"} == {"": 1, "lse": 1}


def test_times_add_up(file: Path) -> None:
    x = torch.randn(256, 256)
    with tilewright.torch.listen(file):
        for _ in range(40):
            x @ x
    recorded = capture_file.read(file)
    (one,) = recorded.heard.values()
    assert (one.timed, one.early) == (10, 1), "the first call may wait for a library"
    assert 0 < one.seconds <= recorded.processes[0].seconds
    assert one.each == one.seconds / 10


def test_what_follows_a_product_is_seen_apart(file: Path) -> None:
    """The problem is that of the product: what follows is only seen."""
    x, w, bias, gate = torch.randn(8, 16), torch.randn(16, 32), torch.randn(32), torch.randn(8, 32)
    with tilewright.torch.listen(file):
        F.gelu(x @ w + bias, approximate="tanh")
        F.silu(x @ w).add(gate)
        y = x @ w
        gate + gate
        torch.relu(y)  # not right behind it
        torch.relu((x @ w).cos())  # of something else
    ((problem, facts),) = capture_file.read(file).heard.items()
    assert problem == gemm(8, 32, 16, "rrr")
    assert facts.seen == {"bias": 1, "bias+gelu_tanh": 1, "silu": 1, "silu+add": 1}


NUMBERS = [
    (dtype, number)
    for dtype in (torch.float32, torch.bfloat16, torch.int32, torch.bool, torch.complex64)
    for number in (2, 0.1, True, 1j)
]


@pytest.mark.parametrize(("dtype", "number"), NUMBERS)
def test_a_sum_with_a_number_is_torch_s_own(file: Path, dtype: Any, number: Any) -> None:
    """Of which the listener wraps the kernel, and torch passes it the number."""

    def sums() -> list[Any]:
        calls = (lambda x: x + number, lambda x: x.clone().add_(number, alpha=2))
        tensors = (torch.ones(4, 3).T.to(dtype), torch.tensor(1).to(dtype))
        return [said(call, x) for call in calls for x in tensors]

    def said(call: Any, x: Any) -> Any:
        try:
            made = call(x)
        except RuntimeError as error:
            return str(error)
        return made.dtype, made.stride(), made.tolist()

    wanted = sums()
    with tilewright.torch.listen(file):
        assert sums() == wanted


def test_every_thread_is_heard(file: Path) -> None:
    def work() -> None:
        x = torch.randn(8, 16)
        for _ in range(50):
            x @ x.T

    threads = [threading.Thread(target=work) for _ in range(3)]
    with tilewright.torch.listen(file):
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert heard(file) == {("gemm", "aten.mm"): 150}


def test_nothing_is_heard_afterwards_or_twice(file: Path, tmp_path: Path) -> None:
    x, inner = torch.randn(8, 8), tmp_path / "inner.jsonl"
    with tilewright.torch.listen(file):
        x @ x
        with tilewright.torch.listen(inner):
            x @ x
        x @ x
    x @ x
    assert [*capture_file.load(file).values()] == [3]
    assert [*capture_file.load(inner).values()] == [1]


def test_forms_of_one_product_are_one_problem(file: Path) -> None:
    x, w, out = torch.randn(8, 16), torch.randn(16, 32), torch.empty(8, 32)
    with tilewright.torch.listen(file):
        torch.mm(x, w)
        torch.mm(x, w, out=out)
        with torch.inference_mode():
            torch.matmul(x, w)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            F.linear(x, w.T)
    counts = capture_file.load(file)
    assert counts.pop(gemm(8, 32, 16, "rrr", dtype_a="bf16")) == 1
    assert sum(n for p, n in counts.items() if p.batching == "none" and p.n == 32) == 3, counts


def test_what_nothing_here_computes_is_said(file: Path) -> None:
    x = torch.randn(8, 8, dtype=torch.float64)
    with tilewright.torch.listen(file):
        x @ x
        x @ x
    assert capture_file.load(file) == {}
    (run,) = capture_file.read(file).processes
    (one,) = run.unstated
    assert (one.by, one.count) == ("aten.mm", 2) and "float64" in one.why
    with tilewright.torch.listen(file):  # a file without a problem is a capture too
        pass


def test_products_of_the_cpu_beside_a_gpu_are_said_apart(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a call on a GPU, which is made up here, was heard in between."""
    listener, x = Listener(file), torch.randn(8, 16)
    listener.start()
    x @ x.T
    listener._gpu = True
    x @ x.T
    x.T @ x
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "made up")
    listener.stop()
    recorded = capture_file.read(file)
    assert recorded.counts == {gemm(8, 8, 16, "rcr"): 1}, "what was written before"
    (process,) = recorded.processes
    ((by, count),) = [(one.by, one.count) for one in process.unstated]
    assert (process.device, by, count) == ("made up", "aten.mm", 3)


def test_a_call_within_a_call_is_part_of_it(file: Path) -> None:
    x, w, made = torch.randn(1, 2, 5, 5), torch.randn(3, 2, 3, 3), torch.empty(1, 3, 3, 3)
    said = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    with tilewright.torch.listen(file):  # the form with an output calls the other one
        torch.ops.aten.convolution.out(x, w, None, *said, out=made)
    assert [*capture_file.load(file).values()] == [1]


def test_addresses_decide_the_alignment(file: Path) -> None:
    memory, w = torch.randn(8 * 16 + 1), torch.randn(16, 32)
    with tilewright.torch.listen(file):
        memory[1:].view(8, 16) @ w
    assert capture_file.load(file) == {gemm(8, 32, 16, "rrr", alignment=4): 1}


def test_two_gradients_share_the_time_of_their_call() -> None:
    kind = Kind("convolution_backward", ("data", "weights"), "", gpu=False)
    kind.add(3.0, early=True)
    kind.add(2.0, early=False)
    facts = kind.facts()
    assert (facts.timed, facts.seconds, facts.early, facts.early_seconds) == (1, 1.0, 1, 1.5)


def test_memory_that_was_freed_is_no_result() -> None:
    kind, x, y = Kind("mm", (), "", gpu=False), torch.randn(8), torch.randn(8)
    kept, freed = (StorageWeakRef(one.untyped_storage()) for one in (x, y))
    del y
    place = (x.data_ptr(), x.numel())
    assert epilogues._Result(kind, "", kept, *place).is_(x)
    assert not epilogues._Result(kind, "", freed, *place).is_(x)


def test_what_a_compiler_tries_does_not_count(file: Path) -> None:
    x = torch.randn(8, 16)
    with tilewright.torch.listen(file):
        with torch._guards.tracing(torch._guards.TracingContext(None)):
            x @ x.T
        x @ x.T
    assert heard(file) == {("gemm", "aten.mm"): 1}


def test_operations_add_up_as_torch_counts_them(file: Path) -> None:
    """Torch's own counter knows nothing of padding, nor of attention on a CPU."""
    from torch.utils.flop_counter import FlopCounterMode

    layer, conv = torch.nn.Linear(16, 24), torch.nn.Conv2d(3, 8, 3, stride=2, dilation=2)
    x, images = torch.randn(4, 6, 16, requires_grad=True), torch.randn(2, 3, 9, 9)

    def step() -> None:
        y = layer(x)
        weights = (y @ y.transpose(1, 2)).softmax(-1)
        ((weights @ y).square().sum() + conv(images).square().sum()).backward()

    with tilewright.torch.listen(file):
        step()
    with FlopCounterMode(display=False) as counter:
        step()
    counts = capture_file.load(file)
    assert sum(count * problem.flops for problem, count in counts.items()) == (
        counter.get_total_flops()
    )


def test_tuning_and_captures_read_the_file(file: Path) -> None:
    x = torch.randn(8, 16)
    with tilewright.torch.listen(file):
        x @ x.T
        x @ x.T
    problem = gemm(8, 8, 16, "rcr")
    assert capturing.load(file) == {problem: 2}
    assert load_problems([file], arch("sm_90")).problems == (problem,)


def test_an_error_of_the_listener_is_not_the_model_s(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    x = torch.randn(8, 16)
    monkeypatch.setattr("tilewright.torch.listening.heard.key", lambda *_: 1 / 0)
    with tilewright.torch.listen(file):
        assert (x @ x.T).shape == (8, 8)
        x @ x.T
    assert [record.message for record in caplog.records] == [
        f"listening into {file} stops: ZeroDivisionError: division by zero"
    ]


def test_an_error_of_the_model_is_torch_s_own(file: Path) -> None:
    with tilewright.torch.listen(file), pytest.raises(RuntimeError, match="shapes cannot"):
        torch.mm(torch.randn(8, 16), torch.randn(8, 16))
    assert file.read_text() == ""


def test_a_file_that_is_no_capture_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "notes.jsonl"
    other.write_text('{"name": 1}\n')
    with pytest.raises(BadArgument, match="is no capture"), tilewright.torch.listen(other):
        pass


def test_the_wrapped_kernels_are_those_of_operations_that_torch_does_not_decompose() -> None:
    assert hooks._overloads("no_such_operation") == []
    assert "aten::linear" not in [one.name() for one in hooks._overloads("linear")]
    names = [one.name() for one in hooks._overloads("mm")]
    assert {"aten::mm", "aten::mm.out"} <= {*names}


def _in_a_child() -> None:
    x = torch.randn(8, 16)
    x @ x.T


def test_a_forked_process_writes_its_own_counts(file: Path) -> None:
    x = torch.randn(8, 16)
    with tilewright.torch.listen(file):
        x @ x.T
        child = multiprocessing.get_context("fork").Process(target=_in_a_child)
        child.start()
        child.join()
    assert child.exitcode == 0
    assert [*capture_file.load(file).values()] == [2]


SCRIPT = """
import torch
x = torch.ones(8, 16)
x @ x.T
x @ x.T
"""


def test_tilewright_does_not_listen_to_itself(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(listen_hook.VARIABLE, str(file))
    monkeypatch.setenv("TILEWRIGHT_PARENT", "1")
    listen_hook.start()
    monkeypatch.delenv("TILEWRIGHT_PARENT")
    monkeypatch.setitem(sys.modules, "tilewright.cli", object())
    listen_hook.start()
    torch.randn(8, 16) @ torch.randn(16, 8)
    assert not file.exists()


@pytest.mark.turns(16)
def test_a_program_is_heard_without_a_change(file: Path, tmp_path: Path) -> None:
    """As torch calls the entry points of installed packages when it is imported. It is heard once,
    whether or not another installation states the entry point too."""
    settings = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    said = re.search(r'entry-points."torch.backends"\][^\n]*\n(\w+) = "([^"]+)"\n', settings)
    assert said is not None
    entry = tmp_path / "heard-1.0.dist-info"
    entry.mkdir()
    (entry / "METADATA").write_text("Metadata-Version: 2.1\nName: heard\nVersion: 1.0\n")
    lines = "".join(f"{name} = {said[2]}\n" for name in (said[1], "another"))
    (entry / "entry_points.txt").write_text(f"[torch.backends]\n{lines}")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, listen_hook.VARIABLE: str(file), "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert capture_file.load(file) == {gemm(8, 8, 16, "rcr"): 2}
