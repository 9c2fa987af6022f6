"""Launches the kernels of this folder: a call is looked up among the plans in plans.json."""

from __future__ import annotations

import importlib
import json
from contextlib import nullcontext
from functools import cache, lru_cache
from pathlib import Path

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

_FILE = Path(__file__).with_name("plans.json")


def call(op, *operands, **keywords):
    """Run an operation; returns its output, a tuple of several. Raises ValueError for a call that
    no plan is for."""
    tensors = {name: x for name, x in keywords.items() if isinstance(x, torch.Tensor)}
    numbers = {n: x for n, x in keywords.items() if n in _plans()[op][0]["given"]}
    options = {n: x for n, x in keywords.items() if n not in tensors and n not in numbers}
    described = [_described(x) for x in operands]
    named = {name: _described(x) for name, x in tensors.items()}
    plan = _plan(op, json.dumps([described, named, options]))
    memory = {**dict(zip(plan["names"], operands)), **tensors}
    if any(x.data_ptr() % plan["alignment"] for x in memory.values()):
        raise ValueError(f"operands must be aligned to {plan['alignment']} bytes")
    place = operands[0].device
    outputs = {name: _empty(place, *like) for name, like in plan["outputs"].items()}
    memory.update(outputs)
    for name, (shape, dtype, zero) in plan["temporaries"].items():
        make = torch.zeros if zero else torch.empty
        memory[name] = make(shape, dtype=getattr(torch, dtype), device=place)
    numbers = {**plan["scalars"], **numbers}
    with torch.cuda.device(place) if place.type == "cuda" else nullcontext():
        for step in plan["steps"]:
            _launch(step, memory, numbers)
    made = tuple(outputs.values())
    return made[0] if len(made) == 1 else made


@cache
def _plans():
    """The plans of each operation."""
    found = {}
    for plan in json.loads(_FILE.read_text()):
        found.setdefault(plan["op"], []).append(plan)
    return found


@lru_cache(maxsize=4096)
def _plan(op, said):
    described, named, options = json.loads(said)
    for plan in _plans()[op]:
        operands = {**dict(zip(plan["names"], described)), **named}
        whole = len(operands) == len(described) + len(named)
        if whole and operands == plan["operands"] and options == plan["options"]:
            return plan
    raise ValueError(f"no kernel here is for {op} of {described}, {named} and {options}")


def _described(x):
    """Shape, strides and dtype. The stride of a dimension of size 1 says nothing."""
    shape = list(x.shape)
    strides = [s if n > 1 else 0 for n, s in zip(shape, x.stride())]
    return [shape, strides, str(x.dtype)[len("torch.") :]]


def _empty(place, shape, strides, dtype):
    return torch.empty_strided(shape, strides, dtype=getattr(torch, dtype), device=place)


def _launch(step, memory, numbers):
    kernel = _kernel(*step["kernel"], tuple(step["plain"]))
    given = dict(step["constants"])
    for name, functions in step["functions"].items():
        given[name] = tuple(_function(*one) for one in functions)
    given.update((name, ()) for name in step["empty"])
    for name, kind, value in step["arguments"]:
        whole, dot, _ = name.partition(".")
        made = _argument(kind, value, memory, numbers)
        given[whole] = (*given.get(whole, ()), made) if dot else made
    kernel[tuple(step["grid"])](**given, **step["options"])


def _argument(kind, value, memory, numbers):
    if kind == "pointer":
        return memory[value]
    if kind == "number":
        return value
    if kind == "given":
        return numbers[value]
    base, shape, strides, block, offset = value
    x = memory[base]
    view = x.as_strided(shape, strides, x.storage_offset() + offset)
    return TensorDescriptor(view, shape, strides, block)


@cache
def _function(module, function):
    return getattr(importlib.import_module(f".kernels.{module}", __package__), function)


@cache
def _kernel(module, function, plain):
    """plain: parameters whose values nothing is promised of, so that the compiler may not make a
    constant of a 1."""
    kernel = _function(module, function)
    return triton.jit(kernel.fn, do_not_specialize=list(plain))
