"""What the funnel needs of the candidates of one cluster: their memory, a bound on their step, their step.

Answers come for bundles (candidates of one outer cell that memory cannot tell apart) or for single candidates. Terms
are found by lookup of (outer cell, inner combination), so that a bundle costs a few gathers and one compiled loop.
"""

from collections.abc import Mapping

import numpy as np

from primus_search.cost.memory.chunk_memory import MemoryKeys
from primus_search.cost.memory.whole_matrices import deals_matrices
from primus_search.cost.pipeline import BOUND, WINDOW_B, WINDOW_F, PipelineKeys, enclose, simulate
from primus_search.cost.project import SELDOM_READ, Projector
from primus_search.cost.replicas import REPLICA_TERMS
from primus_search.exploration.exhaustive.bundles import Bundles
from primus_search.exploration.exhaustive.candidate_groups import Groups
from primus_search.exploration.exhaustive.term_rows import PairCodes, SetRows
from primus_search.space.context import Column
from primus_search.space.enumerate import INNER, Enumerator, GridRows
from primus_search.space.memo import Rows, distinct
from primus_search.values.candidates import Bools, Floats, Ints, Recompute, Sharding
from primus_search.values.job import Job
from primus_search.values.knobs import KNOB, Enters, reading

MEMORY_READS = reading(Enters.MEMORY) & set(INNER)
"""Inner axes that the memory of a device depends on."""
BATCH_SELDOM_READ = {"pp": 2, "vpp": 0}
"""Of what a micro-batch's memory reads, axes that count where a stage's streams come back together; elsewhere, from
which value on."""


class GridCosts:
    """Memory, bounds and steps of one cluster's candidates, with everything computed so far."""

    def __init__(self, enumerator: Enumerator, projector: Projector) -> None:
        self.enumerator, self.projector = enumerator, projector
        terms, table, switches = projector.terms, projector.table, enumerator.blocks[1].values
        sides = memory_sides(projector.job, switches)
        self.bundles, self.groups = Bundles(enumerator, MEMORY_READS, sides), Groups(enumerator)
        restores = (switches["recompute"] & Recompute.HYPER_CONNECTIONS) > 0
        is_same_at_any_pp = not projector.job.stack.sharding.gathers_once
        of_batch = sides | ({"sharding": switches["sharding"] >= Sharding.FSDP2} if is_same_at_any_pp else {})
        self._memory = [
            PairCodes(enumerator, table.moments, sides=sides),
            PairCodes(enumerator, table.states, sides=sides),
            PairCodes(enumerator, table.batches, BATCH_SELDOM_READ, restores, of_batch),
        ]
        gathers = switches["sharding"] >= Sharding.FSDP2
        of_layer = {name: switches[name] * gathers for name in SELDOM_READ & set(INNER)}
        of_layer |= {"offload_layers": switches["offload_layers"] > 0}
        is_seldom = gathers | (switches["exchange_overlap"] > 0)
        self._layer = PairCodes(enumerator, terms.layers, dict.fromkeys(SELDOM_READ, 0), is_seldom, of_layer)
        self._shape, self._hop, self._replica = (
            PairCodes(enumerator, memo) for memo in (terms.shapes, terms.hops, terms.replicas)
        )
        self._overlaps = switches["overlap_grad_reduce"].astype(np.bool_)
        self._layer_codes = Rows(dtype=np.int32)
        self.layer_sets = SetRows(self.bundles, self._layer, self._kept_codes)
        self._replica_sets = SetRows(self.bundles, self._replica, self._least_replicas)

    # --- memory ----------------------------------------------------------------------------------------------------

    def memory_bytes(self, cells: Ints, inner: Ints) -> Floats:
        """Bytes on the worst pipeline rank."""
        return self.projector.table.total_of(MemoryKeys(*(codes.at(cells, inner) for codes in self._memory)))[0]

    def missing_bytes(self, memory_bytes: Floats) -> Floats:
        """Bytes that are lacking; negative where there is headroom."""
        return memory_bytes - self.projector.job.room_bytes(self.projector.memory_margin)

    # --- time ------------------------------------------------------------------------------------------------------

    def bound_s(self, cells: Ints, bundle: Ints, layers: Ints) -> Floats:
        """Seconds that no candidate of a bundle can beat; `layers` are the rows of the bundles in `layer_sets`.

        Bundles differ in what their layers cost and hide: the least seconds of each piece give a makespan that no
        member beats, the most give the largest window that gradient traffic could hide behind, and the least traffic
        of any member is what it must at least pay.

            step >= (bound(least layers) + exposed(least traffic, most windows) + least optimizer) * stragglers
        """
        projector, terms = self.projector, self.projector.terms
        keys = self._keys(cells, self.bundles.example[bundle], layers)
        sets = self._layer_codes.data, self.layer_sets.tables[0].data
        pipeline_s, forward_s, backward_s = enclose(
            terms.shape_list.arrays, keys, sets, terms.layer_table.arrays, terms.hops.data
        )
        replica_sets = self._replica_sets.at(cells, bundle)
        replicas = self._replica_sets.tables[0].data[replica_sets]
        overlaps = replicas[:, REPLICA_TERMS] > 0.0
        after = projector.after_of(replicas, overlaps, forward_s, backward_s, is_least=True)
        return projector.total_of(pipeline_s, *after)

    def pipelines(self, lines: GridRows) -> "Pipelines":
        """The pipelines of single candidates, estimated; candidates that share one are costed once."""
        cells, inner = lines.cells, lines.inner
        keys = self._keys(cells, inner, self._layer.at(cells, inner))
        number, first = distinct([cells, keys.layer, keys.shape])
        return Pipelines(
            self.projector,
            keys=keys.take(first),
            number=number,
            replicas=self._replica.rows(cells, inner),
            overlaps=self._overlaps[inner],
        )

    def _keys(self, cells: Ints, inner: Ints, layer: Ints) -> PipelineKeys:
        shape, hop = self._shape.at(cells, inner), self._hop.at(cells, inner)
        return PipelineKeys(shape, layer, hop, self.enumerator.microbatches[cells])

    def _kept_codes(self, codes: Ints, inner: Ints, first: Ints) -> tuple[Ints]:
        """Where the layer codes of each set begin and end in `_layer_codes`."""
        if not self.layer_sets.tables:
            self._layer_codes.clear()
        begin = self._layer_codes.size + first
        self._layer_codes.append(codes)
        return (np.column_stack([begin, np.append(begin[1:], self._layer_codes.size)]),)

    def _least_replicas(self, codes: Ints, inner: Ints, first: Ints) -> tuple[Floats]:
        """The least replica terms of each set, and whether any member overlaps its traffic with compute."""
        members = self.projector.terms.replicas.data[codes]
        helps = np.maximum.reduceat(self._overlaps[inner].astype(np.float64), first)
        return (np.column_stack([np.minimum.reduceat(members, first, axis=0), helps]),)


