"""Legality: vectorised predicates that the language of constraints cannot say; `rules.toml` lists every rule.

A rule says which columns it reads, so that the enumerator can apply it the moment those are known.

Sources: Megatron-LM megatron/training/arguments.py and core/transformer/transformer_config.py (core 0.12-0.15) for
divisibility, interleaving, sequence parallelism with experts and FSDP2 without pipeline; AMD Primus
tuning_agent/legality.py for recompute with split weight gradients and sync-free stages, and its Megatron trainer for
what sync-free stages 2 and 3 switch on (DeepEP and the turbo grouped GEMM); arXiv:2504.14960 for parallel folding.

A framework's contract as legality rules: what it cannot express, what it refuses, and axes without effect there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np

from primus_search.base.guards.files import table_beside
from primus_search.space.constraints import parse
from primus_search.space.context import Cells, Column, GridJob
from primus_search.space.types import Constraint
from primus_search.values.candidates import DEFAULTS, INNER_RANKS, Bools
from primus_search.values.knobs import KNOB, CpComm, CudaGraph, DispatchBackend, Fp8, Recompute, RecomputeMethod
from primus_search.values.layout import COUNTED_ENDS
from primus_search.values.machine.accelerator import Accelerator
from primus_search.values.machine.framework import Framework, Requirement, Spelling
from primus_search.values.model import Mamba2, Model

INTERLEAVED = "interleaved"

Keeps = Callable[[GridJob, Cells], Bools]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What makes a row legal. `reads` are column names; `keeps` gets the job and the cells and returns a mask.

    drops_doubles  it leaves one of the rows that mean the same run; others refuse rows for what they are
    """

    name: str
    reads: tuple[str, ...]
    reason: str
    keeps: Keeps
    drops_doubles: bool = False

    @classmethod
    def of(cls, name: str, text: str, reason: str, *, drops_doubles: bool = False) -> Self:
        """A rule from its text in the language of constraints."""
        predicate = parse(text)
        return cls(name=name, reads=predicate.names, reason=reason, keeps=predicate, drops_doubles=drops_doubles)


def everywhere(cells: Cells, claim: bool) -> Bools:
    return np.full(len(cells), claim)


def divides_all(degree: Column, sizes: list[int]) -> Bools:
    mask: Bools = np.logical_and.reduce([size % degree == 0 for size in sizes])
    return mask


# --- parallel degrees ------------------------------------------------------------------------------------------------


def tp_divides_model(job: GridJob, c: Cells) -> Bools:
    model, tp = job.model, c["tp"]
    sizes = [model.num_heads, model.hidden]
    if not all(model.moe_layers):
        sizes.append(model.ffn_hidden)
    if model.beside_experts_hidden:
        sizes.append(model.beside_experts_hidden)
    mask = divides_all(tp, sizes if model.is_uniform else [model.hidden, *_declared_sizes(model)])
    for limit in {p.limit for kind in model.kinds for p in model.mixer(kind).projections(model.hidden) if p.limit}:
        mask &= (limit % tp == 0) | (tp % limit == 0)
    return mask


def _declared_sizes(model: Model) -> list[int]:
    """What tensor parallelism divides in the layers of a model whose layers differ: heads, groups of B and C, MLPs."""
    sizes = [model.mixer(kind).num_heads for kind in model.kinds]
    sizes += [kind.mixer.num_groups for kind in model.kinds if isinstance(kind.mixer, Mamba2)]
    sizes += [*(model.ffn_hidden_of(kind) for kind in model.kinds), model.beside_experts_hidden]
    return [size for size in sizes if size]


def exchanges_whole_heads(job: GridJob, c: Cells) -> Bools:
    model = job.model
    ranks = np.where(c["cp_comm"] == CpComm.A2A, c["cp"], INNER_RANKS[c["cp_comm"]])
    sizes = [model.num_heads] if model.latent is not None else [model.num_heads, model.num_kv_heads]
    mask: Bools = (ranks == 0) | divides_all(c["tp"] * np.maximum(ranks, 1), sizes)
    return mask


