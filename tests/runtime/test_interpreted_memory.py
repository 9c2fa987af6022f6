"""The CPU interpreter: operands and temporaries as they lie, and nothing else touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from interpreting import (
    ONE,
    Steps,
    bits,
    launch,
    run,
)

from tilewright.errors import BadArgument, KernelCrashed, LaunchFailed
from tilewright.ops.nouns import (
    Argument,
    Descriptor,
    Given,
    Pointer,
    Scalar,
    Temporary,
)
from tilewright.runtime.interpreter import Interpreter


def guarded(shape: tuple[int, int], layout: str) -> tuple[np.ndarray, np.ndarray]:
    """A buffer of guard bytes and a bf16 view of it in some layout, not at its start."""
    m, n = shape
    room = np.full(4096, 0xAB, np.uint8)
    flat = room[64:].view(ml_dtypes.bfloat16)
    if layout == "row":
        return room, flat[: m * n].reshape(m, n)
    if layout == "column":
        return room, flat[: m * n].reshape(n, m).T
    if layout == "padded":
        return room, flat[: m * 40].reshape(m, 40)[:, 3 : 3 + n]
    assert layout == "reversed"
    return room, flat[: m * n].reshape(m, n)[::-1, ::-1]


@pytest.mark.parametrize("layout_y", ["row", "column", "padded", "reversed"])
@pytest.mark.parametrize("layout_x", ["row", "column", "padded", "reversed"])
def test_strides_are_kept_and_only_elements_written(
    cpu: Interpreter, layout_x: str, layout_y: str
) -> None:
    room_x, x = guarded((20, 30), layout_x)
    room_y, y = guarded((20, 30), layout_y)
    x[...] = np.arange(600).reshape(20, 30)
    before = room_x.copy()
    strides = [s // 2 for s in (*x.strides, *y.strides)]
    launch(cpu, "copy_2d", [x, y, 20, 30, *strides], ["y"], BLOCK=32)
    np.testing.assert_array_equal(bits(y), bits(x))
    np.testing.assert_array_equal(room_x, before)
    y[...] = 0
    expected, view = guarded((20, 30), layout_y)
    view[...] = 0
    np.testing.assert_array_equal(room_y, expected)


def test_a_write_between_the_rows_is_an_error(cpu: Interpreter) -> None:
    room, y = guarded((4, 30), "padded")
    before = room.copy()
    with pytest.raises(LaunchFailed, match="wrote operand y between its elements"):
        launch(cpu, "write_row_past_its_end", [y, 30, 40], ["y"], (4, 1, 1), BLOCK=32)
    np.testing.assert_array_equal(room, before)


def test_a_write_behind_the_last_row_is_an_error(cpu: Interpreter) -> None:
    room, y = guarded((1, 30), "row")
    before = room.copy()
    with pytest.raises(LaunchFailed, match="4 bytes behind operand y"):
        launch(cpu, "write_row_past_its_end", [y, 30, 0], ["y"], BLOCK=32)
    np.testing.assert_array_equal(room, before)


def test_the_operand_that_an_access_goes_beyond_is_named(cpu: Interpreter) -> None:
    x, y = np.zeros(64, np.float32), np.zeros(8, np.float32)
    with pytest.raises(LaunchFailed, match="0 bytes before and 16 bytes behind operand y"):
        launch(cpu, "copy", [x, y, 12], ["y"], BLOCK=16)


def test_a_read_outside_is_an_error(cpu: Interpreter) -> None:
    x = np.zeros(64, np.float32)
    with pytest.raises(LaunchFailed, match=r"interp_kernels\.py:\d+: BadAccess: read memory"):
        launch(cpu, "read_outside", [x, 32], BLOCK=64)


def test_a_write_to_an_input_is_an_error(cpu: Interpreter) -> None:
    x, y = np.ones(8, np.float32), np.zeros(8, np.float32)
    with pytest.raises(LaunchFailed, match="wrote operand y, which is not an output"):
        launch(cpu, "copy", [x, y, 8], ["x"], BLOCK=8)


def test_masked_elements_are_neither_read_nor_written(cpu: Interpreter) -> None:
    x, y = np.arange(10, dtype=np.float32), np.full(10, -1, np.float32)
    launch(cpu, "copy", [x, y, 7], ["y"], BLOCK=16)
    np.testing.assert_array_equal(y, [0, 1, 2, 3, 4, 5, 6, -1, -1, -1])


def test_a_read_only_input_serves_and_a_read_only_output_is_refused(cpu: Interpreter) -> None:
    x, y = np.ones(8, np.float32), np.zeros(8, np.float32)
    x.flags.writeable = False
    launch(cpu, "copy", [x, y, 8], ["y"], BLOCK=8)
    assert (y == 1).all()
    with pytest.raises(BadArgument, match="read-only"):
        launch(cpu, "copy", [y, x, 8], ["y"], BLOCK=8)


def test_empty_and_broadcast_operands(cpu: Interpreter) -> None:
    empty = np.zeros(0, np.float32)
    launch(cpu, "copy", [empty, empty.copy(), 0], ["y"], BLOCK=8)
    x, y = np.broadcast_to(np.float32(3), (4, 5)), np.zeros((4, 5), np.float32)
    launch(cpu, "copy_2d", [x, y, 4, 5, 0, 0, 5, 1], ["y"], BLOCK=8)
    assert (y == 3).all()


def test_scalars_keep_their_width(cpu: Interpreter) -> None:
    x, y = np.arange(4, dtype=np.int32), np.zeros(4, np.int32)
    launch(cpu, "scale", [x, y, 4, Scalar("i64", 2**32 + 5)], ["y"], BLOCK=4)
    np.testing.assert_array_equal(y, x * 5)  # the low half of the 64-bit product
    with pytest.raises(LaunchFailed, match="OverflowError"):
        launch(cpu, "scale", [x, y, 4, Scalar("i32", 2**40)], ["y"], BLOCK=4)


def test_fp32_atomics_add_up_repeats_too(cpu: Interpreter) -> None:
    x, total = np.arange(100, dtype=np.float32), np.full(4, 1000, np.float32)
    launch(cpu, "atomic_sum", [x, total, 100], ["total"], (4, 1, 1), BLOCK=32)
    np.testing.assert_array_equal(total, [1000 + x[i::4].sum() for i in range(4)])


def test_bf16_atomics(cpu: Interpreter) -> None:
    x, total = np.full(8, 2, ml_dtypes.bfloat16), np.ones(8, ml_dtypes.bfloat16)
    launch(cpu, "atomic_add", [x, total, 7], ["total"], (3, 1, 1), BLOCK=8)
    np.testing.assert_array_equal(total.astype(np.float32), [7] * 7 + [1])
    with pytest.raises(LaunchFailed, match="twice"):
        launch(cpu, "atomic_sum", [x, total, 8], ["total"], BLOCK=8)


# --- steps, temporaries, scalars of a call ----------------------------------------------------


def i32(value: int) -> Scalar:
    return Scalar("i32", value)


def test_a_step_sees_what_the_one_before_it_wrote(cpu: Interpreter) -> None:
    """In an output, in an operand that is read and written, and in a temporary."""
    x = np.arange(1, 9, dtype=np.float32)
    y, z = np.zeros(8, np.float32), np.zeros(8, np.float32)
    between = Temporary("between", (8,), "fp32")
    block = {"BLOCK": 8}
    steps: Steps = [
        ("copy", [Pointer("x"), Pointer("between"), i32(8)], ONE, block),
        ("atomic_add", [Pointer("between"), Pointer("x"), i32(8)], ONE, block),
        ("copy", [Pointer("x"), Pointer("y"), i32(8)], ONE, block),
        ("copy", [Pointer("y"), Pointer("z"), i32(8)], ONE, block),
    ]
    run(cpu, steps, {"x": x, "y": y, "z": z}, ["x", "y", "z"], [between])
    twice = np.arange(2, 18, 2)
    for array in (x, y, z):
        np.testing.assert_array_equal(array, twice)


def test_steps_have_grids_of_their_own(cpu: Interpreter) -> None:
    x, total = np.arange(64, dtype=np.float32), np.zeros(4, np.float32)
    sums = Temporary("sums", (4,), "fp32")
    steps: Steps = [
        ("partial_sums", [Pointer("x"), Pointer("sums"), i32(64)], (4, 1, 1), {"BLOCK": 16}),
        ("copy", [Pointer("sums"), Pointer("total"), i32(4)], ONE, {"BLOCK": 4}),
    ]
    run(cpu, steps, {"x": x, "total": total}, ["total"], [sums])
    np.testing.assert_array_equal(total, x.reshape(4, 16).sum(1))


def test_what_a_step_wrote_is_not_given_back_if_a_later_one_fails(cpu: Interpreter) -> None:
    x, y = np.ones(8, np.float32), np.zeros(8, np.float32)
    steps: Steps = [
        ("copy", [Pointer("x"), Pointer("y"), i32(8)], ONE, {"BLOCK": 8}),
        ("fail", [Pointer("x")], (4, 1, 1), {}),
    ]
    with pytest.raises(KernelCrashed, match="no such tile"):
        run(cpu, steps, {"x": x, "y": y}, ["y"])
    assert (y == 0).all()


def read_temporary(cpu: Interpreter, one: Temporary, kept: np.ndarray | None = None) -> np.ndarray:
    """What a launch finds in a temporary of fp32, to which it then adds ones in place if it need
    not leave it as it was."""
    found, count = np.zeros(one.shape, np.float32), one.shape[0]
    ones = np.ones(count, np.float32)
    steps = [("copy", [Pointer(one.name), Pointer("y"), i32(count)], ONE, {"BLOCK": 8})]
    if one.initial != "kept_zero":
        arguments = [Pointer("x"), Pointer(one.name), i32(count)]
        steps.append(("atomic_add", arguments, ONE, {"BLOCK": 8}))
    given = None if kept is None else {one.name: kept}
    run(cpu, steps, {"x": ones, "y": found}, ["y"], [one], given)
    return found


def test_temporaries_begin_as_they_say(cpu: Interpreter) -> None:
    assert np.isnan(read_temporary(cpu, Temporary("t", (8,), "fp32"))).all()
    assert (read_temporary(cpu, Temporary("t", (8,), "fp32", "zero")) == 0).all()
    assert (read_temporary(cpu, Temporary("t", (8,), "fp32", "kept_zero")) == 0).all()


def test_a_temporary_lasts_from_launch_to_launch_and_zero_is_zeroed_by_each(
    cpu: Interpreter,
) -> None:
    kept = np.full(8, 5, np.float32)
    for expected in (5, 6, 7):
        found = read_temporary(cpu, Temporary("t", (8,), "fp32"), kept)
        assert (found == expected).all() and (kept == expected + 1).all()
    for _ in range(2):
        found = read_temporary(cpu, Temporary("t", (8,), "fp32", "zero"), kept)
        assert (found == 0).all() and (kept == 1).all()


def test_a_temporarys_array_has_its_bytes_in_a_row(cpu: Interpreter) -> None:
    one = Temporary("t", (8,), "fp32")
    read_only = np.zeros(8, np.float32)
    read_only.flags.writeable = False
    for wrong in (np.zeros(7, np.float32), np.zeros(16, np.float32)[::2], read_only):
        with pytest.raises(BadArgument, match="'t' is 32 contiguous writable bytes"):
            read_temporary(cpu, one, wrong)


def test_a_launch_must_leave_zero_what_it_found_zero(cpu: Interpreter) -> None:
    x, y = np.ones(8, np.float32), np.zeros(8, np.float32)
    one = Temporary("flags", (8,), "fp32", "kept_zero")
    used = ("copy", [Pointer("x"), Pointer("flags"), i32(8)], ONE, {"BLOCK": 8})
    back = ("copy", [Pointer("z"), Pointer("flags"), i32(8)], ONE, {"BLOCK": 8})
    told = ("copy", [Pointer("x"), Pointer("y"), i32(8)], ONE, {"BLOCK": 8})
    operands = {"x": x, "y": y, "z": np.zeros(8, np.float32)}
    with pytest.raises(KernelCrashed, match="leaves temporary 'flags' changed"):
        run(cpu, [told, used], operands, ["y"], [one])
    assert (y == 0).all()
    run(cpu, [told, used, back], operands, ["y"], [one])
    assert (y == 1).all()


def test_a_write_outside_a_temporary_is_an_error(cpu: Interpreter) -> None:
    y = Temporary("space", (30,), "bf16")
    arguments = [Pointer("space"), i32(30), i32(0)]
    with pytest.raises(LaunchFailed, match="behind temporary space"):
        run(cpu, [("write_row_past_its_end", arguments, ONE, {"BLOCK": 32})], {}, (), [y])


def test_an_operand_and_a_temporary_of_one_name_are_refused(cpu: Interpreter) -> None:
    x = np.zeros(8, np.float32)
    steps: Steps = [("copy", [Pointer("x"), Pointer("y"), i32(8)], ONE, {"BLOCK": 8})]
    with pytest.raises(BadArgument, match="'y' names an operand and a temporary"):
        run(cpu, steps, {"x": x, "y": x.copy()}, ["y"], [Temporary("y", (8,), "fp32")])


def test_a_call_gives_scalars(cpu: Interpreter) -> None:
    x, y = np.arange(4, dtype=np.int32), np.zeros(4, np.int32)
    arguments = [Pointer("x"), Pointer("y"), i32(4), Given("i64", "factor")]
    steps: Steps = [("scale", arguments, ONE, {"BLOCK": 4})]
    for factor in (3, 2**32 + 5):
        run(cpu, steps, {"x": x, "y": y}, ["y"], scalars={"factor": factor})
        np.testing.assert_array_equal(y, x * (factor % 2**32))
    for given in (None, {}, {"other": 3}):
        with pytest.raises(BadArgument, match="needs the scalar 'factor'"):
            run(cpu, steps, {"x": x, "y": y}, ["y"], scalars=given)


# --- descriptors ------------------------------------------------------------------------------


def tile_of(view: Descriptor, memory: np.ndarray, at: Sequence[int]) -> np.ndarray:
    """What a copy of the tile at these coordinates moves, with zeros outside of the view."""
    tile = np.zeros(view.block, memory.dtype)
    for place in np.ndindex(*view.block):
        steps = view.element_strides or (1,) * len(place)
        index = [a + s * p for a, s, p in zip(at, steps, place, strict=True)]
        if all(0 <= i < n for i, n in zip(index, view.shape, strict=True)):
            where = view.offset + sum(i * s for i, s in zip(index, view.strides, strict=True))
            tile[place] = memory.reshape(-1)[where]
    return tile


VIEWS = {
    "offset": Descriptor("x", "fp32", (6, 8), (20, 1), (4, 8), offset=24),
    "steps": Descriptor("x", "fp32", (12, 16), (20, 1), (4, 8), element_strides=(3, 1)),
    "both": Descriptor("x", "fp32", (10, 8), (20, 1), (4, 8), 44, (2, 1)),
    "rank 4": Descriptor("x", "fp32", (2, 3, 5, 6), (140, 44, 8, 1), (1, 2, 4, 4), 4),
    "rank 4 in steps": Descriptor(
        "x", "fp32", (2, 3, 5, 6), (140, 44, 8, 1), (1, 2, 4, 4), element_strides=(1, 2, 2, 1)
    ),
    "rank 5": Descriptor("x", "fp32", (2, 2, 2, 3, 5), (116, 56, 28, 8, 1), (1, 2, 2, 2, 4), 8),
    "rank 5 in steps": Descriptor(
        "x", "fp32", (2, 2, 4, 3, 4), (116, 56, 12, 4, 1), (2, 1, 2, 2, 4), 0, (1, 1, 2, 2, 1)
    ),
}
"""As the hardware asks, whole 16 bytes from row to row; and so Triton asks of coordinates."""


def coordinates(at: Sequence[int]) -> list[Argument]:
    return [i32(i) for i in (*at, *[0] * (5 - len(at)))]


@pytest.mark.parametrize("kind", VIEWS)
def test_a_descriptors_tile_is_what_numpy_has_there(cpu: Interpreter, kind: str) -> None:
    """From the view's first element, from elsewhere in it, from before it, and past its end."""
    view = VIEWS[kind]
    x = np.arange(1, 301, dtype=np.float32)
    rank, size = len(view.shape), int(np.prod(view.block))
    constants = {"RANK": rank, "SIZE": size}
    outer, last = [0] * (rank - 1), [n - 1 for n in view.shape[:-1]]
    for at in ([*outer, 0], [1] * (rank - 1) + [4], [*outer, -4], [-1, *outer], [*last, 0]):
        y = np.zeros(size, np.float32)
        arguments = [view, Pointer("y"), *coordinates(at)]
        run(cpu, [("load_tile", arguments, ONE, constants)], {"x": x, "y": y}, ["y"])
        np.testing.assert_array_equal(y.reshape(view.block), tile_of(view, x, at), str(at))


