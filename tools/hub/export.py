"""Plans, the kernels that they run, and what `kernels` wants to know of a folder."""

from __future__ import annotations

import ast
import base64
import hashlib
import importlib.util
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from tilewright import ops
from tilewright.arch import arch
from tilewright.arch.model import Device
from tilewright.dispatch import Dispatcher
from tilewright.dtypes import dtype
from tilewright.errors import BadArgument, TilewrightError
from tilewright.ops.nouns import Descriptor, Given, KernelSource, Pointer, Scalar, Step
from tilewright.plan import Plan
from tilewright.select.constraints import Constraints

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
WHOLE = ("fp32", "fp16", "bf16", "e4m3fn", "e5m2", "int8", "int32", "bool")
"""Element types of operands that an export may have."""
_PACKAGE = "tilewright.ops."


@dataclass(frozen=True)
class Exported:
    """folder: of the variant. count: of problems. refused: those left out, and why."""

    folder: Path
    count: int
    refused: tuple[tuple[Any, str], ...]


def export(problems: Iterable[Any], target: Device, name: str, version: int, to: Path) -> Exported:
    """Write a variant of a repository.

    Raises `BadArgument` for a name that the Hub would not take, and if no problem can be exported.
    """
    if not NAME.fullmatch(name):
        raise BadArgument(f"the name '{name}' must be small letters and digits, joined by '-'")
    dispatcher = Dispatcher(device=target, bundle="none", constraints=Constraints(only_ours=True))
    plans, refused = [], []
    modules: set[str] = set()
    for problem in problems:
        try:
            plan, sources = planned(dispatcher, problem)
            plans.append(document(plan, sources))
        except TilewrightError as error:
            refused.append((problem, str(error)))
            continue
        for source in sources.values():
            modules |= closure(source.modules)
    if not plans:
        raise BadArgument("none of the problems has a kernel that can be exported")
    backend = arch(target.arch).backend
    folder = to / "build" / ("torch-cuda" if backend == "cuda" else "torch-rocm")
    files = {f"kernels/{flat(m)}.py": relative(text_of(m)) for m in sorted(modules)}
    files |= {
        "kernels/__init__.py": '"""Kernels in Triton."""\n',
        "plans.json": json.dumps(plans, indent=1) + "\n",
        "launch.py": Path(__file__).with_name("launch.py").read_text(),
        "__init__.py": _front({plan["op"] for plan in plans}),
        f"{name.replace('-', '_')}/__init__.py": _OLD,
    }
    for path, text in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    about = metadata(name, version, backend, target.arch, files)
    (folder / "metadata.json").write_text(json.dumps(about, indent=2) + "\n")
    return Exported(folder, len(plans), tuple(refused))


# --- plans -------------------------------------------------------------------------------------


def planned(dispatcher: Dispatcher, problem: Any) -> tuple[Plan, dict[str, KernelSource]]:
    """The best plan whose kernels are Triton's, and their sources. Raises `BadArgument`."""
    family = ops.family(problem.family)
    for one in family.operands(problem):
        if one.pointers or one.role == "inout" or one.dtype not in WHOLE:
            raise BadArgument(f"{one.name} is an operand that no export has")
    first = dispatcher.select(problem)
    for plan in chain([first], dispatcher.planner.stand_ins(first)):
        sources = dict(family.sources(plan.config, arch(plan.device.arch)))
        if sources and all(_exportable(source) for source in sources.values()):
            return plan, sources
    raise BadArgument("no kernel in Triton serves it")


def _exportable(source: KernelSource) -> bool:
    """Whether Triton itself builds this kernel as we do: we edit what Gluon's become."""
    return source.language == "triton" and source.cluster == 1


def document(plan: Plan, sources: dict[str, KernelSource]) -> dict[str, Any]:
    """A plan as launch.py reads it. Raises `BadArgument`."""
    problem, family = plan.problem, ops.family(plan.problem.family)
    operands = family.operands(problem)
    read = [one for one in operands if one.read]
    return {
        "op": problem.family,
        "kernel": plan.config.name,
        "names": [one.name for one in read if not one.keyword],
        "operands": {one.name: _lying(one) for one in read},
        "options": family.options(problem),
        "outputs": {
            one.name: [one.shape, one.strides, dtype(one.dtype).torch]
            for one in operands
            if one.role == "out"
        },
        "scalars": dict(family.scalar_defaults(problem)),
        "given": list(family.scalars),
        "alignment": problem.alignment,
        "temporaries": {
            one.name: [one.shape, dtype(one.dtype).torch, one.initial != "anything"]
            for one in plan.launch.temporaries
        },
        "steps": [_step(step, sources[step.part]) for step in plan.launch.steps],
    }


def _lying(one: Any) -> list[Any]:
    strides = [s if n > 1 else 0 for n, s in zip(one.shape, one.strides, strict=True)]
    return [list(one.shape), strides, dtype(one.dtype).torch]


