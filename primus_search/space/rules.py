"""Legality: named, vectorised rules with a reason a person can act on, and the axes that matter only sometimes.

A rule says which columns it reads, so that the enumerator can apply it the moment those are known. A rule that
removes doubles (two rows that mean the same run) says so in its reason.

Sources: Megatron-LM `megatron/training/arguments.py` and `core/transformer/transformer_config.py` (core 0.12-0.15) for
divisibility, interleaving, sequence parallelism with experts and FSDP2 without pipeline; AMD Primus
`tuning_agent/legality.py` for recompute with split weight gradients and sync-free stages, and its Megatron trainer for
what sync-free stages 2 and 3 switch on (DeepEP and the turbo grouped GEMM); arXiv:2504.14960 for parallel folding.
"""

from collections.abc import Callable
from dataclasses import dataclass

from primus_search.candidates import Bools, GroupedGemm, RecomputeMethod, Sharding
from primus_search.space import legality
from primus_search.space.context import Cells, Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What makes a row legal. `reads` are column names; `keeps` gets the job and the cells and returns a mask.

    A monotone rule may be asked before all its columns are known: what it drops at their neutral values it would drop
    at any value.
    """

    name: str
    reads: tuple[str, ...]
    reason: str
    keeps: Callable[[Job, Cells], Bools]
    is_monotone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditional:
    """An axis that matters only where `is_active`; elsewhere one row stays and its column holds `neutral`."""

    axis: str
    reads: tuple[str, ...]
    neutral: int | bool
    is_active: Callable[[Job, Cells], Bools]


RULES: tuple[Rule, ...] = (
    Rule(
        name="tp_divides_model",
        reads=("tp",),
        keeps=legality.tp_divides,
        reason="tp divides heads, hidden and ffn sizes, and divides kv heads or is a multiple of them",
    ),
    Rule(
        name="ep_divides_experts",
        reads=("ep",),
        keeps=legality.ep_divides,
        reason="ep divides the number of experts; a dense model has ep = 1",
    ),
    Rule(
        name="etp_divides_expert",
        reads=("etp",),
        keeps=legality.etp_divides,
        reason="etp divides the inner size of one expert; a dense model has etp = 1",
    ),
    Rule(
        name="cp_splits_sequence",
        reads=("cp",),
        keeps=legality.cp_splits_sequence,
        reason="the sequence splits into 2 * cp equal parts (causal load balance)",
    ),
    Rule(
        name="sequence_parallel_splits",
        reads=("sequence_parallel", "tp", "cp"),
        keeps=legality.sequence_parallel_splits,
        reason="the sequence splits into tp * cp equal parts under sequence parallelism",
    ),
    Rule(
        name="experts_need_sequence_parallel",
        reads=("sequence_parallel", "tp"),
        keeps=legality.experts_need_sequence_parallel,
        reason="a model with experts under tensor parallelism needs sequence parallelism (Megatron-LM)",
    ),
    Rule(
        name="whole_degrees",
        reads=("tp", "pp", "cp", "ep", "etp", "micro_batch_size"),
        keeps=legality.degrees_whole,
        reason="world = tp*cp*dp*pp = etp*ep*edp*pp and global batch = micro_batch_size*dp*microbatches, all whole",
    ),
    Rule(
        name="single_stage",
        reads=("pp", "vpp", "schedule"),
        keeps=legality.single_stage,
        reason="pp = 1 has no pipeline: vpp = 1 and the first plain schedule stand for all (doubles)",
    ),
    Rule(
        name="stages_have_layers",
        reads=("pp", "vpp"),
        keeps=legality.stages_have_layers,
        reason="every virtual stage holds at least one layer",
    ),
    Rule(
        name="schedule_chunks",
        reads=("vpp", "schedule"),
        keeps=legality.schedule_chunks,
        reason="interleaved needs vpp >= 2, V schedules vpp = 2, the others vpp = 1",
    ),
    Rule(
        name="schedule_serves",
        reads=("schedule", "pp", "microbatches"),
        keeps=legality.schedule_serves,
        reason="the schedule has an order for that many stages and micro-batches (DualPipe: at least 2 * pp)",
    ),
    Rule(
        name="interleaving_rounds",
        reads=("schedule", "pp", "microbatches"),
        keeps=legality.interleaving_rounds,
        reason="interleaved needs micro-batches to be a multiple of pp (Megatron-LM)",
    ),
    Rule(
        name="layout_suits",
        reads=("pp", "vpp", "pipeline_layout"),
        keeps=legality.layout_suits,
        reason="the pipeline layout deals all layers to exactly pp * vpp virtual stages",
    ),
    Rule(
        name="layout_is_new",
        reads=("pp", "vpp", "pipeline_layout"),
        keeps=legality.layout_is_new,
        reason="an earlier layout of the axis deals the layers in the same way (doubles)",
    ),
    Rule(
        name="recompute_modules",
        reads=("recompute",),
        keeps=legality.recompute_modules,
        reason="recomputed modules exist in the model, and full recompute stands alone",
    ),
    Rule(
        name="recompute_layers",
        reads=("recompute_num_layers", "pp", "vpp", "pipeline_layout"),
        keeps=legality.recompute_layers,
        reason="recompute_num_layers is at most the layers of the fullest virtual stage",
    ),
    Rule(
        name="recompute_all_twice",
        reads=("recompute_num_layers", "recompute_method", "pp", "vpp", "pipeline_layout"),
        keeps=legality.recompute_all_twice,
        reason="recomputing every layer by count is already there as 'all' (doubles)",
    ),
    Rule(
        name="split_weight_recompute",
        reads=("schedule", "recompute"),
        keeps=legality.split_weight_recompute,
        reason="schedules that split the weight gradient run without recompute (AMD Primus)",
    ),
    Rule(
        name="offload_layers",
        reads=("offload_layers", "pp", "vpp", "pipeline_layout"),
        keeps=legality.offload_layers,
        reason="offload_layers is at most the layers of the fullest virtual stage",
    ),
    Rule(
        name="deepep_has_experts",
        reads=("deepep", "ep"),
        keeps=legality.deepep_has_experts,
        reason="DeepEP needs experts and ep > 1",
    ),
    Rule(
        name="sync_free_has_experts",
        reads=("sync_free_stage", "ep"),
        keeps=legality.sync_free_has_experts,
        reason="sync-free stages need experts and ep > 1",
    ),
    Rule(
        name="sync_free_implies_deepep",
        reads=("sync_free_stage", "deepep", "grouped_gemm"),
        keeps=legality.sync_free_implies,
        reason="sync-free stages 2 and 3 bring DeepEP and the turbo grouped GEMM with them (AMD Primus)",
    ),
    Rule(
        name="device_has_format",
        reads=("fp8",),
        keeps=legality.device_has_format,
        reason="the accelerator has matrix units for the low-precision format",
    ),
    Rule(
        name="sharded_gradients_no_pipeline",
        reads=("sharding", "pp"),
        keeps=legality.sharded_gradients_pipeline,
        reason="ZeRO-2, FSDP2 and HSDP run without pipeline parallelism (Megatron-LM, DeepSpeed)",
    ),
    Rule(
        name="shard_group_divides",
        reads=("sharding", "shard_group", "dp", "cp"),
        keeps=legality.shard_group_divides,
        reason="HSDP shards over a proper divisor of the dp * cp replicas",
    ),
    Rule(
        name="nothing_to_shard",
        reads=("sharding", "dp", "cp", "edp"),
        keeps=legality.nothing_to_shard,
        reason="with one replica the first sharding stands for all (doubles)",
    ),
    Rule(
        name="nothing_to_reduce",
        reads=("overlap_grad_reduce", "dp", "cp", "edp"),
        keeps=legality.nothing_to_reduce,
        reason="with one replica there is no gradient traffic to overlap (doubles)",
    ),
)


CONDITIONALS: tuple[Conditional, ...] = (
    Conditional(axis="recompute_num_layers", reads=("recompute",), neutral=0, is_active=legality.is_full),
    Conditional(
        axis="recompute_method",
        reads=("recompute", "recompute_num_layers"),
        neutral=int(RecomputeMethod.UNIFORM),
        is_active=lambda job, c: legality.is_full(job, c) & (c["recompute_num_layers"] > 0),
    ),
    Conditional(
        axis="shard_group",
        reads=("sharding",),
        neutral=0,
        is_active=lambda job, c: c["sharding"] == Sharding.HSDP,
    ),
    Conditional(
        axis="grouped_gemm",
        reads=(),
        neutral=int(GroupedGemm.TURBO),
        is_active=lambda job, c: legality.everywhere(c, job.model.is_moe),
    ),
    Conditional(
        axis="sequence_parallel",
        reads=("tp",),
        neutral=False,
        is_active=lambda job, c: c["tp"] > 1,
    ),
)
