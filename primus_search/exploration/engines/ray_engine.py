"""Tasks on a Ray cluster: a private one on this machine, or one that is already running.

A worker is an actor of one core: it builds the grid and the tables of terms once and keeps them for all its tasks. The
driver ships the declared space once and then two numbers per task; what comes back is a top list and a frontier, so the
network never limits. Of a cluster that was joined twice as many workers are asked for as it has cores, asked again
every few seconds: those that find no core wait, which an autoscaler sees, and begin on a new node as soon as it is
there. A task of a lost worker or node is done again elsewhere.
"""

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numba
import numpy
import ray
from ray._private import ray_constants
from ray.exceptions import (
    AuthenticationError,
    NodeDiedError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    OutOfMemoryError,
    RayActorError,
    RaySystemError,
    RayTaskError,
    WorkerCrashedError,
)
from ray.util import get_node_ip_address

import primus_search
from primus_search.base.cores import available_cores
from primus_search.base.errors import InputError, Problem
from primus_search.base.guards import interrupts
from primus_search.base.guards.files import PACKAGE, fingerprint_of
from primus_search.exploration.engines.local_engine import (
    MAX_TRIES,
    CutOf,
    IsSpent,
    LostTask,
    TaskAssignment,
    WorkerLost,
    most_in_flight,
    never,
)
from primus_search.exploration.engines.ray_reaper import ClusterReaper, environment
from primus_search.exploration.exhaustive.evaluate import Funnel, Task
from primus_search.exploration.exhaustive.shortlist import Cut
from primus_search.exploration.findings import Findings
from primus_search.space import Space

STORE_FULL = (ObjectStoreFullError, OutOfDiskError)
LOST = (
    NodeDiedError, ObjectLostError, OutOfMemoryError, RayActorError, RaySystemError, WorkerCrashedError, MemoryError,
    *STORE_FULL,
)  # fmt: skip
"""What is no fault of a task: its worker, the memory or the store of its node failed; it is done again elsewhere."""
OBJECT_STORE_BYTES = 256 * 1024**2  # summaries are small; the default would take a third of the machine
RESCAN_S = 5.0
LOOK_S = 0.2
"""Longest wait for an answer before signals are looked at: Ray's own wait returns for none."""
CONNECT_S = 5.0
TOKEN_BYTES = 32
HTTP2_PREFACE, EMPTY_SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\0\0\0\x04\0\0\0\0\0"
"""What a client of HTTP/2 says first, and a SETTINGS frame: its length, its type (4), flags, stream 0."""
ASKED_PER_CORE = 2
START_TRIES = 3
"""How often a private cluster is started: on a machine at half speed one start of many took over Ray's 30 seconds."""


