"""What `explain` prints: tables that fit 80 columns, behave in a pipe and need no colour."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields
from typing import TextIO

from rich.console import Group
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from primus_search.analysis.ablation import Neighbour as Move
from primus_search.analysis.breakdown import TRAFFIC_PARTS
from primus_search.analysis.explanation import Explained
from primus_search.analysis.labels import ROUNDING, counted, fits, rests, short
from primus_search.analysis.why_not import WhatIf, WhyNot
from primus_search.base.html_templates import rendered
from primus_search.base.units import GB, MB
from primus_search.cost.projection import Memory
from primus_search.exploration.neighbours import Figures, Trial, change_text, word
from primus_search.report.gantt import terminal
from primus_search.report.plain_tables import Plain, table
from primus_search.space import AxisValue
from primus_search.values.candidates import spoken

MS = 1e3
MOST_RANKS = 8  # pipeline ranks shown as columns; of longer pipelines the first, the last and the fullest
MOST_RULES = 4
# Characters of a pipeline in the terminal; of steps with more passes per rank only the page has room.
GANTT_COLUMNS = 56


def print_explained(e: Explained, stream: TextIO) -> None:
    """Every part, in the order of the questions."""
    console = Plain(stream)
    for part in (_configuration, _coverage, _step, _traffic, _stages, _memory, _ablation, _sensitivity, _advice):
        if e.timeline is not None or part is not _stages:
            console.print(part(e))


def _configuration(e: Explained) -> Text:
    cluster = e.choice.cluster
    words = {"label": short(e.row), "nodes": counted(cluster.num_nodes, "node"), "fits": fits(e.row)}
    text = rendered("explained.txt", e=e, cluster=cluster, source=rests(e.confidence), GB=GB, **words)
    return Text.assemble((e.space.name, "bold"), text.removesuffix("\n"))


def _coverage(e: Explained) -> Group:
    """Part by part: measured on this device, or extrapolated and why."""
    rows = ((part.part, "measurements" if part.is_calibrated else "extrapolation", part.why) for part in e.coverage)
    switches = f"Switches: {e.unmeasured_gain}." if e.unmeasured_gain else ""
    lines = (line for line in (e.measured_kernels, switches) if line)
    return Group(
        "What the projection rests on", _table("part", "rests on", "", left=("part", "rests on", ""), rows=rows), *lines
    )


def _ms(seconds: float) -> str:
    return f"{seconds * MS:,.1f}"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _step(e: Explained) -> Group:
    whole = e.figures.step_s
    parts = sorted(e.figures.step.items(), key=lambda item: -item[1])
    rows = [(_words(name), _ms(s), f"{s / whole:.1%}") for name, s in parts if abs(s) > ROUNDING * whole]
    note = [] if e.timeline is None else [
        f"Compute and traffic are those of the busiest pipeline rank ({e.busiest}); the bubble is the rest of the "
        f"pipeline's {e.timeline.makespan:.3f} s ({e.figures.bubble_ratio:z.1%} of it)."
    ]  # fmt: skip
    found = _table("step", "ms", "share", left=("step",), rows=rows)
    found.add_section()
    found.add_row("total", _ms(whole), "100.0%")
    return Group("Where the step goes", found, *note)


def _traffic(e: Explained) -> Group:
    columns = ("traffic", "MB each", "count", "ms", "hidden", "exposed", "part")
    rows = []
    for sent in e.traffic:
        hidden = f"{sent.hidden_s / sent.seconds if sent.seconds else 0.0:.0%}", _ms(sent.exposed_s)
        # What a hop exposes depends on the schedule: the simulator knows, and calls it bubble.
        shown = hidden if sent.part in (*TRAFFIC_PARTS, "gradient_comm") else ("-", "-")
        sizes = f"{sent.message_bytes / MB:,.1f}", f"{sent.count:,.0f}", _ms(sent.seconds)
        rows.append((sent.operation, *sizes, *shown, _words(sent.part)))
    found = _table(*columns, left=("traffic", "part"), rows=rows)
    return Group("Traffic of the busiest rank, per step", found if rows else "none")


def _stages(e: Explained) -> Group:
    s, line, pp = e.stages, e.timeline, int(e.one.pp[0])
    assert line is not None
    passes = (s.forward_s, s.recompute_s, s.input_grad_s, s.weight_grad_s)
    rows = []
    for rank in range(pp):
        mine = s.rank == rank
        held = f"{line.busy[rank] / line.makespan:.1%}", f"{line.peak_activations[rank]:.2f}"
        rows.append((str(rank), f"{s.layers[mine].sum():.0f}", *(f"{p[mine].sum() * MS:.1f}" for p in passes), *held))
    found = _table("rank", "layers", "F ms", "recompute", "B ms", "W ms", "busy", "peak act.", rows=rows)
    head = f"Pipeline ranks, per micro-batch ({e.row['schedule']}, {e.row['vpp']} chunks per rank)"
    note = "peak act.: activations held, in micro-batches through one full rank."
    is_drawn = len(line.table) <= GANTT_COLUMNS * pp
    drawn = terminal(line, GANTT_COLUMNS) if is_drawn else "report.html draws every pass of the step."
    return Group(head, found, note, drawn)


def _memory(e: Explained) -> Group:
    memory, pp = e.memory_by_rank, len(e.memory_by_rank.weights)
    worst = int(memory.total.argmax())
    ranks = list(range(pp)) if pp <= MOST_RANKS else sorted({0, 1, worst, pp - 2, pp - 1})
    head = "GB on pipeline rank"
    columns = {_words(f.name): memory.__getattribute__(f.name) for f in fields(Memory)}
    parts = {name: column for name, column in columns.items() if column.max() > 0}
    rows = [(name, *(f"{column[r] / GB:.1f}" for r in ranks)) for name, column in parts.items()]
    found = _table(head, *map(str, ranks), left=(head,), rows=rows)
    found.add_section()
    found.add_row("total", *(f"{memory.total[r] / GB:.1f}" for r in ranks))
    hbm, margin = e.choice.cluster.accelerator.hbm_bytes, e.space.search.memory_margin
    note = f"The device has {hbm / GB:.0f} GB, {margin:.0%} kept free; rank {worst} is the fullest."
    return Group("Memory at each rank's worst moment", found, note)


def _ablation(e: Explained) -> Group:
    rows = []
    for one in e.ablations:
        followed = ", ".join(f"{name}={one.alone.changes[name]}" for name in one.alone.followed)
        if one.gain is None:
            followed = one.alone.broken[0].rule
        elif not one.alone.fits:
            followed = f"does not fit{'; ' if followed else ''}{followed}"
        alone = "not legal" if one.gain is None else f"{one.gain:+.1%}"
        tuned = "" if one.tuned_gain is None else f"{one.tuned_gain:+.1%}"
        tuned = f">{one.least_tuned:+.1%}" if one.least_tuned is not None else tuned
        values = (_folded(spoken(value)) for value in (one.used, one.off))
        rows.append((one.knob, *values, alone, tuned, _folded(followed.lower())))
    columns = ("knob", "used", "off", "alone", "re-tuned", "followed by")
    found = _table(*columns, left=("used", "off", "followed by"), rows=rows)
    note = "alone: tokens/s over the same candidate with the knob off. re-tuned: over the best of the run with it off."
    return Group("What each knob gives", found, note)


LONGEST_NAME = 20


def _folded(text: str) -> str:
    """Long names on two lines at an underscore, where a table would cut them anywhere."""
    folds = ((word, word.rfind("_", 0, LONGEST_NAME) + 1) for word in text.split(" "))
    return " ".join(word if len(word) <= LONGEST_NAME or not at else f"{word[:at]}\n{word[at:]}" for word, at in folds)


def _sensitivity(e: Explained) -> Group:
    rows = []
    for move in e.steps:
        f = move.trial.figures
        rate = "-" if f is None or move.behind is None else f"{-move.behind:+.1%}"
        spare = "-" if f is None else f"{f.headroom_bytes / GB:.0f}"
        rows.append((change_text(move.trial), rate, spare, _verdict(move)))
    columns = ("one step away", "tokens/s", "spare GB", "verdict")
    return Group("How sharp the optimum is", _table(*columns, left=("one step away", "verdict"), rows=rows))


def _verdict(move: Move) -> str:
    beyond = "" if move.is_in_space else " (not in the space)"
    if not move.trial.is_legal:
        return f"illegal: {move.trial.broken[0].rule}{beyond}"
    assert move.trial.figures is not None
    return ("fits" if move.trial.fits else f"misses {-move.trial.figures.headroom_bytes / GB:.1f} GB") + beyond


def _advice(e: Explained) -> Group:
    lines = rendered("advice.txt", advice=e.advice, GB=GB).splitlines()
    return Group("What would make it faster (every change projected again)", _indented(lines))


def _indented(lines: Sequence[str]) -> Group:
    """Lines of which each goes on under its own beginning where it is too long."""
    return Group(*(Padding(line.lstrip(), (0, 0, 0, len(line) - len(line.lstrip())), expand=False) for line in lines))


# --- other questions -------------------------------------------------------------------------------------------------


def print_why_not(e: Explained, answer: WhyNot, stream: TextIO) -> None:
    """The plain change, then the best of the space with these values."""
    console = Plain(stream)
    asked = ", ".join(f"{name}={_word(answer.alone, name, value)}" for name, value in answer.asked.items())
    console.print(f"Why not {asked} instead of rank {e.rank} ({short(e.row)})?")
    chance = answer.chance
    found = {name: word(name, value) for name, value in (chance.best or {}).items()}
    best = short(found | {"dp": chance.figures.dp}) if chance.figures and found else ""
    lines = rendered(
        "why_not.txt", base=e.figures, answer=answer, best=best, change_text=change_text, standing=_standing,
        most_rules=MOST_RULES,
    )  # fmt: skip
    console.print(_indented(lines.splitlines()))
    if answer.alone.figures is not None:
        console.print(_difference(e.figures, answer.alone.figures))


def _word(trial: Trial, name: str, value: AxisValue) -> str:
    return spoken(trial.changes.get(name, word(name, value)))


def _standing(base: Figures, other: Figures) -> str:
    gap = other.expected_tokens_per_s_per_gpu / base.expected_tokens_per_s_per_gpu - 1.0
    side, room = f"{-gap:.1%} behind" if gap < 0 else f"{gap:.1%} ahead", other.headroom_bytes / GB
    fit = f"fits with {room:.1f} GB to spare" if other.fits else f"misses {-room:.1f} GB"
    return f"It is {side} ({other.expected_tokens_per_s_per_gpu:,.0f} tokens/s/GPU) and {fit}."


def _difference(base: Figures, other: Figures) -> RichTable:
    """Parts of the step that differ most."""
    changes = {name: other.step[name] - base.step[name] for name in base.step}
    rows = [
        (_words(name), _ms(base.step[name]), _ms(other.step[name]), f"{change * MS:+,.1f}")
        for name, change in sorted(changes.items(), key=lambda item: -abs(item[1]))
        if abs(change) > 1e-4 * base.step_s
    ]
    found = _table("part of the step", "ms now", "ms then", "difference", left=("part of the step",), rows=rows)
    found.add_section()
    change = f"{(other.step_s - base.step_s) * MS:+,.1f}"
    found.add_row("total", _ms(base.step_s), _ms(other.step_s), change)
    return found


def print_what_if(e: Explained, answer: WhatIf, stream: TextIO) -> None:
    """The same candidate under other inputs, and the run's best rows in their new order."""
    console = Plain(stream)
    console.print(f"What if {', '.join(answer.changes)}, for rank {e.rank} ({short(e.row)})?")
    if answer.after is None:
        broken = [f"  {one.rule}: {one.reason}" for one in answer.broken]
        console.print(_indented(["It is not legal there; it breaks", *broken]))
    else:
        console.print(_standing(answer.before, answer.after))
        console.print(_difference(answer.before, answer.after))
    seen = counted(answer.looked_at, "best row")
    if not answer.ranking:
        console.print(f"Of the {seen} of the run none is legal and fits there.")
        return
    rows = (
        (str(moved.rank), str(moved.was), short(dict(moved.row) | {"dp": moved.figures.dp}),
         f"{moved.figures.expected_tokens_per_s_per_gpu:,.0f}", f"{moved.figures.headroom_bytes / GB:.0f}")
        for moved in answer.ranking
    )  # fmt: skip
    found = _table("#", "was", "configuration", "tok/s/GPU", "spare GB", left=("configuration",), rows=rows)
    console.print(Group(f"The {seen} of the run, ranked anew ({answer.dropped:,} drop out)", found))
    console.print("Rows the run did not keep may do better there: run the space again with this change.")


def _table(*columns: str, left: Collection[str] = (), rows: Iterable[Iterable[str]] = ()) -> RichTable:
    return table(*columns, left=left, wrapped=left, rows=rows)
