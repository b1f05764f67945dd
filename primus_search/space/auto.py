"""What `auto` means on each axis: every value that could be legal and that a training framework can run.

Values are a superset on purpose: which combinations are legal is for `space.rules`. Where a value only exists to save
memory or to match an existing job (offloading, hybrid sharding, replicated optimizer state), `auto` leaves it out;
a space file may list it, and `RELIEFS` are tried where nothing FITS.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from primus_search.base.field_paths import value_at
from primus_search.schedule import names as schedule_names
from primus_search.space.constraints import parse
from primus_search.space.context import FACTS, Cells, GridJob, reads
from primus_search.space.rules import has_word, spelled
from primus_search.space.types import Axis, AxisValue, ClusterChoice
from primus_search.values.knobs import KNOB, KNOBS, CpComm, CudaGraph, DispatchBackend, Fp8, Recompute, Scope, Sharding
from primus_search.values.layout import Layout
from primus_search.values.lengths import PACKS_WHOLE
from primus_search.values.machine.cluster import Cluster
from primus_search.values.machine.framework import ANY_FRAMEWORK, Framework
from primus_search.values.model import Model
from primus_search.values.workload import Workload

MAX_TENSOR_PARALLEL = 16  # beyond, even a rack-scale domain leaves GEMMs too thin
MIN_TOKENS_PER_CP_RANK = 1024  # context parallelism below this only adds traffic
MAX_MICRO_BATCH = 16
MOST_CELLS = 100_000  # of values that a requirement is tried on before `auto` is widened for it
MAX_SMALL_VPP = 8  # every count up to here; above, only divisors of the layers per stage
MAX_VPP = 16
FRAMEWORK_SCHEDULES = ("1f1b", "interleaved", "zb-h1", "zbv", "v-half", "v-min")
"""Schedules that Megatron-LM, AMD Primus or torchtitan run today and that need no second copy of the weights."""

Word = Literal["auto", "divisors", "powers_of_two"]


def auto_values(
    axis: str, model: Model, cluster: Cluster, workload: Workload, framework: Framework = ANY_FRAMEWORK
) -> tuple[AxisValue, ...]:
    """The values of one axis for this job, in the order they are tried; of those, what the framework can express."""
    knob = KNOB[axis]
    if knob.auto is None:
        usual = tuple(_OF_JOB[axis](_Job(model, cluster, workload)))
    else:
        usual = knob.auto[:1] if knob.scope == Scope.EXPERTS and not model.is_moe else knob.auto
    own = usual if framework.is_any else _of_framework(axis, usual, framework)
    if axis not in ONE_OF or len(own) == 1:
        return own
    job = GridJob(model=model, cluster=cluster, workload=workload, axes=(), framework=framework)
    return _first_taken(axis, own, job)


ONE_OF = ("dispatch_backend",)
"""Axes of which `auto` is the first value that the framework takes on the devices."""


def _first_taken(axis: str, values: tuple[AxisValue, ...], job: GridJob) -> tuple[AxisValue, ...]:
    """The first value that no requirement of the framework on this axis alone refuses; the first where all are."""
    cells = Cells(job, {axis: np.array(values, dtype=np.int64)}, {}, len(values))
    taken = np.ones(len(values), dtype=np.bool_)
    for one in job.framework.requires:
        holds = parse(one.holds)
        if reads(holds.names) - set(FACTS) == {axis}:
            taken &= holds(job, cells)
    first = int(np.argmax(taken))
    return values[first : first + 1]


def with_needed(
    axes: Sequence[Axis], free: Collection[str], model: Model, choice: ClusterChoice, workload: Workload
) -> list[Axis]:
    """The axes; of those left to `auto` (`free`), with `off` where the framework takes a written value with nothing
    else.

    `optimizer: dist_muon` is run by Megatron without sharded state alone, which `auto` of `sharding` leaves out.
    """
    known = {axis.name: axis for axis in axes}
    job = GridJob(model=model, cluster=choice.cluster, workload=workload, axes=(), framework=choice.framework)
    for one in choice.framework.requires:
        holds = parse(one.holds)
        names = [name for name in known if name in reads(holds.names) - set(FACTS)]
        widened = [n for n in names if n in free and KNOB[n].off not in known[n].values]
        written = [n for n in names if n not in free]
        has_layouts = any(isinstance(known[n].values[0], Layout) for n in names)
        if not widened or not written or has_layouts or math.prod(len(known[n].values) for n in names) > MOST_CELLS:
            continue
        grid = np.meshgrid(*(np.array(known[n].values) for n in names), indexing="ij")
        taken = holds(job, Cells(job, {n: g.ravel() for n, g in zip(names, grid, strict=True)}, {}, grid[0].size))
        left = tuple(place for place, name in enumerate(names) if name not in written)
        if not taken.reshape(grid[0].shape).any(axis=left).all():
            known |= {n: replace(known[n], values=(*known[n].values, KNOB[n].off)) for n in widened}
    return list(known.values())


def _of_framework(axis: str, usual: tuple[AxisValue, ...], framework: Framework) -> tuple[AxisValue, ...]:
    """What a framework can express of some values, or what its contract lists instead."""
    if axis == "schedule":
        return tuple(name for name, schedule in framework.schedules.items() if schedule.is_auto)
    key = framework.spellings.get(axis)
    if key is None:
        return (KNOB[axis].default,)
    if not key.values:
        return usual
    own = tuple(KNOB[axis].code(word) for word in key.auto)
    if own and len(usual) > 1:
        return own
    plain = tuple(value for value in (KNOB[axis].default,) if has_word(key, spelled(axis, value)))
    return tuple(value for value in usual if has_word(key, spelled(axis, value))) or own or plain or usual[:1]


def word_values(
    axis: str, word: str, model: Model, cluster: Cluster, workload: Workload, framework: Framework = ANY_FRAMEWORK
) -> tuple[AxisValue, ...]:
    """Values of an axis named by a word: `auto`, or a filter of whole numbers (`divisors`, `powers_of_two`).

    `divisors` and `powers_of_two` apply to axes that count: divisors of what the axis divides, or powers of two up to
    the largest of these. Raises ValueError for a word the axis does not define, listing those it does.
    """
    if word == "auto":
        return auto_values(axis, model, cluster, workload, framework)
    knob, most = KNOB[axis], max(cluster.world, workload.global_batch_size)
    if not knob.limit:
        raise ValueError(f"axis {axis} knows the word 'auto'")
    is_idle = knob.scope == Scope.EXPERTS and model.moe is None
    limit = 1 if is_idle else value_at(_Job(model, cluster, workload), tuple(knob.limit.split(".")))
    if word == "divisors":
        return tuple(d for d in _divisors(limit) if d <= most)
    if word == "powers_of_two":
        return tuple(_powers_of_two(min(limit, most)))
    raise ValueError(f"axis {axis} knows the words 'auto', 'divisors' and 'powers_of_two'")


class _Job(NamedTuple):
    model: Model
    cluster: Cluster
    workload: Workload


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def _powers_of_two(most: int) -> list[int]:
    return [1 << power for power in range(max(most, 1).bit_length())]


def _tensor(job: _Job) -> list[int]:
    """Divisors of the heads that fit the fast domain and divide it, so that no tensor group crosses a slow link."""
    domain = min(job.cluster.network.domain_size, job.cluster.world)
    shared = math.gcd(job.model.num_heads, job.model.hidden)
    return [t for t in _divisors(shared) if t <= MAX_TENSOR_PARALLEL and domain % t == 0]


def _chunks(job: _Job) -> list[int]:
    """Small chunk counts, and larger ones that divide the layers of a stage; a chunk holds at least one layer."""
    layers = job.model.num_layers
    stages = [p for p in _divisors(job.cluster.world) if 1 < p <= layers]
    most = max((layers // p for p in stages), default=1)
    even = {v for p in stages if layers % p == 0 for v in _divisors(layers // p) if v <= MAX_VPP}
    return sorted({1} | {v for v in range(2, MAX_SMALL_VPP + 1) if v <= most} | even)


def _context(job: _Job) -> list[int]:
    length = job.workload.seq_length
    most = min(length // MIN_TOKENS_PER_CP_RANK, job.cluster.world)
    return [c for c in _powers_of_two(most) if c == 1 or length % (2 * c) == 0]


def _micro_batches(job: _Job) -> list[int]:
    batch = job.workload.global_batch_size
    return [b for b in _powers_of_two(MAX_MICRO_BATCH) if batch % b == 0 and b <= batch]


def _recompute(job: _Job) -> list[Recompute]:
    """What published recipes of such models recompute: cheap modules of every kind of layer, or whole layers."""
    of_latent = [Recompute.MLA_UP_PROJ] if job.model.latent is not None else []
    cheap = Recompute.MOE_ACTIVATION | Recompute.LAYERNORM if job.model.is_moe else Recompute.LAYERNORM
    return [Recompute.NONE, Recompute.CORE_ATTENTION, *of_latent, cheap, Recompute.FULL]


def _dispatchers(job: _Job) -> list[DispatchBackend]:
    """The software's own by its name, so that launch files name it; AMD's kernels are those that its switch starts.

    DeepEP where the framework's release does not take HybridEP on these devices.
    """
    if not job.model.is_moe or not _has_cuda_graphs(job):
        return [DispatchBackend.STACK]
    has_hybrid = bool(job.cluster.stack.memory.group_buffer_copies)
    return [DispatchBackend.HYBRIDEP, DispatchBackend.DEEPEP] if has_hybrid else [DispatchBackend.DEEPEP]


def _graphs(job: _Job) -> list[CudaGraph]:
    """Each scope takes no more time than the one before, and router graphs are a part of partial ones."""
    of_experts = [CudaGraph.PARTIAL] if job.model.is_moe else []
    return [CudaGraph.NONE, *of_experts, CudaGraph.FULL] if _has_cuda_graphs(job) else [CudaGraph.NONE]


def _has_cuda_graphs(job: _Job) -> bool:
    """Whether published training runs on such devices capture graphs and overlap expert exchange."""
    return job.cluster.accelerator.vendor.lower() == "nvidia"


_OF_JOB: dict[str, Callable[[_Job], Sequence[AxisValue]]] = {
    "tp": _tensor,
    "pp": lambda job: [p for p in _divisors(job.cluster.world) if p <= job.model.num_layers],
    "vpp": _chunks,
    "ep": lambda job: [
        e for e in _divisors(job.model.moe.num_experts if job.model.moe else 1) if job.cluster.world % e == 0
    ],
    # Experts whole, or split as attention can be (Megatron's default before folding).
    "etp": lambda job: _tensor(job) if job.model.is_moe else [1],
    "cp": _context,
    # As the software does, or heads for tokens, which takes more memory and mostly less time.
    "cp_comm": lambda job: [CpComm.STACK, CpComm.A2A][: 1 if job.cluster.stack.communication.cp_comm == "a2a" else 2],
    "hybrid_cp": lambda job: [False, True] if job.workload.packing in PACKS_WHOLE and job.workload.lengths else [False],
    # On where there is a choice: it takes no memory that counts and no more time. On AMD its share (0.7, bases/pytorch)
    # is assumed, no run had it: what it wins there would be of no evidence, so a space has to list it.
    "tp_overlap": lambda job: [_has_cuda_graphs(job)],
    "micro_batch_size": _micro_batches,
    "schedule": lambda job: [name for name in FRAMEWORK_SCHEDULES if name in schedule_names()],
    "fp8": lambda job: [Fp8.NONE, Fp8.HYBRID] if job.cluster.accelerator.fp8_peak_flops_per_s > 0 else [Fp8.NONE],
    # ZeRO-1, or all weights sharded: with experts by Megatron's own code, which takes expert parallelism.
    "sharding": lambda job: [
        Sharding.DISTRIBUTED_OPTIMIZER,
        Sharding.MEGATRON_FSDP if job.model.is_moe else Sharding.FSDP2,
    ],
    "recompute": _recompute,
    # All (0), then 1, 2, 4 ... layers of each virtual stage.
    "recompute_num_layers": lambda job: [0, *_powers_of_two(job.model.num_layers)],
    "dispatch_backend": _dispatchers,
    "exchange_overlap": lambda job: [False, True] if job.model.is_moe and _has_cuda_graphs(job) else [False],
    "cuda_graph": _graphs,
}
assert set(_OF_JOB) == {knob.name for knob in KNOBS if knob.auto is None}

RECIPES = ("fp8", "fp8_attention")
"""Axes of the formats of products; `numerics: any` tries all their values where a space leaves them out."""
RELIEFS = tuple(k.name for k in KNOBS if k.relief and k.auto == (k.default,) and not k.is_numeric)
"""Axes that a search widens where nothing FITS: they take less memory and more time, and `auto` leaves them off."""


def every_value(axis: str, choice: ClusterChoice) -> tuple[AxisValue, ...]:
    """Values of a recipe's or relief's axis that the framework can express; `space.rules` removes what devices lack."""
    knob = KNOB[axis]
    values: tuple[AxisValue, ...] = knob.relief if axis in RELIEFS else tuple(knob.words or (False, True))

    def is_sayable(value: AxisValue) -> bool:
        spelling = choice.framework.spellings.get(axis)
        return choice.framework.is_any or (spelling is not None and has_word(spelling, spelled(axis, value)))

    return (knob.default, *(value for value in values if value != knob.default and is_sayable(value)))
