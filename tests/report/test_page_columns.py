"""The packed candidates of the report page hold what the run kept, and the page is the same for the same run."""

import re
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from primus_search.analysis.labels import short
from primus_search.exploration.expected import RATE
from primus_search.exploration.ranking_table import FIGURES
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.report import html, html_columns
from primus_search.report.html import content
from primus_search.values.candidates import COLUMN_NAMES
from tests.support.page_rows import columns, labels
from tests.support.small_runs import make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    """A run that keeps fewer rows than it ranks and has on its frontier."""
    return SavedRun.open(make_run(tmp_path_factory.mktemp("page"), keep=200))


@pytest.fixture(scope="module")
def rows(run: SavedRun) -> dict[str, Any]:
    found: dict[str, Any] = content(run)["rows"]
    return found


def test_every_kept_row_is_in_the_page_with_its_knobs_figures_and_parts(run: SavedRun, rows: dict[str, Any]) -> None:
    kept = pyarrow.parquet.read_table(run.path / "candidates.parquet").to_pylist()
    found = columns(rows)
    for i, row in enumerate(kept):
        assert [found[name][i] for name in COLUMN_NAMES] == [row[name] for name in COLUMN_NAMES]
        for name in (name for name in FIGURES if name != "tokens_per_s"):
            assert found[name][i] == pytest.approx(row[name], rel=2e-5, abs=1e-12), name
        assert sum(v[i] for k, v in found.items() if k.startswith("step.")) == pytest.approx(row["step_s"], rel=1e-4)
        parts = sum(v[i] for k, v in found.items() if k.startswith("memory."))
        assert parts == pytest.approx(row["memory_bytes"], rel=1e-4)


def test_every_ranked_row_is_there_under_its_rank_and_its_short_name(run: SavedRun, rows: dict[str, Any]) -> None:
    found, names = columns(rows), labels(rows)
    assert len(run.ranking) > len(pyarrow.parquet.read_table(run.path / "candidates.parquet"))
    for rank, row in enumerate(run.ranking, start=1):
        i = found["rank"].index(rank)
        assert names[i] == short(row)
        assert found["verdict"][i] == row["memory_verdict"]
        assert found[RATE][i] == pytest.approx(row[RATE], rel=1e-6)
        assert sum(v[i] for k, v in found.items() if k.startswith("step.")) == pytest.approx(row["step_s"], rel=1e-4)
    assert sum(rank > 0 for rank in found["rank"]) == len(run.ranking)


def test_the_frontier_is_there(run: SavedRun, rows: dict[str, Any]) -> None:
    found = columns(rows)
    assert [found["memory_bytes"][i] for i in rows["frontier"]] == [
        pytest.approx(row["memory_bytes"], rel=2e-5) for row in run.frontier
    ]


def test_of_too_many_rows_those_that_are_ranked_or_on_the_frontier_stay(
    run: SavedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html_columns, "MOST_ROWS", 50)
    rows = content(run)["rows"]
    found = columns(rows)
    assert sum(rank > 0 for rank in found["rank"]) == len(run.ranking)
    assert [found["memory_bytes"][i] for i in rows["frontier"]] == [
        pytest.approx(row["memory_bytes"], rel=2e-5) for row in run.frontier
    ]


def test_one_run_gives_one_page(run: SavedRun, rows: dict[str, Any]) -> None:
    again = content(run)
    assert again["rows"] == rows and html.page(run, again) == html.page(run, content(run))


def test_modules_are_joined_in_the_order_of_their_imports() -> None:
    folder = Path(html.__file__).parent / "page"
    joined = "\n".join(html.modules())
    assert not re.findall(r"^(?:import|export)\b", joined, re.MULTILINE)
    for file in folder.glob("*.js"):
        for line in file.read_text(encoding="utf-8").splitlines():
            name = re.match(r"export (?:async )?(?:const|class|function) (\w+)", line)
            assert (
                name is None or len(re.findall(rf"^(?:async )?(?:const|class|function) {name[1]}\b", joined, re.M)) == 1
            )
