"""The devices of a Ray cluster. No other module knows of Ray.

Each device has an actor (`Seat`) on its node. The actor holds the same worker process as a device
of this machine would, and passes questions and answers on, so a fault is detected where it happens
and gets the same status. The same `Station`, on this machine, asks the questions. Each answer is in
the results before the next question, and nothing is kept in Ray.

An actor that is lost while its node lives is replaced, like a worker that somebody killed. If a
node is lost, its places are out of order (`OutOfOrder`), and no kernel is blamed. The next call of
`places` finds nodes that join.

A node must have this machine's code (`code`), because both work out a kernel's build key from it.
torch and the driver may differ; they are part of each place's environment.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from tilewright import ops
from tilewright.canonical import canonical, sha256
from tilewright.child import ChildDied, ChildTimeout, Message, import_path
from tilewright.compile import Store, part_keys
from tilewright.compile.kernel import to_data
from tilewright.compile.key import compiler_digest
from tilewright.compile.manifest import parse_manifest
from tilewright.errors import BadArgument, NoCluster, StoreError, TilewrightError
from tilewright.jsonfile import convert
from tilewright.measure.devices import CPU, Place, Process, gpus, interpreter_place
from tilewright.measure.station import OutOfOrder
from tilewright.measure.vendor import is_vendor, vendor_build
from tilewright.ops import MODULES_VARIABLE
from tilewright.ops.library import library_key, library_of
from tilewright.wording import many

log = logging.getLogger(__name__)

Resource = Literal["GPU", "CPU"]
WORDS: Mapping[str, Resource] = {"ray": "GPU", "ray:cpu": "CPU"}
"""The words that `places` takes, and the resource of a node of which each actor gets one unit."""
JOIN_SECONDS = 120.0
"""For actors to start and describe themselves. Actors that Ray keeps waiting longer are left
out."""
GRACE_SECONDS = 30.0
"""Time that a node may take for an answer beyond the limit of its worker."""
CONNECT_SECONDS = 5.0
_LOOK_SECONDS = 0.5
"""How often a thread that waits for an answer checks whether it must stop."""


def code() -> str:
    """A digest of everything that must be equal on every node: Tilewright's files and the compiler.
    Raises `BuildFailed` if there is no compiler."""
    root = Path(__file__).parents[1]
    kinds = (".py", ".c", ".h", ".json", ".twt")
    files = sorted(path for path in root.rglob("*") if path.suffix in kinds)
    digests = [(path.relative_to(root).as_posix(), sha256(path.read_bytes())) for path in files]
    return sha256(canonical([compiler_digest(), digests]))


# --- on the node ------------------------------------------------------------------------------


class Seat:
    """The actor: one device, its worker, and the node's store. Answers are plain data."""

    def __init__(self, resource: Resource, modules: str) -> None:
        os.environ[MODULES_VARIABLE] = modules
        self._resource = resource
        self._workers: dict[int, Process] = {}
        self._ended: set[int] = set()
        self._kept: set[str] = set()
        self._changing = threading.Lock()

    def greet(self) -> Message:
        """``place`` and ``code``, or ``error``: why there is no place."""
        try:
            found = [interpreter_place()] if self._resource == "CPU" else gpus()
            if len(found) != 1:  # Ray hides the other GPUs, unless a variable forbids it
                return {"error": f"Ray shows an actor {len(found)} GPUs instead of one"}
            self._place = found[0]
            return {"place": asdict(found[0]), "code": code()}
        except TilewrightError as error:
            return {"error": str(error)}

    def start(self, number: int) -> None:
        """Start the worker with this number, unless it runs or was ended."""
        with self._changing:
            if number not in self._workers and number not in self._ended:
                self._workers[number] = self._place.start(Store())

    def request(self, number: int, message: Message, timeout: float) -> Message:
        """The ``answer`` of a worker, which is started if need be. Otherwise how it ``died``, or
        that a ``timeout`` passed, or the kernel that the store here ``lacks``."""
        if message["do"] == "open":
            self.start(number)
            message = self._opening(message)
        elif message["do"] == "verify":
            build = message["build"]
            library = _library(message["kernel"])
            if library is not None:
                if build not in ("", library):
                    reason = f"the library is {library or 'unknown'} there, and not {build}"
                    return {"answer": {"status": "unsupported", "reason": reason}}
            elif lacking := self._lacking(message["kernel"], build):
                return {"lacks": lacking}
        worker = self._workers.get(number)
        if worker is None:
            return {"died": -signal.SIGKILL, "words": ""}
        try:
            return {"answer": worker.request(message, timeout=timeout)[0]}
        except ChildTimeout:
            return {"timeout": True}
        except ChildDied as died:
            return {"died": died.returncode, "words": died.stderr_tail}

    def keep(self, manifest: bytes, files: dict[str, bytes]) -> str:
        """Put a kernel into the store here, signed by this node's user. Returns the reason if that
        fails, else an empty string."""
        try:
            self._store.save(parse_manifest(manifest, self._store.path), files)
        except StoreError as error:
            return str(error)
        return ""

    def end(self, number: int) -> None:
        """End a worker, even while it answers a question."""
        with self._changing:
            self._ended.add(number)
            worker = self._workers.pop(number, None)
        if worker is not None:
            worker.interrupt()

    def _opening(self, message: Message) -> Message:
        """The message with the store of the same path if this node has one, else with the user's
        store."""
        there = Path(message["store"]).is_dir()
        self._store = Store(message["store"], message["trusted"]) if there else Store()
        self._kept.clear()
        path = os.fspath(self._store.path)
        return {**message, "store": path, "trusted": self._store.trusted}

    def _lacking(self, kernel: str, build: str) -> list[str]:
        """Keys of the binaries that are to be sent. The interpreter needs none."""
        device = self._place.device
        if device is None or not build or build in self._kept:
            return []
        config = ops.family_of(kernel).parse_name(kernel)
        keys = [*part_keys(config, device.arch).values()]
        lacking = [key for key in (keys if len(keys) > 1 else [build]) if not self._has(key)]
        if not lacking:
            self._kept.add(build)
        return lacking

    def _has(self, key: str) -> bool:
        with contextlib.suppress(StoreError):  # an entry that somebody else made is as good as none
            return self._store.load(key) is not None
        return False


