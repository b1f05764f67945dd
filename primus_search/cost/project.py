"""Memory and step time of a table of candidates: the one place where all cost terms meet.

    Projector(model, cluster, workload).project(candidates) -> Projection

A Projector keeps what it computed: layer times per distinct layer key, pipelines per distinct pipeline key, data-
parallel traffic per distinct replica key (`cost/factor.py`). Rows are gathered from those tables, so a chunk of 10^5
candidates costs what its new keys cost.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import ArrayLike

from primus_search.candidates import Candidates, Floats, Ints, Recompute, RecomputeMethod, Sharding, degrees
from primus_search.cluster import Cluster
from primus_search.cost.factor import Rows, Vocabulary, in_order
from primus_search.cost.gradient import GradientTraffic, exposed_gradient_s, gradient_traffic
from primus_search.cost.measured import MeasuredLayers
from primus_search.cost.memory import MemoryTable
from primus_search.cost.memory.parameters import layer_dense_params, layer_expert_params
from primus_search.cost.memory.share import share
from primus_search.cost.optimizer import optimizer_s
from primus_search.cost.pipeline import (
    BOUND,
    BUBBLE,
    PARTS,
    WINDOW_B,
    WINDOW_F,
    Keys,
    PipelineRows,
    Shape,
    far_hops,
    hop_facts,
)
from primus_search.cost.result import Memory, Projection, Step, Verdict
from primus_search.cost.stage import piece_counts, pieces
from primus_search.cost.work import Part, Pass
from primus_search.errors import ScheduleError
from primus_search.layout import Layout, StageLayers, stage_layers
from primus_search.model import Model
from primus_search.workload import Workload

MEMO_LIMIT = 2_000_000
"""Pipeline rows kept; beyond this the tables start afresh (about 250 MB)."""


_PART_OF_STEP = {f.name: Part[f.name.upper()] for f in fields(Step) if f.name.upper() in Part.__members__}


class Projector:
    """Projects candidates of one model on one cluster for one workload."""

    def __init__(
        self,
        model: Model,
        cluster: Cluster,
        workload: Workload,
        *,
        memory_margin: float = 0.0,
        measured: MeasuredLayers | None = None,
        shares_rows: bool = True,
    ) -> None:
        """`measured` replaces the kernel laws of the pieces it knows. `shares_rows=False` computes every row by itself,
        so that numbers of the stack or the accelerator may be columns too (one value per row): a fit moves all its
        parameters at once that way."""
        self.model, self.cluster, self.workload = model, cluster, workload
        self.memory_margin, self.measured = memory_margin, measured
        self._shares_rows = shares_rows
        self._memory = MemoryTable(model, cluster, workload)
        self._num_pieces = len(model.kinds) + 3
        self._forget()

    def _forget(self) -> None:
        kinds = len(self.model.kinds)
        self._layer_keys, self._pipeline_keys, self._replica_keys = Vocabulary(), Vocabulary(), Vocabulary()
        self._shape_keys = Vocabulary()
        self._layers = Rows(self._num_pieces * (len(Pass) + PARTS) + kinds)
        self._pipelines = PipelineRows(self._num_pieces, kinds)
        self._replicas = Rows(5)
        self._layouts: dict[Layout, int] = {}
        self._schedules: dict[str, int] = {}

    # --- the public face ------------------------------------------------------------------------------------------

    def project(self, c: Candidates) -> Projection:
        """Memory, step and verdict of every row; a row that does not fit is still a row."""
        return self.assemble(c, self.memory(c), self.step(c))

    def memory(self, c: Candidates) -> Memory:
        """Bytes on the worst pipeline rank."""
        return self._memory.memory(c)

    def memory_bytes(self, c: Candidates) -> Floats:
        """`memory(c).total`, without the parts: all that rejection needs."""
        return self._memory.total(c)

    def step(self, c: Candidates) -> Step:
        """Seconds of one optimizer step."""
        rows = self._pipeline_rows(c, exact=True)
        after = self._after(c, rows[WINDOW_F], rows[WINDOW_B])
        return self._step(rows, *after)

    def bound(self, c: Candidates) -> Floats:
        """Seconds no schedule can beat, at most `step(c).total`: same terms, the bubble replaced by its lower bound."""
        rows = self._pipeline_rows(c, exact=False)
        gradient, optimizer = self._after(c, rows[WINDOW_F], rows[WINDOW_B])
        return self._total(rows[BOUND], gradient, optimizer)

    def assemble(self, c: Candidates, memory: Memory, step: Step) -> Projection:
        """Join memory and step into a projection with its verdict."""
        hbm = self.cluster.accelerator.hbm_bytes * (1.0 - self.memory_margin)
        headroom = hbm - memory.total
        d = self._degrees(c)
        return Projection(
            memory=memory,
            step=step,
            verdict=np.where(headroom >= 0, int(Verdict.FITS), int(Verdict.HBM)),
            headroom_bytes=headroom,
            microbatches=d.microbatches,
            dp=d.dp,
            world=self.cluster.world,
            tokens_per_step=self.workload.tokens_per_step,
            flops_per_token=self.model.flops_per_token(self.workload.seq_length),
            peak_flops_per_s=self.cluster.accelerator.bf16_peak_flops_per_s,
        )

    def _encode(self, vocabulary: Vocabulary, columns: Sequence[ArrayLike]) -> tuple[Ints, Ints]:
        typed = [np.asarray(column, np.int64) for column in columns]
        return vocabulary.encode(typed) if self._shares_rows else vocabulary.number(len(typed[0]))

    # --- assembling -----------------------------------------------------------------------------------------------

    def _degrees(self, c: Candidates):  # type: ignore[no-untyped-def]
        return degrees(c, world=self.cluster.world, global_batch_size=self.workload.global_batch_size)

    def _straggle(self) -> float:  # share of the step that waiting for the slowest node adds
        stack = self.cluster.stack
        return stack.straggler_per_doubling * float(np.log2(self.cluster.num_nodes))

    def _total(self, pipeline: Floats, gradient: Floats, optimizer: Floats) -> Floats:
        stack = self.cluster.stack
        return (pipeline + gradient + optimizer + stack.step_s) * (1.0 + self._straggle())

    def _step(self, rows: Floats, gradient: Floats, optimizer: Floats) -> Step:
        stack = self.cluster.stack
        overhead = np.broadcast_to(np.asarray(stack.step_s, np.float64), rows.shape[1:])
        subtotal = in_order(rows[: BUBBLE + 1]) + gradient + optimizer + overhead
        parts = {name: rows[part] for name, part in _PART_OF_STEP.items()}
        return Step(
            **parts,
            bubble=rows[BUBBLE],
            gradient_comm=gradient,
            optimizer=optimizer,
            overhead=overhead,
            stragglers=subtotal * self._straggle(),
        )

    def _after(self, c: Candidates, forward_s: Floats, backward_s: Floats) -> tuple[Floats, Floats]:
        """Exposed gradient traffic and optimizer seconds of every row."""
        sharded = c.sharding != Sharding.NONE
        columns = [
            c.tp,
            c.pp,
            c.vpp,
            c.ep,
            c.etp,
            c.cp,
            c.sharding,
            c.shard_group * sharded,
            c.fp8,
            c.overlap_grad_reduce,
            self._layout_codes(c),
            self._schedule_codes(c),
        ]
        codes, first = self._encode(self._replica_keys, columns)
        if len(first):
            self._replicas.append(self._replica_terms(c.take(first)))
        *ends, update_s = self._replicas.data[codes].T
        traffic = GradientTraffic(
            reduce_most_s=ends[0], reduce_least_s=ends[1], gather_most_s=ends[2], gather_least_s=ends[3]
        )
        return exposed_gradient_s(self.cluster, c, traffic, forward_s, backward_s), update_s

    def _replica_terms(self, c: Candidates) -> Floats:
        dense, expert = self._params_per_rank(c)
        t = gradient_traffic(self.cluster, self.workload, c, dense, expert)
        d = self._degrees(c)
        replicas = d.dp * c.cp
        group = np.where(c.shard_group > 0, np.minimum(c.shard_group, replicas), replicas)
        is_sharded = c.sharding != Sharding.NONE
        owned = dense / np.where(is_sharded, group, 1)
        owned = owned + expert / np.where(is_sharded, np.maximum(d.edp * group / replicas, 1.0), 1)
        update_s = optimizer_s(self.cluster.accelerator, self.cluster.stack, owned)
        if self.measured is not None and self.measured.optimizer_s_per_param > 0:
            update_s = owned * self.measured.optimizer_s_per_param
        is_zero1 = c.sharding == Sharding.DISTRIBUTED_OPTIMIZER
        update_s = update_s + is_zero1 * group * self.cluster.stack.broadcast_s
        return np.stack([t.reduce_most_s, t.reduce_least_s, t.gather_most_s, t.gather_least_s, update_s], axis=1)

    def _params_per_rank(self, c: Candidates) -> tuple[Floats, Floats]:
        """Parameters, experts apart, on the pipeline rank that holds most; before sharding over replicas."""
        model, s = self.model, share(self.model, self.workload, self.cluster.stack, c, self.cluster.world)
        dense_of = np.array([layer_dense_params(model, kind, s) for kind in model.kinds])
        expert_of = np.array([layer_expert_params(model, s) if k.is_moe else 0.0 * s.tp for k in model.kinds])
        mtp = dense_of[model.kinds.index(model.layers[-1])] + 2.0 * model.hidden**2 / s.tp
        mtp_expert = expert_of[model.kinds.index(model.layers[-1])]
        out = np.zeros((2, len(c)))
        geometry = np.stack([c.pp, c.vpp, c.pipeline_layout, c.schedule])
        for members in _groups(geometry):
            i = int(members[0])
            stages, pp = self._stages(c, i), int(c.pp[i])
            has_matrix = stages.has_head * (0.0 if model.is_tied and pp == 1 else 1.0)
            ends = stages.has_embedding * model.embedding_params + has_matrix * model.head_params
            layers = range(len(model.kinds))
            dense = in_order(stages.counts[:, [k]] * dense_of[k, members] for k in layers)
            dense = dense + stages.mtp[:, None] * mtp[members] + ends[:, None] / c.tp[members]
            expert = in_order(stages.counts[:, [k]] * expert_of[k, members] for k in layers)
            expert = expert + stages.mtp[:, None] * mtp_expert[members]
            on_rank = [np.flatnonzero(self._ranks(c, i, len(ends)) == rank) for rank in range(pp)]
            dense = np.array([in_order(dense[stage]) for stage in on_rank])
            expert = np.array([in_order(expert[stage]) for stage in on_rank])
            heaviest = (dense + expert).argmax(axis=0)
            column = np.arange(len(members))
            out[:, members] = dense[heaviest, column], expert[heaviest, column]
        return out[0], out[1]

    # --- pipelines ------------------------------------------------------------------------------------------------

    def _layout_codes(self, c: Candidates) -> Ints:
        return np.array([self._layouts.setdefault(x, len(self._layouts)) for x in c.layouts])[c.pipeline_layout]

    def _schedule_codes(self, c: Candidates) -> Ints:
        return np.array([self._schedules.setdefault(x, len(self._schedules)) for x in c.schedules])[c.schedule]

    def _stages(self, c: Candidates, i: int) -> StageLayers:
        layout = c.layouts[int(c.pipeline_layout[i])]
        count = int(c.pp[i] * c.vpp[i])
        stages = stage_layers(self.model, count, layout)
        if stages is None:
            raise ScheduleError(f"layout {layout} does not deal {self.model.num_layers} layers to {count} stages")
        return stages

    def _ranks(self, c: Candidates, i: int, num_stages: int) -> Ints:
        """Pipeline rank of every virtual stage of row i."""
        from primus_search.schedule import algorithm
        from primus_search.schedule.table import rank_of_stage

        pp, vpp = int(c.pp[i]), int(c.vpp[i])
        if pp == 1:
            return np.zeros(num_stages, dtype=np.int64)
        placement = algorithm(c.schedules[int(c.schedule[i])]).placement
        return rank_of_stage(placement, pp, vpp)[:num_stages].astype(np.int64)

    def _pipeline_rows(self, c: Candidates, *, exact: bool) -> Floats:
        """(width, rows) of the pipeline table, gathered; the bubble is simulated only where `exact`."""
        if self._pipeline_keys.size > MEMO_LIMIT:
            self._forget()
        is_fsdp = (c.sharding == Sharding.FSDP2) | (c.sharding == Sharding.HSDP)
        layer_codes = self._layer_codes(c, is_fsdp)
        is_block = (c.recompute_method == RecomputeMethod.BLOCK) & ((c.recompute & Recompute.FULL) > 0)
        block_layers = np.where(is_block, c.recompute_num_layers, 0)
        has_pipeline = c.pp > 1
        columns = [layer_codes, c.pp, c.vpp, self._layout_codes(c), block_layers]
        columns.append(self._schedule_codes(c) * has_pipeline)
        codes, first = self._encode(self._pipeline_keys, columns)
        if len(first):
            self._pipelines.append(
                self._keys(c.take(first), layer_codes[first], block_layers[first]), self._layers.data
            )
        if exact:
            self._pipelines.simulate(codes, self._layers.data)
        return self._pipelines.gather(codes)

    def _layer_codes(self, c: Candidates, is_fsdp: Ints) -> Ints:
        columns: list[ArrayLike] = [c.tp, c.cp, c.micro_batch_size, c.fp8, c.sequence_parallel, c.recompute]
        columns += [c.loss_fusion, np.where(is_fsdp, c.sharding, 0), np.where(is_fsdp, c.shard_group, 0)]
        columns += [np.where(is_fsdp, c.pp, 0), c.offload_layers]
        if self.model.is_moe:
            columns += [c.ep, c.etp, c.grouped_gemm, c.deepep, c.sync_free_stage]
        codes, first = self._encode(self._layer_keys, columns)
        if len(first):
            p = pieces(self.model, self.cluster, self.workload, c.take(first), self.measured)
            n = len(first)
            flat = [p.pass_s.reshape(-1, n), p.part_s.reshape(-1, n), p.recompute_s.reshape(-1, n)]
            self._layers.append(np.concatenate(flat).T)
        return codes

    def _keys(self, c: Candidates, layer_codes: Ints, block_layers: Ints) -> Keys:
        """New pipeline keys of the rows of `c`."""
        microbatches = self._degrees(c).microbatches
        has_pipeline = c.pp > 1
        columns = [c.pp, c.vpp, self._schedule_codes(c) * has_pipeline, self._layout_codes(c), block_layers]
        shape, first = self._shape_keys.encode(columns)
        for i in first.tolist():
            self._pipelines.add_shape(self._shape(c, i, int(block_layers[i])))
        hops = hop_facts(self.model, self.cluster, self.workload, c)
        return Keys(shape=shape, layer=layer_codes, microbatches=microbatches, hops=hops)

    def _shape(self, c: Candidates, i: int, block_layers: int) -> Shape:
        """The pipeline shape of row i."""
        pp, vpp, schedule = int(c.pp[i]), int(c.vpp[i]), c.schedules[int(c.schedule[i])]
        counts, recomputed = piece_counts(self._stages(c, i), block_layers)
        is_far = far_hops(self.cluster, schedule, pp, vpp)
        return Shape(schedule=schedule, pp=pp, vpp=vpp, counts=counts, recomputed=recomputed, is_far=is_far)


def _groups(keys: Ints) -> Iterator[Ints]:
    """Positions of the columns of `keys` that are alike, group by group."""
    if keys.shape[1] == 0:
        return
    _, group = np.unique(keys, axis=1, return_inverse=True)
    group = group.reshape(-1)
    order = np.argsort(group, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(group[order])) + 1)


def project(model: Model, cluster: Cluster, workload: Workload, c: Candidates) -> Projection:
    """Memory and step of every candidate; for many tables keep a `Projector`."""
    return Projector(model, cluster, workload).project(c)
