"""What every registered schedule owes, checked on any pipeline; a new one inherits this by being registered."""

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from primus_search.base.errors import ScheduleError
from primus_search.schedule import (
    Costs,
    PassKind,
    algorithm,
    build,
    lower_bound,
    names,
    simulate,
)
from tests.support.batch_times import CostColumns, simulate_many

HEURISTICS = names()
"""Exact solvers are left out: they take seconds on purpose and have their own tests."""

QUICK = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
PERIODIC = ("1f1b", "gpipe", "interleaved", "zb-h1", "zb-h2", "zbv", "dualpipe", "dualpipev")

shapes = st.tuples(st.integers(1, 8), st.integers(1, 24), st.sampled_from([1, 2, 3, 8]))
times = st.floats(0.1, 3.0)
costs = st.builds(
    lambda f, b, w, c, x: Costs(forward=f, backward=b, weight=w, comm=c, last_head_extra=x),
    times, times, times, st.floats(0.0, 0.5), st.sampled_from([0.0, 0.3]),
)  # fmt: skip


def chunks(name: str, vpp: int) -> int:
    return vpp if algorithm(name).virtual_stages is None else 1


def uneven(name: str, p: int, vpp: int, seed: int) -> Costs:
    """Every virtual stage with its own times and activations, every hop its own; a few passes take no time."""
    n = p * (algorithm(name).virtual_stages or (vpp,))[0]
    rng = np.random.default_rng(seed)
    forward, backward, weight = rng.uniform(0.2, 3.0, (3, n)) * (rng.random((3, n)) > 0.05)
    hops = rng.choice([0.0, 0.05, 0.4, 2.0], n - 1) if n > 1 else 0.0
    return Costs(
        forward=forward, backward=backward, weight=weight, comm=hops, activation=rng.uniform(0.2, 2.0, n) / vpp
    )


@pytest.mark.daily(6)
@pytest.mark.parametrize("name", HEURISTICS)
@QUICK
@given(shape=shapes, given_costs=costs, share=st.sampled_from([None, 0.4, 1.0]))
def test_every_order_is_complete_in_sequence_and_within_its_memory(
    name: str, shape: tuple[int, int, int], given_costs: Costs, share: float | None
) -> None:
    built = keeps_the_contract(name, shape, given_costs, None if share is None else max(1.0, share * shape[0]))
    if built is not None:
        table, run, arguments = built
        recount = peaks(table)
        assert run.peak_activations == pytest.approx(recount)
        assert run.makespan >= lower_bound(name, memory_limit=float(recount.max()), **arguments) * (1 - 1e-9)


def keeps_the_contract(name: str, shape: tuple[int, int, int], given_costs: Costs, limit: float | None):  # type: ignore[no-untyped-def]
    """Table, times and arguments of an order that is complete, in sequence, within the limit and not below the bound;
    None where it is refused by name."""
    p, m, vpp = shape
    arguments = {"stages": p, "microbatches": m, "virtual_stages": chunks(name, vpp), "costs": given_costs}
    try:
        table = build(name, memory_limit=limit, **arguments)
    except ScheduleError as refused:
        assert name in str(refused)
        return None
    run = simulate(table, given_costs)
    each_pass_once(table)
    inputs_come_first(table, run, given_costs)
    assert limit is None or run.peak_activations.max() <= limit + 1e-9
    assert run.makespan >= lower_bound(name, memory_limit=limit, **arguments) * (1 - 1e-9)
    return table, run, arguments


def each_pass_once(table) -> None:  # type: ignore[no-untyped-def]
    seen = np.zeros((3, len(table.rank_of_stage), table.microbatches_per_copy), dtype=int)
    for kind, stage, micro in zip(table.kind, table.stage, table.micro_batch, strict=True):
        for done in {PassKind.BW: (1, 2)}.get(kind, (kind,)):
            seen[done, stage, micro] += 1
    assert (seen == 1).all()


def inputs_come_first(table, run, given_costs: Costs) -> None:  # type: ignore[no-untyped-def]
    """Recomputed from the definitions, with none of the simulator's arrays of dependencies."""
    n, copies = table.model_stages, table.copies
    hop = given_costs.per_stage(table.placement, table.stages, table.virtual_stages).comm
    start, end = {}, {}
    for i, (kind, stage, micro) in enumerate(zip(table.kind, table.stage, table.micro_batch, strict=True)):
        for done in {PassKind.BW: (1, 2)}.get(kind, (kind,)):
            start[done, stage, micro], end[done, stage, micro] = run.start[i], run.end[i]
    for rank in range(table.stages):
        rows = slice(table.offsets[rank], table.offsets[rank + 1])
        assert (run.start[rows][1:] >= run.end[rows][:-1] - 1e-9).all()
    for copy in range(copies):
        for s in range(copy * n, (copy + 1) * n):
            for j in range(table.microbatches_per_copy):
                if s > copy * n:
                    assert start[0, s, j] >= end[0, s - 1, j] + hop[s - 1] - 1e-9
                if s < (copy + 1) * n - 1:
                    assert start[1, s, j] >= end[1, s + 1, j] + hop[s] - 1e-9
                assert start[1, s, j] >= end[0, s, j] - 1e-9
                assert start[2, s, j] >= end[1, s, j] - 1e-9 or start[2, s, j] == start[1, s, j]