class RayCluster:
    """An engine on Ray. A private cluster ends with it; one that was joined goes on."""

    name = "ray"

    def __init__(self, funnel: Funnel, workers: int, address: str) -> None:
        from primus_search.declare.record_table import with_measured_switches  # reads files, which no worker has

        self._is_ours = not ray.is_initialized()
        self._is_private = self._is_ours and not address
        self._reaper = ClusterReaper() if self._is_private else None
        if self._reaper is not None:
            with self._reaper.marking():
                start(workers)
        elif self._is_ours:
            join(address)
        self._cap = workers
        self._space = ray.put((with_measured_switches(funnel.space), funnel.keep))
        self._numbers, self._failed = count(), 0
        self.lost: Sequence[LostTask] = ()
        self._pool: list[_Lane] = []
        self._cuts: dict[int, tuple[Cut, Any]] = {}
        self._scanned_at = -RESCAN_S
        self.workers = 1
        self._rescan()  # workers start while the driver plans

    def map(self, tasks: Sequence[Task], cut_of: CutOf, is_spent: IsSpent = never) -> Iterator[tuple[Task, Findings]]:
        assignment, num_done = TaskAssignment(tasks), 0
        self.lost = assignment.lost
        while True:
            self._rescan()
            while not is_spent() and (lane := self._idlest()) is not None:
                most = most_in_flight(self.workers, num_done, len(assignment))
                task = assignment.take(lane.number) if len(lane.flying) < most else None
                if task is None:
                    break
                try:
                    lane.send(task, self._stored(task.cluster, cut_of(task.cluster)))
                except STORE_FULL as error:
                    self._wait_for_room(lane, task, assignment, error)
                    break
            if not any(lane.flying for lane in self._pool) and (is_spent() or not len(assignment)):
                return
            for lane in self._ready():
                try:
                    findings = lane.receive()
                except LOST as error:
                    self._replace(lane, assignment, error)
                    continue
                if findings is not None:
                    num_done += 1
                    yield findings

    def _wait_for_room(self, lane: "_Lane", task: Task, assignment: TaskAssignment, error: Exception) -> None:
        """A task that the object store had no room for is sent later: answers that are fetched make room.

        It counts as a try where none is awaited.
        """
        if any(one.flying for one in self._pool):
            assignment.return_unsent(task)
        else:
            assignment.put_back(lane.number, [task], f"last: {error}")

    def close(self) -> None:
        for lane in self._pool:  # a cluster that was joined must not go on computing for nobody
            ray.kill(lane.actor)
        if self._is_ours:
            ray.shutdown()
        if self._reaper is not None:
            self._reaper.end()

    def _stored(self, cluster: int, cut: Cut) -> Any:
        """A cut in the object store; the same reference as long as nothing was found on its cluster."""
        if cluster not in self._cuts or self._cuts[cluster][0] is not cut:
            self._cuts[cluster] = (cut, ray.put(cut))
        return self._cuts[cluster][1]

    def _rescan(self) -> None:
        """Ask for as many workers as there is room for now; nodes come and go."""
        if time.monotonic() - self._scanned_at < RESCAN_S:
            return
        cores = max(int(ray.cluster_resources().get("CPU", 1)), 1)
        self.workers = min(cores, self._cap) if self._cap else cores
        wanted = self.workers if self._is_private or self._cap else ASKED_PER_CORE * cores
        self._pool += [_Lane(next(self._numbers), self._space) for _ in range(wanted - len(self._pool))]
        self._scanned_at = time.monotonic()

    def _idlest(self) -> "_Lane | None":
        """The worker that has begun and has the least to do."""
        return min((lane for lane in self._pool if lane.is_open), key=lambda lane: len(lane.flying), default=None)

    def _ready(self) -> "list[_Lane]":
        """Workers with an answer, as soon as there is one; none when none comes for a while."""
        waited_for = {lane.next_answer: lane for lane in self._pool if lane.next_answer is not None}
        interrupts.check()
        ready, _ = ray.wait(list(waited_for), num_returns=1, timeout=LOOK_S)
        return [waited_for[reference] for reference in ready]

    def _replace(self, lane: "_Lane", assignment: TaskAssignment, error: Exception) -> None:
        """Another worker for one that was lost; its tasks are to be done again."""
        self._failed = 0 if lane.is_open else self._failed + 1
        if self._failed >= MAX_TRIES * self.workers:
            raise WorkerLost(f"{self._failed} Ray workers in a row were lost while they started; last: {error}")
        assignment.put_back(lane.number, [task for _, task in lane.flying], f"last: {error}")
        self._pool.remove(lane)
        ray.kill(lane.actor)
        self._pool.append(_Lane(next(self._numbers), self._space))


