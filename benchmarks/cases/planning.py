"""What the host does before a kernel runs: imports, plans, spaces, tables, builds. No GPU is used;
a busy machine makes all of it longer."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from cases import HostTimes
from tilewright import GemmProblem, KernelSpace, ops
from tilewright.arch import Device, arch, device
from tilewright.compile import Store, build
from tilewright.dispatch import Dispatcher
from tilewright.ops.attention import AttentionProblem
from tilewright.ops.conv import ConvProblem
from tilewright.ops.gemm import FAMILY
from tilewright.ops.pool import Pool
from tilewright.plan import Planner
from tilewright.select.features import Described
from tilewright.select.learned import judged
from tilewright.select.model import SHIPPED, Models, gather
from tilewright.tables import file
from tilewright.tables.lookup import installed
from tilewright.tables.row import Row
from tilewright.tables.table import Table

Samples = Mapping[str, Sequence[float]]
"""Microseconds, by what was timed."""


def each(call: Callable[[Any], object], arguments: Iterable[Any]) -> list[float]:
    """Microseconds of one call for each argument."""
    found = []
    for argument in arguments:
        start = time.perf_counter()
        call(argument)
        found.append((time.perf_counter() - start) * 1e6)
    return found


def turns(call: str, arguments: list[Any], **names: Any) -> list[float]:
    """Microseconds of one `call` of x, for each argument in turn; from 9 runs of 100,000 calls."""
    count = 100_000 // len(arguments)
    run = timeit.Timer(f"for x in arguments: {call}", globals={"arguments": arguments, **names})
    return [seconds / count / len(arguments) * 1e6 for seconds in run.repeat(9, count)]


def processes(script: str, *words: str, count: int) -> list[float]:
    """Microseconds that fresh processes print."""
    command = [sys.executable, "-c", script, *words]
    return [
        float(subprocess.run(command, check=True, capture_output=True, text=True).stdout) * 1e6
        for _ in range(count)
    ]


# --- plans --------------------------------------------------------------------------------------

OTHERS: Mapping[str, Callable[[], Iterable[Any]]] = {
    "attention, causal": lambda: (
        AttentionProblem(2, 32, n, n, 128, kv_heads=8, right=0) for n in range(1000, 1150)
    ),
    "attention, one query over a cache": lambda: (
        AttentionProblem(16, 32, 1, n, 128, kv_heads=8) for n in range(1000, 1150)
    ),
    "convolution, 3×3": lambda: (
        ConvProblem(16, 128, 128, (n, 28), (3, 3), pad=(1, 1)) for n in range(7, 157)
    ),
    "convolution, 1×1": lambda: (ConvProblem(16, 128, 256, (n, 28), (1, 1)) for n in range(7, 157)),
}
"""Problems of other families, each of them new."""

IMPORT = "import time; t = time.perf_counter(); import tilewright; print(time.perf_counter() - t)"


def planning() -> Samples:
    """Import, plans of new problems, cached plans and explanations."""
    dispatcher = Dispatcher(device="h200_sxm")
    first, *fresh = (GemmProblem(m, 4096, k) for m in range(1, 152) for k in (4096, 7168))
    dispatcher.select(first)  # what is made once: the default space, caches of rules
    count = len(dispatcher.explain(first).fates)
    plans = {f"plan a new problem among {count} kernels": each(dispatcher.select, fresh)}
    for words, problems in OTHERS.items():
        before, *others = problems()
        dispatcher.select(before)
        plans[f"plan a new {words}"] = each(dispatcher.select, others)
    return {
        "`import tilewright`": processes(IMPORT, count=15),
        **plans,
        "a cached plan": turns("select(x)", [first], select=dispatcher.select),
        f"explain a choice among {count} kernels": each(dispatcher.explain, [first] * 50),
    }


CANDIDATES = 200
FILES = 20


def shipped() -> Models:
    """The shipped models; none is read yet."""
    found = gather(SHIPPED)
    assert found is not None
    return found


def learned(count: int = 1000) -> Samples:
    """Choices by the shipped models: what a process does once, a walk of their trees, and plans of
    new problems with and without them. The walk is in C, for as many kernels as a space has."""
    import numpy as np

    gpu, lesson = device("h200_sxm"), "gemm_bf16"
    files = [shipped() for _ in range(FILES)]
    read = [one.get(lesson) for one in (shipped() for _ in range(FILES))]
    models, model = shipped(), read[0]
    assert model is not None and model.stale == ""
    problems = [GemmProblem(m, 4096, 4224) for m in range(512, 512 + count)]
    family, this = ops.family("gemm"), arch(gpu.arch)
    pool = Pool(family.default_space(problems[0], this).expand(this).configs)
    served = pool.part(family.serving(problems[0], pool, this))
    some = [Described(problem, served, gpu) for problem in problems]
    many, _ = model.asked.rows(some[0])
    many = np.asfortranarray(np.resize(many, (CANDIDATES, many.shape[1])))
    taught = Dispatcher(device=gpu, models=models, selector=("learned", "analytical"))
    alone = Dispatcher(device=gpu, selector="analytical")
    for dispatcher in (taught, alone):
        dispatcher.select(problems[0])
    judged(model, some[0])
    chosen = [taught.select(p).selector for p in problems[1:]].count("learned")
    taught = Dispatcher(device=gpu, models=models, selector=("learned", "analytical"))
    taught.select(problems[0])
    return {
        f"open the shipped models, of {len(models)} classes": each(gather, [SHIPPED] * FILES),
        "read the model of one class": each(lambda one: one.get(lesson), files),
        "work out whether it is stale": each(lambda one: one.stale, read[1:]),
        f"walk {len(model.trees.roots)} trees for {CANDIDATES} kernels": each(
            model.trees.halves, [many] * count
        ),
        "read their features, walk and order those that are near the best estimate": each(
            partial(judged, model), some[1:]
        ),
        "plan a new problem by the estimate": each(alone.select, problems[1:]),
        f"plan a new problem by a model, which chooses {chosen} of {count - 1}": each(
            taught.select, problems[1:]
        ),
    }


# --- spaces -------------------------------------------------------------------------------------


def large(name: str) -> KernelSpace:
    """More than 100,000 combinations for an architecture: legal kernels, illegal ones, and
    combinations that contradict themselves."""
    axes: dict[str, list[Any]] = {
        "dtype_a": ["fp16", "fp8"],
        "tile_m": [32, 64, 128, 192, 256],
        "tile_n": [32, 64, 128, 192, 256],
        "tile_k": [16, 32, 64, 128],
        "num_warps": [1, 2, 4, 8],
        "num_stages": [1, 2, 3, 4],
        "pipeline": [word for word in ("basic", "tma") if word in FAMILY.pipelines(arch(name))],
        "scheduler": ["tile", "persistent"],
        "group_m": [4, 8],
        "pad_k": ["*"],
        "alignment": [8, 16],
    }
    if arch(name).mma_selectable:
        axes["mma"] = ["*"]
    return KernelSpace("gemm", axes)


def expanding(names: Sequence[str] = ("sm_90", "gfx942"), repeats: int = 3) -> Samples:
    """Judge large spaces, on one thread."""
    found = {}
    for name in names:
        space, this = large(name), arch(name)
        one = space.expand(this)
        count = len(one.configs) + len(one.dropped) + one.duplicates
        words = f"judge a space of {count:,} combinations for {name}"
        found[words] = each(space.expand, [this] * repeats)
    return found


# --- builds -------------------------------------------------------------------------------------

REPRODUCED = ("sm_90", "gfx90a", "gfx942", "gfx950")
BUILD_48 = """
import sys, time
start = time.perf_counter()
from cases import planning
planning.build_48(sys.argv[1])
print(time.perf_counter() - start)
"""


def build_48(folder: str) -> None:
    """Have 48 bf16 kernels for sm_90 in a store."""
    space = KernelSpace(
        "gemm",
        {
            "tile_m": (64, 128),
            "tile_n": (64, 128, 256),
            "num_stages": (2, 3),
            "pipeline": ("basic", "tma"),
            "scheduler": ("tile", "persistent"),
        },
    )
    configs = space.expand(arch("sm_90")).configs
    assert len(configs) == 48, len(configs)
    build([(c, "sm_90") for c in configs], store=Store(folder)).raise_if_failed()


def building() -> Samples:
    """Build 48 kernels and find them again, each in a process of its own. Raises
    `AssertionError` unless two builds for four architectures agree byte for byte."""
    with tempfile.TemporaryDirectory() as folder:
        cold, warm = processes(
            f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n{BUILD_48}",
            f"{folder}/timed", count=2,
        )  # fmt: skip
        one, two = (everywhere(Store(f"{folder}/{name}")) for name in ("one", "two"))
        assert one == two, "two builds differ"
        assert len(one) >= len(REPRODUCED), one.keys()
    return {
        "build 48 bf16 kernels for sm_90, cold, a whole process": [cold],
        "find them again, a whole process": [warm],
    }


def everywhere(store: Store) -> dict[str, Any]:
    """The binaries of one space on several architectures, by their keys."""
    axes = {
        "dtype_a": ("fp16", "bf16", "fp8", "int8"),
        "tile_m": (64, 128),
        "tile_n": (128,),
        "num_stages": (2, 3),
        "pipeline": ("basic", "tma"),
    }
    space = KernelSpace("gemm", axes)
    wanted = [(c, name) for name in REPRODUCED for c in space.expand(arch(name)).configs]
    build(wanted, store=store).raise_if_failed()
    return {kernel.key: store.read(kernel) for kernel in store.entries()}


# --- tables -------------------------------------------------------------------------------------

ROWS, KERNELS = 100_000, 600
LOAD = """
import sys, time
import tilewright.ops.gemm
from tilewright.tables.file import load
start = time.perf_counter()
table = load(sys.argv[1])
print(time.perf_counter() - start)
"""


def products(rng: random.Random, count: int) -> list[GemmProblem]:
    """Different products of the sizes that language models have."""
    sizes: set[tuple[int, int, int]] = set()
    while len(sizes) < count:
        sizes.add((rng.randint(1, 8192), *(64 * rng.randint(1, 448) for _ in "nk")))
    return [GemmProblem(*size) for size in sorted(sizes)]


def rows(rng: random.Random, stated: list[GemmProblem], devices: list[Device]) -> list[Row]:
    """Rows of made-up times for kernels there are, as many for each device."""
    fates = Planner(device=devices[0], selector="first_fit").explain(stated[-1]).fates
    usable = [f.name for f in fates if f.fate != "refused" and "split_k" not in f.name]
    parse = ops.family(stated[0].family).parse_name
    names = [replace(parse(n), group_m=g).name for g in range(1, KERNELS) for n in usable][:KERNELS]
    found = []
    for number, problem in enumerate(stated):
        winner, *ties = rng.sample(names, 1 + number % 4)
        us = 5 + rng.expovariate(0.01)
        day, hour, minute = number // 86400 + 1, number // 3600 % 24, number // 60 % 60
        at = f"2026-01-{day:02d}T{hour:02d}:{minute:02d}:{number % 60:02d}.000+00:00"
        on, interval = devices[number % len(devices)], (us * 0.99, us * 1.01)
        found.append(
            Row(on, problem, winner, tuple(ties), us, interval, rng.random(), at, installed(),
                "570.1", '{"cache":"flushed"}')
        )  # fmt: skip
    return found


def looking_up(count: int = ROWS) -> Samples:
    """Load a large table (two devices, up to three ties, a time of its own for each row), look
    problems up in it, and plan with it."""
    rng = random.Random(1)
    devices = [device("h200_sxm"), device("h20")]
    gpu, stated = devices[0], products(rng, count)
    made = rows(rng, stated, devices)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.twt"
        file.save(Table.of(made), path)
        loads, size = processes(LOAD, str(path), count=9), path.stat().st_size
        table = file.load(path)
    mine = stated[::2]
    assert all(table.get(p, gpu) == row for p, row in zip(mine, made[::2], strict=True))
    fresh = [Table(table.data) for _ in range(9)]
    some = rng.sample(mine, 500)
    copies = [GemmProblem(p.m, p.n, p.k) for p in some]
    tuned, estimated = Planner(device=gpu, tables=table), Planner(device=gpu)
    for planner in (tuned, estimated):  # what is made once
        planner.select(GemmProblem(4096, 4096, 4096))
    for problem in some:
        tuned.select(problem)
    others = rng.sample([p for p in mine if p not in {*some}], 30)
    whole = f"load a table of {count:,} rows ({size / 1e6:.0f} MB) and check all of it"
    return {
        whole: loads,
        "the first look-up after that": each(lambda one: one.get(mine[0], gpu), fresh),
        "find a problem again": turns("get(x, gpu)", [mine[-1]], get=table.get, gpu=gpu),
        "find a problem again, by a new object that equals it": turns(
            "get(x, gpu)", copies, get=table.get, gpu=gpu
        ),
        "find a problem for the first time": each(lambda p: fresh[0].get(p, gpu), some),
        "plan a problem again": turns("select(x)", copies, select=tuned.select),
        "plan another problem with a row": each(tuned.select, others),
        "plan a problem without a row": each(estimated.select, others),
    }


CASES = (
    HostTimes("host-planning", "import, plans and explanations, without a GPU", planning),
    HostTimes("host-learned", "choices by learned models, without a GPU", learned),
    HostTimes("host-expand", "judging large spaces of kernels, on one thread", expanding),
    HostTimes("host-build", "building 48 kernels, and finding them again", building),
    HostTimes("host-tables", "loading a large table, and looking problems up", looking_up),
)
