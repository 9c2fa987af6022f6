"""The kernels of a module, built before its first step.

The module runs once on fake tensors, so that nothing is computed, launched or built. A dispatch
mode sees the operators of its calls, forward and backward, and records the problems they state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tilewright import default, ops
from tilewright.arch.model import Device
from tilewright.compile import Progress, Store
from tilewright.errors import BadArgument
from tilewright.preparing import Measuring, Preparation
from tilewright.torch import fake, nodes
from tilewright.torch.operators import NAMESPACE
from tilewright.torch.sums import Preparing

_LAID_OUT_AS = {
    "aten::batch_norm_backward": 1,
    "aten::cudnn_batch_norm_backward": 0,
    "aten::miopen_batch_norm_backward": 0,
    "aten::native_batch_norm_backward": 1,
}
"""Operators of torch, with the place of the argument that their first result lies as. Their fake
ones lay it out as the gradient that arrives, which behind a mean is not channels-last."""


def prepare(
    module: torch.nn.Module,
    *inputs: Any,
    backward: bool = True,
    device: Device | str | None = None,
    store: Store | None = None,
    progress: Progress | None = None,
    measure: bool | Measuring = False,
    **keywords: Any,
) -> Preparation:
    """Build the kernels of a module's calls, side by side, so that its first step does not wait for
    the compiler. The module runs once on fake tensors: nothing is computed, no memory is taken, and
    no parameter, buffer or gradient of the module changes.

    module: it may be on any device, also ``meta``. Its mode (`train`, `eval`) and the caller's
        contexts (``torch.no_grad``, ``torch.autocast``) are those of the run.
    inputs, keywords: what the module is called with, or tensors like it.
    backward: whether to record the backward pass too. Gradients of all outputs that require one
        arrive, as they lie in memory; give a module that returns the loss to have the gradients
        that the loss passes on.
    device, store, progress, measure: as in `tilewright.prepare`.

    Where the run stops, because a value of a tensor is asked for (``x.item()``), say, the report
    says why in `Preparation.stopped`, and the kernels up to there are built. Raises `BadArgument`
    for anything but a module, and as `Dispatcher.prepare` does.
    """
    if not isinstance(module, torch.nn.Module):
        raise BadArgument(
            "prepare takes a torch.nn.Module; make one of a function, such as a model's loss"
        )
    recorder = Recorder()
    here = backward and device is None and torch.cuda.is_available()
    compiling = nodes.begun(default.default_dispatcher()) if here else None
    stopped = recorded(recorder, module, inputs, keywords, backward)
    found = default.prepare(
        recorder.problems, device=device, store=store, progress=progress, measure=measure
    )
    if compiling is not None:
        compiling.join()
    return replace(found, stopped=stopped)


def recorded(
    recorder: Recorder,
    module: torch.nn.Module,
    inputs: tuple[Any, ...],
    keywords: dict[str, Any],
    backward: bool,
) -> str:
    """Run a module on fake tensors for what a recorder hears. Returns why the run stopped, or
    ``""``."""
    try:
        with torch.compiler.set_stance("force_eager"):
            _run(recorder, module, inputs, keywords, backward)
    except Exception as error:  # whatever the module does with what it cannot have
        return f"{type(error).__name__}: {error}".strip().splitlines()[0]
    return ""


def _run(
    recorder: Recorder,
    module: torch.nn.Module,
    inputs: tuple[Any, ...],
    keywords: dict[str, Any],
    backward: bool,
) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    state = dict(module.named_parameters()) | dict(module.named_buffers())
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def faked(x: Any) -> Any:
        return mode.from_tensor(x) if isinstance(x, torch.Tensor) else x

    state, inputs, keywords = pytree.tree_map(faked, (state, inputs, keywords))
    recorder.state = state
    # Modes are those of one thread, and on a GPU the backward pass would have another.
    with mode, recorder, torch.autograd.set_multithreading_enabled(False):
        outputs = torch.func.functional_call(module, state, inputs, keywords)
        wanted = [
            x
            for x in pytree.tree_leaves(outputs)
            if isinstance(x, torch.Tensor) and x.requires_grad
        ]
        if backward and wanted:
            torch.autograd.backward(wanted, [torch.empty_like(x) for x in wanted])


class Recorder(Preparing, TorchDispatchMode):
    """Records the problem of each call of an operation's operator, once, in order.

    state: the module's parameters and buffers by name, as the run has them.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.problems: dict[Any, None] = {}
        self.state: dict[str, torch.Tensor] = {}

    def heard(self, problem: Any, operands: Sequence[Any]) -> None:
        """A call of an operator that launches, with its tensors."""
        self.problems[problem] = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        namespace, _, op = func._schema.name.partition("::")
        launches = func._overloadname in ("default", "out", "update")
        if namespace == NAMESPACE and launches and op in ops.families():
            self.heard(fake.stated(op, *args, **keywords), args[0])
        made = func(*args, **keywords)
        place = _LAID_OUT_AS.get(func._schema.name)
        if place is None or made[0] is None:
            return made
        return (torch.empty_like(args[place]), *made[1:])
