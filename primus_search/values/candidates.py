"""A table of training configurations: one column per knob, one row per candidate; and the degrees they imply.

Every column has the same length, is copied in and is read-only. Counts, degrees and codes are int64, switches are
bool. Words (schedule, layout) are stored as codes into a vocabulary that travels with the table, so that a chunk of
10^5 rows stays a few megabytes and equal words compare as integers.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from primus_search.values.knobs import KNOB, KNOBS
from primus_search.values.knobs import CpComm as CpComm
from primus_search.values.knobs import CudaGraph as CudaGraph
from primus_search.values.knobs import DispatchBackend as DispatchBackend
from primus_search.values.knobs import Fp8 as Fp8
from primus_search.values.knobs import GroupedGemm as GroupedGemm
from primus_search.values.knobs import Offload as Offload
from primus_search.values.knobs import Optimizer as Optimizer
from primus_search.values.knobs import Recompute as Recompute
from primus_search.values.knobs import RecomputeMethod as RecomputeMethod
from primus_search.values.knobs import Sharding as Sharding
from primus_search.values.layout import EVEN, Layout

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Columns:
    """Base of frozen dataclasses of columns; fields that are no columns stay as they are."""

    def __len__(self) -> int:
        return len(self.__getattribute__(fields(self)[0].name))

    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns by name."""
        found = {f.name: self.__getattribute__(f.name) for f in fields(self)}
        return {name: column for name, column in found.items() if isinstance(column, np.ndarray)}

    def take(self, rows: Bools | Ints | slice) -> Self:
        """The rows that a mask, an index or a slice selects, in their order."""
        if isinstance(rows, slice):
            return self._with(lambda name, column: column.take(rows) if isinstance(column, Columns) else column[rows])
        at: Ints = np.flatnonzero(rows) if rows.dtype == np.bool_ else np.asarray(rows, np.int64)
        if _is_all(at, len(self)):
            return self
        return self._with(lambda name, column: column.take(at) if isinstance(column, Columns) else column.take(at, 0))

    def joined(self, *others: Self) -> Self:
        """The rows of all, one after the other."""
        tables = [table for table in (self, *others) if len(table)]
        if len(tables) < 2:
            return tables[0] if tables else self

        def all_of(name: str, column: Any) -> Any:
            parts = [table.__getattribute__(name) for table in tables]
            return column.joined(*parts[1:]) if isinstance(column, Columns) else np.concatenate(parts)

        return tables[0]._with(all_of)

    def _with(self, change: Callable[[str, Any], Any]) -> Self:
        """The table with every column changed."""
        found = {f.name: self.__getattribute__(f.name) for f in fields(self)}
        changed = {n: change(n, value) for n, value in found.items() if isinstance(value, np.ndarray | Columns)}
        return replace(self, **changed)


def _is_all(rows: Ints, length: int) -> bool:
    """Whether these are all rows of a table in their order."""
    return len(rows) == length and np.array_equal(rows, np.arange(length))


