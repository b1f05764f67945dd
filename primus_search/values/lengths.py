"""Lengths of documents as a distribution, and the rows of a window that are filled from them.

A document longer than the window is cut to it. What a filled row costs is known by two sums over its documents: tokens,
and squares of lengths, to which attention that keeps to documents is proportional.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from primus_search.values.candidates import Floats, Ints

Packing = Literal["cut", "whole", "token_budget", "unpadded", "pad_to_longest", "pad_to_window"]
"""How a row of the window is filled. `cut`: document after document, cut where the row ends, no padding. `whole`: whole
documents, the longest first into the first row that has room, the rest padding. `token_budget`: likewise, the rest not
computed. One document a row: `unpadded`, as long as it is; `pad_to_longest`, `pad_to_window`, padded to the longest of
its micro-batch or to the window."""
PackedAs = Packing | Literal["full"]
"""As launch files have it: `full` rows, over which attention spans, have no lengths."""

PACKS_WHOLE: tuple[Packing, ...] = ("whole", "token_budget")
BALANCED: tuple[Packing, ...] = ("cut", "whole", "token_budget", "unpadded")
"""Packings whose rows differ in work and not in padding."""
MOST_POINTS = 512
"""Points that stand for the lengths of a file."""
ROWS = 512
FEWEST, MOST = 512, 1 << 15
"""Rows that packing is computed for, and bounds of the documents they are packed from."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of lengths: `shares` of the documents, which sum to 1, have so many `tokens`, ascending."""

    tokens: tuple[float, ...]
    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        steps = np.diff(self.tokens)
        if not self.tokens or len(self.tokens) != len(self.shares) or np.any(steps <= 0) or self.tokens[0] < 1:
            raise ValueError("lengths of documents ascend from at least 1 token, each with its share")
        if min(self.shares) <= 0 or abs(sum(self.shares) - 1.0) > 1e-9:
            raise ValueError(f"shares of documents are above 0 and sum to 1, not {sum(self.shares):.6g}")

    @classmethod
    def of(cls, documents: Floats) -> "Lengths":
        """The distribution of a sample. Of more than `MOST_POINTS` lengths, neighbours are one point.

        A joined point is the mean length that a token sees, so that tokens and their squares add up as in the sample.
        """
        length, counts = np.unique(np.asarray(documents, np.float64), return_counts=True)
        count = counts.astype(np.float64)
        if len(length) > MOST_POINTS:
            both = np.cumsum(length * count / (length @ count) + count / count.sum()) / 2.0
            first = np.unique(np.searchsorted(both, np.arange(MOST_POINTS) / MOST_POINTS))
            tokens, squares = (np.add.reduceat(length**power * count, first) for power in (1, 2))
            length, count = squares / tokens, tokens**2 / squares
        shares = count / count.sum()
        return cls(tuple(length.tolist()), tuple(shares.tolist()))

    @classmethod
    def between(cls, quantiles: dict[float, float], points: int = 256) -> "Lengths":
        """Lengths whose logarithm is linear between quantiles: `{0.5: 900, 1.0: 32768}`, the first one the least."""
        at, length = np.array(sorted(quantiles.items())).T
        middles = (np.arange(points) + 0.5) / points
        return cls.of(np.exp(np.interp(middles, at, np.log(length))))

    @property
    def is_one(self) -> bool:
        """Whether all documents are as long."""
        return len(self.tokens) == 1

    def within(self, window: int) -> tuple[Floats, Floats]:
        """Tokens of documents cut to a window, and their shares."""
        return np.minimum(self.tokens, float(window)), np.asarray(self.shares)

    def seen(self, window: int) -> float:
        """The mean length of the document of a token: sum of squares over sum of lengths."""
        tokens, shares = self.within(window)
        return float(tokens @ (shares * tokens) / (tokens @ shares))

    def sample(self, number: int, window: int) -> Floats:
        """So many lengths at the middles of equal shares, ascending."""
        tokens, shares = self.within(window)
        at = np.searchsorted(np.cumsum(shares)[:-1], (np.arange(number) + 0.5) / number)
        found: Floats = tokens[at]
        return found


@dataclass(frozen=True, slots=True, eq=False)
class FilledRows:
    """Filled rows: tokens of documents and the sum of their squared lengths, each (rows)."""

    tokens: Floats
    squares: Floats


