"""`operation`: the function that runs a family (``tilewright.gemm``) on arrays of any kind.

A call that is only a launch goes straight to the default dispatcher. A call that torch has to know
of (for gradients, ``torch.compile``, a trace) goes through `tilewright.torch`, which is imported
for the first of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any

from tilewright.dispatch import default_dispatcher


def operation(op: str) -> Callable[..., Any]:
    """A function that runs one family through the default dispatcher (``tilewright.gemm``).

    It differentiates, and ``torch.compile`` keeps its calls. `Dispatcher.run` does neither.
    """

    def call(*operands: Any, out: Any = None, stream: Any = None, **options: Any) -> Any:
        if _compiling():
            from tilewright.torch.compiled import compiled

            return compiled(op, operands, out, stream, options)
        dispatcher = default_dispatcher()
        if out is None:
            if _concerns_torch(operands, options):
                from tilewright.torch.eager import eager

                return eager(op, operands, stream, options)
        elif stream is None and not options and dispatcher.launched(op, operands, out):
            return out
        return dispatcher.run_given(op, operands, out, stream, options)

    call.__name__ = call.__qualname__ = op
    call.__doc__ = (
        f"Run {op} on the operands with the kernel the default dispatcher chooses; built on first "
        "use. See `tilewright.Dispatcher.run` for what operands may be and what is raised. Unless "
        "out= is passed, torch records the operation's gradients."
    )
    return call


def _look_for_torch() -> bool:
    """`_compiling` until torch has been imported, which may happen at any time."""
    global _compiling, _concerns_torch
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "compiler"):
        return False
    if torch.compiler.is_dynamo_compiling():  # dynamo is reading: there is nothing to keep
        return True
    _compiling = torch.compiler.is_dynamo_compiling
    _concerns_torch = _watch(torch)
    return False


def _watch(torch: Any) -> Callable[[Sequence[Any], Mapping[str, Any]], bool]:
    """`_concerns_torch`, once torch is imported.

    The private names are the cheapest that know of dispatch modes (``FakeTensorMode``), of
    ``torch.jit.trace`` and of forward-mode differentiation.
    """
    tensors = frozenset({torch.Tensor, torch.nn.Parameter})
    others = frozenset({str, int, float, bool, tuple, NoneType})
    grad_enabled = torch.is_grad_enabled
    modes, tracing = torch._C._len_torch_dispatch_stack, torch._C._get_tracing_state
    forward_ad = torch.autograd.forward_ad

    def concerns_torch(operands: Sequence[Any], options: Mapping[str, Any]) -> bool:
        for x in operands:
            if type(x) not in tensors or (x.requires_grad and grad_enabled()):
                return True
        for x in options.values() if options else ():
            kind = type(x)
            if kind not in others and (kind not in tensors or (x.requires_grad and grad_enabled())):
                return True
        return modes() > 0 or tracing() is not None or forward_ad._current_level >= 0

    return concerns_torch


def _no(operands: Sequence[Any], options: Mapping[str, Any]) -> bool:
    return False


_compiling: Callable[[], bool] = _look_for_torch
"""Whether TorchDynamo is reading this code. It takes torch's function, which does nothing, for
True; a call of the public ``torch.compiler.is_compiling`` costs ten times as much."""

_concerns_torch: Callable[[Sequence[Any], Mapping[str, Any]], bool] = _no
"""Whether torch may have to know of a call: it wants gradients, an operand is no plain tensor, a
mode or a tracer is watching, or derivatives are taken forward. Without torch: never."""
