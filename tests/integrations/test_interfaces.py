"""Our packages and the fakes fit the releases of frameworks whose answers are kept."""

from __future__ import annotations

import pytest

import interfaces
from frameworks import PACKAGES
from signatures import Tree, covers, fits, signature

FRAMEWORKS = [f for f in PACKAGES if (interfaces.SNAPSHOTS / f"{f}.json").exists()]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_packages_and_fakes_fit_two_releases(framework):
    snapshot = interfaces.kept(framework)
    assert len(snapshot["versions"]) == len(snapshot["tests"]) == 2
    for version in snapshot["versions"]:
        assert not list(interfaces.problems(framework, snapshot["answers"], version))


def test_a_method_that_a_release_changes_is_noticed():
    answers = interfaces.kept("vllm")["answers"]
    asked = "vllm.v1.attention.backend.AttentionBackend:supports_sink"
    for theirs, complaint in (
        (None, "overrides nothing"),
        ("cls, sinks", r"is \(cls, sinks\); ours is \(cls\)"),
    ):
        (found, *_) = interfaces.problems("vllm", {**answers, asked: theirs}, "9")
        assert asked in found
        assert complaint.replace("\\", "") in found


@pytest.mark.parametrize(
    ("ours", "theirs", "whether"),
    [
        ("self, a, b=", "self, a, b=", True),
        ("self, a=, b=", "self, a, b=", True),
        ("self, a, b=, c=", "self, a, b=", True),
        ("self, *args, **kwargs", "self, a, b=", True),
        ("self, a, b", "self, a, b=", False),
        ("self, a", "self, a, b=", False),
        ("self, b, a", "self, a, b", False),
        ("self, a, c", "self, a", False),
        ("self, a", "self, *, a", False),
    ],
)
def test_what_an_override_must_take(ours, theirs, whether):
    assert fits(ours, theirs) is whether


def test_a_fake_takes_no_more_than_a_release():
    assert covers("self, a, b=, c=", "self, a, b=")
    assert not covers("self, a, b", "self, a")
    assert not covers("self, a", "self, a, b=")


def test_signatures_are_read_without_importing(tmp_path):
    import ast

    text = "def f(a, /, b, c=1, *d, e, g=2, **h): pass"
    assert signature(ast.parse(text).body[0]) == "a, b, c=, *d, e, g=, **h"
    inside = tmp_path / "outer"
    inside.mkdir()
    (inside / "__init__.py").write_text("from .inner import Base\n")
    (inside / "inner.py").write_text("raise SystemExit\nclass Base:\n x: int\n def f(self): ...\n")
    (tmp_path / "ours.py").write_text("from outer import Base\nclass Ours(Base): pass\n")
    tree = Tree(tmp_path)
    assert tree.home("outer.Base") == ("outer.inner", "Base")
    assert tree.member("ours", "Ours", "f") == "self"
    assert tree.member("ours", "Ours", "x") == "field"
    assert tree.member("ours", "Ours", "g") is None
