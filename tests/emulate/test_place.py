"""Emulated GPUs as a place to run: calls, verification, sweeps, and what is refused.

Kernels go the whole way: planned, built, proven, loaded, packed, executed. Faults are planted in
listings, where the proof is switched off.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import gemm_cases
import numpy as np
import pytest

import tilewright
from shared_builds import build_once
from tilewright import arrays, capturing, loader, verify
from tilewright.arch.resolve import emulated
from tilewright.bundle import Bundle, Content, write
from tilewright.cli.run import run_once
from tilewright.compile import find
from tilewright.dispatch import Dispatcher
from tilewright.emulate.device import EmulatedGpu
from tilewright.emulate.machine import Limits
from tilewright.emulate.proof import Prover
from tilewright.errors import (
    BadArgument,
    BadFile,
    FindingsFound,
    KernelCrashed,
    KernelEndless,
    NotInBundle,
    UnknownInstruction,
    WrongDevice,
)
from tilewright.measure import places
from tilewright.measure.crew import Crew, Task
from tilewright.measure.measurement import Settings, problem_text, text
from tilewright.measure.worker import Worker, blame
from tilewright.ops.gemm import GemmProblem
from tilewright.registry import Registry

GPU = "emulated:gfx942"
SMALL = {"tile_m": 32, "tile_n": 32, "tile_k": 32, "num_warps": 1, "dtype_a": "fp16"}
PLAIN = gemm_cases.config("gfx942", alignment=1, **SMALL)
SHARED = gemm_cases.config("gfx942", scheduler="split_k", split_k=3, reduction="linear", **SMALL)
PROBLEM = GemmProblem(33, 20, 40, dtype_a="fp16", alignment=2)


@pytest.fixture(scope="module", autouse=True)
def _built(store):
    build_once([(PLAIN, "gfx942"), (SHARED, "gfx942")], store).raise_if_failed()


@pytest.fixture
def dispatcher(store):
    return Dispatcher(Registry("one").register_all([PLAIN]), GPU, store=store)


@pytest.fixture
def planted(monkeypatch):
    """Changes the listings of kernels that are loaded from now on; nothing is proven."""

    def plant(old, new):
        read = loader.inspect

        def changed(kernel, store, what):
            text = read(kernel, store, what)
            assert old in text
            return text.replace(old, new)

        monkeypatch.setattr(loader, "inspect", changed)
        monkeypatch.setattr(Prover, "prove", lambda *given: None)

    return plant


def product(a, b):
    return a.astype(np.float64) @ b.astype(np.float64)


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    b = rng.standard_normal((20, 40)).astype(np.float16).T
    return rng.standard_normal((33, 40)).astype(np.float16), b


# --- words ----------------------------------------------------------------------------------------


@pytest.mark.turns(4)
@pytest.mark.grid(1)
@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("emulated:gfx942", "AMD Instinct MI300X"),
        ("emulated:MI325X", "AMD Instinct MI325X"),
        ("Emulated: gfx942:sramecc+", "AMD Instinct MI300X"),
        ("emulated:rx 9070 xt", "AMD Radeon RX 9070 XT"),
        ("emulated:gfx1250", "gfx1250"),
    ],
)
def test_a_word_names_the_device_that_is_played(word, name):
    assert emulated(word).name == name


@pytest.mark.parametrize("word", ["emulated:", "emulated:h200_sxm", "emulated:sm_90", "emulated:x"])
def test_other_words_name_no_emulated_gpu(word):
    with pytest.raises(BadArgument):
        emulated(word)


# --- calls ----------------------------------------------------------------------------------------


@pytest.mark.turns(8)
def test_a_call_on_cpu_arrays_returns_the_product(dispatcher):
    a, b = inputs()
    np.testing.assert_allclose(dispatcher.run("gemm", a, b), product(a, b), rtol=2e-3, atol=1e-2)
    (ran,) = dispatcher.ran
    assert ran.kernel.name == PLAIN.name
    assert ran.execution.waves == 2 and ran.execution.executed.sum() > 100


def test_torch_tensors_are_taken_and_given(dispatcher):
    torch = pytest.importorskip("torch")
    a, b = map(torch.from_numpy, inputs())
    out = dispatcher.run("gemm", a, b)
    assert isinstance(out, torch.Tensor)
    np.testing.assert_allclose(out.numpy(), product(a.numpy(), b.numpy()), rtol=2e-3, atol=1e-2)


@pytest.mark.turns(8)
def test_only_the_elements_of_an_output_are_written(dispatcher):
    a, b = inputs()
    padded = np.zeros((33, 64), np.float16)
    inside = np.zeros((50, 64), np.float16)[:33, :40]  # rows with gaps
    inside[...] = a
    out = padded[:, :20]
    assert dispatcher.run("gemm", inside, b, out=out) is out
    np.testing.assert_allclose(out, product(a, b), rtol=2e-3, atol=1e-2)
    assert not padded[:, 20:].any()


def test_the_kernel_sees_the_alignment_of_the_arrays(dispatcher, monkeypatch):
    seen = []
    execute = EmulatedGpu.execute

    def spy(gpu, given):
        seen.extend(np.frombuffer(given.arguments, np.int64)[:3] % 16)
        return execute(gpu, given)

    monkeypatch.setattr(EmulatedGpu, "execute", spy)
    a, b = inputs()
    shifted = np.zeros(a.size + 8, np.float16)
    at = next(i for i in range(8) if shifted[i:].ctypes.data % 16 == 6)
    there = shifted[at : at + a.size].reshape(a.shape)
    there[...] = a
    out = dispatcher.run("gemm", there, b)
    assert seen == [6, b.ctypes.data % 16, out.ctypes.data % 16]
    np.testing.assert_allclose(out, product(a, b), rtol=2e-3, atol=1e-2)


def test_a_call_like_an_earlier_one_is_not_prepared_again(dispatcher, monkeypatch):
    a, b = inputs()
    dispatcher.run("gemm", a, b)
    monkeypatch.setattr(dispatcher._launchable, "ready", None)
    out = np.empty((33, 20), np.float16)
    other, _ = inputs(7)
    dispatcher.run("gemm", other, b, out=out)
    np.testing.assert_allclose(out, product(other, b), rtol=2e-3, atol=1e-2)


def test_a_capture_counts_every_call(dispatcher, tmp_path):
    a, b = inputs()
    dispatcher.run("gemm", a, b)
    with tilewright.capture(tmp_path / "seen.jsonl"):
        for _ in range(3):
            dispatcher.run("gemm", a, b)
    assert [*capturing.load(tmp_path / "seen.jsonl").values()] == [3]


def test_memory_that_cannot_be_written_is_no_output(dispatcher):
    a, b = inputs()
    out = np.empty((33, 20), np.float16)
    out.flags.writeable = False
    with pytest.raises(BadArgument, match="read-only"):
        dispatcher.run("gemm", a, b, out=out)


def test_a_kernel_from_a_bundle_has_no_listing(store, tmp_path):
    content = Content()
    for kernel in find(PLAIN, "gfx942", store).values():
        content.add(kernel, store.read(kernel))
    write(content, tmp_path / "one.bundle")
    bundle = Bundle(tmp_path / "one.bundle", trusted=True)
    with pytest.raises(NotInBundle, match="no listing"):
        Dispatcher(device=GPU, bundle=bundle).run("gemm", *inputs())


# --- temporaries ----------------------------------------------------------------------------------


@pytest.mark.turns(6)
def test_temporaries_and_partial_sums(store):
    dispatcher = Dispatcher(device=GPU, store=store)
    problem = GemmProblem(33, 32, 192, dtype_a="fp16")
    for _ in range(2):  # what must be left zero is found zero
        assert verify.verify(dispatcher, problem, SHARED.name, device=GPU, seed=1).ok


def test_a_temporary_that_is_not_left_zero_is_an_error(store, monkeypatch):
    execute = EmulatedGpu.execute

    def spoil(gpu, given):
        execute(gpu, given)
        (kept,) = (x for x in gpu._memory.allocations if x.name == "temporary flags")
        gpu._memory.write(kept.address, np.ones(1, np.uint8))

    monkeypatch.setattr(EmulatedGpu, "execute", spoil)
    problem = GemmProblem(33, 32, 192, dtype_a="fp16")
    operands = verify.operands_of(problem, 1)
    with pytest.raises(KernelCrashed, match="must leave zero"):
        verify.run(Dispatcher(device=GPU, store=store), problem, operands, SHARED.name)
    assert np.isnan(operands.outputs["C"].astype(np.float32)).all()  # as it was


# --- proof ----------------------------------------------------------------------------------------


def test_a_listing_of_another_kernel_is_not_executed(store, monkeypatch):
    read = loader.inspect
    monkeypatch.setattr(
        loader, "inspect", lambda *given: read(*given).replace("s_endpgm", "s_nop 0", 1)
    )
    with pytest.raises(BadFile, match="other machine code"):
        Dispatcher(device=GPU, store=store).run_named(PLAIN.name, *inputs())


def test_a_listing_that_does_not_assemble_says_why(store, monkeypatch):
    read = loader.inspect
    monkeypatch.setattr(
        loader, "inspect", lambda *given: read(*given).replace("s_endpgm", "s_endpg", 1)
    )
    with pytest.raises(BadFile, match="invalid instruction"):
        Dispatcher(device=GPU, store=store).run_named(PLAIN.name, *inputs())


def test_a_proof_is_made_once(store, monkeypatch):
    Dispatcher(device=GPU, store=store).run_named(PLAIN.name, *inputs())
    monkeypatch.setattr(Prover, "_assembled", None)
    Dispatcher(device=GPU, store=store).run_named(PLAIN.name, *inputs())


# --- faults ---------------------------------------------------------------------------------------


def test_findings_are_raised_after_the_output_is_written(dispatcher, planted):
    planted("s_waitcnt vmcnt(0)", "s_nop 0")
    a, b = inputs()
    out = np.full((33, 20), np.nan, np.float16)
    with pytest.raises(FindingsFound, match="unwaited register") as caught:
        dispatcher.run("gemm", a, b, out=out)
    np.testing.assert_allclose(out, product(a, b), rtol=2e-3, atol=1e-2)
    assert PLAIN.name in caught.value.findings[0] and "line " in caught.value.findings[0]


def test_verification_tells_findings_beside_the_result(dispatcher, planted):
    planted("s_waitcnt vmcnt(0)", "s_nop 0")
    check = verify.verify(dispatcher, PROBLEM, device=GPU, seed=1)
    assert not check.ok and check.within and check.share == 1.0
    assert "unwaited register" in str(check)
    with pytest.raises(tilewright.errors.VerificationFailed, match="unwaited register"):
        verify.require(check, "it")


def test_verification_runs_on_the_dispatchers_gpu(dispatcher, store):
    assert verify.verify(dispatcher, PROBLEM, device="emulated:mi300x", seed=1).ok
    assert verify.verify(dispatcher, PROBLEM, seed=1).ok
    assert dispatcher.ran
    for other in (dispatcher, Dispatcher(device="mi300x", store=store)):
        with pytest.raises(WrongDevice, match="Dispatcher"):
            verify.verify(other, PROBLEM, device="emulated:mi325x")


def test_a_kernel_that_never_ends_is_given_up(dispatcher, planted):
    planted("\ts_endpgm", ".Lhere:\n\ts_branch .Lhere\n\ts_endpgm")
    dispatcher.loader._gpu = EmulatedGpu(emulated(GPU), limits=Limits(steps=5000))
    with pytest.raises(KernelEndless):
        dispatcher.run("gemm", *inputs())


def test_an_instruction_that_is_not_known_is_named(dispatcher, planted):
    planted("\ts_endpgm", "\tv_frobnicate_b32 v0, v1\n\ts_endpgm")
    with pytest.raises(UnknownInstruction, match="v_frobnicate_b32"):
        dispatcher.run("gemm", *inputs())


# --- measuring ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (KernelEndless("it"), "timeout"),
        (KernelCrashed("it"), "crashed"),
        (UnknownInstruction("it"), "launch_failed"),
    ],
)
def test_errors_have_a_status(error, status):
    assert blame(error)[0] == status


def test_words_name_places_for_workers():
    one, other = places.parse(f"{GPU},{GPU}")
    assert one == other and one.backend == "cpu" and one.emulated
    assert one.device is not None and one.device.name == "emulator as AMD Instinct MI300X"
    assert one.device_for("gfx942") == one.device and one.device_for("gfx950") is None
    assert one.settings(Settings(places=4)) == Settings(timer="none")


@pytest.mark.turns(4)
def test_a_sweep_executes_and_times_nothing(store):
    crew = Crew(places.parse(GPU), store, Settings())
    with crew:
        (seen,) = crew.run([Task(PLAIN.name, PROBLEM, "gfx942")])
    assert (seen.status, seen.samples_us, seen.reason) == ("executed", (), "")
    assert seen.check is not None and seen.check.ok
    assert seen.device.name.startswith("emulator as ") and seen.settings.timer == "none"


def test_a_finding_is_a_status(store, planted):
    planted("s_waitcnt vmcnt(0)", "s_nop 0")
    (place,) = places.parse(GPU)
    worker = Worker()
    assert worker.answer(opening(place, store)) == {}
    problem = {"do": "problem", "problem": problem_text(PROBLEM), "arch": "gfx942"}
    assert worker.answer(problem) == {}
    step = {"do": "verify", "kernel": PLAIN.name, "device": json.loads(text(place.device))}
    answer = worker.answer(step)
    assert answer["status"] == "finding" and "unwaited register" in answer["reason"]
    assert answer["check"]["share"] == 1.0 and not answer["check"]["ok"]


def opening(place, store):
    return {
        "do": "open",
        "uuid": place.uuid,
        "nvml": "",
        "settings": asdict(place.settings(Settings())),
        "store": str(store.path),
        "trusted": store.trusted,
        "l2_bytes": 0,
        "memory": 0,
    }


# --- the command line -----------------------------------------------------------------------------


def test_run_says_what_was_executed(dispatcher):
    ran = run_once(dispatcher, PROBLEM, on=GPU, seed=1)
    assert ran.ok and ran.lines()["findings"] == "none"
    (executed,) = ran.document()["executed"]
    assert executed["kernel"] == PLAIN.name and executed["waves"] == 2
    assert f"{executed['instructions']:,} instructions" in ran.lines()["executed"]


def test_run_fails_for_a_finding(dispatcher, planted):
    planted("s_waitcnt vmcnt(0)", "s_nop 0")
    ran = run_once(dispatcher, PROBLEM, on=GPU, seed=1)
    assert not ran.ok and "unwaited register" in ran.lines()["findings"]
    assert ran.lines()["check"].startswith("within")
    assert arrays.is_numpy(verify.operands_of(PROBLEM, 1, GPU).outputs["C"])
    assert replace(ran, findings=(), check=None).ok