def first_fit(documents: Floats, window: float) -> Ints:
    """The row of each document when each goes, the longest first, into the first row that has room."""
    order = np.argsort(-documents, kind="stable")
    room, row = np.full(len(documents), float(window)), np.empty(len(documents), np.int64)
    rows = 0
    for one in order.tolist():
        found = int(np.argmax(room[: rows + 1] >= documents[one]))
        room[found] -= documents[one]
        row[one], rows = found, max(rows, found + 1)
    return row


@lru_cache(maxsize=64)
def rows_of(lengths: Lengths, packing: Packing, window: int) -> FilledRows:
    """Rows as they occur, from documents in the shares of the distribution."""
    tokens, shares = lengths.within(window)
    number = int(np.clip(ROWS * window / (tokens @ shares), FEWEST, MOST))
    documents = lengths.sample(number, window)
    if packing in PACKS_WHOLE:
        return _summed(documents, first_fit(documents, window))
    if packing == "cut":
        return _cut(np.random.default_rng(0).permutation(documents), window)
    return FilledRows(documents, documents**2)


def _summed(documents: Floats, row: Ints) -> FilledRows:
    tokens, squares = (np.bincount(row, weights).astype(np.float64) for weights in (documents, documents**2))
    return FilledRows(tokens, squares)


def _cut(documents: Floats, window: int) -> FilledRows:
    """Documents one after the other, cut at every multiple of the window; a last row that is not full is left out."""
    ends = np.cumsum(documents)
    edges = np.arange(1.0, ends[-1] // window + 1.0) * window
    places = np.union1d(ends, edges)
    places = places[places <= edges[-1]]
    return _summed(np.diff(places, prepend=0.0), np.searchsorted(edges, places))


@dataclass(frozen=True, slots=True)
class Filling:
    """What rows of a window hold on average.

    counted   share of the window that tokens of documents fill
    computed  share of the window that is computed, padding included, by micro-batch size
    attended  tokens that attention works on as one sequence: pairs of a row are computed tokens times half of it
    """

    counted: float
    computed: Floats
    attended: Floats


def filling(lengths: Lengths, packing: Packing, window: int, micro_batch_size: Ints) -> Filling:
    """What rows hold, of micro-batches of these sizes.

    The longest of b documents is at most x tokens with the probability F(x)^b, F of one document.
    """
    tokens, shares = lengths.within(window)
    ones = np.ones(len(micro_batch_size))
    if packing == "cut":
        return Filling(1.0, ones, ones * lengths.seen(window))
    if packing in PACKS_WHOLE:
        rows = rows_of(lengths, packing, window)
        counted = float(rows.tokens.sum() / (len(rows.tokens) * window))
        computed = counted if packing == "token_budget" else 1.0
        return Filling(counted, ones * computed, ones * rows.squares.sum() / (len(rows.tokens) * window * computed))
    counted = float(tokens @ shares / window)
    if packing == "pad_to_window":
        return Filling(counted, ones, ones * window)
    alike = ones if packing == "unpadded" else np.asarray(micro_batch_size)
    below = np.minimum(np.cumsum(shares), 1.0) ** alike[:, None]
    below[:, -1] = 1.0
    longest = np.diff(below, prepend=0.0)
    mean = (longest * tokens).sum(axis=1)
    return Filling(counted, mean / window, (longest * tokens**2).sum(axis=1) / mean)


GroupShares = Mapping[int, tuple[float, float]]
"""By ranks of a group: the share of tokens, and of squares of lengths, of documents that run on such a one."""


@lru_cache(maxsize=256)
def group_shares(lengths: Lengths, window: int, cp: int) -> GroupShares:
    """Groups of context-parallel ranks where a rank takes window / cp tokens: the least power of two that has room.

    Source: NVIDIA/Megatron-LM core/pipeline_parallel/hybrid_cp_schedule.py BalancedCPScheduler.gpus_needed.
    """
    tokens, shares = lengths.within(window)
    ranks = np.minimum(2.0 ** np.ceil(np.log2(np.maximum(tokens * cp / window, 1.0))), cp)
    weights = (shares * tokens, shares * tokens**2)
    return {
        int(size): (float(weights[0][ranks == size].sum() / weights[0].sum()),
                    float(weights[1][ranks == size].sum() / weights[1].sum()))
        for size in np.unique(ranks)
    }  # fmt: skip
