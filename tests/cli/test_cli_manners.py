"""What holds for every command: help, speed, imports, errors, pipes, terminals."""

from __future__ import annotations

import ast
import fcntl
import inspect
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path
from types import CodeType, FunctionType

import pytest
import typer
from cli_runner import NAME

import tilewright.cli
from tilewright import errors, ops
from tilewright.cli.app import app
from tilewright.cli.errors import exit_code
from tilewright.ops.help import helps

COMMAND = [sys.executable, "-m", "tilewright"]
ROOT = Path(__file__).parents[2]


def every_command() -> list[list[str]]:
    def walk(command, path):
        yield path
        for name, sub in getattr(command, "commands", {}).items():
            yield from walk(sub, [*path, name])

    return list(walk(typer.main.get_command(app), []))


def test_the_commands_there_are():
    names = {" ".join(path) for path in every_command() if path}
    assert names == {
        "archs", "devices", "expand", "build", "prepare", "bundle", "explain", "run", "compare",
        "profile", "demo", "problems", "sweep", "results", "tune", "retune", "pretune", "merge",
        "report", "kernels", "kernels list", "kernels show", "kernels inspect",
        "kernels offered", "kernels check",
        "learn", "learn data", "learn train", "learn evaluate", "learn explain", "learn compare",
        "learn suggest",
        "listen", "listen report",
        "registry", "registry export", "registry import", "registry check",
        "table", "table show", "table check", "table diff", "table merge", "table export",
        "table compare", "table minimise",
        "table import",
    }  # fmt: skip


@pytest.mark.grid(4)
@pytest.mark.parametrize("path", every_command(), ids=" ".join)
def test_every_help_has_examples_that_fit_80_columns(cli, path):
    text = cli(*path, "--help")
    example = re.findall(r"^ +\$ tilewright (.*)$", text, re.MULTILINE)
    assert example
    if path and path[-1] not in ("kernels", "learn", "listen", "registry", "table"):
        assert all(line.startswith(" ".join(path)) for line in example)
        assert "--json" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_help_and_the_docs_know_ck_tiles_words(cli):
    text = cli("--help")
    page = (ROOT / "docs" / "cli.md").read_text()
    for here, theirs, meaning in (row for one in helps().values() for row in one.vocabulary):
        assert re.search(rf"{re.escape(here)} +{re.escape(theirs)} +{re.escape(meaning)}", text)
        assert f"| `{here}` | {theirs} | {meaning} |" in page


def test_the_docs_have_every_command():
    page = (ROOT / "docs" / "cli.md").read_text()
    for path in every_command():
        assert f"tilewright {' '.join(path)}".strip() in page


def test_exit_codes():
    requests = (
        errors.BadArgument, errors.BadFile, errors.UnknownName, errors.UnknownArch,
        errors.EmptySpace, errors.UnsupportedProblem, errors.WrongDevice,
    )  # fmt: skip
    known = [e for e in vars(errors).values() if isinstance(e, type)]
    for kind in known:
        if issubclass(kind, errors.TilewrightError):
            assert exit_code(kind("x")) == (2 if kind in requests else 1), kind


def test_no_family_is_named_outside_examples():
    for file in Path(tilewright.cli.__file__).parent.glob("*.py"):
        for node in _outside_examples(ast.parse(file.read_text())):
            said = [
                value
                for field in ("value", "id", "attr", "arg", "name", "module")
                if isinstance(value := getattr(node, field, None), str)
            ]
            for family in ops.families():
                named = re.compile(rf"(?<![a-z]){family}(?![a-z])")  # not as in "converted"
                assert not any(named.search(word) for word in said), (file.name, node.lineno)


def _outside_examples(node: ast.AST):
    yield node
    for child in ast.iter_child_nodes(node):
        call = child.func if isinstance(child, ast.Call) else None
        if not (isinstance(call, ast.Name) and call.id in ("examples", "command")):
            yield from _outside_examples(child)


QUICK = {"archs", "devices", "kernels list", "kernels show", "learn explain", "table import"}
"""Commands that read or print little, and never take two seconds."""


def test_every_command_that_may_take_long_says_what_goes_on():
    """As far as its code says: it, or a function of the command line that it names, says so."""

    def lines(code: CodeType):
        yield code
        for one in code.co_consts:
            if isinstance(one, CodeType):
                yield from lines(one)

    def says(function: FunctionType, seen: set[FunctionType]) -> bool:
        seen.add(function)
        names = {name for code in lines(function.__code__) for name in code.co_names}
        if names & {"busy", "show_progress", "show_measuring", "compile_all"}:
            return True
        called = [function.__globals__.get(name) for name in names]
        return any(
            isinstance(one, FunctionType) and one not in seen and says(one, seen)
            for one in called
            if getattr(one, "__module__", "").startswith("tilewright.cli")
        )

    root = typer.main.get_command(app)
    for path in every_command():
        command = root
        for name in path:
            command = command.commands[name]
        if not hasattr(command, "commands"):
            silent = not says(inspect.unwrap(command.callback), set())
            assert silent == (" ".join(path) in QUICK), path


