"""From kernels' signatures to what is compiled and what is launched.

A kernel's parameters are its interface. A family's catalogue says once what each of their names
means: an array, numbers, a number that the call gives, or a constant. The signature is read from
the kernel's source, so that planning needs no Triton.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from tilewright.arch.model import Arch, Device
from tilewright.dtypes import DTYPES
from tilewright.errors import BadArgument, nearest
from tilewright.ops.nouns import (
    TEMPORARY_ALIGNMENT,
    Argument,
    Descriptor,
    Initial,
    KernelSource,
    Launch,
    Operand,
    Pointer,
    Scalar,
    Step,
    Temporary,
)
from tilewright.ops.nouns import Given as GivenArgument

Value = int | bool | str
Box = tuple[int, ...]
"""The tile that one copy of a descriptor moves, outermost dimension first."""

ALLOCATED = 16
"""Bytes that kernels are promised of a temporary's address: what the widest load takes."""
assert TEMPORARY_ALIGNMENT % ALLOCATED == 0


@dataclass(frozen=True, slots=True)
class Context:
    """What the values of a launch may depend on.

    config, problem: the family's own.
    operands: the problem's, by name, if the catalogue reads them.
    splits: parts that a sum is cut into.
    case: what else the family knows of this launch, for instance which pixels it is of.
    """

    config: Any
    problem: Any
    device: Device
    operands: Mapping[str, Operand] = field(default_factory=dict)
    splits: int = 1
    case: Any = None


def _always(config: Any) -> bool:
    return True


def _never(config: Any) -> bool:
    return False


def _unknown(config: Any) -> int:
    return 1


@dataclass(frozen=True, slots=True)
class Described:
    """A descriptor's view of an array.

    shape, strides: in elements. offset: elements to the first.
    operand: what it views, if that has another name than the parameter.
    steps: elements from one of a tile to the next, by dimension; () is 1.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    operand: str = ""
    offset: int = 0
    steps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Array:
    """A parameter that is a pointer, or a descriptor where the part has a box for it.

    dtype: of the elements: Tilewright's name, the config's field that says it, or from the config.
    operand: what it points to, for a launch; by default the parameter's name.
    there: whether a config's kernel gets it.
    aligned: bytes that its address is a multiple of; by default those of a temporary, or 1.
    near: whether it spans under 2 GiB, for AMD's buffer instructions.
    view: what a descriptor of it shows, for a launch, unless the part says it.
    shape: of a temporary, for a launch; None for an operand. A launch has a temporary if a step
        points to it.
    initial: how a temporary begins. inside: see `Temporary`, for a launch.
    """

    dtype: str | Callable[[Any], str]
    operand: Callable[[Context], str] | None = None
    there: Callable[[Any], bool] = _always
    aligned: Callable[[Any], int] | None = None
    near: Callable[[Any], bool] = _never
    view: Callable[[Context], Described] | None = None
    shape: Callable[[Context], tuple[int, ...]] | None = None
    initial: Callable[[Any], Initial] = lambda config: "anything"
    inside: Callable[[Context], str] = lambda context: ""

    def types(self, config: Any) -> str:
        return f"*{DTYPES[self.dtype_of(config)].triton}"

    def dtype_of(self, config: Any) -> str:
        said = self.dtype(config) if callable(self.dtype) else self.dtype
        return said if said in DTYPES else str(getattr(config, said))

    def multiples(self, config: Any) -> int:
        if self.aligned is not None:
            return self.aligned(config)
        return ALLOCATED if self.shape is not None else 1

    def pointed(self, name: str, context: Context) -> str:
        return self.operand(context) if self.operand else name

    def passed(self, name: str, context: Context) -> Iterable[Argument]:
        return (Pointer(self.pointed(name, context)),)


@dataclass(frozen=True, slots=True)
class Numbers:
    """A parameter that is a number known with the plan, or a tuple of them.

    kinds: Triton's types, for a config if need be; of a tuple, one for each element.
    values: for a launch, one for each type.
    there: whether a config's kernel gets it.
    multiples: what the number, or each element, is a multiple of.
    instead: the constant that a kernel has which does not get it.
    """

    kinds: str | tuple[str, ...] | Callable[[Any], str | tuple[str, ...]]
    values: Callable[[Context], Any]
    there: Callable[[Any], bool] = _always
    multiples: Callable[[Any], int | tuple[int, ...]] = _unknown
    instead: Callable[[Any], int] = lambda config: 0

    def types(self, config: Any) -> str | tuple[str, ...]:
        return self.kinds(config) if callable(self.kinds) else self.kinds

    def passed(self, name: str, context: Context) -> Iterable[Argument]:
        types, values = self.types(context.config), self.values(context)
        if isinstance(types, str):
            types, values = (types,), (values,)
        return (Scalar(kind, value) for kind, value in zip(types, values, strict=True))


@dataclass(frozen=True, slots=True)
class Given:
    """A parameter that the caller gives at each call, under its own name.

    type: Triton's.
    there: whether a config's kernel gets it.
    """

    type: str
    there: Callable[[Any], bool] = _always
    multiples: Callable[[Any], int] = _unknown

    def types(self, config: Any) -> str:
        return self.type

    def passed(self, name: str, context: Context) -> Iterable[Argument]:
        return (GivenArgument(self.type, name),)


@dataclass(frozen=True, slots=True)
class Tuple:
    """A parameter that is a tuple of arrays and numbers.

    of: its elements, for a config. They are named ``x.0``, ``x.1``… of the parameter ``x``.
    there: whether a config's kernel gets it.
    """

    of: Callable[[Any], Sequence[Array | Numbers]]
    there: Callable[[Any], bool] = _always


Meaning = Array | Numbers | Given | Tuple

Functions = tuple[str, ...]
"""Triton functions that a kernel calls, each as ``"module:function"``."""

Constant = Callable[[Any, Arch], Value | Functions]
"""A parameter that is known when the kernel is compiled, from a config and an architecture."""

Catalogue = Mapping[str, Meaning | Constant]
"""What parameters mean, by name. A constant that it lacks is the config's field of the same name in
small letters."""


def sizes(*names: str) -> dict[str, Numbers]:
    """Numbers that are fields of the problem, under the same names."""
    return {name: Numbers("i32", _of_problem(name)) for name in names}


def _of_problem(name: str) -> Callable[[Context], int]:
    return lambda x: int(getattr(x.problem, name))


@dataclass(frozen=True, slots=True)
class Interface:
    """A kernel's signature.

    language: the compiler's front end.
    parameters: by name, in order, whether each is a constant.
    """

    language: Literal["triton", "gluon"]
    parameters: Mapping[str, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One kernel of a config.

    name: of the part. kernel: where its kernel is, as ``"module:function"``.
    grid: workgroups, in x or in x, y and z; a launch leaves out a part that has none.
    options: the compiler's.
    there: whether a config has the part.
    own: meanings that are this kernel's alone, in place of the catalogue's.
    boxes: of the parameters that are descriptors, by name. views: what they show, for the same.
    cluster: workgroups that reach each other's shared memory; the grid counts clusters.
    signature: the kernel's, where its function is at hand; else it is read from its source.
    """

    name: str
    kernel: str
    grid: Callable[[Context], int | tuple[int, int, int]]
    options: Callable[[Any, Arch], tuple[tuple[str, Value], ...]]
    there: Callable[[Any], bool] = _always
    own: Catalogue = field(default_factory=dict)
    boxes: Callable[[Any], Mapping[str, Box]] = lambda config: {}
    views: Callable[[Any, Any], Mapping[str, Described]] = lambda config, problem: {}
    cluster: Callable[[Any], int] = _unknown
    signature: Interface | None = None

    @property
    def interface(self) -> Interface:
        return self.signature or interface(self.kernel)