class PipelineOrder(NamedTuple):
    """What decides the order of a pipeline's passes, besides the number of micro-batches.

    group     micro-batches that pass through a chunk together; 0 = the schedule's own
    launcher  framework whose own order of that name it is; empty: ours
    """

    schedule: str
    pp: int
    vpp: int = 1
    group: int = 0
    launcher: str = ""


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
    offload_modules       `Offload` flags
    microbatch_group      micro-batches that pass through a chunk together; 0 = as many as stages
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
    offload_modules: Ints
    microbatch_group: Ints
    exchange_overlap: Bools
    cuda_graph: Ints
    tp_overlap: Bools
    cp_comm: Ints
    hybrid_cp: Bools
    state_format: Ints
    optimizer: Ints
    optimizer_offload: Ints
    fp8_attention: Bools
    dispatch_backend: Ints
    schedules: tuple[str, ...] = ("1f1b",)
    layouts: tuple[Layout, ...] = (EVEN,)

    def __len__(self) -> int:
        return len(self.tp)

    @classmethod
    def table(
        cls, *, schedules: tuple[str, ...] = ("1f1b",), layouts: tuple[Layout, ...] = (EVEN,), **columns: Any
    ) -> Self:
        """A table from columns or scalars; scalars broadcast, columns left out take `DEFAULTS`.

        Raises TypeError for an unknown column, ValueError for columns of different length and counts beyond 64 bits.
        """
        unknown = set(columns) - set(DEFAULTS)
        if unknown:
            raise TypeError(f"unknown columns {sorted(unknown)}; known: {sorted(DEFAULTS)}")
        try:
            typed: dict[str, NDArray[Any]] = {
                name: np.array(columns.get(name, default), dtype=np.bool_ if isinstance(default, bool) else np.int64)
                for name, default in DEFAULTS.items()
            }
        except OverflowError as error:
            raise ValueError("a count has more than 64 bits") from error
        if "sequence_parallel" not in columns:
            typed["sequence_parallel"] = np.greater(typed["tp"], 1)
        length = np.broadcast_shapes((1,), *(column.shape for column in typed.values()))
        frozen = {
            name: _frozen(column if column.shape == length else np.full(length, column))
            for name, column in typed.items()
        }
        return cls(schedules=schedules, layouts=layouts, **frozen)

    def take(self, rows: Bools | Ints | slice) -> Self:
        """The rows a mask, an index or a slice selects, in their order."""
        columns = self.columns()
        if isinstance(rows, slice):
            taken: dict[str, Any] = {name: _read_only(column[rows]) for name, column in columns.items()}
            return replace(self, **taken)
        at: Ints = np.flatnonzero(rows) if np.asarray(rows).dtype == np.bool_ else np.asarray(rows, np.int64)
        if _is_all(at, len(columns["tp"])):
            return self
        taken = {name: _frozen(gathered(column, at)) for name, column in columns.items()}
        return replace(self, **taken)

    def with_columns(self, columns: Mapping[str, Ints | Bools]) -> Self:
        """The table with some columns replaced, in the types and codes of its own."""
        own = self.columns()
        typed: dict[str, Any] = {n: _read_only(column.astype(own[n].dtype)) for n, column in columns.items()}
        return replace(self, **typed)

    def columns(self) -> dict[str, Ints | Bools]:
        """The columns by name, in declaration order, codes as codes."""
        return {name: self.__getattribute__(name) for name in COLUMN_NAMES}

    def row(self, index: int) -> dict[str, Any]:
        """One candidate as words and plain numbers, for reports and messages."""
        return {name: self.word(name, column[index].item()) for name, column in self.columns().items()}

    def rows(self, chosen: slice = slice(None)) -> list[dict[str, Any]]:
        """Some candidates as `row` returns them; each distinct value of a column is put into words once."""
        words = []
        for name, column in self.columns().items():
            values = column[chosen].tolist()
            word_of = {value: self.word(name, value) for value in set(values)}
            words.append([word_of[value] for value in values])
        return [dict(zip(COLUMN_NAMES, row, strict=True)) for row in zip(*words, strict=True)]

    def word(self, name: str, value: int | bool) -> Any:
        """A value of a column as words or a plain number."""
        coded = {"schedule": self.schedules, "pipeline_layout": self.layouts}.get(name)
        return KNOB[name].word(value if coded is None else coded[value])

    @classmethod
    def from_words(cls, row: Mapping[str, Any]) -> Self:
        """A table of one candidate from what `row` returns; columns left out take `DEFAULTS`.

        Raises KeyError for a word that is none of the enumeration's.
        """
        return cls.from_rows([row])

    @classmethod
    def from_rows(cls, rows: Sequence[Mapping[str, Any]]) -> Self:
        """A table of one or more candidates, whose rows name the same columns; each word is put into its code once."""
        columns: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
        schedules = tuple(dict.fromkeys(columns.get("schedule", ("1f1b",))))
        layouts = tuple(dict.fromkeys(columns.get("pipeline_layout", ("even",))))
        for name, values in columns.items():
            if name in WORDS:
                codes = {text: KNOB[name].code(text) for text in set(map(str, values))}
                columns[name] = [codes[str(word)] for word in values]
        for name, words in (("schedule", schedules), ("pipeline_layout", layouts)):
            if name in columns:
                columns[name] = [words.index(word) for word in columns[name]]
        return cls.table(schedules=schedules, layouts=tuple(map(Layout.parse, layouts)), **columns)

    # --- facts of a row that formulas share ------------------------------------------------------------------------

    @property
    def has_fused_dispatch(self) -> Bools:
        """Whether tokens reach experts by one fused, node-aware exchange rather than by a plain all-to-all."""
        return self.deepep

    def run_sharding(self, *, once: bool) -> Ints:
        """`Sharding` codes of what a step does: where software gathers weights `once` a step under a pipeline, and
        reduces gradients after its last micro-batch, FSDP2 and HSDP are ZeRO-2's traffic."""
        is_kept = once & (self.pp > 1) & ((self.sharding == Sharding.FSDP2) | (self.sharding == Sharding.HSDP))
        return np.where(is_kept, Sharding.ZERO2, self.sharding)

    @property
    def offloads_inputs(self) -> Bools:
        """Whether inputs of some modules of every layer wait in host memory for backward."""
        return self.offload_modules > 0

    @property
    def has_fixed_expert_rows(self) -> Bools:
        """Whether experts have room for every token copy of their group: tensors are sized before counts are known.

        Source: AMD-AGI/Primus core/extensions/primus_turbo.py, PrimusTurboDeepEPTokenDispatcher: beyond stage 2,
        permute_max_token_num = tokens x ranks of the group x top_k.
        """
        return self.sync_free_stage >= KNOB["sync_free_stage"].memory_from

    def has_group_buffers(self, *, usual: bool) -> Bools:
        """Whether fused dispatch is HybridEP, under software whose own is (`usual`) by default."""
        is_stack = self.dispatch_backend == DispatchBackend.STACK
        return np.where(is_stack, usual, self.dispatch_backend == DispatchBackend.HYBRIDEP)

    def graph_scope(self, always: str) -> Ints:
        """`CudaGraph` codes of what is replayed as a graph, under software that captures `always` anyway."""
        return np.maximum(self.cuda_graph, CudaGraph[always.upper()])

    def exchange_of_context(self, usual: str) -> Ints:
        """`CpComm` codes of what context-parallel ranks do, under software that does `usual` by default."""
        return np.where(self.cp_comm == CpComm.STACK, CpComm[usual.upper()], self.cp_comm)

    def inner_context_ranks(self, usual: str) -> Ints:
        """Ranks of the all-to-all inside a ring, under software that does `usual` by default; 0: no such exchange."""
        return INNER_RANKS[self.exchange_of_context(usual)]

    def shard_ranks(self, replicas: Ints) -> Ints:
        """Ranks that share one sharded copy, of so many replicas."""
        return np.where(self.shard_group > 0, np.minimum(self.shard_group, replicas), replicas)

    @property
    def shards_whole_layers(self) -> Bools:
        """Whether a layer is one group of shards, its experts among them, over the replicas of its dense part: torch's
        FSDP2 where experts have no ranks of their own.

        Source: NVIDIA/Megatron-LM core/distributed/torch_fully_sharded_data_parallel.py:77, :128; pytorch/torchtitan
        distributed/parallel_dims.py:206 (`efsdp` with expert parallelism alone).
        """
        found: Bools = (self.sharding == Sharding.FSDP2) & (self.ep == 1)
        return found

    def optimizer_copies(self, number: float) -> Floats:
        """Copies of what replicas share, where so many are named: of ZeRO-1's optimizer, and of ZeRO-2's gradients."""
        shared = np.isin(self.sharding, (Sharding.DISTRIBUTED_OPTIMIZER, Sharding.ZERO2))
        return np.where(shared, number, 1.0)

    def order(self, row: int, launcher: str = "") -> PipelineOrder:
        """What decides the order of a row's passes; without a pipeline, every schedule is 1F1B."""
        return self.placement(row)._replace(group=int(self.microbatch_group[row]), launcher=launcher)

    def placement(self, row: int) -> PipelineOrder:
        """What decides which rank has which virtual stage: the order without its groups of micro-batches."""
        pp, vpp = int(self.pp[row]), int(self.vpp[row])
        return PipelineOrder(self.schedules[int(self.schedule[row])] if pp > 1 else "1f1b", pp, vpp)

    @property
    def order_counts(self) -> tuple[Ints, Ints, Ints]:
        """The columns of `order` other than the schedule."""
        return self.pp, self.vpp, self.microbatch_group

    def key_columns(self, names: AbstractSet[str], **canonical: Ints | Bools | None) -> list[Ints | Bools]:
        """Some columns, in declaration order, as the key of a term that reads them; no other column is touched.

        `canonical` gives values that merge rows that cost the same, None for a column that another one stands for,
        numbers of schedules and layouts that stay the same from table to table, and counts that follow from columns
        (`microbatches`); all of them are among `names`.
        """
        assert canonical.keys() <= names, sorted(canonical.keys() - names)
        own = [name for name in COLUMN_NAMES if name in names and name not in canonical]
        derived = [column for column in canonical.values() if column is not None]
        return [*(self.__getattribute__(name) for name in own), *derived]