def _library(kernel: str) -> str | None:
    """The version of the vendor's library on this node, as a build says it; None for a kernel that
    is built."""
    if is_vendor(kernel):
        return vendor_build()
    config = ops.family_of(kernel).parse_name(kernel)
    return library_key(config) if library_of(config) else None


# --- here -------------------------------------------------------------------------------------


class _Link:
    """The connection to one device of a node: its actor, replaced if it is lost."""

    def __init__(self, node: Mapping[str, Any], resource: Resource) -> None:
        self.machine = f"{node['NodeName']} (Ray's node {node['NodeID'][:8]})"
        self._node: str = node["NodeID"]
        self._resource: Resource = resource
        self._said: Message = {}
        self._start()

    def _start(self) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        wanted = {"num_cpus": 1} if self._resource == "CPU" else {"num_cpus": 0, "num_gpus": 1}
        seat = ray.remote(Seat).options(
            max_concurrency=3,  # `start` and `end`, within a `request`
            scheduling_strategy=NodeAffinitySchedulingStrategy(self._node, soft=False),
            **wanted,
        )
        self._actor = seat.remote(self._resource, os.environ.get(MODULES_VARIABLE, ""))
        self.greeting = self._actor.greet.remote()

    def place(self, here: str) -> Place | str:
        """The device as its node describes it, or the reason why it cannot be used. Does not wait.

        here: this machine's `code`.
        """
        import ray

        try:
            self._said = ray.get(self.greeting, timeout=0)
        except ray.exceptions.GetTimeoutError:
            return f"others have it, or Ray could not start an actor within {JOIN_SECONDS:g} s"
        except ray.exceptions.RayError as error:
            return f"its actor did not start ({_brief(error)}); is the same tilewright there?"
        if "error" in self._said:
            return str(self._said["error"])
        if self._said["code"] != here:
            return "its tilewright or triton differs from this machine's; install the same there"
        place = convert(self._said["place"], Place, "the node")
        return _RemotePlace(place.uuid, place.environment, place.device, self.machine, link=self)

    def ask(self, stop: threading.Event, seconds: float, method: str, *words: Any) -> Any:
        """The result of one of the actor's methods, which may take `seconds`.

        Raises `ChildDied` when `stop` is set, and when the actor was lost (a new actor then takes
        its place). Raises `OutOfOrder` if no new actor can start, or nothing answers.
        """
        import ray

        try:
            self._recognise(stop)
            return self._wait(stop, seconds, getattr(self._actor, method).remote(*words))
        except ray.exceptions.RayActorError as error:
            lost = _brief(error)
        self.drop()
        self._start()
        self._recognise(stop, lost)
        raise ChildDied(-signal.SIGKILL, lost)

    def _recognise(self, stop: threading.Event, lost: str = "") -> None:
        """Wait for an actor that has just been started. Raises `OutOfOrder` if it does not start,
        or has another device.

        lost: how the previous actor ended.
        """
        import ray

        try:
            said = self._wait(stop, JOIN_SECONDS, self.greeting)
        except ray.exceptions.RayError as error:
            raise OutOfOrder(f"its node was lost: {lost or _brief(error)}") from None
        if said != self._said:
            self.drop()
            raise OutOfOrder("its actor was lost, and Ray gave the next one another device")

    def _wait(self, stop: threading.Event, seconds: float, answer: Any) -> Any:
        import ray

        deadline = time.monotonic() + seconds + GRACE_SECONDS
        while not ray.wait([answer], timeout=_LOOK_SECONDS)[0]:
            if stop.is_set():
                raise ChildDied(-signal.SIGKILL, "")
            if time.monotonic() > deadline:
                self.drop()
                raise OutOfOrder(f"its node did not answer within {seconds + GRACE_SECONDS:g} s")
        return ray.get(answer)

    def tell(self, method: str, *words: Any, wait: bool = False) -> None:
        """Call a method of the actor, if there is an actor."""
        import ray

        with contextlib.suppress(ray.exceptions.RayError):
            told = getattr(self._actor, method).remote(*words)
            if wait:
                ray.get(told, timeout=GRACE_SECONDS)

    def drop(self) -> None:
        """End the actor, and its worker with it."""
        import ray

        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(self._actor)