def whole_degrees(job: GridJob, c: Cells) -> Bools:
    return c.degrees.is_whole


# --- pipeline --------------------------------------------------------------------------------------------------------


def single_stage(job: GridJob, c: Cells) -> Bools:
    plain = [i for i, a in enumerate(job.algorithms) if a.virtual_stages == (1,)]
    chosen = plain[0] if plain else -1
    mask: Bools = (c["pp"] > 1) | ((c["vpp"] == 1) & (c["schedule"] == chosen))
    return mask


def stages_have_layers(job: GridJob, c: Cells) -> Bools:
    may_leave_empty = any(layout.kind == "string" for layout in job.layouts)
    mask: Bools = may_leave_empty | (c["pp"] * c["vpp"] <= job.model.num_layers + COUNTED_ENDS)
    return mask


def schedule_chunks(job: GridJob, c: Cells) -> Bools:
    vpp, schedule = c["vpp"], c["schedule"]
    mask = everywhere(c, False)
    for code, algorithm in enumerate(job.algorithms):
        if algorithm.name == INTERLEAVED:
            suits: Bools = vpp > 1
        elif algorithm.virtual_stages is None:
            suits = vpp >= 1
        else:
            suits = np.isin(vpp, algorithm.virtual_stages)
        mask |= (schedule == code) & suits
    return mask


def schedule_serves(job: GridJob, c: Cells) -> Bools:
    mask = everywhere(c, True)
    for code, algorithm in enumerate(job.algorithms):
        mask &= (c["schedule"] != code) | (c["pp"] == 1) | algorithm.serves(c.ints("pp"), c.ints("microbatches"))
    return mask


def group_is_new(job: GridJob, c: Cells) -> Bools:
    is_doubled = job.has("microbatch_group", 0) & (c["microbatch_group"] == c["pp"])
    mask: Bools = ~is_doubled | (c["microbatches"] % c["pp"] != 0)
    return mask


def layout_is_new(job: GridJob, c: Cells) -> Bools:
    return job.first_to_say_so(c.ints("pp") * c.ints("vpp"), c.ints("pipeline_layout"))


# --- recompute -------------------------------------------------------------------------------------------


def recompute_all_twice(job: GridJob, c: Cells) -> Bools:
    of_all = (c["recompute_num_layers"] > 0) & (c["recompute_num_layers"] >= c["most_layers"])
    mask: Bools = ~(job.has("recompute_num_layers", 0) & (c["recompute_method"] == RecomputeMethod.BLOCK) & of_all)
    return mask


# --- experts ---------------------------------------------------------------------------------------------------------


def graph_has_fused_dispatch(job: GridJob, c: Cells) -> Bools:
    graph = c.ints("cuda_graph")
    of_modules = CudaGraph.PARTIAL if job.model.is_single_block else CudaGraph.NONE  # mixers beside attention
    is_legal: Bools = (graph == CudaGraph.NONE) | (graph == CudaGraph.FULL) | (graph == of_modules)
    if job.model.is_moe:
        backend, is_usual = c.ints("dispatch_backend"), job.cluster.stack.memory.group_buffer_copies > 0
        is_hybrid = (backend == DispatchBackend.HYBRIDEP) | ((backend == DispatchBackend.STACK) & is_usual)
        is_legal = (graph != CudaGraph.FULL) | (c["deepep"].astype(bool) & is_hybrid)
    return is_legal


def graph_has_grouped_products(job: GridJob, c: Cells) -> Bools:
    # Fused grouped products whose sizes are on the device came with the FP4 units of Blackwell.
    is_blackwell = is_nvidia(job.cluster.accelerator) and job.cluster.accelerator.fp4_peak_flops_per_s > 0
    is_fused = np.isin(c.ints("fp8"), (Fp8.MXFP8, Fp8.NVFP4)) & (c["etp"] == 1) & is_blackwell
    mask: Bools = (c.ints("cuda_graph") != CudaGraph.FULL) | (not job.model.is_moe) | is_fused
    return mask


