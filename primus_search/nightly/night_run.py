"""One night: search every space of a sweep, check accuracy and work, compare with the baseline, say why.

night = run_nightly(load_sweep(Path("sweeps/nightly.yaml")), Path("results/runs/nightly/nightly"))
night.passed, night.checks, night.causes
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from primus_search.analysis.labels import short
from primus_search.analysis.run_comparison import Comparison, hypervolume
from primus_search.analysis.run_comparison import compare as compared
from primus_search.base.units import GB
from primus_search.exploration.expected import RATE
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.files.plain_forms import short_text
from primus_search.nightly.causes import Cause, Pair, attribute, changes
from primus_search.nightly.figures import Accuracy, moved_most
from primus_search.nightly.observed import Observed, Say, now, observe, opened, read_baseline, replacing_folder
from primus_search.nightly.sweep import NightlySweep, Tolerances

RUNS = "runs"
"""Folder of the last night's run folders, below that of the reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One comparison. `move` is today / baseline - 1 (a difference for errors and counts); `limit` is what may pass.

    where     a place of the sweep, or `accuracy`, `speed`
    value     today's figure, for a trend     note      what a person wants to know beside the figures
    """

    where: str
    name: str
    before: str
    after: str
    move: float
    limit: float
    passed: bool
    value: float = 0.0
    note: str = ""

    @property
    def title(self) -> str:
        return f"{self.where}: {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """What one night found. `changes` are inputs, code and versions that differ, moved anything or not."""

    sweep: NightlySweep
    state: Observed
    baseline: Observed
    pairs: Mapping[str, Pair]
    checks: tuple[Check, ...]
    causes: tuple[Cause, ...]
    changes: tuple[str, ...]
    started: str
    seconds: float

    @property
    def passed(self) -> bool:
        return not self.failed

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.checks if not check.passed]


def _silent(line: str) -> None:
    """Says nothing."""


def run_nightly(sweep: NightlySweep, folder: Path, say: Say = _silent) -> Night:
    """Run a sweep and compare it with its baseline; tonight's run folders are left in `folder`/runs.

    Raises InputError where there is no baseline.
    """
    accepted = read_baseline(sweep.baseline)
    began, started = time.perf_counter(), now()
    with replacing_folder(folder / RUNS) as runs:
        state = observe(sweep, runs, say)
        former, tonight = opened(sweep.baseline, accepted), opened(runs, state)
        both = {where: (former[where], run) for where, run in tonight.items() if where in former}
        pairs = {where: Pair(before=a, after=b, found=compared(a, b)) for where, (a, b) in both.items()}
        checks = compare(sweep, accepted, state, pairs)
        causes = tuple(attribute(pairs, accepted, state, {check.where for check in checks if not check.passed}))
    return Night(
        sweep=sweep,
        state=state,
        baseline=accepted,
        pairs=pairs,
        checks=tuple(checks),
        causes=causes,
        changes=tuple(changes(pairs, accepted, state)),
        started=started,
        seconds=time.perf_counter() - began,
    )


# --- checks: one per figure, each with its limit and its verdict -----------------------------------------------------


def compare(sweep: NightlySweep, before: Observed, after: Observed, pairs: Mapping[str, Pair]) -> list[Check]:
    """Every check of a night, in the order of the sweep file."""
    checks: list[Check] = []
    limits = sweep.tolerances
    for where in dict.fromkeys([*sweep.entries, *before.runs]):
        if where in pairs:
            checks += _of_place(where, pairs[where], limits)
        elif where in before.runs and where in after.unanswered:
            words = _words("{}", "fits", after.unanswered[where])
            checks.append(Check(where=where, name="best", **words, move=-1.0, limit=limits.best, passed=False))
        else:
            checks.append(_unknown(where, int(where in before.runs), int(where in sweep.entries)))
    if after.accuracy and before.accuracy:
        checks += _of_accuracy(before.accuracy, after.accuracy, limits.accuracy)
    elif after.accuracy:
        checks.append(_unknown("accuracy", 0, after.accuracy.rows["rows"]))
    if sweep.speed:  # less is welcome; more than the tolerance is not
        move = after.work / before.work - 1.0 if before.work else 0.0
        words = _words("{:,}", before.work, after.work) | {"note": "instructions of Python per projection"}
        passed, name = move <= limits.speed, "projection work"
        checks.append(
            Check(where="speed", **words, name=name, move=move, limit=limits.speed, value=after.work, passed=passed)
        )
    return checks


def _words(form: str, before: object, after: object) -> dict[str, Any]:
    return {"before": form.format(before), "after": form.format(after)}


def _unknown(where: str, before: int, after: int) -> Check:
    note = "the sweep is no longer that of the baseline; accept it with --update-baseline --reason TEXT"
    words, move = _words("{}", before, after), float(after - before)
    return Check(where=where, **words, name="rows", move=move, limit=0.0, passed=False, note=note)


def _of_place(where: str, pair: Pair, limits: Tolerances) -> Iterator[Check]:
    was, now = pair.before, pair.after
    best = was.row(1), now.row(1)
    behind, note = _behind(pair.found)
    words = _words("{}", *map(short, best)) | {"note": note}
    passed = abs(behind) <= limits.best
    yield Check(where=where, **words, name="best", move=behind, limit=limits.best, passed=passed)
    most = was.cluster(1).cluster.accelerator.hbm_bytes
    figures = {
        "tokens_per_s": (*(row[RATE] for row in best), limits.tokens_per_s, "{:,.1f}"),
        "memory": (*(row["memory_bytes"] / GB for row in best), limits.memory, "{:,.2f} GB"),
        "frontier": (*(hypervolume(run.frontier, most) * GB / most for run in (was, now)), limits.frontier, "{:,.1f}"),
    }
    for name, (old, new, limit, form) in figures.items():
        move, words = relative(old, new), _words(form, old, new)
        yield Check(where=where, **words, name=name, move=move, limit=limit, value=new, passed=abs(move) <= limit)
    notes, legal = list(_rules_moved(was, now)), (was.facts["legal"], now.facts["legal"])
    words = _words("{:,} legal", *legal) | {"note": "; ".join(notes)}
    passed = not notes and legal[0] == legal[1]
    yield Check(where=where, **words, name="legality", move=relative(*legal), limit=0.0, passed=passed)


def relative(old: float, new: float) -> float:
    """How far a figure moved; 1 where it was 0 and is no longer."""
    return new / old - 1.0 if old else float(new != old)


def _rules_moved(before: SavedRun, after: SavedRun) -> Iterator[str]:
    was, now = ({one["rule"]: one["rows"] for one in run.facts["removed"]} for run in (before, after))
    for rule in sorted({*was, *now}):
        if rule not in now:
            yield f"rule {rule} is gone (removed {was[rule]:,} rows)"
        elif rule not in was:
            yield f"rule {rule} is new (removes {now[rule]:,} rows)"
        elif was[rule] != now[rule]:
            yield f"rule {rule} removes {now[rule]:,} rows, not {was[rule]:,}"


def _behind(found: Comparison) -> tuple[float, str]:
    """How far the former best is behind today's under today's inputs, and the knobs in which they differ."""
    if not found.winner:
        return 0.0, ""
    knobs = "; ".join(f"{name} {short_text(a)} -> {short_text(b)}" for name, (a, b) in found.winner.items())
    if found.unexplained or not found.moved or any(one.change is None for one in found.moved):
        return -1.0, f"the former best is no longer legal, or cannot be projected; {knobs}"
    last = found.moved[-1]
    behind = last.before / (last.after or last.before) - 1.0
    return behind, f"the former best is now {behind:+.2%} in tokens/s; {knobs}"


def _of_accuracy(was: Accuracy, now: Accuracy, limit: float) -> Iterator[Check]:
    """Errors may fall; they may not grow, and no run may drop out."""
    place: dict[str, Any] = {"where": "accuracy"}
    for name, count in now.rows.items():
        old, words = was.rows[name], _words("{}", was.rows[name], count)
        yield Check(**place, **words, name=name, move=float(count - old), limit=0.0, passed=count >= old)
    for name, error in now.errors.items():
        move, words = error - was.errors[name], _words("{:.2%}", was.errors[name], error)
        if abs(move) > limit:
            words["note"] = "moved most: " + ", ".join(moved_most(was, now))
        yield Check(**place, **words, name=name, move=move, limit=limit, value=error, passed=move <= limit)
