"""Models that take our kernels, by each way there is: from 8 threads with a stream each, on two
GPUs at once, and in a graph."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import tilewright as tw  # noqa: E402
import tilewright.torch as tt  # noqa: E402
from tilewright.dispatch import Dispatcher  # noqa: E402
from tilewright.torch.installing import decisions  # noqa: E402

pytestmark = pytest.mark.gpu

THREADS, CALLS = 8, 6
PATIENCE_SECONDS = 120
CHANNELS, HEADS = 64, 4


class Model(nn.Module):
    """A convolution, attention over its pixels, and products.

    by_functions: whether they are of `tilewright.torch`, and not torch's.
    """

    def __init__(self) -> None:
        super().__init__()
        self.by_functions = False
        self.image = nn.Conv2d(8, CHANNELS, 3, padding=1)
        self.qkv, self.out = nn.Linear(CHANNELS, 3 * CHANNELS), nn.Linear(CHANNELS, CHANNELS)

    def forward(self, x: Any) -> Any:
        rows = self.convolved(x).flatten(2).transpose(1, 2)
        q, k, v = self.through(self.qkv, rows).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        functions = tt if self.by_functions else nn.functional
        mixed = functions.scaled_dot_product_attention(q, k, v)
        return rows + self.through(self.out, mixed.transpose(1, 2).flatten(-2))

    def convolved(self, x: Any) -> Any:
        if not self.by_functions:
            return self.image(x)
        return tt.conv2d(x, self.image.weight, self.image.bias, padding=1)

    def through(self, layer: nn.Linear, rows: Any) -> Any:
        return tt.linear(rows, layer.weight, layer.bias) if self.by_functions else layer(rows)


def ported(model: Model) -> Model:
    assert len(tt.port(model).swapped) == 4
    return model


def by_functions(model: Model) -> Model:
    model.by_functions = True
    return model


Way = tuple[Callable[[Model], Model], Callable[[Any], AbstractContextManager[Any]]]
WAYS: dict[str, Way] = {
    "functions": (by_functions, lambda folder: nullcontext()),
    "port": (ported, lambda folder: nullcontext()),
    "install": (lambda model: model, lambda folder: tt.install("all")),
    "listen": (lambda model: model, lambda folder: tt.listen(folder / "heard.jsonl")),
    "port, listen": (ported, lambda folder: tt.listen(folder / "heard.jsonl")),
}
"""What becomes of a model, and what is around its calls."""


@pytest.fixture(params=WAYS)
def way(request: Any) -> Iterator[Way]:
    yield WAYS[request.param]
    tt.uninstall()


def made(device: str) -> Any:
    torch.manual_seed(0)
    return Model().to(device, torch.bfloat16).eval()


def image(seed: int, device: str) -> Any:
    generator = torch.Generator(device).manual_seed(seed)
    size = 8 + 4 * (seed % 2)
    drawn = torch.randn(2, 8, size, size, device=device, generator=generator)
    return drawn.bfloat16()


def far(found: Any, exact: Any) -> float:
    return float((found.double() - exact.double()).norm() / exact.double().norm())


def expected(model: Any, device: str) -> list[Any]:
    """What torch makes of each image, in fp32 and outside of what takes our kernels."""
    exact = copy.deepcopy(model).float()
    with torch.no_grad():
        return [exact(image(seed, device).float()) for seed in range(THREADS + CALLS)]


def in_threads(models: list[Any], wanted: list[list[Any]]) -> None:
    """Each thread calls one of the models with images of its own, in a stream of its own."""

    def work(first: int) -> list[float]:
        place = first % len(models)
        device = f"cuda:{place}"
        with torch.no_grad(), torch.cuda.device(device), torch.cuda.stream(torch.cuda.Stream()):
            return [
                far(models[place](image(seed, device)), wanted[place][seed])
                for seed in range(first, first + CALLS)
            ]

    torch.cuda.synchronize()
    with ThreadPoolExecutor(THREADS) as pool:
        errors = [*pool.map(work, range(THREADS))]
    assert max(max(one) for one in errors) < 2e-2


def sides(way: Way, gpus: int) -> tuple[list[Any], list[list[Any]]]:
    """A model on each GPU, and what its results are."""
    devices = [f"cuda:{index}" for index in range(gpus)]
    plain = [made(device) for device in devices]
    wanted = [expected(model, device) for model, device in zip(plain, devices, strict=True)]
    return [way[0](model) for model in plain], wanted


@pytest.mark.parametrize("gpus", [1, 2])
def test_threads_with_streams(way, gpus, tmp_path):
    if torch.cuda.device_count() < gpus:
        pytest.skip("there is one GPU")
    models, wanted = sides(way, gpus)
    with way[1](tmp_path):
        in_threads(models, wanted)


def test_a_graph(way, kernels, monkeypatch, tmp_path):
    waiting = Dispatcher(store=kernels.store, waits=True)
    monkeypatch.setattr(decisions, "default_dispatcher", lambda: waiting)
    (model,), (wanted,) = sides(way, 1)
    x = image(0, "cuda")
    with torch.no_grad(), way[1](tmp_path):
        ends = time.monotonic() + PATIENCE_SECONDS
        for _ in range(3):
            model(x)
        while tw.default_dispatcher().standing() and time.monotonic() < ends:
            time.sleep(0.1)
        assert not tw.default_dispatcher().standing()
        model(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
        for seed in (2, 4):
            x.copy_(image(seed, "cuda"))
            graph.replay()
            assert far(y, wanted[seed]) < 2e-2
