"""Filters of a model's convolutions, kept as kernels read them.

Kernels read filters with the channels innermost, and torch has them outermost. In a channels-first
model every call turns its filter, in a layout step beside that of its image (`ops.conv.turning`).
`keep_filters` turns it once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from tilewright import default, ops
from tilewright.arch.model import Device
from tilewright.errors import BadArgument
from tilewright.ops.nouns import Kept
from tilewright.torch.preparing import Recorder, recorded


def keep_filters(
    module: torch.nn.Module,
    *inputs: Any,
    backward: bool = True,
    device: Device | str | None = None,
    **keywords: Any,
) -> list[str]:
    """Lay the filters of a module's convolutions with their channels innermost, once, where the
    estimate expects its calls to be faster for it.

    They stay the same parameters, with the same values, shapes and names: state dicts, copies,
    optimizers and gradients see other strides alone. Do it before the module is compiled, exported
    or wrapped for several processes. ``p.data = p.data.contiguous()`` undoes it. Left as they are:
    filters that a call casts before it reads them, as under autocast.

    module, inputs, keywords, backward: as `prepare` has them; the module runs once on fake tensors.
    device: the GPU to plan for; by default the first GPU of this machine. A name needs no GPU.

    Returns the names of those that lie otherwise now. Raises `BadArgument` for anything
    but a module, and where the run stops; nothing is laid then.
    """
    if not isinstance(module, torch.nn.Module):
        raise BadArgument("keep_filters takes a torch.nn.Module, and inputs to call it with")
    recorder = _Filters()
    if stopped := recorded(recorder, module, inputs, keywords, backward):
        raise BadArgument(
            f"the module does not run on fake tensors, so no filter is laid: {stopped}"
        )
    us = partial(default.expected_us, device=device)
    held = dict(module.named_parameters()) | dict(module.named_buffers())
    laid = []
    for name, calls in recorder.found.items():
        if us(calls) > us(kept.problem for kept in calls.values()):
            axis = next(iter(calls.values())).axis
            held[name].data = held[name].movedim(axis, -1).contiguous().movedim(-1, axis).data
            laid.append(name)
    return laid


class _Filters(Recorder):  # type: ignore[no-untyped-call]
    """Records the calls that read a parameter or buffer which may be kept in another layout.

    found: by its name, the problems of the calls that read it, each with how it may be kept.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, dict[Any, Kept]] = defaultdict(dict)

    def heard(self, problem: Any, operands: Sequence[Any]) -> None:
        kept = ops.family(problem.family).kept(problem)
        if kept is None:
            return
        for name, x in self.state.items():
            if x is operands[kept.operand]:
                self.found[name][problem] = kept
