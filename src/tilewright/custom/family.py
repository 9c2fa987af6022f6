"""`CustomFamily`: the family of an operation that a user declared."""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from tilewright import checks
from tilewright.arch import arch, peak_tflops
from tilewright.arch.figures import DEVICE
from tilewright.arch.model import Arch, Device
from tilewright.custom import (
    catalogue,
    docstrings,
    drawn,
    extents,
    fitting,
    gradient,
    kinds,
    stated,
)
from tilewright.custom.declaration import COMPILER, Array, Declaration, flag
from tilewright.dtypes import DTYPES, resolve
from tilewright.errors import BadArgument
from tilewright.ops import binder, physics
from tilewright.ops.backward import Backward
from tilewright.ops.binder import Context
from tilewright.ops.defaults import Defaults
from tilewright.ops.estimate import Estimate
from tilewright.ops.foreign import with_lines
from tilewright.ops.keywords import Keyword, operand, option
from tilewright.ops.nouns import Call, KernelSource, Launch, Number, Operand
from tilewright.ops.profiles import DECLARED, Profile
from tilewright.ops.spelling import spelled
from tilewright.space import KernelSpace
from tilewright.tolerance import Tolerance, tolerance
from tilewright.verdict import YES, Verdict, no
from tilewright.wording import many

_MOST_SIZE = 2**31 - 1