class _RemoteProcess:
    """A worker behind an actor. Workers have numbers, because an actor may hold one in use and one
    in reserve."""

    pid = None
    _numbers = itertools.count()

    def __init__(self, link: _Link, store: Store) -> None:
        self._link, self._store = link, store
        self._stop = threading.Event()
        self._number = next(self._numbers)
        link.tell("start", self._number)

    def request(self, message: Message, *, timeout: float) -> tuple[Message, list[bytes]]:
        """The answer, as from a `Child`. Also raises `OutOfOrder`."""
        said = self._ask(timeout, "request", self._number, message, timeout)
        if "lacks" in said:
            if not all(map(self._send, said["lacks"])):
                message = {**message, "build": ""}  # the worker says that it is in no store
            said = self._ask(timeout, "request", self._number, message, timeout)
        if "timeout" in said:
            raise ChildTimeout(f"no answer within {timeout:g} s")
        if "died" in said:
            raise ChildDied(said["died"], said["words"])
        return said["answer"], []

    def interrupt(self) -> None:
        self._stop.set()
        self._link.tell("end", self._number)

    def kill(self) -> None:
        self._link.tell("end", self._number, wait=True)

    def _ask(self, seconds: float, method: str, *words: Any) -> Any:
        return self._link.ask(self._stop, seconds, method, *words)

    def _send(self, build: str) -> bool:
        """Put the kernel into the node's store. False if the store here does not have it either."""
        try:
            kernel = self._store.load(build)
        except StoreError:
            kernel = None
        if kernel is None:
            return False
        files = {kind: self._store.read(kernel, kind) for kind in kernel.blobs}
        wrong = self._ask(0, "keep", canonical(to_data(kernel)), files)
        if wrong:
            raise OutOfOrder(f"it cannot store kernels: {wrong}")
        return True


