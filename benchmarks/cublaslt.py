"""cuBLASLt's own candidates for a product, so that a comparison is with the best of them.

`torch.mm` runs the first algorithm cuBLAS's heuristic returns. cuBLASLt returns a list of them,
best guess first; `candidates` makes a call of each, for the caller to time. Bound with ctypes to
the library torch has loaded; the numbers are those of cublasLt.h and library_types.h (CUDA 12
and 13).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

_TYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}
_COMPUTE_32F = 68
_TRANSA = 3
_MAX_WORKSPACE = 1
WORKSPACE_BYTES = 32 << 20
"""What NVIDIA recommends for Hopper, and torch's own default there."""


class _Result(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algo", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


def _library() -> ctypes.CDLL:
    major = torch.version.cuda.partition(".")[0]
    return ctypes.CDLL(f"libcublasLt.so.{major}")


def _checked(status: int) -> None:
    if status:
        raise RuntimeError(f"cuBLASLt returned status {status}")


def candidates(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, count: int = 8
) -> dict[str, Callable[[], None]]:
    """Calls of the first `count` algorithms of the heuristic for out = a·b, fp32 accumulation.

    a [m, k] and out [m, n] are row-major, b [k, n] column-major, all packed and of one dtype.
    """
    (m, k), n = a.shape, b.shape[1]
    if a.stride() != (k, 1) or b.stride() != (1, k) or out.stride() != (n, 1):
        raise ValueError("candidates are for packed operands: a and out by rows, b by columns")
    lt = _library()
    handle, desc, preference = (ctypes.c_void_p() for _ in range(3))
    _checked(lt.cublasLtCreate(ctypes.byref(handle)))
    _checked(lt.cublasLtMatmulDescCreate(ctypes.byref(desc), _COMPUTE_32F, _TYPES[torch.float32]))
    yes = ctypes.c_int(1)
    _checked(lt.cublasLtMatmulDescSetAttribute(desc, _TRANSA, ctypes.byref(yes), 4))
    # In column-major terms: outᵀ [n, m] = (bᵀ)ᵀ·aᵀ, so the library's first operand is b.
    layouts = []
    for tensor, rows, columns in ((b, k, n), (a, k, m), (out, n, m)):
        layout = ctypes.c_void_p()
        kind = _TYPES[tensor.dtype]
        sizes = (ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows))
        _checked(lt.cublasLtMatrixLayoutCreate(ctypes.byref(layout), kind, *sizes))
        layouts.append(layout)
    _checked(lt.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)))
    limit = ctypes.c_size_t(WORKSPACE_BYTES)
    _checked(
        lt.cublasLtMatmulPreferenceSetAttribute(
            preference, _MAX_WORKSPACE, ctypes.byref(limit), ctypes.sizeof(limit)
        )
    )
    results, found = (_Result * count)(), ctypes.c_int()
    b_, a_, c_ = layouts
    _checked(
        lt.cublasLtMatmulAlgoGetHeuristic(
            handle, desc, b_, a_, c_, c_, preference, count, results, ctypes.byref(found)
        )
    )
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=a.device)
    one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)

    def call(result: _Result) -> Callable[[], None]:
        def run() -> None:
            pointer = ctypes.c_void_p
            _checked(
                lt.cublasLtMatmul(
                    handle, desc, ctypes.byref(one), pointer(b.data_ptr()), b_,
                    pointer(a.data_ptr()), a_, ctypes.byref(zero), pointer(out.data_ptr()), c_,
                    pointer(out.data_ptr()), c_, ctypes.byref(result.algo),
                    pointer(workspace.data_ptr()), ctypes.c_size_t(WORKSPACE_BYTES),
                    pointer(torch.cuda.current_stream().cuda_stream),
                )
            )  # fmt: skip

        return run

    return {f"cuBLASLt {i}": call(results[i]) for i in range(found.value)}
