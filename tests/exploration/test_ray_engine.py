"""Joining a Ray cluster: an address where nothing listens is an error at once."""

import os
import socket
import subprocess
import sys
import threading
import uuid
from contextlib import ExitStack

import pytest

from primus_search.base.errors import InputError
from primus_search.exploration.engines import ray_engine
from primus_search.exploration.engines.local_engine import WorkerLost
from primus_search.exploration.engines.ray_engine import Worker, join


@pytest.fixture
def _ray_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ray.init` of an address that is no cluster retries for minutes: what is refused never gets there."""
    monkeypatch.setattr(ray_engine.ray, "init", lambda **_: pytest.fail("Ray was asked"))


@pytest.mark.usefixtures("_ray_is_not_asked")
@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_nothing_listens_is_refused_before_ray_is_asked(scheme: str) -> None:
    with socket.socket() as taken:  # bound and not listening: no other process can take the port
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(InputError, match="no Ray cluster answers there"):
            join(f"{scheme}127.0.0.1:{taken.getsockname()[1]}")


@pytest.mark.usefixtures("_ray_is_not_asked")
@pytest.mark.parametrize(("scheme", "answer"), [("", b""), ("ray://", b""), ("", b"HTTP/1.1 400 Bad Request\r\n\r\n")])
def test_what_listens_and_is_no_cluster_is_refused_before_ray_is_asked(
    scheme: str, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that accepts and then says nothing is given up after `CONNECT_S`."""
    monkeypatch.setattr(ray_engine, "CONNECT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as open_until_the_end:

        def serve() -> None:
            open_until_the_end.enter_context(server.accept()[0]).sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(InputError, match="no Ray cluster answers there"):
            join(f"{scheme}127.0.0.1:{server.getsockname()[1]}")


def test_a_worker_of_another_version_is_refused_with_both_versions() -> None:
    drivers = ray_engine.versions() | {"primus-search": "0.0.9 (source 0123456789abcdef)", "numba": "0.1"}
    with pytest.raises(InputError) as caught:
        Worker(drivers, []).begin()
    own = ray_engine.versions()
    text = str(caught.value)
    assert text.startswith("Ray worker on node ") and "\n" not in text
    for name in ("primus-search", "numba"):
        assert f"{name} {own[name]}, the driver {drivers[name]}" in text
    assert "numpy" not in text


def test_a_private_cluster_that_does_not_start_in_time_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[object] = []

    def late(**_: object) -> None:
        tries.append(None)
        if len(tries) < ray_engine.START_TRIES:
            raise Exception("The current node timed out during startup.")

    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    monkeypatch.setattr(ray_engine.ray, "init", late)
    ray_engine.start(1)
    assert len(tries) == ray_engine.START_TRIES


def test_a_private_cluster_that_never_starts_is_an_error_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(**_: object) -> None:
        raise Exception("The current node timed out during startup.")

    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    monkeypatch.setattr(ray_engine.ray, "init", never)
    with pytest.raises(WorkerLost, match=r"Ray did not start in 3 tries; last: .* timed out .*--engine local"):
        ray_engine.start(1)


LISTENING = """
import os, sys
from pathlib import Path
from primus_search.exploration.engines import ray_engine
ray_engine.start(1)
open_sockets, found = {}, set()
for table in ("tcp", "tcp6"):
    for line in Path("/proc/net/" + table).read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A":
            open_sockets["socket:[" + words[9] + "]"] = words[1].split(":")[0]
for process in Path("/proc").iterdir():
    try:
        if os.environ["LISTENING_MARK"].encode() not in (process / "environ").read_bytes():
            continue
        command = (process / "cmdline").read_bytes().split(b"\\0")
        targets = {os.readlink(handle) for handle in (process / "fd").iterdir()}
        held = {open_sockets[target] for target in targets & set(open_sockets)}
    except OSError:
        continue
    found |= held
    if held - {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}:
        print(Path(command[0].decode()).name)
print("checked" if found else "nothing listens")
"""


@pytest.mark.in_turn
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_no_process_of_a_private_cluster_listens_beyond_this_machine() -> None:
    """As docs/ray.md and SECURITY.md say."""
    environment = os.environ | {"LISTENING_MARK": uuid.uuid4().hex}
    done = subprocess.run(
        [sys.executable, "-c", LISTENING], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == ["checked"]
