"""The short screens of `explain`, `compare`, `project`: at most 25 lines of 80 columns; `-v` prints the tables."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from primus_search.analysis.advice import Advice
from primus_search.analysis.answer import task_words
from primus_search.analysis.explanation import Explained
from primus_search.analysis.labels import ROUNDING, chance, counted, rests, short
from primus_search.analysis.run_comparison import Comparison, MovedFigure
from primus_search.base.units import GB
from primus_search.exploration.expected import RATE
from primus_search.space import Space
from primus_search.values.candidates import spoken

COLUMNS, LINES = 80, 25
INDENT = 7
MOST_CAUSES, MOST_KNOBS, MOST_MOVES = 3, 5, 3
MOST_PARTS, NOTE_LINES = 9, 2
FIRST_STEP = "stops in the first step"
"""In the note on a candidate that a framework starts and does not run."""
LEAST_SHARE, LEAST_EFFECT = 0.02, 0.005
"""Shares of the step below which a part, and the change of a part, are left to the tables."""
HEADED = {RATE: ("tok/s/GPU", 1.0), "step_s": ("step s", 1.0), "memory_bytes": ("GB", GB), "mfu": ("MFU", 1.0)}


def explained_lines(e: Explained) -> list[str]:
    """Where the time of a candidate goes, three causes of time lost with a remedy each, what it rests on."""
    row, f, cluster = e.row, e.figures, e.choice.cluster
    lines = _filled(f"{e.space.name}, rank {e.rank}: {short(row)}", "")
    where = f"{e.space.model.name} on {cluster.world:,} {cluster.accelerator.name}, stack {cluster.stack.title}"
    low, high = row["tokens_per_s_per_gpu_low"], row["tokens_per_s_per_gpu_high"]
    lines += _filled(
        f"{where}; {row[RATE]:,.0f} tokens/s/GPU ({low:,.0f}-{high:,.0f}), step {f.step_s:.3f} s, MFU {f.mfu:.0%}, "
        f"{row['memory_bytes'] / GB:,.1f} GB with {row['headroom_bytes'] / GB:,.1f} to spare, {row['memory_verdict']} "
        f"({chance(row['fit_probability'])})",
        "",
    )
    if e.is_lost:
        held, lost = row["memory_bytes"] / GB, -row["headroom_bytes"] / GB
        lines += _filled(
            f"It does not fit: {row['memory_evidence']} memory is {held:.1f} GB, {lost:.1f} GB too much.", ""
        )
    lines += _filled(_shares(f.step, f.step_s), "STEP")
    gains = [f"{one.knob}={spoken(one.used)} {one.gain:+.0%}" for one in e.ablations if one.gain is not None]
    lines += _filled(f"{', '.join(gains[:MOST_KNOBS])} (each alone off)", "GIVES") if gains else []
    lines += _causes(e.advice)
    near = [one for one in e.steps if one.trial.fits and one.behind is not None]
    moves = [(next(iter(one.trial.changes.items())), -(one.behind or 0.0)) for one in near[:MOST_MOVES]]
    words = [f"{name}={spoken(value)} {change:+.1%}" for (name, value), change in moves]
    known = [part.part for part in e.coverage if part.is_calibrated]
    guessed = [part.part for part in e.coverage if not part.is_calibrated]
    rest = [f"{head}: {', '.join(parts)}" for head, parts in (("measured", known), ("extrapolated", guessed)) if parts]
    ends = _filled("; ".join([*rest, rests(e.confidence)]), "RESTS")
    ends += _filled("-v prints every table; --why-not tp=2, --what-if hardware.nic_GBps=100, --log FILE ask on.", "")
    lines += (
        _filled(f"one step away: {', '.join(words)} ({counted(len(e.steps), 'neighbour')} tried)", "NEAR")
        if words
        else []
    )
    return [*lines[: LINES - len(ends)], *ends]


def _causes(found: Sequence[Advice]) -> list[str]:
    """Findings, each with the best remedy that none above it has."""
    lines, used = list[str](), set[str]()
    for one in sorted(found, key=lambda one: (one.best is None, -one.share))[:MOST_CAUSES]:
        remedy = next((r for r in one.remedies if r.helps and r.what not in used), None)
        lines += _filled(f"{one.topic}: {one.finding}", " " if lines else "LOSES")[:2]
        if remedy is not None:
            used.add(remedy.what)
            beyond = "" if remedy.is_in_space else ", not in the space"
            lines += _filled(f"{remedy.what}: {remedy.gain:+.1%} tokens/s{beyond}", "   ->")
    return lines


def _shares(parts: Mapping[str, float], whole: float) -> str:
    shown = sorted(((s, name) for name, s in parts.items() if abs(s) > LEAST_SHARE * whole), reverse=True)
    return ", ".join(f"{name.replace('_', ' ')} {s / whole:.0%}" for s, name in shown)


def comparison_lines(c: Comparison) -> list[str]:
    """Which figures moved, in which knobs the winners differ, which inputs differ, what each did to the step."""
    lines = [f"A: {c.a}", f"B: {c.b}"]
    figures = [
        _figure(head, a / scale, b / scale) for name, (head, scale) in HEADED.items() for a, b in [c.figures[name]]
    ]
    lines += _filled(", ".join(figures), "BEST")
    knobs = [f"{name} {spoken(a)} -> {spoken(b)}" for name, (a, b) in c.winner.items()]
    lines += _filled(", ".join(knobs) or "the same configuration wins", "KNOBS")
    kinds: dict[str, list[str]] = {}
    for one in c.inputs:
        kinds.setdefault(_kind(one.what), []).append(one.what)
    inputs = [f"{names[0]}" if len(names) == 1 else f"{kind} ({len(names)})" for kind, names in kinds.items()]
    lines += _filled(", ".join(inputs) or "inputs, versions and settings are the same", "INPUTS")
    if c.recorded is not None and abs(c.recorded[1] / c.recorded[0] - 1.0) > 1e-9:
        change = c.recorded[1] / c.recorded[0] - 1.0
        lines += _filled(f"A recorded {c.recorded[0]:,.1f} tokens/s/GPU; today's code says {change:+.2%}.", "")
    lines += _filled(c.unexplained, "") if c.unexplained else []
    for place, moved in enumerate(c.moved):
        lines += _filled(_effect(moved), " " if place else "WHY")
    return [*lines[: LINES - 1], "-v prints every input and figure; --json has all of it."]


def projected_lines(space: Space, f: Mapping[str, Any], basis: str) -> list[str]:
    """The job, its rate, its memory and what they rest on, step and memory side by side, notes while there is room.

    f      the figures of one candidate, as `project --json` prints them
    basis  what its interval rests on, in words
    """
    job, cluster, memory = f["job"], space.cluster, f["memory"]["total_bytes"]
    size = f"{job['parameters'] / 1e9:,.1f} B parameters, {job['layers']} layers"
    lines = _filled(f"{space.model.name}, {size} | {job['layout']}, DP{f['candidate']['dp']}", "")
    where = f"{job['gpus']:,} {cluster.accelerator.name} ({job['nodes']:,} x {job['gpus_per_node']})"
    work = f"sequence {space.workload.seq_length:,}, global batch {space.workload.global_batch_size:,}"
    lines += _filled(
        f"{where} | {space.framework.title}, stack {cluster.stack.title} | {work}{task_words(space.job)}", ""
    )
    notes = [*f["notes"], *([f["measured_kernels"]] if f["measured_kernels"] else [])]
    lines += [line for note in notes if FIRST_STEP in note for line in _filled(note, "STOPS")]
    lines += _filled(
        f"{f[RATE]:,.0f} tokens/s/GPU ({f['tokens_per_s_per_gpu_low']:,.0f}-{f['tokens_per_s_per_gpu_high']:,.0f}), "
        f"formulas {f['tokens_per_s_per_gpu']:,.0f}, MFU {f['mfu']:.1%}, bubble {f['bubble_ratio']:z.1%}; {basis}",
        "RATE",
    )
    spare = f"{abs(f['headroom_bytes']) / GB:,.1f} {'to spare' if f['headroom_bytes'] >= 0 else 'too much'}"
    chances = f"runs with probability {chance(f['fit_probability'])}"
    lines += _filled(f"{f['memory_verdict']}, {memory / GB:,.1f} GB, {spare}, {chances}", "MEMORY")
    known, guessed = ([one for one in f["coverage"] if one["is_calibrated"] is is_known] for is_known in (True, False))
    named = [f"measured {', '.join(one['part'] for one in known)}"] if known else []
    named += [f"extrapolated {', '.join(one['part'] for one in guessed)}"] if guessed else []
    lines += _filled("; ".join(named), "RESTS")
    lines += _side_by_side(f)
    unpriced = [f"not modelled: {one}" for one in f.get("not_modelled", ())]
    left = [*(note for note in notes if FIRST_STEP not in note), *unpriced]
    left.sort(key=lambda note: (not note.startswith("assumed"), not note.startswith("not modelled")))
    for place, note in enumerate(left):
        more = _filled(note, "NOTE", NOTE_LINES)
        if len(lines) + len(more) + 1 > LINES - (place + 1 < len(left)):
            lines += [f"{counted(len(left) - place, 'more note')}: -v"]
            break
        lines += more
    return [*lines[: LINES - 1], "-v prints every part, note and reason; --json has all of it."]


def _side_by_side(f: Mapping[str, Any]) -> list[str]:
    """The largest parts of the step in ms and of the memory in GB, each with its share."""
    tables = [
        _parts(f["step"], "total_s", 1e3, lambda name: name.removesuffix("_s")),
        _parts(f["memory"], "total_bytes", 1.0 / GB, lambda name: name.removesuffix("_bytes")),
    ]
    head = f"{'step':<22}{'ms':>10}{'':>7}  {'memory, fullest rank':<22}{'GB':>9}"
    (*step, seconds), (*memory, held) = tables
    rows = [*zip_longest(step, memory, fillvalue=""), (seconds, held)]
    return [head, *(f"{a:<39}  {b}".rstrip() for a, b in rows)]


def _parts(parts: Mapping[str, float], total: str, factor: float, word: Callable[[str], str]) -> list[str]:
    """Lines of the largest parts, what is left, and the total."""
    whole = parts[total]
    sizes = {word(name).replace("_", " "): value for name, value in parts.items() if name != total}
    shown = sorted(sizes, key=lambda name: -abs(sizes[name]))[:MOST_PARTS]
    shown = [name for name in sizes if name in shown and abs(sizes[name]) > ROUNDING * whole]
    others = whole - sum(sizes[name] for name in shown)
    listed = [
        *((name, sizes[name]) for name in shown),
        *([("others", others)] if abs(others) > ROUNDING * whole else []),
    ]
    return [f"{name:<22}{value * factor:>10,.2f}{value / whole:>7.1%}" for name, value in [*listed, ("total", whole)]]


def _figure(head: str, a: float, b: float) -> str:
    numbers = (f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}" for value in (a, b))
    return f"{head} {' -> '.join(numbers)}" + (f" ({b / a - 1.0:+.1%})" if a else "")


def _kind(what: str) -> str:
    """`cluster.stack`, `cluster.accelerator.gemm`: the group that an input belongs to."""
    path = what.split(".")
    return ".".join(path[: min(len(path) - 1, 3)]) or what


def _effect(one: MovedFigure) -> str:
    """`stack +3.1%: launch -2%, experts -1% of the step`."""
    if one.change is None:
        return f"{one.group}: not legal then"
    parts = sorted(one.parts.items(), key=lambda item: -abs(item[1]))
    shown = [f"{name.replace('_', ' ')} {change:+.1%}" for name, change in parts if abs(change) > LEAST_EFFECT]
    return f"{one.group} {one.change:+.2%}" + (f": {', '.join(shown[:6])} of the step" if shown else "")


def _filled(text: str, head: str, most: int | None = None) -> list[str]:
    """Lines of a text after a head; at most so many, the last one cut."""
    indent = INDENT if head else 0
    first, others = head.ljust(indent), " " * (indent or 2)
    wrap = textwrap.TextWrapper(COLUMNS, first, others, break_on_hyphens=False, max_lines=most, placeholder=" ...")
    return wrap.wrap(text)
