"""Why figures moved: inputs that changed are set back one at a time and the search is run again.

What a change moved is today's figure over the figure with that change undone. What remains when every input is as it
was is the doing of the package's code or its dependencies; the parts of the former best candidate, projected by
today's code from the former inputs, then say which cost term moved.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from primus_search.base.errors import PrimusSearchError
from primus_search.declare.plain_forms import Leaf, Plain, differences, digest, with_leaf
from primus_search.nightly.baseline import GROUPS, MACHINE, BaselineState, Inputs, changed, with_groups
from primus_search.nightly.check import Check
from primus_search.nightly.figures import ClusterFigures, figures_of, hypervolume, parts
from primus_search.nightly.sweep import NightlySweep, SweepEntry
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """One change to undo: its kind, in words, and how."""

    kind: str
    what: str
    undo: Callable[[Space], Space]


def attribute(sweep: NightlySweep, before: BaselineState, after: BaselineState, checks: list[Check]) -> list[Cause]:
    """The causes of every failed check, per cluster, largest effect first."""
    causes: list[Cause] = []
    for entry in sweep.entries:
        clusters = sorted({c.cluster for c in checks if c.entry == entry.name and not c.passed and c.cluster >= 0})
        if clusters:
            causes += _of_entry(entry, clusters, before, after)
    if any(not check.passed and check.entry == "accuracy" for check in checks):
        causes += _of_accuracy(before, after)
    if any(not check.passed and check.entry == "speed" for check in checks):
        causes += _of_code("speed", -1, before, after, {}, "")
    return causes


def changed_inputs(before: Inputs, after: Inputs) -> list[str]:
    """Every input that differs, in words, for the summary of a night without a regression too."""
    return [f"{group}: {leaf}" for group in GROUPS for leaf in _leaves(group, before[group], after[group])]


def _leaves(group: str, before: Plain, after: Plain) -> list[Leaf]:
    """Leaves that differ; those of several clusters with the same values once."""
    if group not in MACHINE:
        return list(differences(before, after))
    found: dict[str, Leaf] = {}
    for was, now in zip(before, after, strict=False):
        for leaf in differences(was, now):
            found.setdefault(str(leaf), leaf)
    return list(found.values())


def _of_entry(entry: SweepEntry, clusters: list[int], before: BaselineState, after: BaselineState) -> list[Cause]:
    was, now = before.inputs[entry.name], after.inputs[entry.name]
    groups = tuple(group for group in GROUPS if digest(was[group]) != digest(now[group]))
    figures = after.entries[entry.name]
    causes: list[Cause] = []
    for trial in _trials(entry.space, was, now, groups):
        outcome = _attempt(trial, entry.space)
        for number in clusters:
            if isinstance(outcome, str):
                causes.append(Cause(entry=entry.name, cluster=number, kind=trial.kind, what=trial.what, note=outcome))
                continue
            effects = _moves(outcome[number], figures[number])
            causes.append(Cause(entry=entry.name, cluster=number, kind=trial.kind, what=trial.what, effects=effects))
    causes.sort(key=lambda cause: -cause.size)
    return causes + _rest(entry, clusters, before, after, groups)


def _attempt(trial: _Trial, space: Space) -> tuple[ClusterFigures, ...] | str:
    """The figures with a change undone, or why that cannot be."""
    try:
        return figures_of(trial.undo(space))
    except (PrimusSearchError, ValueError, TypeError, KeyError) as error:
        return f"cannot be undone by itself: {error}"


def _trials(space: Space, was: Inputs, now: Inputs, groups: tuple[str, ...]) -> Iterator[_Trial]:
    """One trial per changed group; per number, or per section, of a hardware or stack file."""
    for group in groups:
        leaves = _leaves(group, was[group], now[group])
        if group not in MACHINE or len(was[group]) != len(space.clusters):
            words = "; ".join(str(leaf) for leaf in leaves[:MOST_LINES])
            yield _Trial(kind=group, what=words or group, undo=_undo_group(was, group))
            continue
        sections: dict[str, list[Leaf]] = {}
        for leaf in leaves:
            sections.setdefault(leaf.name if len(leaves) <= MOST_LEAVES else leaf.path[0], []).append(leaf)
        for some in sections.values():
            words = "; ".join(str(leaf) for leaf in some[:MOST_LINES])
            yield _Trial(kind=group, what=words, undo=_undo_leaves(now, group, some))


def _undo_group(was: Inputs, group: str) -> Callable[[Space], Space]:
    return lambda space: with_groups(space, was, (group,))


def _undo_leaves(now: Inputs, group: str, leaves: list[Leaf]) -> Callable[[Space], Space]:
    def undo(space: Space) -> Space:
        values = list(now[group])
        for leaf in leaves:
            values = [with_leaf(value, leaf) for value in values]
        return with_groups(space, {group: values}, (group,))

    return undo


def _rest(
    entry: SweepEntry, clusters: list[int], before: BaselineState, after: BaselineState, groups: tuple[str, ...]
) -> list[Cause]:
    """What today's code makes of yesterday's inputs: the share of code and dependencies, and the parts it moved."""
    was, figures = before.inputs[entry.name], after.entries[entry.name]
    try:
        space = with_groups(entry.space, was, groups)
        redone = figures_of(space) if groups else figures
    except (PrimusSearchError, ValueError, TypeError, KeyError) as error:
        return _of_code(entry.name, clusters[0], before, after, {}, f"former inputs cannot be restored: {error}")
    causes = []
    for number in clusters:
        old = before.entries[entry.name][number]
        effects = _moves(old, redone[number])
        if any(abs(effect) > NOTICEABLE for effect in effects.values()) or old.removed != redone[number].removed:
            causes += _of_code(entry.name, number, before, after, effects, _moved_parts(space, number, old))
    return causes


def _moved_parts(space: Space, number: int, old: ClusterFigures) -> str:
    """Which parts of the former best candidate today's code projects otherwise."""
    if not old.fits:
        return ""
    try:
        now = parts(space, number, Candidates.from_words(old.knobs))
    except (PrimusSearchError, ValueError, KeyError) as error:
        return f"the former best can no longer be projected: {error}"
    moves = {n: now[n] / v - 1.0 if v else float("inf") for n, v in old.parts.items() if n in now and now[n] != v}
    gone = [f"{name} gone" for name in old.parts if name not in now]
    large = sorted((n for n in moves if abs(moves[n]) > NOTICEABLE), key=lambda n: -abs(now[n] - old.parts[n]))
    return ", ".join([*(f"{n} {moves[n]:+.1%}" for n in large[:MOST_LINES]), *gone])


