"""`CustomFamily`: the family of an operation that a user declared."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

from tilewright import checks
from tilewright.arch import arch, peak_tflops
from tilewright.arch.model import Arch, Device
from tilewright.custom import catalogue, drawn, extents, gradient, kinds
from tilewright.custom.declaration import COMPILER, Array, Declaration, flag
from tilewright.dtypes import DTYPES, resolve
from tilewright.errors import BadArgument, nearest
from tilewright.ops import binder, physics
from tilewright.ops.backward import Backward
from tilewright.ops.binder import Context
from tilewright.ops.defaults import Defaults
from tilewright.ops.estimate import Estimate
from tilewright.ops.keywords import Keyword, operand, option
from tilewright.ops.nouns import Call, KernelSource, Launch, Number, Operand, View
from tilewright.ops.profiles import DECLARED, Profile
from tilewright.ops.spelling import spelled
from tilewright.space import KernelSpace
from tilewright.tolerance import Tolerance, tolerance
from tilewright.verdict import YES, Verdict, no

_MOST_SIZE = 2**31 - 1


class CustomFamily(Defaults):
    """See `tilewright.ops.protocols.Family`."""

    def __init__(self, declared: Declaration) -> None:
        self.declared = declared
        self.name = declared.name
        self.problem_type = kinds.problem_type(declared)
        self.config_type = kinds.config_type(declared)
        self.arguments = tuple(n for n, x in declared.operands.items() if x.by_position)
        self._keywords = _keywords(declared)
        self._stated = declared.stated
        self._parts, self._catalogue = catalogue.parts(declared), catalogue.catalogue(declared)
        self.profiles = {DECLARED: self._profile()} if declared.problems else {}
        self.functions = declared.functions
        self.scalars = {n: Number(kind, finite=False) for n, (kind, _) in declared.scalars.items()}

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
        for word, text in spelled(f"a {self.name} problem", words, types).items():
            if word in self.declared.dtype_fields:
                found[word] = resolve(text, arch.fp8)
            elif types[word] is str:
                found[word] = text
            else:
                count = checks.parse_whole(word, text, -checks.MOST_WHOLE)
                found[word] = bool(count) if types[word] is bool else count
        missing = [size for size in self.declared.sizes if size not in found]
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
        return self.config_type(**values)

    # --- legality ---------------------------------------------------------------------------

    def default_space(self, problem: Any, arch: Arch) -> KernelSpace:
        d = self.declared
        same = {name: [getattr(problem, name)] for name in kinds.signature(d)}
        axes = {**same, "alignment": kinds.ALIGNMENTS, **d.axes, **d.narrows(problem)}
        if d.together is None:
            return KernelSpace(self.name, axes)
        rows = d.together(problem, arch)
        names = tuple(rows[0])
        crossed = {axis: values for axis, values in axes.items() if axis not in names}
        values = [tuple(row[name] for name in names) for row in rows]
        return KernelSpace(self.name, crossed, linked={names: values})

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
        if getattr(config, "num_ctas", 1) > arch.max_ctas:
            return no("clusters", f"{arch.name} takes clusters of at most {arch.max_ctas}")
        return YES

    def supports(self, config: Any, problem: Any, arch: Arch) -> Verdict:
        d = self.declared
        for name in kinds.signature(d):
            ours, theirs = getattr(config, name), getattr(problem, name)
            if ours != theirs:
                return no("signature", f"is for {name} = {ours}, the problem has {theirs}")
        if problem.alignment % config.alignment:
            return no(
                "alignment",
                f"wants addresses of {config.alignment} bytes, the operands' are of "
                f"{problem.alignment}",
            )
        if config.alignment > 1:
            for name in d.promised(config):
                if getattr(problem, name) % 16:
                    return no("multiples", f"wants {name} in 16s, it is {getattr(problem, name)}")
        for name in (*d.sizes, *d.numbers):
            if getattr(problem, name) > _MOST_SIZE:
                return no("size", f"{name} = {getattr(problem, name)} is over {_MOST_SIZE}")
        said = d.supports(problem, config)
        return YES if said is True else no("supports", said or "it does not serve this problem")

    def estimate(self, config: Any, problem: Any, device: Device) -> Estimate:
        """The longer of two times: of memory, and of the declared arithmetic at the peak of its
        unit. Nothing is known of what the kernel does besides."""
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
        longest = max(terms, key=lambda term: term[1])
        facts = (f"{programs} workgroups in {waves} waves",)
        return Estimate(longest[1], longest[0], tuple(terms), facts)

    def rank(
        self, problem: Any, configs: Iterable[Any], device: Device
    ) -> list[tuple[Any, Estimate]]:
        """By estimate; ties go to the higher alignment, then to what the declaration prefers, then
        to the values that each axis lists first."""
        d = self.declared

        def key(config: Any) -> tuple[Any, ...]:
            places = (values.index(getattr(config, axis)) for axis, values in d.axes.items())
            return (-config.alignment, d.prefers(problem, config), *places)

        found = [(c, self.estimate(c, problem, device)) for c in sorted(configs, key=key)]
        return sorted(found, key=lambda pair: pair[1].total_us)

    # --- launching --------------------------------------------------------------------------

    def sources(self, config: Any, arch: Arch) -> Mapping[str, KernelSource]:
        return binder.sources(self._parts, self._catalogue, config, arch)

    def launch(self, config: Any, problem: Any, device: Device) -> Launch:
        return binder.launch(self._parts, self._catalogue, Context(config, problem, device))

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

    def outputs(self, call: Call) -> tuple[Operand, ...]:
        """Sizes may be symbols (``torch.compile``), so no problem is stated of them."""
        found = self._flags(call) | self._integers(call)
        for name, view in self._views(call).items():
            self._read(name, view, found)
        self._refuse_unsaid(found)
        self._read_dtypes(call.options, found)
        said = self._said(call)
        vars(said).update(dict.fromkeys(self.declared.strides, 0), **found)
        ahead = self._folded(call)
        listed = self.declared.operands
        targets = ((name, listed[name]) for name in self._targets(said))
        return tuple(self._unfolded(self._operand(n, one, said), one, ahead) for n, one in targets)

    def _said(self, call: Call) -> SimpleNamespace:
        """The fields that say which operands are there: options, and of optional operands."""
        d = self.declared
        stated = {name: call.options.get(name, value) for name, value in d.options.items()}
        return SimpleNamespace(**self._flags(call), **stated)

    def _flags(self, call: Call) -> dict[str, Any]:
        """Which optional operands a call has."""
        return {flag(name): name in call.named for name in self.declared.optional}

    def _integers(self, call: Call) -> dict[str, Any]:
        """The integers that sizes may name, as a call states them. Raises `BadArgument`."""
        stated = self.declared.integers
        found = {name: call.options.get(name, value) for name, value in stated.items()}
        for name, value in found.items():
            checks.whole(name, value, 0 if name in self.declared.numbers else -checks.MOST_WHOLE)
        return found

    def _targets(self, said: Any) -> list[str]:
        """The outputs that there are, in order."""
        listed = self.declared.operands.items()
        return [n for n, one in listed if one.role == "out" and self.declared.there(n, said)]

    def _folded(self, call: Call) -> dict[str, tuple[int, ...]]:
        """The dimensions whose product a size is, for the sizes of operands that fold them."""
        found: dict[str, tuple[int, ...]] = {}
        listed = self.declared.operands
        for name, view in self._views(call, fold=False).items():
            one = listed[name]
            if one.folds:
                found.setdefault(
                    str(one.shape[0]), view.shape[: len(view.shape) - len(one.shape) + 1]
                )
        return found

    def _unfolded(
        self, operand: Operand, one: Array, ahead: Mapping[str, tuple[int, ...]]
    ) -> Operand:
        """An output that is to be made, with the dimensions that the call's operands have."""
        first = ahead.get(str(one.shape[0])) if one.folds else None
        if first is None or len(first) == 1:
            return operand
        shape = (*first, *operand.shape[1:])
        ahead_strides = (n * operand.strides[0] for n in kinds.packed(first))
        return replace(operand, shape=shape, strides=(*ahead_strides, *operand.strides[1:]))

    def _read_dtypes(self, options: Mapping[str, Any], found: dict[str, Any]) -> None:
        """Add the element types to `found` that no operand of a call has."""
        for name, usual in self.declared.stated_dtypes.items():
            stated = options.get(name)
            if stated is not None and found.setdefault(name, stated) != stated:
                raise BadArgument(
                    f"{self.name} was given {name} = {stated} and an operand of {found[name]}"
                )
            found.setdefault(name, found.get(usual, usual))

    def _strides(self, one: Array, shape: tuple[int, ...], problem: Any) -> tuple[int, ...]:
        """The strides of an operand of a problem, in elements."""
        if one.strides is None:
            return kinds.packed(shape)
        known = {name: getattr(problem, name) for name in self._numbers}
        stated = (extents.value(stride, known) for stride in one.strides)
        return tuple(s or p for s, p in zip(stated, kinds.packed(shape), strict=True))

    @property
    def _numbers(self) -> tuple[str, ...]:
        """The fields of a problem that sizes and strides may name."""
        return (*self.declared.sizes, *self.declared.strides, *self.declared.integers)

    def problem_of(self, call: Call, config: Any = None) -> Any:
        d = self.declared
        views = self._views(call)
        found = self._flags(call) | self._integers(call)
        for name, view in views.items():
            self._read(name, view, found)
        for name, view in views.items():
            self._compare(name, view, found)
        self._read_dtypes(call.options, found)
        for name, value in call.options.items():
            if name in d.stated_dtypes:
                continue
            if name not in d.options and name not in d.numbers:
                raise BadArgument(
                    f"{self.name} has no option '{name}'{nearest(name, self._keywords)}; it has "
                    f"{', '.join((*self._keywords, *d.scalars)) or 'none'}"
                )
            found[name] = value
        self._refuse_unsaid(found)
        numbers = {name: found.setdefault(name, 0) for name in self._numbers}
        for name, view in views.items():
            self._check_strides(name, view, numbers)
        aligned = math.gcd(*(view.address for view in views.values()), kinds.ALIGNMENTS[0])
        return self.problem_type(**found, alignment=aligned)

    def _refuse_unsaid(self, found: Mapping[str, Any]) -> None:
        """Raise `BadArgument` for sizes that no array of a call says."""
        missing = [size for size in self.declared.sizes if size not in found]
        if missing:
            raise BadArgument(f"the operands of this {self.name} do not say {', '.join(missing)}")

    def _views(self, call: Call, fold: bool = True) -> dict[str, View]:
        """The arrays of a call, by name, with their first dimensions as one where the operand folds
        them. Raises `BadArgument` for a wrong number."""
        d = self.declared
        first = self.arguments
        targets = self._targets(self._said(call))
        for name in call.named:
            if name not in d.optional:
                raise BadArgument(
                    f"{self.name} has no operand '{name}' to pass by keyword"
                    f"{nearest(name, d.optional)}"
                )
        if len(call.inputs) != len(first):
            raise BadArgument(
                f"{self.name} takes {len(first)} operands ({', '.join(first)}) and was given "
                f"{len(call.inputs)}; pass outputs as out="
            )
        views = dict(zip(first, call.inputs, strict=True)) | dict(call.named)
        if call.outputs is not None and len(call.outputs) == len(targets):
            views |= zip(targets, call.outputs, strict=True)
        return {n: self._fold(n, view) for n, view in views.items()} if fold else views

    def _fold(self, name: str, view: View) -> View:
        """A view with its first dimensions as one, if the operand folds them. Raises `BadArgument`
        where they do not lie evenly in memory."""
        one = self.declared.operands[name]
        more = len(view.shape) - len(one.shape)
        if not one.folds or more == 0 or more < -1:
            return view
        first = more + 1
        apart = kinds.packed(view.shape[:first])
        rows = view.strides[first - 1] if first else math.prod(view.shape)
        ahead = zip(view.shape[:first], view.strides[:first], apart, strict=True)
        if 0 not in view.shape and any(n > 1 and s != p * rows for n, s, p in ahead):
            raise BadArgument(
                f"the first {first} dimensions of {name} of {self.name} are taken as one, and do "
                f"not lie evenly: strides {view.strides}; pass a contiguous copy"
            )
        return replace(
            view,
            shape=(math.prod(view.shape[:first]), *view.shape[first:]),
            strides=(rows, *view.strides[first:]),
        )

    def _read(self, name: str, view: View, found: dict[str, Any]) -> None:
        """What an array says of the problem: sizes, strides and an element type, added to
        `found`."""
        one = self.declared.operands[name]
        if len(view.shape) != len(one.shape):
            said = ", ".join(map(str, one.shape))
            raise BadArgument(f"{name} of {self.name} has shape {view.shape}; it is [{said}]")
        for size, extent in zip(one.shape, view.shape, strict=True):
            said, by = extents.said(size, self._stated)
            if said and said not in found:
                found[said] = extent // max(1, extents.value(by, found))
        for stride, extent, apart in zip(
            one.strides or (), view.shape, view.strides, strict=bool(one.strides)
        ):
            if stride in self.declared.strides and extent > 1:
                if apart == 0:
                    raise BadArgument(
                        f"elements of {name} of {self.name} share memory: strides {view.strides}; "
                        "pass a contiguous copy"
                    )
                found.setdefault(str(stride), apart)
        wanted = one.dtype if one.dtype in DTYPES else found.setdefault(one.dtype, view.dtype)
        if view.dtype != wanted:
            raise BadArgument(f"{name} of {self.name} is {view.dtype}; it must be {wanted}")

    def _compare(self, name: str, view: View, found: Mapping[str, Any]) -> None:
        """Raise `BadArgument` where an array has another shape than the sizes that were found."""
        one = self.declared.operands[name]
        for size, extent in zip(one.shape, view.shape, strict=True):
            if any(part not in found for part in extents.names(size)):
                continue  # said by an output that is not passed
            wanted = extents.value(size, found)
            if extent != wanted:
                said = ", ".join(map(str, one.shape))
                raise BadArgument(
                    f"{name} of {self.name} has shape {view.shape}; it is [{said}], where {size} "
                    f"is {wanted}"
                )

    def _check_strides(self, name: str, view: View, numbers: Mapping[str, int]) -> None:
        """Raise `BadArgument` where an array has other strides than those declared."""
        one = self.declared.operands[name]
        if 0 in view.shape:
            return
        if one.strides is None:
            wanted = kinds.packed(view.shape)
        else:
            wanted = tuple(extents.value(stride, numbers) for stride in one.strides)
        apart = zip(view.shape, view.strides, wanted, strict=True)
        if any(n > 1 and s != p for n, s, p in apart):
            said = "" if one.strides is None else f", where {wanted} is declared"
            raise BadArgument(
                f"{name} of {self.name} has strides {view.strides}{said}; pass a contiguous copy"
            )

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
        stated = d.gradients_of(problem)
        if isinstance(stated, str):
            return no("gradients", stated)
        return gradient.backward(problem, stated, wanted, absent, constant, d.records)

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
        if d.tolerances is not None:
            return d.tolerances(problem, config)
        stated = self.operands(problem)
        terms = getattr(problem, d.terms) if isinstance(d.terms, str) else d.terms
        floats = [o.dtype for o in stated if o.read and DTYPES[o.dtype].kind == "float"]
        worst = max(floats, key=lambda name: DTYPES[name].eps, default="fp32")
        return {
            o.name: Tolerance(0.0, 0.0)
            if d.operands[o.name].exact
            else tolerance(worst, o.dtype, max(1, terms), amplified=d.amplifies)
            for o in stated
            if o.written
        }


def _keywords(d: Declaration) -> dict[str, Keyword]:
    stated = {**d.options, **d.numbers}
    options = {name: option(type(value).__name__, value) for name, value in stated.items()}
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
