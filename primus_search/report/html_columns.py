"""The candidates of `report.html` as packed columns: every kept row and the frontier, with knobs, figures and parts.

All columns stand in one text, base64 of deflate, column after column. A number takes its bytes plane by plane (first
bytes of all rows, then second bytes, ...), which deflate shortens most. The page decodes a column when it first reads
it.

    kind codes    unsigned integers into `values`              width 1 or 2 bytes
    kind number   float32, or codes into `distinct` of them    width 4, or 1 or 2 bytes
    kind same     one value of all rows                        no bytes
"""

import base64
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from primus_search.cost.confidence.fit import AT_RISK, FIT_THRESHOLD, FITS, OUT_OF_MEMORY
from primus_search.exploration.expected import RATE
from primus_search.exploration.ranking_table import FIGURES
from primus_search.exploration.run_folder.candidates_file import Kept
from primus_search.space.memo import distinct, in_codes
from primus_search.space.tokens import NICKNAMES, PLAIN, read_token
from primus_search.values.candidates import COLUMN_NAMES
from primus_search.values.knobs import KNOB, KNOBS

Row = Mapping[str, Any]

MOST_ROWS = 100_000  # kept rows in the page, evenly thinned above; what is ranked or on the frontier stays
# Columns of few values.
CODED = (*COLUMN_NAMES, "dp", "microbatches", "ties_with_best", "time_evidence", "memory_evidence")
VERDICT = "verdict"
NUMBERS = tuple(name for name in FIGURES if name not in (*CODED, "tokens_per_s"))
# Keeps all bits of a float32; of other figures the lowest byte is zero, an error of up to 1.6e-5 of the value.
EXACT = RATE
TRIMMED_BITS = 8
SAME = 1e-9  # rates of two files closer than this are one row, written with another number of digits
FAST = 1  # level of deflate: a quarter of the seconds of the usual 6, for 6 % more bytes
DICTIONARY_SHARE = 8  # A number of fewer distinct values than one in so many rows is stored as codes


