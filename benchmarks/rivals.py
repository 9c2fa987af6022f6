"""What kernels are compared with. A function of this file and of `rivals_attention` takes a problem
and the bench, and returns what makes calls, by name (`tilewright.ops.protocols.Bind`).

torch is imported when a call is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tilewright import arrays, ops, packing, verify
from tilewright.ops.gemm import GemmProblem, scales
from tilewright.ops.library import CUDNN, kind, library_of
from tilewright.ops.protocols import Bind
from tilewright.tune.jobs import jobs_of

if TYPE_CHECKING:
    from gpu_bench import Bench

Binds = Mapping[str, Bind]
Tensors = Mapping[str, Any]

OWN = 12
"""Kernels of ours that compete where ours are the rivals."""

FLEX_BACKWARD = "torch.flex_attention, backward"
UNCAPTURED = frozenset((FLEX_BACKWARD,))
"""Contenders that no graph can hold: autograd computes gradients on the stream of the forward
pass."""


class Absent(Exception):
    """A contender whose package is not installed. label: its name."""

    def __init__(self, label: str, why: str) -> None:
        super().__init__(f"not here: {why}")
        self.label = label


def torch_calls(problem: Any, bench: Bench) -> Binds:
    """Torch's calls of the vendor's libraries."""
    return ops.family(problem.family).vendor(problem)


FIRST = "the library's first engine"


def first_engine(problem: Any, bench: Bench) -> Binds:
    """The first engine that cuDNN offers, in our launch of it."""
    for config in bench.algorithms(problem, 1):
        if kind(library_of(config)) == CUDNN:
            return {FIRST: bench.kernel(config.name, problem)}
    return {}


def addmm(p: GemmProblem, bench: Bench) -> Binds:
    """A product and a bias as torch has them, which asks cuBLASLt for both."""

    def bind(inputs: Tensors, outputs: Tensors) -> Callable[[], Any]:
        import torch

        bias, c = inputs["bias"].to(outputs["C"].dtype), outputs["C"]
        run = partial(torch.addmm, bias, inputs["A"], inputs["B"], out=c)

        def call() -> Any:
            run()
            return c

        return call

    return {"torch.addmm": bind}


ESTIMATED = "the estimate's first"


def estimated(problem: Any, bench: Bench) -> Binds:
    """Our kernel that the estimate puts first, whatever tables and models say."""
    config = bench.estimated(problem)
    return {ESTIMATED: bench.kernel(config.name, problem)}


def folded_mm(p: GemmProblem, bench: Bench) -> Binds:
    """The batch as rows of one product, where it shares B."""
    if p.batch == 1 or p.stride_b:
        return {}

    def bind(inputs: Tensors, outputs: Tensors) -> Callable[[], Any]:
        import torch

        c = outputs["C"]
        run = partial(torch.mm, inputs["A"].view(-1, p.k), inputs["B"], out=c.view(-1, p.n))

        def call() -> Any:
            run()
            return c

        return call

    return {"torch.mm, folded": bind}


def dequantised(p: GemmProblem, bench: Bench) -> Binds:
    """cuBLAS in bf16 by the same weights, dequantised before: `torch.mm`, and the library's
    algorithms. The weights are rounded, so the result is not exactly that of `p`."""
    made: dict[int, Any] = {}  # by address: the contenders share the weights of a place

    def weights(inputs: Tensors) -> Any:
        import torch

        b = inputs["B"]
        if b.data_ptr() not in made:
            elements = packing.decode(arrays.to_float64(b), p.dtype_b, 0)
            wide = scales.dequantised(elements, arrays.to_float64(inputs["scale_b"]), p.scale_b)
            made[b.data_ptr()] = wide.T.contiguous().T.to(torch.bfloat16)
        return made[b.data_ptr()]

    def with_mm(inputs: Tensors, outputs: Tensors) -> Callable[[], Any]:
        import torch

        return partial(torch.mm, inputs["A"], weights(inputs), out=torch.empty_like(outputs["C"]))

    def with_algorithm(name: str) -> Bind:
        def bind(inputs: Tensors, outputs: Tensors) -> Callable[[], Any]:
            import torch

            out = torch.empty_like(outputs["C"])
            run = bench.dispatchers[0].run_named
            return partial(run, name, inputs["A"], weights(inputs), out=out)

        return bind

    offered = bench.algorithms(GemmProblem(p.m, p.n, p.k, "bf16"))
    return {"torch.mm": with_mm, **{one.name: with_algorithm(one.name) for one in offered}}


def without_epilogue(p: GemmProblem, bench: Bench) -> Binds:
    """Kernels of ours for the same product without the epilogue: those that the estimate puts
    first, and are right."""
    bare = bare_of(p)
    run = bench.dispatchers[0]
    right = [
        c.name
        for c in _first(bare, bench, lambda config: True)
        if verify.verify(run, bare, c.name, device=_GPU).ok
    ]

    def of(name: str) -> Bind:
        def bind(inputs: Tensors, outputs: Tensors) -> Callable[[], Any]:
            import torch

            kind = torch.int32 if bare.dtype_c == "int32" else outputs["C"].dtype
            out = torch.empty(bare.m, bare.n, device=_GPU, dtype=kind)
            return partial(run.run_named, name, inputs["A"], inputs["B"], out=out)

        return bind

    return {name: of(name) for name in right}


def bare_of(p: GemmProblem) -> GemmProblem:
    """The product without its epilogue."""
    dtype_c = "int32" if p.dtype_a == "int8" else p.dtype_c
    return replace(p, epilogue="", dtype_c=dtype_c, ldc=0, alignment=0)


def own_kernels(
    only: Callable[[Any], bool] = lambda config: True,
    of: Callable[[Any], Any] = lambda p: p,
    others: bool = False,
) -> Callable[[Any, Bench], Binds]:
    """Kernels of ours as rivals of others: those that `only` takes, first by the tuner's order.

    of: another problem, which they compute. others: on operands of their own, not the same.
    """

    def rivals(problem: Any, bench: Bench) -> Binds:
        stated = of(problem)
        configs = _first(stated, bench, only)
        call = _own_call if others else _call
        return {f"rival {c.name}": partial(call, bench, c.name, stated) for c in configs}

    return rivals


def _call(bench: Bench, name: str, problem: Any, inputs: Tensors, outputs: Tensors) -> Any:
    return bench.kernel(name, problem)(inputs, outputs)


def _own_call(bench: Bench, name: str, problem: Any, *_: Tensors) -> Any:
    made = verify.operands_of(problem, 1, _GPU)
    return bench.kernel(name, problem)(made.inputs, made.outputs)


def _first(problem: Any, bench: Bench, only: Callable[[Any], bool]) -> list[Any]:
    """The kernels that the tuner would try first, built."""
    jobs, _ = jobs_of(bench.group, [problem], None)
    found = [c for job in jobs for c in job.candidates if not library_of(c) and only(c)][:OWN]
    unbuilt = bench.built(found)
    return [c for c in found if c.name not in unbuilt]


COPY = "a copy of as many bytes"


def copy(problem: Any, bench: Bench) -> Binds:
    """A copy on the device that reads and writes as many bytes as the problem must move. As with
    kernels, each place has a source of its own, and calls in a graph share one target."""
    targets: list[Any] = []

    def bind(inputs: Tensors, outputs: Tensors) -> Callable[[], Any]:
        import torch

        source = torch.empty(problem.min_bytes // 2, dtype=torch.uint8, device=_GPU).random_()
        if not targets:
            targets.append(torch.empty_like(source))
        return partial(targets[0].copy_, source)

    return {COPY: bind}


def grouped_mm(p: Any, bench: Bench) -> Binds:
    """`torch._grouped_mm`; under ``masked``, on the rows that are used, gathered before, and
    `torch.bmm` over all of the capacity. Neither leaves unused rows alone."""

    def rows(inputs: Tensors, outputs: Tensors) -> Callable[[], Any]:
        import torch

        a, b = inputs["A"], inputs["B"]
        if p.form != "masked":
            return partial(torch._grouped_mm, a, b, offs=inputs["offsets"])
        counts = inputs["counts"]
        used = torch.arange(p.m, device=a.device) < counts[:, None]
        ends = counts.cumsum(0).to(torch.int32)
        return partial(torch._grouped_mm, a[used], b, offs=ends)

    def whole(inputs: Tensors, outputs: Tensors) -> Callable[[], Any]:
        import torch

        return partial(torch.bmm, inputs["A"], inputs["B"], out=torch.empty_like(outputs["C"]))

    return {"torch._grouped_mm": rows, **({"torch.bmm": whole} if p.form == "masked" else {})}


def scaled_grouped_mm(p: Any, bench: Bench) -> Binds:
    """Torch for a grouped product with scales of blocks, which it has not: in bf16, dequantised
    before, and in fp8, rounded anew with a scale for each row of A and each column of a B. Neither
    result is exactly that of `p`."""

    def wide(inputs: Tensors) -> tuple[Any, Any]:
        """A and Bᵀ in fp32, by groups."""
        a = inputs["A"].float() * inputs["scale_a"].repeat_interleave(128, 1)
        pairs = zip(inputs["B"], inputs["scale_b"], strict=True)
        return a, ((b.T.float(), s.T) for b, s in pairs)

    def groups(some: Any) -> Any:
        for b, s in some:
            yield b * s.repeat_interleave(128, 0).repeat_interleave(128, 1)

    def in_bf16(inputs: Tensors, outputs: Tensors) -> Callable[[], Any]:
        import torch

        a, some = wide(inputs)
        b = torch.stack([one.bfloat16() for one in groups(some)]).transpose(1, 2)
        return partial(torch._grouped_mm, a.bfloat16(), b, offs=inputs["offsets"])

    def by_row(x: Any) -> tuple[Any, Any]:
        import torch

        scales = x.abs().amax(-1).clamp(min=1e-10) / 448.0
        return (x / scales[:, None]).to(torch.float8_e4m3fn), scales

    def in_fp8(inputs: Tensors, outputs: Tensors) -> Callable[[], Any]:
        import torch

        a, some = wide(inputs)
        (a, of_a), (b, of_b) = by_row(a), zip(*map(by_row, groups(some)), strict=True)
        # cat and stack of fp8 go by bytes
        bytes_b = torch.stack([one.view(torch.uint8) for one in b]).view(a.dtype)
        return partial(
            torch._scaled_grouped_mm, a, bytes_b.transpose(1, 2), of_a, torch.stack(of_b),
            offs=inputs["offsets"], out_dtype=torch.bfloat16, use_fast_accum=True,
        )  # fmt: skip

    return {"torch._grouped_mm, dequantised": in_bf16, "torch._scaled_grouped_mm, by rows": in_fp8}


_GPU = "cuda:0"
