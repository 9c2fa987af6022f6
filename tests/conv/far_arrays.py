"""Kernels on arrays that span many GiB, in Triton's interpreter, in a process of its own.

Arrays lie in memory that is only promised (``MAP_NORESERVE``): few elements, whose strides along
some dimensions are over 2^31 elements, take a few pages. So a kernel that counts in 32 bits
anywhere touches other memory, which the interpreter refuses, or computes something else.

    python far_arrays.py [--narrow]

prints each case with its largest error, as a multiple of what is tolerated, or the error raised.
--narrow: with kernels for 32-bit indices, whose strides fit but whose offsets do not: they must
fail.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
from dataclasses import replace
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np

from tilewright import ops, verify
from tilewright.arch import arch, device
from tilewright.dtypes import DTYPES, numpy_dtype
from tilewright.ops.conv import ConvConfig, ConvProblem
from tilewright.ops.conv.pipelines import PIPELINES
from tilewright.runtime import interpreter_patch, interpreter_worker
from tilewright.runtime.interpreter import Interpreter

FAMILY, SM_90 = ops.family("conv"), arch("sm_90")
FEW = replace(device("h200"), compute_units=3)
FAR, NEAR = 2**31 + 64, 2**28 + 64
"""Elements: beyond 32 bits; a few of the second are too."""
NO_RESERVE = 0x4000

DENSE = ConvProblem(2, 5, 6, (3, 3), (2, 2), stride=(1, 2), pad=(0, 1), dtype="fp16", alignment=2)
OWN = replace(DENSE, c=6, k=6, groups=6)
DIRECT = {"pipeline": "direct", "tile_n": 8, "tile_k": 1, "group_m": 1}
FORMS: dict[str, tuple[ConvProblem, dict[str, Any]]] = {
    "forward": (replace(DENSE, epilogue="add"), {}),
    "merged": (replace(DENSE, c=4, groups=2), {"merged": True}),
    "data": (replace(DENSE, direction="data"), {}),
    "weights": (replace(DENSE, c=4, groups=2, direction="weights"), {"scheduler": "split"}),
    "stream_k": (
        replace(DENSE, direction="weights"), {"scheduler": "stream_k", "merged": True}
    ),
    "depthwise": (OWN, {"pipeline": "depthwise", "tile_k": 1, "group_m": 1}),
    "depthwise data": (
        replace(OWN, direction="data"), {"pipeline": "depthwise", "tile_k": 1, "group_m": 1}
    ),
    "depthwise weights": (
        replace(OWN, direction="weights"), {"pipeline": "depthwise", "tile_k": 2, "group_m": 1}
    ),
    "groups in a tile": (replace(DENSE, c=4, groups=2), {"merged_groups": 2}),
    "window": (
        replace(OWN, stride=(1, 1)),
        {"pipeline": "window", "held": "2x2s1x1", "tile_k": 2, "group_m": 1},
    ),
    "window of a row": (
        replace(OWN, stride=(1, 1)),
        {"pipeline": "window", "held": "2s1", "tile_k": 1, "group_m": 1},
    ),
    "direct": (DENSE, {**DIRECT, "box": "2x2x2"}),
    "direct data": (replace(DENSE, direction="data"), {**DIRECT, "box": "2x2x2"}),
    "direct weights": (
        replace(DENSE, direction="weights"), {**DIRECT, "box": "1x2x2", "scheduler": "split"}
    ),
}  # fmt: skip
"""A problem, and fields of a kernel, for each kernel through pointers."""


def far(p: ConvProblem, dims: tuple[int, ...], least: int = FAR, inner: int = 1) -> ConvProblem:
    """The problem with strides of `least` elements or more along these dimensions of x, w and y;
    dimension `inner` is innermost if it is none of them."""
    said = {}
    for name in "xwy":
        shape, step = p.shape_of(name), 1
        strides = [0] * len(shape)
        for dim in sorted(range(len(shape)), key=lambda d: (d in dims, d != inner)):
            if dim in dims:
                step = max(step, least)
            strides[dim] = step
            step *= shape[dim]
        said[f"{name}_strides"] = tuple(strides)
    return replace(p, **said)


def config(p: ConvProblem, bits: int, **fields: Any) -> ConvConfig:
    read, made = PIPELINES[fields.get("pipeline", "implicit")].alignments(p)
    said = {
        "direction": p.direction, "dtype": p.dtype, "epilogue": p.epilogue, "alignment": read,
        "alignment_out": made, "tile_m": 16, "tile_n": 16, "tile_k": 16, "index_bits": bits,
    }  # fmt: skip
    found: ConvConfig = FAMILY.make_config({**FAMILY.axes(), **said, **fields}, SM_90)
    assert FAMILY.judge(found, SM_90), FAMILY.judge(found, SM_90).reason
    return found


class Here(Interpreter):
    """Runs kernels in this process, on the arrays themselves."""

    builder = interpreter_patch.install()

    def _request(self, kernel: Any, message: Any, blobs: Any, timeout: Any) -> Any:
        answer, returned = interpreter_worker.handle(message, blobs, self.builder)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return returned


_region = interpreter_worker._region


def in_place(operand: Any, blob: Any) -> Any:
    """An operand's bytes themselves, where the worker makes a copy."""
    return np.frombuffer(blob, np.uint8)


