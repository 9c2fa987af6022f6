"""No file of the current folder is executed: it may be anybody's, /tmp for example."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.child import command, import_path, program

MODULES = (
    "tilewright.arch.asked",
    "tilewright.compile.worker",
    "tilewright.emulate.assembler",
    "tilewright.runtime.interpreter_worker",
    "tilewright.measure.counted",
    "tilewright.measure.worker",
    "tilewright.measure.algorithms",
)
NAMES = ("ctypes", "json", "ml_dtypes", "msgspec", "numpy", "select", "tilewright", "torch",
         "triton", "typer")  # fmt: skip
KERNEL = "gemm_rcr_bf16_bf16_bf16_fp32_16x32x32_w4_s2_basic_tile_g8_direct_padmnk_al1"
SMALL = ("m=16", "n=16", "k=16", "dtype=bf16")


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A folder with a module of each name, which notes that it was executed."""
    folder = tmp_path / "planted"
    folder.mkdir()
    for name in NAMES:
        text = f"open({str(tmp_path / 'executed')!r}, 'a').write({name!r} + ' ')\n"
        (folder / f"{name}.py").write_text(text)
    return folder


def executed(planted: Path) -> str:
    note = planted.parent / "executed"
    return note.read_text() if note.exists() else ""


def run(words: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(
        words,
        cwd=folder,
        env={**environment, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_these_are_all_the_modules_that_run_in_children():
    source = Path(__file__).parents[1] / "src"
    mains = [path for path in source.rglob("*.py") if "\ndef main() -> None:" in path.read_text()]
    names = {".".join(path.relative_to(source).with_suffix("").parts) for path in mains}
    assert names - {"tilewright.cli.__init__"} == {*MODULES}


@pytest.mark.turns(12)
@pytest.mark.grid(2)
@pytest.mark.parametrize("module", MODULES)
def test_a_child_executes_nothing_of_the_current_folder(module, planted):
    ran = run([*command(module), '{"folder": ".", "seconds": 60}'], planted, TRITON_INTERPRET="1")
    assert not executed(planted)
    if module.endswith("counted"):
        assert "KeyError: 'problem'" in ran.stderr, "it got as far as its request"
    else:
        assert ran.returncode == 0, ran.stderr


@pytest.mark.turns(12)
@pytest.mark.parametrize(
    "words",
    [
        ["build", KERNEL, "--arch", "sm_90"],
        ["run", "gemm", *SMALL, "--on", "cpu", "--kernel", KERNEL],
        ["sweep", KERNEL, "--problems", "shapes.csv", "--devices", "cpu", "--out", "out"],
    ],
    ids=lambda words: words[0],
)
def test_the_command_executes_nothing_of_the_current_folder(words, planted, tmp_path):
    script = tmp_path / "bin" / "tilewright"
    script.parent.mkdir()
    script.write_text("from tilewright.cli import main\nmain()\n")
    (planted / "shapes.csv").write_text("m,n,k,dtype\n16,16,16,bf16\n")
    ran = run([sys.executable, str(script), *words], planted)
    assert not executed(planted)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    ("path", "first"), [(None, ""), (":/nowhere", ""), (".:/nowhere", "typer ")]
)
def test_python_m_executes_what_the_path_names_only(path, first, planted):
    """Beyond what Python itself runs before the command: a tilewright.py."""
    (planted / "tilewright.py").unlink()
    variables = {} if path is None else {"PYTHONPATH": path}
    run([sys.executable, "-m", "tilewright", "archs"], planted, **variables)
    assert executed(planted)[: len(first) or None] == first


def test_a_child_imports_from_where_its_parent_does(tmp_path):
    """The current folder of an interactive session, and one with a colon in its name."""
    folder = tmp_path / "here: mine"
    folder.mkdir()
    (folder / "mine.py").write_text("def main():\n    print('mine')\n")
    code = (
        "import subprocess, sys; from tilewright.child import command; "
        "sys.exit(subprocess.run(command('mine'), cwd='/').returncode)"
    )
    ran = run([sys.executable, "-c", code], folder)  # like `python`, it has '' on its path
    assert ran.stdout == "mine\n", ran.stderr


def test_the_import_path_keeps_its_order_and_has_tilewright(monkeypatch, tmp_path):
    (tmp_path / "some").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/b", "some", "", "__hook__", "/a", "/b"])
    home = str(Path(__file__).parents[1] / "src")
    assert import_path() == ["/b", str(tmp_path / "some"), str(tmp_path), "__hook__", "/a", home]


def test_a_program_is_not_taken_from_the_current_folder(monkeypatch, tmp_path):
    for folder in (tmp_path, tmp_path / "bin"):
        folder.mkdir(exist_ok=True)
        (folder / "ncu").write_text("")
        (folder / "ncu").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", ":.:")
    assert program("ncu") is None
    monkeypatch.setenv("PATH", f":{tmp_path / 'bin'}")
    assert program("ncu") == str(tmp_path / "bin" / "ncu")
