"""The recommendation is the best row that FITS by its strongest evidence, and everything that names one names it."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from primus_search.analysis.choices import faster_if_memory_saved
from primus_search.analysis.explanation import as_data, explain
from primus_search.analysis.why_not import why_not
from primus_search.cli import app
from primus_search.cost.confidence.fit import FIT_THRESHOLD, FITS, fit_probability, room_to_fit_bytes
from primus_search.cost.confidence.uncertainty import TIE
from primus_search.cost.project import Projector
from primus_search.cost.projection import Projection
from primus_search.declare import load_space
from primus_search.exploration.neighbours import Evaluator, values_of
from primus_search.exploration.ranking_table import MEASURED, PROJECTED, RANKED_ROWS, RUN, TRACED, RankingTable
from primus_search.exploration.result import SearchResult
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.measure import revalidate as measuring
from primus_search.measure.revalidate import Revalidation
from primus_search.report.explain_text import print_explained
from primus_search.session.complete_search import search
from primus_search.session.notebook import load_run
from primus_search.space import Space
from primus_search.values.candidates import COLUMN_NAMES, Candidates
from primus_search.values.job import Job
from tests.support.small_runs import make_run


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Space:
    """A small space that is re-validated by tracing."""
    folder = make_run(tmp_path_factory.mktemp("recommendation"), framework="primus")
    return replace(load_space(folder.parent / "space.yaml", environ={}), benchmark=_traced(folder))


def _traced(folder: Path) -> Any:
    return load_space(folder.parent / "space.yaml", overrides=["benchmark.device=trace"], environ={}).benchmark


def table(space: Space, *, share_of_device: list[float], slower: float = 0.01, **evidence: Any) -> RankingTable:
    """Rows, the fastest first, each `slower` than the one before it, that need these shares of the device."""
    choice = space.clusters[0]
    job = space.job_on(choice)
    c = Candidates.table(micro_batch_size=[1] * len(share_of_device))
    p = Projector(job).project(c)
    room = job.room_bytes(0.0)
    memory = replace(p.memory, activations=p.memory.activations + np.array(share_of_device) * room - p.memory.total)
    step = replace(p.step, mlp=p.step.mlp + p.step.total * slower * np.arange(len(c)))
    projection = replace(p, step=step, memory=memory, headroom_bytes=room - memory.total)
    numbers = np.arange(len(c))
    return RankingTable(job=job, choice=choice, indices=numbers, candidates=c, projection=projection, **evidence)


@pytest.mark.parametrize(
    ("shares", "memory", "order"),
    [
        ([0.5, 0.6, 0.7], (PROJECTED,) * 3, [0, 1, 2]),
        ([0.99, 0.6, 0.7], (PROJECTED,) * 3, [1, 0, 2]),  # AT RISK: the next that FITS goes before it
        ([1.2, 0.6, 0.7], (TRACED, PROJECTED, PROJECTED), [1, 2, 0]),  # OOM: last
        ([1.2, 0.99, 0.7, 0.5], (TRACED, TRACED, PROJECTED, TRACED), [2, 1, 3, 0]),
        ([0.99, 0.98], (PROJECTED,) * 2, [1, 0]),  # none FITS: by rate times probability
        ([1.2, 0.99], (TRACED, TRACED), [1, 0]),
    ],
)
def test_the_first_row_is_the_fastest_that_fits_and_rows_shown_not_to_fit_are_last(
    space: Space, shares: list[float], memory: tuple[str, ...], order: list[int]
) -> None:
    rows = table(space, share_of_device=shares, memory_evidence=memory)
    assert rows.order.tolist() == order
    shuffled = np.arange(len(rows))[::-1]
    assert shuffled[rows.take(shuffled).order].tolist() == order
    ranked = rows.take(rows.order)
    assert ranked.order.tolist() == list(range(len(rows)))
    assert not (ranked.confidence.ties_with_best & ranked.is_lost).any()


@pytest.mark.parametrize("least_fit", [0.0, 0.5, FIT_THRESHOLD])
@pytest.mark.parametrize(
    ("shares", "slower", "asked"),
    [
        ([0.99, 0.6], 2.0, 0),  # three times as fast: worth a start that may fail, where that is asked for
        ([0.99, 0.6], 0.2, 1),  # 20 % faster, with a probability of 0.57
        ([0.99, 0.97, 0.6], 0.01, 2),
        ([1.0, 0.93, 0.5], 0.08, 2),
        ([0.97, 0.9, 0.5, 0.5], 0.5, 0),
        ([1.0, 0.96, 0.5, 0.5], 0.001, 2),
    ],
)
def test_the_recommendation_fits_unless_the_space_asks_for_less_and_pays_for_failed_starts(
    space: Space, shares: list[float], slower: float, asked: int, least_fit: float
) -> None:
    rows = table(space, share_of_device=shares, slower=slower, least_fit=least_fit)
    first, may = rows.order[0], rows.fits >= least_fit
    assert rows.verdicts[first] == FITS or least_fit < FIT_THRESHOLD
    assert rows.sure_rate[first] >= rows.sure_rate[may].max() * (1.0 - TIE)
    if least_fit < FIT_THRESHOLD:
        assert first == asked
    assert rows.confidence.ties_with_best[first]
    assert rows.take(rows.order).order.tolist() == list(range(len(rows)))


def test_a_row_that_fits_is_recommended_however_far_behind_and_rows_shown_not_to_fit_are_last_of_those_ranked(
    space: Space,
) -> None:
    shares = [1.0001, *[0.99] * RANKED_ROWS, 0.5]
    rows = table(space, share_of_device=shares, slower=0.001, memory_evidence=np.array([TRACED, *[PROJECTED] * 1001]))
    assert rows.is_lost[0] and rows.fits[0] > 0.4
    assert rows.order[0] == RANKED_ROWS + 1 and rows.order[RANKED_ROWS] == 0


def test_a_row_that_was_run_fits_whatever_is_projected(space: Space) -> None:
    rows = table(space, share_of_device=[0.99, 0.6], time_evidence=(RUN, PROJECTED))
    assert rows.order.tolist() == [0, 1] and rows.confidence.fits[0] == 1.0


def test_a_measured_row_at_risk_stands_behind_one_that_fits(space: Space) -> None:
    rows = table(space, share_of_device=[0.5, 0.99], time_evidence=(PROJECTED, MEASURED))
    assert rows.order.tolist() == [0, 1]


def test_the_room_for_surety_is_where_the_probability_of_fitting_is_that(space: Space) -> None:
    for is_assumed in (False, True):
        rows = table(space, share_of_device=[0.5])
        cluster, memory = rows.job.cluster, rows.projection.memory
        job = replace(rows.job, cluster=replace(cluster, stack=replace(cluster.stack, is_assumed=is_assumed)))
        room = room_to_fit_bytes(job, rows.candidates)
        memory = replace(memory, activations=memory.activations + room - memory.needed)
        assert fit_probability(job, rows.candidates, memory)[0] == pytest.approx(FIT_THRESHOLD, rel=1e-6)
        assert room_to_fit_bytes(job, rows.candidates, margin=0.9)[0] == pytest.approx(job.room_bytes(0.9))


NUM_LOST = 2


def shows_that_the_first_do_not_fit(job: Job, c: Candidates, projection: Projection, how: Any) -> Revalidation:
    """The first rows need twice the device once traced; the third was traced and fits."""
    lost = np.arange(len(c)) < NUM_LOST
    memory = projection.memory
    memory = replace(memory, activations=memory.activations + np.where(lost, 2.0 * job.room_bytes(0.0), 0.0))
    headroom = projection.headroom_bytes + projection.memory.total - memory.total
    return Revalidation(
        order=np.arange(len(c)),
        projection=replace(projection, memory=memory, headroom_bytes=headroom),
        time_evidence=(PROJECTED,) * len(c),
        memory_evidence=(TRACED,) * (NUM_LOST + 1) + (PROJECTED,) * (len(c) - NUM_LOST - 1),
    )


@pytest.fixture(scope="module")
def both(space: Space, tmp_path_factory: pytest.TempPathFactory) -> tuple[RankingTable, SearchResult, Path]:
    """The ranking before re-validation, the result after it, and its folder."""
    before = search(replace(space, benchmark=replace(space.benchmark, device="off"))).ranking
    folder = tmp_path_factory.mktemp("both") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "revalidate", shows_that_the_first_do_not_fit)
        return before, search(space, out=folder), folder


@pytest.mark.in_turn
def test_everything_that_recommends_names_the_best_row_that_fits_after_tracing(
    both: tuple[RankingTable, SearchResult, Path],
) -> None:
    before, result, folder = both
    wanted = before.candidates.row(NUM_LOST)

    def knobs(row: Any) -> dict[str, Any]:
        return {name: row[name] for name in COLUMN_NAMES}

    assert knobs(result.ranking.row(0)) == wanted
    run = SavedRun.open(folder)
    assert knobs(run.ranking[0]) == wanted and knobs(run.facts["best"]) == wanted
    assert run.ranking[0]["memory_verdict"] == "FITS" and run.ranking[0]["memory_evidence"] == TRACED
    assert knobs(load_run(folder)[1].row) == wanted
    listed = min(len(result.ranking), RANKED_ROWS)
    last = list(csv.DictReader((folder / "ranking.csv").open()))[listed - NUM_LOST :]
    assert [row["memory_verdict"] for row in last[:NUM_LOST]] == ["OOM"] * NUM_LOST
    assert not any(row["memory_verdict"] == "OOM" for row in run.frontier)
    found = CliRunner().invoke(app, ["next", str(folder), "--json", "--count", "1"])
    assert found.exit_code == 0, found.output
    picked = json.loads(found.output)["picks"][0]["rank"]
    assert run.row(picked)["memory_verdict"] == "FITS"


def test_a_faster_row_that_does_not_fit_is_named_with_what_saves_the_memory(
    both: tuple[RankingTable, SearchResult, Path],
) -> None:
    _, result, folder = both
    run = SavedRun.open(folder)
    faster = faster_if_memory_saved(run.ranking, Evaluator(result.space, result.best.choice))
    lost = [row for row in run.ranking if row["memory_verdict"] == "OOM"]
    fastest = max(row["expected_tokens_per_s_per_gpu"] for row in lost)
    first = run.ranking[0]["expected_tokens_per_s_per_gpu"]
    assert (faster is not None) == (fastest > first)
    if faster is None:
        return
    assert faster.gain == pytest.approx(fastest / first - 1.0)
    assert faster.row["headroom_bytes"] < 0.0 < faster.saving_bytes < faster.row["memory_bytes"]
    named = [one.when for one in result.answer.choices if one.rank == faster.rank]
    assert bool(named) == (faster.gain > TIE) and all("you free" in when for when in named)
    assert not any("do not fit" in note for note in result.notes)  # nothing to act on: nobody starts the last ranks
    assert run.answer == result.answer


@pytest.mark.in_turn
def test_explain_takes_no_row_that_was_shown_not_to_fit(both: tuple[RankingTable, SearchResult, Path]) -> None:
    before, result, folder = both
    run = SavedRun.open(folder)
    first_lost = min(len(result.ranking), RANKED_ROWS) - NUM_LOST + 1
    lost = [{name: before.candidates.row(row)[name] for name in COLUMN_NAMES} for row in range(NUM_LOST)]
    e = explain(run, 1)
    tuned = [one.tuned for one in e.ablations if one.tuned is not None]
    assert tuned and not any({name: row[name] for name in COLUMN_NAMES} in lost for row in tuned)
    for row in range(NUM_LOST):
        values = values_of(before.candidates, row)
        differing = {name: value for name, value in values.items() if value != e.base[name]}
        answer = why_not(e.evaluator, e.base, differing)
        assert answer.alone.is_legal and not answer.alone.fits
        assert answer.chance.best is None or answer.chance.best != values or not answer.chance.figures.fits
    shown = explain(run, first_lost)
    assert shown.is_lost and not e.is_lost
    assert as_data(shown)["memory_verdict"] == "OOM" and as_data(shown)["ranked_headroom_bytes"] < 0.0
    text = io.StringIO()
    print_explained(shown, text)
    assert "It does not fit: traced memory is" in " ".join(text.getvalue().split())


def test_another_cluster_is_looked_at_where_the_best_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never_fits_on_two_nodes(job: Job, c: Candidates, projection: Projection, how: Any) -> Revalidation:
        lacking = -1e9 if job.cluster.num_nodes == 2 else 0.0
        return Revalidation(
            order=np.arange(len(c)),
            projection=replace(projection, headroom_bytes=projection.headroom_bytes * (lacking == 0.0) + lacking),
            time_evidence=(PROJECTED,) * len(c),
            memory_evidence=(TRACED,) * len(c),
        )

    folder = make_run(tmp_path, nodes=[2, 4], framework="primus")
    assert SavedRun.open(folder).ranking[0]["nodes"] == 2
    several = load_space(folder.parent / "space.yaml", overrides=["benchmark.device=trace"], environ={})
    monkeypatch.setattr(measuring, "revalidate", never_fits_on_two_nodes)
    result = search(several, out=tmp_path / "again")
    assert result.best.choice.cluster.num_nodes == 4
    first = SavedRun.open(tmp_path / "again").ranking[0]
    assert (first["nodes"], first["memory_verdict"], first["memory_evidence"]) == (4, "FITS", TRACED)
