"""Compare a night's figures with the baseline's: one check per figure, each with its limit and its verdict."""

from collections.abc import Iterator
from dataclasses import dataclass

from primus_search.base.errors import PrimusSearchError
from primus_search.base.units import GB
from primus_search.declare.plain_forms import short_text
from primus_search.nightly.baseline import BaselineState
from primus_search.nightly.figures import ERRORS, Accuracy, ClusterFigures, hypervolume, moved_most, parts
from primus_search.nightly.sweep import NightlySweep, Tolerances
from primus_search.space import Space
from primus_search.values.candidates import Candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One comparison. `move` is today / baseline - 1 (a difference for errors); `limit` is what may pass.

    entry     of the sweep, or `accuracy`, `speed`, `sweep`     cluster   its number in the entry, -1 for none
    note      what a person wants to know beside the figures
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
    note: str = ""

    @property
    def title(self) -> str:
        return f"{self.where}: {self.name}"


def compare(sweep: NightlySweep, before: BaselineState, after: BaselineState) -> list[Check]:
    """Every check of a night, in the order of the sweep file."""
    checks: list[Check] = []
    for entry in sweep.entries:
        old, new = before.entries.get(entry.name, ()), after.entries[entry.name]
        if len(old) != len(new):
            checks.append(_unknown(entry.name, len(old), len(new)))
            continue
        for number, (was, now) in enumerate(zip(old, new, strict=True)):
            checks += _cluster(entry.name, entry.space, number, was, now, sweep.tolerances)
    for name in before.entries:
        if name not in after.entries:
            checks.append(_unknown(name, len(before.entries[name]), 0))
    if after.accuracy:
        checks += _accuracy(before.accuracy, after.accuracy, sweep.tolerances)
    if sweep.speed:
        checks.append(_speed(before.speed, after.speed, sweep.tolerances))
    return checks


def _unknown(entry: str, before: int, after: int) -> Check:
    return Check(
        entry=entry,
        where=entry,
        name="clusters",
        before=str(before),
        after=str(after),
        move=float(after - before),
        limit=0.0,
        passed=False,
        note="the sweep is no longer that of the baseline; accept it with --update-baseline --reason TEXT",
    )


def _cluster(
    entry: str, space: Space, number: int, was: ClusterFigures, now: ClusterFigures, limits: Tolerances
) -> Iterator[Check]:
    where = f"{entry}, {now.cluster}"

    def moved(name: str, old: float, new: float, limit: float, shown: str) -> Check:
        move = new / old - 1.0 if old else float(new != old)
        words = shown.format(old), shown.format(new)
        return Check(
            entry=entry, where=where, name=name, before=words[0], after=words[1], move=move, limit=limit,
            passed=abs(move) <= limit, cluster=number,
        )  # fmt: skip

    yield _best(entry, where, space, number, was, now, limits.best)
    yield moved("tokens_per_s", was.tokens_per_s_per_gpu, now.tokens_per_s_per_gpu, limits.tokens_per_s, "{:,.1f}")
    yield moved("memory", was.memory_bytes / GB, now.memory_bytes / GB, limits.memory, "{:,.2f} GB")
    volume = hypervolume(now.frontier, was.reference_bytes)
    yield moved("frontier", was.hypervolume, volume, limits.frontier, "{:,.1f}")
    yield _legality(entry, where, number, was, now)


def _best(
    entry: str, where: str, space: Space, number: int, was: ClusterFigures, now: ClusterFigures, limit: float
) -> Check:
    """The best configuration is the same, or the old one is within `limit` of the new one."""
    behind, note = 0.0, ""
    if was.knobs != now.knobs:
        behind, note = _behind(space, number, was, now)
    return Check(
        entry=entry, where=where, name="best", before=was.best, after=now.best, move=behind, limit=limit,
        passed=was.knobs == now.knobs or (was.fits and abs(behind) <= limit), cluster=number, note=note,
    )  # fmt: skip


def _behind(space: Space, number: int, was: ClusterFigures, now: ClusterFigures) -> tuple[float, str]:
    """How far the baseline's best is behind today's, by step time, and which knobs differ."""
    knobs = [
        f"{k} {short_text(was.knobs[k])} -> {short_text(v)}" for k, v in now.knobs.items() if was.knobs.get(k, v) != v
    ]
    if not (was.fits and now.fits):
        return -1.0, "; ".join(knobs)
    try:
        old = parts(space, number, Candidates.from_words(was.knobs))
    except (PrimusSearchError, ValueError, KeyError) as error:
        return -1.0, f"the former best can no longer be projected: {error}"
    step = {name: value for name, value in old.items() if name.startswith("step.")}
    today = {name: value for name, value in now.parts.items() if name.startswith("step.")}
    behind = sum(today.values()) / sum(step.values()) - 1.0
    return behind, f"the former best is now {behind:+.2%} in tokens/s; " + "; ".join(knobs)


def _legality(entry: str, where: str, number: int, was: ClusterFigures, now: ClusterFigures) -> Check:
    """The same rows are legal, and each rule removes as many as it did."""
    notes = []
    for rule in sorted({*was.removed, *now.removed}):
        if rule not in now.removed:
            notes.append(f"rule {rule} is gone (removed {was.removed[rule]:,} rows)")
        elif rule not in was.removed:
            notes.append(f"rule {rule} is new (removes {now.removed[rule]:,} rows)")
        elif was.removed[rule] != now.removed[rule]:
            notes.append(f"rule {rule} removes {now.removed[rule]:,} rows, not {was.removed[rule]:,}")
    return Check(
        entry=entry, where=where, name="legality", before=f"{was.legal:,} legal", after=f"{now.legal:,} legal",
        move=now.legal / was.legal - 1.0 if was.legal else float(now.legal), limit=0.0,
        passed=not notes and was.legal == now.legal, cluster=number, note="; ".join(notes),
    )  # fmt: skip


def _accuracy(was: Accuracy | None, now: Accuracy, limits: Tolerances) -> Iterator[Check]:
    """Errors may fall; they may not grow, and no run may drop out."""
    if was is None:
        yield _unknown("accuracy", 0, now.rows)
        return
    for name, old, new in (("rows", was.rows, now.rows), ("memory_rows", was.memory_rows, now.memory_rows)):
        yield Check(
            entry="accuracy", where="accuracy", name=name, before=str(old), after=str(new), move=float(new - old),
            limit=0.0, passed=new >= old,
        )  # fmt: skip
    for name in ERRORS:
        before, after = was.__getattribute__(name), now.__getattribute__(name)
        yield Check(
            entry="accuracy", where="accuracy", name=name, before=f"{before:.2%}", after=f"{after:.2%}",
            move=after - before, limit=limits.accuracy, passed=after - before <= limits.accuracy,
            note="moved most: " + ", ".join(moved_most(was, now)) if abs(after - before) > limits.accuracy else "",
        )  # fmt: skip


def _speed(was: float, now: float, limits: Tolerances) -> Check:
    """Faster is welcome; slower than the tolerance is not."""
    move = now / was - 1.0 if was else 0.0
    return Check(
        entry="speed", where="speed", name="projection speed", before=f"{was:,.0f}", after=f"{now:,.0f}", move=move,
        limit=limits.speed, passed=move >= -limits.speed, note="projected rows per pass of the NumPy reference",
    )  # fmt: skip
