"""What would make a candidate faster: the parts of its step that stand out, and remedies that were tried.

Every remedy is projected before it is named, so advice comes with its gain, with the bytes it misses, or with the rule
that forbids it. Remedies inside the space cannot beat the winner of an exact search; those beyond it (a faster network,
a larger batch, graphs, an axis the space leaves out) show what a change of plans would buy.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from primus_search.base.units import GB
from primus_search.exploration.neighbours import Evaluator, Figures, Trial, Values, said
from primus_search.space import AxisValue
from primus_search.values.candidates import Fp8, Recompute, Sharding
from primus_search.values.machine.cluster import Cluster
from primus_search.values.machine.stack import with_numbers

WORTH_SAYING = 0.02
"""Share of the step (or of the device's memory) below which a part is not worth advice."""
WORTH_DOING = 0.003
"""Gain below which a remedy does not count as one: far inside the error of any projection."""
ROOM = 0.10
"""Share of device memory left over that counts as room to spend."""


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
    found = [one for check in CHECKS if (one := check(subject)) is not None]
    return sorted(found, key=lambda one: (-(one.best.gain or 0.0) if one.best else 0.0, -one.share))


@dataclass(frozen=True)
class _Subject:
    """The candidate, and ways to try something on it."""

    evaluator: Evaluator
    base: Values
    figures: Figures

    def share(self, *parts: str) -> float:
        return sum(self.figures.step[part] for part in parts) / self.figures.step_s

    def found(self, topic: str, finding: str, share: float, remedies: Iterator[Remedy]) -> Advice | None:
        if share < WORTH_SAYING:
            return None
        ranked = sorted(remedies, key=lambda r: (not r.trial.fits, -(r.gain if r.gain is not None else -1e9)))
        return Advice(topic=topic, finding=finding, share=share, remedies=tuple(ranked))

    def axes(self, *changes: Mapping[str, AxisValue]) -> Iterator[Remedy]:
        """Other values of axes; a change to what is already there is none."""
        for change in changes:
            if any(self.base[name] != value for name, value in change.items()):
                trial = self.evaluator.try_out(self.base, change)
                if trial.changes:
                    yield self._remedy(said(trial), trial, self._offers(change))

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

    def _offers(self, change: Mapping[str, AxisValue]) -> bool:
        return all(value in self.evaluator.space.axis(name).values for name, value in change.items())

    def _elsewhere(self, what: str, evaluator: Evaluator) -> Remedy:
        broken = evaluator.broken(self.base)
        figures = None if broken else evaluator.project([self.base])[0]
        trial = Trial(values=self.base, changes={}, broken=broken, figures=figures)
        return self._remedy(what, trial, False)

    def _remedy(self, what: str, trial: Trial, is_in_space: bool) -> Remedy:
        gain = None
        if trial.figures is not None:
            gain = trial.figures.expected_tokens_per_s_per_gpu / self.figures.expected_tokens_per_s_per_gpu - 1.0
        return Remedy(what=what, trial=trial, gain=gain, is_in_space=is_in_space)


def _halved(p: _Subject, *names: str) -> Iterator[Remedy]:
    yield from p.axes(*({name: p.number(name) // 2} for name in names if p.number(name) > 1))


def _bubble(p: _Subject) -> Advice | None:
    share, m, pp = p.share("bubble"), p.figures.microbatches, p.number("pp")
    finding = (
        f"the pipeline bubble is {share:.1%} of the step ({p.figures.bubble_ratio:.1%} of the pipeline; "
        f"{m} micro-batches over {pp} stages)"
    )

    def tried() -> Iterator[Remedy]:
        yield from _halved(p, "micro_batch_size", "pp")
        yield from p.axes({"vpp": p.number("vpp") * 2})
        names = dict.fromkeys([*p.evaluator.space.axis("schedule").values, "interleaved", "zb-h1", "zbv"])
        yield from p.axes(*({"schedule": name} for name in names if name != "ilp"))
        yield from p.axes(*({"pipeline_layout": layout} for layout in p.evaluator.space.axis("pipeline_layout").values))
        yield from p.batch(2)

    return p.found("bubble", finding, share if pp > 1 else 0.0, tried())


def _experts(p: _Subject) -> Advice | None:
    share = p.share("expert_comm")
    finding = f"dispatch and combine of experts keep compute waiting for {share:.1%} of the step (ep {p.number('ep')})"

    def tried() -> Iterator[Remedy]:
        yield from p.axes({"deepep": True}, {"sync_free_stage": 3})
        yield from _halved(p, "ep")
        yield from p.axes({"ep": p.number("ep") * 2})
        yield from p.cluster(
            "dispatch overlapped with another batch (stack.expert_overlap)",
            lambda c: replace(c, stack=with_numbers(c.stack, {"expert_overlap": c.stack.experts.batch_expert_overlap})),
        )
        yield from p.network(2.0)

    return p.found("all-to-all", finding, share, tried())


def _tensor(p: _Subject) -> Advice | None:
    share = p.share("tensor_comm")
    finding = f"tensor-parallel collectives show for {share:.1%} of the step (tp {p.number('tp')})"

    def tried() -> Iterator[Remedy]:
        yield from _halved(p, "tp")
        yield from p.axes({"sequence_parallel": True}, {"tp": 1})
        yield from p.network(2.0)

    return p.found("tensor parallelism", finding, share, tried())


def _context(p: _Subject) -> Advice | None:
    share = p.share("context_comm")
    finding = f"ring or all-to-all attention shows for {share:.1%} of the step (cp {p.number('cp')})"

    def tried() -> Iterator[Remedy]:
        yield from _halved(p, "cp")
        yield from p.axes({"cp": 1}, {"tp": p.number("tp") * 2})
        yield from p.network(2.0)

    return p.found("context parallelism", finding, share, tried())


def _gradients(p: _Subject) -> Advice | None:
    share = p.share("gradient_comm")
    finding = f"gradient and weight traffic between replicas shows for {share:.1%} of the step (dp {p.figures.dp})"

    def tried() -> Iterator[Remedy]:
        yield from p.axes({"overlap_grad_reduce": True}, {"sharding": int(Sharding.DISTRIBUTED_OPTIMIZER)})
        yield from p.axes({"sharding": int(Sharding.NONE)}, {"pp": p.number("pp") * 2})
        yield from p.batch(2)
        yield from p.network(2.0)

    return p.found("gradient exposure", finding, share, tried())


def _sharded(p: _Subject) -> Advice | None:
    share = p.share("shard_comm")
    finding = f"gathers and scatters of sharded weights show for {share:.1%} of the step"

    def tried() -> Iterator[Remedy]:
        per_node = p.evaluator.choice.cluster.network.gpus_per_node
        yield from p.axes({"sharding": int(Sharding.HSDP), "shard_group": per_node})
        yield from p.axes({"sharding": int(Sharding.DISTRIBUTED_OPTIMIZER)})
        yield from p.axes({"micro_batch_size": p.number("micro_batch_size") * 2})
        yield from p.network(2.0)

    return p.found("sharded weights", finding, share, tried())


def _recompute(p: _Subject) -> Advice | None:
    share, layers = p.share("recompute"), p.number("recompute_num_layers")
    finding = f"recompute repeats {share:.1%} of the step"

    def tried() -> Iterator[Remedy]:
        yield from p.axes({"recompute": int(Recompute.NONE)}, {"recompute": int(Recompute.CORE_ATTENTION)})
        if layers > 1:
            yield from p.axes({"recompute_num_layers": layers // 2}, {"recompute_num_layers": layers - 1})
        doubled = {"recompute": int(Recompute.NONE), "recompute_num_layers": 0, "recompute_method": 0}
        yield from p.axes(doubled | {"tp": p.number("tp") * 2}, doubled | {"pp": p.number("pp") * 2})
        yield from p.axes(doubled | {"sharding": int(Sharding.FSDP2)})

    return p.found("recompute", finding, share, tried())


def _launches(p: _Subject) -> Advice | None:
    share = p.share("launch")
    finding = f"the device waits for launches and host work for {share:.1%} of the step"

    def tried() -> Iterator[Remedy]:
        yield from p.cluster(
            "every launch replayed as a graph (stack.cuda_graph=full)",
            lambda c: replace(c, stack=with_numbers(c.stack, {"cuda_graph": "full"})),
        )
        yield from p.axes({"micro_batch_size": p.number("micro_batch_size") * 2}, {"sync_free_stage": 3})
        yield from p.axes({"deepep": True}, {"grouped_gemm": 0})

    return p.found("host", finding, share, tried())


def _precision(p: _Subject) -> Advice | None:
    share = p.share("mlp", "experts", "attention")
    recipe = Fp8(p.number("fp8"))
    precision = "in BF16" if recipe == Fp8.NONE else f"with fp8={recipe.name.lower()}"
    finding = f"attention, MLP and experts compute for {share:.1%} of the step, {precision}"

    def tried() -> Iterator[Remedy]:
        yield from p.axes(*({"fp8": int(other)} for other in Fp8 if other not in (recipe, Fp8.NONE)))
        yield from p.axes({"grouped_gemm": 0}, {"micro_batch_size": p.number("micro_batch_size") * 2})

    # Compute is what a step is for: worth saying only where there is a faster way to do it.
    found = p.found("compute", finding, share, tried())
    return found if found is not None and (found.best or found.best_without_room) else None


def _memory(p: _Subject) -> Advice | None:
    hbm = p.evaluator.choice.cluster.accelerator.hbm_bytes
    share = p.figures.headroom_bytes / hbm
    finding = f"{p.figures.headroom_bytes / GB:.1f} GB of {hbm / GB:.0f} GB stay free beyond the margin"

    def tried() -> Iterator[Remedy]:
        yield from p.axes({"micro_batch_size": p.number("micro_batch_size") * 2})
        yield from p.axes({"recompute": int(Recompute.NONE)}, {"recompute": int(Recompute.CORE_ATTENTION)})
        yield from _halved(p, "tp", "pp", "cp", "ep")
        yield from p.axes({"sharding": int(Sharding.DISTRIBUTED_OPTIMIZER)}, {"sharding": int(Sharding.NONE)})

    return p.found("spare memory", finding, share if share > ROOM else 0.0, tried())


def _rest(p: _Subject) -> Advice | None:
    share = p.share("optimizer", "overhead", "stragglers")
    finding = f"optimizer, fixed time per step and stragglers take {share:.1%} of the step, whatever the batch"
    return p.found("per step", finding, share, p.batch(2))


CHECKS: tuple[Callable[[_Subject], Advice | None], ...] = (
    _bubble,
    _experts,
    _tensor,
    _context,
    _gradients,
    _sharded,
    _recompute,
    _launches,
    _precision,
    _memory,
    _rest,
)
