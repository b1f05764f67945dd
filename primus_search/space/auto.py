"""What `auto` means on each axis: every value that could be legal and that a training framework can run.

Values are a superset on purpose: which combinations are legal is for `space.rules`. Where a value only exists to save
memory or to match an existing job (offloading, hybrid sharding, replicated optimizer state), `auto` leaves it out;
a space file may list it.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

from primus_search.candidates import Fp8, GroupedGemm, Recompute, RecomputeMethod, Sharding
from primus_search.cluster import Cluster
from primus_search.layout import BALANCED, EVEN
from primus_search.model import Model
from primus_search.schedule import names as schedule_names
from primus_search.space.types import AXES, AxisValue
from primus_search.workload import Workload

MAX_TENSOR_PARALLEL = 16  # beyond, even a rack-scale domain leaves GEMMs too thin
MIN_TOKENS_PER_CP_RANK = 1024  # context parallelism below this only adds traffic
MAX_MICRO_BATCH = 16
MAX_SMALL_VPP = 8  # every count up to here; above, only divisors of the layers per stage
MAX_VPP = 16
FRAMEWORK_SCHEDULES = ("1f1b", "interleaved", "zb-h1", "zbv", "v-half", "v-min")
"""Schedules that Megatron-LM, AMD Primus or torchtitan run today and that need no second copy of the weights."""

Word = Literal["auto", "divisors", "powers_of_two"]


def auto_values(axis: str, model: Model, cluster: Cluster, workload: Workload) -> tuple[AxisValue, ...]:
    """The values of one axis for this job, in the order they are tried."""
    return _AUTO[axis](model, cluster, workload)


def word_values(axis: str, word: str, model: Model, cluster: Cluster, workload: Workload) -> tuple[AxisValue, ...]:
    """Values of an axis named by a word: `auto`, or a filter of whole numbers (`divisors`, `powers_of_two`).

    `divisors` and `powers_of_two` apply to axes that count: divisors of what the axis divides, or powers of two up to
    the largest of these. Raises ValueError for a word the axis does not define, listing those it does.
    """
    if word == "auto":
        return auto_values(axis, model, cluster, workload)
    limits: dict[str, int] = {
        "tp": model.num_heads,
        "pp": cluster.world,
        "ep": model.moe.num_experts if model.moe else 1,
        "etp": model.moe.expert_ffn_hidden if model.moe else 1,
        "cp": workload.seq_length,
        "micro_batch_size": workload.global_batch_size,
        "vpp": model.num_layers,
        "recompute_num_layers": model.num_layers,
        "shard_group": cluster.world,
        "offload_layers": model.num_layers,
    }
    if axis not in limits:
        raise ValueError(f"axis {axis} knows the word 'auto'")
    whole = _divisors(limits[axis])
    if word == "divisors":
        return tuple(d for d in whole if d <= max(cluster.world, workload.global_batch_size))
    if word == "powers_of_two":
        return tuple(_powers_of_two(min(limits[axis], max(cluster.world, workload.global_batch_size))))
    raise ValueError(f"axis {axis} knows the words 'auto', 'divisors' and 'powers_of_two'")


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def _powers_of_two(most: int) -> list[int]:
    return [1 << power for power in range(max(most, 1).bit_length())]


def _tp(model: Model, cluster: Cluster, workload: Workload) -> tuple[AxisValue, ...]:
    """Divisors of the heads that fit the fast domain and divide it, so that no tensor group crosses a slow link."""
    domain = min(cluster.network.domain_size, cluster.world)
    shared = math.gcd(model.num_heads, model.hidden)
    return tuple(t for t in _divisors(shared) if t <= MAX_TENSOR_PARALLEL and domain % t == 0)


def _pp(model: Model, cluster: Cluster, workload: Workload) -> tuple[AxisValue, ...]:
    return tuple(p for p in _divisors(cluster.world) if p <= model.num_layers)


def _vpp(model: Model, cluster: Cluster, workload: Workload) -> tuple[AxisValue, ...]:
    """Small chunk counts, and larger ones that divide the layers of a stage; a chunk holds at least one layer."""
    stages = [p for p in _divisors(cluster.world) if 1 < p <= model.num_layers]
    most = max((model.num_layers // p for p in stages), default=1)
    even = {v for p in stages if model.num_layers % p == 0 for v in _divisors(model.num_layers // p) if v <= MAX_VPP}
    return tuple(sorted({1} | {v for v in range(2, MAX_SMALL_VPP + 1) if v <= most} | even))


def _ep(model: Model, cluster: Cluster, workload: Workload) -> tuple[AxisValue, ...]:
    experts = model.moe.num_experts if model.moe else 1
    return tuple(e for e in _divisors(experts) if cluster.world % e == 0)


def _etp(model: Model, cluster: Cluster, workload: Workload) -> tuple[AxisValue, ...]:
    """Experts whole, or split as attention can be (Megatron's default before folding)."""
    return _tp(model, cluster, workload) if model.is_moe else (1,)


def _cp(model: Model, cluster: Cluster, workload: Workload) -> tuple[AxisValue, ...]:
    most = min(workload.seq_length // MIN_TOKENS_PER_CP_RANK, cluster.world)
    return tuple(c for c in _powers_of_two(most) if c == 1 or workload.seq_length % (2 * c) == 0)


def _micro_batch_size(model: Model, cluster: Cluster, workload: Workload) -> tuple[AxisValue, ...]:
    sizes = [b for b in _powers_of_two(MAX_MICRO_BATCH) if workload.global_batch_size % b == 0]
    return tuple(b for b in sizes if b <= workload.global_batch_size)


def _schedule(model: Model, cluster: Cluster, workload: Workload) -> tuple[AxisValue, ...]:
    known = schedule_names()
    return tuple(name for name in FRAMEWORK_SCHEDULES if name in known)


def _fp8(model: Model, cluster: Cluster, workload: Workload) -> tuple[AxisValue, ...]:
    has_fp8 = cluster.accelerator.fp8_peak_flops_per_s > 0
    return (Fp8.NONE, Fp8.HYBRID) if has_fp8 else (Fp8.NONE,)


def _recompute_num_layers(model: Model, cluster: Cluster, workload: Workload) -> tuple[AxisValue, ...]:
    """All (0), then 1, 2, 4 ... layers of each virtual stage."""
    return (0, *_powers_of_two(model.num_layers))


def _only(*values: AxisValue) -> Callable[[Model, Cluster, Workload], tuple[AxisValue, ...]]:
    return lambda model, cluster, workload: values


def _with_experts(values: Sequence[AxisValue]) -> Callable[[Model, Cluster, Workload], tuple[AxisValue, ...]]:
    """All values for a model with experts, the first for a dense one."""
    return lambda model, cluster, workload: tuple(values) if model.is_moe else tuple(values[:1])


_AUTO: dict[str, Callable[[Model, Cluster, Workload], tuple[AxisValue, ...]]] = {
    "tp": _tp,
    "pp": _pp,
    "vpp": _vpp,
    "ep": _ep,
    "etp": _etp,
    "cp": _cp,
    "micro_batch_size": _micro_batch_size,
    "schedule": _schedule,
    "deepep": _with_experts((False, True)),
    "sync_free_stage": _with_experts((0, 1, 2, 3)),
    "fp8": _fp8,
    "recompute": _only(Recompute.NONE, Recompute.CORE_ATTENTION, Recompute.FULL),
    "recompute_num_layers": _recompute_num_layers,
    "recompute_method": _only(RecomputeMethod.BLOCK),
    "sharding": _only(Sharding.DISTRIBUTED_OPTIMIZER, Sharding.FSDP2),
    "shard_group": _only(0),
    "loss_fusion": _only(True, False),
    "overlap_grad_reduce": _only(True, False),
    "grouped_gemm": _with_experts((GroupedGemm.TURBO, GroupedGemm.LEGACY)),
    "sequence_parallel": _only(True),
    "pipeline_layout": _only(EVEN, BALANCED),
    "offload_layers": _only(0),
}
assert set(_AUTO) == set(AXES)
