"""What a dispatcher makes of bundles: which kernels count, from where, and what is said."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from bundle_cases import NAMES, binary, bundle
from table_cases import DEEP, H20, H200, PLAIN, WIDE, gemm, kernel, row

from tilewright import loader, ops
from tilewright.arch import device
from tilewright.bundle import Shelf, shelf
from tilewright.bundle import bundle as bundle_module
from tilewright.compile import Store
from tilewright.dispatch import Dispatcher
from tilewright.errors import BadArgument, BadFile, BuildFailed, NotInBundle
from tilewright.ops.nouns import MAIN
from tilewright.registry import Registry
from tilewright.tables.table import Table

ODD = kernel(tile_m=128)
"""A kernel that no bundle here has."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some.bundle"


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch):
    """No bundle but those of the test."""
    monkeypatch.delenv("TILEWRIGHT_BUNDLE", raising=False)
    monkeypatch.setattr(loader, "installed", Shelf)


def config(name: str):
    return ops.family_of(name).parse_name(name)


def loaded(dispatcher: Dispatcher, name: str) -> bytes:
    """The machine code that it would launch."""
    return dispatcher.loader.kernels(config(name), dispatcher.device_for_planning())[MAIN][1]


def test_its_kernels_are_the_candidates(path: Path) -> None:
    with_all = Dispatcher(device=H200).select(gemm(512)).config.name
    assert with_all not in NAMES
    dispatcher = Dispatcher(device=H200, bundle=bundle(path))
    found = dispatcher.explain(gemm(512))
    assert {f.name for f in found.fates} == {*NAMES} and found.chosen in NAMES
    assert dispatcher.select(gemm(512)).config.name == found.chosen
    assert loaded(dispatcher, found.chosen) == binary(found.chosen)


def test_a_path_will_do(path: Path) -> None:
    bundle(path)
    for given in (path, str(path), [path]):
        assert Dispatcher(device=H200, bundle=given).select(gemm(64)).config.name in NAMES


def test_a_kernel_that_is_missing_is_never_picked(path: Path) -> None:
    """Nor where a table says it is best: explained as skipped."""
    dispatcher = Dispatcher(
        device=H200, bundle=bundle(path), tables=Table.of([row(gemm(64), ODD, ties=(DEEP,))])
    )
    plan = dispatcher.select(gemm(64))
    assert (plan.config.name, plan.selector) == (DEEP, "tuned")
    found = dispatcher.explain(gemm(64))
    (skipped,) = [f for f in found.fates if f.fate == "skipped"]
    assert skipped.name == ODD and f"bundle: is not in {path} for sm_90" in skipped.reason


def test_what_it_lacks_is_said_with_the_way_to_add_it(path: Path) -> None:
    dispatcher = Dispatcher(device=H200, bundle=bundle(path))
    problem = gemm(64, dtype_a="fp16")
    assert not dispatcher.is_supported(problem)
    with pytest.raises(NotInBundle) as error:
        dispatcher.select(problem)
    said = str(error.value)
    assert "none of 3 kernels serves gemm 64×512×512 fp16" in said and "nearest: gemm_rcr" in said
    assert f"`tilewright bundle {path} missing.jsonl --arch sm_90:132 -o more.bundle`" in said
    assert '{"problem": {"family": "gemm", "m": 64' in said and '"dtype_a": "fp16"' in said


def test_another_architecture_is_told_apart(path: Path) -> None:
    dispatcher = Dispatcher(device=device("mi300x"), bundle=bundle(path))
    with pytest.raises(NotInBundle, match=r"kernels for sm_90, and none for gfx942"):
        dispatcher.select(gemm(64))


def test_the_line_that_the_error_says_is_read_as_a_capture(path: Path) -> None:
    from tilewright import capturing

    dispatcher = Dispatcher(device=H200, bundle=bundle(path))
    problem = gemm(64, dtype_a="fp16")
    with pytest.raises(NotInBundle) as error:
        dispatcher.select(problem)
    line = str(error.value).partition("write the line ")[2].partition(" to missing.jsonl")[0]
    file = path.with_name("missing.jsonl")
    file.write_text(line + "\n")
    assert capturing.load(file) == (problem,) or [*capturing.load(file)] == [problem]


def test_a_kernel_asked_for_by_name_that_it_lacks(path: Path) -> None:
    dispatcher = Dispatcher(device=H200, bundle=bundle(path))
    with pytest.raises(NotInBundle, match=rf"{ODD} for sm_90 is not in.*tilewright bundle .*{ODD}"):
        loaded(dispatcher, ODD)


