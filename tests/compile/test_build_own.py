"""What is this user's alone: the signing key, the compiled launcher; and what is not: links and
files that somebody put where ours are expected."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from store_helpers import FILES, make_kernel

from tilewright import files
from tilewright.compile import Store, signing
from tilewright.errors import StoreError
from tilewright.runtime import launcher

OLD = time.time() - 7200


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a key in it, which this process has not read yet."""
    folder = tmp_path / "home"
    monkeypatch.setenv("TILEWRIGHT_HOME", str(folder))
    signing.sign(b"")
    signing._known.cache_clear()
    return folder


def refused() -> str:
    """What is said instead of using the key, for reading and for signing alike."""
    said = []
    for use in (lambda: signing.sign(b""), lambda: signing.signed(b"", b""), signing.signer):
        with pytest.raises(StoreError) as error:
            use()
        said.append(str(error.value))
    assert len(set(said)) == 1
    return said[0]


def repaired(said: str) -> bool:
    """Whether the command at the end of the sentence makes the key usable."""
    assert os.system(said.rpartition(": ")[2]) == 0
    return bool(signing.sign(b""))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_key_that_others_can_read_or_write_is_refused(home: Path, mode: int) -> None:
    (home / "signing-key").chmod(mode)
    said = refused()
    assert f"can be read or written by others (mode {mode:04o})" in said
    assert repaired(said)


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_folder_that_others_can_write_is_refused(home: Path, mode: int) -> None:
    home.chmod(mode)
    said = refused()
    assert said.startswith(f"{home} can be written by others (mode {mode:04o})")
    assert repaired(said)


def test_no_key_is_made_in_a_folder_that_others_can_write(home: Path) -> None:
    (home / "signing-key").unlink()
    home.chmod(0o777)
    assert refused().startswith(f"{home} can be written by others")
    assert not [*home.iterdir()]


@pytest.mark.parametrize("mode", [0o500, 0o755])
def test_a_folder_may_be_read_only_or_readable(home: Path, mode: int) -> None:
    home.chmod(mode)
    assert signing.sign(b"")
    home.chmod(0o700)


def test_a_link_is_refused_also_one_that_leads_nowhere(home: Path) -> None:
    key = home / "signing-key"
    key.rename(home / "other")
    for target in ("other", "nowhere"):
        key.symlink_to(target)
        said = refused()
        assert said.startswith(f"{key} is a link")
        assert repaired(said) and not (home / "nowhere").exists()
        key.unlink()
        signing._known.cache_clear()


def test_the_folder_may_be_a_link_to_one_that_is_sound(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(home)
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "link"))
    assert signing.sign(b"")
    home.chmod(0o777)
    signing._known.cache_clear()
    assert refused().startswith(f"{home} can be written")


@pytest.mark.parametrize(
    ("owner", "me", "denied", "fine"),
    [
        (1000, 1000, files.READ_OR_WRITE, True),
        (1001, 1000, files.READ_OR_WRITE, False),
        (0, 1000, files.READ_OR_WRITE, False),  # who can read root's, if it is this user's too?
        (1000, 0, files.READ_OR_WRITE, False),  # sudo in somebody's home
        (0, 1000, files.WRITE, True),  # a folder of an image, say
        (1000, 0, files.WRITE, False),
    ],
)
def test_owners(
    monkeypatch: pytest.MonkeyPatch, owner: int, me: int, denied: int, fine: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: me)
    status = SimpleNamespace(st_mode=0o100600, st_uid=owner)
    if fine:
        files.check_own(Path("x"), status, denied)
    else:
        with pytest.raises(StoreError, match=r"^x belongs to .* TILEWRIGHT_HOME, or: sudo chown"):
            files.check_own(Path("x"), status, denied)


