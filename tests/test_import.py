"""What importing costs, and which way the arrows point."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import tilewright
from tilewright import ops

ROOT = Path(tilewright.__file__).parent


def test_import_is_quick_and_light():
    script = (
        "import time; t = time.process_time(); import tilewright, sys;"
        "assert not {'torch', 'triton', 'numpy'} & set(sys.modules);"
        "print(time.process_time() - t)"
    )
    runs = [
        float(subprocess.run([sys.executable, "-c", script], capture_output=True).stdout)
        for _ in range(3)
    ]
    assert min(runs) < 0.1  # seconds of processor time: it takes 0.01


def test_every_public_name_is_there():
    for name in tilewright.__all__:
        assert getattr(tilewright, name) is not None
    assert set(tilewright.__all__) <= set(dir(tilewright))
    assert not hasattr(tilewright, "no_such_thing")


def test_nothing_outside_a_family_names_it():
    """The plug: a family is a folder, and the rest of the code finds it by looking."""
    for path in sorted(ROOT.rglob("*.py")):
        if "ops" in path.relative_to(ROOT).parts:
            continue
        tree = ast.parse(path.read_text())
        docs = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [getattr(node, "module", None) or "", *(a.name for a in node.names)]
                families = [f"ops.{family}" for family in ops.families()]
                assert not any(family in n for n in names for family in families), path
            if isinstance(node, ast.Constant) and id(node) not in docs:
                assert node.value not in ops.families(), f"{path}:{node.lineno}"


LEVELS = (
    "arch", "ops", "compile", "tables", "bundle", "runtime", "select", "plan", "capturing",
    "dispatch", "measure", "tune", "report", "cli",
)  # fmt: skip


def test_arrows_point_one_way():
    """arch ← ops ← build ← tables ← bundle ← runtime, select ← dispatch ← tune ← report ← cli: none
    imports above."""
    for level, room in enumerate(LEVELS):
        above = LEVELS[level + 1 :]
        paths = [ROOT / f"{room}.py", *sorted((ROOT / room).rglob("*.py"))]
        for path in filter(Path.exists, paths):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and node.module:
                    parts = node.module.split(".")
                    bad = parts[0] == "tilewright" and len(parts) > 1 and parts[1] in above
                    assert not bad, f"{path} imports {node.module}"
