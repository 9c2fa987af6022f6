"""Sweep documents: the spaces that files declare, and a space as a document."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright import ops
from tilewright.arch.model import Arch
from tilewright.errors import BadArgument, BadFile, nearest, shown
from tilewright.jsonfile import load_json
from tilewright.space import A_VALUE, KernelSpace, is_value

MAX_RANGE = 10_000
"""Most values of one axis of a file; more are surely a mistake."""


def load_space(
    path: str | os.PathLike[str],
    arch: Arch,
    family: str | None = None,
    signature: Mapping[str, str] | None = None,
) -> tuple[KernelSpace, list[str]]:
    """The space that the sweep file at `path` declares, and a note for each part of the file
    without a counterpart here.

    family: by default the file's ``"family"`` (or ``"op"``), else the family of the file's variant,
    else the family that reads such files, some of which it knows by their names. The variant is the
    file's ``"variant"``, else the folder in which CK Tile Engine has the file
    (``batched_gemm/configs/default_config.json``).
    signature: values that a file may leave to the command line (its dtypes and layout).

    Raises `BadFile`, with the file and the place in it, for any fault of the file, and
    `UnknownName` for an unknown `family`.
    """
    document = load_json(path)
    where = os.fspath(path)
    if not isinstance(document, dict):
        raise BadFile(f"{where}: $: a sweep is an object, not {_json_type(document)}")
    for one in ops.families() if family is None else (family,):
        by_name = ops.family(one).formats.by_name
        try:
            theirs = by_name(Path(where).name, document, arch, signature) if by_name else None
        except BadFile as error:
            raise BadFile(f"{where}: {error}") from error
        if theirs is not None:
            return theirs
    word = document.get("variant", _folder(where))
    has = next((f for f in ops.families() if word in ops.family(f).formats.folders), None)
    name = family or _family_of(document, where, has)
    if name == has:
        document = {**document, "variant": word}
    try:
        read = ops.family(name).formats.read
        if read is None:
            return read_axes(name, document, signature), []
        space, notes = read(document, arch, signature)
    except BadFile as error:
        raise BadFile(f"{where}: {error}") from error
    return space, notes


def _folder(where: str) -> str:
    """The name of the folder that holds the file's folder ``configs``, as in CK Tile Engine; else
    ""."""
    folder = Path(where).parent
    return folder.parent.name if folder.name == "configs" else ""


def _family_of(document: Mapping[str, Any], where: str, usual: str | None) -> str:
    known = ops.families()
    for key in ("family", "op"):
        if key in document:
            word = document[key]
            if not isinstance(word, str) or word not in known:
                hint = nearest(word, known)
                raise BadFile(
                    f"{where}: $.{key}: no operation family {shown(word)}{hint};"
                    f" known: {', '.join(known)}"
                )
            return word
    if usual is not None:
        return usual
    for name in known:
        if ops.family(name).formats.unnamed:
            return name
    raise BadFile(f"{where}: $: no 'family'; it must be one of {', '.join(known)}")


def read_axes(
    family: str, document: Mapping[str, Any], signature: Mapping[str, str] | None = None
) -> KernelSpace:
    """The space of a document whose fields are the family's own axes.

    signature: values of axes that the document leaves out.

    A field of several axes, separated by commas, has a list of values of all of them in each row:
    ``"head_dim,mask": [[64, "none"], [128, "causal"]]``. Fields that begin with an underscore are
    comments. Raises `BadFile`, and `BadArgument` for the signature.
    """
    said = {
        axis: values
        for axis, values in document.items()
        if axis not in ("family", "op") and not axis.startswith("_")
    }
    known = ops.family(family).axes()
    groups = {axes: tuple(axis.strip() for axis in axes.split(",")) for axes in said if "," in axes}
    single = [axis for axis in said if axis not in groups]
    declared = [*single, *itertools.chain.from_iterable(groups.values())]
    for axis in declared:
        if declared.count(axis) > 1:
            raise BadFile(f"$: axis '{axis}' is declared {declared.count(axis)} times")
        if axis not in known:
            listed = ", ".join(known)
            raise BadFile(
                f"$: {family} kernels have no axis {shown(axis)}{nearest(axis, known)}; they have "
                f"{listed}"
            )
    axes = {axis: axis_values(said[axis], f"$.{axis}") for axis in single}
    linked = {group: _rows(said[axes], len(group), f"$.{axes}") for axes, group in groups.items()}
    left_open = {
        axis: word
        for axis, word in (signature or {}).items()
        if not any(axis in group for group in linked)
    }
    for axis, word in left_open.items():
        if not isinstance(known.get(axis, word), str):
            raise BadArgument(f"{axis}={word}: give numbers in the document, not in the signature")
        axes.setdefault(axis, [word])
    return KernelSpace(family, axes, linked=linked)


def _rows(rows: Any, width: int, place: str) -> list[tuple[Any, ...]]:
    """The rows of axes whose values go together. Raises `BadFile`."""
    if not isinstance(rows, list) or not rows:
        raise BadFile(f"{place}: axes that go together have a list of rows")
    for row in rows:
        if not isinstance(row, list) or len(row) != width:
            raise BadFile(f"{place}: each row is a list of {width} values, not {shown(row)}")
        for value in row:
            if not (is_value(value) or value is None):  # null is judged by the axis
                raise BadFile(f"{place}: no axis has the value {shown(value)}: {A_VALUE}")
    return [tuple(row) for row in rows]


def space_to_json(space: KernelSpace) -> dict[str, Any]:
    """`space` as a sweep document, which `load_space` reads back.

    Raises `BadArgument` for a space with constraints or linked axes, which not every family's form
    can express.
    """
    if space.constraints or space.linked:
        inexpressible = ", ".join([*space.constraints, *map(str, space.linked)])
        raise BadArgument(f"a sweep document cannot express constraints and links: {inexpressible}")
    axes = {axis: {"values": list(values)} for axis, values in space.axes.items()}
    return {"family": space.family, **axes}


def axis_values(axis: Any, place: str) -> list[Any]:
    """The values of one axis of a sweep document.

    axis: ``{"values": [...]}``, ``{"min": 64, "max": 256, "step": 64, "exclude": [192]}`` (`max`
    included, `exclude` optional), a bare list, or a bare value.
    place: names the axis in errors.

    Raises `BadFile`.
    """
    if isinstance(axis, dict):
        values = _listed(axis, place) if "values" in axis else _ranged(axis, place)
    elif isinstance(axis, list):
        values = axis
    elif axis is None:
        raise BadFile(f"{place}: an axis needs values, not null")
    else:
        values = [axis]
    if not values:
        raise BadFile(f"{place}: the axis has no values; leave it out or give at least one")
    if len(values) > MAX_RANGE:
        raise BadFile(f"{place}: {len(values)} values are over {MAX_RANGE}")
    for value in values:
        if not (is_value(value) or value is None):  # null is judged by the axis
            raise BadFile(f"{place}: the axis cannot have the value {shown(value)}: {A_VALUE}")
    return values


def _listed(axis: dict[str, Any], place: str) -> list[Any]:
    _only(axis, ("values",), place)
    values = axis["values"]
    if not isinstance(values, list):
        raise BadFile(f"{place}.values: must be a list, not {_json_type(values)}")
    return values


def _ranged(axis: dict[str, Any], place: str) -> list[Any]:
    _only(axis, ("min", "max", "step", "exclude"), place, instead="values")
    for key in ("min", "max", "step"):
        if key not in axis:
            raise BadFile(f"{place}: an axis has 'values', or 'min', 'max' and 'step'; no '{key}'")
        if type(axis[key]) is not int:
            raise BadFile(f"{place}.{key}: must be a whole number, not {_json_type(axis[key])}")
    low, high, step = axis["min"], axis["max"], axis["step"]
    if step < 1:
        raise BadFile(f"{place}.step: must be 1 or more, not {step}")
    if low > high:
        raise BadFile(f"{place}: min {low} is over max {high}")
    if (high - low) // step >= MAX_RANGE:
        raise BadFile(f"{place}: {low} to {high} by {step} is over {MAX_RANGE} values")
    exclude = axis.get("exclude", [])
    if not isinstance(exclude, list):
        raise BadFile(f"{place}.exclude: must be a list, not {_json_type(exclude)}")
    if any(type(value) is not int for value in exclude):
        raise BadFile(f"{place}.exclude: must be a list of whole numbers")
    excluded = set(exclude)
    return [value for value in range(low, high + 1, step) if value not in excluded]


def _only(axis: dict[str, Any], known: tuple[str, ...], place: str, instead: str = "") -> None:
    for key in axis:
        if key not in known:
            hint = nearest(key, (*known, instead) if instead else known)
            raise BadFile(f"{place}: unknown field {shown(key)}{hint}; known: {', '.join(known)}")


def _json_type(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
    return "null" if value is None else names.get(type(value), "a number")
