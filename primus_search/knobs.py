"""The knobs of a training configuration, one row each; what other modules know of a knob is derived from its row.

A new knob is a row of `KNOBS`, a field of `candidates.Candidates`, a rule in `space.rules`, a formula in `cost` and
a key in the files of the frameworks that have it (docs/dev/adding.md). Its axis in space files, default, words, place
in the enumeration, key columns of cost terms, `explain`, samplers and labels follow from the row.

    >>> KNOB["fp8"].word(1), KNOB["fp8"].code("hybrid"), sorted(reading(Enters.HOPS))
    ('hybrid', 1, ['cp', 'ep', 'etp', 'micro_batch_size', 'sequence_parallel', 'tp'])
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, Flag, IntEnum, IntFlag, auto
from functools import cache, reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from primus_search.layout import BALANCED, EVEN, Layout

if TYPE_CHECKING:
    from primus_search.cluster import Cluster
    from primus_search.model import Model
    from primus_search.workload import Workload

KnobValue = int | bool | str | Layout
"""One value of a knob. Members of `Fp8`, `Recompute`, ... are ints; only schedules are strings."""


class Fp8(IntEnum):
    """Low-precision recipe of the linear layers' GEMMs; `NONE` is BF16 throughout.

    HYBRID is per-tensor current scaling (E4M3 forward, E5M2 gradients), DELAYED per-tensor with an amax history,
    BLOCKWISE 1x128 / 128x128 scales, ROWWISE one scale per row, MXFP8 and NVFP4 the OCP / NVIDIA block formats.
    """

    NONE = 0
    HYBRID = 1
    DELAYED = 2
    BLOCKWISE = 3
    ROWWISE = 4
    MXFP8 = 5
    NVFP4 = 6


class Recompute(IntFlag):
    """What is recomputed in backward. Modules combine; FULL recomputes whole layers (see `recompute_num_layers`).

    CORE_ATTENTION is Megatron's `selective`; OP_SAC is torchtitan's per-op selective checkpointing (SDPA outputs and
    every second matmul are kept); with OP_SAC_EXPERTS beside it products of routed experts are kept, too.
    """

    NONE = 0
    CORE_ATTENTION = 1
    MLA_UP_PROJ = 2
    MLP = 4
    MOE_ACTIVATION = 8
    LAYERNORM = 16
    OP_SAC = 32
    FULL = 64
    OP_SAC_EXPERTS = 128


class RecomputeMethod(IntEnum):
    """How FULL recompute picks layers: UNIFORM keeps each group's input, BLOCK takes the first layers of a stage."""

    UNIFORM = 0
    BLOCK = 1


class Sharding(IntEnum):
    """What is sharded over data-parallel ranks: nothing, optimizer state (ZeRO-1), + gradients, or all three.

    HSDP shards inside groups of `shard_group` ranks and replicates across them.
    """

    NONE = 0
    DISTRIBUTED_OPTIMIZER = 1
    ZERO2 = 2
    FSDP2 = 3
    HSDP = 4


class GroupedGemm(IntEnum):
    """Experts of a rank as one grouped kernel (TURBO) or one GEMM after another (LEGACY)."""

    TURBO = 0
    LEGACY = 1


class CudaGraph(IntEnum):
    """What is captured as a CUDA graph and replayed without host launches, each member more than the one before.

    ROUTER router and preparation of MoE layers; PARTIAL attention, norms and residuals as well; FULL forward and
    backward of the whole iteration.
    """

    NONE = 0
    ROUTER = 1
    PARTIAL = 2
    FULL = 3


class CpComm(IntEnum):
    """How context-parallel ranks exchange keys and values; STACK as the software does unless told."""

    STACK = 0
    P2P = 1
    A2A = 2
    ALL_GATHER = 3


