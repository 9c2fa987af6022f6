"""Calls of public functions in Python with something wrong among their arguments."""

from __future__ import annotations

import inspect
import math
import runpy
from collections.abc import Callable
from dataclasses import fields
from fractions import Fraction
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import fuzz_seeds as seeds
import numpy as np

import tilewright
from tilewright import calls, capturing, flash_attn, ops, serving
from tilewright.arch import arch, device, targets
from tilewright.arrays import Random as Inputs
from tilewright.measure.filters import Filters
from tilewright.measure.measurement import Settings
from tilewright.measure.problems import load_problems
from tilewright.tables import file

WRONG: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7, 2**31, 2**63, -(2**63), 10**400, 1.5, -0.0, math.nan, math.inf,
    1e300, "", " ", "x", "bf16", "1", "a\0b", "\ud800", "x" * 5000, b"x", (), [], {}, (1,), [1, 2],
    (1, 2, 3), [None], ((1, 2), (3,)), {"a": 1}, {1, 2}, np.float32(0.5), np.int64(7),
    np.bool_(True), np.float64("nan"), np.zeros(3, np.float32), np.zeros((4, 4), np.float16),
    np.array(1.0), np.array(3), np.array("x"), np.zeros((2, 0, 3)), np.array([object()]),
    np.zeros(2, np.complex64), Fraction(1, 3), 1j, object(), object, len, Path("nowhere"), range(3),
)  # fmt: skip
"""Values of every kind that callers pass by mistake."""


PAGES = runpy.run_path(str(Path(__file__).parents[1] / "declared" / "page_cases.py"))["fields"]()
"""Fields of small problems of the operations that are pages."""


@cache
def right_calls() -> tuple[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]], ...]:
    """A right call of each operation on NumPy arrays of one of its first problems: operands, and
    keywords."""
    found = []
    for name in ops.families():
        family = ops.family(name)
        if name in ops.declared():
            problem = family.problem_type(**PAGES[name][0])
        else:
            problem = min(load_problems([f"{name}:small"], seeds.SM90).problems, key=_bytes)
        inputs = family.make_inputs(problem, Inputs(1))
        given, named = calls.positional(problem, inputs)
        found.append((getattr(tilewright, name), (*given,), {**named, **family.options(problem)}))
    return tuple(found)


def _bytes(problem: Any) -> int:
    return int(problem.min_bytes)


def wrong(random: Random) -> Any:
    return random.choice(WRONG)


def _operation(random: Random) -> None:
    """One or two arguments of a right call are wrong, left out, or too many."""
    call, given, named = random.choice(right_calls())
    operands, keywords = [*given], dict(named)
    known = [*inspect.signature(call).parameters, *keywords]
    for _ in range(random.choice((1, 1, 2))):
        how = random.randrange(6)
        if how < 2 and operands:
            operands[random.randrange(len(operands))] = wrong(random)
        elif how == 2 and operands:
            del operands[random.randrange(len(operands))]
        elif how == 3:
            operands.insert(random.randrange(len(operands) + 1), wrong(random))
        else:
            keywords[random.choice(known)] = wrong(random)
    for name in ("operands", "options", "stream"):
        keywords.pop(name, None)
    call(*operands, **keywords)


@cache
def functions() -> tuple[Callable[..., Any], ...]:
    """The other functions and the helpers of each family."""
    found = []
    for family in map(ops.family, ops.families()):
        found += [getattr(tilewright, name) for name in (*family.helpers, *family.functions)]
    return tuple(found)


def _function(random: Random) -> None:
    call = random.choice(functions())
    arrays = (np.zeros((1, 2, 4, 4), np.float16), np.ones((2, 3, 4), np.float32),
              np.zeros((8, 8), np.float32), np.zeros(4, np.int32))  # fmt: skip
    keywords = {
        name: wrong(random) if random.randrange(3) else random.choice(arrays)
        for name, one in inspect.signature(call).parameters.items()
        if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        and (one.default is one.empty or random.randrange(3) == 0)
    }
    call(**keywords)


@cache
def serving_functions() -> tuple[Callable[..., Any], ...]:
    """The functions and classes of `flash_attn` and `serving`, and the methods of plans."""
    found: list[Callable[..., Any]] = []
    for module in (flash_attn, serving):
        for one in (getattr(module, name) for name in module.__all__):
            found.append(one)
            if inspect.isclass(one):
                found += [_method(one, name) for name in ("plan", "run") if hasattr(one, name)]
    return tuple(found)