# --- precision and sharding ------------------------------------------------------------------------------------------


def is_nvidia(accelerator: Accelerator) -> bool:
    """Whether NVIDIA made it: CUDA-only kernels and formats."""
    return accelerator.vendor.lower() == "nvidia"


def device_has_format(job: GridJob, c: Cells) -> Bools:
    accelerator, fp8 = job.cluster.accelerator, c["fp8"]
    has_fp8, has_fp4 = accelerator.fp8_peak_flops_per_s > 0, accelerator.fp4_peak_flops_per_s > 0
    mask: Bools = (fp8 == Fp8.NONE) | (has_fp8 & ~np.isin(fp8, (Fp8.MXFP8, Fp8.NVFP4, Fp8.MXFP4)))
    # Block scales in the matrix instruction itself arrived with FP4 (Blackwell, CDNA 4).
    block_formats = (Fp8.MXFP8, Fp8.NVFP4 if is_nvidia(accelerator) else Fp8.MXFP4)
    mask |= has_fp4 & np.isin(fp8, block_formats)
    return mask


def attention_has_format(job: GridJob, c: Cells) -> Bools:
    cluster = job.cluster
    has_kernel = bool(cluster.accelerator.attention.in_fp8(cluster.stack.kernels.attention_kernel))
    suits = has_kernel & np.isin(c.ints("fp8"), (Fp8.HYBRID, Fp8.DELAYED, Fp8.MXFP8, Fp8.NVFP4))
    return ~c["fp8_attention"].astype(bool) | suits


def has_replicas(job: GridJob, c: Cells) -> Bools:
    """Of the dense part, or of experts: without experts their replicas are a quotient of degrees and no ranks."""
    return (c.ints("dp") * c.ints("cp") > 1) | ((c.ints("edp") > 1) & job.model.is_moe)


def nothing_to_shard(job: GridJob, c: Cells) -> Bools:
    return has_replicas(job, c) | c.is_first_choice("sharding")


def nothing_to_reduce(job: GridJob, c: Cells) -> Bools:
    return has_replicas(job, c) | c.is_first_choice("overlap_grad_reduce")


def split_weight_recompute(job: GridJob, c: Cells) -> Bools:
    splits = np.array([algorithm.splits_weight for algorithm in job.algorithms])
    mask: Bools = ~splits[c.ints("schedule")] | (c["recompute"] == Recompute.NONE)
    return mask


_TABLE = table_beside(__file__)


def _rules(key: str) -> tuple[Rule, ...]:
    """The rules of a table, each with its condition or with the predicate of its name."""
    return tuple(
        Rule.of(row["name"], row["holds"], row["reason"], drops_doubles="drops_doubles" in row)
        if "holds" in row
        else Rule(**row | {"reads": tuple(row["reads"].split()), "keeps": globals()[row["name"]]})
        for row in _TABLE[key]
    )


RULES, UNION_RULES = _rules("every_job"), _rules("any_framework")
CONDITIONALS: tuple[tuple[str, Keeps], ...] = tuple(
    (axis, parse(text)) for axis, text in _TABLE["matters_where"].items()
)
"""Every axis that matters only sometimes, and where."""


def rules_of(framework: Framework, constraints: Sequence[Constraint] = ()) -> tuple[Rule, ...]:
    """Every rule that binds a job of the framework, then the user's; the union's own rules for `any`."""
    own = UNION_RULES if framework.is_any else [*_expressible(framework), *_required(framework, framework.requires)]
    common = (one for one in RULES if one.name not in framework.overrules)
    return (*common, *own, *(Rule.of(one.text, one.text, "a constraint of the space") for one in constraints))


def cautions_of(framework: Framework) -> list[Rule]:
    """What a job of the framework had better hold: it starts without, and such jobs were reported to fail."""
    return _required(framework, framework.cautions)


