"""The fastest order of the V placement within a memory limit, in milliseconds however long the pipeline runs.

An order begins as a path that repeats (`v_patterns`), walked by every rank, its gaps filled (`fill_gaps`);
where memory sets the pace also as paths laid one by one (`greedy_insertion`). The best ones go through improved: their
weight gradients are placed anew, more or less patiently, and the gaps are filled again, until nothing gets faster. What
an even grid of passes gives and what the costs give compete, so that no order is worse than the published ones, which
are built on the grid.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from primus_search.schedule.bounds import pace_of_memory
from primus_search.schedule.costs import Floats
from primus_search.schedule.optimise.fill_gaps import delay_limits, gaps_filled, split_backward
from primus_search.schedule.optimise.greedy_insertion import insert_greedily
from primus_search.schedule.optimise.portfolio import (
    CandidateOrder,
    Rules,
    by_score,
    dispatched,
    fastest,
    weights_placed,
)
from primus_search.schedule.optimise.v_patterns import STARTS, PatternStart, on_grid, path_order
from primus_search.schedule.registry import Request
from primus_search.schedule.simulation.pass_kernels import BW, B, W
from primus_search.schedule.table import Table

Columns = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Kind, stage and micro-batch, rank after rank, B and W apart."""

Turns = tuple[int, ...]
"""Which of `fill_gaps.delay_limits` place the weight gradients anew, one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertedStart:
    """Where an order begins as paths laid one by one.

    gap    least time between micro-batches, in units of the busiest rank's work per micro-batch
    spare  activations of the limit that stay unused, in units of one micro-batch: improved may fit better in less
    """

    gap: float
    spare: float = 0.0


Start = PatternStart | InsertedStart

INSERTED = (InsertedStart(gap=0.5), InsertedStart(gap=0.9), InsertedStart(gap=0.5, spare=0.5))
"""What is tried where memory sets the pace."""

PACED = 0.9
"""Pace of memory from which on laying micro-batches one by one has been faster than any repeating path."""

FILL_WEIGHT = 3
"""How much longer it takes to place an order anew and to fill its gaps than to split its backward passes."""

SHORT = 3
"""Micro-batches of the short run, in units of the pipeline's ranks."""

STEP = 12
"""Periods of 1, 2, 3, 4, 6 or 12 micro-batches can fill what is left."""

STARTED = 9
"""Starts that every pipeline tries; small ones try all of them."""

START_ROWS = 120_000
"""Passes that all starts together may place where that is more; about 5 ms."""

FURTHER = 6
"""Orders that go through rounds, as far as the portfolio's passes last."""

ROWS = 190_000
ROWS_PER_PASS = 26
"""Passes that all candidates may place, in all and for every pass of the pipeline."""

POLISH_WORK = 8_000_000
"""Row evaluations of the local search at the end, about 60 ms; only small pipelines have one."""

ROUNDS: tuple[Turns, ...] = ((0,), (3,), (6, 3))
"""What is tried on the best orders; W at once (6) makes room for what follows."""

MOST_MEMORY = 2
"""Activations beyond this many times those of 1F1B gain nothing but an order that does not repeat."""


def fastest_v(request: Request, limit: float, patterns: Callable[[Request], Iterable[Table]] = lambda _: ()) -> Table:
    """The order of least makespan, then span, whose activations stay within `limit` on every rank.

    `patterns`: fused orders that compete too. Raises `ScheduleError` when not even one micro-batch fits.
    """
    limit = min(limit, float(MOST_MEMORY * request.stages))
    laid = INSERTED if pace_of_memory(request, limit) >= PACED else ()
    rules = Rules(portfolio=partial(_portfolio, patterns, laid), short=SHORT, step=STEP, rows=ROWS,
                  rows_per_pass=ROWS_PER_PASS + 2 * FILL_WEIGHT * len(laid), polish=POLISH_WORK)  # fmt: skip
    return fastest(request, limit, rules)


