"""Which numbers of a stack and of an accelerator may be fitted to training runs, by which runs, bounds and priors.

A prior is what is believed without the runs: 1 for an efficiency (the kernel laws are right), typical host times of a
PyTorch framework, nearly full overlap where a framework prefetches. Its sigma says how far one stack or device may lie
from its siblings: the logarithm of a rate or a time, the plain value of a share. The same number of all stacks on
one vendor's devices is one family, and so are their training rates. A parameter is offered only where runs can speak
about it and its file does not quote it: a switch that is off by default is no matter of fitting.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from primus_search.calibrate.provenance import leaves
from primus_search.candidates import Sharding
from primus_search.declare.search_path import FileKind, names
from primus_search.lab.fit.priors import PriorParameter
from primus_search.measured_run import MeasuredRun

MAX_FITTED = 12
"""Numbers fitted per stack, and per accelerator."""

IDENTIFIED = 0.98
"""A parameter counts as fitted when the runs bring its standard error below this share of its sigma."""


MOST_FP8 = 1.1
"""Low-precision products of a stack over what its BF16 products are to their law. They cannot be better than the laws'
own ratio but for the power they leave: a device that is not held at its limit runs at the clocks of short
measurements, 1.06 to 1.14 of the sustained ones (`sustained_over_burst`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One parameter of a stack, and which runs can say something about it."""

    field: str
    low: float
    high: float
    prior: float
    sigma: float
    is_share: bool = False
    speaks: Callable[[MeasuredRun], bool] = lambda case: True


def _is_moe(case: MeasuredRun) -> bool:
    return case.model.is_moe


def _has(column: str, above: int) -> Callable[[MeasuredRun], bool]:
    return lambda case: bool(np.any(case.candidates.columns()[column] > above))


def _is_sharded(case: MeasuredRun) -> bool:
    return bool(np.any(case.candidates.sharding >= Sharding.FSDP2))


def _replicates(case: MeasuredRun) -> bool:
    return case.cluster.world > 1 and not _is_sharded(case)


def _is_wide(case: MeasuredRun) -> bool:
    return case.cluster.num_nodes > 4


OFFERS: tuple[Offer, ...] = (
    Offer(field="gemm_efficiency", low=0.5, high=1.3, prior=1.0, sigma=0.08),
    Offer(field="attention_efficiency", low=0.3, high=1.5, prior=1.0, sigma=0.25),
    Offer(field="memory_efficiency", low=0.2, high=1.5, prior=1.0, sigma=0.3),
    Offer(field="fp8_efficiency", low=0.5, high=MOST_FP8, prior=1.0, sigma=0.1, speaks=_has("fp8", 0)),
    Offer(field="grouped_gemm_efficiency", low=0.4, high=1.4, prior=1.0, sigma=0.2, speaks=_is_moe),
    Offer(field="network_efficiency", low=0.05, high=1.2, prior=1.0, sigma=0.3, speaks=_is_wide),
    Offer(field="host_launch_s", low=2e-6, high=60e-6, prior=8e-6, sigma=0.5),
    Offer(field="host_moe_s", low=1e-4, high=2e-2, prior=3e-3, sigma=0.7, speaks=_is_moe),
    Offer(field="host_sync_s", low=1e-6, high=1e-2, prior=5e-5, sigma=1.0, speaks=_is_moe),
    Offer(field="pass_s", low=1e-6, high=2e-3, prior=1e-4, sigma=1.0, speaks=_has("pp", 1)),
    Offer(field="step_s", low=0.0, high=0.3, prior=0.01, sigma=0.03, is_share=True),
    Offer(field="shard_overlap", low=0.0, high=1.0, prior=0.9, sigma=0.2, is_share=True, speaks=_is_sharded),
    Offer(field="gradient_overlap", low=0.0, high=1.0, prior=0.9, sigma=0.2, is_share=True, speaks=_replicates),
    Offer(field="straggler_per_doubling", low=0.0, high=0.05, prior=0.0, sigma=0.01, is_share=True, speaks=_is_wide),
)

PLAIN_TENSOR = Offer(
    field="tensor_overlap", low=0.0, high=1.0, prior=0.0, sigma=0.3, is_share=True, speaks=_has("tp", 1)
)
SWITCHED_TENSOR = Offer(
    field="switched_tensor_overlap",
    low=0.0,
    high=1.0,
    prior=0.7,
    sigma=0.3,
    is_share=True,
    speaks=lambda case: bool(case.candidates.tp_overlap[0]),
)
BATCH_EXPERT = Offer(
    field="batch_expert_overlap",
    low=0.0,
    high=1.0,
    prior=0.7,
    sigma=0.3,
    is_share=True,
    speaks=lambda case: bool(case.candidates.exchange_overlap[0]),
)
BROADCAST = Offer(field="broadcast_s", low=1e-4, high=1e-2, prior=2.5e-3, sigma=1.0)
BLOCKING = Offer(
    field="pipeline_blocking", low=0.0, high=1.0, prior=0.2, sigma=0.3, is_share=True, speaks=_has("pp", 1)
)
EXTRA: dict[str, tuple[Offer, ...]] = {
    "megatron_core_2026": (PLAIN_TENSOR, BATCH_EXPERT, BLOCKING),
    "nemo_2024": (SWITCHED_TENSOR, BLOCKING),
    "nemo_mlperf": (SWITCHED_TENSOR, BLOCKING),
    "torchtitan": (SWITCHED_TENSOR,),
    "internevo": (PLAIN_TENSOR, BROADCAST),
    "primus_megatron": (BLOCKING,),
    "primus_megatron_2025": (BLOCKING,),
    "megatron_te": (PLAIN_TENSOR,),
    "megatron_2022": (PLAIN_TENSOR,),
}
"""What only some stacks have: a switch for tensor-parallel overlap, owners that broadcast, batch-level overlap, hops of
a pipeline that block."""

TRAINING_RATE = Offer(field="training_rate", low=0.5, high=1.3, prior=1.0, sigma=0.12)

SAME_DIE = re.compile(rf'{TRAINING_RATE.field}: .*"same die as (.+?)"')
_NAME = re.compile(r"^name: *[\"']?(.+?)[\"']? *$", re.M)


def teaches(case: MeasuredRun) -> bool:
    """Whether a fit may learn from a run: only where its software is known, not where it was guessed."""
    return not case.cluster.stack.is_assumed


def parameters(cases: Sequence[MeasuredRun]) -> list[PriorParameter]:
    """Every parameter that some run of its stack or accelerator speaks about; a family has at least two members."""
    found: list[PriorParameter] = []
    for name in dict.fromkeys(case.cluster.stack.name for case in cases):
        own = [case for case in cases if case.cluster.stack.name == name]
        offers = (*OFFERS, *EXTRA.get(name, ()))
        told = quoted(name)
        spoken = [o for o in offers if o.field not in told and any(o.speaks(case) for case in own)]
        found += [_parameter("stack", name, o, family=stack_family(o.field, own)) for o in spoken]
    vendors = {die(acc.name): acc.vendor for acc in (case.cluster.accelerator for case in cases)}
    found += [_parameter("hardware", n, TRAINING_RATE, family=rate_family(v)) for n, v in vendors.items()]
    members = Counter(p.family for p in found)
    return [p if members[p.family] > 1 else replace(p, family="") for p in found]


def stack_family(field: str, own: Sequence[MeasuredRun]) -> str:
    """The family of a number of a stack with these runs: stacks that run on AMD's devices are siblings of each other.

    A number is relative to the kernel laws of the devices below it, whose kernels are other people's code there.
    """
    [(vendor, _)] = Counter(run.cluster.accelerator.vendor for run in own).most_common(1)
    return field if vendor == "nvidia" else f"{field} on {vendor}"


def quoted(stack: str) -> frozenset[str]:
    """Fields that a stack's file has from a document or another stack (`as NAME`), not from a fit or a family."""
    path = names(FileKind.STACK).get(stack)
    found = leaves(path.read_text(encoding="utf-8")) if path else []
    keys = {leaf.path.rpartition(".")[2] for leaf in found if not leaf.source.startswith(_NOT_QUOTED)}
    return frozenset(o.field for o in every_offer() if yaml_key(o.field)[0] in keys)


def every_offer() -> tuple[Offer, ...]:
    """Every parameter that some stack may have fitted."""
    return (*OFFERS, *(offer for extra in EXTRA.values() for offer in extra))


def yaml_key(field: str) -> tuple[str, float]:
    """The key of a field in a stack or hardware file, and its units per unit of the field."""
    return _UNITS.get(field, (field, 1.0))


_NOT_QUOTED = ("fitted", "mean of", "prior", "no training runs")
_UNITS = {
    "host_launch_s": ("host_launch_us", 1e6),
    "host_moe_s": ("host_moe_ms", 1e3),
    "host_sync_s": ("host_sync_us", 1e6),
    "step_s": ("step_ms", 1e3),
    "pass_s": ("pass_us", 1e6),
    "broadcast_s": ("broadcast_ms", 1e3),
}


def die(accelerator: str) -> str:
    """The accelerator whose training rate one has: its own, or that of the file that its own calls the same die.

    An export version differs in links, not in compute, and its runs speak about the same number.
    """
    return _dies().get(accelerator, accelerator)


@lru_cache(maxsize=1)
def _dies() -> dict[str, str]:
    texts = [path.read_text(encoding="utf-8") for path in names(FileKind.HARDWARE).values()]
    found = [(_NAME.search(text), SAME_DIE.search(text)) for text in texts]
    return {name[1]: twin[1] for name, twin in found if name and twin}


def rate_family(vendor: str) -> str:
    """The family of the training rates of one vendor's devices."""
    return f"{TRAINING_RATE.field} of {vendor}"


def _parameter(owner: str, name: str, offer: Offer, family: str) -> PriorParameter:
    return PriorParameter(
        owner=owner,
        name=name,
        field=offer.field,
        low=offer.low,
        high=offer.high,
        prior=offer.prior,
        sigma=offer.sigma,
        is_share=offer.is_share,
        family=family,
    )
