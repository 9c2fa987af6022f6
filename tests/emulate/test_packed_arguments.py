"""What a launch packs is what a kernel reads: the argument segment of every kernel, byte for byte.

Each call goes the whole way to HIP's library: planned, built, loaded, bound, packed by either
launcher. What is expected is stated from the plan, by the offsets and sizes in the compiler's
listing (the emulated library reads them from the code object).
"""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

import gemm_cases
import grouped_cases
import numpy as np
import pytest

import selection
from shared_builds import build_once
from tilewright import ops, verify
from tilewright.arch import arch
from tilewright.compile import find, inspect
from tilewright.dispatch import Dispatcher
from tilewright.emulate.device import EmulatedGpu
from tilewright.listing.text import parse
from tilewright.ops.gemm import GemmProblem
from tilewright.ops.grouped_gemm import GroupedGemmProblem
from tilewright.ops.nouns import Descriptor, Given, Pointer, Scalar
from tilewright.runtime import bound as bound_module
from tilewright.runtime import python_launcher
from tilewright.runtime.launcher import compiled

ARCHS = selection.architectures(("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201", "gfx1250"))
TESTS = Path(__file__).parents[1]
FOLDERS = [str(TESTS / "moments"), str(TESTS / "custom")]
ALIGNED = 256  # bytes that each temporary's address is a multiple of

SCALARS = {"i32": "<i", "i64": "<q", "fp32": "<f", "u32": "<I", "i1": "<B"}


