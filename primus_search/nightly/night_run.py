"""One night: search every space of a sweep, check accuracy and speed, compare with the baseline, say why.

night = run_nightly(load_sweep(Path("sweeps/nightly.yaml")))
night.passed, night.checks, night.causes

Why figures moved: inputs that changed are set back one at a time and the search is run again.

What a change moved is today's figure over the figure with that change undone. What remains when every input is as it
was is the doing of the package's code or its dependencies; the parts of the former best candidate, projected by
today's code from the former inputs, then say which cost term moved.
"""

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import reduce
from typing import Any

from primus_search.base.errors import UNREADABLE, InputError, PrimusSearchError, Problem
from primus_search.base.units import GB
from primus_search.declare.plain_forms import Leaf, Plain, differences, short_text, with_leaf
from primus_search.nightly import baseline
from primus_search.nightly.baseline import (
    GROUPS,
    MACHINE,
    Accuracy,
    Baseline,
    BaselineState,
    ClusterFigures,
    Inputs,
    changed,
    figures_of,
    hypervolume,
    parts,
    with_groups,
)
from primus_search.nightly.sweep import NightlySweep, Tolerances
from primus_search.space import Space
from primus_search.values.candidates import Candidates

MOST_LEAVES = 8
"""Changed numbers of one hardware or stack file that are set back one by one; with more, section by section."""

MOST_LINES = 6
NOTICEABLE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One change and what it moved on one cluster of an entry.

    kind     accelerator, network, stack, model, axes, ..., `code` or `dependencies`
    effects  relative move of tokens_per_s, memory and frontier; empty where it could not be tried, with the reason
    """

    entry: str
    cluster: int
    kind: str
    what: str
    effects: dict[str, float] = field(default_factory=dict)
    note: str = ""

    @property
    def size(self) -> float:
        """The largest effect, for sorting."""
        return max((abs(effect) for effect in self.effects.values()), default=0.0)


def attribute(
    sweep: NightlySweep, before: BaselineState, after: BaselineState, failed: list[tuple[str, int]]
) -> list[Cause]:
    """The causes of every failed check, named by its entry and cluster, largest effect first."""
    causes: list[Cause] = []
    for entry, space in sweep.entries.items():
        clusters = sorted({number for name, number in failed if name == entry and number >= 0})
        if clusters:
            causes += _of_entry(entry, space, clusters, before, after)
    names = {name for name, _ in failed}
    if "accuracy" in names:
        data = changed(before.data, after.data)
        data += ["the table of measured runs"] if before.runs_sha256 != after.runs_sha256 else []
        causes += [Cause(entry="accuracy", cluster=-1, kind="data", what=", ".join(data))] if data else []
        causes += [] if data and before.code == after.code else _of_code("accuracy", -1, before, after)
    return causes + (_of_code("speed", -1, before, after) if "speed" in names else [])


def changes(before: BaselineState, after: BaselineState) -> list[str]:
    """Every input, module, data file and version that differs, in words; an input with the entries that have it."""
    lines: dict[str, list[str]] = {}
    for name, inputs in after.inputs.items():
        was = before.inputs.get(name, inputs)
        for group in GROUPS:
            for leaf in _leaves(group, was[group], inputs[group]):
                lines.setdefault(f"{group}: {leaf}", []).append(name)
    found = [f"{line} ({', '.join(names)})" for line, names in lines.items()]
    found += [f"code: {name}" for name in changed(before.code, after.code)]
    found += [f"data: {name}" for name in changed(before.data, after.data)]
    return found + [f"version: {line}" for line in _version_moves(before.versions, after.versions)]


def _version_moves(was: dict[str, str], now: dict[str, str]) -> list[str]:
    """Every dependency whose version differs, with both."""
    names = sorted(name for name in {*was, *now} if was.get(name) != now.get(name))
    return [f"{name} {was.get(name, 'none')} -> {now.get(name, 'none')}" for name in names]


def _leaves(group: str, before: Plain, after: Plain) -> list[Leaf]:
    """Leaves that differ; those of several clusters with the same values once."""
    pairs = zip(before, after, strict=False) if group in MACHINE else [(before, after)]
    return list({str(leaf): leaf for was, now in pairs for leaf in differences(was, now)}.values())


def _of_entry(
    entry: str, space: Space, clusters: list[int], before: BaselineState, after: BaselineState
) -> list[Cause]:
    """Effects of each changed input set back by itself, largest first; then what today's code makes of all of them."""
    was, now, figures = before.inputs[entry], after.inputs[entry], after.entries[entry]
    causes: list[Cause] = []
    for group, leaves, values in _trials(space, was, now):
        outcome = _attempt(space, {group: values}, [group])
        for number in clusters:
            cause = Cause(entry=entry, cluster=number, kind=group, what="; ".join(map(str, leaves[:MOST_LINES])))
            if isinstance(outcome, str):
                causes.append(replace(cause, note=f"cannot be undone by itself: {outcome}"))
            else:
                causes.append(replace(cause, effects=_moves(outcome[number], figures[number])))
    causes.sort(key=lambda cause: -cause.size)
    groups = [group for group in GROUPS if was[group] != now[group]]
    redone = _attempt(space, was, groups) if groups else figures
    if isinstance(redone, str):
        note = f"former inputs cannot be restored: {redone}"
        return causes + _of_code(entry, clusters[0], before, after, note=note)
    for number in clusters:
        old = before.entries[entry][number]
        effects = _moves(old, redone[number])
        if any(abs(effect) > NOTICEABLE for effect in effects.values()) or old.removed != redone[number].removed:
            note = _moved_parts(with_groups(space, was, groups), number, old)
            causes += _of_code(entry, number, before, after, effects=effects, note=note)
    return causes