@pytest.mark.turns(24)
def test_archs_is_quick():
    def least(command: list[str]) -> float:
        """In seconds of processor time: a busy machine is not the command's fault."""
        spent = []
        for _ in range(3):
            before = os.times()
            subprocess.run(command, check=True, capture_output=True)
            after = os.times()
            spent.append(after.children_user - before.children_user)
            spent[-1] += after.children_system - before.children_system
        return min(spent)

    # Importing torch alone takes over ten times as long as the libraries of a command line.
    libraries = least([sys.executable, "-c", "import typer, rich.table"])
    assert least([*COMMAND, "archs"]) < 12 * libraries  # it takes 5 to 8 times as long


@pytest.mark.turns(24)
@pytest.mark.parametrize(
    "words",
    [
        ["archs"],
        ["devices"],
        ["expand", "--default", "gemm", "m=8", "n=8", "k=8", "--arch", "sm_90"],
        ["explain", "gemm", "m=8", "n=8", "k=8", "--device", "mi300x"],
        ["kernels", "list"],
        ["kernels", "show", NAME],
        ["kernels", "check"],
        ["registry", "export", NAME, "--arch", "sm_90", "-o", os.devnull + "x"],
    ],
    ids=" ".join,
)
def test_planning_imports_neither_torch_nor_triton(words, tmp_path):
    if words[0] == "registry":
        words = [*words[:-1], str(tmp_path / "r.json")]
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "tilewright", *words],
        check=True,
        capture_output=True,
        text=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    assert "typer" in imported
    assert not imported & {"torch", "triton"}
    if words[0] in ("archs", "devices"):
        assert not imported & {"numpy", "tilewright.dispatch"}


def test_a_usage_error_exits_with_2(cli):
    cli("build", code=2)
    cli("expand", "x.json", "--arch", code=2)
    cli("frobnicate", code=2)
    cli("run", "gemm", "--seed", "x", code=2)
    cli("build", NAME, "--arch", "sm_90", "--workers", "0", code=2)


def test_version(cli):
    assert cli("--version").strip() == f"tilewright {tilewright.__version__}"


def test_a_reader_that_leaves_is_no_error():
    """Of more than a pipe holds: its writer cannot have ended before."""
    words = ["expand", "--default", "gemm", "m=8", "n=8", "k=8", "--arch", "sm_90,gfx942"]
    words += ["--list", "--dropped"]
    process = subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline()
    process.stdout.close()
    said = process.stderr.read().decode().splitlines()
    assert all(line.startswith("expanding ") for line in said), "progress, on a slow machine"
    assert process.wait() == 141


@pytest.mark.turns(48)
def test_ctrl_c_is_one_line_and_130(tmp_path):
    process = subprocess.Popen(
        [*COMMAND, "run", "gemm", "m=2000", "n=2000", "k=2000", "--kernel", NAME, "--no-verify"],
        stderr=subprocess.PIPE,
        text=True,
        # A shell that was told to run the tests behind its back has them ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    line = process.stderr.readline()
    assert re.fullmatch(r"running gemm 2000×2000×2000 .* on cpu … 2 s\n", line), "progress"
    process.send_signal(signal.SIGINT)
    assert process.stderr.read() == "interrupted\n"
    assert process.wait() == 130


def _on_terminal(columns: int, words: list[str]) -> str:
    """What a command writes on a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen(
        [*COMMAND, *words], stdout=theirs, stderr=theirs, env={**environment, "TERM": "xterm"}
    )
    os.close(theirs)
    text = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # Linux's way to say that the other side is closed
            break
        if not chunk:
            break
        text += chunk
    assert process.wait() == 0
    os.close(ours)
    return text.decode().replace("\r\n", "\n")


EXPLAIN = ["explain", "gemm", "m=512", "n=512", "k=512", "--device", "h200_sxm"]


@pytest.mark.turns(24)
@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(
    "words", [["archs"], ["archs", "sm_90"], ["devices"], EXPLAIN], ids=" ".join
)
def test_terminals_get_lines_that_fit_and_whole_names(words, columns):
    text = _on_terminal(columns, words)
    assert "\x1b[1m" in text, "headings are bold"
    plain = re.sub(r"\x1b\[\d*m", "", text)
    for line in plain.splitlines():
        assert len(line) <= columns or " " not in line.strip(), line
    if words is EXPLAIN:
        names = re.findall(r"\bgemm_r\S+", plain)
        assert len(names) == 6
        assert all(ops.family_of(name).parse_name(name).name == name for name in names)


@pytest.mark.turns(24)
def test_pipes_get_whole_lines_and_no_colour():
    ran = subprocess.run([*COMMAND, *EXPLAIN], check=True, capture_output=True, text=True)
    assert "\x1b" not in ran.stdout
    (chosen,) = [line for line in ran.stdout.splitlines() if line.startswith("chosen")]
    assert "µs" in chosen and "gemm_rcr" in chosen, "one line, however long"


def test_an_option_that_is_a_word_of_a_problem_is_answered_with_the_word(cli):
    for words in (["--kv-heads", "8"], ["--m=64"]):
        cli("explain", "gemm", *words, code=2)
        word = words[0].lstrip("-").partition("=")[0]
        assert f"a word of a problem has no dashes: {word}=VALUE" in cli.result.stderr
    cli("archs", "--m", code=2)
    assert "No such option: --m" in cli.result.stderr and "dashes" not in cli.result.stderr


def test_words_as_people_type_them(cli):
    wanted = cli("explain", "gemm", "m=64", "n=64", "k=64", "dtype=fp16", "--device", "rtx_4090")
    said = cli("explain", "gemm", "M=64,N=64", "K=64", "dtype=float16", "--device", "4090")
    assert said == wanted
