"""How much of a projection's kernels is in the measured tables of the accelerator, by seconds."""

from dataclasses import dataclass

from primus_search.analysis.coverage import number_of, recipe_of
from primus_search.cost.laws.expert_products import expert_products_s
from primus_search.cost.laws.gemm import GemmPass, gemm_s
from primus_search.cost.laws.measured_correction import is_measured
from primus_search.cost.parts.layer import layer_operations
from primus_search.cost.parts.mixer_operations import attention_family
from primus_search.cost.parts.operations import Call, GroupedLinear, LinearOp, Module, Operation
from primus_search.values.candidates import Candidates
from primus_search.values.job import Job
from primus_search.values.machine.kernel_tables import GROUPED, Tables
from primus_search.values.model import LayerKind


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelEvidence:
    """One family of kernels of one micro-batch through all layers: its seconds, and the part of them measured.

    A kernel counts as measured where its shape lies among those of the accelerator's table (`measured_correction`);
    collectives likewise with the network's. Seconds are those of the projection's kernels, forward and backward.
    """

    family: str
    seconds: float
    measured_s: float

    @property
    def share(self) -> float:
        return self.measured_s / self.seconds if self.seconds else 0.0


def kernel_evidence(job: Job, one: Candidates) -> list[KernelEvidence]:
    """GEMMs, expert products and attention of one candidate; empty where the accelerator has no tables."""
    model = job.model
    acc = job.cluster.accelerator
    if not acc.tables:
        return []
    total: dict[str, list[float]] = {}
    for kind in model.kinds:
        layers = float(model.layers.count(kind))
        for operation in layer_operations(job, kind, one):
            for family, seconds, known in _parts(operation, kind, job, one):
                sums = total.setdefault(family, [0.0, 0.0])
                sums[0] += layers * seconds
                sums[1] += layers * seconds * known
    return [KernelEvidence(family=name, seconds=all_s, measured_s=known_s) for name, (all_s, known_s) in total.items()]


Found = list[tuple[str, float, bool]]


def _parts(operation: Operation, kind: LayerKind, job: Job, one: Candidates) -> Found:
    """Family, seconds and evidence of the forward and the backward kernels of an operation."""
    acc = job.cluster.accelerator
    if isinstance(operation, LinearOp):
        m, n, k = (number_of(size) for size in (operation.m, operation.n, operation.k))
        code = int(number_of(operation.precision))
        forward_s = gemm_s(acc, m, n, k, code)
        backward_s = gemm_s(acc, m, k, n, code, GemmPass.INPUT_GRAD) + gemm_s(acc, n, k, m, code, GemmPass.WEIGHT_GRAD)
        return _both(acc.tables, "gemm", recipe_of(operation), (m, n, k), float(forward_s), float(backward_s))
    if isinstance(operation, GroupedLinear):
        rows, groups, n, k = (number_of(size) for size in (operation.rows, operation.groups, operation.n, operation.k))
        code, mode = int(number_of(operation.precision)), int(number_of(operation.mode))
        seconds = [float(expert_products_s(acc, rows, groups, n, k, code, mode, which)) for which in GemmPass]
        shape = (groups, rows, n, k)
        return _both(acc.tables, GROUPED, recipe_of(operation), shape, seconds[0], seconds[1] + seconds[2])
    if isinstance(operation, Call) and operation.module is Module.CORE:
        return _attention_pass(operation, kind, job, one)
    return []


def _attention_pass(operation: Call, kind: LayerKind, job: Job, one: Candidates) -> Found:
    model, cluster = job.model, job.cluster
    heads = float(one.micro_batch_size[0]) * model.num_heads / float(one.tp[0])
    is_plain = kind.window == 0 and model.latent is None and int(one.cp[0]) == 1
    shape = (heads, float(job.workload.seq_length), float(model.head_dim) if is_plain else 0.0)
    seconds = number_of(operation.seconds[0]), number_of(operation.seconds[1])
    kernel = attention_family(cluster.accelerator, cluster.stack, model)
    return _both(cluster.accelerator.tables, "attention", kernel, shape, *seconds)


def _both(
    tables: Tables, family: str, variant: str, shape: tuple[float, ...], forward_s: float, backward_s: float
) -> Found:
    directions = (("fwd", forward_s), ("bwd", backward_s))
    return [(family, s, bool(is_measured(tables.of(f"{family}/{variant}/{word}"), *shape))) for word, s in directions]


def sentence(found: list[KernelEvidence]) -> str:
    """What was measured, for a reader of a projection; empty where nothing was."""
    if not found:
        return ""
    names = {"gemm": "GEMM", GROUPED: "expert", "attention": "attention"}
    parts = ", ".join(f"{one.share:.0%} of {names[one.family]} time" for one in found)
    return f"kernels from the hardware's measured tables: {parts}; the rest is modelled"
