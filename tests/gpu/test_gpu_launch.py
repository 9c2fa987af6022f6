"""Launches of several steps on a real GPU: temporaries, descriptors, scalars of a call, clusters,
cooperative and dependent launches, alone and in graphs. The kernels are built by hand, outside any
family."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")
from gpu_arch import ARCH  # noqa: E402

from tilewright.arch import arch  # noqa: E402
from tilewright.compile.compiler import Job, compile_kernel  # noqa: E402
from tilewright.ops.nouns import (  # noqa: E402
    Descriptor,
    Given,
    KernelSource,
    Launch,
    Pointer,
    Scalar,
    Step,
    Temporary,
)
from tilewright.runtime.bound import Bound, BoundLaunch, Loaded  # noqa: E402
from tilewright.runtime.drivers import driver  # noqa: E402
from tilewright.runtime.launcher import launcher  # noqa: E402
from tilewright.runtime.workspace import Workspaces  # noqa: E402

pytestmark = pytest.mark.gpu

F, I = "*fp32", "*i32"  # noqa: E741
TILE = (("x", "tensordesc<fp32[8, 16]>"), ("y", F), ("ROWS", 8), ("COLUMNS", 16))
FLAT = (("x", F), ("y", F), ("n", "i32"), ("BLOCK", 256))
SOURCES = {
    "sums": ("sums", (("x", F), ("sums", F), ("counter", I), ("n", "i32"), ("BLOCK", 256)), {}),
    "finish": ("finish", (("sums", F), ("counter", I), ("y", F), ("scale", "fp32")), {}),
    "fill": ("fill", (("t", F), ("n", "i32"), ("BLOCK", 256)), {}),
    "tile": ("copy_tile", TILE, {}),
    "tile_4d": (
        "copy_tile_4d",
        (
            ("x", "tensordesc<fp32[1, 4, 4, 16]>"),
            ("y", F),
            ("i", "i32"),
            ("j", "i32"),
            ("A", 4),
            ("B", 4),
            ("COLUMNS", 16),
        ),
        {},
    ),
    "meet": ("meet", (("arrived", I), ("y", I)), {"launch_cooperative_grid": True}),
    "cluster": ("double", FLAT, {"num_ctas": 2}),
    "double": ("double", FLAT, {}),
    "dependent": ("double_dependent", FLAT, {"launch_pdl": True}),
}
"""By name: the function, its arguments with a type or a constant's value, compiler options."""


def built(name: str):
    """A kernel of SOURCES, and its binary."""
    function, arguments, options = SOURCES[name]
    constants = tuple((n, kind) for n, kind in arguments if not isinstance(kind, str))
    signature = tuple((n, k if isinstance(k, str) else "constexpr") for n, k in arguments)
    options = tuple({"num_warps": 4, **options}.items())
    source = KernelSource("launch_kernels", function, signature, constants, options=options)
    a = arch(ARCH)
    job = Job(name, a.name, a.backend, a.target, a.warp_size, "0" * 64, source, "")
    before = os.environ.get("TRITON_CACHE_DIR")
    try:
        kernel, files = compile_kernel(job)
    finally:
        os.environ.pop("TRITON_CACHE_DIR", None)
        if before is not None:
            os.environ["TRITON_CACHE_DIR"] = before
    return kernel, files[kernel.binary]


@pytest.fixture(scope="module")
def parts():
    """Parts of a launch by the names of SOURCES, built and loaded once."""
    loaded: dict[str, Loaded] = {}
    gpu = driver(arch(ARCH).backend)

    def part(name: str) -> Loaded:
        if name not in loaded:
            kernel, binary = built(name)
            function = gpu.load(0, binary, kernel.entry, kernel.shared)
            loaded[name] = Loaded(kernel, function)
        return loaded[name]

    return part


class Running:
    """A launch over tensors, called as a dispatcher calls it."""

    def __init__(self, parts, launch: Launch, tensors, given=(), defaults=None) -> None:
        self.tensors = tensors
        self.workspaces = Workspaces()
        a = arch(ARCH)
        self.bound = BoundLaunch(
            driver(a.backend),
            0,
            {step.part: parts(step.part) for step in launch.steps},
            a.warp_size,
            launch,
            [
                Bound(name, "in" if name.startswith("x") else "out", t.numel() * t.element_size())
                for name, t in tensors.items()
            ],
            given,
            defaults,
        )

    def __call__(self, *scalars) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        addresses = tuple(t.data_ptr() for t in self.tensors.values())
        buffers = (0, 0)
        if any(self.bound.workspace):
            buffers = self.workspaces.addresses(self.bound.workspace, self.bound, stream, True)
        assert self.bound(stream, addresses, buffers, scalars)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda")


