"""Unchanged torch programs: as they are, and with kernels of ours installed under them."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cases import HostTimes, llama, one_line

Step = Callable[[], Any]

PLAIN, SHIPPED = "as it is", "installed"
EMPTY, OTHERS = "installed, an empty table", "installed, a table of other problems"
WAYS = (PLAIN, EMPTY, OTHERS, SHIPPED)
ALL = "installed, all"
PREPARED = "installed, prepared by measuring"
MEASURING_SECONDS = 20
"""After which no further calls of a model are measured."""
PROCESSES, ROUNDS, STEPS = 2, 8, 8
"""Processes; turns of all ways in each, since processes differ by more than the ways; and timed
steps of each turn. Turns are short, so that what else the machine does meets all ways alike."""
WARM = 4
"""Steps of a way before its timed ones, which find caches as steps leave them: an installation was
just made, or taken out."""
HOST_TURNS = 12
FAR = 0.03
"""How far a result may be from torch's, of its norm: two roundings of bf16 through a model."""
PATIENCE_SECONDS = 300


def images(device: str) -> Step:
    """A training step of ResNet-50 in bf16, 32 images, channels-last."""
    import timm
    import torch

    model = timm.create_model("resnet50", pretrained=False)
    model = model.to(device, torch.bfloat16, memory_format=torch.channels_last)
    x = torch.randn(32, 3, 224, 224, device=device, dtype=torch.bfloat16)
    return partial(train, model, x.to(memory_format=torch.channels_last))


