"""Traffic between data-parallel replicas: gradients, weight gathers and FSDP."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTraffic:
    """Group `sharding` of a stack file."""

    shard_overlap: float
    """Share of FSDP gathers and scatters that prefetch hides."""

    gathers_ends: bool
    """Embedding and head are gathered once and their gradients scattered, every micro-batch."""

    gradient_bucket_params: float
    """Parameters whose gradients travel together; the last bucket of a step hides behind nothing."""

    gradient_overlap: float
    """Share of gradient reduction hidden where the candidate overlaps it."""

    param_gather_overlap: float
    """Share of the distributed optimizer's weight gather hidden behind the next forward."""

    broadcast_s: float
    """Time of each broadcast where owners of ZeRO-1 shards send their weights one after the other; 0: all-gather."""
