"""What the funnel asks of the candidates of one cluster: their memory, a bound on their step, their step.

Answers come for bundles (candidates of one outer cell that memory cannot tell apart) or for single candidates. Terms
are found by lookup of (outer cell, inner combination), so that a bundle costs a few gathers and one compiled loop.
"""

from collections.abc import Callable

import numpy as np

from primus_search.candidates import Bools, Floats, Ints
from primus_search.cost.bound import Ends, step_bound
from primus_search.cost.factor import Vocabulary
from primus_search.cost.memory import table as memory
from primus_search.cost.pipeline import BOUND, WINDOW_B, WINDOW_F, Keys, estimate, simulate
from primus_search.cost.project import Projector
from primus_search.cost.terms import HOP_READS, LAYER_READS, REPLICA_READS, SHAPE_READS
from primus_search.space.bundles import Bundles
from primus_search.space.enumerate import INNER, Enumerator, Lines
from primus_search.space.pairs import PairCodes

MEMORY_IGNORES = frozenset({"overlap_grad_reduce", "grouped_gemm", "sync_free_stage"})
"""Inner axes that the memory of a device does not depend on; a test flips them and compares."""

MEMORY_READS = frozenset(INNER) - MEMORY_IGNORES

Add = Callable[[Ints, Ints, Ints], Ints]
"""Codes and inner combinations of the members of some sets, one set after the other, and where each begins."""


class Sieve:
    """Memory, bounds and steps of one cluster's candidates, with everything computed so far."""

    def __init__(self, enumerator: Enumerator, projector: Projector) -> None:
        self.enumerator, self.projector = enumerator, projector
        self.bundles = Bundles(enumerator, MEMORY_READS)
        terms, table = projector.terms, projector.table
        self._pipeline = PairCodes(enumerator, memory.PIPELINE_READS, table.pipeline_codes)
        self._state = PairCodes(enumerator, memory.STATE_READS, table.state_codes)
        self._batch = PairCodes(enumerator, memory.BATCH_READS, table.batch_codes)
        self._layer = PairCodes(enumerator, LAYER_READS, terms.layer_codes)
        self._shape = PairCodes(enumerator, SHAPE_READS, terms.shape_codes)
        self._hop = PairCodes(enumerator, HOP_READS, terms.hop_codes)
        self._replica = PairCodes(enumerator, REPLICA_READS, terms.replica_codes)
        self._overlaps = enumerator.blocks[1].values["overlap_grad_reduce"].astype(np.bool_)
        self._generations = (terms.generation, table.generation)
        self._ends = Ends(terms)
        self._layer_ends = _Sets(self.bundles, self._layer)
        self._replica_ends = _Sets(self.bundles, self._replica)

    def refresh(self) -> None:
        """Start afresh where tables have grown too large, or someone else made them start afresh."""
        terms, table = self.projector.terms, self.projector.table
        if terms.is_full:
            terms.forget()
        if table.is_full:
            table.forget()
        generations = (terms.generation, table.generation)
        if generations == self._generations:
            return
        self._generations = generations
        for codes in (self._pipeline, self._state, self._batch, self._layer, self._shape, self._hop, self._replica):
            codes.forget()
        self._ends = Ends(terms)
        self._layer_ends, self._replica_ends = _Sets(self.bundles, self._layer), _Sets(self.bundles, self._replica)

    # --- memory ----------------------------------------------------------------------------------------------------

    def memory_bytes(self, cells: Ints, inner: Ints) -> Floats:
        """Bytes on the worst pipeline rank."""
        codes = (self._pipeline.at(cells, inner), self._state.at(cells, inner), self._batch.at(cells, inner))
        return self.projector.table.total_of(*codes)[0]

    def missing_bytes(self, memory_bytes: Floats) -> Floats:
        """Bytes that are lacking; negative where there is headroom."""
        hbm = self.projector.cluster.accelerator.hbm_bytes
        return memory_bytes - hbm * (1.0 - self.projector.memory_margin)

    # --- time ------------------------------------------------------------------------------------------------------

    def bound_s(self, cells: Ints, bundle: Ints) -> Floats:
        """Seconds that no candidate of a bundle can beat."""
        inner = self.bundles.example[bundle]
        return step_bound(
            self.projector,
            self._ends,
            shape=self._shape.at(cells, inner),
            layers=self._layer_ends.at(cells, bundle, self._add_layers),
            replicas=self._replica_ends.at(cells, bundle, self._add_replicas),
            microbatches=self.enumerator.microbatches[cells],
            hops=self._hops(cells, inner),
        )

    def pipelines(self, lines: Lines) -> "Pipelines":
        """The pipelines of single candidates, estimated; candidates that share one are costed once."""
        cells, inner = lines.cells, lines.inner
        layer, shape = self._layer.at(cells, inner), self._shape.at(cells, inner)
        number, first = Vocabulary().encode([cells, layer, shape])
        keys = Keys(
            shape=shape[first],
            layer=layer[first],
            microbatches=self.enumerator.microbatches[cells[first]],
            hops=self._hops(cells[first], inner[first]),
        )
        terms, replica = self.projector.terms, self._replica.at(cells, inner)
        return Pipelines(
            self.projector,
            keys=keys,
            rows=estimate(terms.shapes, keys, terms.layers.data),
            number=number,
            replicas=terms.replicas.data[replica],
            overlaps=self._overlaps[inner],
        )

    def _hops(self, cells: Ints, inner: Ints) -> Floats:
        codes = self._hop.at(cells, inner)
        hops: Floats = self.projector.terms.hops.data[codes]
        return hops

    def _add_layers(self, codes: Ints, inner: Ints, first: Ints) -> Ints:
        return self._ends.add_layers(codes, first)

    def _add_replicas(self, codes: Ints, inner: Ints, first: Ints) -> Ints:
        return self._ends.add_replicas(codes, self._overlaps[inner], first)


