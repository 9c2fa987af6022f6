"""The problem and config types of a declared operation, and its kernels' names."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import field, make_dataclass
from typing import Any

from tilewright.checks import whole
from tilewright.custom import docstrings, extents
from tilewright.custom.declaration import Declaration, flag
from tilewright.dtypes import DTYPES, dtype, named
from tilewright.errors import BadArgument, UnknownName, shown
from tilewright.ops.problem import Problem

ADDRESSES = 16
"""Bytes that addresses may be promised to be multiples of: what a lane loads at once at most."""

ALIGNMENTS = (16, 8, 4, 2, 1)
"""What kernels may be promised: addresses that are multiples of 16 bytes, and sizes and strides
that are multiples of this many elements. Fewer than 16 elements still let a lane load several at
once. 1: nothing is promised, of addresses neither."""

TOP = "tilewright"
"""The module that the types are attributes of, where `pickle` finds them: ``tilewright`` has those
of every family."""

_SHORT = {"num_warps": "w", "num_stages": "s", "alignment": "al"}


def problem_type(d: Declaration) -> type[Any]:
    """A frozen dataclass: sizes, strides (0: those of a contiguous array), element types, which
    optional operands are there, options, numbers, and what the addresses are multiples of."""
    fields: list[Any] = [(name, int) for name in d.sizes if name not in d.optional_sizes]
    fields += [(name, int, 0) for name in d.optional_sizes]
    fields += [(name, int, 0) for name in d.strides]
    for name in d.dtype_fields:
        fields.append((name, str, "" if name in d.stated_dtypes else d.dtypes.get(name, "bf16")))
    fields += [(flag(name), bool, False) for name in d.optional]
    fields += [(name, type(value), value) for name, value in d.options.items()]
    fields += [(name, int, value) for name, value in d.numbers.items()]
    fields.append(("alignment", int, ADDRESSES))

    def complete(self: Any) -> None:
        for name in (*d.sizes, *d.numbers):
            whole(name, getattr(self, name))
        for name, (operand, dimension) in d.strides.items():
            whole(name, getattr(self, name))
            if not getattr(self, name):
                shape = shape_of(d, operand, self)
                object.__setattr__(self, name, packed(shape)[dimension])
        for name in d.dtype_fields:
            usual = d.stated_dtypes.get(name, "")
            said = getattr(self, name) or getattr(self, usual, usual)
            object.__setattr__(self, name, dtype(named(said)).name)
        for name, value in d.options.items():
            if type(getattr(self, name)) is not type(value):
                raise BadArgument(f"{name} = {shown(str(getattr(self, name)))}: like {value!r}")
            listed = d.choices.get(name)
            if listed and getattr(self, name) not in listed:
                raise BadArgument(
                    f"{d.name} has no {name} = {shown(str(getattr(self, name)))}; there are "
                    f"{', '.join(map(repr, listed))}"
                )
        why = d.refuses(self)
        if why:
            raise BadArgument(f"{d.name}: {why}")

    def flops(self: Any) -> int:
        """Arithmetic operations, as they are declared."""
        return int(d.flops(self))

    def work(self: Any) -> dict[str, int]:
        """The operations by the element type whose unit does them."""
        count = int(d.flops(self))
        unit = next((getattr(self, name) for name in d.dtype_fields), "fp32")
        return {unit: count} if count else {}

    def counted(self: Any) -> int:
        """Bytes of every operand that is there and not passed for its sizes alone, once; twice of
        those written in place. Or as many as are declared."""
        if d.least is not None:
            return int(d.least(self))
        total = 0
        for name, one in d.operands.items():
            read = getattr(self, one.read) if isinstance(one.read, str) else one.read
            if read and d.there(name, self):
                count = math.prod(shape_of(d, name, self))
                each = DTYPES[getattr(self, one.dtype, one.dtype)].size(count)
                total += each * (2 if one.role == "inout" else 1)
        return total

    def min_bytes(self: Any) -> int:
        """`counted`, kept, as the estimate of each config asks for it."""
        return int(self.once(counted))

    def text(self: Any) -> str:
        usual = {f.name: f.default for f in dataclasses.fields(self)}
        for name, (operand, dimension) in d.strides.items():
            usual[name] = packed(shape_of(d, operand, self))[dimension]
        said = ((name, getattr(self, name)) for name in usual)
        shown = (
            f"{name}={int(value) if isinstance(value, bool) else value}"
            for name, value in said
            if value != usual[name] or name in d.dtype_fields
        )
        return " ".join([d.name, *shown])

    return make_dataclass(
        _class_name(d.name, "Problem"),
        fields,
        bases=(Problem,),
        namespace={
            "family": d.name,
            "_complete": complete,
            "flops": property(flops),
            "work": property(work),
            "min_bytes": property(min_bytes),
            "__str__": text,
            "__doc__": docstrings.problem(d),
            "__module__": TOP,
        },
        frozen=True,
        slots=True,
        eq=False,
    )


def shape_of(d: Declaration, operand: str, problem: Any) -> tuple[int, ...]:
    """The shape of an operand of a problem. Raises `BadArgument` for sizes that give none."""

    def extent(size: extents.Size) -> int:
        known = {name: int(getattr(problem, name)) for name in extents.names(size)}
        return extents.value(size, known)

    return tuple(map(extent, d.operands[operand].shape))


def packed(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides, in elements, of a contiguous array."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(1, shape[i + 1])
    return tuple(strides)


def config_type(d: Declaration) -> type[Any]:
    """A frozen dataclass: the signature (element types, which optional operands are there, and
    options), then alignment and the axes."""
    fields: list[Any] = [(name, str) for name in d.dtype_fields]
    fields += [(flag(name), bool) for name in d.optional]
    fields += [(name, type(value)) for name, value in d.options.items()]
    fields.append(("alignment", int))
    fields += [(name, type(values[0]), field(default=values[0])) for name, values in d.axes.items()]
    return make_dataclass(
        _class_name(d.name, "Config"),
        fields,
        namespace={
            "family": d.name,
            "name": property(lambda self: name_of(d, self), doc="The kernel's name."),
            "pipeline": property(lambda self: "custom", doc="One for all declared operations."),
            "__doc__": docstrings.config(d),
            "__module__": TOP,
        },
        frozen=True,
        slots=True,
    )


def signature(d: Declaration) -> tuple[str, ...]:
    """The fields that a config and the problems it serves have alike."""
    return (*d.dtype_fields, *map(flag, d.optional), *d.options)


def name_of(d: Declaration, config: Any) -> str:
    """``rms_norm_bf16_al16_BLOCK1024_w4_s1``: every field, in order."""
    words = [d.name, *(getattr(config, name) for name in d.dtype_fields)]
    for name in (*map(flag, d.optional), *d.options, "alignment", *d.axes):
        value = getattr(config, name)
        said = int(value) if isinstance(value, bool) else value
        words.append(f"{_SHORT.get(name, name)}{said}")
    return "_".join(words)


def made(d: Declaration, kind: type[Any], values: Mapping[str, Any]) -> Any:
    """The config with these values of all fields. Raises `BadArgument` for one of another type."""
    found = dict(values)
    for name in d.dtype_fields:
        found[name] = dtype(named(found[name])).name
    for name, of in _types(d).items():
        if type(found[name]) is not of:
            raise BadArgument(
                f"{d.name} has {name} = {shown(str(found[name]))}, which is no {of.__name__}"
            )
    return kind(**found)


def _types(d: Declaration) -> dict[str, type[Any]]:
    """The types of a config's fields, but for element types, in order."""
    return {
        **dict.fromkeys(map(flag, d.optional), bool),
        **{option: type(value) for option, value in d.options.items()},
        "alignment": int,
        **{axis: type(values[0]) for axis, values in d.axes.items()},
    }


def parse(d: Declaration, kind: type[Any], name: str) -> Any:
    """The config of this name. Raises `UnknownName`."""
    parts = [d.name, *(f"(?P<{field}>[a-z0-9]+)" for field in d.dtype_fields)]
    types = _types(d)
    for field_, of in types.items():
        value = r"[\w+]*?" if of is str else r"-?\d{1,18}"
        parts.append(f"{re.escape(_SHORT.get(field_, field_))}(?P<{field_}>{value})")
    found = re.fullmatch("_".join(parts), name)
    if found is None:
        raise UnknownName(f"'{name[:200]}' is no kernel of {d.name}")
    values: dict[str, Any] = dict(found.groupdict())
    for field_, of in types.items():
        if of is not str:
            values[field_] = of(int(values[field_]))
    if not all(values[field_] in DTYPES for field_ in d.dtype_fields):
        raise UnknownName(f"'{name[:200]}' names no element type of {d.name}")
    return kind(**values)


def _class_name(name: str, kind: str) -> str:
    return "".join(word.capitalize() for word in name.split("_")) + kind
