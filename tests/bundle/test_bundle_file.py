"""The file: the same bytes from the same content, nothing believed that is not checked."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from bundle_cases import NAMES, binary, bundle, content
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from table_cases import H200, PLAIN, WIDE, gemm, row

from tilewright import ops
from tilewright.bundle import Bundle, UntrustedBundle, layout, write
from tilewright.bundle import bundle as bundle_module
from tilewright.errors import BadArgument, BadFile, BuildFailed, StoreError, UnknownName
from tilewright.ops.nouns import MAIN
from tilewright.tables.table import Table


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some.bundle"


def config(name: str):
    return ops.family_of(name).parse_name(name)


def rewritten(path: Path, **entries: bytes) -> None:
    """Other contents of some of its entries, in a zip that is otherwise the same."""
    with zipfile.ZipFile(path) as old:
        kept = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        for name, data in {**kept, **entries}.items():
            new.writestr(name, data)


def test_what_goes_in_comes_out(path: Path) -> None:
    table = Table.of([row(gemm(64), WIDE)])
    made = bundle(path, table=table, priorities={WIDE: 3, PLAIN: 0, "unknown": 7})
    assert made.archs == ("sm_90",) and set(made.names("sm_90")) == {*NAMES}
    for name in NAMES:
        kernel, found = made.load(config(name), "sm_90")[MAIN]
        assert found == binary(name) and kernel.name == name and list(kernel.blobs) == ["cubin"]
    assert made.table == table and made.table.get(gemm(64), H200).kernel == WIDE
    assert made.manifest.priorities == {WIDE: 3}
    assert {e.name: e.priority for e in made.registry()} == {n: 3 * (n == WIDE) for n in NAMES}
    assert made.verify() == []
    assert set(made.manifest.versions) == {"tilewright", "triton", "python"}
    with zipfile.ZipFile(path) as file:
        assert b"Apache License" in file.read("LICENSE")


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    files = [tmp_path / f"{n}.bundle" for n in range(2)]
    table = Table.of([row(gemm(64), WIDE), row(gemm(96), PLAIN)])
    other = Table.of([row(gemm(96), PLAIN), row(gemm(64), WIDE)])
    write(content(NAMES, table=table, priorities={PLAIN: 1, WIDE: 2}), files[0])
    write(content(NAMES[::-1], table=other, priorities={WIDE: 2, PLAIN: 1}), files[1])
    assert files[0].read_bytes() == files[1].read_bytes()


def test_another_bundle_is_taken_over(tmp_path: Path) -> None:
    first = bundle(tmp_path / "1.bundle", NAMES[:2], priorities={PLAIN: 1})
    both = content(NAMES[2:])
    both.add_bundle(first)
    write(both, tmp_path / "2.bundle")
    write(content(NAMES, priorities={PLAIN: 1}), tmp_path / "3.bundle")
    files = [(tmp_path / f"{n}.bundle").read_bytes() for n in (2, 3)]
    assert files[0] == files[1]


def test_a_bundle_of_other_versions_is_not_taken_over(path: Path, monkeypatch) -> None:
    first = bundle(path)
    monkeypatch.setattr(layout, "__version__", "9.9")
    with pytest.raises(BadArgument, match=r"tilewright 0\.1\.0.*tilewright 9\.9.*made anew"):
        content().add_bundle(first)


def test_nothing_is_no_bundle(path: Path) -> None:
    with pytest.raises(BadArgument, match="at least one kernel"):
        write(content(()), path)


def test_a_strangers_bundle_needs_explicit_trust(path: Path, monkeypatch, tmp_path: Path) -> None:
    bundle(path)
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "another"))
    with pytest.raises(UntrustedBundle, match=r"not made by this user.*--trust-bundle"):
        Bundle(path)
    assert Bundle(path, trusted=True).verify() == []


def test_a_copy_needs_its_signature(path: Path, tmp_path: Path) -> None:
    bundle(path)
    copy = tmp_path / "copy.bundle"
    copy.write_bytes(path.read_bytes())
    with pytest.raises(UntrustedBundle):
        Bundle(copy)
    (signature,) = tmp_path.glob("some.bundle.*.sig")
    (tmp_path / signature.name.replace("some", "copy")).write_bytes(signature.read_bytes())
    assert Bundle(copy).verify() == []


def test_only_folders_that_pip_installs_into_are_trusted(tmp_path: Path, monkeypatch) -> None:
    source = tmp_path / "x.bundle"
    bundle(source)
    for folder in ("site-packages", "here"):
        place = tmp_path / folder / bundle_module.PACKAGE / "x.bundle"
        place.parent.mkdir(parents=True)
        place.write_bytes(source.read_bytes())
        monkeypatch.setattr(sys, "path", [str(tmp_path / folder)])
        if folder == "here":  # the current folder, say
            with pytest.raises(UntrustedBundle):
                Bundle(place)
        else:
            assert Bundle(place).verify() == []


def test_a_signature_is_of_everything(path: Path) -> None:
    """Whatever is altered is refused, signed or not, trusted or not."""
    kernel_file = layout.kernel_path(WIDE, "sm_90")
    made = bundle(path)
    blob = layout.blob_path(made.kernel(WIDE, "sm_90").blob("cubin"))
    rewritten(path, **{blob: b"x" * len(binary(WIDE))})
    for trusted in (False, True):
        with pytest.raises(BadFile, match="damaged"):
            Bundle(path, trusted).load(config(WIDE), "sm_90")
    bundle(path)
    other = layout.encoded(made._built(PLAIN, "sm_90"))
    rewritten(path, **{kernel_file: other})
    with pytest.raises(BadFile, match=r"damaged|allowed"):
        Bundle(path).load(config(WIDE), "sm_90")
    (problem,) = Bundle(path).verify()
    assert kernel_file in problem
    bundle(path)
    manifest = json.loads(zipfile.ZipFile(path).read("manifest.json"))
    manifest["priorities"][PLAIN] = 9
    rewritten(path, **{"manifest.json": layout.canonical(manifest)})
    with pytest.raises(UntrustedBundle):
        Bundle(path)


def test_one_kernel_in_the_place_of_another_is_refused(path: Path) -> None:
    """Even with a manifest that says so: whoever is trusted may be mistaken."""
    made = bundle(path)
    manifest = json.loads(zipfile.ZipFile(path).read("manifest.json"))
    files = manifest["files"]
    wide, plain = (layout.kernel_path(name, "sm_90") for name in (WIDE, PLAIN))
    files[wide] = files[plain]
    rewritten(
        path,
        **{
            "manifest.json": layout.canonical(manifest),
            wide: layout.encoded(made._built(PLAIN, "sm_90")),
        },
    )
    with pytest.raises(BadFile, match="of another kernel"):
        Bundle(path, trusted=True).load(config(WIDE), "sm_90")


@pytest.mark.parametrize(
    ("compression", "says"), [(zipfile.ZIP_DEFLATED, "compressed"), (zipfile.ZIP_STORED, "twice")]
)
def test_a_zip_that_could_surprise_is_refused(path: Path, compression: int, says: str) -> None:
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("manifest.json", b"0" * 100_000)
        if says == "twice":
            with pytest.warns(UserWarning, match="Duplicate name"):
                file.writestr("manifest.json", b"1")
    with pytest.raises(BadFile, match=says):
        Bundle(path, trusted=True)


def test_a_file_that_begins_otherwise_is_no_bundle(path: Path) -> None:
    """Also where all behind its first four bytes is as it should be."""
    bundle(path)
    whole = path.read_bytes()
    path.write_bytes(b"PK\1\2" + whole[4:])
    with pytest.raises(BadFile, match=r"does not begin with manifest\.json"):
        Bundle(path)


def test_entries_may_have_further_fields(path: Path) -> None:
    """Other programs that write zips add fields, of a file's owner for example."""
    bundle(path)
    with zipfile.ZipFile(path) as old:
        kept = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        for name, data in kept.items():
            info = zipfile.ZipInfo(name)
            info.extra = b"\xfe\xca\4\0more"
            new.writestr(info, data)
    assert Bundle(path).load(config(WIDE), "sm_90")[MAIN][1] == binary(WIDE)