@dataclass(frozen=True, slots=True)
class _RemotePlace(Place):
    """A place on a node."""

    link: _Link = field(kw_only=True, compare=False, repr=False)

    def start(self, store: Store) -> Process:
        return _RemoteProcess(self.link, store)


def places(words: str) -> list[Place]:
    """The devices of the cluster that RAY_ADDRESS names, else of the cluster of this machine.

    words: ``ray`` for its GPUs, ``ray:cpu`` for an interpreter on each of its CPUs.

    Ray considers each device as taken until the returned places, and everything made from them, are
    gone. Devices that cannot be used are left out and logged. Raises `NoCluster`, and `BadArgument`
    for other words.
    """
    if words not in WORDS:
        raise BadArgument(
            f"devices '{words}': a Ray cluster's are {' or '.join(WORDS)}; "
            "RAY_ADDRESS names the cluster"
        )
    ray, resource, here = _connected(), WORDS[words], code()
    links = [
        _Link(node, resource)
        for node in ray.nodes()
        if node["Alive"]
        for _ in range(int(node["Resources"].get(resource, 0)))
    ]
    if not links:
        raise NoCluster(f"no node of the Ray cluster has a {resource}")
    ray.wait([link.greeting for link in links], num_returns=len(links), timeout=JOIN_SECONDS)
    found: list[Place] = []
    left: Counter[str] = Counter()
    for link in links:
        place = link.place(here)
        if isinstance(place, Place) and place.uuid in {p.uuid for p in found if p.uuid != CPU}:
            place = f"{place.uuid} is another node's too"
        if isinstance(place, Place):
            found.append(place)
        else:
            link.drop()
            left[f"{link.machine}: {place}"] += 1
    reasons = [f"{many(count, resource)} of {why}" for why, count in left.items()]
    if not found:
        raise NoCluster(f"no device of the Ray cluster can be used: {'; '.join(reasons)}")
    for reason in reasons:
        log.warning("not used: %s", reason)
    return found


def _connected() -> Any:
    """Ray, connected to a cluster. Raises `NoCluster`."""
    try:
        import ray
    except ImportError:
        raise NoCluster("a cluster's devices need Ray: pip install 'tilewright[ray]'") from None
    if ray.is_initialized():
        return ray
    address = os.environ.get("RAY_ADDRESS", "")
    try:
        host, colon, port = address.rpartition(":")
        if colon and port.isdigit():  # Ray itself would retry for minutes
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        job = _job_config()
        ray.init("auto", job_config=job, logging_level=logging.WARNING, log_to_driver=False)
        # Ray reports lost nodes on standard output, which belongs to the command's own output.
        ray._private.worker._worker_logs_enabled = False
    except (OSError, RuntimeError, ValueError) as error:
        where = f"at RAY_ADDRESS={address}" if address else "here, and RAY_ADDRESS is not set"
        raise NoCluster(
            f"no Ray cluster answers {where} ({_brief(error)}); 'ray start' starts one, or has "
            "this machine join one"
        ) from None
    return ray


def _job_config() -> Any:
    """What Ray tells the nodes about this process. By default Ray would have them import first from
    this process's current folder and from the folder of its script. The nodes do so only if this
    process does too."""
    from ray.job_config import JobConfig

    class Config(JobConfig):  # type: ignore[misc]
        def _runtime_env_has_working_dir(self) -> bool:
            return True  # so that Ray adds no folders

    path = import_path()
    folders = map(str, dict.fromkeys((Path(sys.argv[0]).resolve().parent, Path.cwd())))
    return Config(_py_driver_sys_path=[folder for folder in folders if folder in path])


def _brief(error: Exception) -> str:
    """The last line of Ray's message, which names the cause."""
    return str(error).strip().rpartition("\n")[2].strip()[:300]
