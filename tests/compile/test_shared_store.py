"""A store in a folder that other users write to: they change nothing of this user's outside it.

For two seconds a second user races this one for the names of files and folders;
``TILEWRIGHT_FUZZ=1`` races for a minute. Each test says how many saves it made.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import pytest
from store_helpers import FILES, make_kernel

from tilewright.canonical import sha256
from tilewright.compile import Store
from tilewright.errors import StoreError
from tilewright.files import write_whole

SECONDS = 60 if int(os.environ.get("TILEWRIGHT_FUZZ", "0")) else 2
STRANGER = 65534
MINE = b"nobody else may change this"

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as a second user")


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that everybody can write to, on a path that everybody can search."""
    folder = Path(tempfile.mkdtemp(prefix="tilewright-test-"))
    folder.chmod(0o755)
    store = folder / "public"
    store.mkdir()
    store.chmod(0o777)
    yield store
    shutil.rmtree(folder)


@pytest.fixture
def mine(public: Path) -> Path:
    """This user's own folder, with a file."""
    folder = public.parent / "mine"
    folder.mkdir()
    (folder / "file").write_bytes(MINE)
    (folder / "file").chmod(0o600)
    return folder


def untouched(mine: Path) -> bool:
    (file,) = mine.iterdir()
    status = file.stat()
    return file.read_bytes() == MINE and stat.S_IMODE(status.st_mode) == 0o600


def as_stranger(action: Callable[[], None]) -> int:
    """Run `action` as a second user in a child; returns the child's ID."""
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            os.umask(0)
            action()
        finally:
            os._exit(0)
    return child


@contextmanager
def racing(attack: Callable[[], None]) -> Iterator[None]:
    def again_and_again() -> None:
        while True:
            with suppress(OSError):
                attack()

    child = as_stranger(again_and_again)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def link_files_being_written(folder: Path, target: Path) -> None:
    """Replace what is being written in `folder` by links to `target`."""
    with os.scandir(folder) as found:
        names = [one.path for one in found if one.name.startswith("tilewright-")]
    for name in names:
        os.unlink(name)  # noqa: PTH108 - as quick as can be
        os.symlink(target, name)  # noqa: PTH211


def save_and_count(save: Callable[[int], None], mine: Path) -> tuple[int, int]:
    """Save again and again until the time is over; returns how many saves were made, refused."""
    made = refused = 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end or made < 20:
        try:
            save(made)
            made += 1
        except StoreError:
            refused += 1
        assert untouched(mine), f"overwritten after {made} saves"
    return made, refused


@pytest.mark.turns(24)
@as_root
def test_a_second_user_who_races_for_a_file_wins_nothing(public: Path, mine: Path) -> None:
    with racing(lambda: link_files_being_written(public, mine / "file")):
        made, refused = save_and_count(
            lambda n: write_whole(public / f"{n % 10}.json", b"content"), mine
        )
    print(f"{made} saves made, {refused} refused, 0 written outside")
    assert made


@pytest.mark.turns(24)
@as_root
def test_a_second_user_who_races_for_a_stores_folders_wins_nothing(
    public: Path, mine: Path
) -> None:
    """The second user puts folders of their own, and links to this user's, in the place of
    `.writing` and of every other folder of the store."""
    writing, random = public / ".writing", Random(1)
    keys = [sha256(bytes([n])) for n in range(8)]
    places = [".writing", "entries", "blobs", *(f"entries/{key[:2]}" for key in keys)]
    places += [f"blobs/{sha256(data)[:2]}" for data in FILES.values()]

    def attack() -> None:
        place = public / random.choice([".writing", random.choice(places)])
        kept, planted = (public / f"{name}-{random.randrange(10**9)}" for name in "ab")
        with suppress(OSError):
            place.rename(kept)
        if random.randrange(2):
            place.symlink_to(mine)
        else:
            place.mkdir(parents=True)
            for name in ("tilewright-x", *(f"{key}.json" for key in keys)):
                (place / name).symlink_to(mine / "file")
        for _ in range(random.randrange(1000)):
            with suppress(OSError):
                link_files_being_written(writing, mine / "file")
        place.rename(planted)
        with suppress(OSError):
            kept.rename(place)
        time.sleep(random.random() / 10)  # saves succeed meanwhile

    store = Store(public)
    store.save(make_kernel(), FILES)
    for folder in public.rglob("*"):
        if folder.is_dir() and folder != writing:
            folder.chmod(0o777)

    def save(count: int) -> None:
        store.save(make_kernel(f"fake_{count}", keys[count % 8]), {**FILES, "cubin": b"%d" % count})

    with racing(attack):
        made, refused = save_and_count(save, mine)
    print(f"{made} saves made, {refused} refused, 0 written outside")
    assert made


