from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_helpers import FILES, make_kernel

from tilewright import home
from tilewright.canonical import canonical, sha256
from tilewright.compile import Store, UntrustedEntry, signing
from tilewright.compile.manifest import parse_manifest
from tilewright.compile.store import default_store_path
from tilewright.errors import BadArgument, BadFile, StoreError, UnknownName


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def paths(store: Store, pattern: str) -> list[Path]:
    return sorted(p for p in store.path.glob(pattern) if p.is_file())


def blob_path(store: Store, data: bytes) -> Path:
    return store.path / "blobs" / sha256(data)[:2] / sha256(data)


def rewrite(path: Path, **changes: Any) -> None:
    path.write_bytes(canonical({**json.loads(path.read_bytes()), **changes}))


def test_round_trip(store: Store) -> None:
    assert store.load(make_kernel().key) is None and not store.path.exists()
    saved = store.save(make_kernel(), FILES)
    assert Store(store.path).load(saved.key) == saved
    assert store.read(saved) == FILES["cubin"] and store.read(saved, "ptx") == FILES["ptx"]
    assert list(store.entries()) == [saved] and store.verify() == []
    assert paths(store, ".writing/*") == []
    with pytest.raises(UnknownName, match="sass"):
        store.read(saved, "sass")
    with pytest.raises(BadArgument, match="build key"):
        store.load("../../../etc/passwd")


def test_manifests_carry_no_time_and_no_place(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        Store(tmp_path / folder).save(make_kernel(), FILES)
    one, two = (sorted((tmp_path / f).rglob("*")) for f in ("one", "two"))
    assert [p.read_bytes() for p in one if p.is_file()] == [
        p.read_bytes() for p in two if p.is_file()
    ]


def test_remove(store: Store) -> None:
    saved = store.save(make_kernel(), FILES)
    assert store.remove(saved.key) and not store.remove(saved.key)
    assert store.load(saved.key) is None and paths(store, "entries/*/*") == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda p: p.write_bytes(p.read_bytes()[:-1]),
        lambda p: p.write_bytes(b"\x7fELF machine CODE"),
        lambda p: p.write_bytes(p.read_bytes() + b"\0"),
        lambda p: p.write_bytes(b""),
        lambda p: p.unlink(),
        lambda p: (p.unlink(), p.mkdir()),
        lambda p: (p.unlink(), os.mkfifo(p)),
    ],
)
def test_a_damaged_blob_is_never_used(
    store: Store, damage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    saved = store.save(make_kernel(), FILES)
    damage(blob_path(store, FILES["cubin"]))
    with caplog.at_level(logging.WARNING):
        assert store.load(saved.key) is None
    assert "damaged" in caplog.text and len(store.verify()) == 1
    with pytest.raises(BadFile):
        store.read(saved)


def test_a_damaged_blob_is_mended_by_saving_again(store: Store) -> None:
    saved = store.save(make_kernel(), FILES)
    blob_path(store, FILES["cubin"]).write_bytes(b"short")
    assert store.save(make_kernel(), FILES) == saved
    assert store.load(saved.key) == saved


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_manifest_counts_as_missing(store: Store, content: bytes) -> None:
    saved = store.save(make_kernel(), FILES)
    paths(store, "entries/*/*.json")[0].write_bytes(content)
    assert store.load(saved.key) is None and len(store.verify()) == 1
    assert list(store.entries()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"num_warps": "4"},
        {"num_warps": 0},
        {"shared": -1},
        {"shared": 1 << 50},
        {"binary": "exe"},
        {"extra": 1},
        {"blobs": {}},
        {"blobs": {"cubin": {"digest": "../" * 20 + "etc", "size": 1}}},
        {"blobs": {"cubin": {"digest": "a" * 64 + "\n", "size": 1}}},
        {"resources": None},
        {"key": "0" * 64},
    ],
)
def test_a_malformed_manifest_is_refused_even_when_trusted(
    store: Store, changes: dict[str, Any]
) -> None:
    saved = store.save(make_kernel(), FILES)
    rewrite(paths(store, "entries/*/*.json")[0], **changes)
    assert Store(store.path, trusted=True).load(saved.key) is None


def test_an_altered_manifest_is_not_trusted(store: Store) -> None:
    saved = store.save(make_kernel(), FILES)
    rewrite(paths(store, "entries/*/*.json")[0], shared=2048)
    with pytest.raises(UntrustedEntry, match="--trust-store"):
        store.load(saved.key)


def test_a_forged_signature_is_not_trusted(store: Store) -> None:
    saved = store.save(make_kernel(), FILES)
    (signature,) = paths(store, "entries/*/*.sig")
    genuine = signature.read_bytes()
    for forged in (b"", b"0" * 64, genuine[:-1], genuine + b"0", b"\xff" * 64):
        signature.write_bytes(forged)
        with pytest.raises(UntrustedEntry):
            store.load(saved.key)
    signature.unlink()
    with pytest.raises(UntrustedEntry):
        store.load(saved.key)


def test_one_entrys_signature_does_not_serve_another(store: Store) -> None:
    a, b = (store.save(make_kernel(name), FILES) for name in ("fake_a", "fake_b"))
    manifest = {k: next(store.path.glob(f"entries/*/{k}.json")) for k in (a.key, b.key)}
    signature = {k: next(store.path.glob(f"entries/*/{k}.*.sig")) for k in (a.key, b.key)}
    manifest[b.key].write_bytes(manifest[a.key].read_bytes())
    signature[b.key].write_bytes(signature[a.key].read_bytes())
    assert store.load(b.key) is None  # signed by us, but the manifest of another key


