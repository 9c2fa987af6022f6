"""The process that measures on one device.

Each request is one step (`Worker.answer`), so that an event that ends the process costs only the
current step. The steps are ``open`` once, then for each batch ``problem`` (operands, reference),
``verify`` for each kernel, and ``time`` for the kernels that passed, in turns; and ``canary`` after
a fault, to see whether the device can be trusted again. Modules named in TILEWRIGHT_KERNEL_MODULES
are imported first: they register the user's own operations.
"""

from __future__ import annotations

import importlib
import os
import resource
import secrets
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tilewright import arrays, ops, verify
from tilewright.arch import arch as arch_by_name
from tilewright.arch import words
from tilewright.arch.model import Device
from tilewright.child import Blob, Message, serve
from tilewright.compile import Store
from tilewright.compile.key import compiler_digest
from tilewright.dispatch import Dispatcher
from tilewright.errors import (
    BuildFailed,
    FindingsFound,
    IllegalAccess,
    KernelEndless,
    LaunchFailed,
    NoKernelFound,
    OutOfMemory,
    StoreError,
    UnknownInstruction,
    UnsupportedProblem,
    listed,
)
from tilewright.jsonfile import convert
from tilewright.measure import timing
from tilewright.measure.contenders import bytes_of, kernel_bind, results
from tilewright.measure.devices import CPU, PRELOAD_VARIABLE
from tilewright.measure.measurement import Settings, Status
from tilewright.measure.results import read_problem
from tilewright.measure.telemetry import Monitor, flags
from tilewright.measure.vendor import is_vendor, vendor_bind
from tilewright.ops import named_modules
from tilewright.ops.protocols import Bind
from tilewright.runtime.launcher import launcher
from tilewright.tolerance import tolerance

_GPU = "cuda:0"  # torch's name of the only visible GPU, AMD's too

_FAULTS = (
    "illegal memory access",
    "illegal address",
    "illegal_address",
    "illegaladdress",
    "misaligned",
    "illegal instruction",
    "illegal_instruction",
    "hardware stack",
    "hardware_stack",
    "address space",
    "address_space",
    "invalid program counter",
    "invalid_pc",
    "unspecified launch failure",
    "launch failure",
    "error_launch_failed",
    "device-side assert",
)
"""Error messages, by the drivers and by torch, after which a context is unusable."""

CANARY_SIZE = 4096
"""Size of the canary on a GPU: large enough for the host to stay ahead of the device."""
CANARY = Settings(
    verify=False, warm_up_seconds=0.2, precision=0.02, min_samples=20, budget_seconds=0.5
)
RESTED_SECONDS = 1.0
"""Seconds of work before the first canary's time counts. They take a device from rest to the clocks
and the heat of a sweep, because no measurement comes before the canary."""

PLACES_SHARE = 1 / 8
"""Share of the device's free memory that operands may take in all places together, and that the
gaps between them may take too."""


@dataclass(slots=True)
class _Work:
    """The current problem.

    operands: the operands that kernels are verified on.
    before: copies of the ``inout`` operands as they were made.
    reference: the right values of the written operands; None if nothing is verified.
    rotated: copies of the operands, including `operands`, that share one set of outputs.
    elsewhere: further operands, in other places of memory.
    """

    text: str
    problem: Any
    arch: str
    operands: verify.Operands
    before: dict[str, Any]
    seed: int
    reference: dict[str, Any] | None
    rotated: list[verify.Operands]
    elsewhere: list[verify.Operands] = field(default_factory=list)