def peaks(table) -> np.ndarray:  # type: ignore[no-untyped-def]
    change = np.select([table.kind == PassKind.F, table.kind == PassKind.B], [1.0, 0.0], -1.0) / table.virtual_stages
    bounds = zip(table.offsets[:-1], table.offsets[1:], strict=True)
    return np.array([np.cumsum(change[low:high]).max() for low, high in bounds])


@pytest.mark.daily(6)
@pytest.mark.parametrize("name", HEURISTICS)
@settings(QUICK, max_examples=20)
@given(shape=shapes, seed=st.integers(0, 2**32 - 1), limit=st.sampled_from([None, 1.0, 4.0]))
@example(shape=(8, 1, 1), seed=57, limit=None)  # both gradients of a stage take no time
def test_unequal_stages_and_hops_get_complete_orders_too(
    name: str, shape: tuple[int, int, int], seed: int, limit: float | None
) -> None:
    p, _, vpp = shape
    keeps_the_contract(name, shape, uneven(name, p, vpp, seed), limit)


@pytest.mark.daily(12)
@pytest.mark.parametrize("name", HEURISTICS)
@pytest.mark.parametrize(("p", "m", "vpp"), [(32, 200, 8), (31, 7, 5), (1, 200, 1), (17, 33, 2)])
def test_the_largest_and_oddest_pipelines_build_or_say_why(name: str, p: int, m: int, vpp: int) -> None:
    try:
        table = build(name, stages=p, microbatches=m, virtual_stages=chunks(name, vpp))
    except ScheduleError as refused:
        assert name in str(refused)
    else:
        assert simulate(table, Costs()).makespan >= 3.0 * m


@pytest.mark.parametrize("name", PERIODIC)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(data=st.data())
def test_many_rows_at_once_are_the_rows_one_by_one(name: str, data: st.DataObject) -> None:
    p = data.draw(st.sampled_from([2, 4, 6]))
    m = 2 * data.draw(st.integers(1, 60))
    try:
        table = build(name, stages=p, microbatches=m, virtual_stages=chunks(name, 2))
    except ScheduleError:
        return
    n = table.model_stages
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    even = data.draw(st.booleans())
    rows = 5
    column = (
        (lambda: np.repeat(rng.uniform(0.5, 1.5, (rows, 1)), n, axis=1))
        if even
        else (lambda: rng.uniform(0.5, 1.5, (rows, n)))
    )
    columns = CostColumns(forward=column(), backward=column(), weight=column(), comm=rng.uniform(0, 0.2, (rows, n - 1)))
    makespan, span = simulate_many(table, columns)
    walked, _ = simulate_many(table, columns, skip_periods=False)
    for i in range(rows):
        one = simulate(
            table,
            Costs(
                forward=columns.forward[i], backward=columns.backward[i], weight=columns.weight[i], comm=columns.comm[i]
            ),
        )
        assert makespan[i] == pytest.approx(one.makespan, rel=1e-11)
        assert span[i] == pytest.approx(one.span, rel=1e-11)
        assert walked[i] == pytest.approx(one.makespan, rel=1e-12)


@pytest.mark.daily(6)
@pytest.mark.parametrize("name", HEURISTICS)
def test_a_shape_is_servable_exactly_where_there_is_an_order(name: str) -> None:
    """Legality asks `serves`; where it says yes an order must build, and where it says no none does."""
    p, m = (column.ravel() for column in np.meshgrid([1, 2, 3, 4, 6], [1, 2, 5, 8, 9, 12, 13]))
    vpp = np.full(
        len(p), chunks(name, 2) if algorithm(name).virtual_stages is None else algorithm(name).virtual_stages[0]
    )
    for stages, microbatches, says in zip(p, m, algorithm(name).serves(p, m), strict=True):
        try:
            build(name, stages=int(stages), microbatches=int(microbatches), virtual_stages=int(vpp[0]))
        except ScheduleError:
            assert not says, (stages, microbatches)
        else:
            assert says, (stages, microbatches)


def test_periods_are_really_skipped() -> None:
    from primus_search.schedule.simulation.batch import find

    for name in ("1f1b", "interleaved", "zb-h1", "dualpipev"):
        table = build(name, stages=4, microbatches=64, virtual_stages=chunks(name, 2))
        assert find(table).passes > 0.7 * len(table), name


def test_orders_do_not_depend_on_what_was_built_before() -> None:
    first = build("v-half", stages=4, microbatches=9, costs=Costs(forward=10, backward=14, weight=6, comm=1))
    build("v-half", stages=4, microbatches=10)
    again = build("v-half", stages=4, microbatches=9, costs=Costs(forward=10, backward=14, weight=6, comm=1))
    assert (first.kind == again.kind).all() and (first.micro_batch == again.micro_batch).all()
