"""After re-validation the frontier says what the ranking says, and nowhere are unlike figures compared."""

import csv
import errno
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from primus_search.analysis.answer import decide
from primus_search.cli import app
from primus_search.cost.projection import Projection
from primus_search.exploration.expected import RATE
from primus_search.exploration.rank import frontier_after
from primus_search.exploration.ranking_table import MEASURED, PROJECTED, TRACED, RankingTable
from primus_search.exploration.run_folder.folder import StoreError
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.exploration.top_up import top_up
from primus_search.measure import revalidate as measuring
from primus_search.measure.revalidate import Revalidation
from primus_search.report.frontier_text import print_saved_frontier
from primus_search.report.html import content
from primus_search.values.candidates import COLUMN_NAMES, Candidates
from primus_search.values.job import Job
from tests.support.page_rows import columns
from tests.support.small_runs import make_run

SLOWER, HEAVIER = 1.25, 1.02
NUM_MEASURED, NUM_TRACED = 6, 3
WORKLOAD = {"seq_length": 512, "global_batch_size": 64}
FIGURES = ("tokens_per_s_per_gpu", "memory_bytes", "time_evidence", "memory_evidence")


def on_a_device(job: Job, c: Candidates, projection: Projection, how: Any) -> Revalidation:
    """A device on which the first rows take a quarter longer, the second of them least; three of them are traced."""
    step, memory = projection.step, projection.memory
    factor = np.where(np.arange(len(c)) < NUM_MEASURED, SLOWER, 1.0)
    factor[1] = SLOWER - 0.1
    order = np.concatenate([[1, 0], np.arange(2, len(c))])
    more = np.where(np.isin(np.arange(len(c)), order[:NUM_TRACED]), HEAVIER, 1.0)
    slower = replace(step, **{name: factor * step.__getattribute__(name) for name in step.__dataclass_fields__})
    heavier = replace(memory, **{name: more * memory.__getattribute__(name) for name in memory.__dataclass_fields__})
    rest = len(c) - NUM_MEASURED
    return Revalidation(
        order=order,
        projection=replace(projection, step=slower, memory=heavier).take(order),
        time_evidence=(MEASURED,) * NUM_MEASURED + (PROJECTED,) * rest,
        memory_evidence=(TRACED,) * NUM_TRACED + (PROJECTED,) * (len(c) - NUM_TRACED),
    )


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("untouched"), model="tiny", workload=WORKLOAD)