def test_a_directory_is_not_read_before_the_bundle_is_trusted(
    path: Path, monkeypatch, tmp_path: Path
) -> None:
    """Hundreds of thousands of entries take seconds and hundreds of megabytes to list."""
    bundle(path)
    with zipfile.ZipFile(path, "a") as file:
        for number in range(2000):
            file.writestr(str(number), b"")
    with monkeypatch.context() as patch:
        patch.setenv("TILEWRIGHT_HOME", str(tmp_path / "another"))
        patch.setattr(zipfile, "ZipFile", None)
        with pytest.raises(UntrustedBundle):
            Bundle(path)
        with pytest.raises(BadFile, match=r"has a directory of more than [0-9]+ entries"):
            Bundle(path, trusted=True)  # its manifest names a few


def test_a_directory_of_many_entries_is_bounded_by_its_size_in_64_bits(path: Path) -> None:
    bundle(path)
    whole = path.read_bytes()
    end = whole[-22:]
    record = b"PK\6\6" + bytes(36) + (1 << 40).to_bytes(8, "little") + bytes(8)
    path.write_bytes(whole[:-22] + record + b"PK\6\7" + bytes(16) + end)
    with pytest.raises(BadFile, match="has a directory of more than"):
        Bundle(path, trusted=True)


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x" * 300])
def test_a_path_that_cannot_be_is_an_error(name: str) -> None:
    with pytest.raises(StoreError, match="cannot read the bundle"):
        Bundle(name)