def without_elements(operand: Any, memory: Any) -> Any:
    """A region without a note for each of its bytes."""
    return replace(_region({**operand, "writable": False}, memory), writable=operand["writable"])


vars(interpreter_worker).update(_place=in_place, _region=without_elements)


def array(one: Any) -> Any:
    """An operand in memory that is only promised."""
    dtype = np.dtype(numpy_dtype(DTYPES[one.dtype]))
    reach = 1 + sum((n - 1) * s for n, s in zip(one.shape, one.strides, strict=True))
    how = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
    room = mmap.mmap(-1, reach * dtype.itemsize, flags=how)
    return np.ndarray(one.shape, dtype, room, 0, [s * dtype.itemsize for s in one.strides])


def error(c: ConvConfig, p: ConvProblem, gpu: Any) -> float:
    rng = np.random.default_rng(1)
    arrays = {one.name: array(one) for one in FAMILY.operands(p)}
    for one in FAMILY.operands(p):
        arrays[one.name][...] = rng.standard_normal(one.shape) if one.read else math.nan
    made = p.output_name
    inputs = {n: a.astype(np.float64) for n, a in arrays.items() if n != made}
    Here().run(FAMILY.sources(c, SM_90), FAMILY.launch(c, p, gpu), arrays, [made])
    wanted = FAMILY.reference(p, inputs)[made]
    check = verify.compare(arrays[made], wanted, FAMILY.tolerances(p, c)[made])
    return check.worst if check.ok or check.worst > 1 else math.inf


def products() -> list[tuple[str, ConvConfig, ConvProblem]]:
    """1×1 convolutions, by GEMM's kernel through pointers."""
    said = {"dtype": "fp16", "alignment": 2}
    images = {"x_strides": (FAR, 1, 5), "y_strides": (FAR, 1, 6)}
    pixels = {"x_strides": (1, 1, 2**30), "y_strides": (1, 1, 2**30)}
    found = []
    for direction, n, strides in (
        ("forward", 2, images), ("data", 2, images), ("weights", 1, pixels),
    ):  # fmt: skip
        p = ConvProblem(n, 5, 6, (7,), (1,), direction=direction, **said, **strides)
        space = FAMILY.default_space(p, arch("sm_80")).expand(arch("sm_80")).configs
        fitting = [c for c in space if c.gemm and FAMILY.supports(c, p, arch("sm_80"))]
        assert all(c.index_bits == 64 for c in fitting)
        found.append((f"gemm {direction}", fitting[0], p))
    return found


def main() -> None:
    narrow = "--narrow" in sys.argv
    cases = [] if narrow else products()
    for dims in ((0, 2),) if narrow else ((0, 2), (1, 3)):
        for name, (plain, fields) in FORMS.items():
            # Of pipeline direct, pixels of a line are neighbours.
            own, inner = ((dims[0], 2), 3) if "direct" in name else (dims, 1)
            p = far(plain, own, NEAR if narrow else FAR, inner)
            assert max(p.spans().values()) > 2**32
            cases.append((f"{name} {dims}", config(p, 32 if narrow else 64, **fields), p))
    for name, c, p in cases:
        try:
            found = f"{error(c, p, FEW):.3f}"
        except RuntimeError as why:
            found = f"raised {str(why)[-90:]}"
        print(f"{name}: {found}", flush=True)


if __name__ == "__main__":
    main()
