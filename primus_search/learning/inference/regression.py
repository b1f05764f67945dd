"""Bayesian linear regression whose likelihood and errors of runs have the tails of a Student's t."""

import numpy as np

from primus_search.values.candidates import Floats

TAIL, ROUNDS = 3.0, 4
"""Degrees of freedom of a run's own error, and rounds of re-weighting: a run that no numbers explain counts less."""

DEGREES_OF_FREEDOM = 6.0
"""Of the Student's t in the weights."""


def regress(before: Floats, slopes: Floats, residuals: Floats, plain: Floats) -> tuple[Floats, Floats, float]:
    """Coordinates and covariance after the runs, and their marginal log-likelihood (Student's t tails).

    before: covariance of the coordinates without the runs. residuals: measured less projected log-rates of the runs.
    plain: variance of each run's own error.
    """
    gain = before @ slopes.T
    prior = slopes @ gain
    error = plain
    for _ in range(ROUNDS):
        left = residuals - prior @ np.linalg.solve(prior + np.diag(error), residuals)
        error = plain * (TAIL + left**2 / plain) / (TAIL + 1.0)
    total = prior + np.diag(error)
    solved = np.linalg.solve(total, np.column_stack([residuals, gain.T]))
    covariance = before - gain @ solved[:, 1:]
    distance, determinant = float(residuals @ solved[:, 0]), np.linalg.slogdet(total)[1]
    return gain @ solved[:, 0], covariance, log_student(distance, determinant, len(residuals))


def log_student(distance: float, log_determinant: float, runs: int) -> float:
    """Log-density of runs at a squared distance of their covariance, but for a constant."""
    nu = DEGREES_OF_FREEDOM
    return float(-0.5 * log_determinant - 0.5 * (nu + runs) * np.log1p(distance / nu))
