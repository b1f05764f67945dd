"""A candidate in one short line, the way engineers write it: `TP2 PP4x2 EP8 mbs1 zbv sf3 fp8:hybrid full(4)`."""

from collections.abc import Mapping, Sequence
from typing import Any

from primus_search.cost.confidence.uncertainty import Confidence, Knowledge
from primus_search.values.candidates import COLUMN_NAMES
from primus_search.values.knobs import KNOB


def short(row: Mapping[str, Any]) -> str:
    """The knobs that distinguish a candidate; what is at its usual value is left out."""
    return " ".join(text for text in (KNOB[name].label_of(row) for name in COLUMN_NAMES) if text)


def factored(rows: Sequence[Mapping[str, Any]]) -> tuple[str, list[str]]:
    """Labels of several candidates: the words that all of them have, and the others of each with its TP and PP."""
    labels = [short(row).split(" ") for row in rows]
    shared = [word for word in labels[0] if all(word in label for label in labels) and word[:2] not in ("TP", "PP")]
    return " ".join(shared), [" ".join(word for word in label if word not in shared) for label in labels]


def evidence_of(row: Mapping[str, Any]) -> str:
    """`m/t`: time measured, memory traced."""
    return f"{row['time_evidence'][0]}/{row['memory_evidence'][0]}"


def counted(number: int, noun: str) -> str:
    """`1 node`, `1,024 nodes`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


# A share of the whole below this is a rounding error: a makespan less its work where there is no bubble.
ROUNDING = 1e-9
# From here on a probability is written >99%, and below its complement <1%: nobody knows the tail of a memory error.
CERTAIN = 0.995
THOUSANDS_FROM = 1e4


def chance(probability: float) -> str:
    """A probability as a whole percentage; never 0 or 100 %."""
    if probability >= CERTAIN:
        return ">99%"
    return "<1%" if probability < 1.0 - CERTAIN else f"{probability:.0%}"


def fits(row: Mapping[str, Any]) -> str:
    """Whether a row runs in device memory, and how surely: `FITS, probability >99%`, `AT RISK, probability 83%`."""
    return f"{row['memory_verdict']}, probability {chance(row['fit_probability'])}"


def rests(sure: Confidence) -> str:
    """Evidence of the first row's interval: held-out runs of its stack, family, architecture and precision, or own
    runs; at first contact that no run of the cluster is known, and how much better two rows compare."""
    runs = round(float(sure.runs[:1].sum()))
    if runs and sure.knowledge is Knowledge.OWN_RUNS:
        return f"{counted(runs, 'run')} of this kind on this cluster"
    first = ""
    if sure.knowledge is Knowledge.FIRST_CONTACT:
        first = f", none on this cluster (the ratio of two rows is known within {sure.comparison:.0%})"
    if runs:
        return f"{counted(runs, 'held-out run')} of this kind{first}"
    return "other kinds of runs: no measured run of this kind exists, so the interval was widened"


def between(low: float, high: float) -> str:
    """Two ends of an interval of tokens/s/GPU, at most ten characters: `812-934`, `9.8-11.3k`, `98-105k`."""
    if high < THOUSANDS_FROM:
        return f"{low:.0f}-{high:.0f}"
    digits = 1 if high < 10.0 * THOUSANDS_FROM else 0
    return f"{low / 1e3:.{digits}f}-{high / 1e3:.{digits}f}k"
