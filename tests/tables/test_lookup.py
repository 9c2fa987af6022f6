"""Lookups: exact, padded in M alone, borrowed, or nothing; and rows that can no longer be used."""

from __future__ import annotations

import itertools
import logging
import math
from dataclasses import replace

import pytest
from table_cases import DEEP, H20, H100, H200, PLAIN, WIDE, gemm, kernel, row

from tilewright import ops
from tilewright.arch import device
from tilewright.errors import BadArgument
from tilewright.ops.gemm.rows import padded
from tilewright.ops.grouped_gemm import GroupedGemmProblem
from tilewright.tables import lookup
from tilewright.tables.lookup import Lookup
from tilewright.tables.merge import Several
from tilewright.tables.neighbours import distance, lenders
from tilewright.tables.table import Table

MI300X = device("mi300x")


def first(table, problem, on=H200, **options):
    return next(Lookup(table, **options).find(problem, on), None)


def names(found) -> list[str]:
    return [config.name for config in found.configs]


# --- the ladder ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("m", "sizes"),
    [
        (1, (16,)), (3, (4, 16)), (16, ()), (17, (32,)), (40, (48, 64)), (64, ()), (65, (80,)),
        (255, (256,)), (257, (288,)), (1000, (1024,)), (1025, (1088,)), (4096, ()), (4097, (4224,)),
        (5000, (5120,)),
    ],
)  # fmt: skip
def test_the_ladder(m, sizes):
    assert padded(m) == sizes


def test_the_ladder_never_goes_down():
    for m in range(1, 9000):
        sizes = padded(m)
        assert all(size > m for size in sizes) and len(sizes) <= 2
        assert [*sizes] == sorted(sizes)


@pytest.mark.parametrize("m", [65, 130, 537, 1390, 2224])
def test_no_row_answers_from_the_next_power_of_two_beyond_64(m):
    far = Table.of([row(gemm(1 << m.bit_length()), PLAIN)])
    assert first(far, gemm(m)) is None


def test_exact_before_padded_and_the_step_before_the_power_of_two():
    rows = [row(gemm(40), WIDE), row(gemm(48), PLAIN), row(gemm(64), DEEP)]
    found = first(Table.of(rows), gemm(40))
    assert names(found) == [WIDE] and found.where == "exact row"
    found = first(Table.of(rows[1:]), gemm(40))
    assert names(found) == [PLAIN] and found.where == "padded to M = 48"
    found = first(Table.of(rows[2:]), gemm(40))
    assert names(found) == [DEEP] and found.where == "padded to M = 64"
    assert found.origin == "nearby"


def test_a_row_of_the_other_half_type_answers_behind_the_row_of_each_size():
    half = {"dtype_a": "fp16"}
    rows = [
        row(gemm(40, **half), kernel(**half)), row(gemm(40), WIDE),
        row(gemm(48, **half), kernel(num_stages=3, **half)), row(gemm(48), PLAIN),
    ]  # fmt: skip
    said = []
    for count in range(4):
        found = first(Table.of(rows[count:]), gemm(40, **half))
        said.append((found.where, *names(found)))
        assert found.won(found.configs[0]) and found.in_other_type == ("bf16" in found.where)
    assert said == [
        ("exact row", kernel(**half)),
        ("in bf16", kernel(tile_n=128, **half)),
        ("padded to M = 48", kernel(num_stages=3, **half)),
        ("padded to M = 48, in bf16", kernel(**half)),
    ]
    assert first(Table.of(rows[:1]), gemm(40)).where == "in fp16"
    borrowed = first(Table.of(rows[1:2]), gemm(40, **half), on=H20)
    assert borrowed.where.endswith(", in bf16") and borrowed.origin == "borrowed"
    assert names(borrowed) == [kernel(tile_n=128, **half)]


@pytest.mark.parametrize(
    "problem",
    [gemm(40, dtype_a="fp32"), gemm(40, dtype_a="int8"), gemm(40, dtype_c="fp32")],
    ids=str,
)
def test_other_types_do_not_answer_for_each_other(problem):
    assert first(Table.of([row(gemm(40)), row(gemm(40, dtype_a="fp16"))]), problem) is None


