"""What declared operations are compared with: torch's calls for the same operands (`forms`), as
they are, and through ``torch.compile``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from rivals import Binds, Tensors
from tilewright import verify

if TYPE_CHECKING:
    from gpu_bench import Bench
    from turn import Turn

EAGER, COMPILED = "torch", "torch.compile"

MODE = "max-autotune-no-cudagraphs"
UNTUNED = {"hstu_attention_backward"}
"""Operations that Inductor compiles without autotuning: of torch 2.11's own kernels for their
products one reads outside of its operands while it is timed, and ends the process; and tuning the
others did not end in 40 s. Of the forward pass tuning took 1 % of the time away."""


def call(problem: Any, inputs: Tensors) -> Callable[[], Any]:
    """A call of the form of a problem's operation."""
    return partial(_form(problem), **_given(problem, inputs))


def eager(problem: Any, bench: Bench) -> Binds:
    """torch's calls."""
    return {EAGER: lambda inputs, outputs: call(problem, inputs)}


def compiled(problem: Any, bench: Bench | None) -> Binds:
    """The same compiled as one function, with the autotuning that takes longest, if any."""
    import torch
    from torch import _inductor

    tuned = problem.family not in UNTUNED
    options = _inductor.list_mode_options(MODE) if tuned else {}
    made = torch.compile(_form(problem), dynamic=False, fullgraph=True, options=options)

    def bind(inputs: Tensors, outputs: Tensors) -> Callable[[], Any]:
        return partial(made, **_given(problem, inputs))

    return {COMPILED: bind}


def compile_ahead(problem: Any, operands: verify.Operands, turn: Turn) -> None:
    """Have what `compiled` compiles in Inductor's caches, with the configs that its autotuning
    chose. It times them in turns with other processes."""
    time_alone(turn)
    compiled(problem, None)[COMPILED](operands.inputs, operands.outputs)()


@cache
def time_alone(turn: Turn) -> None:
    """Let what Inductor times hold the GPU."""
    from torch._inductor.runtime.benchmarking import benchmarker

    benchmarker.benchmark_gpu = turn.alone(benchmarker.benchmark_gpu)


def _form(problem: Any) -> Callable[..., Any]:
    """The form with everything that it takes of the problem itself."""
    import forms

    form = forms.FORMS[problem.family]
    takes = inspect.signature(form).parameters
    said = {n: getattr(problem, n) for n in takes if hasattr(problem, n)}
    return partial(form, **said)


def _given(problem: Any, inputs: Tensors) -> dict[str, Any]:
    """The operands and scalars that a form takes; None for an operand that is not there."""
    import forms
    from tilewright import ops

    takes = inspect.signature(forms.FORMS[problem.family]).parameters
    declared: Any = ops.family(problem.family)
    absent = dict.fromkeys(declared.declared.optional)
    return {n: x for n, x in {**absent, **inputs}.items() if n in takes}
