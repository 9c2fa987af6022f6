"""The compiled launcher where it cannot be compiled."""

from __future__ import annotations

import re

import pytest

from tilewright.errors import NoCompiler
from tilewright.runtime import launcher as launcher_module
from tilewright.runtime import python_launcher
from tilewright.runtime.launcher import compiled


@pytest.mark.parametrize("compiler", ["", "/no/such/compiler"])
def test_without_a_compiler_launches_go_through_python(monkeypatch, tmp_path, caplog, compiler):
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", compiler)
    with pytest.raises(NoCompiler, match=r"install one|does not start"):
        compiled()
    assert launcher_module.launcher.__wrapped__() is python_launcher
    (said,) = caplog.messages
    assert re.search(r"(install one|does not start).*10 µs more", said)


def test_a_compiler_that_fails_is_quoted(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path))
    monkeypatch.setenv("CC", "gcc -DPyMODINIT_FUNC=@")
    with pytest.raises(NoCompiler, match=r"compiling the launcher failed.*stray"):
        compiled()


def test_a_folder_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "file"))
    with pytest.raises(NoCompiler, match=r"cannot be kept in .*file.*TILEWRIGHT_HOME"):
        compiled()
