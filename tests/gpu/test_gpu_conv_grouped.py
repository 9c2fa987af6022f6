"""Groups of few channels on a real GPU: problems with every kind of edge, rings that come round
many times, real sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
from gpu_arch import ARCH  # noqa: E402
from grouped_gluon_cases import CASES as SMALL  # noqa: E402
from grouped_gluon_cases import RESNEXT, configs  # noqa: E402

from tilewright import verify  # noqa: E402
from tilewright.arch import arch  # noqa: E402
from tilewright.ops.conv.pipelines import PIPELINES  # noqa: E402

RECORD = PIPELINES["gluon_grouped"]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not RECORD.runs_on(arch(ARCH)), reason=f"{ARCH} lacks {RECORD.needs}"),
]

TALL = replace(RESNEXT, n=9, c=64, k=64, groups=8, spatial=(300, 11))
LARGE = [
    replace(p, direction=direction)
    for direction in ("forward", "data", "weights")
    for p in (
        TALL, RESNEXT, replace(RESNEXT, groups=64), replace(RESNEXT, groups=8, spatial=(28, 28)),
        replace(RESNEXT, groups=16, stride=(2, 2)),
    )
]  # fmt: skip
PROBLEMS = [*SMALL.values(), *LARGE]


@pytest.mark.parametrize("place", range(len(PROBLEMS)))
def test_it_is_right(dispatcher, place):
    problem = PROBLEMS[place]
    kernels = configs(problem, (1, 2, 3))
    assert kernels
    for kernel in kernels:
        result = verify.verify(dispatcher, problem, kernel.name, seed=place, device="cuda:0")
        assert result.ok, f"{kernel.name} on {problem}: {result}"


@pytest.mark.parametrize("direction", ["forward", "data", "weights"])
def test_what_is_infinite_stays_in_its_group(dispatcher, direction):
    """A workgroup with infinite sums makes its rows again, which takes the place of the first."""
    sizes = {"n": 9, "c": 80, "k": 80, "groups": 10, "spatial": (20, 13)}
    problem = replace(RESNEXT, **sizes, direction=direction)
    read, out = {"forward": ("x", "y"), "data": ("y", "x"), "weights": ("x", "w")}[direction]
    channels = (slice(None), slice(8, 16)) if out != "w" else (slice(8, 16),)
    for kernel in configs(problem, (1, 2, 3)):
        made = verify.operands_of(problem, 5, device="cuda:0")
        verify.run(dispatcher, problem, made, kernel.name)
        plain = made.outputs[out].float()
        made.inputs[read][:, 8:16] = float("inf")
        verify.run(dispatcher, problem, made, kernel.name)
        got = made.outputs[out].float()
        assert not got[channels].isfinite().any(), kernel.name
        got[channels] = plain[channels] = 0
        assert torch.allclose(got, plain, atol=0.1, rtol=0.02), kernel.name
