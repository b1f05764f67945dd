"""Why a job is slow, in at most 24 lines: measured beside expected, the likeliest causes, what would tell."""

import textwrap

from primus_search.analysis.slow_jobs.slow_job import SlowJob

COLUMNS = 80
MOST_CAUSES = 3
FAR_ABOVE = 2.0
"""Times the upper end of the band from which on another job than the one projected is likelier than any cause."""
MOST_REASONS = 2


def slow_lines(job: SlowJob) -> list[str]:
    """The lines of a log beside its projection."""
    ratio = job.step_s / job.expected_s - 1.0
    side = f"{abs(ratio):.0%} {'slower' if ratio > 0 else 'faster'} than expected"
    place = "above the band: slow" if job.is_slow else "below the band" if job.step_s < job.low_s else "inside the band"
    measured = f"measured {job.step_s:.3f} s a step ({job.steps} steps, spread {job.noise:.1%})"
    expected = f"expected {job.expected_s:.3f} ({job.low_s:.3f}-{job.high_s:.3f})"
    lines = _filled(f"{measured}, {expected}: {side}, {place}", "LOG   ")
    if job.is_healthy:
        return [*lines, "HEALTHY  no stall, no drift, no change of level."]
    if job.step_s > FAR_ABOVE * job.high_s:
        text = "nothing projected explains so much: compare the settings of the job first (project LOG, compare)"
        lines += _filled(text, "CHECK ")
    for one in job.patterns:
        lines += _filled(one.text, "SEEN  ")
    for rank, cause in enumerate(job.causes[:MOST_CAUSES], start=1):
        lines += _filled(f"{cause.what}: {cause.probability:.0%}", f"{rank:>4}  ")
        for head, reasons in (("for", cause.speaks_for), ("against", cause.speaks_against)):
            lines += [line for text in reasons[:MOST_REASONS] for line in _filled(text, f"      {head}: ")[:2]]
    if job.causes:
        lines += _filled(job.causes[0].measure, "TELL  ")
    return lines


def _filled(text: str, head: str) -> list[str]:
    return textwrap.wrap(text, COLUMNS, initial_indent=head, subsequent_indent=" " * min(len(head), 6))
