"""One rate: rows are sorted, compared and shown by their expected rate, whatever is kept, by every writer."""

import csv
import io
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from primus_search.analysis.explanation import as_data, explain
from primus_search.cli import app
from primus_search.declare import load_space
from primus_search.exploration.expected import RATE
from primus_search.exploration.funnel import Options, run_search
from primus_search.exploration.ranking_table import RANKED_ROWS
from primus_search.exploration.run_folder.candidates_file import Kept
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.report.html import content
from primus_search.report.html_columns import NUMBERS
from primus_search.session.notebook import load_run
from primus_search.values.candidates import COLUMN_NAMES
from tests.support.page_rows import columns

NARROW = ["--set", "pp=[1,2]", "--set", "cp=1", "--set", "tp=[1,2]", "--bench", "off"]

MIXTURE = [
    *("mixtral_8x22b", "--nodes", "2,4", "--set", "global_batch_size=256", "--set", "pp=[2,4]", "--set", "cp=1"),
    *("--set", "schedule=1f1b", "--set", "tp=[1,2]", "--bench", "off"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    """A run where projections and expected rates order the rows differently."""
    folder = tmp_path_factory.mktemp("rate") / "run"
    done = CliRunner().invoke(app, ["run", *MIXTURE, "--out", str(folder)])
    assert done.exit_code == 0, done.output
    return SavedRun.open(folder)


def falls(figures: Sequence[float], slack: float = 1e-9) -> bool:
    """Whether figures never rise; `slack`: a share that rounding of what is printed may hide."""
    return all(after <= before * (1.0 + slack) for before, after in pairwise(figures))


def test_the_fixture_tells_the_two_rates_apart(run: SavedRun) -> None:
    kept = Kept.open(run.path, 0, is_exact=True)
    assert falls(kept.speed[1:].tolist()) and not falls(kept.column("tokens_per_s_per_gpu").tolist())


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    "space", [("mixtral_8x22b", "cp=1", "schedule=1f1b"), ("llama3_8b_mi300x",), ("llama3.1_405b_h100", "cp=1")]
)
def test_what_is_kept_never_changes_a_recommendation(space: tuple[str, ...]) -> None:
    loaded = load_space(space[0], overrides=["benchmark.device=off", *space[1:]], environ={})
    found = [run_search(loaded, Options(keep=keep, workers=1)).ranking.row(0) for keep in (1, 64, 100_000)]
    assert found[0] == found[1] == found[2]


@pytest.mark.in_turn
def test_kept_rows_are_the_first_of_the_ranking(tmp_path: Path) -> None:
    words = ["run", "llama3_8b_mi300x", *NARROW, "--keep", "40", "--out", str(tmp_path / "run")]
    assert CliRunner().invoke(app, words).exit_code == 0
    kept = Kept.open(tmp_path / "run", 0, is_exact=True)
    assert len(kept) == 40
    rows = SavedRun.open(tmp_path / "run").ranking[:40]
    assert kept.speed.tolist() == pytest.approx([row[RATE] for row in rows], rel=1e-9)
    assert [[kept.row(i)[name] for name in COLUMN_NAMES] for i in range(40)] == [
        [row[name] for name in COLUMN_NAMES] for row in rows
    ]


def test_files_are_sorted_by_the_rate_that_stands_beside_the_projection(run: SavedRun) -> None:
    lines = list(csv.DictReader(io.StringIO((run.path / "ranking.csv").read_text())))
    at = list(lines[0]).index("tokens_per_s_per_gpu")
    assert list(lines[0])[at + 1] == RATE
    ranked = run.ranking[:1000]  # behind them stand the best of each layout and precision
    assert falls([row[RATE] for row in ranked[1:]]) and falls([row[RATE] for row in run.ranking[1001:]])
    for row in run.ranking:
        assert row["tokens_per_s_per_gpu_low"] < row[RATE] < row["tokens_per_s_per_gpu_high"]
        assert row[RATE] <= row["tokens_per_s_per_gpu"] * (1 + 1e-9)
    front = [row for row in run.frontier if row["nodes"] == run.ranking[0]["nodes"]]
    assert [row["memory_bytes"] for row in front] == sorted(row["memory_bytes"] for row in front)
    rates = [row[RATE] for row in front]
    assert all(more > less for less, more in pairwise(rates)), "memory buys expected rate, of every row"
    for row in run.ranking:
        if row["nodes"] == front[0]["nodes"] and row["memory_verdict"] != "OOM":
            spends = [one[RATE] for one in front if one["memory_bytes"] <= row["memory_bytes"] * (1 + 1e-9)]
            assert max(spends) >= row[RATE] * (1 - 1e-9), "no ranked row is above the frontier"
    scaling = list(csv.DictReader(io.StringIO((run.path / "scaling.csv").read_text())))
    worlds = [int(row["world"]) for row in scaling]
    assert worlds == sorted(worlds)
    rates = {int(row["nodes"]): float(row["tokens_per_s_per_gpu"]) for row in scaling}
    assert rates[run.ranking[0]["nodes"]] == pytest.approx(run.ranking[0][RATE])
    for nodes, rate in rates.items():  # of each cluster the recommendation, within the noise of its fastest row
        assert rate in [pytest.approx(row[RATE]) for row in run.ranking if row["nodes"] == nodes]


def table_of(text: str, heading: str) -> list[dict[str, str]]:
    """The cells of the first printed table that has a column of this heading, by heading, from where they end."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.strip().startswith("#") and heading in line)
    end = lines[start].index(heading) + len(heading)
    rows = []
    for line in lines[start + 2 :]:
        if not line.strip():
            break
        rows.append({heading: line[:end].split(" ")[-1]})
    return rows


@pytest.mark.parametrize(
    ("words", "is_sorted"),
    [
        (["run", "llama3_8b_mi300x", *NARROW, "--all", "--top", "40", "--out", "OUT"], True),
        (["explain", "RUN", "--what-if", "hardware.nic_GBps=25"], True),
    ],
    ids=["--all", "--what-if"],
)
def test_printed_tables_are_sorted_by_the_rate_they_show(
    run: SavedRun, tmp_path: Path, words: list[str], is_sorted: bool
) -> None:
    words = [word.replace("RUN", str(run.path)).replace("OUT", str(tmp_path / "run")) for word in words]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "140"})
    assert done.exit_code == 0, done.output
    rates = [float(row["tok/s/GPU"].replace(",", "")) for row in table_of(done.output, "tok/s/GPU")]
    assert len(rates) >= 8 and falls(rates[1:], slack=1e-4)


@pytest.mark.in_turn
def test_page_notebook_and_explain_show_the_rate_of_the_file(run: SavedRun) -> None:
    first: dict[str, Any] = dict(run.ranking[0])
    page = (run.path / "report.html").read_text()
    assert (
        f"{first[RATE]:,.0f}" in page and RATE in NUMBERS and '"speed", column: "' + RATE in page.replace("name: ", "")
    )
    notebook = load_run(run.path)
    assert notebook.choices[RATE].iloc[0] == first[RATE] and f"{first[RATE]:,.0f}" in repr(notebook)
    for rank in (1, 2, 40):
        e = explain(run, rank)
        assert (
            as_data(e)[RATE] == run.row(rank)[RATE] == pytest.approx(e.figures.expected_tokens_per_s_per_gpu, rel=1e-9)
        )


def test_tables_of_the_page_are_sorted_by_the_rate_they_show(run: SavedRun) -> None:
    """The page lists candidates by rank as they are packed, and its choices under the first screen's letters."""
    found = columns(content(run)["rows"])
    ranks, rates = found["rank"], found[RATE]
    ranked = [rate for rank, rate in sorted(zip(ranks, rates, strict=True)) if 0 < rank <= RANKED_ROWS]
    assert len(ranked) >= 8 and falls(ranked[1:], slack=1e-4)
    kept = rates[1 : len(Kept.open(run.path, 0, is_exact=True))]
    assert falls(kept, slack=1e-4)  # what has no rank stands behind in the same order
    page = (run.path / "report.html").read_text()
    shown = [page.index(f'data-pin-rank="{choice.rank}"') for choice in run.answer.choices]
    assert shown == sorted(shown) and falls([choice.rate for choice in run.answer.choices[1:]])


def test_tables_of_the_notebook_are_sorted_by_the_rate_they_show(run: SavedRun) -> None:
    notebook = load_run(run.path)
    assert falls(notebook.ranking[RATE].tolist()[1:RANKED_ROWS]) and falls(notebook.choices[RATE].tolist()[1:])
    assert falls(notebook.candidates[notebook.candidates["cluster"] == 0][RATE].tolist()[1:])
    best = notebook.frontier["nodes"] == notebook.ranking["nodes"].iloc[0]
    assert notebook.frontier[best]["memory_bytes"].is_monotonic_increasing


def test_the_printed_frontier_and_scaling_are_sorted_by_what_they_are_of(run: SavedRun) -> None:
    done = CliRunner().invoke(app, ["pareto", str(run.path)], env={"COLUMNS": "140"})
    lines = done.output.splitlines()
    start = next(i for i, line in enumerate(lines) if line.split()[:2] == ["GB", "projected"])
    sizes = [float(line.split()[0]) for line in lines[start + 2 :] if line[:8].strip().replace(".", "").isdigit()]
    assert len(sizes) >= 2 and sizes == sorted(sizes)


def test_project_says_of_a_row_what_its_run_says(run: SavedRun) -> None:
    projected = "tokens_per_s_per_gpu"
    shown = (RATE, projected, f"{projected}_low", f"{projected}_high")
    shares = set()
    for rank in (1, 7, len(run.ranking)):
        done = CliRunner().invoke(app, ["project", "--row", f"{run.path}/ranking.csv:{rank}", "--json"])
        assert done.exit_code == 0, done.output
        found, row = json.loads(done.stdout), run.row(rank)
        for name in shown:
            assert found[name] == pytest.approx(row[name], rel=1e-6)
        shares.add(round(found[RATE] / found[projected], 3))
    assert len(shares) > 1, "rows differ in what rests on unmeasured switches"
