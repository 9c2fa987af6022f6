"""cuBLASLt's own candidates for a product, so that a comparison is with the best of them.

`torch.mm` runs the first algorithm cuBLAS's heuristic returns. cuBLASLt returns a list of them,
best guess first; `candidates` makes a call of each, by the name it has as a kernel, for the caller
to time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tilewright.arch import arch
from tilewright.arch.detect import live_device
from tilewright.dispatch import Dispatcher
from tilewright.ops.gemm import FAMILY, GemmProblem
from tilewright.ops.library import CUBLASLT, Matmul, library_name
from tilewright.runtime import libraries
from tilewright.runtime.drivers import driver


def candidates(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, count: int = libraries.ALGORITHMS
) -> dict[str, Callable[[], Any]]:
    """Calls of the first `count` algorithms of the heuristic for out = a·b, fp32 accumulation.

    a [m, k] and out [m, n] are row-major, b [k, n] column-major, all packed and of one dtype.
    """
    (m, k), n = a.shape, b.shape[1]
    if a.stride() != (k, 1) or b.stride() != (1, k) or out.stride() != (n, 1):
        raise ValueError("candidates are for packed operands: a and out by rows, b by columns")
    problem = GemmProblem(m, n, k, a.dtype, dtype_c=out.dtype)
    version = int((torch.version.cuda or "").partition(".")[0])
    library = libraries.opened(library_name(CUBLASLT, version))
    asked = FAMILY.library_query(problem, arch(live_device(0).arch), library.name)
    if not isinstance(asked, Matmul):
        raise ValueError(f"cuBLASLt is not asked for {problem}: {asked}")
    offers = library.offered(driver("cuda"), 0, asked, count)
    names = dict.fromkeys(FAMILY.library_config(problem, library.name, one).name for one in offers)
    run = Dispatcher().run_named
    return {name: partial(run, name, a, b, out=out) for name in names}