class PageRows:
    """Rows of the page by column: the kept rows, best first, then rows of the frontier that were not kept."""

    def __init__(self, kept: Kept, ranking: Mapping[int, Row], frontier: Sequence[Row]) -> None:
        """`ranking` by rank and `frontier` as the files of the run list them, of the cluster that `kept` is of."""
        self._coded = {name: _codes(kept, name) for name in CODED} | {VERDICT: _verdicts(kept)}
        self._numbers = {name: np.asarray(kept.column(name), dtype=np.float64) for name in NUMBERS}
        self.step, self.memory = kept.parts("step_", "_s"), kept.parts("memory_", "_bytes")
        self.count = len(kept)
        listed = [*ranking.values(), *frontier]
        places = self._places(listed)
        # Rows of the ranking and the frontier that were not kept.
        absent = np.flatnonzero(places < 0).tolist()
        words = [tuple(listed[i][name] for name in (*COLUMN_NAMES, EXACT)) for i in absent]
        added = {one: listed[i] for one, i in zip(words, absent, strict=True)}
        number_of = {one: self.count + number for number, one in enumerate(added)}
        places[absent] = [number_of[one] for one in words]
        self.added = list(added.values())
        if self.added:
            self._append(self.added)
        self._set_verdicts(places, listed)
        self.rank = np.zeros(self.count)
        self.rank[places[: len(ranking)]] = list(ranking)
        self.frontier = places[len(ranking) :]

    def fill(self, step: Mapping[str, Any], memory: Mapping[str, Any]) -> None:
        """Set the parts of the rows in `added`: seconds and bytes by part, one value per row."""
        for mine, given in ((self.step, step), (self.memory, memory)):
            for name, values in given.items():
                mine[name][self.count - len(self.added) :] = values

    def _places(self, rows: Sequence[Row]) -> NDArray[np.int64]:
        """Where rows stand, by their knobs and rate; -1 for a row that does not."""
        columns, rates = [], np.array([row[EXACT] for row in rows])
        own, listed = self._numbers[EXACT], np.append(np.sort(rates), np.inf)
        near = np.flatnonzero(listed[np.searchsorted(listed, own * (1.0 - 2.0 * SAME))] <= own * (1.0 + 2.0 * SAME))
        for name in COLUMN_NAMES:
            codes, values = self._coded[name]
            code_of = {value: i for i, value in enumerate(values)}
            sought = [code_of.get(row[name], -1) for row in rows]
            if len(values) > 1 or -1 in sought:
                columns.append(np.concatenate([codes[near], np.array(sought, dtype=np.int64)]))
        numbers = distinct(columns or [np.zeros(len(near) + len(rows), dtype=np.int64)])[0]
        place = np.full(len(numbers), -1)
        place[numbers[: len(near)]] = near
        found = place[numbers[len(near) :]]
        # A rate that differs is of other evidence.
        is_same = np.abs(own[found] / rates - 1.0) < SAME
        return np.where(is_same, found, -1)

    def _set_verdicts(self, places: NDArray[np.int64], rows: Sequence[Row]) -> None:
        codes, values = self._coded[VERDICT]
        words = np.array(values, dtype=object)[codes]
        words[places] = [row["memory_verdict"] for row in rows]
        values = [word for word in (FITS, AT_RISK, OUT_OF_MEMORY) if (words == word).any()]
        self._coded[VERDICT] = np.select([words == word for word in values], range(len(values))), values

    def _append(self, rows: Sequence[Row]) -> None:
        for name, (codes, values) in self._coded.items():
            cells = [row["memory_verdict" if name == VERDICT else name] for row in rows]
            values += [value for value in dict.fromkeys(cells) if value not in values]
            more = np.array([values.index(cell) for cell in cells], dtype=np.int64)
            self._coded[name] = (np.concatenate([codes, more]), values)
        for name, column in self._numbers.items():
            self._numbers[name] = np.concatenate([column, [row[name] for row in rows]])
        for parts in (self.step, self.memory):
            for name, column in parts.items():
                parts[name] = np.concatenate([column, np.full(len(rows), np.nan)])
        self.count += len(rows)

    def packed(self) -> dict[str, Any]:
        """What the page reads: the description of the columns, their text, labels of knobs, places of the frontier."""
        shown = self._shown()
        place = np.full(self.count, -1)
        place[shown] = np.arange(len(shown))
        described, pieces = [], []
        for one, content in self._columns(shown):
            described.append(one)
            pieces.append(content)
        return {
            "count": len(shown),
            "columns": described,
            "labels": [labels for name in COLUMN_NAMES if (labels := self._labels(name))["words"]],
            "knobs": list(COLUMN_NAMES),
            "nicknames": dict(NICKNAMES),
            "plain": {
                knob.plain.lower(): [knob.name, str(knob.word(knob.default)).lower()] for knob in KNOBS if knob.plain
            },
            "aliases": {name: found for name in COLUMN_NAMES if (found := _aliases(name, self._coded[name][1]))},
            "step": list(self.step),
            "memory": list(self.memory),
            "frontier": place[self.frontier].tolist(),
            "text": base64.b64encode(zlib.compress(b"".join(pieces), FAST)).decode(),
        }

    def _shown(self) -> NDArray[np.int64]:
        if self.count <= MOST_ROWS:
            return np.arange(self.count)
        is_shown = self.rank > 0
        is_shown[np.linspace(0, self.count - 1, MOST_ROWS).astype(np.int64)] = is_shown[self.frontier] = True
        return np.flatnonzero(is_shown)

    def _columns(self, shown: NDArray[np.int64]) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Description and bytes of each column."""
        for name, (codes, values) in self._coded.items():
            used = np.flatnonzero(np.bincount(codes[shown]))
            if len(used) == 1:
                yield {"name": name, "kind": "same", "value": values[int(used[0])]}, b""
                continue
            content, width = _integers(codes[shown], len(values))
            yield {"name": name, "kind": "codes", "width": width, "values": values}, content
        numbers = {"rank": self.rank, **self._numbers}
        numbers |= {f"step.{name}": column for name, column in self.step.items()}
        numbers |= {f"memory.{name}": column for name, column in self.memory.items()}
        for name, column in numbers.items():
            yield _number(name, column[shown])

    def _labels(self, name: str) -> dict[str, Any]:
        """The words of a knob in the short name of candidates, by the codes of the columns that its label reads.

        The columns are found by reading: while a label reads a column that its rows were not grouped by, rows are
        grouped by that one as well. Columns of one value are left out.
        """
        reads: list[str] = []
        while True:
            groups = np.zeros(self.count, dtype=np.int64)
            for read in reads:
                groups = groups * len(self._coded[read][1]) + self._coded[read][0]
            found = set(reads)
            words = {}
            example = distinct([groups])[1] if reads else np.zeros(1, dtype=np.int64)
            for i in example[np.argsort(groups[example])]:
                row = _Watched({column: values[codes[i]] for column, (codes, values) in self._coded.items()})
                text = KNOB[name].label_of(row)
                found |= {read for read in row.read if len(self._coded[read][1]) > 1}
                if text:
                    words[",".join(str(self._coded[read][0][i]) for read in reads)] = text
            if len(found) == len(reads):
                return {"reads": reads, "words": words}
            reads = [column for column in CODED if column in found]


def _aliases(name: str, values: Sequence[Any]) -> dict[str, str]:
    """Words that labels print for the values of a knob, where these are not the values themselves: `zero1`."""
    found = {}
    for value in values:
        for word in KNOB[name].label_of(PLAIN | {name: value}).split(" "):
            token = read_token(word) if word else None
            if token is not None and set(token) == {name} and word.lower() != str(value).lower():
                found[word.lower()] = str(value)
    return found


class _Watched(dict[str, Any]):
    """A row that records which columns are read."""

    def __init__(self, row: Row) -> None:
        super().__init__(row)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)


def _codes(kept: Kept, name: str) -> tuple[NDArray[np.int64], list[Any]]:
    """A column as positions in its values, without values that no row has."""
    codes, values = kept.codes(name)
    is_used = np.bincount(codes, minlength=len(values)) > 0
    places = np.cumsum(is_used) - 1
    return places[codes], [values[i] for i in np.flatnonzero(is_used).tolist()]


def _verdicts(kept: Kept) -> tuple[NDArray[np.int64], list[Any]]:
    """FITS or AT RISK of each row: what needs more than the device has is not kept, or listed."""
    is_fit = kept.column("fit_probability") >= FIT_THRESHOLD
    values = [word for word, is_it in ((FITS, is_fit.any()), (AT_RISK, not is_fit.all())) if is_it]
    return np.where(is_fit, 0, len(values) - 1), values


def _integers(codes: NDArray[np.int64], most: int) -> tuple[bytes, int]:
    """Codes below `most` as planes of one or two bytes, and how many."""
    width = 1 if most <= 256 else 2
    return _planes(codes.astype(f"<u{width}")), width


def _number(name: str, column: NDArray[np.float64]) -> tuple[dict[str, Any], bytes]:
    values = column.astype("<f4")
    if name != EXACT:
        half, mask = np.uint32(1 << (TRIMMED_BITS - 1)), np.uint32(2**32 - (1 << TRIMMED_BITS))
        values = ((values.view("<u4") + half) & mask).view("<f4")
    most = min(len(values) // DICTIONARY_SHARE, 1 << 16)
    if len(np.unique(values[:: DICTIONARY_SHARE // 2])) > most:  # so has the whole column, which takes longer to sort
        return {"name": name, "kind": "number", "width": 4}, _planes(values)
    found, codes = in_codes(values)
    if len(found) == 1:
        return {"name": name, "kind": "same", "value": float(found[0])}, b""
    if len(found) > most:
        return {"name": name, "kind": "number", "width": 4}, _planes(values)
    content, width = _integers(codes, len(found))
    return {"name": name, "kind": "number", "width": width, "distinct": len(found)}, _planes(found) + content


def _planes(values: NDArray[Any]) -> bytes:
    return np.ascontiguousarray(values.view(np.uint8).reshape(len(values), -1).T).tobytes()
