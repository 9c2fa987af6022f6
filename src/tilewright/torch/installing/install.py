"""`install`: under an unchanged torch program, kernels of ours where they are faster."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, get_args

from tilewright.errors import BadArgument, nearest
from tilewright.torch.installing import convolution, cudnn, flash, groups, products
from tilewright.torch.installing.decisions import Decisions, Only, may_serve
from tilewright.torch.installing.overrides import Overrides


@dataclass(frozen=True, slots=True)
class Installed:
    """What `install` has put in front of torch's kernels, and what it serves. A context manager,
    which takes it out again at the end.

    only: which calls are served, as `install` was told.
    """

    only: Only
    _overrides: Overrides = field(repr=False)
    _decisions: Decisions = field(repr=False)

    def report(self) -> dict[str, Any]:
        """What kernels of ours served so far, and what torch computed, as plain data for JSON.

        only: as `install` was told.
        operators: the operators of aten that are asked.
        served: for each operator, problem and kernel, the number of calls. A call of a CUDA graph
            counts once, when it is captured. While a kernel is being built, torch computes
            calls that are counted here.
        torch: kinds of calls that torch computes, each with the reason. They are not counted.
        """
        self._overrides.tell()
        return {
            "only": self.only,
            "operators": list(self._overrides.names),
            "served": [
                {"operator": aten, "problem": problem, "kernel": kernel, "calls": calls}
                for aten, problem, kernel, calls in self._decisions.served()
            ],
            "torch": [
                {"operator": one.aten, "problem": one.problem, "reason": one.reason}
                for one in self._decisions.left()
            ],
        }

    def __enter__(self) -> Installed:
        return self

    def __exit__(self, *_: object) -> None:
        if _now is self:
            uninstall()


_now: Installed | None = None
_lock = threading.Lock()


def install(only: Only = "proven", *, _key: str = "CUDA") -> Installed:
    """Let kernels of ours compute what an unchanged torch program asks of a GPU, where they are
    faster than torch's::

        tilewright.torch.install()                # until tilewright.torch.uninstall()
        with tilewright.torch.install() as ours:  # or for a while
            model(x)
        print(ours.report())

    Asked are aten's products of matrices, convolutions with their gradients, and attention of the
    flash and the cuDNN backend with its gradients, in fp16 and bf16 on a GPU; under ``"all"`` also
    products of groups. Torch computes every other call.

    only: ``"proven"``: where a row of a table for this GPU, or a model, says that a kernel that is
        built here is faster than the vendor's library. ``"all"``: wherever a kernel that is built
        here is chosen, on estimates, too.

    Operators for which no table and no model knows a kernel on the GPUs of this process are left as
    they are, and cost nothing.

    What was installed before is taken out first. Raises `BadArgument` for another word, and
    `StoreError` if others could have written what is compiled for it.
    """
    global _now
    if only not in get_args(Only):
        words = get_args(Only)
        raise BadArgument(f"only = {only!r} is none of {', '.join(words)}{nearest(only, words)}")
    with _lock:
        _remove()
        decisions = Decisions(only)
        overrides = Overrides(_key, decisions)
        try:
            for part in (products, groups, convolution, flash, cudnn):
                if part is groups and only != "all":
                    continue
                if may_serve(only, part.FAMILIES, on_gpu=_key == "CUDA"):
                    part.put(overrides, decisions)
        except BaseException:
            overrides.remove()
            raise
        _now = Installed(only, overrides, decisions)
        return _now


def uninstall() -> None:
    """Restore torch's dispatch table as it was before `install`. Without it, nothing happens."""
    with _lock:
        _remove()


def installed() -> Installed | None:
    """What is installed; None if nothing is."""
    return _now


def _remove() -> None:
    global _now
    if _now is not None:
        _now._overrides.remove()
        _now = None