def test_a_newer_schema_is_named(path: Path) -> None:
    bundle(path)
    manifest = json.loads(zipfile.ZipFile(path).read("manifest.json"))
    rewritten(path, **{"manifest.json": layout.canonical({**manifest, "schema": 2, "more": 1})})
    with pytest.raises(BadFile, match="newer Tilewright"):
        Bundle(path, trusted=True)


@pytest.mark.parametrize("manifest", [b"", b"{", b"[]", b'{"schema":1}', b"\xff", b"[" * 9999])
def test_a_manifest_that_is_none_is_said(path: Path, manifest: bytes) -> None:
    bundle(path)
    rewritten(path, **{"manifest.json": manifest})
    with pytest.raises(BadFile, match="is not as bundles have it"):
        Bundle(path, trusted=True)


def test_what_is_no_file_is_said(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, says in (("pipe", "regular"), (".", "regular"), ("none", "No such file")):
        with pytest.raises((BadFile, StoreError), match=says):
            Bundle(tmp_path / name, trusted=True)
    (tmp_path / "empty").touch()
    with pytest.raises(BadFile, match="no bundle"):
        Bundle(tmp_path / "empty", trusted=True)


def test_a_manifest_that_names_another_file_is_no_bundle_without_a_table(path: Path) -> None:
    bundle(path, NAMES[:2], table=Table.of([row(gemm(64), WIDE)]))
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"table.twt"', b'"tablf.twt"', 1))
    with pytest.raises(BadFile, match=r"manifest\.json is damaged"):
        Bundle(path, trusted=True)


@pytest.mark.turns(32)
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_any_damage_is_a_typed_error_or_harmless(path: Path, data: st.DataObject) -> None:
    bundle(path, NAMES[:2], table=Table.of([row(gemm(64), WIDE)]))
    whole = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(whole)), st.integers(0, len(whole))))
    path.write_bytes(whole[:cut])
    try:
        found = Bundle(path, trusted=True)
        kernel, code = found.load(config(WIDE), "sm_90")[MAIN]
        assert found.table is not None
    except (BadFile, StoreError, UnknownName, BuildFailed):
        return
    assert code == binary(WIDE) and kernel.name == WIDE


def test_a_file_that_is_replaced_is_still_read(path: Path) -> None:
    """Kernels are read when they are needed, which may be long after the bundle was opened."""
    made = bundle(path)
    write(content(NAMES[:1]), path)
    assert made.load(config(WIDE), "sm_90")[MAIN][1] == binary(WIDE)


def test_forked_readers_do_not_share_a_position(path: Path) -> None:
    script = f"""
import os, sys
from tilewright.bundle import Bundle
from tilewright import ops
made = Bundle({str(path)!r}, trusted=True)
names = made.names("sm_90")
children = []
for child in range(3):
    pid = os.fork()
    if pid == 0:
        for _ in range(200):
            for name in names:
                assert made._binary(made.kernel(name, "sm_90")).decode().startswith("machine code")
        os._exit(0)
    children.append(pid)
sys.exit(any(os.waitpid(pid, 0)[1] for pid in children))
"""
    bundle(path)
    assert subprocess.run([sys.executable, "-c", script], timeout=120).returncode == 0


def test_other_sources_make_a_kernel_stale(path: Path, monkeypatch) -> None:
    made = bundle(path)
    monkeypatch.setattr(bundle_module, "source_digests", lambda config, arch: {MAIN: "0" * 64})
    with pytest.raises(BuildFailed, match=r"other sources.*make the bundle anew"):
        made.load(config(WIDE), "sm_90")


def test_a_name_that_is_no_word_is_refused() -> None:
    with pytest.raises(BadArgument, match="no plain word"):
        layout.kernel_path("../../x", "sm_90")
    assert layout.kernel_at("kernels/sm_90/../../x.json") is None


def test_the_container_is_a_plain_zip() -> None:
    from tilewright.bundle.archive import packed

    with zipfile.ZipFile(io.BytesIO(packed("b", {"a": b"1", "b": b"2"}))) as file:
        assert [i.filename for i in file.infolist()] == ["b", "a"]
        assert {(i.compress_type, i.date_time) for i in file.infolist()} == {
            (zipfile.ZIP_STORED, (1980, 1, 1, 0, 0, 0))
        }
