"""A Ray cluster's devices in the queue: two raylets on this machine, workers that interpret."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import planted
import pytest
from gemm_cases import config
from test_tune_workers import QUICK, SIZES, descendants, hurry, task, until_gone
from tune_cases import CONFIGS, PROBLEMS

from patience import LIMIT_SECONDS
from tilewright import GemmProblem, ops
from tilewright.arch import Device, arch, device
from tilewright.child import ChildDied
from tilewright.compile import Store, build
from tilewright.errors import BadArgument, NoCluster
from tilewright.measure import cluster
from tilewright.measure.crew import Crew, Task
from tilewright.measure.devices import gpus
from tilewright.measure.groups import groups
from tilewright.measure.measurement import Measurement
from tilewright.measure.places import parse
from tilewright.measure.results import Results
from tilewright.measure.station import OutOfOrder
from tilewright.measure.sweep import plan, sweep

SWEPT = (*PROBLEMS, *(GemmProblem(16 * n, 48, 64) for n in range(1, 4)))
HERE = str(Path(__file__).parent)
NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}
QUICK_TO_NOTICE = {"health_check_period_ms": 500, "health_check_failure_threshold": 4}
"""That a node is lost, which Ray otherwise does after half a minute."""


@pytest.fixture(scope="module")
def head():
    """A cluster of one node."""
    pytest.importorskip("ray")
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (HERE, os.environ.get("PYTHONPATH")))))
    patch.setenv("RAY_gcs_server_request_timeout_seconds", str(int(LIMIT_SECONDS)))
    import ray
    import ray._private.node
    from ray.cluster_utils import Cluster

    # The 30 seconds that Ray gives a node to start are in its code: a clock that runs slower.
    slow = SimpleNamespace(**vars(time) | {"monotonic": lambda: time.monotonic() / 30})
    patch.setattr(ray._private.node, "time", slow)
    patch.setattr(Cluster._wait_for_node, "__defaults__", (LIMIT_SECONDS,))
    folder = Path(tempfile.mkdtemp(prefix="tw"))  # short: it has sockets
    inside = folder / "ray"  # where Ray writes a cluster's address down, and does not make it
    inside.mkdir()
    patch.setenv("RAY_TMPDIR", str(folder))
    before = descendants(os.getpid())
    made = Cluster(shutdown_at_exit=False)
    own = {"temp_dir": str(inside), "include_dashboard": False}
    try:
        made.add_node(**NODE, **own, _system_config=QUICK_TO_NOTICE)
        patch.setenv("RAY_ADDRESS", made.address)
        for limit in ("JOIN_SECONDS", "GRACE_SECONDS", "CONNECT_SECONDS"):
            patch.setattr(cluster, limit, LIMIT_SECONDS)
        yield made
    finally:
        started = descendants(os.getpid()) - before
        ray.shutdown()
        made.shutdown()
        patch.undo()
        shutil.rmtree(folder)
    until_gone(started)


@pytest.fixture
def second(head):
    """Another node of the cluster."""
    node = head.add_node(**NODE)
    yield node
    if node.any_processes_alive():
        head.remove_node(node)


def raylet(node) -> int:
    return node.all_processes["raylet"][0].process.pid


def swept(words: str, folder: Path, step: Callable[[int], None] | None = None) -> list[Measurement]:
    """What a sweep of the cases leaves in its results, each thing once. step: called with how many
    are measured, after each."""
    store = Store(folder / "store")
    devices, crew = groups(words, store, QUICK, timeout=LIMIT_SECONDS)

    @contextlib.contextmanager
    def measuring():
        yield lambda m, done, total: step(done) if step else None

    with Results(folder, write=True) as results:
        this = plan(devices, {"sm_90": CONFIGS}, {"sm_90": SWEPT}, QUICK, results.keys())
        outcome = sweep(this, results, store, crew, measuring=measuring)
        measured = [*results.measurements()]
    assert sum(outcome.statuses.values()) == this.total
    assert len(measured) == len(CONFIGS) * len(SWEPT) == len({m.key for m in measured})
    return measured


def statuses(measured: list[Measurement]) -> set[tuple[str, object, str]]:
    return {(m.kernel, m.problem, m.status) for m in measured}


@pytest.mark.turns(48, of="ray")
def test_two_nodes_measure_what_one_machine_does(second, tmp_path):
    there, here = swept("ray:cpu", tmp_path / "there"), swept("cpu", tmp_path / "here")
    assert statuses(there) == statuses(here)
    assert {m.key for m in there} == {m.key for m in here}, "as if measured here"
    places = parse("ray:cpu")
    assert [p.uuid for p in places] == ["cpu", "cpu"] and len({p.machine for p in places}) == 2


@pytest.mark.turns(48, of="ray")
def test_a_node_executes_nothing_of_the_folder_that_the_command_is_called_in(head, tmp_path):
    """Ray itself would have its workers import from there before anything else."""
    folder = tmp_path / "planted"
    folder.mkdir()
    for name in ("tilewright", "msgspec", "numpy", "typer"):
        text = f"open({str(tmp_path / 'executed')!r}, 'a').write({name!r} + ' ')\n"
        (folder / f"{name}.py").write_text(text)
    script = tmp_path / "script.py"
    script.write_text(
        "from tilewright.measure.places import parse\nprint([p.uuid for p in parse('ray:cpu')])\n"
    )
    ran = subprocess.run(
        [sys.executable, str(script)], cwd=folder, capture_output=True, text=True, check=False
    )
    assert not (tmp_path / "executed").exists(), (tmp_path / "executed").read_text()
    assert ran.stdout.endswith("['cpu']\n"), ran.stderr


@pytest.mark.turns(48, of="ray")
def test_a_node_that_is_killed_midway_costs_nothing_and_no_kernel_is_blamed(
    second, tmp_path, caplog, capsys
):
    killed: set[int] = set()

    def kill(done: int) -> None:
        if done == 5:
            killed.update(descendants(raylet(second)) | {raylet(second)})
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    measured = swept("ray:cpu", tmp_path, kill)
    assert len(killed) >= 3, "the raylet, the actor and its worker"
    assert {(m.status, m.attempts) for m in measured} <= {("ok", 1), ("unsupported", 1)}
    assert second.node_id[:8] in caplog.text and "its node was lost" in caplog.text
    assert "node" not in capsys.readouterr().out, "which is for the command's own words"


@pytest.mark.turns(48, of="ray")
def test_an_actor_that_is_killed_is_replaced(head, tmp_path, caplog):
    def kill(done: int) -> None:
        if done == 5:
            (actor,) = (
                pid
                for pid in descendants(raylet(head.head_node))
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::Seat")
            )
            os.kill(actor, signal.SIGKILL)

    measured = swept("ray:cpu", tmp_path, kill)
    assert {m.status for m in measured} <= {"ok", "unsupported"}
    assert "not used any more" not in caplog.text


@pytest.mark.turns(48, of="ray")
def test_planted_kernels_get_their_status_from_the_node(head, tmp_path, monkeypatch):
    tiles = {tile: planted.INTERPRETED[tile] for tile in ((16, 16), (16, 32), (64, 64), (64, 128))}
    hurry(monkeypatch)
    with Crew(parse("ray:cpu"), Store(tmp_path), QUICK, timeout=LIMIT_SECONDS) as crew:
        measured = {m.kernel: m for m in crew.run([task(tile) for tile in tiles])}
    assert {task(tile).kernel: status for tile, status in tiles.items()} == {
        kernel: m.status for kernel, m in measured.items()
    }
    assert "SIGABRT" in measured[task((16, 16)).kernel].reason
    assert "did not end within 1 s" in measured[task((16, 32)).kernel].reason


@pytest.mark.turns(48, of="ray")
def test_who_wants_no_more_ends_the_workers_at_once_and_may_go_on(head, tmp_path):
    with Crew(parse("ray:cpu"), Store(tmp_path), QUICK, timeout=LIMIT_SECONDS) as crew:
        hanging = crew.run([task((64, 64)), task((16, 32), SIZES[1])])
        assert next(hanging).status == "ok"
        hanging.close()
        assert [m.status for m in crew.run([task((64, 128))])] == ["ok"]


@pytest.mark.turns(48, of="ray")
def test_nodes_that_cannot_be_used_are_said(head, monkeypatch):
    with pytest.raises(NoCluster, match="no node of the Ray cluster has a GPU"):
        parse("ray")
    with pytest.raises(BadArgument, match="ray or ray:cpu"):
        parse("ray:2")
    monkeypatch.setattr(cluster, "code", lambda: "another")
    with pytest.raises(NoCluster, match=r"1 CPU of .*: its tilewright or triton differs"):
        parse("ray:cpu")
    monkeypatch.setattr(cluster, "JOIN_SECONDS", 0.0)
    with pytest.raises(NoCluster, match=r"1 CPU of .*: others have it"):
        parse("ray:cpu")


@pytest.mark.skipif(
    any(Path(p).exists() for p in ("/dev/nvidiactl", "/dev/kfd")), reason="there are GPUs"
)
@pytest.mark.turns(48, of="ray")
def test_gpus_that_a_node_only_claims_to_have_are_said(head):
    node = head.add_node(**NODE, num_gpus=2)
    with pytest.raises(NoCluster, match=r"can be used: 2 GPUs of .*: no "):
        parse("ray")
    head.remove_node(node)


@pytest.mark.gpu
@pytest.mark.turns(48, of="ray")
def test_a_nodes_gpu_measures_what_is_sent_to_it(head, tmp_path):
    node = head.add_node(**NODE, num_gpus=1)
    (place,) = parse("ray")
    assert place.device is not None
    assert place.uuid in {p.uuid for p in gpus()} and place.machine
    problem = GemmProblem(512, 512, 512)
    this = arch(place.device.arch)
    one = ops.family("gemm").default_space(problem, this).expand(this).configs[0]
    store = Store(tmp_path)
    assert not build([(one, this.name)], store=store, workers=1).failures
    with Crew([place], store, QUICK, timeout=LIMIT_SECONDS) as crew:
        (measured,) = crew.run([Task(one.name, problem, this.name)])
    assert measured.status == "ok" and measured.device == place.device and measured.samples_us
    head.remove_node(node)


# --- without a cluster ------------------------------------------------------------------------


class Near:
    """A `_Link` to an actor in this process."""

    def __init__(self, seat: cluster.Seat) -> None:
        self.seat = seat

    def ask(self, stop, seconds, method, *words):
        return getattr(self.seat, method)(*words)

    def tell(self, method, *words, wait=False):
        getattr(self.seat, method)(*words)


class Echo(NamedTuple):
    """A GPU whose worker answers with what it is asked."""

    uuid: str = "GPU-a"
    device: Device = device("h200_sxm")

    def start(self, store: Store) -> Echo:
        return self

    def request(self, message, *, timeout):
        return message, []

    def interrupt(self) -> None:
        pass


@pytest.mark.turns(16)
def test_kernels_that_a_node_lacks_are_sent_once_and_signed_there(tmp_path, monkeypatch):
    one = config("sm_90", tile_m=64, tile_n=64, tile_k=64, num_warps=4)
    here = Store(tmp_path / "here")
    (built,) = build([(one, "sm_90")], store=here, workers=1).results
    assert built.kernel is not None
    key, there = built.kernel.key, tmp_path / "there"
    seat = cluster.Seat("GPU", "")
    seat._place = Echo()
    worker = cluster._RemoteProcess(Near(seat), here)

    def ask(**message: object) -> dict:
        return worker.request(message, timeout=1)[0]

    opening = {"do": "open", "store": os.fspath(here.path), "trusted": True}
    assert ask(**opening) == opening, "a folder that the node sees is used as it is"
    monkeypatch.setenv("TILEWRIGHT_STORE", os.fspath(there))
    elsewhere = here.path.rename(tmp_path / "elsewhere")
    assert ask(**opening) == {**opening, "store": os.fspath(there), "trusted": False}
    assert ask(do="verify", kernel=one.name, build=key)["build"] == "", (
        "nobody has it; the worker says so"
    )
    elsewhere.rename(here.path)
    assert ask(do="verify", kernel=one.name, build=key)["build"] == key
    sent = Store(there).load(key)
    assert sent == built.kernel == here.load(key)
    assert Store(there).read(sent) == here.read(sent)
    monkeypatch.setattr(worker, "_send", None)
    assert ask(do="verify", kernel=one.name, build=key)["build"] == key, "not sent again"
    library = ask(do="verify", kernel="vendor.torch.mm", build="cublas 1.0")
    assert library["status"] == "unsupported" and "not cublas 1.0" in library["reason"]
    worker.kill()
    with pytest.raises(ChildDied):
        ask(**opening)


@pytest.mark.turns(12)
def test_a_node_that_cannot_store_kernels_is_out_of_order(tmp_path, monkeypatch):
    one = config("sm_90", tile_m=64, tile_n=64, tile_k=64, num_warps=4)
    here = Store(tmp_path / "here")
    (built,) = build([(one, "sm_90")], store=here, workers=1).results
    (tmp_path / "file").touch()
    monkeypatch.setenv("TILEWRIGHT_STORE", str(tmp_path / "file" / "store"))
    seat = cluster.Seat("GPU", "")
    seat._place = Echo()
    worker = cluster._RemoteProcess(Near(seat), here)
    worker.request({"do": "open", "store": "/nowhere", "trusted": False}, timeout=1)
    with pytest.raises(OutOfOrder, match=r"cannot store kernels: .*file"):
        worker.request({"do": "verify", "kernel": one.name, "build": built.kernel.key}, timeout=1)


def test_without_ray_an_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(NoCluster, match=r"pip install 'tilewright\[ray\]'"):
        groups("ray", Store(), QUICK, timeout=60)


def test_ray_is_imported_only_when_asked_for():
    script = (
        "import sys, tilewright.cli.sweep, tilewright.measure.groups, tilewright.measure.cluster;"
        "assert 'ray' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.turns(48, of="ray")
def test_a_cluster_that_does_not_answer_is_said_soon(monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(NoCluster, match=f"answers at RAY_ADDRESS={address} .*refused"):
        parse("ray")