class Worker:
    """Measures on one device. Holds the operands of one problem, and every kernel that it has
    loaded."""

    def __init__(self) -> None:
        self._place = CPU
        self._work: _Work | None = None
        self._device: Device | None = None
        self._dispatchers: list[Dispatcher] = []
        """One dispatcher for each place: the kernels and workspaces of each have memory of their
        own."""
        self._steps: dict[str, Callable[[Message], Message]] = {
            "open": self._open,
            "canary": self._canary,
            "problem": self._problem,
            "verify": self._verify,
            "time": self._time,
        }

    def answer(self, message: Message) -> Message:
        """Do one step. For an error, the answer has ``status``, ``reason`` and ``lost``: whether
        this process is unusable."""
        try:
            return self._steps[message["do"]](message)
        except Exception as error:
            status, reason = blame(error)
            return {
                "status": status,
                "reason": reason,
                "error": reason,
                "lost": status == "illegal_access" and self._gpu,
            }

    @property
    def _gpu(self) -> bool:
        return self._place == _GPU

    # --- steps ------------------------------------------------------------------------------

    def _open(self, message: Message) -> Message:
        """Open the device.

        uuid: the GPU's UUID, ``cpu`` for the interpreter, or the word for an emulated GPU.
        nvml: NVML's name for the device, if it has one.
        settings, store, trusted, l2_bytes: as the crew has them.
        memory: bytes of address space, without a GPU; 0 for no limit.
        """
        uuid: str = message["uuid"]
        self._place = uuid if uuid == CPU or words.emulated(uuid) else _GPU
        self._settings = convert(message["settings"], Settings, "settings")
        self._store = Store(message["store"], trusted=message["trusted"])
        self._monitor = Monitor(message["nvml"])
        self._l2_bytes: int = message["l2_bytes"]
        self._flush: timing.Call | None = None
        if self._gpu:
            import torch

            torch.zeros(1, device=_GPU)
            # Do here everything that is slow at first use on a machine or in a process, so that no
            # kernel's step includes it.
            launcher()
            compiler_digest()
        elif message["memory"]:  # the interpreter's process inherits the limit
            resource.setrlimit(resource.RLIMIT_AS, (message["memory"],) * 2)
        return {}

    def _canary(self, message: Message) -> Message:
        """A small product that any sound device computes correctly, and its time in microseconds (0
        without a GPU, where times say nothing). ``rested``: whether the device was at rest
        before."""
        size = CANARY_SIZE if self._gpu else 64
        rng = secrets.randbits(31)
        if not self._gpu:
            import numpy as np

            a, b = np.random.default_rng(rng).standard_normal((2, size, size), np.float32)
            right = np.allclose(a @ b, a.astype(np.float64) @ b, atol=1e-3)
            return {"ok": bool(right), "us": 0.0}
        import torch

        generator = torch.Generator(_GPU).manual_seed(rng)
        a, b = torch.randn(2, size, size, generator=generator, device=_GPU).bfloat16()
        out = a @ b
        # Compare as for kernels' outputs, so that no kernel's step loads the modules for it.
        right = verify.compare(out, a.double() @ b.double(), tolerance("bf16", "bf16", size)).ok
        timer = timing.Events(lambda: None, _GPU)
        settings = replace(CANARY, warm_up_seconds=RESTED_SECONDS) if message["rested"] else CANARY
        series = timing.measure({"canary": [lambda: torch.mm(a, b, out=out)]}, timer, settings)
        return {"ok": right, "us": statistics.median(series["canary"].samples_us)}

    def _problem(self, message: Message) -> Message:
        """Make the operands of ``problem`` (as `problem_text` writes it) for ``arch``."""
        if self._work is not None and self._work.text == message["problem"]:
            self._work.arch = message["arch"]
            return {}
        self._work = None
        problem = read_problem(message["problem"], "the request")
        seed = secrets.randbits(31)
        operands = verify.operands_of(problem, seed, self._place)
        before = verify.snapshot(problem, operands.inputs)
        reference = verify.reference(problem, operands.inputs) if self._settings.verify else None
        self._work = _Work(
            message["problem"],
            problem,
            message["arch"],
            operands,
            before,
            seed,
            reference,
            [operands],
        )
        return {}

    def _verify(self, message: Message) -> Message:
        """Run ``kernel`` once on ``device``, on a poisoned output, and compare."""
        work, name = self._in_hand(), message["kernel"]
        family, problem = ops.family(work.problem.family), work.problem
        config = None
        if not is_vendor(name):
            config = family.parse_name(name)
            verdict = family.supports(config, problem, arch_by_name(work.arch))
            if not verdict:
                raise UnsupportedProblem(str(verdict))
        self._plan_for(convert(message["device"], Device, "device"))
        bind = self._bind(name, work, self._dispatchers[0])
        try:
            written = self._run_once(bind, work)
        except FindingsFound as error:
            return self._found(work, config, error.findings)
        if work.reference is None:
            return {"status": "ok", "reason": "", "check": None}
        check = verify.compare_all(problem, config, written, work.reference)
        if not check.ok and self._gpu and _mended(work):
            written = self._run_once(bind, work)
            check = verify.compare_all(problem, config, written, work.reference)
        status: Status = "ok"
        reason = ""
        if not check.ok:
            stray = sum(_stray_nans(written[n], wanted) for n, wanted in work.reference.items())
            status = "nan" if stray else "mismatch"
            reason = f"{stray} NaN where the reference has none" if stray else str(check)
        return {
            "status": status,
            "reason": reason,
            "check": {**asdict(check), "seed": work.seed},
        }

    def _found(self, work: _Work, config: Any, findings: tuple[str, ...]) -> Message:
        """The answer for a kernel of which an emulated GPU found this. It wrote its outputs."""
        made = None
        if work.reference is not None:
            written = work.operands.written(work.problem)
            check = verify.compare_all(work.problem, config, written, work.reference)
            made = {**asdict(verify.with_findings(check, findings)), "seed": work.seed}
        return {"status": "finding", "reason": listed(findings)[:1000], "check": made}

    def _time(self, message: Message) -> Message:
        """Time the ``kernels`` that passed, in turns."""
        work = self._in_hand()
        names: list[str] = message["kernels"]
        timer = self._timer(work)
        places = range(self._places(work))
        calls = {name: [self._call(name, work, place) for place in places] for name in names}
        timed = timing.measure(
            calls,
            timer,
            self._settings,
            beside=[name for name in names if is_vendor(name)],
            watch=self._monitor.read,
        )
        self._wait()
        seen = self._monitor.take()
        return {
            "kernels": {
                n: {**asdict(s), "flags": flags(seen, s.settled, s.late)} for n, s in timed.items()
            },
            "telemetry": asdict(seen),
        }

    # --- helpers ----------------------------------------------------------------------------

    def _bind(self, name: str, work: _Work, dispatcher: Dispatcher) -> Bind:
        """Makes calls of the kernel, or of the vendor's library, called `name`."""
        if is_vendor(name):
            return vendor_bind(work.problem, name)[1]
        return kernel_bind(dispatcher, name, work.problem)

    def _call(self, name: str, work: _Work, place: int) -> timing.Call:
        """A call in one of the places. Each call uses other copies of the inputs, if there are
        some, and always the same output."""
        copies = work.rotated if place == 0 else [work.elsewhere[place - 1]]
        bind = self._bind(name, work, self._dispatchers[place])
        return timing.rotated([bind(each.inputs, each.outputs) for each in copies])

    def _places(self, work: _Work) -> int:
        """Make the places, and return their number."""
        several = self._gpu and self._settings.cache == "flushed"
        if several and self._settings.places > 1 and not work.elsewhere:
            self._spread(work)
        while len(self._dispatchers) <= len(work.elsewhere):
            self._dispatchers.append(self._dispatcher())
        return 1 + len(work.elsewhere)

    def _spread(self, work: _Work) -> None:
        """Make operands in further places."""
        import torch

        torch.cuda.empty_cache()  # otherwise the new operands would get the same memory
        room = int(torch.cuda.mem_get_info()[0] * PLACES_SHARE / self._settings.places)
        operands = (*work.operands.inputs.values(), *work.operands.outputs.values())
        if bytes_of(operands) <= room:
            between = []
            for _ in range(self._settings.places - 1):
                gap = secrets.randbelow(room)
                between.append(torch.empty(gap, dtype=torch.uint8, device=_GPU))
                work.elsewhere.append(verify.operands_of(work.problem, work.seed, _GPU))

    def _run_once(self, bind: Bind, work: _Work) -> dict[str, Any]:
        """The operands that a call writes, by name. Outputs are poisoned, and temporaries are in
        memory that no kernel used before."""
        verify.reset(work.operands, work.before)
        self._dispatchers[0].workspaces.release()
        returned = bind(work.operands.inputs, work.operands.outputs)()
        self._wait()
        return results(work.problem, work.operands, returned)

    def _in_hand(self) -> _Work:
        assert self._work is not None, "a problem comes first"
        return self._work

    def _plan_for(self, device: Device) -> None:
        """Make a dispatcher for this device, or, in a worker without a GPU, for the one that is
        played. It never builds."""
        if self._device != device:
            self._device = device
            self._dispatchers = [self._dispatcher()]

    def _dispatcher(self) -> Dispatcher:
        device = self._place if words.emulated(self._place) else self._device
        return Dispatcher(device=device, store=self._store, build_missing=False)

    def _wait(self) -> None:
        if self._gpu:
            import torch

            torch.cuda.synchronize()

    def _timer(self, work: _Work) -> timing.Timer:
        if not self._gpu:
            return timing.Wall()
        l2 = self._l2_bytes
        if self._settings.cache == "rotated":
            inputs = work.operands.inputs.values()
            count = timing.copies_to_rotate(bytes_of(inputs), l2)
            while len(work.rotated) < count:
                made = verify.operands_of(work.problem, work.seed, _GPU)
                work.rotated.append(verify.Operands(made.inputs, work.operands.outputs))
            flush: timing.Call = timing.pause
        else:
            self._flush = flush = self._flush or timing.flusher(l2, _GPU)
        if self._settings.timer == "graph":
            return timing.Graphs(flush, _GPU, len(work.rotated))
        return timing.Events(flush, _GPU)


