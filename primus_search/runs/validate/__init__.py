"""Compare projections with measured runs: project the records of a table, score the errors per group."""

from primus_search.runs.validate.score_runs import (
    Score,
    ScoredRun,
    Validation,
    project_runs,
    score,
    summary,
    validate_runs,
)

__all__ = ["Score", "ScoredRun", "Validation", "project_runs", "score", "summary", "validate_runs"]
