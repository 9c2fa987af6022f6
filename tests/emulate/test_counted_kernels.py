"""Counts of real kernels: closed formulas, the estimate's claims, and what the command shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from gemm_cases import config

from shared_builds import build_once
from tilewright.arch import arch
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument
from tilewright.measure.counting import count
from tilewright.ops.gemm import GemmProblem
from tilewright.ops.gemm.estimate import work

SIZE = 128
KERNELS = [
    # Device, architecture, fields of the config, and the shape (m, n, k) of its matrix instruction.
    ("emulated:mi210", "gfx90a", {}, (32, 32, 8)),
    ("emulated:mi300x", "gfx942", {}, (32, 32, 8)),
    ("emulated:mi300x", "gfx942", {"dtype_a": "e4m3fnuz"}, (32, 32, 16)),
    ("emulated:mi300x", "gfx942", {"pipeline": "gluon_cdna"}, (32, 32, 8)),
    ("emulated:mi355x", "gfx950", {}, (32, 32, 16)),
    ("emulated:rx_7900_xtx", "gfx1100", {}, (16, 16, 16)),
    ("emulated:rx_9070_xt", "gfx1201", {}, (16, 16, 16)),
]


def kernel(name, fields):
    return config(name, **{"dtype_a": "fp16", "dtype_c": "fp16", **fields})


@contextmanager
def dispatching(on, name, made, store) -> Iterator[Dispatcher]:
    build_once([(made, name)], store)
    yield Dispatcher(device=on, store=store)


@pytest.mark.turns(48)
@pytest.mark.parametrize(("on", "name", "fields", "shape"), KERNELS)
def test_a_kernel_of_whole_tiles_does_what_its_sizes_say(on, name, fields, shape, store) -> None:
    this, made = arch(name), kernel(name, fields)
    problem = GemmProblem(SIZE, SIZE, SIZE, dtype_a=made.dtype_a, dtype_c="fp16")
    with dispatching(on, name, made, store) as dispatcher:
        done = count(problem, made, dispatcher, seed=1)
        claimed = work(made, problem, dispatcher.device_for_planning())
    assert done.check.within and claimed is not None
    (one,) = done.executed
    found = one.counted
    tiles, steps = (SIZE // 64) ** 2, SIZE // 64
    element = 1 if made.dtype_a == "e4m3fnuz" else 2
    # Every product once; each instruction at the published rate.
    m, n, k = shape
    assert found.instructions["matrix"] == SIZE**3 // (m * n * k)
    rate = max(u.flops_per_cu_per_clock for u in this.mma if made.dtype_a in u.dtypes)
    assert found.matrix_clocks == 2 * SIZE**3 * this.simds_per_cu / rate
    assert claimed.matrix_clocks == pytest.approx(found.matrix_clocks)
    # Each tile reads its rows and its columns, and writes its elements, once.
    assert found.written.requested == found.written.distinct == SIZE * SIZE * 2
    assert found.read.distinct == 2 * SIZE * SIZE * element
    of_tiles = tiles * steps * 2 * 64 * 64 * element
    assert claimed.read_bytes == pytest.approx(of_tiles)
    assert of_tiles <= found.read.requested <= 1.01 * of_tiles
    assert found.read.lines == found.read.distinct / 128
    assert found.read.distinct + found.written.distinct == problem.min_bytes
    # Every wave ends once; there are whole workgroups of them.
    assert found.mnemonics["s_endpgm"] == one.waves == tiles * made.num_warps
    assert one.workgroups == tiles
    if made.pipeline == "basic":
        assert found.shared.conflicts == 0
        assert claimed.shared_clocks == pytest.approx(found.shared.clocks)
        assert found.shared.written == of_tiles
        assert found.shared.read == 2 * this.operand_copies * of_tiles


@pytest.mark.turns(48)
def test_only_an_emulated_gpu_counts_and_only_when_asked(store) -> None:
    on, name, fields, _ = KERNELS[1]
    problem = GemmProblem(64, 64, 64, dtype_a="fp16", dtype_c="fp16")
    with dispatching(on, name, kernel(name, fields), store) as dispatcher:
        assert count(problem, kernel(name, fields), dispatcher).executed[0].counted is not None
        again = count(problem, kernel(name, fields), dispatcher).executed[0].counted
        assert again.instructions["matrix"] == 64**3 // (32 * 32 * 8)
        assert not dispatcher.counting
    with pytest.raises(BadArgument, match="only an emulated GPU counts"):
        count(problem, kernel(name, fields), Dispatcher(device="mi300x", store=store))
