"""What saving memory would gain: the fastest row of a ranking that may run out of memory, before the recommendation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from primus_search.cost.confidence.uncertainty import memory_error
from primus_search.cost.memory.fit import FITS, room_to_fit_bytes
from primus_search.exploration.expected import RATE
from primus_search.exploration.neighbours import Evaluator, cheapest_saving, said, values_of
from primus_search.exploration.result import MEASURED, is_on_cluster_of
from primus_search.values.candidates import COLUMN_NAMES, Candidates

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FasterIfMemorySaved:
    """A row that is faster than the first one and does not surely fit.

    rank           place in ranking.csv, from 1     gain    of the expected rate over the first row's, 0.012
    saving_bytes   less memory with which it FITS
    remedy         the fastest single change that saves so much, in words; empty where none does
    remedy_change  of the expected rate against the first row's with it, -0.03
    """

    rank: int
    row: Row
    gain: float
    saving_bytes: float
    remedy: str
    remedy_change: float


def faster_if_memory_saved(rows: Sequence[Row], evaluator: Evaluator) -> FasterIfMemorySaved | None:
    """The fastest row of the first row's cluster that is faster than the first and AT RISK or OOM; None without any.

    rows: as ranking.csv lists them. evaluator: of the first row's cluster. Rows timed on a device are compared with
    each other only.
    """
    first = rows[0]
    places = [
        place
        for place, row in enumerate(rows)
        if row[RATE] > first[RATE]
        and row["memory_verdict"] != FITS
        and (row["time_evidence"] == MEASURED) == (first["time_evidence"] == MEASURED)
        and is_on_cluster_of(row, first)
    ]
    if not places or first["memory_verdict"] != FITS:
        return None
    place = max(places, key=lambda place: (rows[place][RATE], -place))
    row, cluster = rows[place], evaluator.choice.cluster
    sure_bytes = room_to_fit_bytes(cluster.accelerator, memory_error(cluster.stack, evaluator.space.model))
    saving = max(row["memory_bytes"] - sure_bytes, -row["headroom_bytes"])
    own, least = (values_of(Candidates.from_words({n: one[n] for n in COLUMN_NAMES})) for one in (row, first))
    found = cheapest_saving(evaluator, own, saving)
    rate = evaluator.project([least])[0].expected_tokens_per_s_per_gpu
    return FasterIfMemorySaved(
        rank=place + 1,
        row=row,
        gain=row[RATE] / first[RATE] - 1.0,
        saving_bytes=saving,
        remedy="" if found is None else said(found[0]),
        remedy_change=0.0 if found is None else found[1].expected_tokens_per_s_per_gpu / rate - 1.0,
    )