def _of_code(
    entry: str, cluster: int, before: BaselineState, after: BaselineState, effects: dict[str, float], note: str
) -> list[Cause]:
    modules = changed(before.code, after.code)
    versions = [f"{n} {before.versions.get(n, 'none')} -> {after.versions.get(n, 'none')}"
                for n in sorted({*before.versions, *after.versions})
                if before.versions.get(n) != after.versions.get(n)]  # fmt: skip
    found = []
    note = f"parts of the former best that moved: {note}" if note else ""
    if modules:
        listed = ", ".join(modules[: 3 * MOST_LINES]) + (f" and {len(modules) - 3 * MOST_LINES} more"
                                                         if len(modules) > 3 * MOST_LINES else "")  # fmt: skip
        found.append(Cause(entry=entry, cluster=cluster, kind="code", what=listed, effects=effects, note=note))
    if versions:
        what = ", ".join(versions)
        found.append(Cause(entry=entry, cluster=cluster, kind="dependencies", what=what, effects=effects, note=note))
    if not found:
        what = "neither inputs, code nor versions changed; the machine or its compiled code did"
        found.append(Cause(entry=entry, cluster=cluster, kind="unknown", what=what, effects=effects, note=note))
    return found


def _of_accuracy(before: BaselineState, after: BaselineState) -> list[Cause]:
    causes = []
    data = changed(before.data, after.data)
    if before.runs_sha256 != after.runs_sha256:
        data.append("the table of measured runs")
    if data:
        causes.append(Cause(entry="accuracy", cluster=-1, kind="data", what=", ".join(data)))
    return causes + ([] if data and before.code == after.code else _of_code("accuracy", -1, before, after, {}, ""))


def _moves(old: ClusterFigures, new: ClusterFigures) -> dict[str, float]:
    """Relative moves of the compared figures from `old` to `new`."""
    pairs = {
        "tokens_per_s": (old.tokens_per_s_per_gpu, new.tokens_per_s_per_gpu),
        "memory": (old.memory_bytes, new.memory_bytes),
        "frontier": (old.hypervolume, hypervolume(new.frontier, old.reference_bytes)),
    }
    return {name: b / a - 1.0 if a else float(a != b) for name, (a, b) in pairs.items()}