def test_a_strangers_store_needs_explicit_trust(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = store.save(make_kernel(), FILES)
    for owner in ("nobody", "somebody"):  # without a secret of one's own, and with
        monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / owner))
        if owner == "somebody":
            signing.sign(b"")
        with pytest.raises(UntrustedEntry, match="not made by this user"):
            store.load(saved.key)
        assert list(store.entries()) == []
    trusting = Store(store.path, trusted=True)
    assert trusting.load(saved.key) == saved
    blob_path(store, FILES["cubin"]).write_bytes(b"\x7fELF machine CODE")
    assert trusting.load(saved.key) is None  # trusted is not unchecked


def test_two_users_can_sign_one_entry(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = store.save(make_kernel(), FILES)
    first = os.environ["TILEWRIGHT_HOME"]
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "second"))
    store.save(make_kernel(), FILES)
    assert store.load(saved.key) == saved
    monkeypatch.setenv("TILEWRIGHT_HOME", first)
    assert store.load(saved.key) == saved


def test_the_secret_is_private_and_checked(store: Store) -> None:
    saved = store.save(make_kernel(), FILES)
    path = home.data() / "signing-key"
    assert path.stat().st_mode & 0o777 == 0o600 and len(path.read_bytes()) == 32
    assert [p.name for p in home.data().iterdir()] == ["signing-key"]
    path.write_bytes(b"short")
    signing._known.cache_clear()
    with pytest.raises(StoreError, match="damaged"):
        store.load(saved.key)


@pytest.mark.parametrize("call", ["fsync", "mkstemp", "replace"])
def test_a_full_disk_is_one_clear_error(
    store: Store, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    saved = store.save(make_kernel("fake_a"), FILES)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fail(*args: Any, **kwargs: Any) -> None:
        raise full

    with monkeypatch.context() as patch:
        patch.setattr(tempfile if call == "mkstemp" else os, call, fail)
        with pytest.raises(StoreError, match=r"No space left on device; free some space"):
            store.save(make_kernel("fake_b"), {**FILES, "cubin": b"new"})
    assert paths(store, ".writing/*") == [] and store.verify() == []
    assert list(store.entries()) == [saved]


def test_a_really_full_disk(tmp_path: Path) -> None:
    """As above on a file system of 64 KiB, where this user may mount one."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    try:
        if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
            pytest.skip("may not mount a tmpfs here")
    except OSError:
        pytest.skip("no mount command here")
    try:
        store = Store(place / "store")
        saved = store.save(make_kernel("fake_a"), FILES)
        with pytest.raises(StoreError, match="No space left"):
            store.save(make_kernel("fake_b"), {**FILES, "cubin": bytes(1 << 20)})
        assert list(store.entries()) == [saved] and store.verify() == []
    finally:
        subprocess.run(["umount", str(place)], check=True)


READ_ONLY = """
import ctypes, sys
sys.path[:0] = sys.argv[2:]
from store_helpers import *
from tilewright.compile import Store
from tilewright.errors import StoreError
store = Store(sys.argv[1])
(kernel,) = store.entries()
assert store.load(kernel.key) == kernel and store.read(kernel) == FILES["cubin"]
for action in (store.check_writable, lambda: store.save(make_kernel("fake_b"), FILES)):
    try:
        action()
    except StoreError as error:
        assert "TILEWRIGHT_STORE" in str(error) and sys.argv[1] in str(error), error
    else:
        raise SystemExit("it was writable")
"""


def drop_root() -> None:
    """Make the next program heed permissions even when started by root."""
    import ctypes

    drop_from_bounding_set = 24
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        ctypes.CDLL(None).prctl(drop_from_bounding_set, capability, 0, 0, 0)


def test_a_read_only_store_is_usable(store: Store) -> None:
    store.save(make_kernel(), FILES)
    folders = [store.path, *(p for p in store.path.rglob("*") if p.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        subprocess.run(
            [sys.executable, "-c", READ_ONLY, str(store.path), *sys.path],
            check=True,
            preexec_fn=drop_root,
        )
    finally:
        for folder in folders:
            folder.chmod(0o755)


def test_stale_temporary_files_go(store: Store) -> None:
    store.save(make_kernel(), FILES)
    old, new, other = (
        store.path / ".writing" / name for name in ("tilewright-old", "tilewright-new", "other")
    )
    for path in (old, new, other):
        path.write_bytes(b"left by a killed builder")
    for path in (old, other):
        os.utime(path, (0, 0))
    store.check_writable()
    assert not old.exists() and new.exists() and other.exists()


def test_default_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_STORE", str(tmp_path / "s"))
    assert default_store_path() == tmp_path / "s" == Store().path
    monkeypatch.delenv("TILEWRIGHT_STORE")
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    assert default_store_path() == tmp_path / "home" / "store"
    monkeypatch.delenv("TILEWRIGHT_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_store_path() == tmp_path / "tilewright" / "store"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@pytest.mark.turns(32)
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_manifest_can_do_worse_than_badfile(data: st.DataObject, tmp_path: Path) -> None:
    store = Store(tmp_path / "fuzz")
    store.save(make_kernel(), FILES)
    fields = json.loads(paths(store, "entries/*/*.json")[0].read_bytes())
    where = fields
    while True:
        name = data.draw(st.sampled_from(sorted(where)))
        if not isinstance(where[name], dict) or data.draw(st.booleans()):
            break
        where = where[name]
    where[name] = data.draw(JSON)
    try:
        parse_manifest(canonical(fields), Path("entry.json"))
    except BadFile as error:
        assert "entry.json" in str(error)
