"""What listening to a model costs: training steps of a transformer that is not ported, with and
without."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from cases import HostTimes

LAYERS, WIDTH, HEADS, BATCH, ROWS = 4, 2048, 16, 8, 1024
ROUNDS, STEPS = 6, 10
"""Rounds of steps that are timed together: without, and with, in turn."""


def trained(compiled: bool, device: str = "cuda", width: int = WIDTH) -> Callable[[], None]:
    """A training step in bf16."""
    import torch

    layer = torch.nn.TransformerEncoderLayer(
        width, HEADS, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    model: Any = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    model = model.to(device, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    x = torch.randn(BATCH, ROWS, width, device=device, dtype=torch.bfloat16)
    run = torch.compile(model) if compiled else model

    def step() -> None:
        run(x).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def times(step: Callable[[], None], wait: Callable[[], None]) -> Mapping[str, Sequence[float]]:
    """Microseconds of a step: as it is, and listened to. wait: for the device."""
    from tilewright.torch import listen

    found: dict[str, list[float]] = {"": [], ", listened to": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(ROUNDS + 1):  # the first warms up
            for name, samples in found.items():
                file = Path(folder) / f"{number}.jsonl"
                with listen(file) if name else nullcontext():
                    step()  # what is heard first is written at once
                    wait()
                    begun = time.perf_counter()
                    for _ in range(STEPS):
                        step()
                    wait()
                    spent = time.perf_counter() - begun
                if number:
                    samples.append(1e6 * spent / STEPS)
    return found


def samples() -> Mapping[str, Sequence[float]]:
    """Of the model as it is, and compiled."""
    import torch

    return {
        f"{how}{name}": each
        for how, compiled in (("eager", False), ("compiled", True))
        for name, each in times(trained(compiled), torch.cuda.synchronize).items()
    }


CASES = (
    HostTimes(
        "host-listening",
        f"a training step of {LAYERS} layers of a transformer in bf16, {BATCH} × {ROWS} tokens",
        samples,
    ),
)
