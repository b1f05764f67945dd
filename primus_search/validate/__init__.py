"""Compare projections with measured runs: read a table of runs, project each, score the errors per group."""

from primus_search.validate.cases import Case, Skipped, build_case
from primus_search.validate.rows import Run, read_runs
from primus_search.validate.run import Outcome, validate_file, validate_runs
from primus_search.validate.score import Score, score

__all__ = [
    "Case",
    "Outcome",
    "Run",
    "Score",
    "Skipped",
    "build_case",
    "read_runs",
    "score",
    "validate_file",
    "validate_runs",
]