def _attempt(space: Space, before: Inputs, groups: list[str]) -> tuple[ClusterFigures, ...] | str:
    """The figures with some groups of inputs as they were, or why that cannot be."""
    try:
        return figures_of(with_groups(space, before, groups))
    except (PrimusSearchError, *UNREADABLE) as error:
        return str(error)


def _trials(space: Space, was: Inputs, now: Inputs) -> Iterator[tuple[str, list[Leaf], Plain]]:
    """What is set back together, as its group, leaves and the group's values with them undone: a whole group, or each
    number, or section, of a hardware or stack file."""
    for group in GROUPS:
        leaves = _leaves(group, was[group], now[group])
        if leaves and (group not in MACHINE or len(was[group]) != len(space.clusters)):
            yield group, leaves, was[group]
            continue
        sections: dict[str, list[Leaf]] = {}
        for leaf in leaves:
            sections.setdefault(leaf.name if len(leaves) <= MOST_LEAVES else leaf.path[0], []).append(leaf)
        for some in sections.values():
            yield group, some, [reduce(with_leaf, some, value) for value in now[group]]


def _moved_parts(space: Space, number: int, old: ClusterFigures) -> str:
    """Which parts of the former best candidate today's code projects otherwise."""
    if not old.fits:
        return ""
    try:
        now = parts(space, space.clusters[number], Candidates.from_words(old.knobs))
    except (PrimusSearchError, *UNREADABLE) as error:
        return f"the former best can no longer be projected: {error}"
    moves = {n: relative(v, now[n]) for n, v in old.parts.items() if n in now}
    gone = [f"{name} gone" for name in old.parts if name not in now]
    large = sorted((n for n in moves if abs(moves[n]) > NOTICEABLE), key=lambda n: -abs(now[n] - old.parts[n]))
    return ", ".join([*(f"{n} {moves[n]:+.1%}" for n in large[:MOST_LINES]), *gone])


def _of_code(
    entry: str, cluster: int, before: BaselineState, after: BaselineState, *,
    effects: dict[str, float] | None = None, note: str = "",
) -> list[Cause]:  # fmt: skip
    """Code and dependencies as causes, those of both that changed."""
    note = f"parts of the former best that moved: {note}" if note else ""
    modules, most = changed(before.code, after.code), 3 * MOST_LINES
    further = f" and {len(modules) - most} more" if len(modules) > most else ""
    moves = ", ".join(_version_moves(before.versions, after.versions))
    found = {"code": ", ".join(modules[:most]) + further, "dependencies": moves}
    if not any(found.values()):
        found = {"unknown": "neither inputs, code nor versions changed; the machine or its compiled code did"}
    cause = Cause(entry=entry, cluster=cluster, kind="", what="", effects=effects or {}, note=note)
    return [replace(cause, kind=kind, what=what) for kind, what in found.items() if what]


def _moves(old: ClusterFigures, new: ClusterFigures) -> dict[str, float]:
    """Relative moves of the compared figures from `old` to `new`."""
    return {
        "tokens_per_s": relative(old.tokens_per_s_per_gpu, new.tokens_per_s_per_gpu),
        "memory": relative(old.memory_bytes, new.memory_bytes),
        "frontier": relative(old.hypervolume, hypervolume(new.frontier, old.reference_bytes)),
    }


def relative(old: float, new: float) -> float:
    """How far a figure moved; 1 where it was 0 and is no longer."""
    return new / old - 1.0 if old else float(new != old)


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
    state = observe(sweep, say, known_speed=accepted.state.speed)
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


def observe(sweep: NightlySweep, say: Say = _silent, *, known_speed: float = 0.0) -> BaselineState:
    """Everything one night sees. A speed that looks slow against `known_speed` is measured again, up to twice."""
    entries, inputs = {}, {}
    for number, (name, space) in enumerate(sweep.entries.items(), start=1):
        say(f"[{number}/{len(sweep.entries)}] {name}")
        entries[name], inputs[name] = baseline.figures_of(space), baseline.inputs_of(space)
    accuracy, speed = None, 0.0
    if sweep.runs:
        say(f"accuracy on {sweep.runs}")
        accuracy = baseline.accuracy_of(sweep.runs)
    if sweep.speed:
        say("projection speed")
        speed = baseline.speed_ratio(sweep.speed, sweep.speed_rows)
        for _ in range(2):
            if speed < known_speed * (1.0 - sweep.tolerances.speed):
                speed = max(speed, baseline.speed_ratio(sweep.speed, sweep.speed_rows))
    return BaselineState(
        entries=entries,
        inputs=inputs,
        accuracy=accuracy,
        speed=speed,
        runs_sha256=hashlib.sha256(sweep.runs.read_bytes()).hexdigest() if sweep.runs else "",
        code=baseline.code_hashes(),
        data=baseline.data_hashes(),
        versions=baseline.dependency_versions(),
        commit=baseline.commit(),
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


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
    if sweep.speed:  # faster is welcome; slower than the tolerance is not
        move = after.speed / before.speed - 1.0 if before.speed else 0.0
        place = dict.fromkeys(("entry", "where"), "speed") | {"note": "projected rows per pass of the NumPy reference"}
        words = _words("{:,.0f}", before.speed, after.speed) | place
        passed, name = move >= -limits.speed, "projection speed"
        checks.append(Check(**words, name=name, move=move, limit=limits.speed, value=after.speed, passed=passed))
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
    volume = baseline.hypervolume(now.frontier, was.reference_bytes)
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
        old = baseline.parts(space, space.clusters[number], Candidates.from_words(was.knobs))
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
            words["note"] = "moved most: " + ", ".join(baseline.moved_most(was, now))
        yield Check(**place, **words, name=name, move=move, limit=limit, value=error, passed=move <= limit)