def test_no_neighbour_is_made_where_no_row_can_be_of_it(monkeypatch):
    asked = []
    family = ops.family("gemm")
    monkeypatch.setattr(type(family), "nearby", lambda self, p: asked.append(p) or ())
    monkeypatch.setattr(lookup, "counterpart", lambda p: asked.append(p) or p)
    only_bf16, other_gpu = Table.of([row(gemm(48))]), Table.of([row(gemm(48), on=MI300X)])
    assert only_bf16.types("gemm", H200) == {"bf16"}
    assert only_bf16.types("conv", H200) is other_gpu.types("gemm", H200) is None
    both = Several([other_gpu, only_bf16, Table.of([row(gemm(48, dtype_a="fp16"))])])
    assert both.types("gemm", H200) == {"bf16", "fp16"}
    assert first(other_gpu, gemm(39)) is None and not asked
    assert first(only_bf16, gemm(39)) is None and asked == [gemm(39)]  # what is near it
    assert first(only_bf16, gemm(39, dtype_a="fp16")) is None and len(asked) == 3


def test_never_a_row_for_a_smaller_m_nor_another_n_or_k():
    table = Table.of([row(gemm(32)), row(gemm(48, n=1024)), row(gemm(48, k=1024)), row(gemm(96))])
    assert first(table, gemm(40)) is None


def test_a_list_of_groups_has_no_ladder():
    listed = GroupedGemmProblem("list", sizes=((1, 64, 64),))
    assert first(Table.of([row(gemm(64))]), listed) is None


def test_a_padded_rows_kernel_must_serve_the_problem_itself(caplog):
    """Columns of 33 elements are not aligned as those of 48 are: not the row's fault."""
    aligned = kernel(layout="ccr", alignment=16)
    table = Table.of([row(gemm(48, layout="ccr"), aligned)])
    assert first(table, gemm(33, layout="ccr")) is None
    assert names(first(table, gemm(40, layout="ccr"))) == [aligned]
    assert not caplog.records


# --- neighbours ----------------------------------------------------------------------------


def test_each_of_two_gpus_of_one_arch_has_its_own_row_and_a_third_borrows():
    assert (H200.arch, H20.arch, H100.arch) == ("sm_90",) * 3
    assert (H200.compute_units, H20.compute_units, H100.compute_units) == (132, 78, 114)
    problem = gemm(512)
    table = Table.of([row(problem, WIDE), row(problem, DEEP, on=H20)])
    for on, winner in ((H200, WIDE), (H20, DEEP)):
        found = first(table, problem, on)
        assert names(found) == [winner] and found.where == "exact row"
    third = first(table, problem, H100)
    assert third.origin == "borrowed" and third.row.device == H200
    assert third.where == f"borrowed from NVIDIA H200 (distance {distance(H100, H200):.2f})"
    found = first(table, gemm(500), H100)
    assert found.where.endswith(", padded to M = 512") and found.origin == "borrowed"


def test_a_twins_row_is_its_own():
    """A driver states other clocks and sizes than the data sheet."""
    live = replace(H200, bandwidth_gbs=4814.304, memory_bytes=150109880320)
    table = Table.of([row(gemm(512), WIDE, on=live)])
    found = first(table, gemm(512))
    assert (found.origin, found.where) == ("exact", "exact row")
    assert first(table, gemm(500)).where == "padded to M = 512"
    slower = replace(H200, bandwidth_gbs=4700.0)
    assert first(table, gemm(512), slower).origin == "borrowed"


def test_the_nearest_lends_and_another_where_it_has_no_row():
    near = distance(H100, H200) < distance(H100, H20)
    assert near, "the H20's matrix rate is a seventh of theirs"
    table = Table.of([row(gemm(64), on=H200), row(gemm(128), on=H20)])
    assert first(table, gemm(128), H100).row.device == H20
    assert first(table, gemm(64), H100).row.device == H200


def test_own_padded_rows_come_before_borrowed_ones():
    table = Table.of([row(gemm(64), PLAIN), row(gemm(50), WIDE, on=H20)])
    assert names(first(table, gemm(50))) == [PLAIN]


def test_another_arch_never_lends():
    table = Table.of([row(gemm(64), on=MI300X)])
    assert first(table, gemm(64)) is None
    assert math.isinf(distance(H200, MI300X)) and lenders(H200, [MI300X, H200]) == []


def test_the_distance_is_one_of_ratios():
    assert distance(H200, H200) == 0
    assert distance(H200, H20) == distance(H20, H200) > 0
    half, twice = (replace(H200, bandwidth_gbs=4800.0 * f) for f in (0.5, 2.0))
    assert distance(H200, half) == pytest.approx(math.log(2)) == distance(H200, twice)
    assert distance(H200, replace(H200, name="its twin", memory_bytes=1)) == 0


def test_lenders_that_are_as_near_come_in_one_order():
    """By name, and of one name by what else they are: whichever table was read first."""
    less, more = (replace(H200, memory_bytes=bytes_) for bytes_ in (10**9, 10**10))
    other = replace(H200, name="A twin")
    expected = [(0, other), (0, less), (0, more)]
    for order in itertools.permutations((less, more, other)):
        assert lenders(H200, order) == expected


