"""The fastest order of the V placement within a memory limit, in milliseconds however long the pipeline runs.

An order begins as a path that repeats (`v_patterns`), walked by every rank (`unroll`), its gaps filled (`fill_gaps`);
where memory sets the pace also as paths laid one by one (`greedy_insertion`). The best ones go through rounds: their
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
from primus_search.schedule.optimise.fill_gaps import inserted, rewoven
from primus_search.schedule.optimise.greedy_insertion import timetable
from primus_search.schedule.optimise.list_scheduling import POLICIES
from primus_search.schedule.optimise.portfolio import Contestant, Rules, by_score, dispatched, fastest, woven
from primus_search.schedule.optimise.split_backward import patiences
from primus_search.schedule.optimise.v_patterns import STARTS, PatternStart, grid_costs, path_of
from primus_search.schedule.registry import Request
from primus_search.schedule.simulation.unroll import unroll
from primus_search.schedule.table import Table

Columns = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Kind, stage and micro-batch, rank after rank, B and W apart."""

Turns = tuple[int, ...]
"""Which of `split_backward.patiences` place the weight gradients anew, one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Laid:
    """Where an order begins as paths laid one by one.

    gap    least time between micro-batches, in units of the busiest rank's work per micro-batch
    spare  activations of the limit that stay unused, in units of one micro-batch: rounds may fit better in less
    """

    gap: float
    spare: float = 0.0


Beginning = PatternStart | Laid

LAID = (Laid(gap=0.5), Laid(gap=0.9), Laid(gap=0.5, spare=0.5))
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
"""Orders that go through rounds, as far as the contest's passes last."""

ROWS = 190_000
ROWS_PER_PASS = 26
"""Passes that all contestants may place, in all and for every pass of the pipeline."""

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
    laid = LAID if pace_of_memory(request, limit) >= PACED else ()
    rules = Rules(contest=partial(_contestants, patterns, laid), short=SHORT, step=STEP, rows=ROWS,
                  rows_per_pass=ROWS_PER_PASS + 2 * FILL_WEIGHT * len(laid), polish=POLISH_WORK)  # fmt: skip
    return fastest(request, limit, rules)


def _contestants(
    patterns: Callable[[Request], Iterable[Table]], laid: tuple[Laid, ...], request: Request, limit: float
) -> Iterator[Contestant]:
    yield from woven(request, limit, patterns(request))
    floor = _Floor.of(request, limit)
    for lay in laid:
        for order in floor.opened(lay):
            yield order[0]
            yield from (each[0] for each in floor.rounds(lay, order[1], ROUNDS[0]))
    found: list[tuple[Contestant, PatternStart, Columns]] = []
    for start in STARTS[: max(STARTED, START_ROWS // (12 * request.stages * request.microbatches))]:
        for order in floor.opened(start):
            found.append((order[0], start, order[1]))
            yield order[0]
    if not found:
        yield from dispatched(request, limit, POLICIES)
    ranking = by_score(request)
    distinct = {ranking(each): (start, columns) for each, start, columns in reversed(found)}
    for score in sorted(distinct)[:FURTHER]:
        for turns in ROUNDS:
            for order in floor.rounds(*distinct[score], turns):
                yield order[0]


def _played(start: Beginning, turns: Turns, limit: float, request: Request) -> Contestant | None:
    """The order of a start after some turns."""
    floor = _Floor.of(request, limit)
    orders = list(floor.opened(start))
    if orders and turns:
        orders = list(floor.rounds(start, orders[0][1], turns))[len(turns) - 1 :]
    return orders[0][0] if orders else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Floor:
    """What all orders of a contest have in common."""

    request: Request
    limit: float
    duration: Floats
    patiences: tuple[Floats, ...]

    @classmethod
    def of(cls, request: Request, limit: float) -> "_Floor":
        """Set up for a request."""
        duration = np.ascontiguousarray(request.costs.duration[:3])
        return cls(request=request, limit=limit, duration=duration, patiences=patiences(request.stages))

    def opened(self, start: Beginning) -> Iterator[tuple[Contestant, Columns]]:
        """The order of a start with its gaps filled; none where it does not fit."""
        columns = self._walked(start) if isinstance(start, PatternStart) else self._laid(start)
        order = None if columns is None else self.filled(columns, start, ())
        if order is not None:
            yield order

    def _laid(self, start: Laid) -> Columns | None:
        p, work = self.request.stages, self.duration.sum(axis=0)
        busiest = float((work + work[::-1]).max())
        makespan, *columns = timetable(p, self.request.microbatches, self.duration, self.request.costs.comm,
                                       self.request.costs.activation, self.limit - start.spare, busiest,
                                       start.gap * busiest)  # fmt: skip
        return (columns[0], columns[1], columns[2]) if makespan < np.inf else None

    def _walked(self, start: PatternStart) -> Columns | None:
        p, m, activation = self.request.stages, self.request.microbatches, self.request.costs.activation
        path, period = path_of(self.request, start)
        duration, comm = self.duration, self.request.costs.comm
        if start.walks_grid:
            duration, comm, _ = grid_costs(self.request)
        columns: Columns = (np.empty(6 * p * m, np.int8), np.empty(6 * p * m, np.int16), np.empty(6 * p * m, np.int32))
        makespan, _ = unroll(p, m, path, period, duration, comm, activation, self.limit,
                           self.patiences[start.patience], *columns, True)  # fmt: skip
        if makespan < np.inf and start.walks_grid:
            makespan, _, *moved = inserted(p, m, *columns, duration, comm, activation, self.limit)
            columns = (moved[0], moved[1], moved[2])
        return columns if makespan < np.inf else None

    def filled(self, columns: Columns, start: Beginning, turns: Turns) -> tuple[Contestant, Columns] | None:
        """An order that came from a start by some turns with its gaps filled; None where it does not fit."""
        makespan, span, *better = inserted(
            self.request.stages, self.request.microbatches, *columns, self.duration, self.request.costs.comm,
            self.request.costs.activation, self.limit,
        )  # fmt: skip
        if not np.isfinite(makespan):
            return None
        contestant = Contestant(
            makespan=makespan, span=span, cost=FILL_WEIGHT, table=partial(self.request.table, *better),
            again=partial(_played, start, turns, self.limit),
        )  # fmt: skip
        return contestant, tuple(better)

    def rounds(self, start: Beginning, columns: Columns, turns: Turns) -> Iterator[tuple[Contestant, Columns]]:
        """The orders after each turn: weight gradients placed anew, gaps filled."""
        for n, turn in enumerate(turns, start=1):
            makespan, *anew = rewoven(
                self.request.stages, self.request.microbatches, *columns, self.duration, self.request.costs.comm,
                self.request.costs.activation, self.limit, self.patiences[turn],
            )  # fmt: skip
            order = self.filled(tuple(anew), start, turns[:n]) if np.isfinite(makespan) else None
            if order is None:
                return
            yield order
            columns = order[1]
