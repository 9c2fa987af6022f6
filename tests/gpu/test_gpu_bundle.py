"""Bundles on a real GPU: what is in one is served and right, what is not is said."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from gpu_arch import ARCH  # noqa: E402

from tilewright import loader, ready, verify  # noqa: E402
from tilewright.bundle import Bundle, Content, write  # noqa: E402
from tilewright.compile import Store, build  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.errors import NotInBundle  # noqa: E402
from tilewright.ops.gemm import GemmProblem  # noqa: E402
from tilewright.runtime import bound, python_launcher  # noqa: E402
from tilewright.select.constraints import Constraints  # noqa: E402

pytestmark = pytest.mark.gpu

PROBLEMS = [
    GemmProblem(512, 512, 512),
    GemmProblem(64, 1024, 2048, dtype_a="fp16"),
    GemmProblem(1, 4096, 4096),
]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Bundle:
    """Of the kernels that are chosen here for `PROBLEMS`: bundles have none of the vendor's
    library."""
    folder = tmp_path_factory.mktemp("bundle")
    store = Store(folder / "store")
    ours, choosing = Constraints(only_ours=True), Dispatcher(bundle="none")
    chosen = {choosing.select(problem, constraints=ours).config for problem in PROBLEMS}
    report = build([(config, ARCH) for config in chosen], store=store)
    report.raise_if_failed()
    content = Content()
    content.add_built(report.kernels, store)
    path: Path = write(content, folder / "some.bundle").path
    return Bundle(path)


@pytest.mark.parametrize("launcher", ["compiled", "python"])
def test_what_is_in_it_is_served_and_right(bundle, monkeypatch, launcher):
    if launcher == "python":
        monkeypatch.setattr(bound, "launcher", lambda: python_launcher)
        monkeypatch.setattr(ready, "launcher", lambda: python_launcher)
    monkeypatch.setattr(loader, "build", lambda *a, **k: pytest.fail("something was built"))
    dispatcher = Dispatcher(bundle=bundle)
    for problem in PROBLEMS:
        for _ in range(3):  # the last two from a ready launch
            result = verify.verify(dispatcher, problem, device="cuda:0")
            assert result.ok, f"{problem}: {result}"


def test_the_launcher_in_python_runs_in_graphs_and_on_streams(bundle, monkeypatch):
    monkeypatch.setattr(bound, "launcher", lambda: python_launcher)
    monkeypatch.setattr(ready, "launcher", lambda: python_launcher)
    dispatcher = Dispatcher(bundle=bundle)
    a = torch.randn(512, 512, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(512, 512, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)
    dispatcher.run("gemm", a, b.T, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dispatcher.run("gemm", a, b.T, out=out)
    a.copy_(torch.randn_like(a))
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(out, a @ b.T, rtol=2e-2, atol=0.5)
    stream = torch.cuda.Stream()
    out.zero_()
    torch.cuda.synchronize()
    dispatcher.run("gemm", a, b.T, out=out, stream=stream)
    stream.synchronize()
    torch.testing.assert_close(out, a @ b.T, rtol=2e-2, atol=0.5)


def test_what_is_not_in_it_is_said(bundle):
    dispatcher = Dispatcher(bundle=bundle)
    a = torch.zeros(64, 64, device="cuda", dtype=torch.int8)
    with pytest.raises(NotInBundle, match="tilewright bundle"):
        dispatcher.run("gemm", a, a.T)