def test_its_table_chooses_unless_others_are_given(path: Path, tmp_path, monkeypatch) -> None:
    made = bundle(path, table=Table.of([row(gemm(64), WIDE), row(gemm(96), DEEP)]))
    plan = Dispatcher(device=H200, bundle=made).select(gemm(64))
    assert (plan.config.name, plan.selector) == (WIDE, "tuned")
    assert plan.reason.startswith(f"exact row of {path}: ")
    assert Dispatcher(device=H20, bundle=made).select(gemm(64)).config.name == WIDE
    mine = Table.of([row(gemm(64), DEEP)])
    assert Dispatcher(device=H200, bundle=made, tables=mine).select(gemm(64)).config.name == DEEP
    from tilewright.tables import file

    file.save(mine, tmp_path / "mine.twt")
    monkeypatch.setenv("TILEWRIGHT_TABLES", str(tmp_path / "mine.twt"))
    assert Dispatcher(device=H200, bundle=made).select(gemm(64)).config.name == DEEP
    plan = Dispatcher(device=H200, bundle=made, selector="analytical").select(gemm(64))
    assert plan.selector == "analytical"


def test_its_priorities_come_before_its_table(path: Path) -> None:
    table = Table.of([row(gemm(64), WIDE)])
    made = bundle(path, table=table, priorities={DEEP: 1})
    assert Dispatcher(device=H200, bundle=made).select(gemm(64)).config.name == DEEP


def test_a_registry_says_which_of_its_kernels_count(path: Path) -> None:
    registry = Registry().register_all([ODD, DEEP])
    registry.set_priority(ODD, 5)
    dispatcher = Dispatcher(registry, H200, bundle=bundle(path))
    assert dispatcher.select(gemm(64)).config.name == DEEP
    (refused,) = [f for f in dispatcher.explain(gemm(64)).fates if f.fate == "refused"]
    assert (refused.name, refused.by) == (ODD, "bundle")


def test_a_store_is_of_use_only_where_things_are_built(path: Path, tmp_path: Path) -> None:
    made = bundle(path)
    with pytest.raises(BadArgument, match=r"no use for a store.*build_missing=True"):
        Dispatcher(bundle=made, store=Store(tmp_path / "store"))
    dispatcher = Dispatcher(
        device=H200, bundle=made, store=Store(tmp_path / "store"), build_missing=True
    )
    assert loaded(dispatcher, WIDE) == binary(WIDE)
    assert not (tmp_path / "store").exists()


def test_with_build_missing_every_kernel_is_a_candidate(path: Path) -> None:
    made = bundle(path, table=Table.of([row(gemm(96), DEEP)]))
    dispatcher = Dispatcher(device=H200, bundle=made, build_missing=True)
    assert dispatcher.build_missing
    assert dispatcher.select(gemm(512)) == Dispatcher(device=H200).select(gemm(512))
    assert dispatcher.select(gemm(96)).config.name == DEEP
    assert not Dispatcher(device=H200, bundle=made).build_missing
    assert Dispatcher(device=H200).build_missing


def test_the_environment_names_one(path: Path, monkeypatch, tmp_path: Path) -> None:
    bundle(path)
    monkeypatch.setenv("TILEWRIGHT_BUNDLE", str(path))
    assert Dispatcher(device=H200).select(gemm(512)).config.name in NAMES
    assert Dispatcher(device=H200, bundle="none").select(gemm(512)).config.name not in NAMES
    monkeypatch.setenv("TILEWRIGHT_BUNDLE", "none")
    assert Dispatcher(device=H200).select(gemm(512)).config.name not in NAMES
    monkeypatch.setenv("TILEWRIGHT_BUNDLE", str(path))
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "another"))
    with pytest.raises(bundle_module.UntrustedBundle, match="TILEWRIGHT_BUNDLE_TRUSTED=1"):
        Dispatcher(device=H200)
    monkeypatch.setenv("TILEWRIGHT_BUNDLE_TRUSTED", "1")
    assert Dispatcher(device=H200).select(gemm(512)).config.name in NAMES
    monkeypatch.setenv("TILEWRIGHT_BUNDLE_TRUSTED", "yes")
    with pytest.raises(BadArgument, match="neither 1"):
        Dispatcher(device=H200)


def test_a_store_that_is_given_turns_off_what_the_environment_names(path, monkeypatch) -> None:
    """Measuring says where its binaries come from, and must not get others."""
    bundle(path)
    monkeypatch.setenv("TILEWRIGHT_BUNDLE", str(path))
    dispatcher = Dispatcher(device=H200, store=Store(path.parent / "store"))
    assert dispatcher.select(gemm(512)).config.name not in NAMES
    monkeypatch.setattr(dispatcher.loader, "_stored", lambda config, target: {MAIN: "built"})
    monkeypatch.setattr(dispatcher.store, "read", lambda kernel: kernel.encode())
    assert loaded(dispatcher, WIDE) == b"built"


