"""Verification of a kernel: fresh random operands, a poisoned output, a float64 reference.

Nothing is timed, tuned or accepted before it passes here.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tilewright import arrays, calls, ops
from tilewright.arch import words
from tilewright.errors import FindingsFound, VerificationFailed, WrongDevice, listed
from tilewright.tolerance import Tolerance

if TYPE_CHECKING:
    from tilewright.dispatch import Dispatcher


@dataclass(frozen=True, slots=True)
class Check:
    """How an output compares with its reference.

    max, mean, rms, p99: absolute errors over the elements that are finite in both; `p99` is the
    99th percentile.
    share: elements within tolerance; 1.0 if all are.
    worst: the largest error as a multiple of its element's tolerance (0 where both are equal).
    seed: makes the operands again.
    non_zero: number of elements of the output that are not zero (a NaN is not); None if they were
    not counted.
    output: the name of the output, for an operation with several.
    findings: what an emulated GPU found of the kernel, one text for each; with any, it is not ok.
    """

    ok: bool
    share: float
    worst: float
    max: float
    mean: float
    rms: float
    p99: float
    rms_reference: float
    tolerance: Tolerance
    seed: int = -1
    non_zero: int | None = None
    output: str = ""
    findings: tuple[str, ...] = ()

    @property
    def within(self) -> bool:
        """Whether all elements are within tolerance, whatever was found."""
        return self.ok or (bool(self.findings) and self.share == 1.0)

    @property
    def percent(self) -> str:
        """The share of elements within tolerance. Some outside are never rounded to none."""
        return f"{math.floor(self.share * 1e6) / 1e6:.4%}"

    def __str__(self) -> str:
        word = "within" if self.within else "outside"
        where = f" in output {self.output}" if self.output else ""
        found = f"; {listed(self.findings)}" if self.findings else ""
        return (
            f"{word} tolerance{where}: {self.percent} of elements, worst at {self.worst:.3g} of "
            f"it, max error {self.max:.3g} where the result's rms is {self.rms_reference:.3g}"
            f"{found}"
        )


_BINS = 4096
_LEAST = 1e-200
"""Added to the allowed error, by which errors are divided."""
PART = 1 << 26
"""Elements compared at a time. The comparison holds about ten float64 arrays of this size."""


def compare(out: Any, reference: Any, tolerance: Tolerance) -> Check:
    """Compare an output with its float64 reference (both NumPy, or both torch on one device).

    NaN must be where the reference has NaN and nowhere else. An infinity must match one in the
    reference as rounded to the output's dtype: this shows overflow. An output without elements is
    right.
    """
    out = arrays.stacked(out)
    if 0 in out.shape:
        nothing = Check(True, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, tolerance, non_zero=0)
        return nothing if out.shape == reference.shape else replace(nothing, ok=False, share=0.0)
    count, indexes = math.prod(out.shape), _parts(out.shape, rows=tolerance.by_row > 0)
    # A single part is made once, and serves both passes.
    whole = _Compared(out, reference) if len(indexes) == 1 else None

    def parts() -> Iterator[_Compared]:
        return (whole or _Compared(out[index], reference[index]) for index in indexes)

    found = [part.sums() for part in parts()]
    sums = [sum(each) for each in list(zip(*found, strict=True))[:-1]]
    squares, error, error_squares, non_zero, *most = _numbers(*sums, *(each[-1] for each in found))
    rms_reference, largest = (squares / count) ** 0.5, max(most)
    against = [part.against(tolerance, rms_reference, largest) for part in parts()]
    outside, *worst = _numbers(sum(each[0] for each in against), *(each[1] for each in against))
    return Check(
        ok=outside == 0,
        share=1.0 - outside / count,
        worst=max(worst),
        max=largest,
        mean=error / count,
        rms=(error_squares / count) ** 0.5,
        p99=_percentile(sum(each[2] for each in against), largest),
        rms_reference=rms_reference,
        tolerance=tolerance,
        non_zero=int(non_zero),
    )


def _parts(shape: Sequence[int], *, rows: bool = False) -> list[tuple[slice, ...]]:
    """Indexes that cover an array along its longest axis, each of at most `PART` elements (but at
    least one slice of that axis). rows: whether the last axis stays whole, which it does where
    there is no other."""
    if rows and len(shape) == 1:
        return [(slice(None),)]
    axis = max(range(len(shape) - rows), key=lambda i: shape[i])
    step = max(1, PART * shape[axis] // math.prod(shape))
    before = (slice(None),) * axis
    return [(*before, slice(i, i + step)) for i in range(0, shape[axis], step)]


class _Compared:
    """A part of an output beside its reference.

    error: the absolute difference; 0 where one of the two is not finite.

    Usually all elements are finite, also after rounding to the output's dtype; the sum of the
    errors and the extremes of the reference tell. Only otherwise are elements classified one by
    one, which takes longer. For products with large outputs, this comparison is most of the time of
    verifying.
    """

    def __init__(self, out: Any, reference: Any) -> None:
        import numpy as np

        xp: Any = np  # the module of the arrays: both modules agree on every function used here
        if arrays.is_torch(out):
            import torch as xp

        def rounded(x: Any) -> Any:
            if arrays.is_torch(out):
                return x.to(out.dtype).double()
            with np.errstate(over="ignore"):
                return x.astype(out.dtype).astype("float64")

        self._xp, got = xp, arrays.to_float64(out)
        self._non_zero = xp.count_nonzero(got)
        with np.errstate(invalid="ignore"):
            self._error = abs(got - reference)
            self._total = self._error.sum()
        self._magnitude = reference
        self._plain = bool(
            xp.isfinite(self._total + abs(rounded(reference.max())) + abs(rounded(reference.min())))
        )
        if not self._plain:
            round_reference = rounded(reference)
            self._finite = xp.isfinite(got) & xp.isfinite(round_reference)
            self._special = xp.isnan(got) & xp.isnan(round_reference) | (got == round_reference)
            self._magnitude = xp.where(self._finite, reference, 0.0)
            self._error = abs(xp.where(self._finite, got, 0.0) - self._magnitude)
            self._total = self._error.sum()

    def sums(self) -> tuple[Any, ...]:
        """The sums of the reference's squares, of the errors, and of their squares; the number of
        elements that are not zero; and the largest error."""
        error, magnitude = self._error.reshape(-1), self._magnitude.reshape(-1)
        squares, error_squares = (self._xp.dot(x, x) for x in (magnitude, error))
        return squares, self._total, error_squares, self._non_zero, error.max()

    def against(
        self, tolerance: Tolerance, rms_reference: float, largest: float
    ) -> tuple[Any, Any, Any]:
        """The number of elements outside tolerance, the largest error as a multiple of the allowed
        one, and the number of errors in each of `_BINS` bins up to the largest."""
        xp, error = self._xp, self._error
        allowed = abs(self._magnitude)
        allowed *= tolerance.relative
        allowed += tolerance.scaled * rms_reference + tolerance.absolute + _LEAST
        if tolerance.by_row:
            squares = (self._magnitude * self._magnitude).mean(-1, keepdims=True)
            allowed += tolerance.by_row * xp.sqrt(squares)
        within = error <= allowed
        if not self._plain:
            within = xp.where(self._finite, within, self._special)
        outside = math.prod(error.shape) - xp.count_nonzero(within)
        return outside, (error / allowed).max(), self._histogram(largest)

    def _histogram(self, largest: float) -> Any:
        if largest == 0.0:
            return 0
        if arrays.is_torch(self._error):
            return self._error.reshape(-1).histc(_BINS, 0.0, largest)
        return self._xp.histogram(self._error, _BINS, (0.0, largest))[0]


def _numbers(*scalars: Any) -> list[float]:
    """Scalars of one library as floats; for a GPU, with one wait instead of one for each."""
    if arrays.is_torch(scalars[0]):
        import torch

        return torch.stack([each.double() for each in scalars]).tolist()
    return [float(x) for x in scalars]


def _percentile(counts: Any, largest: float) -> float:
    """The 99th percentile, to 1/4096 of the largest error: sorting would cost more than the
    kernel."""
    if largest == 0.0:
        return 0.0
    if arrays.is_torch(counts):
        counts = counts.cpu().numpy()
    below = counts.cumsum() / counts.sum()
    return float((below.searchsorted(0.99) + 1) / _BINS * largest)


@dataclass(slots=True)
class Operands:
    """The operands of a problem, by name.

    inputs: the operands that the kernels read, ``inout`` ones included, and the scalars given at
    the call.
    outputs: the operands of role ``out``.
    """

    inputs: dict[str, Any]
    outputs: dict[str, Any]

    def written(self, problem: Any) -> dict[str, Any]:
        """Every operand that the kernels write, in the order in which the family states them."""
        stated = ops.family(problem.family).operands(problem)
        both = self.inputs | self.outputs
        return {one.name: both[one.name] for one in stated if one.written}


def operands_of(problem: Any, seed: int, device: str = "cpu") -> Operands:
    """Fresh inputs and poisoned outputs for `problem`: NumPy arrays, or torch tensors if `device`
    is a GPU (not an emulated one). The same seed makes the same inputs."""
    device = "cpu" if words.emulated(device) else device
    family = ops.family(problem.family)
    inputs = family.make_inputs(problem, arrays.Random(seed, device))
    targets = (one for one in family.operands(problem) if one.role == "out")
    outputs = {one.name: arrays.empty(one, device) for one in targets}
    for output in outputs.values():
        arrays.poison(output)
    return Operands(dict(inputs), outputs)


def make_operands(problem: Any, seed: int, device: str = "cpu") -> tuple[list[Any], Any]:
    """`operands_of` for an operation that takes all operands by position: the inputs in order, and
    the output (a tuple if there are several)."""
    made = operands_of(problem, seed, device)
    inputs, _ = calls.positional(problem, made.inputs)
    outputs = tuple(made.outputs.values())
    return inputs, outputs[0] if len(outputs) == 1 else outputs


def snapshot(problem: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of the ``inout`` operands among `inputs`, as they are before a call."""
    stated = ops.family(problem.family).operands(problem)
    return {one.name: arrays.copied(inputs[one.name]) for one in stated if one.role == "inout"}