def test_a_home_is_made_for_one_user_whatever_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the store lies in it, and is written first."""
    writes = (
        lambda: signing.sign(b""),
        lambda: Store().check_writable(),
        lambda: Store().save(make_kernel(), FILES),
    )
    monkeypatch.delenv("TILEWRIGHT_STORE", raising=False)
    for number, write in enumerate(writes):
        home = tmp_path / f"new{number}"
        monkeypatch.setenv("TILEWRIGHT_HOME", str(home))
        before = os.umask(0o002)
        try:
            write()
        finally:
            os.umask(before)
        assert home.stat().st_mode & 0o777 == 0o700
        signing._known.cache_clear()
        assert signing.sign(b"")


# --- the launcher -------------------------------------------------------------------------


def test_a_launcher_that_others_could_have_written_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "home"))
    before = os.umask(0o000)
    try:
        launcher.launcher.__wrapped__()
    finally:
        os.umask(before)
    (built,) = (tmp_path / "home").glob("*/launcher*")
    assert not (built.stat().st_mode | built.parent.stat().st_mode) & 0o077
    for path in (built, built.parent):
        mode = path.stat().st_mode
        path.chmod(mode | 0o020)
        with pytest.raises(StoreError, match=f"^{path} can be written by others"):
            launcher.launcher.__wrapped__()
        path.chmod(mode)
    built.rename(tmp_path / "elsewhere")
    for target in ("elsewhere", "nowhere"):
        built.symlink_to(tmp_path / target)
        with pytest.raises(StoreError, match=f"^{built} is a link"):
            launcher.launcher.__wrapped__()
        built.unlink()


@pytest.mark.turns(8)
def test_the_compiler_sees_no_file_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a header, nor a program of its own, nor itself."""
    for name in ("stdint.h", "string.h"):
        (tmp_path / name).write_text("#error planted\n")
    for name in ("as", "ld", "cc", "gcc"):
        (tmp_path / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/executed\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("TILEWRIGHT_HOME", "relative")
    monkeypatch.setenv("C_INCLUDE_PATH", ":/nowhere")
    monkeypatch.setenv("PATH", f".:{os.environ['PATH']}")
    launcher.launcher.__wrapped__()
    assert list(tmp_path.glob("relative/*/launcher*")) and not (tmp_path / "executed").exists()


# --- a store in a folder that others write ------------------------------------------------


def test_a_link_in_the_place_of_writing_is_refused_and_what_it_leads_to_is_left_alone(
    tmp_path: Path,
) -> None:
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    old = stranger / "tilewright-notes"
    old.write_text("mine")
    os.utime(old, (OLD, OLD))
    store = Store(tmp_path / "store")
    store.path.mkdir()
    (store.path / ".writing").symlink_to(stranger)
    for write in (store.check_writable, lambda: store.save(make_kernel(), FILES)):
        with pytest.raises(StoreError, match=r"\.writing is a link.*run: rm "):
            write()
    assert [*stranger.iterdir()] == [old] and old.read_text() == "mine"


def test_only_this_users_stale_files_are_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(name: str) -> Path:
        path = tmp_path / name
        path.write_text("")
        os.utime(path, (OLD, OLD))
        return path

    stale, named_otherwise = put("tilewright-a"), put("a")
    (tmp_path / "tilewright-new").write_text("")
    (tmp_path / "tilewright-folder").mkdir()
    (tmp_path / "tilewright-link").symlink_to(named_otherwise)
    for name in ("tilewright-folder", "tilewright-link"):
        os.utime(tmp_path / name, (OLD, OLD), follow_symlinks=False)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 12345)
        files.clear_stale(tmp_path)
    assert stale.exists(), "another user's"
    files.clear_stale(tmp_path)
    assert not stale.exists() and len([*tmp_path.iterdir()]) == 4


def test_a_probe_deletes_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    writing = store.path / ".writing"
    writing.mkdir(parents=True)
    (writing / f"probe-{os.getpid()}").write_text("mine")
    store.check_writable()
    assert [path.read_text() for path in writing.iterdir()] == ["mine"]
