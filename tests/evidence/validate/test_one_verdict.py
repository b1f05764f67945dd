"""A run has one probability of fitting and one verdict, whether it is validated, projected or a row of a search."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from primus_search.evidence.published.convert import validated
from primus_search.evidence.validate.score_runs import ScoredRun
from primus_search.exploration.ranking_table import RankingTable
from tests.support.daily import TODAY_OR_ALL, drawn
from tests.support.published_run import excerpt

ROOT = Path(__file__).parents[3]
OWN = [f"tests/oracle/data/{name}.csv" for name in ("oom_runs", "unseen_runs_2", "unseen_runs_5")]
ROWS_OF_THE_DAY = 40
"""Of each table."""
SHARED = ROOT.parent / "shared" / "measurements"


def as_row_of_a_search(row: ScoredRun) -> tuple[float, str]:
    """Probability and verdict in a ranking, which `run` and `project` print."""
    no_choice: Any = None
    run, place = row.run, np.zeros(1, np.int64)
    table = RankingTable(
        job=run.job, choice=no_choice, indices=place, candidates=run.candidates, projection=row.projection
    )
    found = table.row(0)
    return found["fit_probability"], found["memory_verdict"]


@pytest.mark.daily(1)
@pytest.mark.parametrize("whole", TODAY_OR_ALL)
@pytest.mark.parametrize("path", [ROOT / name for name in OWN] + [SHARED / "first_contact_2.csv"], ids=lambda p: p.stem)
def test_validate_judges_as_run_and_project_do(path: Path, whole: bool, tmp_path: Path) -> None:
    if not path.is_file():
        pytest.skip("shared measurements are not there")
    outcome = validated(excerpt(path, tmp_path, lambda rows: drawn(path.stem, rows, ROWS_OF_THE_DAY, whole=whole)))
    rows = (*outcome.rows, *outcome.memory_only, *outcome.ran_out)
    differing = {}
    for row in rows:
        probability, verdict = as_row_of_a_search(row)
        if verdict != row.verdict or abs(probability - row.fit_probability) > 1e-9:
            differing[row.run.id] = (row.verdict, verdict, row.fit_probability, probability)
    assert rows and differing == {}
