"""Layers have many kinds of products, and to expand a kind's whole space takes a second. Tests of
layers choose from a sixth of it, kernels for any alignment included; tests/grouped_gemm has the
rest."""

from __future__ import annotations

import dataclasses

import pytest

from tilewright.ops.grouped_gemm import spaces


@pytest.fixture(autouse=True, scope="module")
def _few_tiles():
    default_space = spaces.default_space

    def few(*asked, **said):
        space = default_space(*asked, **said)
        fewer = {"tile_n": [64, 128], "num_stages": [2, 3], "store": ["direct"]}
        return dataclasses.replace(space, axes={**space.axes, **fewer})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spaces, "default_space", few)
        yield
