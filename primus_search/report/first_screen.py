"""The first screen of an answer: at most 24 lines of 80 columns, what to run first, the next commands last.

The same text stands on the terminal, on top of report.html and in the notebook.
"""

import textwrap
from collections.abc import Sequence
from itertools import zip_longest
from shlex import quote

from primus_search.analysis.labels import chance, counted, short
from primus_search.base.units import GB, TERA
from primus_search.cost.confidence.fit import FIT_THRESHOLD, FITS
from primus_search.exploration.answer_values import Answer, Choice
from primus_search.exploration.neighbours import Figures, OwnConfiguration
from primus_search.values.candidates import spoken

COLUMNS, LINES = 80, 24
LEAST_LINES = 16  # under a table of many clusters
INDENT = 6
_WHAT, _WHEN = 31, 27  # widths of the two columns of words; the figures take the rest


def first_screen(
    answer: Answer, folder: str, baseline: OwnConfiguration | None = None, refusal: str = "", above: int = 0
) -> list[str]:
    """The lines; `folder`: of the run, for the command that opens the page; `refusal`: why no files can be written;
    `above`: lines of the screen that are printed before."""
    lines = [*_filled(f"{answer.job} | {answer.size}", ""), ""]
    lines += _filled(answer.what, "RUN")
    lines += _filled(_figures(answer), "", INDENT)
    for text in answer.goal:
        lines += _filled(text, "GOAL" if text is answer.goal[0] else "", INDENT)
    own = _own(baseline, answer) if baseline is not None else []
    ends = _commands(answer, folder, refusal)
    notes = [_filled(text, "NOTE" if not i else "", INDENT) for i, text in enumerate(answer.notes)]
    trust = [_filled(text, "TRUST" if not i else "", INDENT) for i, text in enumerate(answer.trust)]
    remarks = [_filled(text, "", INDENT) for text in answer.remarks]
    room = max(LINES - above, LEAST_LINES) - len(lines) - len(own) - len(ends) - 2
    table = _choices(answer.choices, room - 1, sum(map(len, (*notes, *trust[:1]))))
    shown = _within([*notes, *trust, *remarks], len(notes), room - len(table))
    return [*lines, *shown, "", *table, *own, "", *ends]


def _figures(answer: Answer) -> str:
    """Rate with its band, work against the peak, memory and whether it fits."""
    surely = answer.verdict if answer.verdict == FITS else f"{answer.verdict} ({chance(answer.fit_probability)})"
    return (
        f"{answer.rate:,.0f} tok/s/GPU ({answer.low:,.0f}-{answer.high:,.0f}), {answer.flops_per_s / TERA:,.0f} "
        f"TFLOP/s = {answer.peak_share:.0%} of {answer.number_format} peak, {answer.memory_bytes / GB:,.0f}/"
        f"{answer.device_bytes / GB:,.0f} GB, {surely}"
    )


def _within(paragraphs: Sequence[list[str]], needed: int, room: int) -> list[str]:
    """The paragraphs that have room, in their order; the one at place `needed` is never the one left out."""
    kept, left = set[int](), room
    for place in sorted(range(len(paragraphs)), key=lambda place: place != needed):
        if len(paragraphs[place]) <= left:
            kept.add(place)
            left -= len(paragraphs[place])
    return [line for place in sorted(kept) for line in paragraphs[place]]


def _filled(text: str, head: str, indent: int = 0) -> list[str]:
    indent = indent or (INDENT if head else 0)
    return textwrap.wrap(
        text, COLUMNS, initial_indent=head.ljust(indent), subsequent_indent=" " * indent, break_on_hyphens=False
    )