@pytest.mark.parametrize("kind", VIEWS)
def test_a_descriptors_store_writes_its_tile_and_nothing_else(cpu: Interpreter, kind: str) -> None:
    view = replace(VIEWS[kind], operand="y")
    rank, size = len(view.shape), int(np.prod(view.block))
    x, y = np.arange(1, size + 1, dtype=np.float32), np.zeros(300, np.float32)
    at = [*(n - 1 for n in view.shape[:-1]), 0]
    arguments = [Pointer("x"), view, *coordinates(at)]
    constants = {"RANK": rank, "SIZE": size, "BLOCK": view.block}
    run(cpu, [("store_tile", arguments, ONE, constants)], {"x": x, "y": y}, ["y"])
    stored = tile_of(view, y, at)
    inside = tile_of(view, np.ones_like(y), at) == 1
    assert 0 < inside.sum() < size
    np.testing.assert_array_equal(stored[inside], x.reshape(view.block)[inside])
    assert np.count_nonzero(y) == inside.sum()


def test_a_descriptor_of_a_temporary(cpu: Interpreter) -> None:
    x, y = np.arange(64, dtype=np.float32), np.zeros(32, np.float32)
    view = Descriptor("between", "fp32", (4, 8), (16, 1), (4, 8), offset=8)
    steps: Steps = [
        ("copy", [Pointer("x"), Pointer("between"), i32(64)], ONE, {"BLOCK": 64}),
        ("load_tile", [view, Pointer("y"), *coordinates([0, 0])], ONE, {"RANK": 2, "SIZE": 32}),
    ]
    run(cpu, steps, {"x": x, "y": y}, ["y"], [Temporary("between", (64,), "fp32")])
    np.testing.assert_array_equal(y.reshape(4, 8), x.reshape(4, 16)[:, 8:])
