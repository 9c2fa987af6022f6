"""What a build makes and keeps: kernels, reasons of those that go wrong, and a store."""

from __future__ import annotations

import ctypes
import errno
import importlib.metadata
import io
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from build_script import requests
from compiling import GOOD, our_children
from fake_family import FakeConfig, FakeFamily

from patience import LIMIT_SECONDS
from tilewright.arch import arch
from tilewright.child import Blob, Child, Message
from tilewright.compile import (
    BuildResult,
    Store,
    build,
    compilers,
    inspect,
    pool,
    show_progress,
)
from tilewright.compile.builder import telling
from tilewright.compile.worker import MARK
from tilewright.errors import BadArgument, BuildFailed, StoreError
from tilewright.ops.nouns import MAIN, Descriptor, Scalar, Step
from tilewright.runtime.bound import Loaded, _Packed

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store with `GOOD` in it, made once; tests only read it (trusted: homes differ)."""
    from tilewright import ops

    store = Store(tmp_path_factory.mktemp("warm") / "store", trusted=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ops, "family", lambda name: FakeFamily())
        patch.setenv("TILEWRIGHT_HOME", str(store.path.parent / "home"))
        report = build(GOOD, store=store, workers=2)
    report.raise_if_failed()
    assert [r.status for r in report.results] == ["built"] * 4
    return store


def content(store: Store) -> dict[str, bytes]:
    files = [*store.path.glob("entries/*/*.json"), *store.path.glob("blobs/*/*")]
    return {str(p.relative_to(store.path)): p.read_bytes() for p in files}


@pytest.fixture(autouse=True)
def no_idle_compilers():
    """So that a test starts those that it needs."""
    compilers.end_idle()


# --- the ordinary course ------------------------------------------------------------------


@pytest.mark.turns(48)
def test_two_cold_builds_are_byte_identical(
    warm: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another folder and order, with one worker, in an environment made to differ."""
    for name, value in {
        "TRITON_DISABLE_LINE_INFO": "0",
        "DISABLE_LLVM_OPT": "1",
        "TRITON_DEFAULT_FP_FUSION": "0",
        "AMDGCN_USE_BUFFER_OPS": "0",
        "PTXAS_OPTIONS": "--opt-level 0",
        "TRITON_OVERRIDE_ARCH": "sm80",
        "PYTHONHASHSEED": "7",
        "TMPDIR": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    other = Store(tmp_path / "a longer path" / "store")
    build(GOOD[::-1], store=other, workers=1).raise_if_failed()
    assert content(other) == content(warm) and len(content(other)) == 4 * 5
    compilers.end_idle()
    assert not list(tmp_path.glob("tilewright-build-*")), "temporary files were left"


@pytest.mark.turns(48)
def test_a_warm_store_starts_nothing(
    warm: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compilers, "Child", None)
    report = build(GOOD, store=warm)
    assert [r.status for r in report.results] == ["cached"] * 4
    assert str(report).startswith("4 cached in")


@pytest.mark.turns(64)
def test_results_are_in_request_order_and_duplicates_built_once(
    warm: Store, tmp_path: Path
) -> None:
    store = Store(tmp_path / "store")
    twice = [GOOD[2], GOOD[0], GOOD[2]]
    seen: list[tuple[int, int]] = []
    report = build(
        twice, store=store, workers=2, progress=lambda _, done, total: seen.append((done, total))
    )
    assert [r.arch.name for r in report.results] == ["gfx942", "sm_90", "gfx942"]
    assert report.results[0].kernel == report.results[2].kernel
    assert len(report.kernels) == 2 and len(list(store.entries())) == 2
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.turns(8)
def test_what_a_kernel_carries(warm: Store) -> None:
    scale, tile, amd_scale, amd_tile = (
        r.kernel for r in build(GOOD, store=warm).results if r.kernel
    )
    assert scale.name == GOOD[0][0].name and scale.entry == "scale" and scale.num_warps == 4
    assert scale.arguments == (("x", "*fp32"), ("y", "*fp32"), ("n", "i32"))
    assert warm.read(scale).startswith(b"\x7fELF") and warm.read(amd_scale).startswith(b"\x7fELF")
    assert 8 <= scale.resources.registers <= 64 and scale.resources.spill_bytes == 0
    assert [m.block_size for m in tile.tensor_maps] == [(64, 64)] * 3
    assert tile.shared >= 2 * 2 * 64 * 64  # two operands of bf16
    assert amd_tile.tensor_maps == () and amd_tile.binary == "hsaco"
    assert amd_scale.resources.sgprs > 0 and amd_tile.resources.registers > 16
    fit = tile.occupancy(arch("sm_90"))
    assert fit.workgroups >= 1 and fit.limiter in ("registers", "shared_memory", "waves")


@pytest.mark.turns(8)
def test_what_a_launch_passes_is_what_the_kernel_takes(warm: Store) -> None:
    """Where every parameter lies, by the compiler's listing and by the launcher, which has to know
    how this Triton takes descriptors where there are no tensor maps."""
    _, _, _, made = (r.kernel for r in build(GOOD, store=warm).results)
    assert made is not None and made.triton == importlib.metadata.version("triton")
    listing = inspect(made, warm, "amdgcn")
    offsets = re.findall(r"\.offset: +(\d+)\n +\.size: +\d+\n +\.value_kind: +[bg]", listing)
    view = Descriptor("x", "bf16", (64, 64), (64, 1), (64, 64))
    step = Step((1, 1, 1), (view, view, view, Scalar("i32", 64)))
    function = ctypes.c_void_p(1)
    anywhere: Any = SimpleNamespace(entry=lambda *_: SimpleNamespace(address=1, attributes=()))
    packed = _Packed({"x": (0, 0)}, [], {})
    packed.add_step(anywhere, {MAIN: Loaded(made, function)}, 64, step)
    ((*_, places),) = packed.steps
    assert places == tuple(int(offset) for offset in offsets)


def test_a_kernel_that_no_launch_has_room_for_is_refused_before_it_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, source = (
        Store(tmp_path / "store"),
        FakeFamily().sources(FakeConfig(), arch("sm_90"))[MAIN],
    )

    def built(count: int, kind: str) -> BuildResult:
        many = replace(source, signature=tuple((f"x{i}", kind) for i in range(count)))
        monkeypatch.setattr(FakeFamily, "sources", lambda self, config, arch: {MAIN: many})
        monkeypatch.setattr(compilers, "Child", None)  # none is started
        return build([(FakeConfig(), "sm_90")], store=store).results[0]

    result = built(511, "i64")
    assert result.status == "rejected" and result.verdict.rule == "parameters"
    assert "takes 4104 bytes of parameters, and a launch passes at most 4096" in result.reason
    result = built(1, "fp16")
    assert result.status == "failed" and "no scalar parameter has type 'fp16'" in result.reason


@pytest.mark.turns(8)
def test_inspect(warm: Store) -> None:
    _, tile, _, amd = (r.kernel for r in build(GOOD, store=warm).results)
    assert tile is not None and amd is not None
    assert "wgmma.mma_async" in inspect(tile, warm, "ptx")
    assert "HGMMA" in inspect(tile, warm, "sass")
    assert "v_mfma_f32" in inspect(amd, warm, "amdgcn")
    for kernel in (tile, amd):
        assert "define" in inspect(kernel, warm, "llir")
        assert "ttg.num-warps" in inspect(kernel, warm, "ttgir")
        for kind in ("ttgir", "llir"):
            assert str(HERE) not in inspect(kernel, warm, kind)
    with pytest.raises(BadArgument, match=r"gfx942, which has no 'sass'; it has amdgcn, llir"):
        inspect(amd, warm, "sass")
    with pytest.raises(BadArgument, match="no 'amdgcn'"):
        inspect(tile, warm, "amdgcn")


def test_the_familys_promises_reach_the_compiler(warm: Store) -> None:
    scale, _, amd_scale, _ = (r.kernel for r in build(GOOD, store=warm).results)
    assert scale is not None and amd_scale is not None
    assert "ld.global.v4" in inspect(scale, warm, "ptx")  # 16-byte divisibility
    assert "buffer_load_dwordx4" in inspect(amd_scale, warm, "amdgcn")  # 32-bit pointer range


# --- kernels that go wrong ----------------------------------------------------------------


class Hurried(Child):
    """Gives up soon on the kernel that hangs, and takes its time for the others."""

    def request(self, message: Message, blobs: Sequence[Blob] = (), timeout: float | None = None):
        hangs = message["job"]["source"]["module"] == "fake_hang"
        return super().request(message, blobs, 1 if hangs else timeout)


@pytest.mark.turns(48)
def test_each_bad_kernel_costs_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "store")
    asked = [
        (FakeConfig(module="fake_abort"), "sm_90"),
        (FakeConfig(), "sm_90"),
        (FakeConfig(module="fake_hang"), "sm_90"),
        (FakeConfig("wrong"), "sm_90"),
        (FakeConfig("tile", 256, 8, 4), "sm_90"),
        (FakeConfig(module="fake_absent"), "sm_90"),
        (FakeConfig("absent"), "gfx942"),
        (FakeConfig(), "gfx942"),
    ]
    monkeypatch.setattr(compilers, "Child", Hurried)
    report = build(asked, store=store, workers=2, timeout=LIMIT_SECONDS)
    statuses = [r.status for r in report.results]
    assert statuses == ["failed", "built"] + ["failed"] * 2 + ["rejected"] + ["failed"] * 2 + [
        "built"
    ]
    reasons = [r.reason for r in report.results]
    assert "SIGABRT" in reasons[0] and "cannot select" in reasons[0]
    assert f"longer than {LIMIT_SECONDS:g} s" in reasons[2]
    assert "power of 2" in reasons[3] and "tl.arange(0, 3)" in reasons[3]
    assert "262176" in reasons[4] and "232448" in reasons[4]
    assert "fake_absent cannot be found" in reasons[5] and "absent" in reasons[6]
    rejected = report.results[4]
    assert rejected.verdict is not None and rejected.verdict.rule == "shared_memory"
    assert len(report.kernels) == 2
    with pytest.raises(BuildFailed, match="6 of 8 kernels") as raised:
        report.raise_if_failed()
    assert all(repr(config) in str(raised.value) for config, _ in asked if _ == "absent")
    assert "FakeConfig(function='scale', block=1024, num_warps=4" in str(raised.value)
    compilers.end_idle()
    assert our_children() == []
    # The rejected one is remembered with its numbers, and not compiled again.
    assert build([asked[4]], store=store, workers=1).results[0].seconds == 0.0


