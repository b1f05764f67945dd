"""Work spread over forked workers is the same work, in the same order, whatever happens to a worker."""

import os
import signal

import pytest

from primus_search import cores as spreading
from primus_search.cores import spread

PARENT = os.getpid()


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