INNER_RANKS: Ints = np.array([way.inner_ranks for way in CpComm], dtype=np.int64)
"""Ranks of the all-to-all inside a ring, by `CpComm` code."""
WORDS = frozenset(knob.name for knob in KNOBS if knob.words is not None)
"""Columns that hold members of an enumeration; see `Knob.word`."""
DEFAULTS: Mapping[str, int | bool] = {knob.name: knob.column_default for knob in KNOBS}
COLUMN_NAMES: tuple[str, ...] = tuple(f.name for f in fields(Candidates) if f.name not in ("schedules", "layouts"))
assert set(COLUMN_NAMES) == set(KNOB), "a knob is a row of knobs.KNOBS and a field of Candidates"


def joined(tables: Sequence[Candidates]) -> Candidates:
    """Several tables as one, in their order; their vocabularies of schedules and layouts become one."""
    return Candidates.from_rows([row for table in tables for row in table.rows()])


def compact(column: NDArray[Any]) -> NDArray[Any]:
    """The column; one value in all places where there is but one, which `gathered` does not walk."""
    return np.broadcast_to(column[:1], column.shape) if len(column) and (column == column[0]).all() else column


def gathered(column: NDArray[Any], rows: Ints) -> NDArray[Any]:
    """A column at these rows."""
    is_one = column.strides == (0,) and len(column) > 0
    return np.ndarray(rows.shape, column.dtype, column[:1], strides=(0,)) if is_one else column.take(rows)


