"""What shells are offered at Tab: names that are known without importing anything large."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tilewright import ops
from tilewright.arch import archs, devices
from tilewright.cli import completion

PROGRAM = """
import sys
from tilewright.cli import main
try:
    main()
finally:
    large = {"torch", "triton", "numpy"} & {*sys.modules}
    families = [name for name in sys.modules if name.startswith("tilewright.ops.gemm")]
    print(sorted(large), families, file=sys.stderr)
"""


def complete(line, shell="bash", **more):
    """What the program prints for a line up to the cursor."""
    asked = {
        "_TILEWRIGHT_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1),
        "_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "TILEWRIGHT_KERNEL_MODULES": "a_module_that_nobody_has", **more,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, **asked}, capture_output=True, text=True
    )
    assert done.stderr.strip() == "[] []", done.stderr
    return done.stdout


@pytest.mark.grid(1)
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("tilewright exp", ["expand", "explain"]),
        ("tilewright explain att", ["attention", "attention_backward"]),
        ("tilewright explain gemm m=64 --device h1", ["h100_pcie", "h100_sxm"]),
        ("tilewright build --arch sm_100,sm_12", ["sm_100,sm_120", "sm_100,sm_121"]),
        ("tilewright explain gemm --device none_such", []),
    ],
)
def test_bash_is_offered_names(line, offered):
    assert complete(line).split() == offered


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_offered_the_same(shell):
    assert "grouped_gemm" in complete("tilewright run grouped", shell)


def test_a_file_of_gpus_that_cannot_be_read_offers_nothing(tmp_path):
    (tmp_path / "bad.json").write_text("{")
    bad = str(tmp_path / "bad.json")
    assert complete("tilewright devices h", TILEWRIGHT_GPUS=bad).split() == []


def test_all_names_are_offered():
    assert set(completion.families("")) <= set(ops.families())
    assert set(completion.archs("")) == {*archs(), *devices()}
    assert set(completion.gpus("")) == set(devices())


@pytest.mark.grid(1)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_can_be_shown(shell):
    own = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # the shell is named instead
    done = subprocess.run(
        [sys.executable, "-m", "tilewright", "--show-completion", shell],
        env={**os.environ, **own}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f"_TILEWRIGHT_COMPLETE=complete_{shell}" in done.stdout