@cache
def interface(kernel: str) -> Interface:
    """The signature of a kernel, from its source: neither the module nor Triton is imported.
    Raises `BadArgument` if the module has no such kernel."""
    module, _, function = kernel.partition(":")
    found = find_spec(module)
    text = Path(found.origin).read_text("utf-8") if found and found.origin else ""
    # The head alone is parsed: a whole file takes 10 ms or more.
    head = re.search(rf"^@(\S*jit)\n(def {function}\(.*?\)):", text, re.MULTILINE | re.DOTALL)
    if head is None:
        raise BadArgument(f"there is no kernel {kernel}")
    decorator, signature = head.groups()
    (parsed,) = ast.parse(f"{signature}: pass").body
    assert isinstance(parsed, ast.FunctionDef)
    constants = ((p.arg, p.annotation and ast.unparse(p.annotation)) for p in parsed.args.args)
    return Interface(
        "triton" if decorator == "triton.jit" else "gluon",
        {name: "constexpr" in (annotation or "") for name, annotation in constants},
    )


def _meanings(
    part: Part, catalogue: Catalogue, config: Any, constants: bool = True
) -> Iterable[tuple[str, Meaning | Constant]]:
    """The parameters of a part's kernel, in order, with their meanings; also the constants, or
    without them."""
    for name, constant in part.interface.parameters.items():
        if constant and not constants:
            continue
        meaning = part.own.get(name) or catalogue.get(name)
        if meaning is None and constant and hasattr(config, name.lower()):
            meaning = _field(name.lower())
        if meaning is None:
            raise BadArgument(
                f"{part.kernel} takes '{name}', which its family's catalogue does "
                f"not have{nearest(name, catalogue)}"
            )
        if constant and not callable(meaning):
            raise BadArgument(
                f"{part.kernel} takes '{name}' as a constant, and its family's catalogue has it as "
                "an argument"
            )
        yield name, meaning


def _field(name: str) -> Constant:
    return lambda config, arch: getattr(config, name)


def sources(
    parts: Iterable[Part], catalogue: Catalogue, config: Any, arch: Arch
) -> dict[str, KernelSource]:
    """What to compile for a config, by part. Raises `BadArgument` for a parameter without a
    meaning."""
    return {one.name: _source(one, catalogue, config, arch) for one in parts if one.there(config)}


