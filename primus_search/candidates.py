"""A table of training configurations: one column per knob, one row per candidate; and the degrees they imply.

Every column has the same length, is copied in and is read-only. Counts, degrees and codes are int64, switches are
bool. Words (schedule, layout) are stored as codes into a vocabulary that travels with the table, so that a chunk of
10^5 rows stays a few megabytes and equal words compare as integers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum, IntFlag
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from primus_search.layout import EVEN, Layout

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Columns of training knobs. Construct with `table(...)`; filter with `take`.

    vpp                   virtual stages (model chunks) per pipeline rank
    etp                   tensor parallelism inside an expert
    schedule              code into `schedules`
    pipeline_layout       code into `layouts`
    recompute             `Recompute` flags; recompute_num_layers counts layers per virtual stage, FULL only, 0 = all
    shard_group           ranks that share one sharded copy; 0 = all data-parallel ranks
    offload_layers        layers per virtual stage whose activations are offloaded to the host
    """

    tp: Ints
    pp: Ints
    vpp: Ints
    ep: Ints
    etp: Ints
    cp: Ints
    micro_batch_size: Ints
    schedule: Ints
    deepep: Bools
    sync_free_stage: Ints
    fp8: Ints
    recompute: Ints
    recompute_num_layers: Ints
    recompute_method: Ints
    sharding: Ints
    shard_group: Ints
    loss_fusion: Bools
    overlap_grad_reduce: Bools
    grouped_gemm: Ints
    sequence_parallel: Bools
    pipeline_layout: Ints
    offload_layers: Ints
    schedules: tuple[str, ...] = ("1f1b",)
    layouts: tuple[Layout, ...] = (EVEN,)

    def __len__(self) -> int:
        return len(self.tp)

    @classmethod
    def table(
        cls, *, schedules: tuple[str, ...] = ("1f1b",), layouts: tuple[Layout, ...] = (EVEN,), **columns: Any
    ) -> Self:
        """A table from columns or scalars; scalars broadcast, columns left out take `DEFAULTS`.

        Raises TypeError for an unknown column and ValueError for columns of different length.
        """
        unknown = set(columns) - set(DEFAULTS)
        if unknown:
            raise TypeError(f"unknown columns {sorted(unknown)}; known: {sorted(DEFAULTS)}")
        typed: dict[str, NDArray[Any]] = {
            name: np.array(columns.get(name, default), dtype=np.bool_ if isinstance(default, bool) else np.int64)
            for name, default in DEFAULTS.items()
        }
        if "sequence_parallel" not in columns:
            typed["sequence_parallel"] = np.greater(typed["tp"], 1)
        length = np.broadcast_shapes((1,), *(column.shape for column in typed.values()))
        frozen = {name: _read_only(np.broadcast_to(column, length)) for name, column in typed.items()}
        return cls(schedules=schedules, layouts=layouts, **frozen)

    def take(self, rows: Bools | Ints | slice) -> Self:
        """The rows a mask, an index or a slice selects, in their order."""
        taken: dict[str, Any] = {name: _read_only(column[rows]) for name, column in self.columns().items()}
        return replace(self, **taken)

    def columns(self) -> dict[str, Ints | Bools]:
        """The columns by name, in declaration order, codes as codes."""
        return {name: self.__getattribute__(name) for name in COLUMN_NAMES}

    def row(self, index: int) -> dict[str, Any]:
        """One candidate as words and plain numbers, for reports and messages."""
        values = {name: column[index].item() for name, column in self.columns().items()}
        return values | {
            "schedule": self.schedules[values["schedule"]],
            "pipeline_layout": str(self.layouts[values["pipeline_layout"]]),
            "fp8": Fp8(values["fp8"]).name.lower(),
            "recompute": recompute_word(values["recompute"]),
            "recompute_method": RecomputeMethod(values["recompute_method"]).name.lower(),
            "sharding": Sharding(values["sharding"]).name.lower(),
            "grouped_gemm": GroupedGemm(values["grouped_gemm"]).name.lower(),
        }

    @classmethod
    def from_words(cls, row: Mapping[str, Any]) -> Self:
        """A table of one candidate from what `row` returns; columns left out take `DEFAULTS`.

        Raises KeyError for a word that is none of the enumeration's.
        """
        columns = dict(row)
        schedule, layout = columns.pop("schedule", "1f1b"), columns.pop("pipeline_layout", "even")
        for name, words in WORDS.items():
            if name in columns:
                columns[name] = int(words[str(columns[name]).upper()])
        if "recompute" in columns:
            columns["recompute"] = recompute_flags(str(columns["recompute"]))
        return cls.table(schedules=(schedule,), layouts=(Layout.parse(layout),), **columns)