@pytest.mark.turns(24)
def test_an_edit_is_never_served_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even one within the same second that keeps the file's size (stale bytecode)."""
    text = (HERE / "fake_kernels.py").read_text().replace("fake_helper.twice", "FACTOR * ")
    module = tmp_path / "edited_kernels.py"
    monkeypatch.syspath_prepend(str(tmp_path))
    store = Store(tmp_path / "store")
    found = []
    for factor in (2, 3):
        constant = f"FACTOR = tl.constexpr({factor}.0)\n"
        module.write_text(text.replace("\n\n\n@triton.jit", f"\n{constant}\n@triton.jit", 1))
        os.utime(module, (1e9, 1e9))
        subprocess.run(  # leave bytecode for it, as importing it elsewhere would
            [sys.executable, "-m", "py_compile", str(module)], check=True
        ) if factor == 2 else None
        report = build([(FakeConfig(module="edited_kernels"), "sm_90")], store=store)
        report.raise_if_failed()
        found.append(inspect(report.kernels[0], store, "ptx"))
    assert "0f40400000" in found[1] and "0f40400000" not in found[0]  # 3.0 in the second


def test_an_edit_during_the_build_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "sources_digest", lambda module: "of the file as it was")
    report = build(GOOD[:1], store=Store(tmp_path / "store"))
    assert report.results[0].status == "failed"
    assert "fake_kernels changed during the build" in report.results[0].reason


