"""The signatures of operations have what families say, in Python and for type checkers."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import numpy as np
import pytest

import stubs
import tilewright as tw
from tilewright import custom, ops
from tilewright.arch import arch
from tilewright.cli.options import words
from tilewright.errors import BadArgument
from tilewright.ops.help import helps
from tilewright.signature import signature

OPERATIONS = ops.families()


@pytest.mark.parametrize("op", OPERATIONS)
def test_a_signature_has_what_the_family_says(op):
    family, found = ops.family(op), inspect.signature(getattr(tw, op))
    assert found == signature(op)
    by_keyword = {n for n, one in found.parameters.items() if one.kind == one.KEYWORD_ONLY}
    assert by_keyword == {"out", "stream", *family.keywords(), *family.scalars}
    for name, one in family.keywords().items():
        assert found.parameters[name].default == one.default


@pytest.mark.parametrize("op", OPERATIONS)
def test_help_says_what_an_operation_computes_and_names_its_arrays(op):
    family, text = ops.family(op), getattr(tw, op).__doc__
    arrays = {name.strip("*=") for name in family.arguments if not name.startswith("**")}
    if hasattr(family, "declared"):
        arrays |= family.declared.operands.keys()
    named = {word for line in re.findall(r"^([\w, ]+):", text, re.M) for word in line.split(", ")}
    assert family.says and arrays <= named


@pytest.mark.parametrize("op", helps())
def test_defaults_are_those_that_a_call_takes(op):
    """A usual problem states none of the options that have a default."""
    family = ops.family(op)
    said = words(helps()[op].problems["tiny"].split())
    problem = family.parse_problem(said, arch("sm_90"))
    shown = {name for name, one in family.keywords().items() if one.default is not None}
    assert not shown & family.options(problem).keys()


def test_one_positional_operand_is_too_few():
    found = inspect.signature(tw.gemm)
    with pytest.raises(TypeError, match="missing a required argument: 'B'"):
        found.bind(1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'msk'"):
        inspect.signature(tw.attention).bind(1, 2, 3, msk="causal")
    assert "mask: 'str | None' = 'none'" in str(inspect.signature(tw.attention))
    bound = found.bind(1, 2, epilogue="add+add", add=3, add_2=4)
    assert bound.arguments["numbered"] == {"add_2": 4}


def test_torchs_functions_have_theirs():
    names = ["input", "weight", "bias", "stride", "padding", "dilation", "groups"]
    assert list(inspect.signature(tw.conv2d).parameters) == names


def test_an_operation_of_a_user_has_one(monkeypatch):
    monkeypatch.setattr(ops, "_registered", dict(ops._registered))
    family = custom.family.CustomFamily(
        custom.Declaration(
            "halve", "nowhere",
            {
                "x": custom.In("n"), "by": custom.In(1, dtype="fp32", optional=True),
                "y": custom.Out("n"),
            },
            (), {}, reference=None, scalars={"alpha": ("fp32", None), "times": ("i32", 1)},
            options={"exact": True},
        )
    )  # fmt: skip
    ops._registered["halve"] = family
    assert str(signature("halve")).replace("'", "") == (
        "(x: Array, /, *, out: Array | tuple[Array, ...] | None = None, stream: Any = None, "
        "exact: bool | None = True, by: Array | float | None = None, "
        "alpha: float | None = None, times: int | None = None) -> Any"
    )


def test_the_stub_is_what_families_say():
    assert stubs.STUB.read_text() == stubs.stub(), "run: python docs/site/stubs.py"


@pytest.mark.turns(8)
def test_a_type_checker_sees_wrong_calls(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "tw.pyi").write_text(stubs.stub())
    (tmp_path / "user.py").write_text(
        "import tw\n"
        "a = object()\n"
        "tw.gemm(a, a, a, epilogue='bias')\n"
        "tw.gemm(a)\n"
        "tw.attention(a, a, a, msk='causal')\n"
        "tw.attention(a, a, a, mask=1)\n"
        "tw.conv2d(a, a, stride=(1, 1))\n"
    )
    # Modules that are not named are not read, which would take many seconds.
    command = [sys.executable, "-m", "mypy", "--follow-imports=skip", "user.py", "tw.pyi"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    wrong = [int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line]
    assert wrong == [4, 5, 6], done.stdout + done.stderr


def test_a_call_without_an_operand_is_refused():
    with pytest.raises(BadArgument):
        tw.gemm(np.ones((2, 2), np.float32))
