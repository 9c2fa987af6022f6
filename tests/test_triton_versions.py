"""Which Tritons are supported, said in one place."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.triton_versions import NEWEST, OLDEST, _text, descriptor_flags, refusal


@pytest.mark.parametrize("version", ["3.6.0", "3.7.1", "3.9.0", "3.9.12", "3.6.0+git9844da95"])
def test_supported(version):
    assert refusal(version) == ""


@pytest.mark.parametrize("version", ["3.5.1", "2.3.1", "3.10.0", "4.0.0", "main"])
def test_older_and_newer_are_refused_in_one_sentence(version):
    said = refusal(version)
    assert version in said and "Triton 3.6 to 3.9" in said and "install" in said
    assert "\n" not in said


def test_none_is_refused():
    assert "triton is not installed" in refusal("")


def test_the_package_asks_for_the_same_range():
    """pip resolves by pyproject.toml, which nothing reads at run time."""
    asked = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    past = (NEWEST[0], NEWEST[1] + 1)
    assert f'"triton>={_text(OLDEST)},<{_text(past)} ;' in asked


def test_a_descriptor_has_one_more_flag_since_3_7():
    assert [descriptor_flags(v) for v in ("3.6.0", "3.7.1", "3.8.0", "3.9.0")] == [1, 2, 2, 2]