class Pipelines:
    """Candidates with the estimated rows of their pipelines."""

    def __init__(
        self, projector: Projector, *, keys: Keys, rows: Floats, number: Ints, replicas: Floats, overlaps: Bools
    ) -> None:
        self._projector, self._keys, self._rows, self._number = projector, keys, rows, number
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
        simulate(terms.shapes, self._keys.take(numbers), terms.layers.data, rows)
        return rows

    def step_s(self, chosen: Bools, simulated: Floats) -> Floats:
        """Seconds of the step of some candidates, from what `simulated` says of their pipelines."""
        rows = simulated[np.searchsorted(self._numbers(chosen), self._number[chosen])].T
        after = self._projector.after_of(self._replicas[chosen], self._overlaps[chosen], rows[WINDOW_F], rows[WINDOW_B])
        return self._projector.step_of(rows, *after).total

    def _numbers(self, chosen: Bools) -> Ints:
        numbers: Ints = np.flatnonzero(np.bincount(self._number[chosen], minlength=len(self._rows)))
        return numbers


class _Sets:
    """Numbers for the sets of terms that the members of a bundle take in an outer cell.

    Bundles whose members agree on the columns of the term are one set, whatever their class.
    """

    def __init__(self, bundles: Bundles, codes: PairCodes) -> None:
        self._bundles, self._codes = bundles, codes
        kinds = codes.inner_numbers[bundles.members]
        known: dict[bytes, int] = {}
        numbers: list[int] = []
        self._members: list[Ints] = []
        for start, stop in zip(bundles.first[:-1].tolist(), bundles.first[1:].tolist(), strict=True):
            distinct, first = np.unique(kinds[start:stop], return_index=True)
            number = known.setdefault(distinct.tobytes(), len(known))
            numbers.append(number)
            if number == len(self._members):
                self._members.append(bundles.members[start:stop][first])
        self._set_of_bundle = np.array(numbers, dtype=np.int64)
        self._table = np.full(codes.num_outer * max(len(known), 1), -1, dtype=np.int32)

    def at(self, cells: Ints, bundle: Ints, add: Add) -> Ints:
        """The number of every set; new sets are handed to `add` with the codes of their members."""
        sets = self._set_of_bundle[bundle]
        pair = self._codes.outer_numbers[cells] * len(self._members) + sets
        numbers = self._table[pair]
        unknown = np.flatnonzero(numbers < 0)
        if len(unknown):
            distinct, first = np.unique(pair[unknown], return_index=True)
            example = unknown[first]
            members = [self._members[one] for one in sets[example].tolist()]
            sizes = np.array([len(one) for one in members])
            inner = np.concatenate(members)
            codes = self._codes.at(np.repeat(cells[example], sizes), inner)
            self._table[distinct] = add(codes, inner, np.cumsum(sizes) - sizes)
            numbers[unknown] = self._table[pair[unknown]]
        known: Ints = numbers.astype(np.int64)
        return known