def _choices(chosen: Sequence[Choice], room: int, beside: int) -> list[str]:
    """Letter, what differs, rate, memory and when to take it, the first that have `room` lines; the others are counted,
    as are differences that have none beside other lines of the screen."""
    lines = [_row("", "what", "tok/s/GPU", "GB", "take it when")]
    spare = room - beside - len(chosen)
    for place, one in enumerate(chosen):
        words = _differences(one.what, 1 + max(spare, 0)), textwrap.wrap(one.when, _WHEN)
        height, left = max(map(len, words)), len(chosen) - place
        if place and len(lines) + height + (left > 1) > room + 1:
            return [*lines, f"    {counted(left, 'more choice')} on the page"]
        spare -= height - 1
        figures = one.letter, f"{one.rate:,.0f}", f"{one.memory_bytes / GB:,.0f}"
        for what, when in zip_longest(*words, fillvalue=""):
            letter, rate, memory = figures
            lines.append(_row(letter, what, rate, memory, when))
            figures = "", "", ""
    return lines


def _differences(what: str, most: int) -> list[str]:
    """Lines of what differs, at most `most`: the first differences, and how many more there are."""
    parts = what.split(", ")
    for shown in range(len(parts), 0, -1):
        rest = f" and {len(parts) - shown} more" if shown < len(parts) else ""
        lines = textwrap.wrap(", ".join(parts[:shown]) + rest, _WHAT)
        if len(lines) <= most:
            break
    return lines


def _row(letter: str, what: str, rate: str, memory: str, when: str) -> str:
    return f"{letter:>3} {what:{_WHAT}} {rate:>9} {memory:>5}  {when}".rstrip()


def _own(found: OwnConfiguration, answer: Answer) -> list[str]:
    """What is run now: its rate beside the choices, its place, and the two changes that make most of the difference."""
    lines = []
    if found.figures is not None:
        rate, memory = found.figures.expected_tokens_per_s_per_gpu, found.figures.memory_bytes / GB
        what = textwrap.shorten(short(found.values), _WHAT, placeholder=" …")
        lines.append(_row("you", what, f"{rate:,.0f}", f"{memory:,.0f}", "what runs now"))
    lines += _filled(f"Yours ({found.path}): {_place(found)}", "", INDENT)
    if found.behind < 0 and (found.beyond or found.left_out):
        lines += _filled(_unsearched(found), "", INDENT)
    lines += [line for one in found.broken[:2] for line in _filled(f"{one.rule}: {one.reason}", "", INDENT)[:1]]
    if found.pair_figures is not None and found.figures is not None:
        lines += _filled(_gain(found, found.figures, found.pair_figures, answer.rate), "", INDENT)
    return lines[:5]


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
    gap = f"{found.behind:.0%} behind" if found.behind >= 0 else f"{-found.behind:.0%} ahead of {_passed(found)}"
    if not found.figures.fits:
        return f"out of memory by {-found.figures.headroom_bytes / GB:.1f} GB; {rate}, {gap}"
    about = "" if found.is_rank_exact else "about "
    return f"rank {about}{found.rank:,} of {found.of:,}, {gap} ({rate})"


def _passed(found: OwnConfiguration) -> str:
    """The winner that it is ahead of, and why that is the winner."""
    if found.beyond or found.left_out:
        return "the best of this space"
    is_doubted = found.figures is not None and found.figures.fits and found.fits < FIT_THRESHOLD
    return f"A, which is surer to fit ({chance(found.fits)} here)" if is_doubted else "A, plainer and within noise"


def _unsearched(found: OwnConfiguration) -> str:
    """What of it the search does not vary, as `--set tp=8 --set fp8=mxfp8`, and constraints that leave it out."""
    own = " ".join(f"--set {quote(f'{name}={spoken(value)}')}" for name, value in found.beyond.items())
    return "; ".join([*([f"not searched; with it: {own}"] if own else []), *found.left_out])


def _commands(answer: Answer, folder: str, refusal: str) -> list[str]:
    """How many candidates there were, and what to do next; commands take the last run where none is named."""
    page = f"{folder}/report.html" if folder else "report.html in the run folder"
    return [
        *_filled(answer.counts, ""),
        *(_filled(f"Files: none: {refusal}", "") if refusal else ()),
        "Why: primus-search explain A" if refusal else "Files: primus-search export A   Why: primus-search explain A",
        f"Page:  {page}",
    ]