def conditionals_of(framework: Framework) -> tuple[tuple[str, Keeps], ...]:
    """Axes that matter only sometimes, and where: those of every job, and those of the framework."""
    return (*CONDITIONALS, *((idle.axis, _has_none_of(idle.where, idle.words)) for idle in framework.idles))


def _has_none_of(axis: str, words: tuple[str, ...]) -> Keeps:
    def keeps(job: GridJob, cells: Cells) -> Bools:
        codes = cells.ints(axis)
        return np.array([_word(job, axis, code) not in words for code in range(int(codes.max(initial=0)) + 1)])[codes]

    return keeps


def _required(framework: Framework, every: Sequence[Requirement]) -> list[Rule]:
    """Rules of conditions, each reason with who says so."""
    reasons = ((one, f"{one.reason} ({framework.title}: {one.source})") for one in every)
    return [Rule.of(one.name, one.holds, reason, drops_doubles=one.drops_doubles) for one, reason in reasons]


def _expressible(framework: Framework) -> list[Rule]:
    """One rule per axis whose values the framework does not have all of, and one for its schedules."""
    schedules = ", ".join(framework.schedules)
    rules = [
        Rule(
            name=f"{framework.name}_schedule",
            reads=("schedule", "vpp", "pp"),
            reason=f"{framework.title} has the schedules {schedules}, each with its numbers of virtual stages",
            keeps=_has_schedule(framework),
        )
    ]
    for axis in DEFAULTS:
        if axis == "schedule":
            continue
        knob = framework.spellings.get(axis)
        if knob is None:
            reason = f"{framework.title} has no setting for {axis}: only its plain value can be expressed"
        elif knob.values:
            reason = f"{framework.title} can express {axis}: {', '.join([*knob.values, *knob.modules])}"
        else:
            continue
        rules.append(
            Rule(name=f"{framework.name}_{axis}", reads=(axis,), reason=reason, keeps=_can_express(axis, knob))
        )
    return rules


def _has_schedule(framework: Framework) -> Keeps:
    def keeps(job: GridJob, cells: Cells) -> Bools:
        vpp, schedule = cells["vpp"], cells["schedule"]
        mask: Bools = cells["pp"] == 1
        for code, name in enumerate(job.schedules):
            has = framework.schedules.get(name)
            if has is not None:
                most = np.inf if has.most is None else has.most
                mask = mask | ((schedule == code) & (vpp >= has.least) & (vpp <= most))
        return mask

    return keeps


def _can_express(axis: str, knob: Spelling | None) -> Keeps:
    def keeps(job: GridJob, cells: Cells) -> Bools:
        codes, plain = cells.ints(axis), int(DEFAULTS[axis])
        legal = np.zeros(int(codes.max(initial=0)) + 1, dtype=np.bool_)
        for code in np.flatnonzero(np.bincount(codes.ravel())).tolist():
            legal[code] = code == plain if knob is None else has_word(knob, _word(job, axis, code))
        return legal[codes]

    return keeps


def _word(job: GridJob, axis: str, code: int) -> str:
    """A value as contracts spell it."""
    if isinstance(DEFAULTS[axis], bool):
        return spelled(axis, bool(code))
    vocabulary = {"schedule": job.schedules, "pipeline_layout": job.layouts}.get(axis)
    return spelled(axis, code if vocabulary is None else vocabulary[code])


@lru_cache(maxsize=4096, typed=True)
def spelled(axis: str, value: Any) -> str:
    """A typed value as contracts spell it: words, numbers, true and false."""
    return str(value).lower() if isinstance(value, bool) else str(KNOB[axis].word(value))


def has_word(knob: Spelling, word: str) -> bool:
    """Whether a knob has settings for a word; one of numbers has for each."""
    are_modules = bool(knob.modules) and all(part in knob.modules for part in recompute_parts(word))
    return not knob.values or word in knob.values or are_modules


def recompute_parts(word: str) -> tuple[str, ...]:
    """The modules of a recompute word: `selective` is core attention."""
    return ("core_attention",) if word == "selective" else tuple(word.split("+"))
