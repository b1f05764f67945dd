"""The best rows while a search is going on: the ranking as far as it is known."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from primus_search.exploration.exhaustive.evaluate import Funnel
from primus_search.exploration.exhaustive.shortlist import ShortlistRows

MOST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """One of the best candidates so far: its knobs, and what is projected of it."""

    knobs: Mapping[str, Any]
    num_gpus: int
    tokens_per_s_per_gpu: float
    memory_bytes: float


def leaders(funnel: Funnel, tops: Sequence[ShortlistRows]) -> list[Leader]:
    """The fastest by tokens per second and GPU, from the top list of every cluster."""
    found = [leader for cluster, top in enumerate(tops) for leader in _of(funnel, cluster, top.take(slice(MOST)))]
    return sorted(found, key=lambda leader: -leader.tokens_per_s_per_gpu)[:MOST]


def _of(funnel: Funnel, cluster: int, top: ShortlistRows) -> list[Leader]:
    world = funnel.space.clusters[cluster].cluster.world
    candidates = funnel.enumerators[cluster].rows(top.indices)
    return [
        Leader(
            knobs=candidates.row(rank),
            num_gpus=world,
            tokens_per_s_per_gpu=funnel.space.workload.tokens_per_step / float(top.step_s[rank]) / world,
            memory_bytes=float(top.memory_bytes[rank]),
        )
        for rank in range(len(top))
    ]
