"""Why figures moved: inputs that changed are set back one at a time and the search is run again.

What a change moved is today's figure over the figure with that change undone. What remains when every input is as it
was is the doing of the package's code or its dependencies; the parts of the former best candidate, projected by
today's code from the former inputs, then say which cost term moved.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import reduce

from primus_search.base.errors import UNREADABLE, PrimusSearchError
from primus_search.files.plain_forms import Leaf, Plain, differences, with_leaf
from primus_search.nightly.baseline import GROUPS, MACHINE, PARTED, BaselineState, Inputs, changed, with_groups
from primus_search.nightly.figures import ClusterFigures, figures_of, hypervolume, parts
from primus_search.nightly.sweep import NightlySweep
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
    pairs = zip(before, after, strict=False) if group in PARTED else [(before, after)]
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
