"""One night: search every space of a sweep, check accuracy and speed, compare with the baseline, say why.

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
from primus_search.declare.plain_forms import short_text
from primus_search.nightly.attribute import Cause, attribute, changed_inputs, relative, version_moves
from primus_search.nightly.baseline import (
    Baseline,
    BaselineState,
    Reason,
    changed,
    code_hashes,
    commit,
    data_hashes,
    dependency_versions,
    inputs_of,
    read_baseline,
    write_baseline,
)
from primus_search.nightly.figures import (
    ClusterFigures,
    accuracy_of,
    figures_of,
    hypervolume,
    moved_most,
    parts,
    speed_ratio,
)
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
    baseline = read_baseline(sweep.baseline)
    began, started = time.perf_counter(), _now()
    state = observe(sweep, say, known_speed=baseline.state.speed)
    checks = compare(sweep, baseline.state, state)
    failed = [(check.entry, check.cluster) for check in checks if not check.passed]
    if failed:
        say(f"{len(failed)} of {len(checks)} checks failed; looking for what changed")
    return Night(
        sweep=sweep,
        state=state,
        baseline=baseline,
        checks=tuple(checks),
        causes=tuple(attribute(sweep, baseline.state, state, failed)),
        changes=tuple(_changes(baseline.state, state)),
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
    write_baseline(sweep.baseline, state, Reason(date=_now()[:10], commit=state.commit, text=reason))


def observe(sweep: NightlySweep, say: Say = _silent, *, known_speed: float = 0.0) -> BaselineState:
    """Everything one night sees. A speed that looks slow against `known_speed` is measured again, up to twice."""
    entries, inputs = {}, {}
    for number, entry in enumerate(sweep.entries, start=1):
        say(f"[{number}/{len(sweep.entries)}] {entry.name}")
        entries[entry.name], inputs[entry.name] = figures_of(entry.space), inputs_of(entry.space)
    if sweep.runs:
        say(f"accuracy on {sweep.runs}")
    return BaselineState(
        entries=entries,
        inputs=inputs,
        accuracy=accuracy_of(sweep.runs) if sweep.runs else None,
        speed=_speed(sweep, known_speed, say),
        runs_sha256=hashlib.sha256(sweep.runs.read_bytes()).hexdigest() if sweep.runs else "",
        code=code_hashes(),
        data=data_hashes(),
        versions=dependency_versions(),
        commit=commit(),
    )


def _speed(sweep: NightlySweep, known: float, say: Say) -> float:
    if sweep.speed is None:
        return 0.0
    say("projection speed")
    found = speed_ratio(sweep.speed)
    for _ in range(2):
        if found < known * (1.0 - sweep.tolerances.speed):
            found = max(found, speed_ratio(sweep.speed))
    return found


def _changes(before: BaselineState, after: BaselineState) -> list[str]:
    lines: dict[str, list[str]] = {}
    for name, inputs in after.inputs.items():
        for line in changed_inputs(before.inputs.get(name, inputs), inputs):
            lines.setdefault(line, []).append(name)
    found = [f"{line} ({', '.join(names)})" for line, names in lines.items()]
    found += [f"code: {name}" for name in changed(before.code, after.code)]
    found += [f"data: {name}" for name in changed(before.data, after.data)]
    return found + [f"version: {line}" for line in version_moves(before, after)]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


# --- checks: one per figure, each with its limit and its verdict -----------------------------------------------------


def compare(sweep: NightlySweep, before: BaselineState, after: BaselineState) -> list[Check]:
    """Every check of a night, in the order of the sweep file."""
    checks: list[Check] = []
    spaces = {entry.name: entry.space for entry in sweep.entries}
    for name in {**after.entries, **before.entries}:
        old, new = before.entries.get(name, ()), after.entries.get(name, ())
        if len(old) != len(new):
            checks.append(_unknown(name, len(old), len(new)))
            continue
        for number, (was, now) in enumerate(zip(old, new, strict=True)):
            checks += _of_cluster(name, spaces[name], number, was, now, sweep.tolerances)
    if after.accuracy and before.accuracy:
        checks += _of_accuracy(before, after, sweep.tolerances.accuracy)
    elif after.accuracy:
        checks.append(_unknown("accuracy", 0, after.accuracy.rows["rows"]))
    if sweep.speed:  # faster is welcome; slower than the tolerance is not
        move = after.speed / before.speed - 1.0 if before.speed else 0.0
        checks.append(
            Check(
                entry="speed",
                where="speed",
                name="projection speed",
                before=f"{before.speed:,.0f}",
                after=f"{after.speed:,.0f}",
                move=move,
                limit=sweep.tolerances.speed,
                passed=move >= -sweep.tolerances.speed,
                value=after.speed,
                note="projected rows per pass of the NumPy reference",
            )
        )
    return checks


def _unknown(entry: str, before: int, after: int) -> Check:
    note = "the sweep is no longer that of the baseline; accept it with --update-baseline --reason TEXT"
    return Check(
        entry=entry, where=entry, name="clusters", before=str(before), after=str(after), move=float(after - before),
        limit=0.0, passed=False, note=note,
    )  # fmt: skip


def _of_cluster(
    entry: str, space: Space, number: int, was: ClusterFigures, now: ClusterFigures, limits: Tolerances
) -> Iterator[Check]:
    place: dict[str, Any] = {"entry": entry, "where": f"{entry}, {now.cluster}", "cluster": number}
    behind, note = (0.0, "") if was.knobs == now.knobs else _behind(space, number, was, now)
    yield Check(
        **place, name="best", before=was.best, after=now.best, move=behind, limit=limits.best, note=note,
        passed=was.knobs == now.knobs or (was.fits and abs(behind) <= limits.best),
    )  # fmt: skip
    volume = hypervolume(now.frontier, was.reference_bytes)
    for name, old, new, limit, form in (
        ("tokens_per_s", was.tokens_per_s_per_gpu, now.tokens_per_s_per_gpu, limits.tokens_per_s, "{:,.1f}"),
        ("memory", was.memory_bytes / GB, now.memory_bytes / GB, limits.memory, "{:,.2f} GB"),
        ("frontier", was.hypervolume, volume, limits.frontier, "{:,.1f}"),
    ):
        move = relative(old, new)
        yield Check(
            **place, name=name, before=form.format(old), after=form.format(new), move=move, limit=limit, value=new,
            passed=abs(move) <= limit,
        )  # fmt: skip
    notes = [
        f"rule {rule} is gone (removed {was.removed[rule]:,} rows)" if rule not in now.removed
        else f"rule {rule} is new (removes {now.removed[rule]:,} rows)" if rule not in was.removed
        else f"rule {rule} removes {now.removed[rule]:,} rows, not {was.removed[rule]:,}"
        for rule in sorted({*was.removed, *now.removed}) if was.removed.get(rule) != now.removed.get(rule)
    ]  # fmt: skip
    yield Check(
        **place, name="legality", before=f"{was.legal:,} legal", after=f"{now.legal:,} legal",
        move=relative(was.legal, now.legal), limit=0.0, passed=not notes and was.legal == now.legal,
        note="; ".join(notes),
    )  # fmt: skip


def _behind(space: Space, number: int, was: ClusterFigures, now: ClusterFigures) -> tuple[float, str]:
    """How far the baseline's best is behind today's, by step time, and which knobs differ."""
    moved = {name: value for name, value in now.knobs.items() if was.knobs.get(name, value) != value}
    knobs = "; ".join(f"{name} {short_text(was.knobs[name])} -> {short_text(value)}" for name, value in moved.items())
    if not (was.fits and now.fits):
        return -1.0, knobs
    try:
        old = parts(space, number, Candidates.from_words(was.knobs))
    except (PrimusSearchError, *UNREADABLE) as error:
        return -1.0, f"the former best can no longer be projected: {error}"
    today_s, old_s = (sum(v for n, v in found.items() if n.startswith("step.")) for found in (now.parts, old))
    behind = today_s / old_s - 1.0
    return behind, f"the former best is now {behind:+.2%} in tokens/s; {knobs}"


def _of_accuracy(before: BaselineState, after: BaselineState, limit: float) -> Iterator[Check]:
    """Errors may fall; they may not grow, and no run may drop out."""
    was, now = before.accuracy, after.accuracy
    assert was is not None and now is not None
    place: dict[str, Any] = {"entry": "accuracy", "where": "accuracy"}
    for name, count in now.rows.items():
        old = was.rows[name]
        yield Check(
            **place, name=name, before=str(old), after=str(count), move=float(count - old), limit=0.0,
            passed=count >= old,
        )  # fmt: skip
    for name, error in now.errors.items():
        move = error - was.errors[name]
        yield Check(
            **place, name=name, before=f"{was.errors[name]:.2%}", after=f"{error:.2%}", move=move, limit=limit,
            passed=move <= limit, value=error,
            note="moved most: " + ", ".join(moved_most(was, now)) if abs(move) > limit else "",
        )  # fmt: skip