def _read_only(column: NDArray[Any]) -> NDArray[Any]:
    """A copy that cannot be written to."""
    return _frozen(np.array(column, copy=True))


def _frozen(owned: NDArray[Any]) -> NDArray[Any]:
    """An array of its own, protected from writing."""
    owned.setflags(write=False)
    return owned


class Degrees:
    """Parallel degrees that follow from candidates and the number of GPUs; exact where `is_whole`.

    dp  replicas of a dense layer; edp  replicas of an expert; microbatches  per pipeline and step

    Each is worked out when it is asked for, from the columns it depends on alone: a term that needs dp touches no
    micro-batch size.
    """

    def __init__(self, candidates: Candidates, world: int, global_batch_size: int) -> None:
        self._c, self._world, self._batch = candidates, world, global_batch_size

    @cached_property
    def _dense(self) -> Ints:
        """Ranks of one replica of the dense layers."""
        return self._c.tp * self._c.cp * self._c.pp

    @cached_property
    def _experts(self) -> Ints:
        """Ranks of one replica of the experts."""
        return self._c.etp * self._c.ep * self._c.pp

    @cached_property
    def dp(self) -> Ints:
        return np.maximum(self._world // self._dense, 1)

    @cached_property
    def edp(self) -> Ints:
        return np.maximum(self._world // self._experts, 1)

    @cached_property
    def microbatches(self) -> Ints:
        count: Ints = np.maximum(self._batch // (self._c.micro_batch_size * self.dp), 1)
        return count

    @property
    def is_whole(self) -> Bools:
        """Whether all divide without remainder."""
        is_split = (self._dense * self.dp == self._world) & (self._experts * self.edp == self._world)
        is_whole: Bools = is_split & (self._c.micro_batch_size * self.dp * self.microbatches == self._batch)
        return is_whole


def degrees(candidates: Candidates, *, world: int, global_batch_size: int) -> Degrees:
    """Data-parallel degree, expert data-parallel degree and micro-batches of every row: the one place that divides.

    Formula (MoE parallel folding, arXiv:2504.14960): world = tp*cp*dp*pp = etp*ep*edp*pp and
    microbatches = global_batch / (micro_batch * dp). Rows that do not divide get is_whole False
    and degrees of at least 1.
    """
    return Degrees(candidates, world, global_batch_size)


def spoken(value: Any) -> str:
    """A value as people type it after --set."""
    return str(value).lower() if isinstance(value, bool) else str(value)
