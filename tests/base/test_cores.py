"""Work spread over forked workers is the same work, in the same order, whatever happens to a worker."""

import os
import signal
from pathlib import Path

import pytest

from primus_search.base import cores as spreading
from primus_search.base.cores import spread

PARENT = os.getpid()
really_available = spreading.available_cores


@pytest.fixture(autouse=True)
def _three_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spreading, "available_cores", lambda: 3)


def squared(x: int) -> tuple[int, bool]:
    return x * x, os.getpid() != PARENT


def killed_away_from_home(x: int) -> int:
    if os.getpid() != PARENT:
        os.kill(os.getpid(), signal.SIGKILL)
    return -x


def refused(x: int) -> int:
    raise ValueError(f"item {x}")


def test_results_come_in_the_order_of_the_items_from_other_processes() -> None:
    found = spread(squared, range(40), at_least=10)
    assert found == [(x * x, True) for x in range(40)]


def test_little_work_stays_at_home() -> None:
    assert spread(squared, range(9), at_least=10) == [(x * x, False) for x in range(9)]


def test_work_of_killed_workers_is_done_at_home() -> None:
    assert spread(killed_away_from_home, range(40), at_least=10) == [-x for x in range(40)]


def test_what_a_worker_raises_is_raised_here_and_the_next_spread_works() -> None:
    with pytest.raises(ValueError, match="item 0"):
        spread(refused, range(40), at_least=10)
    assert len(spread(squared, range(40), at_least=10)) == 40


@pytest.mark.parametrize(
    ("quotas", "cores"),
    [
        ({"": "max 100000"}, 8),
        ({"": "150000 100000"}, 2),
        ({"a/b": "max 100000", "a": "300000 100000", "": "400000 100000"}, 3),
        ({"a": "50000 100000"}, 1),
        ({}, 8),
    ],
)
def test_a_cpu_quota_bounds_the_cores(
    quotas: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least of this process' control group and of those around it."""
    for group, text in quotas.items():
        (tmp_path / "groups" / group).mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / group / "cpu.max").write_text(text + "\n")
    (tmp_path / "cgroup").write_text("4:memory:/elsewhere\n0::/a/b\n")
    monkeypatch.setattr(spreading, "OWN_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(spreading, "CONTROL_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    assert really_available() == cores