def _mended(work: _Work) -> bool:
    """Whether an earlier kernel changed the inputs by a fault. They are restored."""
    made = verify.operands_of(work.problem, work.seed, _GPU)
    read_only = made.inputs.keys() - work.before.keys()
    if all(_equal(work.operands.inputs[name], made.inputs[name]) for name in read_only):
        return False
    work.operands, work.rotated, work.elsewhere = made, [made], []
    return True


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, int | float):
        return bool(one == other)
    return bool((arrays.to_float64(one) == arrays.to_float64(other)).all())


def _stray_nans(out: Any, reference: Any) -> int:
    """Number of NaN where the reference has none."""
    got = arrays.to_float64(out)
    return int(((got != got) & (reference == reference)).sum())


def blame(error: BaseException) -> tuple[Status, str]:
    """The status for a kernel's error, and the reason in one sentence."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:1000]
    if isinstance(error, (UnsupportedProblem, NoKernelFound)):
        return "unsupported", str(error)
    if isinstance(error, KernelEndless):
        return "timeout", str(error)
    if isinstance(error, UnknownInstruction):
        return "launch_failed", str(error)
    if isinstance(error, (BuildFailed, StoreError)):
        return "build_failed", str(error)
    said = str(error).lower()
    short = ("out of memory", "out_of_memory")
    if isinstance(error, (MemoryError, OutOfMemory)) or any(word in said for word in short):
        return "out_of_memory", reason
    if isinstance(error, IllegalAccess) or (
        isinstance(error, (RuntimeError, LaunchFailed)) and any(word in said for word in _FAULTS)
    ):
        return "illegal_access", reason
    # Only this type: its subtypes say that the kernel ran, and how it ended.
    return ("launch_failed" if type(error) is LaunchFailed else "crashed"), reason


def main() -> None:
    """Serve one parent until it is gone."""
    for module in (*named_modules(), *filter(None, [os.environ.get(PRELOAD_VARIABLE)])):
        importlib.import_module(module)
    worker = Worker()

    def handle(message: Message, _blobs: list[bytes]) -> tuple[Message, Sequence[Blob]]:
        return worker.answer(message), ()

    serve(handle)
