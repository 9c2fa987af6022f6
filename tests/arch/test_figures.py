"""The figures of `arch/figures`: each is used, and each use has one."""

from __future__ import annotations

import ast

import pytest

from source_tree import ROOT, sources
from tilewright.arch import figures

OWNERS = {"device": {"DEVICE"}, "gemm": {"GEMM"}, "attention": {"ATTENTION"},
          "attention_backward": {"BACKWARD"}, "conv": {"CONV"}, "grouped_gemm": {"GROUPED"},
          "causal_conv": {"CAUSAL"}}  # fmt: skip
"""What a file's figures are called where they are used."""


def test_every_file_is_known():
    assert {path.stem for path in figures.FOLDER.glob("*.json")} == {*OWNERS}


@pytest.mark.parametrize("name", OWNERS)
def test_every_figure_is_used_and_every_use_has_one(name):
    assert used(OWNERS[name]) == {*figures.stated(name)}


def used(owners: set[str]) -> set[str]:
    found = set()
    for text in sources().values():
        for node in ast.walk(ast.parse(text)) if any(one in text for one in owners) else ():
            of = getattr(node, "value", None)
            if not isinstance(of, ast.Name) or of.id not in owners:
                continue
            if isinstance(node, ast.Attribute) and node.attr.isupper():
                found.add(node.attr)
            elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                found.add(node.slice.value)
    return found


def _assigned(script, name):
    """The literal that a script assigns to a name."""
    body = ast.parse((ROOT.parents[1] / script).read_text()).body
    (value,) = (one.value for one in body if isinstance(one, ast.Assign)
                and ast.unparse(one.targets[0]) == name)  # fmt: skip
    return ast.literal_eval(value)


def test_a_figure_names_the_script_that_fits_it():
    every = [(word, one) for name in OWNERS for word, one in figures.stated(name).items()]
    script, of_conv = "benchmarks/analytical.py", "benchmarks/conv_figures.py"
    of_attention = "benchmarks/attention_figures.py"
    of_groups = "benchmarks/grouped_figures.py"
    assert {one.script for _, one in every} == {"", script, of_conv, of_attention, of_groups}
    assert {w for w, one in every if one.script == of_groups} == {*_assigned(of_groups, "FITTED")}
    searched = {word for word, one in every if one.script == of_attention}
    assert searched == set(_assigned(of_attention, "FITTED_BACKWARD"))
    assert {one.script for one in figures.stated("conv").values()} == {of_conv}
    fitted = {word.upper() for word in _assigned(script, "START")}
    assert {word for word, one in every if one.script == script} == fitted


def test_an_unknown_figure_is_an_error():
    with pytest.raises(AttributeError, match="no figure LAUNCH"):
        _ = figures.DEVICE.LAUNCH
    assert figures.DEVICE.LAUNCH_US > 0
    assert figures.figures("gemm")["COLUMNS_AT_PEAK"][8] > 8
