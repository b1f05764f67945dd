"""Why figures moved: the steps of `compare` from the baseline's run to tonight's, and what the code itself moved."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from primus_search.analysis.run_comparison import Comparison, Difference
from primus_search.exploration.neighbours import values_of
from primus_search.exploration.run_folder.candidates_file import Kept
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.files.plain_forms import short_text
from primus_search.nightly.observed import Observed, changed

MOST_LINES = 6
NOTICEABLE = 1e-9
OTHERWISE = ("source", "space_sha256")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The run of a place as it was accepted and as it is tonight."""

    before: SavedRun
    after: SavedRun
    found: Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One change and what it moved at one place of the sweep.

    kind     accelerator, network, stack, model, axes, ..., `code` or `dependencies`
    move     what it did to the former best's tokens/s, relative; None where it has no step of its own
    """

    where: str
    kind: str
    what: str
    move: float | None = None
    note: str = ""


def attribute(pairs: Mapping[str, Pair], before: Observed, after: Observed, failed: set[str]) -> Iterator[Cause]:
    """The causes of every failed check by its place, largest effect first."""
    for where, pair in pairs.items():
        if where in failed:
            found = list(_of_inputs(where, pair.found))
            yield from sorted(found, key=lambda cause: -abs(cause.move or 0.0))
            recorded, today = pair.found.recorded or (1.0, 1.0)
            if abs(today / recorded - 1.0) > NOTICEABLE or not found:
                yield from _of_code(where, before, after, today / recorded - 1.0, _moved_parts(pair.before))
    for where in [*after.unanswered, "accuracy"]:
        if where in failed:
            data = changed(before.data, after.data)
            yield from [Cause(where=where, kind="data", what=", ".join(data))] if data else []
            yield from [] if data and before.code == after.code else _of_code(where, before, after)
    if "speed" in failed:
        yield from _of_code("speed", before, after)


def changes(pairs: Mapping[str, Pair], before: Observed, after: Observed) -> list[str]:
    """Every input, module, data file and version that differs, in words; an input with the places that have it."""
    lines: dict[str, list[str]] = {}
    for where, pair in pairs.items():
        for one in _inputs(pair.found):
            lines.setdefault(_words(one), []).append(where)
    found = [f"{line} ({', '.join(places)})" for line, places in lines.items()]
    found += [f"code: {name}" for name in changed(before.code, after.code)]
    found += [f"data: {name}" for name in changed(before.data, after.data)]
    return found + [f"version: {line}" for line in _version_moves(before.versions, after.versions)]


def _version_moves(was: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Every dependency whose version differs, with both."""
    names = sorted(name for name in {*was, *now} if was.get(name) != now.get(name))
    return [f"{name} {was.get(name, 'none')} -> {now.get(name, 'none')}" for name in names]


def _inputs(found: Comparison) -> Iterator[Difference]:
    """The inputs that differ, without hashes and what belongs to the whole night."""
    return (one for one in found.inputs if one.what not in OTHERWISE and not one.what.startswith("version of "))


def _words(one: Difference) -> str:
    """`accelerator: gemm.tile_overhead 0.1 -> 0.103`."""
    kind, _, what = one.what.removeprefix("cluster.").replace(" ", ".", 1).partition(".")
    return f"{kind}: {f'{what} '.lstrip()}{short_text(one.a)} -> {short_text(one.b)}"


def _of_inputs(where: str, found: Comparison) -> Iterator[Cause]:
    """A cause for each group of inputs that differs, with what its step of `compare` moved."""
    groups: dict[str, list[str]] = {}
    for one in _inputs(found):
        kind, _, what = _words(one).partition(": ")
        groups.setdefault(kind.removeprefix("num_"), []).append(what)
    steps = {one.group: one for one in found.moved}
    for kind in [*groups, *(name for name in steps if name not in groups)]:
        step = steps.get(kind)
        lines = groups.get(kind) or [f"{n} {short_text(a)} -> {short_text(b)}" for n, (a, b) in found.winner.items()]
        note = "the former best is not legal then" if step and step.after is None else ""
        what = "; ".join(lines[:MOST_LINES])
        yield Cause(where=where, kind=kind, what=what, move=step.change if step else None, note=note)


def _moved_parts(was: SavedRun) -> str:
    """Which parts of the former best candidate today's code projects otherwise."""
    evaluator, values = was.evaluator(was.cluster(1)), values_of(was.candidate(1))
    if evaluator.broken(values):
        return "the former best is no longer legal"
    kept, (today,) = Kept.open(was.path, 0, is_exact=True), evaluator.project([values])
    moves: dict[str, tuple[float, float]] = {}
    for kind, unit, parts in (("step", "s", today.step), ("memory", "bytes", today.memory)):
        for name, column in kept.parts(f"{kind}_", f"_{unit}").items():
            old, new = float(column[0]), parts.get(name, 0.0)
            if abs(new - old) > NOTICEABLE * abs(old):
                moves[f"{kind}.{name}"] = (abs(new - old) / sum(parts.values()), new / old - 1.0 if old else 1.0)
    large = sorted(moves, key=lambda name: moves[name], reverse=True)[:MOST_LINES]
    moved = ", ".join(f"{name} {moves[name][1]:+.1%}" for name in large)
    return f"parts of the former best that moved: {moved}" if moved else ""


def _of_code(
    where: str, before: Observed, after: Observed, move: float | None = None, note: str = ""
) -> Iterator[Cause]:
    """Code and dependencies as causes, those of both that changed."""
    modules, most = changed(before.code, after.code), 3 * MOST_LINES
    further = f" and {len(modules) - most} more" if len(modules) > most else ""
    found = {
        "code": ", ".join(modules[:most]) + further,
        "dependencies": ", ".join(_version_moves(before.versions, after.versions)),
    }
    if not any(found.values()):
        found = {"unknown": "neither inputs, code nor versions changed; the machine or its compiled code did"}
    for kind, what in found.items():
        if what:
            yield Cause(where=where, kind=kind, what=what, move=move, note=note)