def empty(*shape: int, dtype=torch.float32) -> torch.Tensor:
    return torch.full(shape, -1, device="cuda", dtype=dtype)


def reduction(parts, x, y) -> Running:
    """Two steps: sums of blocks into a temporary that begins at zero, counted in one that every
    launch finds and leaves at zero; then the sum times a scale that the call gives."""
    n = x.numel()
    blocks = -(-n // 256)
    first = (Pointer("x"), Pointer("sums"), Pointer("counter"), Scalar("i32", n))
    second = (Pointer("sums"), Pointer("counter"), Pointer("y"), Given("fp32", "scale"))
    launch = Launch(
        (Step((blocks, 1, 1), first, "sums"), Step((1, 1, 1), second, "finish")),
        (Temporary("sums", (1,), "fp32", "zero"), Temporary("counter", (1,), "int32", "kept_zero")),
    )
    return Running(parts, launch, {"x": x, "y": y}, ("scale",), {"scale": 1.0})


def test_two_steps_with_temporaries_are_one_launch(parts):
    x, y = random(1000), empty(2)
    run = reduction(parts, x, y)
    for calls, scale in enumerate((0.5, None, 2.0), 1):
        run(scale)
        wanted = [x.double().sum().item() * (1.0 if scale is None else scale), 4.0]
        assert y.tolist() == pytest.approx(wanted, rel=1e-4, abs=1e-3)
        assert run.bound.launches() == calls


def test_the_compiled_path_launches_steps_too(parts):
    x, y = random(1000), empty(2)
    run = reduction(parts, x, y)
    run(1.0)  # gives the launch its buffers
    native = launcher()
    torch_functions = (
        torch._C._cuda_getCurrentRawStream,
        None,
        torch.is_grad_enabled,
        torch.cuda.is_current_stream_capturing,
        torch._C._increment_version,
        torch._C._functorch.peek_interpreter_stack,
    )
    key, addresses = native.describe("sum", (x, y))
    assert addresses == (x.data_ptr(), y.data_ptr())
    for scale in (3.0, None):
        y.fill_(-1)
        known = {key: run.bound.native}
        assert native.call(torch_functions, known, "sum", (x, y), (scale,)) == 0
        wanted = [x.double().sum().item() * (scale or 1.0), 4.0]
        assert y.tolist() == pytest.approx(wanted, rel=1e-4, abs=1e-3)
    assert run.bound.launches() == 3


def test_steps_with_temporaries_are_captured_and_replayed(parts):
    x, y = random(1000), empty(2)
    run = reduction(parts, x, y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(2.0)
    assert run.bound.launches() == 1
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        y.fill_(-1)
        graph.replay()
        torch.cuda.synchronize()
        wanted = [2 * x.double().sum().item(), 4.0]
        assert y.tolist() == pytest.approx(wanted, rel=1e-4, abs=1e-3)


@pytest.mark.parametrize("initial", ["anything", "zero", "kept_zero"])
def test_a_descriptor_of_a_temporary(parts, initial):
    y = empty(8, 16)
    view = Descriptor("t", "fp32", (8, 64), (64, 1), (8, 16), offset=32)
    launch = Launch(
        (
            Step((3, 1, 1), (Pointer("t"), Scalar("i32", 600)), "fill"),
            Step((1, 1, 1), (view, Pointer("y")), "tile"),
        ),
        (Temporary("before", (3,), "int32", initial), Temporary("t", (600,), "fp32", initial)),
    )
    run = Running(parts, launch, {"y": y})
    wanted = (torch.arange(8)[:, None] * 64 + torch.arange(16) + 32).float()
    for _ in range(2):
        y.fill_(-1)
        run()
        torch.testing.assert_close(y.cpu(), wanted, rtol=0, atol=0)


def test_a_descriptor_of_four_dimensions_with_an_offset(parts):
    x, y = random(3, 9, 11, 32), empty(16, 16)
    view = Descriptor(
        "x", "fp32", (2, 9, 11, 16), (9 * 11 * 32, 11 * 32, 32, 1), (1, 4, 4, 16),
        offset=9 * 11 * 32 + 16,
    )  # fmt: skip
    step = Step((1, 1, 1), (view, Pointer("y"), Scalar("i32", 3), Scalar("i32", 9)), "tile_4d")
    Running(parts, Launch((step,)), {"x": x, "y": y})()
    wanted = torch.zeros(4, 4, 16, device="cuda")
    wanted[:, :2] = x[2, 3:7, 9:11, 16:]  # zeros behind the end
    torch.testing.assert_close(y.view(4, 4, 16), wanted, rtol=0, atol=0)


@pytest.mark.skipif(arch(ARCH).vendor != "nvidia", reason="tensor maps have element strides")
def test_a_descriptor_of_four_dimensions_with_element_strides(parts):
    """A tile takes every second row and every third column; coordinates count all of them."""
    x, y = random(2, 16, 20, 16), empty(16, 16)
    view = Descriptor(
        "x", "fp32", (2, 16, 20, 16), (16 * 20 * 16, 20 * 16, 16, 1), (1, 4, 4, 16),
        element_strides=(1, 2, 3, 1),
    )  # fmt: skip
    step = Step((1, 1, 1), (view, Pointer("y"), Scalar("i32", 5), Scalar("i32", 4)), "tile_4d")
    Running(parts, Launch((step,)), {"x": x, "y": y})()
    wanted = x[1, 5:13:2, 4:16:3, :]
    torch.testing.assert_close(y.view(4, 4, 16), wanted, rtol=0, atol=0)


def test_a_cooperative_launch(parts):
    """Its programs wait for each other, so they must all run at once."""
    count = torch.cuda.get_device_properties(0).multi_processor_count
    y = empty(count, dtype=torch.int32)
    step = Step((count, 1, 1), (Pointer("arrived"), Pointer("y")), "meet")
    run = Running(parts, Launch((step,), (Temporary("arrived", (1,), "int32", "zero"),)), {"y": y})
    run()
    assert y.tolist() == [*range(count)]


def doubling(part: str, n: int) -> Step:
    return Step((-(-n // 256), 1, 1), (Pointer("x"), Pointer("y"), Scalar("i32", n)), part)


@pytest.mark.skipif(arch(ARCH).vendor != "nvidia", reason="AMD GPUs have no clusters")
def test_a_launch_with_clusters(parts):
    x, y = random(1000), empty(1000)
    run = Running(parts, Launch((doubling("cluster", 1000),)), {"x": x, "y": y})
    assert parts("cluster").kernel.num_ctas == 2
    run()
    torch.testing.assert_close(y, 2 * x)


@pytest.mark.skipif(arch(ARCH).vendor != "nvidia", reason="AMD GPUs have no dependent launch")
def test_a_dependent_launch_sees_what_the_step_before_it_wrote(parts):
    n = 1 << 20
    x, y = random(n), empty(n)
    between = (Pointer("x"), Pointer("t"), Scalar("i32", n))
    after = (Pointer("t"), Pointer("y"), Scalar("i32", n))
    grid = (n // 256, 1, 1)
    launch = Launch(
        (Step(grid, between, "double"), Step(grid, after, "dependent")),
        (Temporary("t", (n,), "fp32"),),
    )
    run = Running(parts, launch, {"x": x, "y": y})
    for _ in range(5):
        y.fill_(-1)
        run()
        torch.testing.assert_close(y, 4 * x)


@pytest.mark.skipif(arch(ARCH).vendor != "nvidia", reason="AMD GPUs have neither")
def test_attributes_are_captured_and_replayed(parts):
    n = 4096
    x, y = random(n), empty(n)
    first = (Pointer("x"), Pointer("t"), Scalar("i32", n))
    second = (Pointer("t"), Pointer("y"), Scalar("i32", n))
    grid = (n // 256, 1, 1)
    steps = (Step(grid, first, "cluster"), Step(grid, second, "dependent"))
    launch = Launch(steps, (Temporary("t", (n,), "fp32"),))
    run = Running(parts, launch, {"x": x, "y": y})
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        graph.replay()
        torch.cuda.synchronize()
        torch.testing.assert_close(y, 4 * x)
    assert run.bound.launches() == 1
