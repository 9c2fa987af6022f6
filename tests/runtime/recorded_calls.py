"""A convolution whose gradients are recorded, in Python and by nodes in C++, on a stand-in for a
GPU. Fixtures are `driver`, `in_cpp` and `known`: their functions, which test files import, have
names of their own, so that no argument hides an import."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import unbuilt

import tilewright as tw
from tilewright.torch import nodes


@pytest.fixture(scope="module", name="in_cpp")
def compiled_nodes(_own_home):
    return nodes.compiled()


@pytest.fixture(params=("Python", "C++"), name="driver")
def recording_driver(monkeypatch, request):
    """With calls that are recorded in Python, and by nodes in C++."""
    driver = unbuilt.install(monkeypatch, torch)
    fresh = nodes._Nodes()
    if request.param == "C++":
        fresh.module = request.getfixturevalue("in_cpp")
    monkeypatch.setattr(nodes, "_nodes", fresh)
    return driver


def zeros(*shape: int, order: Any = torch.contiguous_format) -> Any:
    return torch.zeros(shape, dtype=torch.bfloat16).contiguous(memory_format=order)


@pytest.fixture(name="known")
def known_call(driver) -> Any:
    """x, w, and a call of them whose gradients were recorded before."""
    x, w = zeros(2, 8, 6, 6).requires_grad_(), torch.nn.Parameter(zeros(8, 8, 3, 3))

    def call(x=x, w=w):
        return tw.conv2d(x, w, None, 1, 1)

    for _ in range(3):
        call().backward(zeros(2, 8, 6, 6))
    return x, w, call