class StateFormat(IntEnum):
    """Number formats of gradients, weights and optimizer state; STACK those of the software.

    BF16_MOMENTS    both Adam moments in BF16        BF16_STATE  moments and accumulated gradients in BF16
    BF16_REDUCTION  gradients reduced in BF16        BF16_ALL    everything in BF16, without FP32 master weights
    FP32_ALL        weights, gradients and moments in FP32; the weights are their own masters
    """

    STACK = 0
    BF16_MOMENTS = 1
    BF16_STATE = 2
    BF16_REDUCTION = 3
    BF16_ALL = 4
    FP32_ALL = 5


class Kind(Enum):
    """What values a knob takes.

    DEGREE    ranks that share the work                  COUNT   a whole number of something else
    SWITCH    true or false                              CHOICE  one member of the enumeration `words`
    MODULES   members of the flags `words`, combined     SCHEDULE, LAYOUT  a code into the table's own vocabulary
    """

    DEGREE = auto()
    COUNT = auto()
    SWITCH = auto()
    CHOICE = auto()
    MODULES = auto()
    SCHEDULE = auto()
    LAYOUT = auto()


class Enters(Flag):
    """Terms of the cost model that read a knob. A term is computed once for rows that agree in what it reads.

    KERNELS  what one device computes in a piece (layer, embedding, head)     HOPS     bytes between pipeline stages
    TRAFFIC  what a piece exchanges or waits for                              REPLICA  gradients and optimizer
    GATHERS  exchange of sharded weights around a piece                       STATE    memory of weights and optimizer
    REPEATS  recompute of a layer in backward                                 BATCH    memory of one micro-batch
    SHAPE    layers of stages and their order                                 MOMENTS  what a rank holds at once
    """

    KERNELS = auto()
    TRAFFIC = auto()
    GATHERS = auto()
    REPEATS = auto()
    SHAPE = auto()
    HOPS = auto()
    REPLICA = auto()
    STATE = auto()
    BATCH = auto()
    MOMENTS = auto()
    INSIDE = KERNELS | TRAFFIC
    LAYER = INSIDE | GATHERS | REPEATS
    PIPELINE = SHAPE | REPLICA | MOMENTS
    TIME = LAYER | SHAPE | HOPS | REPLICA
    MEMORY = STATE | BATCH | MOMENTS


class Scope(Flag):
    """Pieces of a model whose kernels and traffic (`Enters.INSIDE`) a knob changes."""

    OTHERS = auto()
    EXPERTS = auto()
    HEAD = auto()
    ALL = OTHERS | EXPERTS | HEAD


