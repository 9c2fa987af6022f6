"""Registries: names, priorities, filters, and JSON that loses nothing."""

from __future__ import annotations

import json

import pytest
from gemm_cases import cases, config

from tilewright import ops
from tilewright.compile import Store, build
from tilewright.errors import BadArgument, BadFile, UnknownName
from tilewright.registry import Registry, registries, registry

KERNEL = config()


def test_a_kernel_is_found_by_its_name():
    kernels = Registry("r").register_all([KERNEL, config(tile_m=128)])
    assert len(kernels) == 2 and KERNEL.name in kernels
    assert kernels.get(KERNEL.name).config == KERNEL
    with pytest.raises(UnknownName, match=r"is no kernel's name.*did you mean 'gemm'"):
        ops.family_of("gemn_rcr")
    with pytest.raises(UnknownName, match=f"did you mean '{KERNEL.name}'"):
        kernels.get(KERNEL.name[:-1])


def test_a_name_registers_as_well_as_a_config():
    assert Registry("r").register(KERNEL.name).config == KERNEL
    with pytest.raises(UnknownName):
        Registry("r").register("gemm_of_my_dreams")


def test_registering_again_updates_the_priority():
    kernels = Registry("r").register_all([KERNEL])
    kernels.register(KERNEL, priority=3)
    assert len(kernels) == 1 and kernels.get(KERNEL.name).priority == 3


def test_registries_are_equal_by_name_and_kernels():
    alike = [Registry("r").register_all([KERNEL]) for _ in range(2)]
    assert alike[0] == alike[1]
    for other in (Registry("s").register_all([KERNEL]), Registry("r"), "r", [KERNEL]):
        assert alike[0] != other


def test_every_change_is_a_version_of_its_own():
    """By which plans that were made before are told."""
    kernels = Registry("r")
    versions = [kernels.version]
    for change in (
        lambda: kernels.register(KERNEL),
        lambda: kernels.register(KERNEL, priority=3),
        lambda: kernels.set_priority(KERNEL.name, 4),
        lambda: kernels.remove(KERNEL.name),
    ):
        change()
        versions.append(kernels.version)
    assert versions == sorted({*versions})


def test_filters_by_pattern_and_by_predicate():
    wide = config(tile_n=128)
    kernels = Registry("r").register_all([KERNEL, wide])
    assert [e.config for e in kernels.filter("*x128x*")] == [wide]
    assert [e.config for e in kernels.filter(where=lambda c: c.tile_n == 64)] == [KERNEL]


def test_removing():
    kernels = Registry("r").register_all([KERNEL])
    kernels.remove(KERNEL.name)
    assert len(kernels) == 0
    with pytest.raises(UnknownName):
        kernels.remove(KERNEL.name)


def test_named_registries_are_the_same_each_time():
    assert registry("tests") is registry("tests")
    assert registry("tests") is not registry("others")
    assert {"tests", "others"} <= set(registries())
    with pytest.raises(BadArgument):
        registry("")


def test_json_survives_every_field(tmp_path):
    kernels = Registry("all of them")
    for number, (kernel, _) in enumerate([*cases("sm_90"), *cases("gfx942")]):
        kernels.register(kernel, priority=number - 7)
    kernels.register(config("gfx942", mma=(16, 16, 16), index_bits=64), priority=-1)
    kernels.save(tmp_path / "r.json")
    again = Registry.load(tmp_path / "r.json")
    assert again == kernels and again.name == "all of them"
    assert again.to_json() == kernels.to_json()
    assert list(tmp_path.iterdir()) == [tmp_path / "r.json"]


@pytest.mark.turns(48)
def test_json_keeps_what_was_built(tmp_path):
    store = Store(tmp_path / "store")
    report = build([(KERNEL, "sm_90"), (KERNEL, "gfx942")], store=store)
    report.raise_if_failed()
    kernels = Registry("built").register_all(report.kernels)
    assert set(kernels.get(KERNEL.name).builds) == {"sm_90", "gfx942"}
    again = Registry.from_json(kernels.to_json())
    assert again == kernels
    assert again.get(KERNEL.name).builds == kernels.get(KERNEL.name).builds
    for built in again.get(KERNEL.name).builds.values():
        assert store.read(built)


def _document() -> dict:
    return json.loads(Registry("r").register_all([KERNEL]).to_json())


def _set(path: str, value):
    def change(document: dict) -> None:
        *parents, last = path.split(".")
        at = document
        for part in parents:
            at = at[int(part)] if part.isdigit() else at[part]
        at[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("schema", 2), "schema 2"),
        (_set("kernels.0.name", "gemm_x"), "not the name of a GEMM kernel"),
        (_set("kernels.0.family", "gem"), "did you mean 'gemm'"),
        (_set("kernels.0.config.tile_m", 256), "disagree"),
        (_set("kernels.0.config.tile_m", "64"), "tile_m"),
        (_set("kernels.0.config.tile_mm", 64), "tile_m"),
        (_set("kernels.0.priority", "high"), "priority"),
        (_set("kernels.0.extra", 1), "extra"),
        (_set("kernels.0.builds", {"sm_90": {}}), "builds"),
        (lambda d: d["kernels"].append(d["kernels"][0]), "twice"),
        (lambda d: d.pop("registry"), "registry"),
    ],
)
def test_a_strangers_registry_can_be_wrong_but_is_told_where(tmp_path, change, message):
    document = _document()
    change(document)
    path = tmp_path / "stranger.json"
    path.write_text(json.dumps(document))
    with pytest.raises(BadFile, match=message) as caught:
        Registry.load(path)
    assert "stranger.json" in str(caught.value)


def test_malformed_json_gives_line_and_column(tmp_path):
    path = tmp_path / "r.json"
    path.write_text('{\n "schema": 1,\n "registry": }')
    with pytest.raises(BadFile, match=r"line 3, column 14"):
        Registry.load(path)
    with pytest.raises(BadFile, match=r"line 3, column 14"):
        Registry.from_json(path.read_text())