def reset(operands: Operands, before: Mapping[str, Any]) -> None:
    """Restore the operands to their state before a call: ``inout`` ones from `before` (a
    `snapshot`), outputs poisoned."""
    for name, values in before.items():
        arrays.overwrite(operands.inputs[name], values)
    for output in operands.outputs.values():
        arrays.poison(output)


def reference(problem: Any, inputs: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    """The right float64 value of each written operand, by name.

    inputs: by name, with ``inout`` operands as they were before the call; or the positional ones in
    order.
    """
    family = ops.family(problem.family)
    if not isinstance(inputs, Mapping):
        stated = family.operands(problem)
        names = [one.name for one in stated if one.read and not one.keyword]
        inputs = dict(zip(names, inputs, strict=True))
    wide = {n: x if isinstance(x, int | float) else arrays.to_float64(x) for n, x in inputs.items()}
    return dict(family.reference(problem, wide))


def run(
    dispatcher: Dispatcher, problem: Any, operands: Operands, name: str = "", **options: Any
) -> None:
    """Run `problem` on these operands, with the kernel called `name` if given."""
    inputs, keywords = calls.positional(problem, operands.inputs)
    out = tuple(operands.outputs.values()) or None
    how = dispatcher.run_named if name else dispatcher.run
    how(name or problem.family, *inputs, out=out, **keywords, **options)


def verify(
    dispatcher: Dispatcher,
    problem: Any,
    name: str = "",
    *,
    device: str = "cpu",
    seed: int | None = None,
) -> Check:
    """Run `problem` on fresh data and check the result.

    name: the kernel to run; by default the chosen one.
    device: ``"cpu"`` (the interpreter, or the dispatcher's emulated GPU), a torch GPU such as
        ``"cuda:0"``, or an emulated GPU, which must be the dispatcher's.
    seed: makes the data; by default random.

    The returned check says whether every output passed, and describes the worst output. It has what
    an emulated GPU found, too. `require` raises if it failed.
    """
    if words.emulated(device) and not dispatcher.emulates(device):
        raise WrongDevice(
            f"this dispatcher does not run on {device}: make it with Dispatcher(device='{device}')"
        )
    seed = secrets.randbits(31) if seed is None else seed
    family = ops.family(problem.family)
    config = family.parse_name(name) if name else dispatcher.select(problem).config
    operands = operands_of(problem, seed, device)
    wanted = reference(problem, operands.inputs)
    found: tuple[str, ...] = ()
    try:
        run(dispatcher, problem, operands, name)
    except FindingsFound as error:
        found = error.findings
    check = compare_all(problem, config, operands.written(problem), wanted, seed)
    return with_findings(check, found)


def with_findings(check: Check, found: tuple[str, ...]) -> Check:
    """The check of a kernel of which an emulated GPU found this."""
    return replace(check, ok=check.ok and not found, findings=found)


def compare_all(
    problem: Any,
    config: Any,
    written: Mapping[str, Any],
    wanted: Mapping[str, Any],
    seed: int = -1,
) -> Check:
    """Compare all outputs of `config` with their references, each within its own tolerance. Returns
    the check of the worst output; it names the output if there are several.

    config: None for the vendor's library.
    """
    allowed = ops.family(problem.family).tolerances(problem, config)
    checks = [
        replace(compare(written[name], wanted[name], allowed[name]), output=name, seed=seed)
        for name in written
    ]
    worst = max(checks, key=lambda check: (not check.ok, check.worst))
    return worst if len(checks) > 1 else replace(worst, output="")


def check(problem: Any, config: Any, inputs: Sequence[Any], out: Any, seed: int = -1) -> Check:
    """Compare the output of `config` with the reference for these inputs, for an operation that
    takes all operands by position.

    out: the output; a tuple if there are several.
    """
    names = [one.name for one in ops.family(problem.family).operands(problem) if one.written]
    outputs = out if isinstance(out, tuple | list) else (out,)
    written = dict(zip(names, outputs, strict=True))
    return compare_all(problem, config, written, reference(problem, inputs), seed)


def tolerance(problem: Any, config: Any) -> Tolerance:
    """The tolerance of the only output of an operation."""
    (allowed,) = ops.family(problem.family).tolerances(problem, config).values()
    return allowed


def require(result: Check, what: str) -> None:
    """Raise `VerificationFailed` unless `result` passed."""
    if not result.ok:
        raise VerificationFailed(f"{what} is {result} (seed {result.seed})")
