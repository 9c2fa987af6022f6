"""A family unlike GEMM, and a user's own kernels, on a real GPU: right, captured in graphs,
counted, swept and tuned."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import tilewright  # noqa: E402
import tilewright.measure.results  # noqa: E402
from tilewright import capturing, ops, verify  # noqa: E402
from tilewright.compile import Store  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.errors import BadArgument  # noqa: E402

pytestmark = pytest.mark.gpu

TESTS = Path(__file__).parents[1]
FOLDERS = [str(TESTS / name) for name in ("moments", "custom")]
sys.path[:0] = FOLDERS
MODULES = "moments_plugin:moments_kernels:custom_kernels"


@pytest.fixture(autouse=True)
def _planted(monkeypatch):
    monkeypatch.setattr(ops, "_registered", dict(ops._registered))
    monkeypatch.setenv(ops.MODULES_VARIABLE, MODULES)
    path = os.pathsep.join(filter(None, [*FOLDERS, os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    for module in MODULES.split(":"):
        sys.modules.pop(module, None)
    ops._import_named.cache_clear()
    ops.families()
    yield
    ops._import_named.cache_clear()


@pytest.fixture
def dispatcher(store: Store) -> Dispatcher:
    return Dispatcher(store=store)


def moments(*sizes: int, dtype: str = "bf16", bias: bool = False):
    return ops.family("moments").problem_type(*sizes, dtype, bias)


SIZES = ((2, 5, 11, 40), (3, 8, 16, 64), (16, 33, 57, 256), (1, 1, 1, 8), (64, 56, 56, 128))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_both_outputs_are_right(dispatcher, sizes, bias, dtype):
    result = verify.verify(dispatcher, moments(*sizes, dtype=dtype, bias=bias), device="cuda:0")
    assert result.ok, result


@pytest.mark.parametrize("output", ["y", "z"])
def test_a_fault_in_either_output_is_found(dispatcher, output):
    problem = moments(*SIZES[1])
    config = replace(dispatcher.select(problem).config, fault=output)
    result = verify.verify(dispatcher, problem, config.name, device="cuda:0")
    assert not result.ok and result.output == output


def test_calls_again_at_other_addresses_and_with_other_scalars(dispatcher):
    problem = moments(*SIZES[2])
    for scale in (1.0, 2.5, -1.0):
        x = torch.randn(16, 33, 57, 256, device="cuda").bfloat16()
        y, z = dispatcher.run("moments", x, scale=scale)
        wide = x.double()
        torch.testing.assert_close(y.double(), scale * wide.mean((1, 2)), rtol=2e-2, atol=1e-3)
        torch.testing.assert_close(z.double(), (wide * wide).mean((1, 2, 3)), rtol=1e-3, atol=0.0)
    out = (y, z)
    assert dispatcher.run("moments", x, scale=scale, out=out) is out
    with pytest.raises(BadArgument, match="needs scale="):
        dispatcher.run("moments", x, out=out)
    assert problem.family == "moments"


def test_a_captured_call_is_replayed(dispatcher):
    x = torch.randn(3, 8, 16, 64, device="cuda").bfloat16()
    out = dispatcher.run("moments", x, scale=2.0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dispatcher.run("moments", x, scale=2.0, out=out)
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        for one in out:
            one.fill_(float("nan"))
        graph.replay()
        wide = x.double()
        torch.testing.assert_close(out[0].double(), 2 * wide.mean((1, 2)), rtol=2e-2, atol=2e-3)
        torch.testing.assert_close(
            out[1].double(), (wide * wide).mean((1, 2, 3)), rtol=1e-3, atol=0.0
        )


def test_a_call_of_two_kernels_is_counted_once(dispatcher, tmp_path):
    x = torch.randn(3, 8, 16, 64, device="cuda").bfloat16()
    out = dispatcher.run("moments", x, scale=1.0)
    with tilewright.capture(tmp_path / "shapes.jsonl"):
        for _ in range(5):
            dispatcher.run("moments", x, scale=1.0, out=out)
    assert capturing.load(tmp_path / "shapes.jsonl") == {moments(3, 8, 16, 64): 5}


@pytest.mark.parametrize("rows", [1, 9, 4096])
@pytest.mark.parametrize("negate", [False, True])
def test_a_users_own_operation(dispatcher, rows, negate):
    problem = ops.family("custom_axpy").problem_type(
        rows=rows, dtype="bf16", has_bias=True, negate=negate
    )
    result = verify.verify(dispatcher, problem, device="cuda:0")
    assert result.ok, result


@pytest.mark.parametrize("length", [1, 700, 100_000])
def test_a_users_own_operation_of_two_kernels(dispatcher, length):
    problem = ops.family("custom_total").problem_type(length=length, dtype="fp32")
    result = verify.verify(dispatcher, problem, device="cuda:0")
    assert result.ok, result


@pytest.mark.alone
def test_it_is_swept_and_tuned(tmp_path, store):
    space = {"family": "moments", "dtype": ["bf16"], "tile_h": [1, 2], "tile_c": [32, 64],
             "fault": ["none", "z"]}  # fmt: skip
    (tmp_path / "space.json").write_text(json.dumps(space))
    problems = [{"family": "moments", "n": 64, "h": 56, "w": 56, "c": 128}]
    (tmp_path / "problems.json").write_text(json.dumps(problems))

    def cli(*words: str, code: int = 0):
        command = [sys.executable, "-m", "tilewright", *words, "--store", str(store.path)]
        done = subprocess.run(
            [*command, "--json"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stderr[-2000:]
        return json.loads(done.stdout)

    settings = ("--settings", "budget_seconds=0.2")
    # The kernels with a planted fault do not come out right, so the sweep exits with 1.
    cli("sweep", "space.json", "--problems", "problems.json", "--out", "swept", *settings, code=1)
    with tilewright.measure.results.Results(tmp_path / "swept") as results:
        found = {m.kernel: m for m in results.measurements()}
    assert len(found) == 8
    assert {m.status for k, m in found.items() if k.endswith("_z")} == {"mismatch"}
    assert {m.status for k, m in found.items() if k.endswith("_none")} == {"ok"}
    cli("tune", "--problems", "problems.json", "--table", "own.twt", *settings)
    problem = moments(64, 56, 56, 128)
    plan = Dispatcher(tables=tmp_path / "own.twt", store=store).select(problem)
    assert plan.selector == "tuned" and plan.config.fault == "none"
