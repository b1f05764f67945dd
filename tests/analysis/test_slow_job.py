"""Thirty logs, fifteen healthy and fifteen with a cause put in by hand: causes are named, healthy ones left alone."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from primus_search.analysis.slow_jobs.slow_job import SlowJob, beside
from primus_search.analysis.slow_jobs.step_patterns import PatternKind
from primus_search.report.slow_text import slow_lines

STEP_S = 4.0
PARTS = {"attention": 0.9, "mlp": 1.6, "recompute": 0.2, "launch": 0.15, "gradient_comm": 0.3, "shard_comm": 0.1,
         "overhead": 0.05, "stragglers": 0.05, "bubble": 0.65}  # fmt: skip
HOST_BOUND = PARTS | {"mlp": 0.6, "attention": 0.5, "launch": 1.4, "gradient_comm": 0.05, "shard_comm": 0.0}
EXPOSED = PARTS | {"mlp": 1.3, "gradient_comm": 0.8, "launch": 0.02, "overhead": 0.01, "stragglers": 0.01}
TIMERS = "(min, max) time across ranks (ms):"
Change = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def iteration(number: int, seconds: float, of: int) -> str:
    return (
        f" iteration {number:8d}/{of:8d} | consumed samples: {64 * number:12d} | elapsed time per iteration (ms): "
        f"{1000 * seconds:.1f} | learning rate: 1.0E-05 | global batch size:    64 | lm loss: 9.9E+00 |"
    )


def timers(**seconds: tuple[float, float]) -> list[str]:
    names = {name.replace("_", "-"): pair for name, pair in seconds.items()}
    rows = [
        f"    {name} {'.' * (40 - len(name))}: ({1e3 * low:.2f}, {1e3 * high:.2f})"
        for name, (low, high) in names.items()
    ]
    return [TIMERS, *rows]


def written(path: Path, seconds: np.ndarray, extra: Callable[[int], list[str]] = lambda number: []) -> Path:
    """A log of Megatron-LM with these seconds an iteration, behind a warm-up of three."""
    body = list[str]()
    for number, one in enumerate([30.0, 6.0, 4.5, *seconds], start=1):
        body += [iteration(number, one, len(seconds) + 3), *extra(number)]
    head = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in (("world_size", 64), ("seq_length", 4096))]
    path.write_text("\n".join([*head, *body]) + "\n")
    return path


def judged(path: Path, parts: dict[str, float] = PARTS) -> SlowJob:
    return beside(path, parts, STEP_S, 0.85 * STEP_S, 1.15 * STEP_S)


def steps(rng: np.random.Generator, noise: float, count: int, level: float = 1.0) -> np.ndarray:
    return STEP_S * level * (1.0 + noise * rng.standard_normal(count))


def healthy() -> Iterator[np.ndarray]:
    """Quiet and noisy jobs, short and long ones, some with one checkpoint, a little faster or slower than expected."""
    for seed in range(15):
        rng = np.random.default_rng(seed)
        seconds = steps(rng, (0.001, 0.005, 0.01, 0.02)[seed % 4], (40, 120, 400)[seed % 3], rng.uniform(0.93, 1.03))
        if seed % 5 == 0:
            seconds[len(seconds) // 2] += 3.0
        yield seconds


def caused(tmp_path: Path) -> Iterator[tuple[str, SlowJob]]:
    """The name of the cause that was put in, and what is said of the log."""
    for seed in range(3):
        rng = np.random.default_rng(100 + seed)
        seconds = steps(rng, 0.005, 150)
        seconds[40 + 30 * seed :] *= 1.08 + 0.06 * seed
        yield "slow_rank", judged(written(tmp_path / f"rank{seed}.log", seconds))
    for seed, (period, stall_s) in enumerate(((20, 2.0), (50, 9.0))):
        seconds = steps(np.random.default_rng(200 + seed), 0.006, 260)
        seconds[period - 1 :: period] += stall_s
        yield "checkpoint", judged(written(tmp_path / f"save{seed}.log", seconds))
    for seed, rise in enumerate((0.08, 0.15)):
        rng = np.random.default_rng(300 + seed)
        seconds = steps(rng, 0.008, 200) * (1.0 + rise * (1.0 - np.exp(-np.arange(200) / 90.0)))
        yield "clocks", judged(written(tmp_path / f"heat{seed}.log", seconds))
    for seed, slower in enumerate((1.2, 1.35)):
        seconds = steps(np.random.default_rng(400 + seed), 0.01, 80, slower)
        sync_s = 0.4 + (slower - 1.0) * STEP_S
        rows = timers(forward_backward=(3.1, 3.2), all_grads_sync=(0.9 * sync_s, sync_s))
        yield "network", judged(written(tmp_path / f"nic{seed}.log", seconds, lambda _, rows=rows: rows))
    for seed, slower in enumerate((1.2, 1.3)):
        seconds = steps(np.random.default_rng(500 + seed), 0.01, 80, slower)
        yield "host", judged(written(tmp_path / f"host{seed}.log", seconds), HOST_BOUND)
    for seed in range(2):
        rng = np.random.default_rng(600 + seed)
        seconds = steps(rng, 0.01, 200)
        seconds[rng.choice(np.arange(10, 200), 14 + 6 * seed, replace=False)] += 1.5
        told = {60: ["WARNING - 12 CUDA memory allocation retries."]}
        yield (
            "memory_retries",
            judged(written(tmp_path / f"retry{seed}.log", seconds, lambda n, told=told: told.get(n, []))),
        )
    for seed, slower in enumerate((1.18, 1.22)):
        seconds = steps(np.random.default_rng(700 + seed), 0.004, 80, slower)
        yield "buckets", judged(written(tmp_path / f"bucket{seed}.log", seconds), EXPOSED)


def test_fifteen_healthy_logs_are_called_healthy(tmp_path: Path) -> None:
    found = [judged(written(tmp_path / f"{place}.log", seconds)) for place, seconds in enumerate(healthy())]
    assert sum(one.is_healthy for one in found) >= 14
    assert all(slow_lines(one)[-1].startswith("HEALTHY") for one in found if one.is_healthy)


def test_of_fifteen_logs_with_a_cause_it_is_named_first_in_eleven(tmp_path: Path) -> None:
    found = [(name, one.causes[0].name if one.causes else "healthy") for name, one in caused(tmp_path)]
    assert len(found) == 15
    assert sum(name == first for name, first in found) >= 11, found


def test_what_is_said_of_a_slow_job_fits_one_screen(tmp_path: Path) -> None:
    for _, one in caused(tmp_path):
        lines = slow_lines(one)
        assert len(lines) <= 24 and max(map(len, lines)) <= 80
        assert lines[0].startswith("LOG ") and lines[-1] and any(line.startswith("TELL ") for line in lines)
        assert sum(cause.probability for cause in one.causes) == pytest.approx(1.0)


def test_a_periodic_stall_has_its_period_and_its_cost(tmp_path: Path) -> None:
    seconds = np.full(200, STEP_S)
    seconds[24::25] += 5.0
    (one,) = judged(written(tmp_path / "save.log", seconds)).patterns
    assert (one.kind, one.period) == (PatternKind.PERIODIC, 25)
    assert one.cost == pytest.approx(8 * 5.0 / seconds.sum(), rel=0.02)


def test_timers_of_ranks_that_differ_name_a_slow_rank(tmp_path: Path) -> None:
    seconds = steps(np.random.default_rng(1), 0.004, 60, 1.25)
    rows = timers(forward_compute=(1.0, 1.4))
    one = judged(written(tmp_path / "ranks.log", seconds, lambda _: rows))
    assert one.is_slow and one.causes[0].name == "slow_rank"
