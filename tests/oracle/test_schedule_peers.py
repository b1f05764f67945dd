"""Our schedules against what public implementations reach at the same pipeline, and against proven optima.

Within the peak activations of the public order, ours is slower by no more than 0.1 % in any row.
"""

import csv
import gzip
import io
import json
from pathlib import Path

import pytest

from primus_search.base.errors import ScheduleError
from primus_search.schedule import Costs, algorithm, build, lower_bound, names, peak_activations, simulate
from tests.support.daily import TODAY_OR_ALL, drawn

DATA = Path(__file__).parent / "data" / "schedules"
PREFIXES = {
    "interleaved-1f1b": "interleaved",
    "interleaved-zero": "interleaved-zb",
    "group-": "gis",
    "zb-h1": "zb-h1",
    "zb-1p": "zb-auto",
    "zb-2p": "zb-auto",
    "zb-nolimit": "zb-auto",
    "zero-bubble-h": "zb-auto",
    "v-adaptive": "v-auto",
    "vfold-1f1b": "v-auto",
}
CLOSED = {"1f1b": "1f1b", "gpipe": "gpipe"}
"""Closed-form orders: our makespan is theirs, not only no worse."""


def our_name(algorithm: str) -> str:
    for prefix, name in PREFIXES.items():
        if algorithm.startswith(prefix):
            return name
    return algorithm


def rows() -> list[dict[str, str]]:
    text = gzip.decompress((DATA / "peer_makespans.csv.gz").read_bytes()).decode()
    return list(csv.DictReader(io.StringIO(text)))


def fresh_rows() -> list[dict[str, str]]:
    """Rows of other pipelines and costs, drawn by chance; no schedule was tuned on them."""
    return list(csv.DictReader((DATA / "fresh_peer_rows.csv").read_text().splitlines()))


def costs_of(row: dict[str, str]) -> Costs:
    return Costs(
        forward=float(row["F"]),
        backward=float(row["B"]),
        weight=float(row["W"]),
        comm=float(row["comm"]),
        last_head_extra=float(row["last_head_extra"]),
    )


def ratio(row: dict[str, str]) -> float:
    """Our makespan over theirs within their peak; infinite when we build nothing there."""
    parameters = json.loads(row["params"])
    costs = costs_of(row)
    name, pairs = our_name(row["algorithm"]), "atomic" if parameters.get("overlap") == "atomic" else "sequential"
    arguments = {
        "stages": int(row["p"]),
        "microbatches": int(row["m"]),
        "virtual_stages": int(row["vpp"]),
        "costs": costs,
        "group": parameters.get("group"),
    }
    limit = parameters.get("max_mem") or (parameters.get("max_mem_chunks") or 0) / 2 or None
    counts_at_w = parameters.get("mem_fbw", [1, 0, -1]) == [1, 0, -1]
    if name not in ("zb-auto", "v-auto") or not counts_at_w:
        limit = None
    peak = float(row["peak_max"])
    try:
        table = build(name, memory_limit=limit, **arguments)
        if peak_activations(table).max() > peak + 1e-6:
            table = build(name, memory_limit=peak, **arguments)
    except ScheduleError:
        return float("inf")
    run = simulate(table, costs, pairs=pairs)
    assert (
        run.makespan >= lower_bound(name, memory_limit=float(run.peak_activations.max()), **arguments) * (1 - 1e-9)
        or pairs == "atomic"
    )
    return run.makespan / float(row["makespan"])


ROWS_OF_THE_DAY = 20
OURS = sorted({our_name(row["algorithm"]) for row in rows()})


@pytest.mark.daily(5)
@pytest.mark.parametrize("whole", TODAY_OR_ALL)
@pytest.mark.parametrize("name", OURS)
def test_no_public_order_is_faster(name: str, whole: bool) -> None:
    theirs = [row for row in rows() if our_name(row["algorithm"]) == name]
    ratios = [ratio(row) for row in drawn(name, theirs, ROWS_OF_THE_DAY, whole=whole)]
    assert max(ratios) <= 1.001
    if name in CLOSED:
        assert min(ratios) >= 1.0 - 1e-6


