"""Top lists and frontiers against brute force, in any order and any division into parts, with ties on purpose."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from primus_search.exploration.exhaustive.shortlist import (
    OPEN,
    PER_GROUP,
    PRECISIONS,
    SLOWEST,
    UNGROUPED,
    Collector,
    Cut,
    Shortlist,
    ShortlistRows,
    fastest,
    frontier,
    with_others,
)
from primus_search.exploration.findings import Findings, Miss
from primus_search.values.candidates import Floats, Ints

figures = st.integers(1, 6).map(float)  # few values, so that ties are common
tables = st.lists(st.tuples(figures, figures), max_size=40)


def rows_of(pairs: list[tuple[float, float]], numbers: list[int] | None = None) -> ShortlistRows:
    """Rows whose expected steps are 1 to 1.5 times the projected ones, by number."""
    indices = np.array(range(len(pairs)) if numbers is None else numbers, dtype=np.int64)
    rows = ShortlistRows(
        indices=indices,
        step_s=np.array([step for step, _ in pairs], dtype=np.float64),
        memory_bytes=np.array([memory for _, memory in pairs], dtype=np.float64),
        expected_s=np.zeros(len(indices)),
    )
    return replace(rows, expected_s=expect(rows))


def expect(rows: ShortlistRows) -> Floats:
    return rows.step_s * expected_over_projected(rows.indices)


def expected_over_projected(number: Ints) -> Floats:
    return np.array([1.0, 1.25, 1.5])[np.asarray(number) % 3]


def best_by_hand(pairs: list[tuple[float, float]], most: int) -> list[int]:
    return sorted(range(len(pairs)), key=lambda i: (pairs[i][0], i))[:most]


def frontier_by_hand(pairs: list[tuple[float, float]]) -> list[int]:
    """Rows no other row dominates in expected time; of equal rows the first; by rising memory."""
    kept = []
    pairs = [(step * expected_over_projected(i), memory) for i, (step, memory) in enumerate(pairs)]
    for i, (step, memory) in enumerate(pairs):
        beaten = any(
            (s <= step and m <= memory) and (s < step or m < memory or j < i)
            for j, (s, m) in enumerate(pairs)
            if j != i
        )
        if not beaten:
            kept.append(i)
    return sorted(kept, key=lambda i: pairs[i][1])


@given(tables, st.integers(1, 12))
def test_the_list_and_the_frontier_are_those_of_brute_force(pairs: list[tuple[float, float]], most: int) -> None:
    rows = rows_of(pairs)
    assert fastest(rows, most).indices.tolist() == best_by_hand(pairs, most)
    assert frontier(rows).indices.tolist() == frontier_by_hand(pairs)


@given(tables, st.integers(1, 12), st.randoms(use_true_random=False), st.integers(1, 6))
def test_merging_parts_in_any_order_gives_the_whole(
    pairs: list[tuple[float, float]], most: int, rng, num_parts: int
) -> None:
    owner = [rng.randrange(num_parts) for _ in pairs]
    parts = [[i for i, part in enumerate(owner) if part == p] for p in range(num_parts)]
    rng.shuffle(parts)
    merged = Shortlist.empty(most)
    for numbers in parts:
        merged = merged.plus(Shortlist.empty(most).with_rows(rows_of([pairs[i] for i in numbers], numbers)))
    assert merged.top.indices.tolist() == best_by_hand(pairs, most)
    assert merged.frontier.indices.tolist() == frontier_by_hand(pairs)


@given(st.integers(0, 2**32 - 1), st.integers(1, 4000), st.sampled_from((3, 300, 10**6)))
def test_long_lists_are_merged_as_they_are_sorted(seed: int, most: int, distinct: int) -> None:
    """Beyond `MOST_INSERTED` rows lists are merged as runs, ties between them included."""
    rng = np.random.default_rng(seed)
    numbers = rng.permutation(6000)
    step_s = rng.integers(1, distinct + 1, 6000) / 8
    table = ShortlistRows(indices=numbers, step_s=step_s, memory_bytes=numbers / 4, expected_s=step_s + numbers)
    cut = int(rng.integers(0, 6001))
    left, right = (fastest(table.take(part), most) for part in (slice(cut), slice(cut, None)))
    merged, sorted_ = with_others(left, right, most), fastest(table, most)
    assert merged.indices.tolist() == sorted_.indices.tolist()
    assert merged.memory_bytes.tolist() == sorted_.memory_bytes.tolist()
    assert merged.expected_s.tolist() == sorted_.expected_s.tolist()


@given(tables, st.integers(1, 8), st.integers(0, 40), st.randoms(use_true_random=False))
def test_a_cut_of_rows_found_elsewhere_never_loses_a_row_that_matters(
    pairs: list[tuple[float, float]], most: int, split: int, rng
) -> None:
    """Two workers, the second pruned by what the first found: bounds may be loose, never above the step."""
    order = list(range(len(pairs)))
    rng.shuffle(order)
    left, right = order[:split], order[split:]
    first = Shortlist.empty(most).with_rows(rows_of([pairs[i] for i in left], left))
    collector = Collector(most, first.cut, expect)
    for at in range(0, len(right), 5):
        numbers = right[at : at + 5]
        rows = rows_of([pairs[i] for i in numbers], numbers)
        bound = rows.step_s - rng.choice([0.0, 0.5, 2.0])
        collector.add(rows.take(collector.cut.admits(bound, rows.memory_bytes)))
    merged = first.plus(collector.shortlist)
    assert merged.top.indices.tolist() == best_by_hand(pairs, most)
    assert merged.frontier.indices.tolist() == frontier_by_hand(pairs)


@given(tables, st.integers(1, 8))
def test_a_full_list_refuses_only_what_is_strictly_slower(pairs: list[tuple[float, float]], most: int) -> None:
    cut: Cut = Shortlist.empty(most).with_rows(rows_of(pairs)).cut
    for step, memory in pairs[:most]:
        would_tie = step <= cut.step_s
        assert not would_tie or bool(cut.admits(np.array([step]), np.array([memory]))[0])
    assert OPEN.admits(np.array([np.finfo(float).max]), np.array([0.0])).all()


def groups_by_hand(pairs: list[tuple[float, float]], group: list[int]) -> set[int]:
    """The best of each group that are not hopeless in their precision."""
    kept = set()
    for number in set(group) - {UNGROUPED}:
        kin = [i for i in range(len(pairs)) if group[i] >= 0 and group[i] % PRECISIONS == number % PRECISIONS]
        floor = SLOWEST * min(pairs[i][0] for i in kin)
        mine = sorted((i for i in kin if group[i] == number), key=lambda i: (pairs[i][0], i))[:PER_GROUP]
        kept |= {i for i in mine if pairs[i][0] <= floor}
    return kept


grouped = st.lists(
    st.tuples(figures, figures, st.sampled_from([UNGROUPED, 0, 1, PRECISIONS, 3 * PRECISIONS + 1])), max_size=90
)


@given(grouped, st.integers(0, 90), st.randoms(use_true_random=False))
def test_the_best_of_each_group_are_kept_whoever_finds_them(
    rows: list[tuple[float, float, int]], split: int, rng
) -> None:
    pairs, group = [(step, memory) for step, memory, _ in rows], [number for *_, number in rows]
    order = list(range(len(rows)))
    rng.shuffle(order)
    left, right = order[:split], order[split:]
    first = Shortlist.empty(3).with_rows(
        rows_of([pairs[i] for i in left], left), np.array([group[i] for i in left], int)
    )
    collector = Collector(3, first.cut, expect)
    for at in range(0, len(right), 7):
        numbers = right[at : at + 7]
        some, kinds = (
            rows_of([pairs[i] for i in numbers], numbers),
            np.array([group[i] for i in numbers], dtype=np.int64),
        )
        bound = some.step_s - rng.choice([0.0, 0.5, 2.0])
        admitted = collector.cut.admits(bound, some.memory_bytes) | collector.cut.groups.admits(bound, kinds)
        collector.add(some.take(admitted), kinds[admitted])
    merged = first.plus(collector.shortlist)
    assert set(merged.grouped.rows.indices.tolist()) == groups_by_hand(pairs, group)
    assert merged.top.indices.tolist() == best_by_hand(pairs, 3)


counts = st.dictionaries(st.sampled_from(["enumerate", "memory"]), st.integers(0, 9))
parts = st.builds(
    lambda pairs, rows, missing: Findings(
        shortlist=Shortlist.empty(3).with_rows(rows_of(pairs)),
        legal=len(pairs),
        feasible=len(pairs),
        removed=rows,
        rows=rows,
        seconds={},
        miss=Miss(index=int(missing), missing_bytes=missing),
    ),
    tables,
    counts,
    st.integers(0, 9).map(float),
)


@given(parts, parts)
@settings(max_examples=50)
def test_counts_and_the_nearest_miss_merge_in_any_order(left: Findings, right: Findings) -> None:
    one, other = left.plus(right), right.plus(left)
    assert (one.legal, one.feasible, one.miss) == (other.legal, other.feasible, other.miss)
    assert dict(one.rows) == dict(other.rows)
    assert one.miss.missing_bytes == min(left.miss.missing_bytes, right.miss.missing_bytes)
