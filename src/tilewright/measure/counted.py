"""The process that Nsight Compute watches.

It runs one kernel on one problem and marks one call. ncu (``--profile-from-start off``) profiles
every launch of that call. Its only argument is a request in JSON:

kernel: its name.
problem: as `problem_text` writes it.
device: its fingerprint.
store, trusted: the store's path, and whether it is trusted.
seconds: the time limit.
folder: the folder that relative paths start from.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from typing import Any

from tilewright import verify
from tilewright.arch.model import Device
from tilewright.compile import Store
from tilewright.dispatch import Dispatcher
from tilewright.jsonfile import convert
from tilewright.measure.results import read_problem
from tilewright.ops import named_modules

_GPU = "cuda:0"
_CALLS_BEFORE = 3
"""The first call loads the kernel and makes its workspace; neither must be counted."""


def run(request: dict[str, Any]) -> None:
    """Make the operands, warm up, and make the one call that is counted."""
    import torch

    problem = read_problem(request["problem"], "the request")
    operands = verify.operands_of(problem, seed=0, device=_GPU)
    dispatcher = Dispatcher(
        device=convert(request["device"], Device, "the request"),
        store=Store(request["store"], trusted=request["trusted"]),
        build_missing=False,
    )

    def call() -> None:
        verify.run(dispatcher, problem, operands, request["kernel"])
        torch.cuda.synchronize()

    for _ in range(_CALLS_BEFORE):
        call()
    profiler: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    profiler.cudaProfilerStart()
    call()
    profiler.cudaProfilerStop()


def main() -> None:
    """Run what the command line asks for."""
    request = json.loads(sys.argv[1])
    os.chdir(request["folder"])
    signal.alarm(request["seconds"])  # ends this process even if its parent is gone
    for module in named_modules():
        importlib.import_module(module)
    run(request)