# --- without a race --------------------------------------------------------------------------


@as_root
def test_the_folder_of_a_second_user_is_refused(public: Path) -> None:
    os.waitpid(as_stranger((public / ".writing").mkdir), 0)
    store = Store(public)
    for write in (store.check_writable, lambda: store.save(make_kernel(), FILES)):
        with pytest.raises(StoreError, match=r"\.writing belongs to .*chmod g\+ws"):
            write()
    assert [*public.iterdir()] == [public / ".writing"] and [*(public / ".writing").iterdir()] == []


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702])
def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    store = Store(tmp_path)
    (tmp_path / ".writing").mkdir()
    (tmp_path / ".writing").chmod(mode)
    for write in (store.check_writable, lambda: store.save(make_kernel(), FILES)):
        with pytest.raises(StoreError, match=r"written by others .* run: chmod go-w"):
            write()
    (tmp_path / ".writing").chmod(mode & ~0o022)
    assert store.save(make_kernel(), FILES).blobs


@pytest.mark.parametrize("place", ["entries", "blobs", "entries/*", "blobs/*"])
def test_a_link_in_the_place_of_a_folder_is_not_written_through(tmp_path: Path, place: str) -> None:
    store, elsewhere = Store(tmp_path / "store"), tmp_path / "elsewhere"
    saved = store.save(make_kernel(), FILES)
    folders = [*store.path.glob(place)]
    for folder in folders:
        folder.rename(tmp_path / f"real-{folder.name}")
        folder.symlink_to(elsewhere)
    elsewhere.mkdir()
    kept = [elsewhere / f"{saved.key}.json", elsewhere / saved.key[:2] / f"{saved.key}.json"]
    for file in kept:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(MINE)
    with pytest.raises(StoreError, match=r"is a link.*run: rm "):
        store.save(saved, {**FILES, "cubin": b"other"})
    if "entries" in place:
        with pytest.raises(StoreError, match=r"is a link.*run: rm "):
            store.remove(saved.key)
    assert sorted(p for p in elsewhere.rglob("*") if p.is_file()) == sorted(kept)
    assert all(file.read_bytes() == MINE for file in kept)


@as_root
def test_the_members_of_a_group_share_a_store(public: Path) -> None:
    """The group's folder has the set-group-ID bit. Each user's umask lets nobody else write."""
    os.chown(public, -1, STRANGER)
    public.chmod(0o2775)
    store = Store(public, trusted=True)
    names = [f"fake_{n}" for n in range(3)]
    saved = store.save(make_kernel(names[0]), FILES)

    def save() -> None:
        os.umask(0o022)
        os.environ["TILEWRIGHT_HOME"] = str(home)
        store.check_writable()
        store.save(make_kernel(names[1]), FILES)
        store.save(make_kernel(names[0]), {**FILES, "cubin": b"other"})

    home = public.parent / "home"
    home.mkdir()
    os.chown(home, STRANGER, STRANGER)
    os.waitpid(as_stranger(save), 0)
    store.save(make_kernel(names[2]), FILES)
    assert len([*store.entries()]) == 3 and store.verify() == []
    assert store.load(saved.key) != saved
    assert {p.name for p in public.iterdir()} == {
        "entries",
        "blobs",
        ".writing-0",
        f".writing-{STRANGER}",
    }
    assert {stat.S_IMODE(p.stat().st_mode) for p in public.glob(".writing-*")} <= {0o700, 0o2700}
