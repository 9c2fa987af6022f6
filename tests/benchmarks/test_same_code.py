"""A claim stands where its kernels' sources are other words for the same code, and only there."""

from __future__ import annotations

from dataclasses import replace

import pytest

import claims
import proven

MODULE = "tilewright.ops.gemm.kernels.basic"


@pytest.fixture
def recorded(monkeypatch):
    found = {MODULE: {"first": "second", "second": "third"}}
    monkeypatch.setattr(proven, "known", lambda: found)


def test_what_was_proven_is_followed_to_today(recorded):
    assert proven.same(MODULE, "first", "third") and proven.same(MODULE, "second", "third")
    assert proven.same(MODULE, "fourth", "fourth")
    assert not proven.same(MODULE, "third", "first")
    assert not proven.same(MODULE, "first", "fourth")
    assert not proven.same("tilewright.ops.gemm.kernels.tma", "first", "third")
    assert not proven.same(MODULE, "first", None)


def test_a_claim_stands_as_far_as_was_proven(recorded, monkeypatch):
    claim = next(c for c in claims.load_all().values() if c.environment.get("commit"))
    for digest, stands in (("first", True), ("other", False)):
        monkeypatch.setattr(claims, "source_digest", lambda module: "third")
        said = replace(claim, kernels={"gemm/basic": {MODULE: digest}})
        assert (claims.stale(said) is None) == stands


def test_what_is_recorded_ends_at_sources_that_were_claimed_or_are_here():
    """A link that leads nowhere would be forgotten, not proven."""
    claimed = {
        (module, digest)
        for claim in claims.load_all().values()
        for modules in (claim.kernels or {}).values()
        for module, digest in modules.items()
    }
    for module, pairs in proven.known().items():
        assert any((module, before) in claimed for before in pairs), module
