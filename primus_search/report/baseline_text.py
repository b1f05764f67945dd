"""A baseline beside a ranking, in words: rank, distance, and the two changes that make most of it."""

import textwrap

from primus_search.base.units import GB
from primus_search.exploration.neighbours import Figures, OwnConfiguration
from primus_search.values.candidates import spoken

COLUMNS = 80


def baseline_lines(found: OwnConfiguration, best: float) -> list[str]:
    """The lines that `run --baseline` prints; `best` is the winner's expected rate in tokens/s/GPU."""
    lines = [f"Yours ({found.path}): " + _place(found)]
    lines += [f"  {one.rule}: {one.reason}" for one in found.broken]
    if found.pair_figures is not None and found.figures is not None:
        lines.append("  " + _gain(found, found.figures, found.pair_figures, best))
    lines += [f"  {note}" for note in found.notes]
    return [part for line in lines for part in textwrap.wrap(line, COLUMNS, subsequent_indent="    ")]


def _gain(found: OwnConfiguration, own: Figures, after: Figures, best: float) -> str:
    """What the two changes that gain most bring: `tp=2, recompute=none make 24 of these 31 %`."""
    changes = ", ".join(f"{name}={spoken(value)}" for name, value in found.pair.items())
    rate = f"{after.expected_tokens_per_s_per_gpu:,.0f} tok/s/GPU"
    if after.fits and not own.fits:
        return f"with {changes} it fits: {rate}"
    gained = (after.expected_tokens_per_s_per_gpu - own.expected_tokens_per_s_per_gpu) / best
    if gained >= found.behind:
        return f"{changes} make all of it: {rate}"
    return f"{changes} make {gained * 100:.0f} of these {found.behind:.0%}: {rate}"


def _place(found: OwnConfiguration) -> str:
    if found.figures is None:
        return "it is not legal here"
    rate = f"{found.figures.expected_tokens_per_s_per_gpu:,.0f} tok/s/GPU"
    gap = f"{found.behind:.0%} behind" if found.behind >= 0 else f"{-found.behind:.0%} ahead of the best of this space"
    if not found.figures.fits:
        return f"out of memory by {-found.figures.headroom_bytes / GB:.1f} GB; {rate}, {gap}"
    about = "" if found.is_rank_exact else "about "
    return f"rank {about}{found.rank:,} of {found.of:,}, {gap} ({rate})"
