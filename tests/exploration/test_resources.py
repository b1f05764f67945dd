"""Workers are capped by the cores and the free memory of the machine, with a sentence."""

import pytest

from primus_search.exploration.engines import local_engine
from primus_search.exploration.funnel import Options, run_search
from tests.end_to_end.test_search import space_of


@pytest.mark.parametrize(
    ("asked", "cores", "free", "most", "said"),
    [
        (0, 4, 64e9, 0, ""),
        (4, 4, 64e9, 4, ""),
        (100_000, 4, 64e9, 4, "100,000 workers were asked for; 4 were started: this machine has 4 cores"),
        (2, 1, 64e9, 2, ""),
        (8, 8, 2.5e9, 2, "8 workers were asked for; 2 were started: this machine has 2.5 GB free, 1.00 GB each"),
        (0, 8, 0.5e9, 1, "8 workers were asked for; 1 were started: this machine has 0.5 GB free, 1.00 GB each"),
        (8, 8, 0.0, 8, ""),
    ],
)
def test_workers_are_what_the_machine_bears(
    asked: int, cores: int, free: float, most: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_engine, "available_cores", lambda: cores)
    monkeypatch.setattr(local_engine, "free_bytes", lambda: free)
    monkeypatch.setattr(local_engine, "peak_rss_bytes", lambda: 1e9)
    assert local_engine.affordable(asked) == (most, said)


@pytest.mark.in_turn
def test_a_search_with_too_many_workers_says_so() -> None:
    result = run_search(space_of(1), Options(workers=100_000))
    assert result.workers < 100_000
    assert any(note.startswith("100,000 workers were asked for; ") for note in result.notes)
    assert local_engine.free_bytes() > 0.0