SLOWER_THAN_A_FRESH_ROW = {("v-min", "AMD-AGI/Primus zbv_greedy.py f8a2664"): 1}
"""Known shortfall: at p = 12, m = 95 and equal passes that order is 0.33 % faster than our V-Min."""

FRESH = sorted({(our_name(row["algorithm"]), row["peer"]) for row in fresh_rows()})


@pytest.mark.daily(6)
@pytest.mark.parametrize(("name", "peer"), FRESH)
def test_no_public_order_of_an_unseen_pipeline_is_faster(name: str, peer: str) -> None:
    ratios = [ratio(row) for row in fresh_rows() if (our_name(row["algorithm"]), row["peer"]) == (name, peer)]
    slower = [each for each in ratios if each > 1.001]
    assert len(slower) <= SLOWER_THAN_A_FRESH_ROW.get((name, peer), 0)
    assert all(each <= 1.005 for each in slower)


@pytest.mark.parametrize("name", ["v-auto", "zb-auto"])
def test_small_pipelines_get_the_proven_optimum(name: str) -> None:
    ratios = []
    for case in json.loads((DATA / "proven_optima.json").read_text()):
        if case["placement"] != ("v" if name == "v-auto" else "loop") or case["vpp"] != (2 if name == "v-auto" else 1):
            continue
        costs = Costs(forward=case["F"], backward=case["B"], weight=case["W"], comm=case["comm"])
        table = build(name, stages=case["p"], microbatches=case["m"], costs=costs, memory_limit=case["mem_limit_units"])
        ratios.append(simulate(table, costs).makespan / case["makespan"])
    assert len(ratios) >= 15
    assert min(ratios) >= 1.0 - 1e-9
    assert sum(r <= 1.005 for r in ratios) >= 0.95 * len(ratios)


def test_the_papers_own_search_has_the_spans_of_its_public_implementation() -> None:
    """ZB-1p with half of the activations released at B, and any limit below 2p released at W; to float noise."""
    compared = 0
    for row in rows():
        limit, stages = json.loads(row["params"]).get("max_mem"), int(row["p"])
        if our_name(row["algorithm"]) != "zb-auto" or limit is None or limit >= 2 * stages:
            continue
        name, memory_limit = ("zb-1p", None) if "half-at-B" in row["algorithm"] else ("zb-2p", limit)
        costs = costs_of(row)
        order = build(name, stages=stages, microbatches=int(row["m"]), costs=costs, memory_limit=memory_limit)
        assert simulate(order, costs).span == pytest.approx(float(row["span"]), rel=1e-6), row
        compared += 1
    assert compared > 400


@pytest.mark.in_turn
def test_the_bound_is_never_above_a_public_order_or_a_proven_optimum() -> None:
    placements = {"loop": "interleaved", "v": "dualpipev", "bidirectional": "dualpipe"}
    for row in rows():
        costs = costs_of(row)
        bound = lower_bound(
            placements[row["placement"]],
            stages=int(row["p"]),
            microbatches=int(row["m"]),
            virtual_stages=int(row["vpp"]),
            costs=costs,
            memory_limit=float(row["peak_max"]),
        )
        assert bound <= float(row["makespan"]) * (1 + 1e-9), row
        if row["lb_at_own_peak"]:
            assert bound >= float(row["lb_at_own_peak"]) * (1 - 1e-5), row
    for case in json.loads((DATA / "proven_optima.json").read_text()):
        bound = lower_bound(
            placements[case["placement"]],
            stages=case["p"],
            microbatches=case["m"],
            virtual_stages=case["vpp"],
            costs=Costs(forward=case["F"], backward=case["B"], weight=case["W"], comm=case["comm"]),
            memory_limit=case["mem_limit_units"],
        )
        assert case["LB"] * (1 - 1e-9) <= bound <= case["makespan"] * (1 + 1e-9), case


def test_every_name_in_the_file_is_one_of_ours() -> None:
    assert {algorithm(name).name for name in OURS} <= set(names())
