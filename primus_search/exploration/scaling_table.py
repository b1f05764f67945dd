"""Scaling table: the best candidate of each cluster of a search, with days and cost of a token budget."""

import math
from dataclasses import asdict, dataclass

from primus_search.base.units import HOURS_PER_DAY, SECONDS_PER_HOUR
from primus_search.exploration.goodput import checkpoint_bytes, goodput
from primus_search.exploration.result import SearchResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One line of a scaling table: the best candidate of one cluster.

    tokens_per_s, tokens_per_s_per_gpu   expected, as rows are ranked
    efficiency     tokens/s/GPU over that of the smallest cluster of the ladder
    goodput        share of the time that trains (`Goodput`), checkpoint_share, redone_share, restart_share the rest
    days, gpu_hours, cost_USD   for the token budget at that goodput; hours and cost include spare nodes; 0 without a
                                budget or a price
    """

    labels: tuple[tuple[str, int | float | str], ...]
    nodes: int
    world: int
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    efficiency: float
    goodput: float
    checkpoint_bytes: float
    checkpoint_interval_s: float
    checkpoint_share: float
    redone_share: float
    restart_share: float
    spare_nodes: int
    days: float
    gpu_hours: float
    cost_USD: float  # noqa: N815 - USD is the unit


def ladder(result: SearchResult, token_budget: float = 0.0) -> tuple[Rung, ...]:
    """The scaling table of a search over several clusters, smallest first; clusters where nothing fits are left out."""
    found = sorted((c for c in result.clusters if len(c.ranking)), key=lambda c: c.choice.cluster.world)
    base = found[0].best_tokens_per_s_per_gpu if found else math.nan
    rungs = []
    for one in found:
        world, per_gpu = one.choice.cluster.world, one.best_tokens_per_s_per_gpu
        size = checkpoint_bytes(one.ranking.job, one.ranking.candidates.take(slice(0, 1)))
        nodes = one.choice.cluster.num_nodes
        found_goodput = goodput(one.choice.reliability, nodes, size)
        share = found_goodput.share
        hours = token_budget / (per_gpu * world * share) / SECONDS_PER_HOUR if share else math.inf
        gpu_hours = hours * world * (1.0 + found_goodput.spare_nodes / nodes)
        rungs.append(
            Rung(
                labels=one.choice.labels,
                nodes=nodes,
                world=world,
                tokens_per_s=per_gpu * world,
                tokens_per_s_per_gpu=per_gpu,
                efficiency=per_gpu / base,
                goodput=share,
                checkpoint_bytes=size,
                **asdict(found_goodput),
                days=hours / HOURS_PER_DAY,
                gpu_hours=gpu_hours,
                cost_USD=gpu_hours * one.choice.price_per_gpu_hour_USD,
            )
        )
    return tuple(rungs)
