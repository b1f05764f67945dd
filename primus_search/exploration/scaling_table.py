"""Scaling table: the best candidate of each cluster of a search, with days, cost, energy and the chance of a goal.

needed    rate per device at which the tokens are trained in time, or at which they cost the budget; the larger one
chance    P[rate >= needed], ln(rate) normal about ln(expected), by the ends of its 90 % interval on either side
energy    busy watts of the job's devices and idle watts of its spare nodes, for all its hours
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from primus_search.base.units import HOURS_PER_DAY, SECONDS_PER_HOUR
from primus_search.cost.confidence.fit import DEVIATIONS_TO_END
from primus_search.cost.confidence.uncertainty import TIE
from primus_search.exploration.goodput import checkpoint_bytes, goodput
from primus_search.space import ClusterChoice, Goal, Space

if TYPE_CHECKING:
    from primus_search.exploration.result import ClusterResult

WATTS_PER_MW = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One line of a scaling table: the best candidate of one cluster.

    device, nodes, world           name of the accelerator, nodes and devices of the cluster
    tokens_per_s, tokens_per_s_per_gpu   expected, as rows are ranked; low, high: ends of the 90 % interval per device
    efficiency     tokens/s/GPU over that of the smallest cluster of the same machine
    goodput        share of the time that trains (`Goodput`), checkpoint_share, redone_share, restart_share the rest
    mtbf_is_assumed  failures are of another device
    days, gpu_hours, cost_USD, energy_MWh   for the tokens of the goal at that goodput; hours, cost and energy include
                                spare nodes; 0 without tokens, a price or watts
    joules_per_token, tokens_per_dollar   0 without watts or a price
    chance         probability of meeting the goal's date and budget; 1 without either
    dividing_batches   global batches with which it could run the layout of the next larger cluster, where it is slower
                       per device because its own does not divide there
    """

    labels: tuple[tuple[str, int | float | str], ...]
    device: str
    nodes: int
    world: int
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    low: float
    high: float
    efficiency: float
    goodput: float
    checkpoint_bytes: float
    checkpoint_interval_s: float
    checkpoint_share: float
    redone_share: float
    restart_share: float
    spare_nodes: int
    mtbf_is_assumed: bool
    days: float
    gpu_hours: float
    cost_USD: float  # noqa: N815 - USD is the unit
    energy_MWh: float  # noqa: N815 - MWh is the unit
    joules_per_token: float
    tokens_per_dollar: float
    chance: float
    dividing_batches: tuple[int, ...] = ()

    def days_at(self, rate: float) -> float:
        """Days at another rate per device; infinite at none."""
        return self.days * self.tokens_per_s_per_gpu / rate if rate else math.inf


OF_SIZE = ("nodes", "gpus_per_node")
"""Labels that tell clusters of one machine apart."""
_MACHINE = (*OF_SIZE, "hardware")

WORTH: dict[str, Callable[[Rung], float]] = {
    "tokens_per_s_per_gpu": lambda rung: rung.tokens_per_s_per_gpu,
    "tokens_per_s": lambda rung: rung.tokens_per_s,
    "tokens_per_dollar": lambda rung: rung.tokens_per_dollar,
    "tokens_per_joule": lambda rung: 1.0 / rung.joules_per_token if rung.joules_per_token else 0.0,
    "days": lambda rung: rung.tokens_per_s * rung.goodput,
}
"""What clusters are ranked by, by objective: more is better."""


def ladder(found: Sequence["ClusterResult"], space: Space) -> tuple[Rung, ...]:
    """The scaling table of the clusters with a ranking: machine by machine, smallest first."""
    machines = list(dict.fromkeys(machine_of(one) for one in found))
    ranked = [one for one in found if len(one.ranking)]
    ranked.sort(key=lambda one: (machines.index(machine_of(one)), one.choice.cluster.world))
    rungs = []
    for one in ranked:
        peers = [other for other in ranked if machine_of(other) == machine_of(one)]
        base = peers[0].best_tokens_per_s_per_gpu
        larger = next((p for p in peers if p.choice.cluster.world > one.choice.cluster.world), None)
        is_dip = larger is not None and larger.best_tokens_per_s_per_gpu > one.best_tokens_per_s_per_gpu * (1.0 + TIE)
        batches = dividing_batches(one.choice, larger, space) if larger is not None and is_dip else ()
        rungs.append(_rung(one, space.goal, base, batches))
    return tuple(rungs)


