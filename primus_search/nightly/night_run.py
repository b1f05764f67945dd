"""One night: search every space of a sweep, check accuracy and speed, compare with the baseline, say why.

night = run_nightly(load_sweep(Path("sweeps/nightly.yaml")))
night.passed, night.checks, night.causes
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from primus_search.base.errors import InputError, Problem
from primus_search.nightly.attribute import Cause, attribute, changed_inputs
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
    known_reasons,
    read_baseline,
    write_baseline,
)
from primus_search.nightly.check import Check, compare
from primus_search.nightly.figures import accuracy_of, figures_of, speed_ratio
from primus_search.nightly.sweep import NightlySweep

Say = Callable[[str], None]


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
        return all(check.passed for check in self.checks)

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
    failed = sum(not check.passed for check in checks)
    if failed:
        say(f"{failed} of {len(checks)} checks failed; looking for what changed")
    return Night(
        sweep=sweep,
        state=state,
        baseline=baseline,
        checks=tuple(checks),
        causes=tuple(attribute(sweep, baseline.state, state, checks)),
        changes=tuple(_changes(baseline.state, state)),
        started=started,
        seconds=time.perf_counter() - began,
    )


def update_baseline(sweep: NightlySweep, reason: str, say: Say = _silent) -> Baseline:
    """Accept today's figures, with the reason; reasons of earlier updates are kept.

    Raises InputError where a space has no answer: there would be nothing to compare with.
    """
    state = observe(sweep, say)
    empty = [(name, one) for name, found in state.entries.items() for one in found if not one.fits]
    if empty:
        raise InputError([Problem(f"{name}, {one.cluster}", f"no baseline to keep: {one.best}") for name, one in empty])
    reasons = (*known_reasons(sweep.baseline), Reason(date=_now()[:10], commit=state.commit, text=reason))
    baseline = Baseline(state=state, reasons=reasons)
    write_baseline(sweep.baseline, baseline)
    return baseline


def observe(sweep: NightlySweep, say: Say = _silent, *, known_speed: float = 0.0) -> BaselineState:
    """Everything one night sees. A speed that looks slow against `known_speed` is measured again, up to twice."""
    entries, inputs = {}, {}
    for number, entry in enumerate(sweep.entries, start=1):
        say(f"[{number}/{len(sweep.entries)}] {entry.name}")
        entries[entry.name], inputs[entry.name] = figures_of(entry.space), inputs_of(entry.space)
    if sweep.runs:
        say(f"accuracy on {sweep.runs}")
    accuracy = accuracy_of(sweep.runs) if sweep.runs else None
    return BaselineState(
        entries=entries,
        inputs=inputs,
        accuracy=accuracy,
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
        if name in before.inputs:
            for line in changed_inputs(before.inputs[name], inputs):
                lines.setdefault(line, []).append(name)
    found = [f"{line} ({', '.join(names)})" for line, names in lines.items()]
    found += [f"code: {name}" for name in changed(before.code, after.code)]
    found += [f"data: {name}" for name in changed(before.data, after.data)]
    versions = changed(before.versions, after.versions)
    found += [f"version: {n} {before.versions.get(n, 'none')} -> {after.versions.get(n, 'none')}" for n in versions]
    return found


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