def _portfolio(
    patterns: Callable[[Request], Iterable[Table]], laid: tuple[InsertedStart, ...], request: Request, limit: float
) -> Iterator[CandidateOrder]:
    yield from weights_placed(request, limit, patterns(request))
    search = _VSearch.of(request, limit)
    for lay in laid:
        for order in search.first_order(lay):
            yield order[0]
            yield from (each[0] for each in search.improved(order[1], ROUNDS[0]))
    found: list[tuple[CandidateOrder, Columns]] = []
    for start in STARTS[: max(STARTED, START_ROWS // (12 * request.stages * request.microbatches))]:
        for order in search.first_order(start):
            found.append(order)
            yield order[0]
    if not found:
        yield from dispatched(request, limit)
    ranking = by_score(request)
    distinct = {ranking(each): columns for each, columns in reversed(found)}
    for score in sorted(distinct)[:FURTHER]:
        for turns in ROUNDS:
            yield from (order[0] for order in search.improved(distinct[score], turns))


@dataclass(frozen=True, slots=True, kw_only=True)
class _VSearch:
    """What all orders of a portfolio have in common."""

    request: Request
    limit: float
    duration: Floats
    delay_limits: tuple[Floats, ...]

    @classmethod
    def of(cls, request: Request, limit: float) -> "_VSearch":
        """Set up for a request."""
        duration = np.ascontiguousarray(request.costs.duration[:3])
        return cls(request=request, limit=limit, duration=duration, delay_limits=delay_limits(request.stages))

    def first_order(self, start: Start) -> Iterator[tuple[CandidateOrder, Columns]]:
        """The order of a start with its gaps filled; none where it does not fit."""
        columns = self._walked(start) if isinstance(start, PatternStart) else self._laid(start)
        order = None if columns is None else self.filled(columns)
        if order is not None:
            yield order

    def _laid(self, start: InsertedStart) -> Columns | None:
        p, work = self.request.stages, self.duration.sum(axis=0)
        busiest = float((work + work[::-1]).max())
        makespan, *columns = insert_greedily(p, self.request.microbatches, self.duration, self.request.costs.comm,
                                       self.request.costs.activation, self.limit - start.spare, busiest,
                                       start.gap * busiest)  # fmt: skip
        return (columns[0], columns[1], columns[2]) if makespan < np.inf else None

    def _walked(self, start: PatternStart) -> Columns | None:
        request = on_grid(self.request) if start.walks_grid else self.request
        order = split_backward(request, path_order(request, start), self.limit, self.delay_limits[start.delay_limit])
        if order is None or not start.walks_grid:
            return None if order is None else (order.kind, order.stage, order.micro_batch)
        costs = request.costs
        makespan, _, *columns = gaps_filled(
            request.stages, request.microbatches, order.kind, order.stage, order.micro_batch, costs.duration[:3],
            costs.comm, costs.activation, self.limit,
        )  # fmt: skip
        return (columns[0], columns[1], columns[2]) if makespan < np.inf else None

    def filled(self, columns: Columns) -> tuple[CandidateOrder, Columns] | None:
        """An order with its gaps filled; None where it does not fit."""
        makespan, span, *better = gaps_filled(
            self.request.stages, self.request.microbatches, *columns, self.duration, self.request.costs.comm,
            self.request.costs.activation, self.limit,
        )  # fmt: skip
        if not np.isfinite(makespan):
            return None
        table = partial(self.request.table, *better)
        return CandidateOrder(makespan=makespan, span=span, cost=FILL_WEIGHT, table=table), tuple(better)

    def improved(self, columns: Columns, turns: Turns) -> Iterator[tuple[CandidateOrder, Columns]]:
        """The orders after each turn: weight gradients placed anew, gaps filled."""
        for turn in turns:
            kind, stage, micro = (column[columns[0] != W] for column in columns)
            pattern = self.request.table(np.where(kind == B, np.int8(BW), kind), stage, micro)
            anew = split_backward(self.request, pattern, self.limit, self.delay_limits[turn])
            order = None if anew is None else self.filled((anew.kind, anew.stage, anew.micro_batch))
            if order is None:
                return
            yield order
            columns = order[1]