def encoder(device: str, width: int = 1024, rows: int = 512, layers: int = 8) -> Step:
    """A training step of torch's own encoder layers in bf16, 16 sequences."""
    import torch

    one = torch.nn.TransformerEncoderLayer(
        width, max(1, width // 64), 4 * width, dropout=0.0, batch_first=True
    )
    model = torch.nn.TransformerEncoder(one, layers, enable_nested_tensor=False).to(
        device, torch.bfloat16
    )
    x = torch.randn(16, rows, width, device=device, dtype=torch.bfloat16)
    return partial(train, model, x)


def decoder(device: str, batch: int, rows: int) -> Step:
    """A forward pass of a Llama of 16 layers of 8B's shapes in bf16, by torch's functions."""
    import torch

    weights = llama.changed(llama.made(device, llama.LAYERS), torch.bfloat16)
    x = torch.randn(batch, rows, llama.WIDTH, device=device, dtype=torch.bfloat16)
    cos, sin = (one.to(x.dtype) for one in llama.angles(torch.arange(rows, device=device)))
    run = llama.sides(weights, True)[1]

    def step() -> Any:
        with torch.no_grad():
            return run(x, cos, sin)

    return step


def train(model: Any, x: Any) -> Any:
    """The output and all gradients of a step, in one vector."""
    import torch

    model.zero_grad(set_to_none=True)
    out = model(x)
    out.float().square().mean().backward()
    every = (out.detach(), *(p.grad for p in model.parameters() if p.grad is not None))
    return torch.cat([one.flatten() for one in every])


def forward(device: str, made: one_line.Made, last: bool) -> Step:
    """A forward pass of a whole model in bf16. last: whether its images lie channels-last."""
    import torch

    lie = torch.channels_last if last else torch.contiguous_format
    model, given = made(device)
    model = model.eval().to(torch.bfloat16, memory_format=lie)
    low = [x.to(torch.bfloat16) for x in given]
    low = [x.to(memory_format=lie) if x.dim() == 4 else x for x in low]

    def step() -> Any:
        with torch.no_grad():
            return one_line.tensor_of(model(*low)).flatten()

    return step


FORWARD = "forward-"
"""Begins the names of models of which forward passes alone are timed."""

MODELS: Mapping[str, Callable[[str], Step]] = {
    "resnet50": images,
    "encoder": encoder,
    "prefill": partial(decoder, batch=1, rows=2048),
    "one-row": partial(decoder, batch=8, rows=1),
    **{
        f"{FORWARD}{name}": partial(forward, made=made, last=last)
        for name, (made, last) in one_line.MODELS.items()
    },
}


def run(
    name: str,
    device: str = "cuda",
    key: str = "CUDA",
    ways: Sequence[str] = WAYS,
    step: Step | None = None,
) -> dict[str, dict[str, Any]]:
    """Of each way, microseconds of a model's steps, how many calls of a step ours served, and how
    many kinds of calls were passed on to torch. Raises `ValueError` where results are wrong.

    key: torch's dispatch key of the device.
    step: the model's; None to make it.
    """
    import torch

    import tilewright.torch
    from tilewright.torch.installing import decisions

    torch.manual_seed(0)
    step = step or MODELS[name](device)
    theirs = step().double()
    shipped = decisions.default_dispatcher
    dispatchers = {EMPTY: knowing([]), OTHERS: knowing(of_others(key)), SHIPPED: shipped()}
    dispatchers[ALL] = dispatchers[SHIPPED]
    if PREPARED in ways:
        dispatchers[PREPARED] = prepared(step, key)
    found: dict[str, dict[str, Any]] = {
        way: {"us": [], "served": 0, "passed on": 0} for way in ways
    }
    try:
        for turn in range(-1, ROUNDS):  # the first builds kernels and is checked, and not timed
            for way in ways if turn % 2 == 0 else ways[::-1]:
                tilewright.torch.uninstall()
                if way != PLAIN:
                    decisions.default_dispatcher = lambda way=way: dispatchers[way]
                    only: Any = "all" if way == ALL else "proven"
                    at_work = tilewright.torch.install(only, _key=key)
                    step()  # decides
                for _ in range(WARM):
                    timed(step)
                if turn >= 0:
                    found[way]["us"] += [timed(step) for _ in range(STEPS)]
                elif way != PLAIN:
                    wait()
                    before = calls(at_work)
                    ours = step().double()
                    found[way]["served"] = calls(at_work) - before
                    found[way]["passed on"] = len(at_work.report()["torch"])
                    error = ((ours - theirs).norm() / theirs.norm()).item()
                    if not error <= FAR:
                        raise ValueError(f"wrong: {error:.3g} off")
            if turn < 0:
                gc.collect()
                gc.freeze()  # modules above all, which every collection would go through
    finally:
        gc.unfreeze()
        tilewright.torch.uninstall()
        decisions.default_dispatcher = shipped
    return found


def of_others(key: str = "CUDA") -> list[Any]:
    """Rows for this device of all families that are asked, and of none of a model's problems: every
    call is passed on to torch."""
    from tilewright import GemmProblem, Row
    from tilewright.ops.attention import AttentionProblem
    from tilewright.ops.attention_backward import AttentionBackwardProblem
    from tilewright.ops.conv import ConvProblem
    from tilewright.torch.installing import decisions

    planner = decisions.default_dispatcher().planner
    here = planner.live(0) if key == "CUDA" else planner.device_for_planning()
    others = (
        GemmProblem(16, 48, 112),
        ConvProblem(1, 16, 16, (5, 5), (5, 5)),
        AttentionProblem(1, 1, 16, 48, 48),
        AttentionBackwardProblem(1, 1, 16, 48, 48),
    )
    return [Row(here, one, f"{one.family}_of_another", (), 1.0, (1.0, 1.0)) for one in others]


def knowing(rows: Sequence[Any]) -> Any:
    """A dispatcher that decides by these rows alone."""
    from tilewright import Table
    from tilewright.dispatch import Dispatcher

    return Dispatcher(tables=Table.of(rows), selector=["tuned", "analytical"], waits=False)


def prepared(step: Step, key: str) -> Any:
    """A dispatcher that knows what was measured of the calls of a step, beside the shipped rows: as
    a user has it by a capture under ``only="all"`` and `tilewright prepare --measure`."""
    import tilewright.torch
    from tilewright import capture, default_dispatcher
    from tilewright.capturing import load
    from tilewright.dispatch import Dispatcher
    from tilewright.preparing import Measuring
    from tilewright.tune import ahead

    with tempfile.TemporaryDirectory() as folder:
        calls, rows = Path(folder) / "calls.jsonl", Path(folder) / "mine.twt"
        with tilewright.torch.install(only="all", _key=key):
            step()
            wait()
            with capture(calls):
                step()
        found = ahead.measured(
            default_dispatcher(), [*load(calls)], Measuring(seconds=MEASURING_SECONDS), rows
        )
        print(found, file=sys.stderr)
        return Dispatcher(tables=[rows] if rows.exists() else [], waits=False)


def wait() -> None:
    """Until no kernel is being built."""
    import tilewright

    begun = time.perf_counter()
    while tilewright.default_dispatcher().standing():
        if time.perf_counter() - begun > PATIENCE_SECONDS:
            raise ValueError("kernels are not built in time")
        time.sleep(0.1)


def calls(found: Any) -> int:
    return sum(one["calls"] for one in found.report()["served"])


def timed(step: Step) -> float:
    """Microseconds of a step, to the end of its work."""
    import torch

    begun = time.perf_counter()
    step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - begun) * 1e6