@pytest.mark.parametrize(
    "changed",
    [
        {"compute_units": 66},
        {"l2_bytes": 120 << 20},
        {"bandwidth_gbs": 2400.0},
        {"clock_mhz": 3960},
        {"matrix_tflops": tuple((unit, 2 * rate) for unit, rate in H200.matrix_tflops)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_each_quantity_that_limits_kernels_counts_in_the_distance(changed):
    assert distance(H200, replace(H200, **changed)) == pytest.approx(math.log(2))


# --- rows that can no longer be used -------------------------------------------------------


def test_a_kernel_that_is_gone_is_skipped_with_a_warning_and_its_ties_tried(caplog):
    table = Table.of([row(gemm(64), "gemm_of_old", ties=(WIDE, "gemm_older", DEEP))])
    finder = Lookup(table)
    for _ in range(3):
        assert names(next(finder.find(gemm(64), H200))) == [WIDE, DEEP]
    said = [record.getMessage() for record in caplog.records]
    assert (
        len(said) == 2
        and "kernel gemm_of_old no longer serves it" in said[0]
        and "gemm_older" in said[1]
    )
    assert "gemm 64×512×512" in said[0] and "NVIDIA H200" in said[0]


def test_a_kernel_that_does_not_fit_is_skipped_with_a_warning(caplog):
    unfit, illegal = kernel(pad_k=False), kernel(num_stages=9, tile_m=256, tile_n=256)
    table = Table.of([row(gemm(64, k=520), unfit, ties=(illegal,)), row(gemm(128, k=520), PLAIN)])
    found = first(table, gemm(64, k=520))
    assert found is None  # M = 128 is no step of 64's ladder
    said = " ".join(record.getMessage() for record in caplog.records)
    assert f"{unfit} no longer serves it and is skipped: " in said and "multiple of tile_k" in said
    assert f"{illegal} no longer serves it" in said


def test_a_row_without_a_kernel_gives_way_to_the_next_answer():
    table = Table.of([row(gemm(40), "gemm_of_old"), row(gemm(48), PLAIN)])
    assert first(table, gemm(40)).where == "padded to M = 48"


# --- versions and misses -------------------------------------------------------------------


def test_rows_of_other_versions_are_used_or_not_by_the_policy_with_one_warning(caplog):
    old = (("tilewright", "0.0.1"), ("torch", "1"), ("triton", "3.6.0"))
    table = Table.of([row(gemm(64), versions=old), row(gemm(128), versions=old)])
    finder = Lookup(table)
    assert all(next(finder.find(gemm(m), H200), None) for m in (64, 128))
    [said] = [record.getMessage() for record in caplog.records]
    assert "made with tilewright 0.0.1, triton 3.6.0 are used all the same" in said
    caplog.clear()
    strict = Lookup(table, versions="same")
    assert not any(next(strict.find(gemm(m), H200), None) for m in (64, 128))
    [said] = [record.getMessage() for record in caplog.records]
    assert "are not used" in said and dict(lookup.installed())["tilewright"] in said
    with pytest.raises(BadArgument, match="'newest' is not one of any, same"):
        Lookup(table, versions="newest")


def test_rows_of_the_installed_versions_need_no_warning(caplog):
    versions = tuple(sorted({**dict(lookup.installed()), "torch": "9"}.items()))
    assert first(Table.of([row(gemm(64), versions=versions)]), gemm(64), versions="same")
    assert not caplog.records


def test_a_miss_is_logged_once_for_each_shape(caplog):
    caplog.set_level(logging.INFO, "tilewright")
    finder = Lookup(Table.of([], "mine.twt"))
    for m in (64, 64, 128, 64):
        finder.missed(gemm(m), H200)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2 and said[0].startswith("mine.twt has no row for gemm 64×512×512")


def test_where_no_triton_is_installed_its_version_does_not_count(monkeypatch, caplog):
    """A machine that plans, or serves prebuilt kernels, compiles nothing."""
    table = Table.of([row(gemm(64), PLAIN)])
    monkeypatch.setattr(lookup, "installed", lambda: (("tilewright", "0.1.0"),))
    assert [*lookup.Lookup(table, "same").find(gemm(64), H200)]
    assert not caplog.messages
    monkeypatch.setattr(lookup, "installed", lambda: (("tilewright", "9.9"),))
    assert not [*lookup.Lookup(table, "same").find(gemm(64), H200)]