def worth(rung: Rung, space: Space) -> float:
    """By what the clusters of a space are ranked: more is better."""
    return WORTH[space.objective](rung)


def reached(rung: Rung, goal: Goal) -> float:
    """The chance of the goal as far as it counts: what is above the wanted one is as good as that."""
    return min(rung.chance, goal.chance / 100.0)


def machine_of(found: "ClusterResult") -> tuple[object, ...]:
    """What tells a cluster apart but its size."""
    choice = found.choice
    return (choice.cluster.accelerator.name, *(label for label in choice.labels if label[0] not in _MACHINE))


def _rung(one: "ClusterResult", goal: Goal, base: float, batches: tuple[int, ...]) -> Rung:
    choice, per_gpu = one.choice, one.best_tokens_per_s_per_gpu
    world, nodes, power = choice.cluster.world, choice.cluster.num_nodes, choice.power
    first = one.ranking.take(np.zeros(1, np.int64))
    sure, size = first.confidence, checkpoint_bytes(one.ranking.job, first.candidates)
    lost = goodput(choice.reliability, nodes, size)
    tokens_per_hour = per_gpu * world * lost.share * SECONDS_PER_HOUR
    hours_per_token = 1.0 / tokens_per_hour if tokens_per_hour else math.inf
    spare = world * lost.spare_nodes / nodes
    watts = power.busy_w * world + power.idle_w * spare
    hours = goal.tokens * hours_per_token if goal.tokens else 0.0
    USD_per_hour = (world + spare) * choice.price_per_gpu_hour_USD  # noqa: N806 - USD is the unit
    gpu_hours = hours * (world + spare)
    late = hours / HOURS_PER_DAY / goal.within_days if goal.within_days else 0.0
    dear = hours * USD_per_hour / goal.budget_USD if goal.budget_USD else 0.0
    return Rung(
        labels=choice.labels,
        device=choice.cluster.accelerator.name,
        nodes=nodes,
        world=world,
        tokens_per_s=per_gpu * world,
        tokens_per_s_per_gpu=per_gpu,
        low=float(sure.low[0]),
        high=float(sure.high[0]),
        efficiency=per_gpu / base,
        goodput=lost.share,
        checkpoint_bytes=size,
        mtbf_is_assumed=choice.reliability.mtbf_is_assumed and choice.reliability.node_mtbf_hours > 0.0,
        **asdict(lost),
        days=hours / HOURS_PER_DAY,
        gpu_hours=gpu_hours,
        cost_USD=hours * USD_per_hour,
        tokens_per_dollar=tokens_per_hour / USD_per_hour if USD_per_hour else 0.0,
        energy_MWh=hours * watts / WATTS_PER_MW,
        joules_per_token=watts * SECONDS_PER_HOUR * hours_per_token if watts else 0.0,
        chance=chance_of(max(late, dear), per_gpu, float(sure.low[0]), float(sure.high[0])),
        dividing_batches=batches,
    )


def chance_of(times: float, expected: float, low: float, high: float) -> float:
    """Probability that a rate is at least so many times the expected one; low, high: its 90 % interval."""
    if times <= 0.0:
        return 1.0
    if not math.isfinite(times):
        return 0.0
    middle = expected if low < expected < high else math.sqrt(low * high)
    needed = math.log(times * expected / middle)
    end = math.log(high / middle) if needed > 0.0 else math.log(middle / low)
    deviations = needed * DEVIATIONS_TO_END / max(end, 1e-9)
    return 0.5 * math.erfc(deviations / math.sqrt(2.0))


def dividing_batches(choice: ClusterChoice, larger: "ClusterResult", space: Space) -> tuple[int, ...]:
    """The nearest global batches, below and above, with which a cluster could run the layout of a larger one's first
    row; () where the batch of the space does, or no batch would."""
    row, world, batch = larger.ranking.candidates.row(0), choice.cluster.world, space.workload.global_batch_size
    ranks = row["tp"] * row["pp"] * row["cp"]
    if world % ranks:
        return ()
    replicas = world // ranks
    step = replicas if batch % replicas else replicas * row["micro_batch_size"]
    if batch % step == 0:
        return ()
    return tuple(near for near in (batch // step * step, (batch // step + 1) * step) if near)