class CustomFamily(Defaults):
    """See `tilewright.ops.protocols.Family`."""

    def __init__(self, declared: Declaration) -> None:
        self.declared = declared
        self.name, self.says = declared.name, docstrings.says(declared)
        self.problem_type = kinds.problem_type(declared)
        self.config_type = kinds.config_type(declared)
        self.arguments = tuple(n for n, x in declared.operands.items() if x.by_position)
        self._keywords = _keywords(declared)
        self._signature, self._dtypes = kinds.signature(declared), declared.dtype_fields
        self._counts = (*declared.sizes, *declared.numbers)
        self._parts, self._catalogue = catalogue.parts(declared), catalogue.catalogue(declared)
        self.profiles = {DECLARED: self._profile()} if declared.problems else {}
        self.functions = declared.functions
        self.drivers, self.formats = declared.drivers, declared.formats
        self.scalars = {
            name: Number(kind, finite=False, limits=declared.limits.get(name))
            for name, (kind, _) in declared.scalars.items()
        }

    def _profile(self) -> Profile:
        """The problems that the declaration lists, as a list that commands take by name."""
        return Profile(
            f"the problems declared with {self.name}",
            lambda arch: [self.problem_type(**fields) for fields in self.declared.problems],
        )

    # --- words ------------------------------------------------------------------------------

    def parse_name(self, name: str) -> Any:
        return kinds.parse(self.declared, self.config_type, name)

    def parse_problem(self, words: Mapping[str, str], arch: Arch) -> Any:
        types = {f.name: f.type for f in fields(self.problem_type)}
        found: dict[str, Any] = {}
        words = with_lines(words, self.drivers)
        for word, text in spelled(f"a {self.name} problem", words, types).items():
            if word in self.declared.dtype_fields:
                found[word] = resolve(text, arch.fp8)
            elif types[word] is str:
                found[word] = text
            elif types[word] is bool and text in ("true", "false"):  # as JSON has it
                found[word] = text == "true"
            else:
                count = checks.parse_whole(word, text, -checks.MOST_WHOLE)
                found[word] = bool(count) if types[word] is bool else count
        needed = (n for n in self.declared.sizes if n not in self.declared.optional_sizes)
        missing = [size for size in needed if size not in found]
        if missing:
            raise BadArgument(f"a {self.name} problem needs {', '.join(missing)}")
        return self.problem_type(**found)

    def axes(self) -> Mapping[str, Any]:
        d = self.declared
        return {
            **dict.fromkeys(d.dtype_fields, "bf16"),
            **dict.fromkeys(map(flag, d.optional), False),
            **d.options,
            "alignment": kinds.ALIGNMENTS[0],
            **{axis: values[0] for axis, values in d.axes.items()},
        }

    def wildcard(self, axis: str, arch: Arch) -> Sequence[Any]:
        if axis in self.declared.axes:
            return self.declared.axes[axis]
        if axis == "alignment":
            return kinds.ALIGNMENTS
        raise BadArgument(f"'*' has no meaning on axis '{axis}' of {self.name}")

    def make_config(self, values: Mapping[str, Any], arch: Arch) -> Any:
        return kinds.made(self.declared, self.config_type, values)

    # --- legality ---------------------------------------------------------------------------

    def default_space(self, problem: Any, arch: Arch) -> KernelSpace:
        d = self.declared
        same = {name: [getattr(problem, name)] for name in kinds.signature(d)}
        axes = {**same, "alignment": self._alignments(problem), **d.axes, **d.narrows(problem)}
        if d.together is None:
            return KernelSpace(self.name, axes)
        rows = d.together(problem, arch)
        names = tuple(rows[0])
        crossed = {axis: values for axis, values in axes.items() if axis not in names}
        values = [tuple(row[name] for name in names) for row in rows]
        return KernelSpace(self.name, crossed, linked={names: values})

    def _alignments(self, problem: Any) -> Sequence[int]:
        """The promises that kernels for a problem may have: the most that it keeps, and none."""
        d = self.declared
        if callable(d.multiples):
            return kinds.ALIGNMENTS
        return tuple(dict.fromkeys((_common(problem, d.multiples), 1)))

    def tuning_spaces(self, problem: Any, arch: Arch) -> Sequence[KernelSpace]:
        return (self.default_space(problem, arch),)

    def judge(self, config: Any, arch: Arch) -> Verdict:
        threads = config.num_warps * arch.warp_size
        if threads > arch.max_threads:
            return no("threads", f"{threads} threads, {arch.name} takes {arch.max_threads}")
        for axis in self.declared.axes.keys() & COMPILER.keys():
            backend, usual = COMPILER[axis]
            value = getattr(config, axis)
            if backend not in ("", arch.backend) and value != usual:
                return no(
                    "compiler_option",
                    f"{axis} = {value} is for {backend}, {arch.name} takes {axis} = {usual} alone",
                )
        for name in self._dtypes:
            support = arch.dtypes.get(getattr(config, name))
            if support is not None and support.support == "refused":
                return no("dtype", f"{name} = {getattr(config, name)}: {support.note}")
        if getattr(config, "num_ctas", 1) > arch.max_ctas:
            return no("clusters", f"{arch.name} takes clusters of at most {arch.max_ctas}")
        return YES

    def supports(self, config: Any, problem: Any, arch: Arch) -> Verdict:
        d = self.declared
        for name in self._signature:
            ours, theirs = getattr(config, name), getattr(problem, name)
            if ours != theirs:
                return no("signature", f"is for {name} = {ours}, the problem has {theirs}")
        if config.alignment > 1:
            if problem.alignment % kinds.ADDRESSES:
                return no(
                    "alignment",
                    f"wants addresses of {kinds.ADDRESSES} bytes, the operands' are of "
                    f"{problem.alignment}",
                )
            promised = d.promised(config)
            for name in promised:
                if getattr(problem, name) % config.alignment:
                    return no(
                        "multiples",
                        f"wants {name} in {config.alignment}s, it is {getattr(problem, name)}",
                    )
            most = _common(problem, promised)
            if config.alignment < most:
                return no("multiples", f"sizes are in {most}s: al{most} is the same and more")
        for name in self._counts:
            if getattr(problem, name) > _MOST_SIZE:
                return no("size", f"{name} = {getattr(problem, name)} is over {_MOST_SIZE}")
        said = d.supports(problem, config)
        return YES if said is True else no("supports", said or "it does not serve this problem")

    def estimate(self, config: Any, problem: Any, device: Device) -> Estimate:
        """A launch, and the longer of two times: of memory, and of the declared arithmetic at the
        peak of its unit. Nothing is known of what the kernel does besides."""
        d = self.declared
        there = (part for part in d.parts if part.there(config))
        programs = sum(math.prod(part.grid(problem, config)) for part in there)
        waves = max(1, -(-programs // device.compute_units))
        moved = d.moves(problem, config) if d.moves else problem.min_bytes
        terms = [("memory", physics.memory_us(moved, device))]
        this = arch(device.arch)
        for unit, count in problem.work.items():
            if this.has(unit):  # the rate of other types, as int64, is not known
                terms.append(("arithmetic", count / peak_tflops(this, device, unit) / 1e6))
        total = DEVICE.LAUNCH_US + max(us for _, us in terms)
        terms.append(("launch", DEVICE.LAUNCH_US))
        limit, _ = max(terms, key=lambda term: term[1])
        facts = (f"{many(programs, 'workgroup')} in {many(waves, 'wave')}",)
        return Estimate(total, limit, tuple(terms), facts)

    def rank(
        self, problem: Any, configs: Iterable[Any], device: Device
    ) -> list[tuple[Any, Estimate]]:
        """By estimate; ties go to the higher alignment, then to what the declaration prefers, then
        to the values that each axis lists first."""
        d = self.declared

        def key(config: Any) -> tuple[Any, ...]:
            stated = ((values, getattr(config, axis)) for axis, values in d.axes.items())
            places = (v.index(one) if one in v else len(v) for v, one in stated)
            return (-config.alignment, d.prefers(problem, config), *places)

        found = [(c, self.estimate(c, problem, device)) for c in sorted(configs, key=key)]
        return sorted(found, key=lambda pair: pair[1].total_us)

    # --- launching --------------------------------------------------------------------------

    def sources(self, config: Any, arch: Arch) -> Mapping[str, KernelSource]:
        return binder.sources(self._parts, self._catalogue, config, arch)

    def launch(self, config: Any, problem: Any, device: Device) -> Launch:
        return binder.launch(self._parts, self._catalogue, Context(config, problem, device))

    def written(self, inputs: int, named: Collection[str]) -> tuple[int, ...]:
        listed = self.declared.operands
        return tuple(i for i, n in enumerate(self.arguments) if listed[n].role == "inout")

    def operands(self, problem: Any) -> tuple[Operand, ...]:
        found = [
            self._operand(name, one, problem)
            for name, one in self.declared.operands.items()
            if self.declared.there(name, problem)
        ]
        return tuple(sorted(found, key=lambda o: (o.role == "out", o.keyword)))

    def _operand(self, name: str, one: Array, problem: Any) -> Operand:
        shape = kinds.shape_of(self.declared, name, problem)
        dtype = getattr(problem, one.dtype, one.dtype)
        values = drawn.of(one.values, problem)
        return Operand(
            name,
            shape,
            self._strides(one, shape, problem),
            dtype,
            one.role,
            values,
            keyword=one.optional,
        )

    def _strides(self, one: Array, shape: tuple[int, ...], problem: Any) -> tuple[int, ...]:
        """The strides of an operand of a problem, in elements."""
        if one.strides is None:
            return kinds.packed(shape)
        known = {name: getattr(problem, name) for name in self.declared.integer_fields}
        apart = (extents.value(stride, known) for stride in one.strides)
        return tuple(s or p for s, p in zip(apart, kinds.packed(shape), strict=True))

    def outputs(self, call: Call) -> tuple[Operand, ...]:
        """Sizes may be symbols (``torch.compile``), so no problem is stated of them."""
        return stated.outputs(self.declared, call, self._operand)

    def problem_of(self, call: Call, config: Any = None) -> Any:
        fields, aligned = stated.fields(self.declared, call)
        return self.problem_type(**fields, alignment=aligned)

    def keywords(self) -> Mapping[str, Keyword]:
        return self._keywords

    def options(self, problem: Any) -> dict[str, Any]:
        d = self.declared
        usual = {**d.options, **d.numbers}
        found = {name: getattr(problem, name) for name in usual}
        said = {n: value for n, value in found.items() if value != usual[n]}
        for name, taken in d.stated_dtypes.items():
            value = getattr(problem, name)
            if value != getattr(problem, taken, taken):
                said[name] = value
        return said

    def scalar_defaults(self, problem: Any) -> Mapping[str, int | float]:
        return {n: value for n, (_, value) in self.declared.scalars.items() if value is not None}

    def gradients(self, problem: Any, wanted: Sequence[str]) -> Backward | Verdict:
        d = self.declared
        absent = [name for name in d.operands if not d.there(name, problem)]
        constant = tuple(name for name in d.constant if name not in absent)
        listed = d.gradients(problem) if callable(d.gradients) else d.gradients
        if isinstance(listed, str):
            return no("gradients", listed)
        if callable(d.gradients):
            fitting.check_gradients(d, listed)
        return gradient.backward(problem, listed, wanted, absent, constant, d.records)

    # --- checking ---------------------------------------------------------------------------

    def make_inputs(self, problem: Any, rng: Any) -> Mapping[str, Any]:
        made = {**super().make_inputs(problem, rng)}
        for name, (kind, value) in self.declared.scalars.items():
            if value is None:
                floating = kind.startswith("fp")
                value = (
                    float(rng.numpy.standard_normal())
                    if floating
                    else int(rng.numpy.integers(1, 9))
                )
            made[name] = value
        return made

    def reference(self, problem: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        whole = {o.name for o in self.operands(problem) if DTYPES[o.dtype].kind == "int"}
        given = {n: _indices(x) if n in whole else x for n, x in inputs.items()}
        known = {**dict.fromkeys(self.declared.optional), **given, "problem": problem}
        takes = inspect.signature(self.declared.reference).parameters
        result = self.declared.reference(**{name: known[name] for name in takes})
        written = [one.name for one in self.operands(problem) if one.written]
        results = result if isinstance(result, tuple) else (result,)
        if len(results) != len(written):
            raise BadArgument(
                f"the reference of {self.name} gives {len(results)} results for "
                f"{', '.join(written)}"
            )
        return dict(zip(written, map(_floats, results), strict=True))

    def tolerances(self, problem: Any, config: Any) -> Mapping[str, Tolerance]:
        d = self.declared
        operands = self.operands(problem)
        terms = getattr(problem, d.terms) if isinstance(d.terms, str) else d.terms
        floats = [o.dtype for o in operands if o.read and DTYPES[o.dtype].kind == "float"]
        worst = max(floats, key=lambda name: DTYPES[name].eps, default="fp32")
        usual = {
            o.name: Tolerance(0.0, 0.0)
            if d.operands[o.name].exact
            else tolerance(worst, o.dtype, max(1, terms), amplified=d.amplifies)
            for o in operands
            if o.written
        }
        return usual | dict(d.tolerances(problem, config)) if d.tolerances else usual


def _common(problem: Any, names: Iterable[str]) -> int:
    """How many elements all these sizes and strides are multiples of, of `kinds.ALIGNMENTS`."""
    return math.gcd(kinds.ALIGNMENTS[0], *(getattr(problem, name) for name in names))


def _keywords(d: Declaration) -> dict[str, Keyword]:
    usual = {**d.options, **d.numbers}
    options = {name: option(type(value).__name__, value) for name, value in usual.items()}
    made = {one.dtype for one in d.operands.values() if one.role == "out"}
    options |= {name: option("dtype") for name in d.stated_dtypes if name in made}
    arrays = {name: d.operands[name] for name in d.optional}
    return options | {
        name: operand(one.dtype if one.shape == (1,) and one.dtype in DTYPES else "")
        for name, one in arrays.items()
    }


def _indices(values: Any) -> Any:
    """Whole numbers that were widened to float64, as int64: a reference may count with them."""
    return values.long() if hasattr(values, "long") else values.astype("int64")


def _floats(values: Any) -> Any:
    """What a reference gives, as float64, which results are compared in."""
    return values.double() if hasattr(values, "double") else values.astype("float64")
