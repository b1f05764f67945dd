"""What would make a candidate faster: the parts of its step that stand out, and remedies that were tried.

Every remedy is projected before it is named, so advice comes with its gain, with the bytes it misses, or with the rule
that forbids it. Remedies inside the space cannot beat the winner of an exact search; those beyond it (a faster network,
a larger batch, graphs, an axis the space leaves out) show what a change of plans would buy.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any

from primus_search.base.units import GB
from primus_search.exploration.neighbours import Evaluator, Figures, Trial, Values, change_text
from primus_search.files.source import read
from primus_search.space import AxisValue
from primus_search.values.candidates import Fp8
from primus_search.values.knobs import KNOB
from primus_search.values.machine.cluster import Cluster
from primus_search.values.machine.stack import with_numbers

WORTH_SAYING = 0.02  # share of the step (or of the device's memory) below which a part is not worth advice
WORTH_DOING = 0.003  # gain below which a remedy does not count as one: far inside the error of any projection
ROOM = 0.10  # share of device memory left over that counts as room to spend


Change = tuple[tuple[str, AxisValue], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One thing that was tried. `gain`: tokens/s/GPU over the candidate's, less 1; None where it is not legal."""

    what: str
    trial: Trial
    gain: float | None
    is_in_space: bool

    @property
    def helps(self) -> bool:
        return self.trial.fits and self.gain is not None and self.gain > WORTH_DOING


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One finding: what stands out, how much of the step it is, what was tried, best first."""

    topic: str
    finding: str
    share: float
    remedies: tuple[Remedy, ...]

    @property
    def best(self) -> Remedy | None:
        """The remedy that gains most and fits, None where nothing tried helps."""
        return next((remedy for remedy in self.remedies if remedy.helps), None)

    @property
    def best_without_room(self) -> Remedy | None:
        """The remedy that would gain most if it fitted."""
        found = (r for r in self.remedies if r.trial.is_legal and not r.trial.fits and (r.gain or 0.0) > WORTH_DOING)
        return next(found, None)


def advice(evaluator: Evaluator, base: Values, figures: Figures) -> list[Advice]:
    """Findings on one candidate: those with a remedy first, by what it gains, then by share."""
    subject = _Subject(evaluator, base, figures)
    found = [one for check in subject.checks if (one := _checked(subject, check)) is not None]
    return sorted(found, key=lambda one: (-(one.best.gain or 0.0) if one.best else 0.0, -one.share))


@dataclass(frozen=True)
class _Subject:
    """The candidate, and ways to try something on it."""

    evaluator: Evaluator
    base: Values
    figures: Figures

    def share(self, *parts: str) -> float:
        return sum(self.figures.step[part] for part in parts) / self.figures.step_s

    def share_of(self, check: Mapping[str, Any]) -> float:
        """The share that a row of advice.yaml is about: parts of the step, else memory that is room to spend."""
        spare = self.figures.headroom_bytes / self.evaluator.choice.cluster.accelerator.hbm_bytes
        return self.share(*check["parts"]) if check["parts"] else spare if spare > ROOM else 0.0

    @cached_property
    def checks(self) -> list[Mapping[str, Any]]:
        """Rows of advice.yaml for what stands out."""
        there = [check for check in _checks() if "needs" not in check or self.number(check["needs"]) != 1]
        return [check for check in there if self.share_of(check) >= WORTH_SAYING]

    @cached_property
    def trials(self) -> Mapping[Change, Trial]:
        """What the rows of `checks` change of its axes, tried together; a change to what is already there is none."""
        every = dict.fromkeys(change for check in self.checks for one in check["try"] for change in _changes(self, one))
        moving = [change for change in every if any(self.base[name] != value for name, value in change)]
        return dict(zip(moving, self.evaluator.try_out(self.base, list(map(dict, moving))), strict=True))

    def axes(self, changes: Iterator[Change]) -> Iterator[Remedy]:
        """Other values of axes."""
        for change in changes:
            trial = self.trials.get(change)
            if trial and trial.changes:
                gain, is_offered = trial.gain(self.figures), self._offers(change)
                yield Remedy(what=change_text(trial), trial=trial, gain=gain, is_in_space=is_offered)

    def cluster(self, what: str, change: Callable[[Cluster], Cluster]) -> Iterator[Remedy]:
        """The same candidate on a changed machine."""
        choice = replace(self.evaluator.choice, cluster=change(self.evaluator.choice.cluster))
        yield self._elsewhere(what, Evaluator(self.evaluator.space, choice))

    def batch(self, factor: int) -> Iterator[Remedy]:
        """The same candidate with a larger global batch."""
        workload = self.evaluator.space.workload
        size = workload.global_batch_size * factor
        space = replace(self.evaluator.space, workload=replace(workload, global_batch_size=size))
        yield self._elsewhere(f"global_batch_size={size}", Evaluator(space, self.evaluator.choice))

    def network(self, factor: float) -> Iterator[Remedy]:
        """Faster NICs, then faster links inside the fast domain."""
        yield from self.cluster(
            f"NICs {factor:g}x as fast",
            lambda c: replace(c, network=replace(c.network, nic_bytes_per_s=factor * c.network.nic_bytes_per_s)),
        )
        yield from self.cluster(
            f"links inside the node {factor:g}x as fast",
            lambda c: replace(c, network=replace(c.network, link_bytes_per_s=factor * c.network.link_bytes_per_s)),
        )

    def number(self, name: str) -> int:
        return int(self.base[name])  # type: ignore[arg-type]

    def _offers(self, change: Change) -> bool:
        return all(value in self.evaluator.choice.axis(name).values for name, value in change)

    def _elsewhere(self, what: str, evaluator: Evaluator) -> Remedy:
        broken = evaluator.broken(self.base)
        figures = None if broken else evaluator.project([self.base])[0]
        trial = Trial(values=self.base, changes={}, broken=broken, figures=figures)
        return Remedy(what=what, trial=trial, gain=trial.gain(self.figures), is_in_space=False)


def _precision(subject: _Subject) -> str:
    recipe = Fp8(subject.number("fp8"))
    return "in BF16" if recipe == Fp8.NONE else f"with fp8={recipe.name.lower()}"


def _checked(subject: _Subject, check: Mapping[str, Any]) -> Advice | None:
    """One row of advice.yaml for a candidate; None where nothing is worth saying."""
    f, hbm, share = subject.figures, subject.evaluator.choice.cluster.accelerator.hbm_bytes, subject.share_of(check)
    words = {**subject.base, "share": share, "bubble_ratio": f.bubble_ratio, "microbatches": f.microbatches, "dp": f.dp}
    words |= {"headroom_GB": f.headroom_bytes / GB, "hbm_GB": hbm / GB, "precision": _precision(subject)}
    tried = [remedy for one in check["try"] for remedy in _remedies(subject, one)]
    tried.sort(key=lambda r: (not r.trial.fits, -(r.gain if r.gain is not None else -1e9)))
    finding = check["finding"].format(**words)
    found = Advice(topic=check["topic"], finding=finding, share=share, remedies=tuple(tried))
    return found if not check.get("quiet") or found.best or found.best_without_room else None


def _remedies(subject: _Subject, one: Mapping[str, Any]) -> Iterator[Remedy]:
    """What one entry of `try` stands for."""
    if "batch" in one:
        yield from subject.batch(one["batch"])
    elif "network" in one:
        yield from subject.network(one["network"])
    elif "stack" in one:
        stack = subject.evaluator.choice.cluster.stack
        numbers = {one["stack"]: one["to"] if "to" in one else getattr(stack.experts, one["from"])}
        yield from subject.cluster(one["what"], lambda c: replace(c, stack=with_numbers(c.stack, numbers)))
    else:
        yield from subject.axes(_changes(subject, one))


def _changes(subject: _Subject, one: Mapping[str, Any]) -> Iterator[Change]:
    """The changes of axes that one entry of `try` stands for."""
    axes = {name: _values(subject, name, value, one) for name, value in one.items() if name in KNOB}
    return (tuple(zip(axes, values, strict=True)) for values in product(*axes.values()) if axes)


def _values(subject: _Subject, name: str, value: Any, one: Mapping[str, Any]) -> list[AxisValue]:
    """The typed values that a word of advice.yaml stands for."""
    if value == "each":
        return [*dict.fromkeys([*subject.evaluator.choice.axis(name).values, *one.get("also", ())])]
    if value == "formats":
        return [int(each) for each in Fp8 if each != Fp8.NONE]
    if value == "node":
        return [subject.evaluator.choice.cluster.network.gpus_per_node]
    if isinstance(value, str) and value not in KNOB[name].members:
        here = subject.number(name)
        return [here * 2] if value == "*2" else [] if here == 1 else [here // 2 if value == "/2" else here - 1]
    return [KNOB[name].members[value] if isinstance(value, str) else value]


@cache
def _checks() -> tuple[Mapping[str, Any], ...]:
    return tuple(read(Path(__file__).with_name("advice.yaml")).data)