@pytest.fixture(scope="module")
def run(untouched: Path, tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    """A run measured on that device later, as `bench` does."""
    folder = shutil.copytree(untouched, tmp_path_factory.mktemp("measured") / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "revalidate", on_a_device)
        top_up(folder, device="cuda", top_k=4, seconds=1.0, decide=decide)
    return SavedRun.open(folder)


def knobs(row: Any) -> tuple[Any, ...]:
    return tuple(row[name] for name in COLUMN_NAMES)


def test_a_row_has_the_same_figures_in_ranking_frontier_and_kept_rows(run: SavedRun) -> None:
    ranked = {knobs(row): row for row in run.ranking}
    both = [(row, ranked[knobs(row)]) for row in run.frontier if knobs(row) in ranked]
    assert {row["time_evidence"] for row, _ in both} == {MEASURED, PROJECTED}
    for row, same in both:
        assert [row[name] for name in FIGURES] == [same[name] for name in FIGURES]
    kept = pyarrow.parquet.read_table(run.path / "candidates.parquet").to_pylist()
    for row, same in zip(kept, run.ranking, strict=False):
        assert knobs(row) == knobs(same)
        assert [row[name] for name in FIGURES] == [pytest.approx(same[name], rel=1e-9) for name in FIGURES[:2]] + [
            same[name] for name in FIGURES[2:]
        ]
    assert len({row["index"] for row in kept}) == len(kept)


def test_no_row_of_the_frontier_beats_another_on_the_same_evidence_and_the_chosen_one_is_on_it(run: SavedRun) -> None:
    assert knobs(run.ranking[0]) in {knobs(row) for row in run.frontier}
    for one in run.frontier:
        for other in run.frontier:
            if one is not other and [one[name] for name in FIGURES[2:]] == [other[name] for name in FIGURES[2:]]:
                is_faster = one[RATE] > other[RATE]
                assert is_faster == (one["memory_bytes"] > other["memory_bytes"])


def test_a_projected_row_stays_though_a_measured_one_is_better(run: SavedRun, untouched: Path) -> None:
    before = SavedRun.open(untouched)
    looked_at = {knobs(row) for row in run.ranking if row["time_evidence"] == MEASURED}
    stayed = {knobs(row) for row in run.frontier if row["time_evidence"] == PROJECTED}
    assert stayed == {knobs(row) for row in before.frontier} - looked_at


def test_ties_are_with_the_fastest_measured_row_not_with_what_was_projected_too_fast(run: SavedRun) -> None:
    best = run.ranking[0]
    assert best["time_evidence"] == MEASURED and best["ties_with_best"]
    assert max(row["tokens_per_s_per_gpu"] for row in run.ranking) > best["tokens_per_s_per_gpu"]
    assert not any(row["ties_with_best"] for row in run.ranking if row["time_evidence"] == PROJECTED)


def test_the_terminal_marks_what_each_point_stands_on(run: SavedRun) -> None:
    text = io.StringIO()
    print_saved_frontier(run, text)
    said = text.getvalue()
    assert "frontier: . projected  m time measured  # chosen" in said
    assert {line.split()[3] for line in said.splitlines() if " TP" in line} <= {"m/t", "m/p", "p/p"}
    assert "has its own frontier" in " ".join(said.split())


def test_the_page_has_parts_that_sum_to_the_measured_figures(run: SavedRun) -> None:
    found = columns(content(run)["rows"])
    measured = [i for i, evidence in enumerate(found["time_evidence"]) if evidence == MEASURED]
    assert measured
    for i in measured:
        for parts, whole in (("step.", "step_s"), ("memory.", "memory_bytes")):
            total = sum(column[i] for name, column in found.items() if name.startswith(parts))
            assert total == pytest.approx(found[whole][i], rel=1e-4)


def test_measuring_again_with_nothing_measured_gives_back_the_frontier_of_the_search(
    run: SavedRun, untouched: Path, tmp_path: Path
) -> None:
    again = shutil.copytree(run.path, tmp_path / "run")
    found = CliRunner().invoke(app, ["bench", str(again), "--device", "trace", "--top", "1"])
    assert found.exit_code == 0, found.output
    rows, wanted = (list(csv.DictReader((folder / "ranking.csv").open())) for folder in (again, untouched))
    assert [knobs(row) for row in rows] == [knobs(row) for row in wanted]
    assert {row["time_evidence"] for row in rows} == {PROJECTED}
    facts = json.loads((again / "run.json").read_text())
    assert facts["best"]["memory_evidence"] == TRACED


def test_a_disk_that_is_full_leaves_the_run_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(tmp_path, model="tiny", workload=WORKLOAD, space={"tp": 1, "pp": 1, "recompute": "none"})
    monkeypatch.setattr(measuring, "revalidate", on_a_device)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    write = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if "candidates" in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StoreError, match="what was measured could not be written: No space left on device"):
        top_up(folder, device="cuda", top_k=4, seconds=1.0, decide=decide)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_what_a_device_showed_not_to_fit_leaves_the_frontier(run: SavedRun) -> None:
    space, choice = run.space, run.cluster(1)
    from primus_search.cost.project import Projector

    c = Candidates.table(micro_batch_size=[1, 2])
    job = space.job_on(choice)
    projection = Projector(job).project(c)
    before = RankingTable(job=job, choice=choice, indices=np.array([0, 1]), candidates=c, projection=projection)
    full = replace(projection, headroom_bytes=np.array([1e9, -1e9]))
    measured = replace(before, projection=full, memory_evidence=(MEASURED,) * 2, measured_fits=np.array([0.99, 0.01]))
    assert 1 in before.indices
    assert frontier_after(before, measured).indices.tolist() == [0]
    gone = replace(measured, time_evidence=(MEASURED,) * 2, projection=replace(projection, headroom_bytes=-np.ones(2)))
    assert not len(frontier_after(before, gone))
    assert gone.confidence.ties_with_best[gone.order[0]]  # nothing fits: rate times probability leads
