"""What is printed, and where to: closed and full streams, narrow terminals, strict JSON, names that
a terminal would obey, interrupts at any time."""

from __future__ import annotations

import ast
import json
import logging
import math
import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from cli_runner import NAME
from test_cli_manners import COMMAND, EXPLAIN, _on_terminal

import tilewright.cli
from tilewright import ops
from tilewright.arch import device
from tilewright.cli import output
from tilewright.compile import Store
from tilewright.printable import printable

HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\x9b1A\u202efdp"
"""Sets a terminal's title, clears it, and writes from right to left."""


# --- streams --------------------------------------------------------------------------------


def closing(*numbers: int):
    """Close these streams in a child, as `>&-` does."""
    return lambda: [os.close(number) for number in numbers]


@pytest.mark.turns(8)
@pytest.mark.grid(1)
@pytest.mark.parametrize("closed", [(1,), (2,), (1, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize(
    ("words", "code"),
    [(["archs"], 0), (["explain", "gem", "m=1", "--json"], 2)],
    ids=str,
)
def test_streams_may_be_closed(words, code, closed):
    ran = subprocess.run(
        [*COMMAND, *words], capture_output=True, text=True, preexec_fn=closing(*closed), check=False
    )
    assert ran.returncode == code
    assert "Traceback" not in ran.stderr
    if code and 2 not in closed:
        assert len(ran.stderr.splitlines()) == 1


@pytest.mark.turns(24)
def test_nothing_is_printed_into_a_file_that_took_a_closed_streams_number(store):
    """The next file that is opened would: one of the store's, a lock, a pipe to a child."""
    words = ["build", NAME, "--arch", "sm_90", "--store", str(store)]
    ran = subprocess.run([*COMMAND, *words], preexec_fn=closing(0, 1, 2), check=False)
    assert ran.returncode == 0
    kept = Store(store)
    assert [kernel.name for kernel in kept.entries()] == [NAME] and kept.verify() == []


@pytest.mark.turns(8)
@pytest.mark.grid(1)
@pytest.mark.parametrize(
    "words", [["archs"], ["archs", "--json"], ["archs", "sm_90"], ["--help"]], ids=" ".join
)
def test_a_full_disk_is_one_line(words):
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [*COMMAND, *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert ran.returncode == 1
    assert re.fullmatch(r"error: (standard output: )?No space left on device\n", ran.stderr)


@pytest.mark.turns(24)
@pytest.mark.parametrize(
    ("words", "columns"),
    [
        (["archs"], 1),
        (["archs", "sm_90"], 10),
        (["devices", "h200"], 10),
        (["kernels", "show", NAME], 2),
        (EXPLAIN, 10),
    ],
    ids=str,
)
def test_a_terminal_may_be_very_narrow(words, columns):
    plain = re.sub(r"\x1b\[\d*m", "", _on_terminal(columns, words))
    assert "Traceback" not in plain
    for line in plain.splitlines():
        assert len(line) <= max(columns, 8) + 2 or " " not in line.strip(), line
    if words is EXPLAIN:
        for name in re.findall(r"\bgemm_r\S+", plain):
            assert ops.family_of(name).parse_name(name).name == name


@pytest.mark.parametrize("variable", ["NO_COLOR=1", "TERM=dumb"])
def test_no_escapes_where_none_are_wanted(variable, monkeypatch):
    name, _, value = variable.partition("=")
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert output._plain()
    monkeypatch.setenv(name, "" if name == "NO_COLOR" else "xterm")
    assert not output._plain()


# --- JSON -----------------------------------------------------------------------------------


def test_json_is_strict(capsys):
    nan, inf = math.nan, math.inf
    output.emit({"a": inf, "b": [-inf, {"c": (nan, 1.5)}], "d": "Infinity"})

    def refuse(word: str) -> None:
        raise AssertionError(word)

    printed = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert printed == {"a": None, "b": [None, {"c": [None, 1.5]}], "d": "Infinity"}


def test_nothing_is_printed_but_by_output():
    """`say` and `emit` are the places where names are made harmless and JSON is made strict."""
    for file in Path(tilewright.cli.__file__).parent.glob("*.py"):
        if file.name == "output.py":
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("print", "json.dumps", "typer.secho"), (
                    file.name,
                    node.lineno,
                )
                if called == "typer.echo":
                    assert "__version__" in ast.unparse(node), (file.name, node.lineno)


# --- names that a terminal would obey -------------------------------------------------------


def test_what_a_terminal_would_obey_is_shown_instead():
    assert printable(HOSTILE) == r"\x1b]0;owned\x07\x1b[2J\r\x9b1A\u202efdp"
    for fine in ("16×16×16 µs … ± 3 %", "one\n\ttwo", "日本語", ""):
        assert printable(fine) == fine


def harmless(text: str) -> bool:
    return not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", re.sub(r"\x1b\[\d*m", "", text))


@pytest.mark.turns(24)
def test_names_from_files_are_harmless_on_a_terminal(tmp_path):
    described = tmp_path / "gpu.json"
    described.write_text(json.dumps({**asdict(device("h200")), "name": HOSTILE}))
    for words in (["devices", str(described)], [*EXPLAIN[:-1], str(described)]):
        text = _on_terminal(80, words)
        assert harmless(text) and r"\x1b]0;owned" in text


@pytest.mark.turns(8)
@pytest.mark.grid(1)
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["explain", HOSTILE, "m=1"], 2),
        (["devices", HOSTILE], 2),
        (["report", HOSTILE], 2),
        ([HOSTILE], 2),
        (["archs", f"--{HOSTILE}"], 2),
        (["kernels", "list", "--store", HOSTILE], 0),
    ],
    ids=["family", "device", "folder", "command", "option", "store"],
)
def test_words_are_harmless_in_errors(words, code):
    ran = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False)
    assert ran.returncode == code
    assert harmless(ran.stdout + ran.stderr), ran.stderr


def test_what_is_logged_is_harmless(capsys, monkeypatch):
    monkeypatch.setattr(logging, "lastResort", logging._StderrHandler(logging.WARNING))
    output.clean_log()
    record = logging.LogRecord("x", logging.WARNING, "", 0, "%s is gone", (HOSTILE,), None)
    logging.lastResort.handle(record)
    said = capsys.readouterr().err
    assert harmless(said) and said.endswith("fdp is gone\n")


# --- interrupts -----------------------------------------------------------------------------

_INTERRUPT = """
import importlib.abc, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPT_AT"]:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
"""


@pytest.mark.grid(2)
@pytest.mark.parametrize(
    "module",
    [
        "tilewright.cli.errors",
        "typer",
        "tilewright.cli.app",
        "tilewright.dispatch",
        "tilewright.ops.gemm",
    ],
)
def test_an_interrupt_during_an_import_is_one_line_and_130(module, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(_INTERRUPT)
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    ran = subprocess.run(
        [*COMMAND, *EXPLAIN],
        env={**os.environ, "PYTHONPATH": path, "INTERRUPT_AT": module},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (130, "interrupted\n")


def test_problems_that_count_no_operations_have_no_rate_of_them():
    assert output.operations(0.0) == "-"
    assert output.operations(712.345) == 712.3
