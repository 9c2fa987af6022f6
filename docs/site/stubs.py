"""Writes what type checkers read of operations: ``python docs/site/stubs.py``.

Operations are found when they are first used, so that their functions stand in no source. This file
writes their signatures, and those of the other functions of families, into a stub.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import tilewright
from tilewright import ops
from tilewright.signature import ARRAY, signature

STUB = Path(tilewright.__file__).parent / "operations.pyi"

_HEAD = f'''"""What `tilewright` has of the families of operations, for type checkers.

Made by docs/site/stubs.py; do not edit.
"""

import collections.abc
from typing import Any
{{imports}}
{ARRAY} = Any
'''


def stub() -> str:
    """The text of the stub."""
    imports, made, functions = [], [], []
    for name in sorted(ops.families()):
        family = ops.family(name)
        kinds = (family.problem_type, family.config_type)
        imports += [
            _import(kind, kind.__name__) for kind in kinds if kind.__module__ != tilewright.__name__
        ]
        made += [f"{k.__name__}: type[Any]" for k in kinds if k.__module__ == tilewright.__name__]
        imports += [_import(value, word) for word, value in family.helpers.items()]
        functions.append(_function(name, signature(name), getattr(tilewright, name)))
        for word in family.functions:
            value = getattr(tilewright, word)
            functions.append(_function(word, inspect.signature(value, eval_str=True), value))
    head = _HEAD.format(imports="".join(f"\n{line}" for line in sorted(imports)) + "\n")
    return "\n".join([head + "".join(f"{line}\n" for line in made), *functions])


def _import(value: Any, name: str) -> str:
    return f"from {value.__module__} import {value.__qualname__} as {name}"


def _function(name: str, of: inspect.Signature, value: Any) -> str:
    lines, previous = [], None
    for one in of.parameters.values():
        if previous == one.POSITIONAL_ONLY != one.kind:
            lines.append("/")
        if one.kind == one.KEYWORD_ONLY and previous not in (one.KEYWORD_ONLY, one.VAR_POSITIONAL):
            lines.append("*")
        lines.append(_parameter(one))
        previous = one.kind
    result = _annotated(of.return_annotation)
    text = "".join(f"    {line},\n" for line in lines)
    first = re.split(r"\n\n|(?<=\.)\n", inspect.getdoc(value) or "")[0].replace("\n", "\n    ")
    return f'def {name}(\n{text}) -> {result}:\n    """{first}"""\n'


def _parameter(one: inspect.Parameter) -> str:
    stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
    default = "" if one.default is one.empty else f" = {one.default!r}".replace("'", '"')
    return f"{stars}{one.name}: {_annotated(one.annotation)}{default}"


def _annotated(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return "Any"
    if isinstance(annotation, str):
        return annotation
    return inspect.formatannotation(annotation).replace("typing.", "")


if __name__ == "__main__":
    STUB.write_text(stub())
    print(f"wrote {STUB}")