Row = Mapping[str, Any]
"""One candidate as words and numbers, as `Candidates.row` returns it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One knob.

    name           of the axis and of the column            kind       what values it takes
    summary        for the schema of space files            enters     terms of the cost model that read it
    default        value where a table does not give it; also its value where it has no effect
    off            value that stands for not using it
    auto           what `auto` lists; None where that depends on the job (`space.auto`)
    scope          pieces whose kernels and traffic it changes; EXPERTS alone: `auto` is the default in a dense model
    is_outer       decides where layers and ranks go (`space.enumerate`); others are switches of the same layout
    detail_of      the knob without which this one has no effect
    detail_key     key under which the value of that knob may give this one's in a space file: `{full: 2}`
    followers      knobs that may change with it where the rules do not allow the change alone (`explain`)
    relief         values that take less memory, tried on a candidate that does not fit
    guess          value a sampler starts from; None: the first of the axis
    tried          place among the knobs whose other values a sampler tries one by one at its start; 0: not among them
    freed          place among the axes that the check of a sampler frees first; 0: not among them
    is_numeric     changes the values that training computes, not only their cost
    words          enumeration of a CHOICE or of MODULES
    aliases        further words for its values in space files      printed  words printed in place of members' names
    least, most, has_all   bounds of a number; `all` is stored as 0
    limit          of a job: what `divisors` divide and `powers_of_two` do not exceed; None where neither applies
    allowed        what a space file may hold, where kind and bounds do not say it
    label          its part of a candidate's one-line label, where a text is only shown for values other than the
                   default; None: `name=value`
    plain          how a comparison with another candidate says that this one has the default: `no DeepEP`
    """

    name: str
    kind: Kind
    summary: str
    enters: Enters
    default: KnobValue
    off: KnobValue
    auto: tuple[KnobValue, ...] | None = None
    scope: Scope = Scope.ALL
    is_outer: bool = False
    detail_of: str = ""
    detail_key: str = ""
    followers: tuple[str, ...] = ()
    relief: tuple[KnobValue, ...] = ()
    guess: KnobValue | None = None
    tried: int = 0
    freed: int = 0
    is_numeric: bool = False
    words: type[IntEnum] | type[IntFlag] | None = None
    aliases: Mapping[str, int] = field(default_factory=dict)
    printed: Mapping[int, str] = field(default_factory=dict)
    least: int = 1
    most: int | None = None
    has_all: bool = False
    limit: Callable[["Model", "Cluster", "Workload"], int] | None = None
    allowed: str = ""
    label: str | Callable[[Row], str] | None = None
    plain: str = ""

    @property
    def has_words(self) -> bool:
        """Whether tables and files print its values as words, which have no order."""
        return self.kind in (Kind.CHOICE, Kind.MODULES, Kind.SCHEDULE, Kind.LAYOUT)

    @property
    def is_coded(self) -> bool:
        """Whether its column holds codes into a vocabulary that travels with the table."""
        return self.kind in (Kind.SCHEDULE, Kind.LAYOUT)

    @property
    def is_doubled(self) -> bool:
        """Whether twice and half its value are its neighbours."""
        return self.kind in (Kind.DEGREE, Kind.COUNT) and self.least == 1 and not self.has_all

    @property
    def column_default(self) -> int | bool:
        """The default as the column of a table holds it."""
        return self.default if isinstance(self.default, bool) else 0 if self.is_coded else int(self.default)  # type: ignore[arg-type]

    @property
    def members(self) -> dict[str, int]:
        """Values of a CHOICE or of MODULES by the words that `word` prints and their modules."""
        members = self.words.__members__.items() if self.words is not None else ()
        return {name.lower(): int(value) for name, value in members} | {w: n for n, w in self.printed.items()}

    def word(self, value: Any) -> Any:
        """A value as tables and files print it: words for enumerations and layouts, numbers and switches as they are.

        MODULES: none, a word for the whole value, or modules joined by '+'.
        """
        if self.kind is Kind.LAYOUT:
            return str(value)
        if self.words is None:
            return value
        if int(value) in self.printed:
            return self.printed[int(value)]
        if self.kind is Kind.CHOICE or not value:
            return self.words(int(value)).name.lower()  # type: ignore[union-attr]
        return "+".join(one.name.lower() for one in self.words if one & value and one.name)

    def code(self, word: Any) -> int:
        """The value of a word of a CHOICE or of MODULES that `word` printed; raises KeyError for another."""
        parts = str(word).lower().split("+") if self.kind is Kind.MODULES else [str(word).lower()]
        known = self.members
        return reduce(or_, [known[part] for part in parts])

    def label_of(self, row: Row) -> str:
        """Its part of the one-line label of a candidate."""
        if callable(self.label):
            return self.label(row)
        text = f"{self.name}={{{self.name}}}" if self.label is None else self.label
        return text.format_map(row) if row[self.name] != self.word(self.default) else ""

    def told(self, row: Row) -> str:
        """Its value in a comparison with another candidate, the default included."""
        if self.kind is Kind.SCHEDULE:
            return str(row[self.name])
        if self.kind is Kind.LAYOUT:
            return f"layout:{row[self.name]}"
        if row[self.name] == self.word(self.default) and self.plain:
            return self.plain
        return self.label_of(row) or f"{self.name}={row[self.name]}"


def _pipeline_label(row: Row) -> str:
    replicas = f" DP{row['dp']}" if "dp" in row else ""
    return f"PP{row['pp']}" + (f"x{row['vpp']}" if row["vpp"] > 1 else "") + replicas


