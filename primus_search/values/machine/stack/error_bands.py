"""Error bands of a stack's projections, from runs left out of the fit."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBand:
    """Where measured / projected figures lie: 5 % of left-out runs below `low`, 5 % above `high`."""

    low: float
    """5th percentile of measured / projected."""

    high: float
    """95th percentile of measured / projected."""

    runs: float
    """Left-out runs that are the stack's own, near-duplicates included."""