def test_several_serve_as_one(tmp_path: Path) -> None:
    two = [
        bundle(tmp_path / "1.bundle", [WIDE, DEEP], table=Table.of([row(gemm(64), WIDE)])),
        bundle(tmp_path / "2.bundle", [PLAIN, WIDE], table=Table.of([row(gemm(96), PLAIN)])),
    ]
    dispatcher = Dispatcher(device=H200, bundle=two)
    assert [dispatcher.select(gemm(m)).config.name for m in (64, 96)] == [WIDE, PLAIN]
    assert {f.name for f in dispatcher.explain(gemm(64)).fates} == {*NAMES}


def test_kernels_are_listed_once(tmp_path: Path) -> None:
    """Those of two bundles once, and not again for each problem."""
    paths = [tmp_path / f"{number}.bundle" for number in (1, 2)]
    found = Shelf([bundle(paths[0], [WIDE, DEEP]), bundle(paths[1], [PLAIN, WIDE])])
    entries = found.entries("sm_90")
    assert sorted(entry.name for entry in entries) == sorted(NAMES)
    assert found.entries("sm_90") is entries and found.entries("gfx942") == ()


def test_the_environment_names_bundles_none_or_nothing(path: Path, monkeypatch) -> None:
    """Nothing: then those of installed wheels count."""
    bundle(path)
    assert shelf.opened() is None
    apart = f"{os.pathsep}{path}{os.pathsep}"
    for said, names in (("", None), (shelf.OFF, ()), (str(path), {*NAMES}), (apart, {*NAMES})):
        monkeypatch.setenv("TILEWRIGHT_BUNDLE", said)
        found = shelf.opened()
        assert names == (found if found is None else {*found.names("sm_90")} or ())


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch):
    """A bundle where a wheel of kernels puts its own."""
    folder = tmp_path / "site-packages" / bundle_module.PACKAGE
    folder.mkdir(parents=True)
    bundle(folder / "sm90.bundle")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "site-packages")])
    monkeypatch.setattr(loader, "installed", shelf.installed.__wrapped__)
    return folder


def test_an_installed_one_gives_binaries_and_leaves_the_choice(wheels: Path) -> None:
    dispatcher = Dispatcher(device=H200)
    plan = dispatcher.select(gemm(512))
    assert plan.config.name not in NAMES and dispatcher.build_missing
    assert loaded(dispatcher, WIDE) == binary(WIDE)


def test_an_installed_one_is_all_there_is_without_triton(wheels: Path, monkeypatch) -> None:
    monkeypatch.setattr(loader, "_triton_is_here", lambda: False)
    dispatcher = Dispatcher(device=H200)
    assert dispatcher.select(gemm(512)).config.name in NAMES and not dispatcher.build_missing
    off = Dispatcher(device=H200, bundle="none")
    assert off.select(gemm(512)).config.name not in NAMES
    with_a_store = Dispatcher(device=H200, store=Store(wheels / "store"))
    assert with_a_store.select(gemm(512)).config.name not in NAMES
    monkeypatch.setattr(loader, "installed", Shelf)
    assert Dispatcher(device=H200).select(gemm(512)).config.name not in NAMES


def test_installed_ones_can_be_turned_off(wheels: Path, monkeypatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_BUNDLE", "none")
    monkeypatch.setattr(loader, "build", lambda *a, **k: pytest.fail("built"))
    with pytest.raises(pytest.fail.Exception, match="built"):
        loaded(Dispatcher(device=H200), WIDE)


def test_a_stale_or_damaged_kernel_falls_to_the_next(path: Path, monkeypatch) -> None:
    made = bundle(path, table=Table.of([row(gemm(64), WIDE, ties=(DEEP,))]))
    dispatcher = Dispatcher(device=H200, bundle=made)
    real = bundle_module.source_digests
    stale = {MAIN: "0" * 64}
    monkeypatch.setattr(
        bundle_module, "source_digests", lambda c, a: stale if c.name == WIDE else real(c, a)
    )
    with pytest.raises(BuildFailed, match="other sources"):
        loaded(dispatcher, WIDE)

    def damaged(*_):
        raise BadFile("damaged")

    monkeypatch.setattr(made, "_binary", damaged)
    with pytest.raises(BuildFailed, match="damaged"):
        loaded(dispatcher, DEEP)


def test_where_things_are_built_a_stale_kernel_is_built(path: Path, monkeypatch, caplog) -> None:
    made = bundle(path)
    monkeypatch.setattr(bundle_module, "source_digests", lambda config, arch: {MAIN: "0" * 64})
    dispatcher = Dispatcher(device=H200, bundle=made, build_missing=True)
    monkeypatch.setattr(dispatcher.loader, "_stored", lambda config, target: {MAIN: "built"})
    monkeypatch.setattr(dispatcher.store, "read", lambda kernel: kernel.encode())
    assert loaded(dispatcher, WIDE) == b"built"
    assert "other sources" in caplog.text
