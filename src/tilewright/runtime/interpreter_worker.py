"""The child process that interprets kernels: one request, one launch.

Started by `tilewright.runtime.interpreter`. Triton reads TRITON_INTERPRET when it is imported,
so nothing here imports it before `main` has checked the variable. Needs NumPy and ml_dtypes but
not torch.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright import triton_versions
from tilewright.child import Blob, Message, serve
from tilewright.ops import MODULES_VARIABLE, kernel_modules
from tilewright.runtime.interpreter_spans import blocks_of, image_of, placed, reserved

if TYPE_CHECKING:
    from tilewright.runtime import interpreter_patch as patch


def main() -> None:
    """Serve launches until the parent is gone."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        sys.exit("the interpreter's process needs TRITON_INTERPRET=1")
    refused = triton_versions.refusal(triton_versions.installed())
    if refused:
        sys.exit(refused)
    from tilewright.runtime import interpreter_patch

    builder = interpreter_patch.install()
    serve(lambda message, blobs: handle(message, blobs, builder))


def handle(
    message: Message, blobs: Sequence[bytes], builder: patch.Builder
) -> tuple[Message, list[Blob]]:
    """Run one launch. The answer has the bytes of the operands named in `return`, or an ``"error"``
    and its ``"kind"``."""
    try:
        memories = [placed(m, blob) for m, blob in zip(message["operands"], blobs, strict=True)]
        for i, arrays in message["pointed"]:
            memories[i].view(np.int64)[:] = [
                memories[j].ctypes.data + message["operands"][j]["origin"] for j in arrays
            ]
        _run(message, memories, builder)
    except Exception as error:
        return {"error": _describe(error, builder), "kind": _kind(error, builder)}, []
    returned: list[Blob] = [
        image_of(message["operands"][i], memories[i]) for i in message["return"]
    ]
    return {}, returned


def _run(message: Message, memories: Sequence[Any], builder: patch.Builder) -> None:
    from tilewright.runtime import interpreter_patch as patch

    kernel = _kernel(message["module"], message["function"])
    operands = message["operands"]
    builder.memory.regions = [_region(o, m) for o, m in zip(operands, memories, strict=True)]
    builder.grid_idx = None
    arguments: dict[str, Any] = dict(message["constants"])
    for name, functions in message["functions"].items():
        arguments[name] = tuple(_kernel(*function.split(":")) for function in functions)
    arguments |= dict.fromkeys(message["tuples"], ())
    for argument in message["arguments"]:
        value = argument.get("value")
        if value is None:
            i = argument["operand"]
            value = memories[i].ctypes.data + operands[i]["origin"] + argument.get("offset", 0)
        built = patch.tensor(argument["type"], value)
        if "block" in argument:
            shape, strides, block = argument["shape"], argument["strides"], argument["block"]
            steps = argument["element_strides"]
            built = patch.descriptor(built, shape, strides, block, builder, steps)
        whole, dot, _ = argument["name"].partition(".")
        arguments[whole] = (*arguments[whole], built) if dot else built
    with np.errstate(all="ignore"):  # infinities and NaN are valid results
        kernel.run(grid=tuple(message["grid"]), warmup=False, **arguments)


def _kernel(module: str, function: str) -> Any:
    from tilewright.runtime import interpreter_patch as patch

    if not any(module == name or module.startswith(f"{name}.") for name in kernel_modules()):
        raise ImportError(f"module '{module}' may not be run: not named in {MODULES_VARIABLE}")
    found = getattr(importlib.import_module(module), function, None)
    if not patch.is_kernel(found):
        raise TypeError(f"'{module}.{function}' is not a Triton kernel")
    return found


def _region(operand: Message, memory: Any) -> patch.Region:
    from tilewright.runtime import interpreter_patch as patch

    elements = None
    shape, itemsize = operand["shape"], operand["itemsize"]
    if operand["writable"] and memory.size > itemsize * int(np.prod(shape)):
        whole = reserved if blocks_of(operand) else partial(np.zeros, dtype=np.uint8)
        elements = whole(memory.size).view(np.bool_)
        where: Any = np.ndarray(shape, np.bool_, elements, operand["origin"], operand["strides"])
        where[...] = True
    start = memory.ctypes.data
    return patch.Region(operand["name"], start, start + memory.size, operand["writable"], elements)


def _kind(error: BaseException, builder: patch.Builder) -> str:
    """The kind of an error: ``access``, ``memory``, ``raised`` by the kernel otherwise, or
    ``refused`` before it ran."""
    from tilewright.runtime import interpreter_patch as patch

    cause = patch.root_cause(error)
    if isinstance(cause, patch.BadAccess):
        return "access"
    if isinstance(cause, MemoryError):
        return "memory"
    return "refused" if builder.grid_idx is None else "raised"


def _describe(error: BaseException, builder: patch.Builder) -> str:
    """One sentence: the program, the line of the file, and the error."""
    from tilewright.runtime import interpreter_patch as patch

    cause = patch.root_cause(error)
    text = f"{type(cause).__name__}: {cause}"
    if builder.grid_idx is None:
        return text
    # The innermost frame outside of Triton and of this package's runtime is the kernel's.
    inside = (str(Path(patch.triton.__file__).parent), str(Path(__file__).parent))
    frames = traceback.extract_tb(cause.__traceback__)
    lines = [f for f in frames if not f.filename.startswith((*inside, "<"))]
    at = f", {Path(lines[-1].filename).name}:{lines[-1].lineno}" if lines else ""
    return f"program {builder.grid_idx}{at}: {text}"