class _Lane:
    """A worker as the driver sees it: its actor, and the tasks it was sent and has not answered, in order."""

    def __init__(self, number: int, space: Any) -> None:
        self.number, self.is_open = number, False
        self.actor = _worker.remote(versions_of_driver(), [space])
        self.flying: list[tuple[Any, Task]] = []
        self._begun = self.actor.begin.remote()

    @property
    def next_answer(self) -> Any:
        """What it will answer next; None when it has nothing to do."""
        if not self.is_open:
            return self._begun
        return self.flying[0][0] if self.flying else None

    def send(self, task: Task, cut: Any) -> None:
        self.flying.append((self.actor.evaluate.remote(task, cut), task))

    def receive(self) -> tuple[Task, Findings] | None:
        """Its next answer, None when that is that it has begun. Raises one of LOST, and what it raised itself."""
        if not self.is_open:
            _got(self._begun)
            self.is_open = True
            return None
        reference, task = self.flying[0]
        findings: Findings = _got(reference)
        self.flying.pop(0)
        return task, findings


def _got(reference: Any) -> Any:
    """The answer of a worker. Raises what it raised itself, as it was raised there."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        if isinstance(error.cause, (InputError, *LOST)):
            raise error.cause from error
        raise


def versions() -> dict[str, str]:
    """Versions of all that decides the figures of this process, by name; of this package its source as well.

    Ray compares its own and Python's itself.
    """
    source = fingerprint_of(PACKAGE)
    return {
        "primus-search": f"{primus_search.base.version.__version__} (source {source})",
        "numpy": numpy.__version__,
        "numba": numba.__version__,
    }


@lru_cache(maxsize=1)
def versions_of_driver() -> dict[str, str]:
    """`versions` of this process, read once."""
    return versions()


class Worker:
    """A funnel in a process of the cluster."""

    def __init__(self, drivers: Mapping[str, str], shipped: "Sequence[ray.ObjectRef[tuple[Space, int]]]") -> None:
        self._drivers, self._shipped = drivers, shipped  # a reference: another version might not even unpack it

    def begin(self) -> None:
        """What a worker does once. Raises InputError where it is of another version than its driver."""
        own = versions()
        others = [f"{name} {own.get(name)}, the driver {theirs}" for name, theirs in self._drivers.items()
                  if own.get(name) != theirs]  # fmt: skip
        if others:
            where = f"Ray worker on node {get_node_ip_address()}"
            raise InputError([Problem(where, f"has {'; '.join(others)}: install the same version on every node")])
        space, keep = ray.get(self._shipped[0])
        self._funnel = Funnel(space, keep)
        assert len(self._funnel.task_orders) == len(self._funnel.grid_costs)

    def evaluate(self, task: Task, cut: Cut) -> Findings:
        """One task."""
        return self._funnel.evaluate(task, cut)


_worker: Any = ray.remote(num_cpus=1)(Worker)


def _settings() -> dict[str, Any]:
    """How Ray is started and joined: it reports nothing home and prints nothing."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray 2.60 otherwise hides GPUs from workers that ask for none and warns about it.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    return {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": True}


def start(workers: int) -> None:
    """A private cluster on this machine, whose workers are as important as this process: Ray's wait for all others.

    Its processes listen on the loopback interface alone and accept who holds the cluster's token, which exists only in
    the environment of this process and its children. Ray enables tokens for new local clusters unless RAY_AUTH_MODE
    says otherwise; a token that the user has set is kept.
    """
    os.environ.setdefault("RAY_worker_niceness", "0")
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(TOKEN_BYTES)
    for tries_left in reversed(range(START_TRIES)):
        try:
            with _on_loopback():
                ray.init(
                    address="local",  # without it Ray joins whatever cluster this machine belongs to
                    num_cpus=workers or available_cores(),
                    include_dashboard=False,
                    object_store_memory=OBJECT_STORE_BYTES,
                    **_settings(),
                )
            return
        except Exception as error:  # Ray raises a bare one when its node is not up within 30 s, which nothing changes
            ray.shutdown()
            if not tries_left:
                why = f"Ray did not start in {START_TRIES} tries; last: {error}"
                raise WorkerLost(f"{why}; search without it: --engine local") from error


