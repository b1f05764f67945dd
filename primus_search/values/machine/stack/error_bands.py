"""Errors of projections: bands of a stack from runs left out of the fit, and what a site adds before its own runs."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteErrors:
    """log(measured / projected) on a cluster that no fit has seen:

        log(mean_ratio) + site + group + configuration

    Standard deviations are of dense models; those of experts are `moe_factor` times as large.
    """

    mean_ratio: float
    """Geometric mean of measured / projected over publishers that are neither the device's vendor nor the software's
    author."""

    site: float
    """Standard deviation of what all runs of one publisher on one cluster share."""

    group: float
    """Standard deviation of what all runs of one model on one device share there."""

    configuration: float
    """Standard deviation of what one configuration has of its own; two rows of a ranking differ by this alone."""

    moe_factor: float
    """Standard deviations of models with experts over those of dense ones."""

    quantile: float
    """95th percentile of the error over its standard deviation."""

    memory_low: float
    """5th percentile of measured / projected bytes that have to fit."""

    memory_high: float
    """95th percentile of measured / projected bytes that have to fit."""
