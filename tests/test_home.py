"""``TILEWRIGHT_HOME`` suffices where the user's own folders cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright import home
from tilewright.compile import default_store_path

NAME = "gemm_rcr_bf16_bf16_bf16_fp32_16x32x32_w4_s2_basic_tile_g8_direct_padmnk_al1"


def test_everything_lies_under_it(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TILEWRIGHT_STORE")
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path))
    assert home.data() == home.cache() == tmp_path
    assert default_store_path() == tmp_path / "store"


def test_without_it_the_platform_says_where(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TILEWRIGHT_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert home.data() == tmp_path / "data" / "tilewright"
    assert home.cache() == tmp_path / "cache" / "tilewright"


@pytest.mark.turns(32)
def test_building_needs_no_other_folder(tmp_path: Path) -> None:
    """The home folder is one that not even root can write."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TILEWRIGHT", "XDG"))}
    done = subprocess.run(
        [sys.executable, "-m", "tilewright", "build", NAME, "--arch", "sm_90"],
        env={**kept, "HOME": "/proc/nowhere", "TILEWRIGHT_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "1 built in" in done.stdout and str(tmp_path / "home" / "store") in done.stdout
    assert (tmp_path / "home" / "signing-key").is_file()
    assert (tmp_path / "home").stat().st_mode & 0o077 == 0, "made for this user alone"
