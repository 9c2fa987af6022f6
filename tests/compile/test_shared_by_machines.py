"""A store that several machines read, where a user's own store lacks an entry."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from store_helpers import FILES, make_kernel

from tilewright import within
from tilewright.compile import Kernel, SharedStore, Store
from tilewright.compile.manifest import blob_name, entry_name
from tilewright.errors import BadArgument

KEY = make_kernel().key


class Server(http.server.ThreadingHTTPServer):
    """Serves a folder, and notes what it is asked for. moved: answers that it is elsewhere."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[str] = []
        self.moved = self.broken = False
        super().__init__(("127.0.0.1", 0), partial(Handler, directory=str(folder)))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.SimpleHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.server.moved:
            self.send_response(302)
            self.send_header("Location", f"{self.server.url}/elsewhere{self.path}")
            self.end_headers()
        elif self.server.broken:
            self.send_error(500)
        else:
            super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a store that has the kernel."""
    Store(tmp_path / "shared").save(make_kernel(), FILES)
    return tmp_path / "shared"


@pytest.fixture
def server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "*")
    with Server(folder) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def own(tmp_path: Path, where: Path | str, **options: bool) -> Store:
    return Store(tmp_path / "own", shared=SharedStore(where, **options))


def another_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_HOME", str(tmp_path / "another_home"))


def test_an_entry_is_copied_from_a_folder_and_kept(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = own(tmp_path, folder)
    found = store.load(KEY)
    assert isinstance(found, Kernel) and store.read(found, "ptx") == FILES["ptx"]
    assert Store(store.path).load(KEY) == found and Store(store.path).verify() == []
    monkeypatch.setattr(store.shared, "fetch", None)
    assert store.load(KEY) == found, "the own store goes first"


def test_nothing_is_written_to_it(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, written = within.write, []
    monkeypatch.setattr(
        within, "write", lambda root, name, data: written.append(root) or real(root, name, data)
    )
    store = own(tmp_path, folder)
    store.load(KEY)
    store.save(make_kernel("fake_b"), FILES)
    assert set(written) == {store.path}


def test_a_web_server_has_the_same_files(tmp_path: Path, server: Server) -> None:
    found = own(tmp_path, f"{server.url}/").load(KEY)
    assert found is not None and Store(tmp_path / "own").load(KEY) == found
    assert server.asked[0] == f"/{entry_name(KEY)}" and len(server.asked) == 2 + len(FILES)


def test_a_lacking_entry_is_asked_for_once(tmp_path: Path, server: Server) -> None:
    store, other = own(tmp_path, server.url), make_kernel("fake_b").key
    assert [store.load(other) for _ in range(3)] == [None] * 3
    assert server.asked == [f"/{entry_name(other)}"]
    assert store.load(KEY) is not None


def test_what_another_user_built_is_used_only_if_it_is_trusted(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    another_user(monkeypatch, tmp_path)
    assert own(tmp_path, server.url).load(KEY) is None
    assert "was not made by this user" in caplog.text
    assert not any("blobs" in path for path in server.asked)
    found = own(tmp_path, server.url, trusted=True).load(KEY)
    assert found is not None and Store(tmp_path / "own").load(KEY) == found, "signed on arrival"


@pytest.mark.parametrize("data", [b"\x7fELF machine CODE", b"\x7fELF", b"\x7fELF machine code+"])
def test_an_altered_file_is_left_out(tmp_path: Path, folder: Path, caplog, data: bytes) -> None:
    digest = Store(folder).load(KEY).blobs["cubin"].digest  # type: ignore[union-attr]
    (folder / blob_name(digest)).write_bytes(data)
    store = own(tmp_path, folder)
    assert store.load(KEY) is None and not (tmp_path / "own").exists()
    assert str(folder / blob_name(digest)) in caplog.text


def test_a_manifest_of_another_key_is_left_out(tmp_path: Path, folder: Path, caplog) -> None:
    other = make_kernel("fake_b").key
    (folder / entry_name(other)).parent.mkdir(exist_ok=True)
    (folder / entry_name(KEY)).rename(folder / entry_name(other))
    assert own(tmp_path, folder, trusted=True).load(other) is None
    assert "is the manifest of another key" in caplog.text


@pytest.mark.parametrize("fault", ["moved", "broken", "gone"])
def test_a_server_that_fails_is_reported_once_and_asked_no_more(
    tmp_path: Path, server: Server, caplog, fault: str
) -> None:
    url = server.url
    if fault == "gone":
        url = "http://127.0.0.1:9"  # discards all, where anything listens there
    else:
        setattr(server, fault, True)
    store = own(tmp_path, url)
    assert [store.load(key) for key in (KEY, make_kernel("fake_b").key, KEY)] == [None] * 3
    assert caplog.text.count("is read no more") == 1
    assert len(server.asked) == (fault != "gone")


@pytest.mark.parametrize(
    ("where", "trusted", "message"),
    [
        ("ftp://host/kernels", False, "neither a folder nor an http"),
        ("file:///kernels", False, "neither a folder nor an http"),
        ("https://", False, "neither a folder nor an http"),
        ("http://[kernels", False, "shared store"),
        ("http://host/kernels", True, "trusted and not encrypted"),
    ],
)
def test_what_cannot_be_read_or_trusted_is_refused(where: str, trusted: bool, message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        SharedStore(where, trusted)


def test_the_environment_names_it(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_STORE", str(tmp_path / "own"))
    assert Store().shared is None
    monkeypatch.setenv("TILEWRIGHT_SHARED_STORE", str(folder))
    assert Store().load(KEY) is not None
    assert Store(tmp_path / "named").shared is None
    another_user(monkeypatch, tmp_path)
    monkeypatch.setenv("TILEWRIGHT_STORE", str(tmp_path / "another"))
    assert Store().load(KEY) is None
    monkeypatch.setenv("TILEWRIGHT_SHARED_STORE_TRUSTED", "1")
    assert Store().load(KEY) is not None
