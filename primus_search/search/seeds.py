"""Where a sampler starts: the order in which an engineer would try things.

Parallelism first, then schedule, DeepEP, sync-free stages, precision, memory levers, batch. Each seed changes one
group against the best guess of the group before, for every depth of pipeline.
"""

from collections.abc import Iterator
from typing import Any

from primus_search.candidates import Fp8, GroupedGemm, Recompute, Sharding
from primus_search.space import Space

GUESS: dict[str, Any] = {
    "deepep": True,
    "sync_free_stage": 1,
    "fp8": Fp8.HYBRID,
    "recompute": Recompute.NONE,
    "recompute_num_layers": 0,
    "sharding": Sharding.DISTRIBUTED_OPTIMIZER,
    "loss_fusion": True,
    "overlap_grad_reduce": True,
    "grouped_gemm": GroupedGemm.TURBO,
    "micro_batch_size": 1,
    "cp": 1,
    "etp": 1,
    "tp": 1,
    "vpp": 1,
    "schedule": "1f1b",
}
"""What is usually fast, where the space offers it."""

GROUPS: tuple[tuple[str, ...], ...] = (
    ("tp", "ep"),
    ("schedule", "vpp"),
    ("deepep",),
    ("sync_free_stage",),
    ("fp8",),
    ("recompute", "recompute_num_layers", "sharding"),
    ("micro_batch_size", "cp"),
)


def seeds(space: Space) -> Iterator[dict[str, int]]:
    """Wanted positions on the axes, best guess first."""
    base = {axis.name: _position(axis.values, GUESS.get(axis.name, axis.values[0])) for axis in space.axes}
    base["ep"] = len(space.axis("ep").values) - 1
    for pp in range(len(space.axis("pp").values)):
        yield base | {"pp": pp}
        for group in GROUPS:
            for name in group:
                for position in range(len(space.axis(name).values)):
                    if position != base[name]:
                        yield base | {"pp": pp, name: position}


def _position(values: tuple[Any, ...], wanted: Any) -> int:
    return values.index(wanted) if wanted in values else 0
