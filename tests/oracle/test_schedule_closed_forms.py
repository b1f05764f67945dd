"""Makespans and peaks that the papers give in closed form, and the Zero Bubble paper's Table 5."""

import json
from pathlib import Path

import numpy as np
import pytest

from primus_search.schedule import Costs, build, lower_bound, simulate

DATA = Path(__file__).parent / "data" / "schedules"
SHAPES = [(2, 4), (4, 8), (4, 32), (8, 16), (8, 64), (16, 64)]
COSTS = [(1.0, 1.0, 1.0), (10.0, 12.0, 8.0)]


def excess(
    name: str, p: int, m: int, cost: tuple[float, float, float], vpp: int = 1
) -> tuple[float, float, np.ndarray]:
    """Makespan and span less the work of a rank, and peaks."""
    costs = Costs(forward=cost[0], backward=cost[1], weight=cost[2])
    run = simulate(build(name, stages=p, microbatches=m, virtual_stages=vpp, costs=costs), costs)
    return run.makespan - m * sum(cost), run.span - m * sum(cost), run.peak_activations


@pytest.mark.parametrize(("p", "m"), SHAPES)
@pytest.mark.parametrize("cost", COSTS)
def test_gpipe_and_1f1b(p: int, m: int, cost: tuple[float, float, float]) -> None:
    """(p-1)(F+B+W); peak m, or p - r on rank r (Narayanan et al. 2021)."""
    bubble = pytest.approx((p - 1) * sum(cost))
    assert excess("gpipe", p, m, cost)[0] == bubble
    assert excess("gpipe", p, m, cost)[2].tolist() == [m] * p
    assert excess("1f1b", p, m, cost)[0] == bubble
    assert excess("1f1b", p, m, cost)[2].tolist() == [min(m, p - r) for r in range(p)]


@pytest.mark.parametrize(("p", "m"), SHAPES)
@pytest.mark.parametrize("vpp", [2, 4])
def test_interleaved(p: int, m: int, vpp: int) -> None:
    """(p-1)(F+B+W)/v, peak (vp + p - 1)/v on rank 0, at m a multiple of p (Narayanan et al. 2021)."""
    makespan, _, peaks = excess("interleaved", p, m, COSTS[1], vpp)
    assert makespan == pytest.approx((p - 1) * sum(COSTS[1]) / vpp)
    assert peaks[0] == min(m * vpp, vpp * p + p - 1) / vpp


@pytest.mark.parametrize(("p", "m"), SHAPES)
@pytest.mark.parametrize("cost", COSTS)
def test_zero_bubble_h1_and_h2(p: int, m: int, cost: tuple[float, float, float]) -> None:
    """(p-1)(F+B-W) in the memory of p; span (p-1)(F+B-2W) in 2p - 1 (Qi et al. 2023, table 1)."""
    f, b, w = cost
    makespan, _, peaks = excess("zb-h1", p, m, cost)
    assert makespan == pytest.approx((p - 1) * (f + b - w))
    assert peaks.max() == p
    if m >= 2 * p:
        _, span, peaks = excess("zb-h2", p, m, cost)
        assert span == pytest.approx((p - 1) * (f + b - 2 * w))
        assert peaks.max() <= 2 * p - 1


@pytest.mark.parametrize(("p", "m"), [(4, 8), (4, 32), (8, 16), (8, 64), (16, 64)])
def test_zbv_has_no_bubble_at_equal_passes(p: int, m: int) -> None:
    """Span 0, makespan (p-1)F/2, peak p (Qi et al. 2024)."""
    makespan, span, peaks = excess("zbv", p, m, COSTS[0])
    assert makespan == pytest.approx((p - 1) / 2)
    assert span == pytest.approx(0.0)
    assert peaks.max() <= p


@pytest.mark.parametrize(("p", "m"), [(4, 8), (8, 32), (16, 64)])
def test_interleaved_zero_bubble(p: int, m: int) -> None:
    """(p-1)(F+B-W)/v at F=B=W in the memory of p."""
    for vpp in (2, 4):
        makespan, _, peaks = excess("interleaved-zb", p, m, COSTS[0], vpp)
        assert makespan == pytest.approx((p - 1) / vpp)
        assert peaks.max() <= p


@pytest.mark.parametrize(("p", "m"), [(2, 8), (4, 16), (8, 32), (8, 64)])
def test_dualpipe_memory_and_bubble(p: int, m: int) -> None:
    """Peak PP + 1 and (2p+1)/2; bubble (PP/2-1)(F&B + B_full - 3W) with F&B run as one (DualPipe README)."""
    f, b, w = 1.0, 1.0, 1.0
    costs = Costs(overlap=1.0)
    run = simulate(build("dualpipe", stages=p, microbatches=m), costs)
    assert run.peak_activations.max() == p + 1
    pair = max(f, b + w)
    assert (run.makespan - run.busy).max() == pytest.approx((p / 2 - 1) * (pair + b + w - 3 * w))
    assert simulate(build("dualpipev", stages=p, microbatches=m), costs).peak_activations.max() == (2 * p + 1) / 2


@pytest.mark.parametrize("p", [2, 4, 8, 16])
def test_memory_of_v_half_and_v_min(p: int) -> None:
    """(p+2)//2 and (p+4)//3 (Qi et al. 2024)."""
    for cost in (COSTS[0], (10.0, 14.0, 6.0)):
        assert excess("v-half", p, 4 * p, cost)[2].max() <= (p + 2) // 2
        assert excess("v-min", p, 4 * p, cost)[2].max() <= (p + 4) // 3


@pytest.mark.parametrize(
    "row", json.loads((DATA / "zero_bubble_table5.json").read_text()), ids=lambda r: f"{r['model']} m={r['m']}"
)
def test_table_5_of_the_zero_bubble_paper(row: dict) -> None:
    """Bubble rate of the span to 4 decimals, at the paper's profiled times."""
    costs = Costs(forward=row["T_F"], backward=row["T_B"], weight=row["T_W"], comm=row["T_comm"])
    for name, paper in (("1f1b", "1F1B"), ("zb-h1", "ZB-H1"), ("zb-1p", "ZB-1p"), ("zb-2p", "ZB-2p")):
        run = simulate(build(name, stages=row["p"], microbatches=row["m"], costs=costs), costs)
        idle = 1.0 - run.busy.sum() / (row["p"] * run.span)
        assert round(idle, 4) == row["paper_bubble_rate"][paper], name


def test_the_v_bound_at_equal_passes() -> None:
    """6m + 6p - 3k - 1 chunk passes of a third of a micro-batch's half each (Qi et al. 2024)."""
    p, m = 8, 64
    for chunks in (8, 10, 12, 16):
        bound = lower_bound("zbv", stages=p, microbatches=m, memory_limit=chunks / 2)
        assert bound >= 0.5 * (6 * m + 6 * p - 3 * chunks - 1) - 1e-9
