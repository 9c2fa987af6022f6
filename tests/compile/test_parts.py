"""Configs with several kernels: each part is built, kept and judged by itself."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from fake_family import FakeConfig, FakeFamily
from store_helpers import FILES, make_kernel

from tilewright import ops
from tilewright.arch import arch
from tilewright.bundle import Bundle, layout
from tilewright.bundle.write import Content, write
from tilewright.canonical import canonical, sha256
from tilewright.cli.build import result_document
from tilewright.cli.kernels import _of_part, _part
from tilewright.compile import Store, build, build_keys, find, part_keys
from tilewright.compile.kernel import check_limits, to_data
from tilewright.compile.manifest import parse_manifest
from tilewright.errors import BadArgument, BadFile, BuildFailed, UnknownName
from tilewright.measure.sweep import _kept
from tilewright.ops.nouns import MAIN, KernelSource
from tilewright.parameters import MAX_PARAMETER_BYTES
from tilewright.registry import Registry

TWO = FakeConfig(then="tile", block=64)
BROKEN = FakeConfig(then="wrong", block=64)
PARTS = ("partial", "reduce")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store with both parts of `TWO`, and the part of `BROKEN` that can be compiled."""
    store = Store(tmp_path_factory.mktemp("parts") / "store", trusted=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ops, "family", lambda name: FakeFamily())
        patch.setenv("TILEWRIGHT_HOME", str(store.path.parent / "home"))
        build([(TWO, "sm_90")], store=store, workers=2).raise_if_failed()
        build([(BROKEN, "sm_90")], store=store, workers=2)
    return store


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "family_of", lambda name: FakeFamily())


# --- building ---------------------------------------------------------------------------------


@pytest.mark.turns(32)
def test_every_part_is_a_result(built: Store) -> None:
    one = FakeConfig()
    report = build([(TWO, "sm_90"), (BROKEN, "sm_90")], store=built)
    assert [(r.part, r.status) for r in report.results] == [
        ("partial", "cached"), ("reduce", "cached"), ("partial", "cached"), ("reduce", "failed"),
    ]  # fmt: skip
    entries = {r.part: r.kernel.entry for r in report.results[:2] if r.kernel}
    assert entries == {"partial": "scale", "reduce": "tile"}
    assert all(r.kernel is None or r.kernel.part == r.part for r in report.results)
    assert part_keys(one, "sm_90").keys() == {MAIN}


@pytest.mark.turns(16)
def test_a_config_is_usable_when_all_its_parts_are(built: Store) -> None:
    """The part that compiled is kept, and serves nothing alone."""
    report = build([(TWO, "sm_90"), (BROKEN, "sm_90")], store=built)
    assert [kernel.part for kernel in report.kernels] == [*PARTS]
    assert {kernel.name for kernel in report.kernels} == {TWO.name}
    with pytest.raises(BuildFailed, match=r"1 of 4 kernels: failed \S+ \(part reduce\) for sm_90"):
        report.raise_if_failed()
    assert find(BROKEN, "sm_90", built) is None
    found = find(TWO, "sm_90", built)
    assert found is not None and [*found] == [*PARTS] and found["reduce"].entry == "tile"