def _method(kind: Any, name: str) -> Callable[..., Any]:
    """A method of a new object, with the method's parameters."""

    def call(**given: Any) -> Any:
        return getattr(kind("cpu"), name)(**given)

    signature = inspect.signature(getattr(kind, name))
    call.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[p for p in signature.parameters.values() if p.name != "self"]
    )
    return call


def _serving(random: Random) -> None:
    """Required arguments, and some others, are tensors or something wrong."""
    import torch

    call = random.choice(serving_functions())
    batch, offsets = torch.zeros(2, 4, 2, 16).half(), torch.tensor([0, 4, 8], dtype=torch.int32)
    usual = {
        **dict.fromkeys(("q", "k", "v", "k_cache", "v_cache"), batch),
        **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), offsets),
        **dict.fromkeys(("max_seqlen_q", "max_seqlen_k"), 4),
        "qkv": torch.zeros(2, 4, 3, 2, 16).half(),
        "kv": torch.zeros(2, 4, 2, 2, 16).half(),
        "num_qo_heads": 2,
        "num_kv_heads": 2,
        "head_dim": 16,
        "page_size": 4,
    }
    packed = (batch.flatten(0, 1), torch.zeros(8, 2), torch.ones(8).bool(), torch.tensor(0.5))
    tensors = (batch, offsets, *packed, torch.zeros(3, 2, 4, 2, 16))
    keywords = {
        name: wrong(random) if random.randrange(8) == 0 else usual.get(name, random.choice(tensors))
        for name, one in inspect.signature(call).parameters.items()
        if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        and (one.default is one.empty or random.randrange(4) == 0)
    }
    call(**keywords)


def _problem(random: Random) -> None:
    problem = random.choice(seeds.problems())
    said = {one.name: getattr(problem, one.name) for one in fields(problem)}
    for _ in range(random.choice((1, 1, 2))):
        said[random.choice([*said])] = wrong(random)
    made = type(problem)(**said)
    str(made), made.flops, made.min_bytes, made.work, hash(made)


def _entry(random: Random) -> None:
    """A function that takes names, paths and numbers."""
    one, other = wrong(random), wrong(random)
    random.choice(ENTRIES)(one, other)


ENTRIES: tuple[Callable[[Any, Any], Any], ...] = (
    lambda x, y: arch(x),
    lambda x, y: device(x),
    lambda x, y: targets.parse(x, list),
    lambda x, y: tilewright.Bundle(x, trusted=True),
    lambda x, y: tilewright.Store(x).load("0" * 64),
    lambda x, y: tilewright.Store("nowhere").load(x),
    lambda x, y: tilewright.Dispatcher(device=x),
    lambda x, y: tilewright.Dispatcher(bundle=x),
    lambda x, y: tilewright.Dispatcher(tables=x),
    lambda x, y: tilewright.Dispatcher(max_workspace=x),
    lambda x, y: tilewright.Registry("r").get(x),
    lambda x, y: tilewright.Registry("r").register(x, y),
    lambda x, y: tilewright.Registry.load(x),
    lambda x, y: tilewright.Registry.from_json(x),
    lambda x, y: tilewright.load_space(x, seeds.SM90),
    lambda x, y: tilewright.KernelSpace(x, {}),
    lambda x, y: tilewright.KernelSpace("gemm", {"tile_m": x, "layout": y}).expand("sm_90"),
    lambda x, y: tilewright.KernelSpace("gemm", {}).expand(x),
    lambda x, y: load_problems([x], seeds.SM90),
    lambda x, y: file.load(x),
    lambda x, y: capturing.load(x),
    lambda x, y: tilewright.pointers(x, y),
    lambda x, y: ops.family(x),
    lambda x, y: ops.family_of(x),
    lambda x, y: Settings(budget_seconds=x, min_samples=y),
    lambda x, y: Filters(match=(x,), where=y).apply(seeds.configs()[:2]),
    lambda x, y: Filters(where=x).apply(seeds.configs()[:2]),
)

ARGUMENTS: dict[str, tuple[Callable[[Random], None], int]] = {
    "operations": (_operation, 1500),
    "functions": (_function, 500),
    "serving": (_serving, 1500),
    "problems": (_problem, 1000),
    "entries": (_entry, 1500),
}
"""How each is called, and how often."""
