"""A crew on a real GPU: planted faults among good kernels, and times to be trusted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[1] / "tune"))
import planted
from gemm_cases import config
from gpu_arch import ARCH

from shared_builds import build_once
from tilewright.compile import Store
from tilewright.errors import BadArgument
from tilewright.measure.crew import Crew, Task
from tilewright.measure.devices import gpus
from tilewright.measure.measurement import Settings
from tilewright.measure.places import parse
from tilewright.measure.vendor import vendor_names
from tilewright.ops import epilogues
from tilewright.ops.gemm import FAMILY, GemmProblem

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

TILES = ((128, 128), (64, 32), (128, 64), (32, 64), (64, 64), (64, 128), (32, 32), (32, 128))
BUDGET = Settings(budget_seconds=0.3)


def kernel(tile: tuple[int, int], epilogue: str = "", **fields: object):
    size = {"tile_m": tile[0], "tile_n": tile[1], **fields}
    return config(ARCH, epilogue=epilogue, **size)


STEADY = kernel(TILES[0], num_stages=3)
"""With two stages it has two speeds, whoever measures (f1dfe4c6:benchmarks/repeatability.py)."""


@pytest.fixture(scope="module", autouse=True)
def _planted():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEWRIGHT_KERNEL_MODULES", "planted:planted_operations")
        for operation in planted.OPERATIONS:
            patch.setitem(epilogues.OPERATIONS, operation.name, operation)
        yield


@pytest.fixture(scope="module")
def stocked(store: Store) -> Store:
    kernels = [kernel(tile, "faulty") for tile in TILES] + [kernel(t) for t in TILES[::4]]
    kernels.append(STEADY)
    build_once([(k, ARCH) for k in kernels], store).raise_if_failed()
    return store


def test_faults_cost_their_own_measurement_and_the_device_measures_true_after_them(stocked):
    plain = [Task(kernel(tile).name, GemmProblem(4096, 4096, 4096), ARCH) for tile in TILES[::4]]
    problems = [GemmProblem(512, 512, k, epilogue="faulty") for k in (512, 1024)]
    tasks = [Task(kernel(t, "faulty").name, p, ARCH) for p in problems for t in TILES]
    missing = Task(kernel((128, 256), "faulty", num_warps=8).name, problems[0], ARCH)
    with Crew(parse("0,"), stocked, BUDGET, timeout=4) as crew:  # no patience for what hangs
        before = {m.kernel: m for m in crew.run(plain)}
        measured = list(crew.run([*tasks, missing]))
        after = {m.kernel: m for m in crew.run(plain)}
        assert not crew.out_of_order
    assert len(measured) == len(tasks) + 1 == len({m.key for m in measured})
    for m in measured:
        if m.kernel == missing.kernel:
            assert m.status == "build_failed" and "not in" in m.reason
            continue
        found = FAMILY.parse_name(m.kernel)
        expected = planted.LAUNCHED.get((found.tile_m, found.tile_n), "ok")
        assert m.status == expected, (m.kernel, m.status, m.reason)
        assert (m.status == "ok") == bool(m.samples_us) == bool(m.check and m.check.ok)
    for name, m in before.items():
        assert m.status == "ok" == after[name].status
        assert after[name].median_us == pytest.approx(m.median_us, rel=0.05)
        assert m.device == gpus()[0].device and m.environment.driver


@pytest.mark.parametrize(
    "size, cache, within",  # 0.6 of 7 µs come and go, even with all operands in L2
    [
        (2048, "flushed", 1.03),
        (2048, "rotated", 1.03),
        (256, "flushed", 1.12),
        (256, "rotated", 1.12),
    ],
)
def test_a_median_agrees_with_itself(stocked, size, cache, within):
    times = medians(stocked, size, Settings(cache=cache))
    assert max(times) < within * min(times), times


def test_a_graph_leaves_the_launch_out(stocked):
    # Small: what fills the GPU runs hotter, so slower, without the rests between launches.
    by_graph = medians(stocked, 256, Settings(cache="rotated", timer="graph"))
    assert max(by_graph) < 1.12 * min(by_graph), by_graph
    by_events = medians(stocked, 256, Settings(cache="rotated", timer="events"))
    assert 0.2 * min(by_events) < min(by_graph) < min(by_events), (by_graph, by_events)


def test_several_places_measure_the_same_kernel_and_the_vendors_beside_it(stocked):
    """And one that shares tiles, whose workspace is another in each place."""
    problem = GemmProblem(512, 1024, 2048)
    shared = kernel((128, 128), num_warps=8, scheduler="split_k", split_k=2, reduction="linear")
    (vendor,) = vendor_names(problem)
    build_once([(shared, ARCH)], stocked).raise_if_failed()
    found = {}
    for places in (1, 3):
        settings = Settings(places=places, min_samples=30)
        tasks = [Task(name, problem, ARCH) for name in (STEADY.name, shared.name, vendor)]
        with Crew(parse("0,"), stocked, settings) as crew:
            measured = {m.kernel: m for m in crew.run(tasks)}
        assert [m.status for m in measured.values()] == ["ok"] * 3
        found[places] = {name: m.median_us for name, m in measured.items()}
        assert {m.settings.places for m in measured.values()} == {places}
    for name, us in found[1].items():
        assert found[3][name] == pytest.approx(us, rel=0.1)


def medians(store: Store, size: int, settings: Settings) -> list[float]:
    """Of three measurements of one kernel, microseconds."""
    task = Task(STEADY.name, GemmProblem(size, size, size), ARCH)
    with Crew(parse("0,"), store, settings) as crew:
        measured = [m for _ in range(3) for m in crew.run([task])]
    assert [m.status for m in measured] == ["ok"] * 3
    return [m.median_us for m in measured]


def test_places_are_told_apart_by_uuid():
    first = gpus()[0]
    assert first.uuid.startswith(("GPU-", "MIG-"))
    assert parse(first.uuid[:12])[0] == first
    with pytest.raises(BadArgument, match="GPUs are asked for"):
        parse("99")
