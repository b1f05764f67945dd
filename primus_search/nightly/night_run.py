"""One night: search every space of a sweep, check accuracy and work, compare with the baseline, say why.

night = run_nightly(load_sweep(Path("sweeps/nightly.yaml")))
night.passed, night.checks, night.causes
"""

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from primus_search.base.errors import UNREADABLE, InputError, PrimusSearchError, Problem
from primus_search.base.units import GB
from primus_search.files.plain_forms import short_text
from primus_search.nightly import baseline, figures
from primus_search.nightly.baseline import Baseline, BaselineState
from primus_search.nightly.causes import Cause, attribute, changes, relative
from primus_search.nightly.figures import Accuracy, ClusterFigures
from primus_search.nightly.sweep import NightlySweep, Tolerances
from primus_search.space import Space
from primus_search.values.candidates import Candidates

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One comparison. `move` is today / baseline - 1 (a difference for errors and counts); `limit` is what may pass.

    entry     of the sweep, or `accuracy`, `speed`, `sweep`     cluster   its number in the entry, -1 for none
    value     today's figure, for a trend     note      what a person wants to know beside the figures
    """

    entry: str
    where: str
    name: str
    before: str
    after: str
    move: float
    limit: float
    passed: bool
    cluster: int = -1
    value: float = 0.0
    note: str = ""

    @property
    def title(self) -> str:
        return f"{self.where}: {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """What one night found. `changes` are inputs, code and versions that differ, moved anything or not."""

    sweep: NightlySweep
    state: BaselineState
    baseline: Baseline
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


def run_nightly(sweep: NightlySweep, say: Say = _silent) -> Night:
    """Run a sweep and compare it with its baseline. Raises InputError where there is no baseline."""
    accepted = baseline.read_baseline(sweep.baseline)
    began, started = time.perf_counter(), _now()
    state = observe(sweep, say)
    checks = compare(sweep, accepted.state, state)
    failed = [(check.entry, check.cluster) for check in checks if not check.passed]
    if failed:
        say(f"{len(failed)} of {len(checks)} checks failed; looking for what changed")
    return Night(
        sweep=sweep,
        state=state,
        baseline=accepted,
        checks=tuple(checks),
        causes=tuple(attribute(sweep, accepted.state, state, failed)),
        changes=tuple(changes(accepted.state, state)),
        started=started,
        seconds=time.perf_counter() - began,
    )


def update_baseline(sweep: NightlySweep, reason: str, say: Say = _silent) -> None:
    """Accept today's figures, with the reason; reasons of earlier updates are kept.

    Raises InputError where a space has no answer: there would be nothing to compare with.
    """
    state = observe(sweep, say)
    empty = [(name, one) for name, found in state.entries.items() for one in found if not one.fits]
    if empty:
        raise InputError([Problem(f"{name}, {one.cluster}", f"no baseline to keep: {one.best}") for name, one in empty])
    why = baseline.Reason(date=_now()[:10], commit=state.commit, text=reason)
    baseline.write_baseline(sweep.baseline, state, why)


def observe(sweep: NightlySweep, say: Say = _silent) -> BaselineState:
    """Everything one night sees."""
    entries, inputs = {}, {}
    for number, (name, space) in enumerate(sweep.entries.items(), start=1):
        say(f"[{number}/{len(sweep.entries)}] {name}")
        entries[name], inputs[name] = figures.figures_of(space), baseline.inputs_of(space)
    accuracy, work = None, 0
    if sweep.runs:
        say(f"accuracy on {sweep.runs}")
        accuracy = figures.accuracy_of(sweep.runs)
    if sweep.speed:
        say("work of a projection")
        work = figures.work_of(sweep.speed, sweep.speed_rows)
    return BaselineState(
        entries=entries,
        inputs=inputs,
        accuracy=accuracy,
        work=work,
        runs_sha256=hashlib.sha256(sweep.runs.read_bytes()).hexdigest() if sweep.runs else "",
        code=baseline.code_hashes(),
        data=baseline.data_hashes(),
        versions=baseline.dependency_versions(),
        commit=baseline.commit(),
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


# --- checks: one per figure, each with its limit and its verdict -----------------------------------------------------


def compare(sweep: NightlySweep, before: BaselineState, after: BaselineState) -> list[Check]:
    """Every check of a night, in the order of the sweep file."""
    checks: list[Check] = []
    limits = sweep.tolerances
    for name in {**after.entries, **before.entries}:
        old, new = before.entries.get(name, ()), after.entries.get(name, ())
        if len(old) != len(new):
            checks.append(_unknown(name, len(old), len(new)))
            continue
        for number, pair in enumerate(zip(old, new, strict=True)):
            checks += _of_cluster(name, sweep.entries[name], number, *pair, limits)
    if after.accuracy and before.accuracy:
        checks += _of_accuracy(before.accuracy, after.accuracy, limits.accuracy)
    elif after.accuracy:
        checks.append(_unknown("accuracy", 0, after.accuracy.rows["rows"]))
    if sweep.speed:  # less is welcome; more than the tolerance is not
        move = after.work / before.work - 1.0 if before.work else 0.0
        place = dict.fromkeys(("entry", "where"), "speed") | {"note": "instructions of Python per projection"}
        words = _words("{:,}", before.work, after.work) | place
        passed, name = move <= limits.speed, "projection work"
        checks.append(Check(**words, name=name, move=move, limit=limits.speed, value=after.work, passed=passed))
    return checks


def _words(form: str, before: object, after: object) -> dict[str, Any]:
    return {"before": form.format(before), "after": form.format(after)}


def _unknown(entry: str, before: int, after: int) -> Check:
    note = "the sweep is no longer that of the baseline; accept it with --update-baseline --reason TEXT"
    words, move = _words("{}", before, after) | {"entry": entry, "where": entry}, float(after - before)
    return Check(**words, name="clusters", move=move, limit=0.0, passed=False, note=note)


def _of_cluster(
    entry: str, space: Space, number: int, was: ClusterFigures, now: ClusterFigures, limits: Tolerances
) -> Iterator[Check]:
    place: dict[str, Any] = {"entry": entry, "where": f"{entry}, {now.cluster}", "cluster": number}
    is_same = was.knobs == now.knobs
    behind, note = (0.0, "") if is_same else _behind(space, number, was, now)
    passed = is_same or (was.fits and abs(behind) <= limits.best)
    words = _words("{}", was.best, now.best) | {"note": note}
    yield Check(**place, **words, name="best", move=behind, limit=limits.best, passed=passed)
    volume = figures.hypervolume(now.frontier, was.reference_bytes)
    for name, old, new, limit, form in (
        ("tokens_per_s", was.tokens_per_s_per_gpu, now.tokens_per_s_per_gpu, limits.tokens_per_s, "{:,.1f}"),
        ("memory", was.memory_bytes / GB, now.memory_bytes / GB, limits.memory, "{:,.2f} GB"),
        ("frontier", was.hypervolume, volume, limits.frontier, "{:,.1f}"),
    ):
        move, words = relative(old, new), _words(form, old, new)
        yield Check(**place, **words, name=name, move=move, limit=limit, value=new, passed=abs(move) <= limit)
    notes = list(_rules_moved(was.removed, now.removed))
    words = _words("{:,} legal", was.legal, now.legal) | {"note": "; ".join(notes)}
    passed = not notes and was.legal == now.legal
    yield Check(**place, **words, name="legality", move=relative(was.legal, now.legal), limit=0.0, passed=passed)


def _rules_moved(was: dict[str, int], now: dict[str, int]) -> Iterator[str]:
    for rule in sorted({*was, *now}):
        if rule not in now:
            yield f"rule {rule} is gone (removed {was[rule]:,} rows)"
        elif rule not in was:
            yield f"rule {rule} is new (removes {now[rule]:,} rows)"
        elif was[rule] != now[rule]:
            yield f"rule {rule} removes {now[rule]:,} rows, not {was[rule]:,}"


def _behind(space: Space, number: int, was: ClusterFigures, now: ClusterFigures) -> tuple[float, str]:
    """How far the baseline's best is behind today's, by step time, and which knobs differ."""
    moved = {name: value for name, value in now.knobs.items() if was.knobs.get(name, value) != value}
    knobs = "; ".join(f"{name} {short_text(was.knobs[name])} -> {short_text(value)}" for name, value in moved.items())
    if not (was.fits and now.fits):
        return -1.0, knobs
    try:
        old = figures.parts(space, space.clusters[number], Candidates.from_words(was.knobs))
    except (PrimusSearchError, *UNREADABLE) as error:
        return -1.0, f"the former best can no longer be projected: {error}"
    today_s, old_s = (sum(v for n, v in found.items() if n.startswith("step.")) for found in (now.parts, old))
    behind = today_s / old_s - 1.0
    return behind, f"the former best is now {behind:+.2%} in tokens/s; {knobs}"


def _of_accuracy(was: Accuracy, now: Accuracy, limit: float) -> Iterator[Check]:
    """Errors may fall; they may not grow, and no run may drop out."""
    place: dict[str, Any] = {"entry": "accuracy", "where": "accuracy"}
    for name, count in now.rows.items():
        old, words = was.rows[name], _words("{}", was.rows[name], count)
        yield Check(**place, **words, name=name, move=float(count - old), limit=0.0, passed=count >= old)
    for name, error in now.errors.items():
        move, words = error - was.errors[name], _words("{:.2%}", was.errors[name], error)
        if abs(move) > limit:
            words["note"] = "moved most: " + ", ".join(figures.moved_most(was, now))
        yield Check(**place, **words, name=name, move=move, limit=limit, value=error, passed=move <= limit)