def memory_sides(job: Job, inner: Mapping[str, Column]) -> dict[str, Bools]:
    """Inner axes that memory tells apart on one edge alone, and on which side of it each combination is."""
    edges = {name: KNOB[name].memory_from for name in MEMORY_READS if KNOB[name].memory_from}
    deals = deals_matrices(job.stack, inner["sharding"], inner["optimizer"])
    sides: dict[str, Bools] = {name: inner[name] >= least for name, least in edges.items()}
    return sides | {"overlap_grad_reduce": deals & inner["overlap_grad_reduce"].astype(np.bool_)}


class Pipelines:
    """Candidates with the estimated rows of their pipelines."""

    def __init__(
        self, projector: Projector, *, keys: PipelineKeys, number: Ints, replicas: Floats, overlaps: Bools
    ) -> None:
        self._projector, self._keys, self._number = projector, keys, number
        self._rows = projector.terms.estimate(keys)
        self._replicas, self._overlaps = replicas, overlaps

    def bound_s(self) -> Floats:
        """Seconds that each candidate cannot beat."""
        rows = self._rows[self._number]
        after = self._projector.after_of(self._replicas, self._overlaps, rows[:, WINDOW_F], rows[:, WINDOW_B])
        return self._projector.total_of(rows[:, BOUND], *after)

    def simulated(self, chosen: Bools) -> Floats:
        """(pipelines, WIDTH) rows of the pipelines that some candidates share, their bubbles known."""
        numbers = self._numbers(chosen)
        rows, terms = self._rows[numbers], self._projector.terms
        simulate(terms.shape_list, self._keys.take(numbers), terms.layer_table.arrays, terms.hops.data, rows)
        return rows

    def step_s(self, chosen: Bools, simulated: Floats) -> Floats:
        """Seconds of the step of some candidates, from what `simulated` says of their pipelines."""
        rows = simulated[np.searchsorted(self._numbers(chosen), self._number[chosen])].T
        after = self._projector.after_of(self._replicas[chosen], self._overlaps[chosen], rows[WINDOW_F], rows[WINDOW_B])
        return self._projector.step_of(rows, *after).total

    def _numbers(self, chosen: Bools) -> Ints:
        return np.flatnonzero(np.bincount(self._number[chosen], minlength=len(self._rows)))
