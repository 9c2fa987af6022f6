"""Reads hardware counters of one kernel on one problem by Nsight Compute (ncu), if it is installed.

ncu starts a process (`measure.counted`) that calls the kernel. It replays each launch of one marked
call, from the same memory and cold caches, until all requested metrics are counted. The device's
clocks are not changed. Options: NVIDIA's "Nsight Compute CLI" manual.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tilewright import child
from tilewright.compile import Store
from tilewright.measure.counters import (
    COUNTERS,
    STALLS,
    Counters,
    NoCounters,
    combine,
    parse,
    refusal,
    unknown,
)
from tilewright.measure.devices import Place
from tilewright.measure.measurement import problem_text
from tilewright.scratch import clear, scratch

SECONDS = 120
"""Time limit for the counters of one kernel. Starting Python and torch under ncu takes most of
it."""

_CUDA = "/usr/local/cuda"
_SCRATCH = "tilewright-ncu-"
_COUNTED = "tilewright.measure.counted"


def find_ncu() -> str | None:
    """The path of Nsight Compute's command: from the PATH, or from the CUDA toolkit (CUDA_HOME, or
    the usual folder). None if it is not installed."""
    toolkit = Path(os.environ.get("CUDA_HOME") or _CUDA, "bin")
    return child.program("ncu") or child.program("ncu", str(toolkit.absolute()))


def read(kernel: str, problem: Any, place: Place, store: Store, seconds: int = SECONDS) -> Counters:
    """Count while `kernel` computes `problem` on `place`, which should be idle. The kernel's binary
    is in `store`. Raises `NoCounters` if `place` is not an NVIDIA GPU, ncu is missing, permission
    is missing, or the run failed or did not end in `seconds`."""
    device = place.device
    if place.backend != "cuda" or device is None:
        raise NoCounters(f"hardware counters are read on NVIDIA GPUs, not on {place}")
    ncu = find_ncu()
    if ncu is None:
        raise NoCounters(
            "Nsight Compute is not installed: ncu is neither on the PATH nor in the CUDA toolkit "
            f"(CUDA_HOME, {_CUDA})"
        )
    request = {
        "kernel": kernel,
        "problem": problem_text(problem),
        "device": asdict(device),
        "store": os.fspath(store.path),
        "trusted": store.trusted,
        "seconds": math.ceil(seconds),
        "folder": str(Path.cwd()),
    }
    metrics = [counter.metric for counter in COUNTERS]
    log, said = _run(ncu, metrics, request, place, seconds)
    if strange := unknown(log, metrics):
        known = [metric for metric in metrics if metric not in strange]
        log, said = _run(ncu, known, request, place, seconds)
    launches = parse(log)
    if not launches:
        raise NoCounters(refusal(log, said))
    return combine(launches)


def _run(
    ncu: str, metrics: Sequence[str], request: dict[str, Any], place: Place, seconds: float
) -> tuple[str, str]:
    """ncu's log, and the remaining output."""
    clear(_SCRATCH)
    with scratch(_SCRATCH) as folder:
        log, said = Path(folder, "log"), Path(folder, "said")
        command = [
            ncu, "--csv", "--page", "raw", "--print-units", "base", "--log-file", os.fspath(log),
            "--clock-control", "none", "--profile-from-start", "off",
            "--section", STALLS, "--metrics", ",".join(metrics),
            *child.command(_COUNTED), json.dumps(request),
        ]  # fmt: skip
        changed = {**os.environ, **place.variables, "LC_ALL": "C"}
        with said.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=folder,  # ncu obeys a config.ncu-cfg in its start folder
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={name: value for name, value in changed.items() if value is not None},
                start_new_session=True,  # so that the whole process group can be ended
            )
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                raise NoCounters(f"ncu did not end within {seconds:g} s and was stopped") from None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return _text(log), _text(said)


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
