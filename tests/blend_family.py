"""A family without kernels, for tests of what stands between a call and its kernel: two outputs of
different dtypes, an operand that is read and written, an optional one, and scalars, of which the
last two change nothing.

    y[n] = scale · x[n] + shift  (+ mask[n])        z[n] = 2 · x[n]        state[n] += x[n]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from tilewright import arrays, calls, ops
from tilewright.errors import BadArgument
from tilewright.ops.defaults import Defaults
from tilewright.ops.nouns import Call, Number, Operand
from tilewright.tolerance import Tolerance

ROUNDED = Tolerance(2.0**-7, 0.0)
NEAR = Tolerance(1e-6, 0.0, 1e-6)


@dataclass(frozen=True)
class BlendProblem:
    n: int
    mask: bool = False
    way: str = "plain"
    family: ClassVar[str] = "blend"
    batch_invariant: ClassVar[bool] = False
    one_kernel: ClassVar[bool] = False


class BlendFamily(Defaults):
    name = "blend"
    problem_type = BlendProblem
    config_type = None
    scalars: ClassVar = {
        "scale": Number("fp32"), "shift": Number("fp32"), "low": Number("fp32", finite=False),
        "seed": Number("i64"),
    }  # fmt: skip

    def operands(self, problem: BlendProblem) -> tuple[Operand, ...]:
        shape, strides = (problem.n,), (1,)
        mask = (Operand("mask", shape, strides, "fp32", keyword=True),) if problem.mask else ()
        return (
            Operand("x", shape, strides, "fp32"),
            Operand("state", shape, strides, "fp32", "inout"),
            *mask,
            Operand("y", shape, strides, "fp32", "out"),
            Operand("z", shape, strides, "bf16", "out"),
        )

    def problem_of(self, call: Call, config: Any = None) -> BlendProblem:
        unknown = set(call.options) - {"way"}
        if unknown or not call.inputs:
            raise BadArgument(f"blend has operands and no option {', '.join(unknown)}")
        return BlendProblem(call.inputs[0].shape[0], "mask" in call.named, **call.options)

    def written(self, inputs: int, named: Any) -> tuple[int, ...]:
        return (1,)

    def options(self, problem: BlendProblem) -> dict[str, Any]:
        return {} if problem.way == "plain" else {"way": problem.way}

    def scalar_defaults(self, problem: BlendProblem) -> Mapping[str, int | float]:
        return {"shift": 1.0, "low": 0.0, "seed": 0}

    def make_inputs(self, problem: BlendProblem, rng: Any) -> Mapping[str, Any]:
        return {**super().make_inputs(problem, rng), "scale": rng.numpy.uniform(1.0, 2.0)}

    def reference(self, problem: BlendProblem, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        x = inputs["x"]
        y = inputs["scale"] * x + inputs.get("shift", 1.0)
        if problem.mask:
            y = y + inputs["mask"]
        return {"state": inputs["state"] + x, "y": y, "z": 2 * x}

    def tolerances(self, problem: BlendProblem, config: Any) -> Mapping[str, Tolerance]:
        return {"state": NEAR, "y": NEAR, "z": ROUNDED}

    def parse_name(self, name: str) -> Any:
        return SimpleNamespace(name=name)


@contextmanager
def known() -> Iterator[BlendFamily]:
    """The family, registered in this process alone and for so long."""
    family = BlendFamily()
    calls.scalars_of.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ops, "_registered", {**ops._registered, "blend": family})
        yield family
    calls.scalars_of.cache_clear()


class NumpyDispatcher:
    """Computes blends with NumPy, by what a dispatcher makes of a call. fault: the operand that it
    gets wrong. seen: the names of the operands of each call."""

    def __init__(self, fault: str = "", by: float = 1.25) -> None:
        self.fault, self.by = fault, by
        self.seen: list[Sequence[str]] = []

    def select(self, problem: BlendProblem) -> Any:
        return SimpleNamespace(config=SimpleNamespace(name="blend_numpy"))

    def run(self, op: str, *operands: Any, out: Any = None, **keywords: Any) -> Any:
        outputs = None if out is None else out if isinstance(out, tuple) else (out,)
        said = calls.spoken(op, keywords, len(outputs or ()))
        family = ops.family("blend")
        given = calls.read(family, None, operands, said, outputs)
        scalars = calls.scalar_values(family, given.problem, said.scalars)
        named = given.by_name
        self.seen.append(given.names)
        wide = {n: arrays.to_float64(named[n]) for n in named if n not in ("y", "z")}
        for name, values in family.reference(given.problem, wide | scalars).items():
            right = values * self.by if name == self.fault else values
            named[name][...] = right.astype(named[name].dtype)
        return tuple(given.outputs)

    run_named = run