def _source(part: Part, catalogue: Catalogue, config: Any, arch: Arch) -> KernelSource:
    boxes = part.boxes(config)
    signature: dict[str, str] = {}
    constants: dict[str, Value] = {}
    functions: dict[str, Functions] = {}
    promises: dict[str, int] = {}
    near: list[str] = []
    for name, meaning in _meanings(part, catalogue, config):
        if callable(meaning) or not meaning.there(config):
            signature[name] = "constexpr"
            value = meaning(config, arch) if callable(meaning) else _instead(meaning, config)
            if isinstance(value, tuple):
                functions[name] = value
            else:
                constants[name] = value
            continue
        for one in _elements(name, meaning, config, boxes):
            signature[one.name] = one.type
            if one.multiple > 1:
                promises[one.name] = one.multiple
            if one.near:
                near.append(one.name)
    module, _, function = part.kernel.partition(":")
    return KernelSource(
        module=module,
        function=function,
        signature=tuple(signature.items()),
        constants=tuple(constants.items()),
        divisibility=tuple(promises.items()),
        pointer_range_32=tuple(near) if arch.backend == "hip" else (),
        options=part.options(config, arch),
        language=part.interface.language,
        functions=tuple(functions.items()),
        cluster=part.cluster(config),
    )


def _instead(meaning: Meaning, config: Any) -> int:
    """The constant in place of what a config's kernel does not get."""
    return meaning.instead(config) if isinstance(meaning, Numbers) else 0


@dataclass(frozen=True, slots=True)
class _Element:
    """A parameter, or one element of a parameter that is a tuple.

    type: Triton's. multiple: what its value is a multiple of. near: whether the array it points to
    spans under 2 GiB.
    """

    name: str
    type: str
    multiple: int = 1
    near: bool = False


def _elements(
    name: str, meaning: Meaning, config: Any, boxes: Mapping[str, Box]
) -> Sequence[_Element]:
    if isinstance(meaning, Tuple):
        each = (
            _elements(f"{name}.{i}", one, config, boxes) for i, one in enumerate(meaning.of(config))
        )
        return [one for found in each for one in found] or [_Element(name, "()")]
    types = meaning.types(config)
    if name in boxes:
        assert isinstance(types, str)
        return [_Element(name, f"tensordesc<{types[1:]}[{', '.join(map(str, boxes[name]))}]>")]
    multiples = meaning.multiples(config)
    if isinstance(types, str):
        assert isinstance(multiples, int)
        near = isinstance(meaning, Array) and meaning.near(config)
        return [_Element(name, types, multiples, near)]
    if isinstance(multiples, int):
        multiples = (multiples,) * len(types)
    pairs = enumerate(zip(types, multiples, strict=True))
    found = [_Element(f"{name}.{i}", kind, multiple) for i, (kind, multiple) in pairs]
    return found or [_Element(name, "()")]


def launch(parts: Iterable[Part], catalogue: Catalogue, context: Context) -> Launch:
    """The steps of a config's parts that have workgroups, and the temporaries that they point to.
    Raises `BadArgument` for a parameter without a meaning."""
    steps = []
    for part in parts:
        if part.there(context.config):
            grid = part.grid(context)
            x, y, z = (grid, 1, 1) if isinstance(grid, int) else grid
            if x * y * z:
                passed = tuple(_passed(part, catalogue, context))
                steps.append(Step((x, y, z), passed, part.name))
    pointed = (
        one.operand for step in steps for one in step.arguments if isinstance(one, _POINTING)
    )
    found = (_temporary(name, catalogue, context) for name in dict.fromkeys(pointed))
    return Launch(tuple(steps), tuple(one for one in found if one is not None))


_POINTING = (Pointer, Descriptor)


def _passed(part: Part, catalogue: Catalogue, context: Context) -> Iterable[Argument]:
    boxes = part.boxes(context.config)
    views = part.views(context.config, context.problem) if boxes else {}

    def passed(name: str, meaning: Meaning) -> Iterable[Argument]:
        if isinstance(meaning, Tuple):
            for i, one in enumerate(meaning.of(context.config)):
                yield from passed(f"{name}.{i}", one)
        elif name in boxes and isinstance(meaning, Array):
            view = meaning.view(context) if meaning.view else views[name]
            yield Descriptor(
                view.operand or meaning.pointed(name, context),
                meaning.dtype_of(context.config),
                view.shape,
                view.strides,
                boxes[name],
                view.offset,
                view.steps,
            )
        else:
            yield from meaning.passed(name, context)

    for name, meaning in _meanings(part, catalogue, context.config, constants=False):
        if not callable(meaning) and meaning.there(context.config):
            yield from passed(name, meaning)


def _temporary(name: str, catalogue: Catalogue, context: Context) -> Temporary | None:
    """The temporary of this name; None if an operand has it."""
    one = catalogue.get(name)
    if not isinstance(one, Array) or one.shape is None:
        return None
    dtype, initial = one.dtype_of(context.config), one.initial(context.config)
    return Temporary(name, one.shape(context), dtype, initial, one.inside(context))
