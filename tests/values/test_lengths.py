"""Rows filled from documents: against packing by hand over random sets of lengths, and against closed forms."""

import itertools

import numpy as np
import pytest

from primus_search.values.lengths import MOST_POINTS, Lengths, filling, first_fit, rows_of

WINDOW = 4096
ONE = np.ones(1, np.int64)


def sets(number: int) -> list[np.ndarray]:
    """Random sets of lengths, short ones and long ones, some longer than the window."""
    rng = np.random.default_rng(7)
    return [
        np.ceil(rng.lognormal(rng.uniform(4, 8), rng.uniform(0.1, 1.5), rng.integers(1, 60))) for _ in range(number)
    ]


def by_hand(documents: list[float], window: float) -> list[list[float]]:
    """Each document, the longest first, into the first row that has room."""
    rows: list[list[float]] = []
    for one in sorted(documents, reverse=True):
        for row in rows:
            if sum(row) + one <= window:
                row.append(one)
                break
        else:
            rows.append([one])
    return rows


@pytest.mark.parametrize("documents", sets(200))
def test_rows_are_those_packed_by_hand(documents: np.ndarray) -> None:
    cut = np.minimum(documents, WINDOW)
    row, rows = first_fit(cut, WINDOW), by_hand(cut.tolist(), WINDOW)
    padding = np.sort(WINDOW - np.bincount(row, cut))
    assert padding.tolist() == sorted(WINDOW - sum(one) for one in rows)
    assert np.sort(np.bincount(row, cut**2)).tolist() == sorted(sum(x * x for x in one) for one in rows)


def test_no_packing_needs_fewer_rows_than_the_bound_of_first_fit() -> None:
    """Against every packing of seven documents: at most 11/9 of the fewest rows, and one (Johnson 1973)."""
    for documents in (one[:7] for one in sets(40)):
        cut = np.minimum(documents, WINDOW).tolist()
        fewest = len(cut)
        for order in itertools.islice(itertools.permutations(cut), 0, None, 7):
            rows, room = 1, WINDOW
            for one in order:
                rows, room = (rows, room - one) if one <= room else (rows + 1, WINDOW - one)
            fewest = min(fewest, rows)
        assert int(first_fit(np.array(cut), WINDOW).max()) + 1 <= 11 / 9 * fewest + 1


@pytest.mark.parametrize("documents", sets(25))
def test_averages_are_those_of_drawn_micro_batches(documents: np.ndarray) -> None:
    lengths, sizes, rng = Lengths.of(documents), np.array([1, 2, 8]), np.random.default_rng(1)
    found = filling(lengths, "pad_to_longest", WINDOW, sizes)
    cut = np.minimum(documents, WINDOW)
    for i, size in enumerate(sizes.tolist()):
        longest = rng.choice(cut, (20_000, size)).max(axis=1)
        assert found.computed[i] == pytest.approx(longest.mean() / WINDOW, rel=0.03)
        assert found.attended[i] == pytest.approx((longest**2).mean() / longest.mean(), rel=0.03)
    assert found.counted == pytest.approx(cut.mean() / WINDOW)
    assert filling(lengths, "cut", WINDOW, ONE).attended[0] == pytest.approx((cut**2).sum() / cut.sum())


@pytest.mark.daily(8)
@pytest.mark.parametrize("documents", sets(25))
def test_packed_rows_hold_the_documents(documents: np.ndarray) -> None:
    """Padding of whole documents is what packing thousands of them by hand leaves; pairs are those of the documents."""
    lengths = Lengths.of(documents)
    rows = rows_of(lengths, "whole", WINDOW)
    whole, budget = (filling(lengths, packing, WINDOW, ONE) for packing in ("whole", "token_budget"))  # type: ignore[arg-type]
    assert whole.counted == budget.counted == budget.computed[0] <= 1.0 == whole.computed[0]
    assert whole.counted == pytest.approx(rows.tokens.mean() / WINDOW)
    assert budget.attended[0] == pytest.approx(lengths.seen(WINDOW), rel=0.02)
    assert whole.attended[0] == pytest.approx(budget.attended[0] * whole.counted)
    single = filling(lengths, "pad_to_window", WINDOW, ONE)
    assert single.attended[0] == WINDOW and single.counted <= whole.counted + 1e-9


@pytest.mark.parametrize("length", [256, 1024, 4096])
def test_one_length_fills_rows_to_the_end(length: int) -> None:
    for packing in ("cut", "whole", "token_budget"):
        found = filling(Lengths((float(length),), (1.0,)), packing, WINDOW, ONE)  # type: ignore[arg-type]
        assert (found.counted, found.computed[0], found.attended[0]) == (1.0, 1.0, length)


def test_cut_rows_are_full_and_keep_pieces_apart() -> None:
    rows = rows_of(Lengths((1000.0, 3000.0), (0.5, 0.5)), "cut", WINDOW)
    assert np.all(rows.tokens == WINDOW) and np.all(rows.squares < WINDOW**2)


def test_points_that_stand_for_many_lengths_keep_tokens_and_squares() -> None:
    documents = np.ceil(np.random.default_rng(3).lognormal(7, 1.2, 50_000))
    lengths = Lengths.of(documents)
    tokens, shares = np.array(lengths.tokens), np.array(lengths.shares)
    assert len(tokens) <= MOST_POINTS
    assert tokens @ shares == pytest.approx(documents.mean(), rel=1e-3)
    assert lengths.seen(1 << 30) == pytest.approx((documents**2).sum() / documents.sum(), rel=1e-9)


def test_quantiles_are_met() -> None:
    lengths = Lengths.between({0.0: 100, 0.5: 900, 0.9: 5000, 1.0: 32768})
    at = np.cumsum(lengths.shares)
    for share, length in ((0.5, 900), (0.9, 5000)):
        assert lengths.tokens[int(np.searchsorted(at, share))] == pytest.approx(length, rel=0.03)


@pytest.mark.parametrize(
    "tokens, shares", [((), ()), ((2.0, 1.0), (0.5, 0.5)), ((0.5,), (1.0,)), ((1.0, 2.0), (0.5, 0.4))]
)
def test_what_is_no_distribution_is_refused(tokens: tuple[float, ...], shares: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="documents"):
        Lengths(tokens, shares)


@pytest.mark.parametrize(("window", "documents", "padding"), [(4096, 50, 0.98), (2048, 25, 0.96)])
def test_packing_gains_what_primus_publishes_of_short_documents(window: int, documents: int, padding: float) -> None:
    """Alpaca's 80 tokens in rows of 4,096 and 2,048: comments of AMD-AGI/Primus fd1eeabb sft-packed experiments."""
    lengths = Lengths((80.0,), (1.0,))
    packed, alone = (filling(lengths, packing, window, ONE).counted for packing in ("whole", "pad_to_window"))  # type: ignore[arg-type]
    assert packed / alone == pytest.approx(documents, rel=0.05)
    assert 1.0 - alone == pytest.approx(padding, abs=0.005) and packed > 0.97