@contextmanager
def _on_loopback() -> Iterator[None]:
    """A cluster started meanwhile has the address 127.0.0.1, as Ray's on macOS and Windows, and listens nowhere else.

    `ray.init(_node_ip_address="127.0.0.1")` does not do that: it is replaced by an address that others can reach.
    """
    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        with environment({ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0"}):
            yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def join(address: str) -> None:
    """A cluster that is running. A worker on another machine may have another version of this package, or none."""
    where = f"--ray-address {address}"
    package = str(Path(primus_search.__file__).parent)
    _refuse_silent(address, where)
    try:
        ray.init(address=address, runtime_env={"py_modules": [package]}, **_settings())
    except (AuthenticationError, ConnectionError, ValueError, RuntimeError) as error:
        token = "does it require a token (~/.ray/auth_token or RAY_AUTH_TOKEN, docs/ray.md)?"
        raise InputError([Problem(where, f"no Ray cluster can be joined there: {error}; {token}")]) from error


def _refuse_silent(address: str, where: str) -> None:
    """InputError where no gRPC server answers at `host:port` or `ray://host:port`; Ray retries for minutes.

    A gRPC server begins every connection with the SETTINGS frame of HTTP/2 (RFC 9113, section 3.4).
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return  # `auto` and names that Ray resolves itself
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S) as opened:
            if os.environ.get("RAY_USE_TLS", "0") == "1":
                return
            opened.settimeout(CONNECT_S)
            opened.sendall(HTTP2_PREFACE + EMPTY_SETTINGS)
            head = opened.recv(len(EMPTY_SETTINGS))
    except (OSError, OverflowError) as error:
        raise InputError([Problem(where, f"no Ray cluster answers there: {error}")]) from error
    if head[3:4] != EMPTY_SETTINGS[3:4]:
        raise InputError([Problem(where, "no Ray cluster answers there: what listens is no gRPC server")])


if TYPE_CHECKING:
    from primus_search.measure.revalidate import Benchmark, Revalidation


def label_of(device: str) -> str:
    """The resource of nodes that have this device."""
    return f"device:{device}"


def revalidated_on_cluster(
    address: str, device: str, task: "Callable[[Benchmark], Revalidation]", how: "Benchmark"
) -> "tuple[Revalidation | None, str]":
    """What a node with the device found, and where it was; or None, and why it was not done there.

    Nodes with a device of a kind have a resource of its name, which whoever starts them sets:
    `ray start --resources '{"device:mi355x": 1}'`. It is one per node, so that two benchmarks never share a node.
    The measurements of `how.load` travel as the content of that file.
    """
    is_joined_here = not ray.is_initialized()
    if is_joined_here:
        join(address)
    try:
        label = label_of(device)
        offers = [node["Resources"] for node in ray.nodes() if node["Alive"] and label in node["Resources"]]
        if not offers:
            return None, f"no node of the Ray cluster offers {label}: the benchmark ran on this machine"
        remote = _revalidate.options(resources={label: 1}, num_gpus=min(offer.get("GPU", 0.0) for offer in offers))
        known = how.load.read_bytes() if how.load is not None else None
        try:
            found, node = ray.get(remote.remote(task, how, known))
        except LOST as error:
            return None, f"the node with {label} was lost: the benchmark ran on this machine ({error})"
        return found, f"the benchmark ran on node {node} of the Ray cluster, which offers {label}"
    finally:
        if is_joined_here:
            ray.shutdown()


@ray.remote(num_cpus=0, max_retries=MAX_TRIES)  # type: ignore[untyped-decorator]  # Ray ships no types for it
def _revalidate(
    task: "Callable[[Benchmark], Revalidation]", how: "Benchmark", known: bytes | None
) -> "tuple[Revalidation, str]":
    """On the node."""
    with TemporaryDirectory() as folder:
        if known is not None:
            path = Path(folder) / "known.jsonl"
            path.write_bytes(known)
            how = replace(how, load=path)
        return task(how), get_node_ip_address()