@pytest.mark.turns(4)
def test_a_part_that_is_gone_is_built_again(built: Store, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    keys = part_keys(TWO, "sm_90")
    for part, key in keys.items():
        kernel = built.load(key)
        assert kernel is not None and kernel.part == part
        store.save(kernel, {kind: built.read(kernel, kind) for kind in kernel.blobs})
    assert find(TWO, "sm_90", store) is not None
    store.remove(keys["reduce"])
    assert find(TWO, "sm_90", store) is None
    report = build([(TWO, "sm_90")], store=store, workers=1)
    assert [(r.part, r.status) for r in report.results] == [
        ("partial", "cached"), ("reduce", "built"),
    ]  # fmt: skip


def test_progress_counts_parts(built: Store) -> None:
    seen = []
    build([(TWO, "sm_90")] * 2, store=built, progress=lambda *words: seen.append(words[1:]))
    assert seen == [(n, 4) for n in (1, 2, 3, 4)]


class Planted(FakeFamily):
    """Changes the second kernel's source."""

    def __init__(self, **changes: object) -> None:
        self.changes = changes

    def sources(self, config: FakeConfig, arch: object) -> dict[str, KernelSource]:
        first, second = super().sources(config, arch).values()  # type: ignore[arg-type]
        return {"partial": first, "reduce": replace(second, **self.changes)}


def test_a_signature_that_lacks_an_argument_costs_its_part_only(
    built: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = (("a", "tensordesc<bf16[64, 64]>"), ("BLOCK", "constexpr"))
    monkeypatch.setattr(ops, "family", lambda name: Planted(signature=short, divisibility=()))
    first, second = build([(TWO, "sm_90")], store=built, workers=1).results
    assert first.ok and second.status == "failed"
    assert "the signature's arguments ['a', 'BLOCK'] are not those of" in second.reason


def test_a_config_without_kernels_is_a_failure(
    built: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Empty(FakeFamily):
        def sources(self, config: object, arch: object) -> dict[str, KernelSource]:
            return {}

    monkeypatch.setattr(ops, "family", lambda name: Empty())
    (result,) = build([(TWO, "sm_90")], store=built).results
    assert result.status == "failed" and "has no kernel to build for sm_90" in result.reason
    assert find(TWO, "sm_90", built) is None and build_keys([TWO], "sm_90") == [""]


# --- what no launch can take is not compiled --------------------------------------------------


@pytest.mark.parametrize(
    ("arch_name", "changes", "rule", "numbers"),
    [
        ("sm_90", {"signature": tuple((f"x{i}", "*fp32") for i in range(511))}, "parameters",
         f"4104 bytes of parameters, and a launch passes at most {MAX_PARAMETER_BYTES}"),
        ("sm_90", {"options": (("num_ctas", 32),)}, "num_ctas",
         "32 workgroups, sm_90 takes at most 16"),
        ("sm_80", {"options": (("num_ctas", 2),)}, "num_ctas", "sm_80 has no clusters"),
        ("gfx942", {"options": (("num_ctas", 2),)}, "num_ctas", "gfx942 has no clusters"),
        ("gfx942", {"options": (("launch_pdl", True),)}, "pdl", "gfx942 does not have"),
        ("sm_80", {"options": (("launch_pdl", True),)}, "pdl", "sm_80 does not have"),
    ],
)  # fmt: skip
def test_a_launch_that_cannot_be_is_rejected_before_compiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arch_name, changes, rule, numbers
) -> None:
    monkeypatch.setattr(ops, "family", lambda name: Planted(**changes))
    from tilewright.compile import pool

    found = pool._look_up(TWO, arch(arch_name), Store(tmp_path / "store"))
    refused = found[1]
    assert refused.status == "rejected" and refused.kernel is None and refused.verdict.rule == rule
    assert numbers in refused.reason


def test_what_just_fits_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.compile import pool
    from tilewright.compile.builder import Task

    for changes in (
        {"signature": tuple((f"x{i}", "*fp32") for i in range(510))},
        {"options": (("num_ctas", 16), ("launch_pdl", True))},
    ):
        monkeypatch.setattr(ops, "family", lambda name, c=changes: Planted(**c))
        found = pool._look_up(TWO, arch("sm_90"), Store(tmp_path / "store"))
        assert all(isinstance(one, Task) for one in found)


def test_an_argument_that_no_launch_passes_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "family", lambda name: Planted(signature=(("x", "i17"),)))
    from tilewright.compile import pool

    _, refused = pool._look_up(TWO, arch("sm_90"), Store(tmp_path / "store"))
    assert refused.status == "failed" and "'i17'" in refused.reason


def test_a_kernel_from_elsewhere_is_held_to_the_same() -> None:
    kernel = make_kernel()
    assert check_limits(kernel, arch("sm_90"))
    assert check_limits(replace(kernel, num_ctas=2), arch("sm_90"))
    assert check_limits(replace(kernel, num_ctas=17), arch("sm_90")).rule == "num_ctas"
    assert check_limits(replace(kernel, pdl=True), arch("sm_80")).rule == "pdl"


# --- keys and files ---------------------------------------------------------------------------


def test_one_key_stands_for_all_parts() -> None:
    keys = part_keys(TWO, "sm_90")
    (key,) = build_keys([TWO], "sm_90")
    assert key == sha256(canonical(keys)) and key not in keys.values()
    one = FakeConfig()
    assert build_keys([one], "sm_90") == [part_keys(one, "sm_90")[MAIN]]


def test_equal_sources_of_two_parts_have_keys_of_their_own() -> None:
    first, second = part_keys(FakeConfig(then="scale"), "sm_90").values()
    assert first != second


def test_the_main_part_is_in_no_file(tmp_path: Path) -> None:
    """Files of configs with one kernel are the bytes that they were."""
    kernel = make_kernel()
    assert to_data(kernel) == {k: v for k, v in asdict(kernel).items() if k != "part"}
    store = Store(tmp_path / "store")
    store.save(kernel, FILES)
    (manifest,) = store.path.glob("entries/*/*.json")
    assert b'"part"' not in manifest.read_bytes()
    assert store.load(kernel.key) == replace(kernel, blobs=store.load(kernel.key).blobs)
    said = canonical({**json.loads(manifest.read_bytes()), "part": "main"})
    with pytest.raises(BadFile, match="canonical"):
        parse_manifest(said, manifest)


@pytest.mark.parametrize("part", ["", "../x", "Reduce", "a-b", "1st"])
def test_a_part_is_a_plain_word(tmp_path: Path, part: str) -> None:
    data = {**to_data(make_kernel()), "part": part}
    with pytest.raises(BadFile, match="part"):
        parse_manifest(canonical(data), tmp_path)


def test_a_registry_keeps_parts_beside_the_main_kernel(built: Store, monkeypatch) -> None:
    found = find(TWO, "sm_90", built)
    monkeypatch.setattr(FakeFamily, "config_type", FakeConfig, raising=False)
    registry = Registry().register_all(found.values())
    (entry,) = registry
    assert entry.config == TWO and [*entry.builds] == ["sm_90:partial", "sm_90:reduce"]
    assert entry.archs == ("sm_90",)
    text = registry.to_json()
    assert Registry.from_json(text) == registry
    for wrong in (text.replace('"sm_90:reduce"', '"sm_90"'), text.replace('"sm_90:reduce"', '"x"')):
        with pytest.raises(BadFile, match=r"builds\.(sm_90|x): is .* \(part reduce\) for sm_90"):
            Registry.from_json(wrong)


# --- bundles ----------------------------------------------------------------------------------


@pytest.fixture
def bundled(built: Store, tmp_path: Path) -> Path:
    content = Content()
    content.add_built(find(TWO, "sm_90", built).values(), built)
    assert len(content) == 1
    write(content, tmp_path / "two.bundle")
    return tmp_path / "two.bundle"


def test_a_bundle_gives_all_parts(built: Store, bundled: Path) -> None:
    made = Bundle(bundled)
    assert {f for f in made.manifest.files if f.startswith("kernels")} == {
        f"kernels/sm_90/{TWO.name}/{part}.json" for part in PARTS
    }
    assert made.has(TWO.name, "sm_90") and made.names("sm_90") == (TWO.name,)
    loaded = made.load(TWO, "sm_90")
    stored = find(TWO, "sm_90", built)
    assert {p: (k.entry, b) for p, (k, b) in loaded.items()} == {
        part: (kernel.entry, built.read(kernel)) for part, kernel in stored.items()
    }
    assert made.verify() == []
    (entry,) = made.registry()
    assert [*entry.builds] == ["sm_90:partial", "sm_90:reduce"]


def test_a_bundle_of_a_bundle_has_all_parts(bundled: Path, tmp_path: Path) -> None:
    content = Content()
    content.add_bundle(Bundle(bundled))
    assert write(content, tmp_path / "again.bundle").digest == Bundle(bundled).digest


def test_a_bundle_is_not_written_without_a_part(built: Store, tmp_path: Path) -> None:
    content = Content()
    content.add_built([find(TWO, "sm_90", built)["partial"]], built)
    with pytest.raises(BadArgument, match="needs its reduce kernel in the bundle too"):
        write(content, tmp_path / "half.bundle")
    assert [*tmp_path.glob("*.bundle")] == []


def test_a_bundle_that_lacks_a_part_lacks_the_kernel(
    built: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was written, by a Tilewright whose config had one part less."""
    content = Content()
    content.add_built([find(TWO, "sm_90", built)["partial"]], built)
    content._parts.clear()
    write(content, tmp_path / "half.bundle")
    made = Bundle(tmp_path / "half.bundle")
    assert not made.has(TWO.name, "sm_90") and made.names("sm_90") == made.archs == ()
    assert len(made.registry()) == 0
    with pytest.raises(UnknownName, match="has no kernel"):
        made.load(TWO, "sm_90")


def test_a_part_that_the_config_has_not_is_refused(built: Store) -> None:
    other = replace(find(TWO, "sm_90", built)["reduce"], part="third")
    with pytest.raises(BadArgument, match="has no part 'third'; it has partial, reduce"):
        Content().add(other, b"")
    with pytest.raises(BadArgument, match="plain word"):
        layout.kernel_path("a", "sm_90", "../x")
    assert layout.kernel_at("kernels/sm_90/a/b/c.json") is None


def test_one_stale_part_makes_the_kernel_stale(bundled: Path, monkeypatch) -> None:
    monkeypatch.setattr(ops, "family", lambda name: Planted(constants=(("BLOCK", 32),)))
    with pytest.raises(BuildFailed, match="other sources"):
        Bundle(bundled).load(TWO, "sm_90")


# --- results of a sweep -----------------------------------------------------------------------


def test_a_sweep_keeps_one_build_of_a_config(built: Store) -> None:
    results = build([(BROKEN, "sm_90")], store=built).results
    kept = _kept(results, "key")
    assert (kept.kernel, kept.key, kept.status) == (BROKEN.name, "key", "failed")
    assert kept.reason.startswith("part reduce: ")
    assert kept.seconds == sum(r.seconds for r in results)
    whole = _kept(build([(TWO, "sm_90")], store=built).results, "key")
    assert (whole.status, whole.reason) == ("cached", "")


# --- the command line -------------------------------------------------------------------------


def test_inspect_asks_which_part() -> None:
    kernels = {part: replace(make_kernel(), part=part) for part in PARTS}
    assert _of_part({MAIN: make_kernel()}, None, "k") == make_kernel()
    assert _of_part(kernels, "reduce", "k").part == "reduce"
    with pytest.raises(
        BadArgument, match="several kernels; choose one with --part partial or reduce"
    ):
        _of_part(kernels, None, "k")
    with pytest.raises(BadArgument, match="k has no part 'third'; it has partial, reduce"):
        _of_part(kernels, "third", "k")


def test_documents_name_a_part_only_where_there_are_several(built: Store) -> None:
    several = build([(TWO, "sm_90")], store=built).results
    assert [result_document(one)["part"] for one in several] == [*PARTS]
    kernel = replace(several[0].kernel, part=MAIN)
    assert "part" not in result_document(replace(several[0], part=MAIN, kernel=kernel))
    assert _part(kernel) == {} and _part(several[1].kernel) == {"part": "reduce"}
