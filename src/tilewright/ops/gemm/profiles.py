"""Named sets of kernels to build: what PyTorch's calls need, what serving in fp8 needs, and so on.
Each is a product of operand types, sizes and kinds of calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tilewright.arch.model import Arch
from tilewright.dtypes import resolve
from tilewright.ops.gemm.problem import GemmProblem
from tilewright.ops.profiles import Profile

Sizes = tuple[int, int, int]

ROWS = (1, 4, 16, 64, 256, 1024, 4096, 8192)
WEIGHTS = ((4096, 4096), (1024, 4096), (14336, 4096), (4096, 14336))
"""(N, K) of layers."""

FORWARD = [(m, n, k) for m in ROWS for n, k in WEIGHTS]
BACKWARD = [(m, n, k) for m in (1024, 4096, 8192) for n, k in WEIGHTS]
BATCH = [(m, 128, 128) for m in (16, 128, 1024)]


def _made(
    arch: Arch, dtypes: Sequence[str], sizes: Sequence[Sizes], calls: Sequence[Mapping[str, Any]]
) -> Iterator[GemmProblem]:
    """The problems, without those of dtypes that the architecture does not take."""
    for dtype in dtypes:
        exact = resolve(dtype, arch.fp8)
        if exact not in arch.dtypes or arch.dtypes[exact].support == "refused":
            continue
        for (m, n, k), call in itertools.product(sizes, calls):
            yield GemmProblem(m, n, k, dtype_a=exact, **call)


_LAYERS = [{"epilogue": chain} for chain in ("", "bias", "bias+gelu", "bias+relu", "silu")]


def _pytorch(arch: Arch) -> Iterator[GemmProblem]:
    plain = [{"layout": "rcr"}, {"layout": "rrr"}]
    yield from _made(arch, ("bf16", "fp16", "fp32"), FORWARD, plain)
    yield from _made(arch, ("bf16", "fp16"), FORWARD, _LAYERS)
    yield from _made(arch, ("bf16", "fp16"), BACKWARD, [{"layout": "crr"}])
    batched = [{"batching": "strided", "batch": 32, "layout": one} for one in ("rcr", "rrr")]
    yield from _made(arch, ("bf16", "fp16"), BATCH, batched)
    yield from _made(arch, ("fp32",), FORWARD, [{"precision": "tf32"}])


def _fp8(arch: Arch) -> Iterator[GemmProblem]:
    blocks = {"dtype_c": "bf16", "scale_a": "1x128", "scale_b": "128x128"}
    yield from _made(arch, ("fp8",), FORWARD, [{"dtype_c": "bf16"}, blocks])


def _aiter(arch: Arch) -> Iterator[GemmProblem]:
    yield from _made(arch, ("bf16",), FORWARD, [{}, {"layout": "rsr"}])
    yield from _made(arch, ("fp8",), FORWARD, [{"dtype_c": "bf16", "layout": "rsr"}])
    yield from _made(arch, ("int8",), FORWARD, [{}])
    yield from _fp8(arch)


def _fp32(arch: Arch) -> Iterator[GemmProblem]:
    yield from _made(arch, ("fp32",), FORWARD, [{}, {"precision": "tf32"}])


_EACH: dict[str, tuple[str, Callable[[Arch], Iterator[GemmProblem]]]] = {
    "pytorch": ("linear layers, their backward pass, and batches, in bf16, fp16, fp32", _pytorch),
    "aiter": ("serving: layers in bf16, int8 and fp8, their weights shuffled or not", _aiter),
    "fp8": ("layers in fp8, with and without scales of blocks", _fp8),
    "fp32": ("layers in fp32, exact and by tf32", _fp32),
}


def _all(arch: Arch) -> Iterator[GemmProblem]:
    return itertools.chain.from_iterable(problems(arch) for _, problems in _EACH.values())


PROFILES = {
    **{name: Profile(about, problems) for name, (about, problems) in _EACH.items()},
    "all": Profile("all of these", _all),
}
"""By name."""