def _schedule_label(row: Row) -> str:
    layout = [] if row["pipeline_layout"] == "even" else [f"layout:{row['pipeline_layout']}"]
    return " ".join([row["schedule"]] * (row["pp"] > 1) + layout)


def _recompute_label(row: Row) -> str:
    if row["recompute"] != "full":
        return "" if row["recompute"] == "none" else f"recompute:{row['recompute']}"
    return f"full({row['recompute_num_layers']})" if row["recompute_num_layers"] else "full"


def _sharding_label(row: Row) -> str:
    return "" if row["sharding"] == "none" else str(row["sharding"]).replace("distributed_optimizer", "zero1")


_SPLIT = Enters.INSIDE | Enters.HOPS | Enters.REPLICA | Enters.STATE | Enters.BATCH
_STAGES = ("schedule", "vpp", "pipeline_layout", "recompute", "recompute_num_layers", "recompute_method")

KNOBS: tuple[Knob, ...] = (
    Knob(
        name="pp",
        kind=Kind.DEGREE,
        summary="Pipeline parallel degree (stages).",
        enters=Enters.PIPELINE | Enters.STATE | Enters.BATCH,
        default=1,
        off=1,
        is_outer=True,
        followers=(*_STAGES, "sharding", "ep", "micro_batch_size"),
        freed=2,
        limit=lambda model, cluster, workload: cluster.world,
        label=_pipeline_label,
    ),
    Knob(
        name="vpp",
        kind=Kind.COUNT,
        summary="Virtual stages (model chunks) per pipeline rank.",
        enters=Enters.PIPELINE,
        default=1,
        off=1,
        guess=1,
        is_outer=True,
        followers=_STAGES,
        tried=4,
        freed=7,
        limit=lambda model, cluster, workload: model.num_layers,
        label="",
    ),
    Knob(
        name="schedule",
        kind=Kind.SCHEDULE,
        summary="Pipeline schedule; the names of AMD Primus are understood.",
        allowed="a name `primus-search schedules` lists, or auto",
        enters=Enters.PIPELINE,
        default="1f1b",
        off="1f1b",
        guess="1f1b",
        is_outer=True,
        followers=_STAGES,
        tried=3,
        freed=6,
        label=_schedule_label,
    ),
    Knob(
        name="pipeline_layout",
        kind=Kind.LAYOUT,
        summary="How layers are dealt to virtual stages.",
        allowed="even, balanced, {first: n, last: n}, a Megatron layout string such as 'Et*4|t*4|t*3L' or auto",
        enters=Enters.PIPELINE,
        default=EVEN,
        off=EVEN,
        auto=(EVEN, BALANCED),
        is_outer=True,
        followers=_STAGES,
        label="",
    ),
    Knob(
        name="micro_batch_size",
        kind=Kind.COUNT,
        summary="Samples per micro-batch and data parallel rank.",
        enters=Enters.INSIDE | Enters.HOPS | Enters.BATCH,
        default=1,
        off=1,
        relief=(1,),
        guess=1,
        is_outer=True,
        followers=_STAGES[:3],
        tried=11,
        freed=3,
        limit=lambda model, cluster, workload: workload.global_batch_size,
        label=lambda row: f"mbs{row['micro_batch_size']}",
    ),
    Knob(
        name="tp",
        kind=Kind.DEGREE,
        summary="Tensor parallel degree.",
        enters=_SPLIT,
        default=1,
        off=1,
        guess=1,
        is_outer=True,
        followers=("sequence_parallel", "ep", "etp", "micro_batch_size"),
        tried=1,
        freed=1,
        limit=lambda model, cluster, workload: model.num_heads,
        label=lambda row: f"TP{row['tp']}",
    ),
    Knob(
        name="sequence_parallel",
        kind=Kind.SWITCH,
        summary="Norms and residuals split along the sequence over tensor-parallel ranks.",
        enters=Enters.INSIDE | Enters.HOPS | Enters.BATCH,
        default=False,
        off=False,
        auto=(True,),
        is_outer=True,
        label="",
    ),
    Knob(
        name="tp_overlap",
        kind=Kind.SWITCH,
        summary="Tensor-parallel traffic runs beside its products (user buffers or asynchronous tensor parallelism).",
        enters=Enters.TRAFFIC,
        scope=Scope.OTHERS | Scope.EXPERTS,
        default=False,
        off=False,
        is_outer=True,
        label="tp-overlap",
    ),
    Knob(
        name="cp",
        kind=Kind.DEGREE,
        summary="Context parallel degree.",
        enters=_SPLIT,
        default=1,
        off=1,
        guess=1,
        is_outer=True,
        followers=("ep", "micro_batch_size", "schedule", "vpp"),
        tried=12,
        limit=lambda model, cluster, workload: workload.seq_length,
        label="CP{cp}",
    ),
    Knob(
        name="cp_comm",
        kind=Kind.CHOICE,
        words=CpComm,
        summary="How context-parallel ranks exchange keys and values; `stack`: as the software does.",
        enters=Enters.TRAFFIC | Enters.BATCH,
        scope=Scope.OTHERS | Scope.EXPERTS,
        default=CpComm.STACK,
        off=CpComm.STACK,
        guess=CpComm.STACK,
        is_outer=True,
        label="cp:{cp_comm}",
    ),
    Knob(
        name="ep",
        kind=Kind.DEGREE,
        summary="Expert parallel degree; 1 for dense models.",
        enters=_SPLIT,
        scope=Scope.EXPERTS,
        default=1,
        off=1,
        is_outer=True,
        followers=("deepep", "sync_free_stage", "etp"),
        tried=2,
        freed=4,
        limit=lambda model, cluster, workload: model.moe.num_experts if model.moe else 1,
        label="EP{ep}",
    ),
    Knob(
        name="etp",
        kind=Kind.DEGREE,
        summary="Tensor parallel degree inside an expert.",
        enters=_SPLIT,
        scope=Scope.EXPERTS,
        default=1,
        off=1,
        guess=1,
        is_outer=True,
        followers=("ep", "deepep", "sync_free_stage"),
        limit=lambda model, cluster, workload: model.moe.expert_ffn_hidden if model.moe else 1,
        label="ETP{etp}",
    ),
    Knob(
        name="fp8",
        kind=Kind.CHOICE,
        words=Fp8,
        summary="Low-precision recipe of the linear layers.",
        enters=Enters.INSIDE | Enters.REPLICA | Enters.STATE | Enters.BATCH,
        default=Fp8.NONE,
        off=Fp8.NONE,
        guess=Fp8.HYBRID,
        is_numeric=True,
        tried=7,
        freed=8,
        label="fp8:{fp8}",
        plain="BF16",
    ),
    Knob(
        name="fp8_attention",
        kind=Kind.SWITCH,
        summary="Products of attention in FP8 as well (Transformer Engine's `fp8_dot_product_attention`).",
        enters=Enters.KERNELS,
        scope=Scope.OTHERS | Scope.EXPERTS,
        default=False,
        off=False,
        auto=(False,),
        guess=False,
        is_numeric=True,
        label="fp8-attention",
        plain="BF16 attention",
    ),
    Knob(
        name="recompute",
        kind=Kind.MODULES,
        words=Recompute,
        aliases={
            "core_attn": Recompute.CORE_ATTENTION,
            "moe_act": Recompute.MOE_ACTIVATION,
            "op_sac_experts": Recompute.OP_SAC | Recompute.OP_SAC_EXPERTS,
        },
        printed={Recompute.CORE_ATTENTION: "selective"},
        summary="What is recomputed in backward instead of stored.",
        allowed="none, selective, full, {full: layers per virtual stage, method: block}, modules joined by '+' "
        "(core_attn, mla_up_proj, mlp, moe_act, layernorm, op_sac) or auto",
        enters=Enters.REPEATS | Enters.SHAPE | Enters.BATCH | Enters.MOMENTS,
        default=Recompute.NONE,
        off=Recompute.NONE,
        relief=(Recompute.CORE_ATTENTION, Recompute.FULL),
        guess=Recompute.NONE,
        followers=("recompute_num_layers", "recompute_method", *_STAGES[:3]),
        tried=8,
        freed=5,
        label=_recompute_label,
        plain="no recompute",
    ),
    Knob(
        name="recompute_num_layers",
        kind=Kind.COUNT,
        has_all=True,
        detail_of="recompute",
        detail_key="full",
        summary="Layers per virtual stage under full recompute.",
        enters=Enters.SHAPE | Enters.MOMENTS,
        default=0,
        off=0,
        guess=0,
        tried=9,
        limit=lambda model, cluster, workload: model.num_layers,
        label="",
    ),
    Knob(
        name="recompute_method",
        kind=Kind.CHOICE,
        words=RecomputeMethod,
        detail_of="recompute",
        detail_key="method",
        summary="Which layers full recompute takes.",
        enters=Enters.SHAPE | Enters.MOMENTS,
        default=RecomputeMethod.UNIFORM,
        off=RecomputeMethod.UNIFORM,
        auto=(RecomputeMethod.BLOCK,),
        label="",
    ),
    Knob(
        name="offload_layers",
        kind=Kind.COUNT,
        least=0,
        summary="Layers per virtual stage whose activations go to host memory.",
        enters=Enters.MOMENTS,
        default=0,
        off=0,
        auto=(0,),
        limit=lambda model, cluster, workload: model.num_layers,
        label="offload{offload_layers}",
        plain="no offload",
    ),
    Knob(
        name="sharding",
        kind=Kind.CHOICE,
        words=Sharding,
        aliases={"zero1": Sharding.DISTRIBUTED_OPTIMIZER},
        summary="What data-parallel ranks share instead of replicate.",
        enters=Enters.GATHERS | Enters.REPLICA | Enters.STATE | Enters.BATCH,
        default=Sharding.DISTRIBUTED_OPTIMIZER,
        off=Sharding.NONE,
        auto=(Sharding.DISTRIBUTED_OPTIMIZER, Sharding.FSDP2),
        relief=(Sharding.DISTRIBUTED_OPTIMIZER, Sharding.FSDP2),
        guess=Sharding.DISTRIBUTED_OPTIMIZER,
        followers=("shard_group", "pp", *_STAGES),
        tried=10,
        label=_sharding_label,
    ),
    Knob(
        name="shard_group",
        kind=Kind.COUNT,
        has_all=True,
        detail_of="sharding",
        detail_key="hsdp",
        summary="Ranks that share one sharded copy under HSDP.",
        enters=Enters.GATHERS | Enters.REPLICA | Enters.STATE,
        default=0,
        off=0,
        auto=(0,),
        limit=lambda model, cluster, workload: cluster.world,
        label="",
    ),
    Knob(
        name="state_format",
        kind=Kind.CHOICE,
        words=StateFormat,
        summary="Number formats of gradients, weights and optimizer state; `stack`: as the software keeps them.",
        enters=Enters.INSIDE | Enters.GATHERS | Enters.REPLICA | Enters.STATE,
        default=StateFormat.STACK,
        off=StateFormat.STACK,
        auto=(StateFormat.STACK,),
        relief=(StateFormat.BF16_MOMENTS, StateFormat.BF16_STATE),
        guess=StateFormat.STACK,
        is_numeric=True,
        label="state:{state_format}",
    ),
    Knob(
        name="deepep",
        kind=Kind.SWITCH,
        summary="Fused node-aware expert dispatch and combine (DeepEP).",
        enters=Enters.TRAFFIC | Enters.BATCH,
        scope=Scope.EXPERTS,
        default=False,
        off=False,
        auto=(False, True),
        guess=True,
        followers=("sync_free_stage",),
        tried=5,
        freed=9,
        label="deepep",
        plain="no deepep",
    ),
    Knob(
        name="grouped_gemm",
        kind=Kind.CHOICE,
        words=GroupedGemm,
        summary="All experts of a rank in one kernel, or one after another.",
        enters=Enters.KERNELS,
        scope=Scope.EXPERTS,
        default=GroupedGemm.TURBO,
        off=GroupedGemm.LEGACY,
        auto=(GroupedGemm.TURBO, GroupedGemm.LEGACY),
        guess=GroupedGemm.TURBO,
        followers=("sync_free_stage",),
        label="{grouped_gemm}-gemm",
        plain="turbo-gemm",
    ),
    Knob(
        name="sync_free_stage",
        kind=Kind.COUNT,
        least=0,
        most=3,
        summary="How far MoE layers run without waiting for token counts on the host (AMD Primus stages).",
        enters=Enters.TRAFFIC,
        scope=Scope.EXPERTS,
        default=0,
        off=0,
        auto=(0, 1, 2, 3),
        guess=1,
        followers=("deepep", "grouped_gemm"),
        tried=6,
        freed=10,
        label="sf{sync_free_stage}",
        plain="sf0",
    ),
    Knob(
        name="exchange_overlap",
        kind=Kind.SWITCH,
        summary="Expert exchange of one micro-batch runs beside the compute of another (batch-level overlap).",
        enters=Enters.TRAFFIC,
        scope=Scope.EXPERTS,
        default=False,
        off=False,
        guess=False,
        followers=("schedule", "vpp", "recompute", "recompute_num_layers", "recompute_method"),
        tried=13,
        label="exchange-overlap",
        plain="no exchange-overlap",
    ),
    Knob(
        name="cuda_graph",
        kind=Kind.CHOICE,
        words=CudaGraph,
        summary="What is captured as a CUDA graph, beyond what the stack captures anyway.",
        enters=Enters.INSIDE,
        default=CudaGraph.NONE,
        off=CudaGraph.NONE,
        guess=CudaGraph.NONE,
        followers=("deepep", "recompute", "recompute_num_layers", "recompute_method"),
        tried=14,
        label="graph:{cuda_graph}",
        plain="no graph",
    ),
    Knob(
        name="loss_fusion",
        kind=Kind.SWITCH,
        summary="Fused cross-entropy: logits are never kept in full.",
        enters=Enters.KERNELS | Enters.BATCH,
        scope=Scope.HEAD,
        default=True,
        off=False,
        auto=(True, False),
        relief=(True,),
        guess=True,
        label="unfused-loss",
        plain="fused-loss",
    ),
    Knob(
        name="overlap_grad_reduce",
        kind=Kind.SWITCH,
        summary="Gradient reduction runs beside backward.",
        enters=Enters.REPLICA,
        default=True,
        off=False,
        auto=(True, False),
        guess=True,
        label="no-grad-overlap",
        plain="grad-overlap",
    ),
)
"""Every knob, in the order of enumeration, slowest first; those that are not `is_outer` vary within the others."""

KNOB: Mapping[str, Knob] = {knob.name: knob for knob in KNOBS}
NUMERIC = tuple(knob for knob in KNOBS if knob.is_numeric)
"""Knobs that change what training computes (docs/numerics.md)."""
WORDED = frozenset(knob.name for knob in KNOBS if knob.has_words)
"""Knobs whose values are printed as words."""


@cache
def reading(enters: Enters, scope: Scope = Scope.ALL) -> frozenset[str]:
    """The knobs that any of some terms reads; of kernels and traffic, those of the pieces in `scope` alone."""
    inside, around = enters & Enters.INSIDE, enters & ~Enters.INSIDE
    return frozenset(k.name for k in KNOBS if k.enters & around or (k.enters & inside and k.scope & scope))