def _step(step: Step, source: KernelSource) -> dict[str, Any]:
    promised = {name.partition(".")[0] for name, _ in source.divisibility}
    numbers = {n.partition(".")[0] for n, kind in source.arguments if not kind.startswith("*")}
    return {
        "kernel": _named(f"{source.module}:{source.function}"),
        "grid": step.grid,
        "constants": dict(source.constants),
        "functions": {name: [_named(one) for one in each] for name, each in source.functions},
        "empty": [name for name, kind in source.signature if kind == "()"],
        "plain": sorted(numbers - promised),
        "options": dict(source.options),
        "arguments": [
            [name, *_argument(one)]
            for (name, _), one in zip(source.arguments, step.arguments, strict=True)
        ],
    }


def _argument(one: Any) -> tuple[str, Any]:
    if isinstance(one, Pointer):
        return "pointer", one.operand
    if isinstance(one, Scalar):
        return "number", one.value
    if isinstance(one, Given):
        return "given", one.name
    assert isinstance(one, Descriptor)
    if any(step != 1 for step in one.element_strides):
        raise BadArgument("a descriptor has element strides, which Triton's have not")
    return "descriptor", [one.operand, one.shape, one.strides, one.block, one.offset]


def _named(function: str) -> list[str]:
    module, _, name = function.partition(":")
    return [flat(module), name]


# --- sources -----------------------------------------------------------------------------------


def flat(module: str) -> str:
    """The name of a kernel's module in the folder."""
    return module.removeprefix(_PACKAGE).replace(".", "_")


def text_of(module: str) -> str:
    """The source of a module of this package, or of a user's kernel. Raises `BadArgument`."""
    if not module.startswith(_PACKAGE):
        raise BadArgument(f"{module} is not a module of Tilewright's kernels")
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).read_text()


def closure(modules: Iterable[str]) -> set[str]:
    """The modules, and all of this package that they import. Raises `BadArgument`."""
    found: set[str] = set()
    left = [*modules]
    while left:
        module = left.pop()
        if module not in found:
            found.add(module)
            left += (one for one, _ in _imported(ast.parse(text_of(module))))
    return found


def _imported(tree: ast.Module) -> Iterator[tuple[str, ast.ImportFrom]]:
    """Modules of this package that a module imports, with the statements."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tilewright"):
            assert node.module is not None
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield (inner if _is_module(inner) else node.module), node


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def relative(text: str) -> str:
    """A module's source with imports of its neighbours in the folder."""
    lines = text.splitlines(keepends=True)
    statements = {node.lineno: node for _, node in _imported(ast.parse(text))}
    for first in sorted(statements, reverse=True):
        node = statements[first]
        assert node.module is not None and node.end_lineno is not None
        made = []
        for alias in node.names:
            inner, called = f"{node.module}.{alias.name}", alias.asname or alias.name
            from_, name = (".", flat(inner)) if _is_module(inner) else (
                f".{flat(node.module)}", alias.name
            )  # fmt: skip
            made.append(f"from {from_} import {name} as {called}\n")
        lines[first - 1 : node.end_lineno] = made
    return "".join(lines)


# --- what the Hub reads ------------------------------------------------------------------------


def _front(operations: set[str]) -> str:
    each = "\n\n".join(
        f"def {op}(*operands, **keywords):\n"
        f'    """Run {op}, as ``tilewright.{op}`` does, for the problems of this folder."""\n'
        f'    return call("{op}", *operands, **keywords)\n'
        for op in sorted(operations)
    )
    names = ", ".join(f'"{op}"' for op in sorted(operations))
    return (
        '"""Kernels of Tilewright, in Triton, for the problems in plans.json."""\n\n'
        f"from .launch import call\n\n__all__ = [{names}]\n\n\n{each}"
    )


_OLD = '''"""The same names, for versions of `kernels` that look here."""

import importlib.util
import sys
from pathlib import Path

_path = Path(__file__).parent.parent / "__init__.py"
_name = f"{__name__}_{abs(hash(_path)):x}"
_spec = importlib.util.spec_from_file_location(_name, _path)
_module = importlib.util.module_from_spec(_spec)
sys.modules[_name] = _module
_spec.loader.exec_module(_module)
__all__ = _module.__all__
globals().update({name: getattr(_module, name) for name in __all__})
'''


def metadata(
    name: str, version: int, backend: str, arch_name: str, files: dict[str, str]
) -> dict[str, Any]:
    """What metadata.json says."""
    digests = {path: hashlib.sha256(text.encode()).digest() for path, text in files.items()}
    own = hashlib.sha256(b"".join(digests[path] for path in sorted(digests))).hexdigest()[:7]
    kind, one = ("cuda", _capability(arch_name)) if backend == "cuda" else ("rocm", arch_name)
    return {
        "name": name,
        "id": f"_{name.replace('-', '_')}_{kind}_{own}",
        "version": version,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": kind, "archs": [one]},
        "digest": {
            "algorithm": "sha256",
            "files": {
                path: base64.b64encode(digest).decode() for path, digest in sorted(digests.items())
            },
        },
    }


def _capability(arch_name: str) -> str:
    digits = re.sub(r"[^0-9]", "", arch_name)
    return f"{digits[:-1]}.{digits[-1]}"
