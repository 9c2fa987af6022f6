"""A compiler's process is for one architecture: Triton 3.6 keeps how the first one converts fp8."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from tilewright import ops
from tilewright.compile import BuildResult, Store, build, compilers
from tilewright.compile.compiler import Job
from tilewright.compile.worker import handle
from tilewright.ops.nouns import KernelSource

NAME = "gemm_rcr_{0}_{0}_fp32_fp32_16x32x128_w2_s2_small_m_tile_g1_direct_padmnk_al16"
FN, FNUZ = (ops.family("gemm").parse_name(NAME.format(d)) for d in ("e4m3fn", "e4m3fnuz"))
"""gfx942 multiplies the second and converts the first, gfx950 the other way round."""


def digests(results: tuple[BuildResult, ...]) -> dict[str, str]:
    return {r.arch.name: r.kernel.blobs[r.kernel.binary] for r in results if r.kernel}


@pytest.fixture(autouse=True)
def _room():
    """No idle compilers; the families are the real ones."""
    compilers.end_idle()
    yield
    compilers.end_idle()


@pytest.mark.turns(48)
def test_what_else_is_built_changes_no_kernel(tmp_path):
    """gfx942 converts e4m3fnuz by an instruction that takes e4m3fn on gfx950."""
    both = build([(FN, "gfx942"), (FNUZ, "gfx950")], store=Store(tmp_path / "both"), workers=1)
    both.raise_if_failed()
    compilers.end_idle()
    alone = build([(FNUZ, "gfx950")], store=Store(tmp_path / "alone"), workers=1)
    alone.raise_if_failed()
    assert digests(both.results)["gfx950"] == digests(alone.results)["gfx950"]


@pytest.mark.turns(32)
def test_the_next_build_takes_a_compiler_of_its_architecture(tmp_path):
    store = Store(tmp_path)
    build([(FNUZ, "gfx942")], store=store, workers=1).raise_if_failed()
    (first,) = compilers._IDLE
    build([(FNUZ, "gfx950")], store=store, workers=1).raise_if_failed()
    assert [one.arch for one in compilers._IDLE] == ["gfx942", "gfx950"]
    assert compilers.take("gfx942") is first
    compilers.leave(first)


def test_a_process_refuses_a_second_architecture(monkeypatch):
    monkeypatch.setattr("tilewright.compile.worker._archs", {"gfx942"})
    source = KernelSource("module", "function", (), (), (), ())
    job = Job("kernel", "gfx950", "hip", "gfx950", 64, "key", source, "digest")
    with pytest.raises(AssertionError, match="one compiler for gfx942 and gfx950"):
        handle({"job": asdict(job)}, [])