def test_the_telling_lines_are_found_among_the_noise() -> None:
    noise = "".join(f" #{i} 0x{i:016x} libtriton.so\n" for i in range(50))
    said = f"error: of another kernel\n{MARK}\nLLVM ERROR: Cannot select: t1\n{noise}"
    assert telling(said) == "LLVM ERROR: Cannot select: t1"
    assert telling("") == "" and telling("one\ntwo") == "one\ntwo"


# --- stores that go wrong -----------------------------------------------------------------


@pytest.mark.turns(32)
def test_a_damaged_entry_is_built_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    (kernel,) = build(GOOD[:1], store=store).kernels
    good = content(store)
    for name in [n for n in good if n.startswith("blobs") or n.endswith(".json")]:
        (store.path / name).write_bytes(good[name][: len(good[name]) // 2])
        report = build(GOOD[:1], store=store)
        assert [r.status for r in report.results] == ["built"], name
        assert content(store) == good and report.kernels == (kernel,)


@pytest.mark.turns(24)
def test_a_strangers_entry_is_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path / "store")
    build(GOOD[:1], store=store).raise_if_failed()
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "another"))
    assert build(GOOD[:1], store=store).results[0].status == "built"
    assert "not made by this user" in caplog.text
    assert build(GOOD[:1], store=store).results[0].status == "cached"


def test_a_read_only_store_fails_before_compiling(
    warm: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    monkeypatch.setattr(compilers, "Child", None)
    assert build(GOOD, store=warm).failures == ()
    with pytest.raises(StoreError, match=r"1 kernels are not usable.*Read-only.*TILEWRIGHT_STORE"):
        build([*GOOD, (FakeConfig(block=32), "sm_90")], store=warm)
    with pytest.raises(StoreError, match="--trust-store"):
        build(GOOD, store=Store(warm.path))


@pytest.mark.turns(32)
def test_a_full_disk_stops_the_build_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "store")
    build(GOOD[:1], store=store).raise_if_failed()
    before = content(store)
    real = os.fsync

    def full(fd: int) -> None:
        if os.fstat(fd).st_size > 3000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="No space left on device"):
        build([*GOOD, *requests(6)], store=store, workers=2)
    monkeypatch.undo()
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    assert before.items() <= content(store).items() and store.verify() == []
    compilers.end_idle()
    assert our_children() == [] and not [
        t for t in threading.enumerate() if t.name == "tilewright-builder"
    ]


# --- progress -----------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere() -> None:
    result = BuildResult(FakeConfig(), "fake_a", arch("sm_90"), "failed", reason="no [luck]")
    for out in (io.StringIO(), Terminal()):
        with show_progress(out) as progress:
            for done in range(1, 101):
                progress(result, done, 100)
        assert "failed fake_a for sm_90: no [luck]" in out.getvalue()
        assert ("kernels done: 100 of 100" in out.getvalue()) == (not out.isatty())
        assert "100" in out.getvalue()
    assert (
        "rich"
        not in subprocess.run(
            [sys.executable, "-c", "import tilewright.compile, sys; print(*sys.modules)"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
    )