WORDS: Mapping[str, type[IntEnum]] = {
    "fp8": Fp8,
    "recompute_method": RecomputeMethod,
    "sharding": Sharding,
    "grouped_gemm": GroupedGemm,
}
DEFAULTS: Mapping[str, int | bool] = {
    "tp": 1,
    "pp": 1,
    "vpp": 1,
    "ep": 1,
    "etp": 1,
    "cp": 1,
    "micro_batch_size": 1,
    "schedule": 0,
    "deepep": False,
    "sync_free_stage": 0,
    "fp8": int(Fp8.NONE),
    "recompute": int(Recompute.NONE),
    "recompute_num_layers": 0,
    "recompute_method": int(RecomputeMethod.UNIFORM),
    "sharding": int(Sharding.DISTRIBUTED_OPTIMIZER),
    "shard_group": 0,
    "loss_fusion": True,
    "overlap_grad_reduce": True,
    "grouped_gemm": int(GroupedGemm.TURBO),
    "sequence_parallel": False,
    "pipeline_layout": 0,
    "offload_layers": 0,
}
COLUMN_NAMES: tuple[str, ...] = tuple(f.name for f in fields(Candidates) if f.name not in ("schedules", "layouts"))


def joined(tables: Sequence[Candidates]) -> Candidates:
    """Several tables as one, in their order; their vocabularies of schedules and layouts become one."""
    schedules = tuple(dict.fromkeys(name for table in tables for name in table.schedules))
    layouts = tuple(dict.fromkeys(layout for table in tables for layout in table.layouts))
    columns: dict[str, list[int]] = {name: [] for name in COLUMN_NAMES}
    for table in tables:
        for name, column in table.columns().items():
            values = column.tolist()
            if name == "schedule":
                values = [schedules.index(table.schedules[code]) for code in values]
            elif name == "pipeline_layout":
                values = [layouts.index(table.layouts[code]) for code in values]
            columns[name] += values
    every: dict[str, Any] = columns
    return Candidates.table(schedules=schedules, layouts=layouts, **every)


def recompute_word(flags: int) -> str:
    """The name of a recompute setting as a space file writes it: none, selective, full, or modules joined by '+'."""
    if flags == Recompute.NONE:
        return "none"
    if flags == Recompute.CORE_ATTENTION:
        return "selective"
    return "+".join(flag.name.lower() for flag in Recompute if flag and flag & flags and flag.name)


def recompute_flags(word: str) -> int:
    """The flags of a word that `recompute_word` wrote; raises KeyError for an unknown module."""
    if word == "selective":
        return int(Recompute.CORE_ATTENTION)
    return sum(int(Recompute[part.upper()]) for part in word.split("+"))


def _read_only(column: NDArray[Any]) -> NDArray[Any]:
    owned = np.array(column, copy=True)
    owned.setflags(write=False)
    return owned


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """Parallel degrees that follow from a candidate and the number of GPUs; exact where `is_whole`.

    dp  replicas of a dense layer; edp  replicas of an expert; microbatches  per pipeline and step
    """

    dp: Ints
    edp: Ints
    microbatches: Ints
    is_whole: Bools


def degrees(candidates: Candidates, *, world: int, global_batch_size: int) -> Degrees:
    """Data-parallel degree, expert data-parallel degree and micro-batches of every row: the one place that divides.

    Formula (MoE parallel folding, arXiv:2504.14960): world = tp*cp*dp*pp = etp*ep*edp*pp and
    microbatches = global_batch / (micro_batch * dp). Rows that do not divide get is_whole False
    and degrees of at least 1.
    """
    c = candidates
    dense, experts = c.tp * c.cp * c.pp, c.etp * c.ep * c.pp
    dp, edp = np.maximum(world // dense, 1), np.maximum(world // experts, 1)
    samples = c.micro_batch_size * dp
    microbatches = np.maximum(global_batch_size // samples, 1)
    is_whole = (dense * dp == world) & (experts * edp == world) & (samples * microbatches == global_batch_size)
    return Degrees(dp=dp, edp=edp, microbatches=microbatches, is_whole=is_whole)