def samples(name: str) -> Mapping[str, Sequence[float]]:
    """Steps of a model by each way, in turns, in fresh processes."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(PROCESSES):
        for way, us in in_a_process([name], WAYS)[name].items():
            found[way] += us
    return found


def forward_passes(*ways: str) -> Mapping[str, Sequence[float]]:
    """Forward passes of whole models, as they are and installed, in turns, in a fresh process."""
    names = [name for name in MODELS if name.startswith(FORWARD)]
    found = in_a_process(names, (PLAIN, *ways))
    return {
        f"{name.removeprefix(FORWARD)}, {way}": us
        for name, ways in found.items()
        for way, us in ways.items()
    }


def several(names: Sequence[str], ways: Sequence[str]) -> None:
    """Print what `run` says of models one after another, and of one that fails why: a line of JSON
    for each. What ours need is built before, side by side for all of them."""
    steps = built(names) if ALL in ways else {}
    for name in names:
        print(json.dumps([name, _or_why(name, ways, steps.pop(name, None))]), flush=True)


def built(names: Sequence[str]) -> dict[str, Step]:
    """Steps of models, those that do not fail, for which all kernels of ours are built."""
    import torch

    import tilewright.torch

    steps: dict[str, Step] = {}
    with tilewright.torch.install("all"):
        for name in names:
            torch.manual_seed(0)
            with contextlib.suppress(Exception):  # `run` says why
                step = MODELS[name]("cuda")
                step()
                steps[name] = step
        wait()
    return steps


def _or_why(name: str, ways: Sequence[str], step: Step | None) -> Any:
    try:
        return run(name, ways=ways, step=step)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def in_a_process(
    names: Sequence[str], ways: Sequence[str]
) -> Mapping[str, Mapping[str, list[float]]]:
    """Steps of models by each way, in turns, in a fresh process; told is how many calls of a step
    ours served. Raises `ValueError` if a model fails, after the others were told."""
    script = (
        "import json, sys; from cases.installed import end_with_parent, several; "
        "end_with_parent(); several(*map(json.loads, sys.argv[1:]))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, json.dumps(names), json.dumps(ways)],
        stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1],
    ) as child:  # fmt: skip
        assert child.stdout is not None
        return told(line for line in child.stdout if line.startswith("["))


def end_with_parent() -> None:
    """End this process when the one that started it has ended, as where a budget is over: what it
    still did would disturb what is timed next."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def told(lines: Iterable[str]) -> Mapping[str, Mapping[str, list[float]]]:
    """Microseconds of each model's steps by each way, said aloud as they come with how many calls
    ours served. Raises `ValueError` if a model failed."""
    found, failed = {}, []
    for name, said in map(json.loads, lines):
        if isinstance(said, str):
            failed.append(f"{name}: {said}")
            continue
        found[name] = {way: one["us"] for way, one in said.items()}
        for way, one in said.items():
            us = statistics.median(one["us"])
            text = f"{name}, {way}: {us:.0f} µs, {one['served']} calls served"
            print(text, file=sys.stderr, flush=True)
    if failed:
        raise ValueError("; ".join(failed))
    return found


def host() -> Mapping[str, Sequence[float]]:
    """Host times of products that torch computes, as it is and where calls are passed on."""
    import torch

    import steps
    import tilewright.torch
    from tilewright.torch.installing import decisions

    shipped, others = decisions.default_dispatcher, knowing(of_others())
    a, b = torch.randn(2, 16, 16, device="cuda")
    bias = a[0].bfloat16()
    x, w = a.bfloat16(), b.bfloat16().t()
    products = {
        "`torch.mm`, fp32": partial(torch.mm, a, b),
        "`torch.mm`, bf16": partial(torch.mm, x, w),
        "`torch.addmm`, bf16": partial(torch.addmm, bias, x, w),
    }
    found: dict[str, list[float]] = {}
    decisions.default_dispatcher = lambda: others
    try:
        for turn in range(HOST_TURNS):
            way = "" if turn % 2 == 0 else ", passed on"
            if way:
                tilewright.torch.install()
            for label, times in steps.host_times(products).items():
                found.setdefault(f"{label}{way}", []).extend(times)
            tilewright.torch.uninstall()
    finally:
        decisions.default_dispatcher = shipped
    return found


_FORWARD = (
    "forward passes, bf16, of ConvNeXt-T, ResNet-50 and EfficientNet-B0 (32 images), a diffusion's "
    "U-Net (4 latent images) and Whisper's encoder (4 half minutes)"
)
CASES = (
    HostTimes(
        "host-installed", "a 16×16×16 product that torch computes, as it is and passed on", host
    ),
    HostTimes(
        "installed-forward", f"{_FORWARD}, as they are and installed",
        partial(forward_passes, SHIPPED),
    ),
    HostTimes(
        "installed-forward-all", f"{_FORWARD}, as they are and installed for all calls",
        partial(forward_passes, ALL),
    ),
    HostTimes(
        "installed-forward-prepared", f"{_FORWARD}, as they are and installed after their calls "
        "were measured", partial(forward_passes, PREPARED),
    ),
    *(
        HostTimes(f"installed-{name}", f"{says}: whole steps, as it is and installed",
                  partial(samples, name))
        for name, says in (
            ("resnet50", "a training step of ResNet-50, 32 images, bf16"),
            ("encoder", "a training step of 8 of torch's encoder layers, bf16"),
            ("prefill", "a Llama of 16 layers of 8B's shapes, 2,048 tokens"),
            ("one-row", "the same layers, 8 sequences of one row"),
        )
    ),
)  # fmt: skip