@pytest.fixture(autouse=True)
def _families(monkeypatch):
    """The toy family and a user's own operations, here and in the compiler's processes."""
    for folder in FOLDERS:
        monkeypatch.syspath_prepend(folder)
    from moments_family import FAMILY

    monkeypatch.setattr(ops, "_registered", {**ops._registered, "moments": FAMILY})
    path = os.pathsep.join(filter(None, [*FOLDERS, os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv(ops.MODULES_VARIABLE, "moments_plugin:moments_kernels:custom_kernels")
    sys.modules.pop("custom_kernels", None)
    ops._import_named.cache_clear()
    yield
    ops._import_named.cache_clear()


@pytest.fixture(params=["compiled", "python"])
def launcher(request, monkeypatch):
    module = compiled() if request.param == "compiled" else python_launcher
    monkeypatch.setattr(bound_module, "launcher", lambda: module)


@pytest.fixture
def dispatched(monkeypatch):
    """The kernels that the library was asked for, each with the memory's allocations. They are not
    executed: only what they would read is looked at."""
    seen = []

    def execute(gpu, dispatch):
        held = {one.name: one.address for one in gpu._memory.allocations}
        lists = {
            name: gpu._memory.read(one.address, one.size).view(np.int64)
            for one in gpu._memory.allocations
            if (name := one.name).startswith("addresses of")
        }
        seen.append((dispatch, held, lists))

    monkeypatch.setattr(EmulatedGpu, "execute", execute)
    return seen


def kernels(name):
    """(label, problem, kernel or None for the chosen one), for an architecture."""
    from moments_family import MomentsProblem

    shared = {"scheduler": "split_k", "split_k": 3, "dtype_a": "fp16", "epilogue": "bias+gelu"}
    plain = {"dtype_a": "fp16", "layout": "rcr"}
    tile = {"tile_m": 32, "tile_n": 32, "tile_k": 32}
    moments = [("two kernels, descriptors", MomentsProblem(2, 5, 11, 40, "fp16", bias=True), None)]
    sizes = ((67, 45, 83), (0, 45, 83), (5, 9, 16))
    return [
        ("one kernel", GemmProblem(67, 45, 83, dtype_a="fp16"), None),
        (
            "workspace that is kept zero, optional operand",
            GemmProblem(130, 64, 192, dtype_a="fp16", epilogue="bias+gelu"),
            gemm_cases.config(name, reduction="linear", **tile, **shared),
        ),
        (
            "batch of pointers",
            GemmProblem(33, 20, 40, batch=3, dtype_a="fp16", batching="pointers"),
            None,
        ),
        (
            "groups",
            GroupedGemmProblem("contiguous", groups=5, m=151, n=45, k=83, **plain),
            None,
        ),
        (
            "list of groups",
            GroupedGemmProblem("list", sizes=sizes, alignment=1, **plain),
            grouped_cases.config(name, form="list", alignment=1, **tile, **plain),
        ),
        # Triton 3.6 fails to link kernels of few arguments for gfx1250.
        *(moments if name != "gfx1250" else []),
    ]


def own_kernels():
    """The same, for a user's own operations."""
    total, axpy = (ops.family(f"custom_{word}").problem_type for word in ("total", "axpy"))
    return [
        ("two kernels, scratch", total(length=1000, dtype="fp16"), None),
        ("inout, scalar", axpy(rows=7, dtype="fp16", has_bias=True, negate=True), None),
    ]


def expected(step, held, launch, scalars, listing, threads, shared):
    """The argument segment of one step."""
    program = parse(listing)
    values = []

    def address(name, offset=0):
        if f"operand {name}" in held:
            return held[f"operand {name}"] + offset
        if f"addresses of {name}" in held:
            return held[f"addresses of {name}"] + offset
        return temporary(name, launch, held) + offset

    for one in step.arguments:
        if isinstance(one, Pointer):
            values.append(struct.pack("<Q", address(one.operand)))
        elif isinstance(one, Scalar):
            values.append(struct.pack(SCALARS[one.type], one.value))
        elif isinstance(one, Given):
            values.append(struct.pack(SCALARS[one.type], scalars[one.name]))
        else:
            assert isinstance(one, Descriptor)
            # Triton's descriptor without a tensor map: the address, sizes and strides, a flag for
            # NaN as padding, then sizes and strides as the kernel's own arguments.
            size = 4 if one.dtype == "fp32" else 2
            values.append(struct.pack("<Q", address(one.operand, one.offset * size)))
            values += [struct.pack("<q", x) for x in (*one.shape, *one.strides)]
            values.append(b"\0")
            values += [struct.pack("<i", x) for x in one.shape]
            values += [struct.pack("<q", x) for x in one.strides]
    values += [bytes(8), bytes(8)]  # two scratch buffers that no kernel uses
    passed = [one for one in program.arguments if not one.kind.startswith("hidden")]
    assert [one.size for one in passed] == [len(value) for value in values]
    segment = bytearray(program.resources["kernarg_segment_size"])
    for one, value in zip(passed, values, strict=True):
        segment[one.offset : one.offset + one.size] = value
    for one in program.arguments:
        if one.kind.startswith("hidden"):
            value = hidden(one.kind, step.grid, threads, shared)
            segment[one.offset : one.offset + one.size] = value.to_bytes(one.size, "little")
    return bytes(segment)


def hidden(kind, grid, threads, shared):
    """What HIP's runtime fills in: a launch has three dimensions, whole workgroups, no offset."""
    x, y, z = grid
    return {
        "hidden_block_count_x": x,
        "hidden_block_count_y": y,
        "hidden_block_count_z": z,
        "hidden_group_size_x": threads,
        "hidden_group_size_y": 1,
        "hidden_group_size_z": 1,
        "hidden_grid_dims": 3,
        "hidden_dynamic_lds_size": shared,
    }.get(kind, 0)


def temporary(name, launch, held):
    """The address of a temporary: those that are kept zero lie in one buffer; in the other, those
    that are zeroed before each launch come first."""
    (wanted,) = (one for one in launch.temporaries if one.name == name)
    kept = [one for one in launch.temporaries if one.initial == "kept_zero"]
    rest = [one for one in launch.temporaries if one.initial == "zero"]
    rest += [one for one in launch.temporaries if one.initial == "anything"]
    buffer = kept if wanted.initial == "kept_zero" else rest
    at = 0
    for one in buffer:
        at += -at % ALIGNED
        if one is wanted:
            return held[f"temporary {', '.join(each.name for each in buffer)}"] + at
        at += one.bytes
    raise AssertionError(name)


@pytest.mark.turns(48)
@pytest.mark.usefixtures("launcher")
@pytest.mark.parametrize("name", ARCHS)
def test_every_kernel_reads_what_its_launch_says(name, store, dispatched):
    check(name, kernels(name), store, dispatched)


@pytest.mark.turns(64)
@pytest.mark.usefixtures("launcher")
@pytest.mark.parametrize("name", ["gfx942", "gfx1201"])
def test_the_kernels_of_a_user_read_what_their_launch_says(name, store, dispatched):
    check(name, own_kernels(), store, dispatched)


def check(name, asked, store, dispatched):
    dispatcher = Dispatcher(device=f"emulated:{name}", store=store)
    cases = [(label, p, config or dispatcher.select(p).config) for label, p, config in asked]
    build_once([(config, name) for _, _, config in cases], store).raise_if_failed()
    for label, problem, config in cases:
        family = ops.family(problem.family)
        assert family.judge(config, arch(name)), label
        operands = verify.operands_of(problem, 1)
        dispatched.clear()
        verify.run(dispatcher, problem, operands, config.name)
        launch = family.launch(config, problem, dispatcher.device_for_planning())
        assert len(dispatched) == len(launch.steps), label
        scalars = {k: v for k, v in operands.inputs.items() if isinstance(v, int | float)}
        built = find(config, name, store)
        for step, (dispatch, held, lists) in zip(launch.steps, dispatched, strict=True):
            kernel = built[step.part]
            listing = inspect(kernel, store, "amdgcn")
            threads = kernel.num_warps * arch(name).warp_size
            wanted = expected(step, held, launch, scalars, listing, threads, kernel.shared)
            assert dispatch.arguments == wanted, (label, step.part)
            assert dispatch.grid == step.grid
            assert dispatch.threads == (threads, 1, 1)
            assert dispatch.shared == kernel.shared
            check_lists(held, lists)


def check_lists(held, lists):
    """A batch of pointers: their addresses are those of the arrays' copies."""
    for what, addresses in lists.items():
        operand = what.removeprefix("addresses of ")
        places = [held[f"operand {operand}[{i}]"] for i in range(len(addresses))]
        assert places == [*addresses]


@pytest.mark.turns(24)
def test_several_kernels_and_lists_of_addresses_are_executed(store):
    dispatcher = Dispatcher(device="emulated:gfx942", store=store)
    listed = {label: problem for label, problem, _ in kernels("gfx942")}
    for label, count in (("two kernels, descriptors", 2), ("batch of pointers", 1)):
        assert verify.verify(dispatcher, listed[label], seed=1).ok, label
        assert len(dispatcher.ran) == count
