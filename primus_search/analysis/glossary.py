"""What the words of tables mean: tokens of labels by the axes they stand for, and the terms of columns and verdicts."""

import re
from collections.abc import Mapping
from difflib import get_close_matches

from primus_search.knobs import KNOB, KNOBS, Kind, Knob
from primus_search.schedule import algorithm
from primus_search.schedule import names as schedule_names
from primus_search.space.tokens import NICKNAMES, axis_name, meaning, read_token

TERMS: Mapping[str, str] = {
    "FITS": "runs in device memory with a probability of at least 90 %",
    "AT RISK": "is projected to fit, with a probability below 90 %",
    "OOM": "is projected to run out of device memory",
    "EXTRAPOLATED": "rests on sizes, devices or numbers that no measurement covers",
    "p": "projected: computed by formulas",
    "t": "traced: torch modules without memory",
    "m": "measured: torch modules timed on a device",
    "r": "run: the rate of an own run that `learn` has read",
    "T/M": "what time and memory stand on: p projected, t traced, m measured",
    "=": "ties with rank 1: one run of each could not tell them apart (4 %)",
    "90 %": "interval that holds the measured rate in nine of ten cases",
    "fits": "probability of running in device memory",
    "GB": "memory of the fullest pipeline rank, 10^9 bytes per GPU",
    "tok/s/GPU": "tokens per second and GPU",
    "vs #1": "tokens/s/GPU against the first row",
    "#": "rank: place in ranking.csv, from 1",
    "configuration": "the knobs of a row; what is at its usual value is left out",
    "cluster": "nodes or hardware of a row of the scaling table",
    "GPUs": "devices of the cluster",
    "tokens/s": "tokens per second of the whole cluster",
    "layout": "parallel degrees: TP, PP x virtual stages, EP, CP",
    "what differs": "knobs that differ from the first row, in words; +n: n more",
    "MFU": "model FLOP/s over the dense BF16 peak; recompute does not count",
    "bubble": "share of the pipeline's makespan in which its busiest rank waits; `schedules` and Gantt charts count "
    "the idle time of all ranks, which is more where stages differ",
    "DP": "data parallel degree; follows from the others",
    "DPn": "data parallel degree n; follows from the others",
    "1F1B": "schedule family: one forward, one backward, one chunk a rank",
    "interleaved": "schedule family: several model chunks a rank",
    "zero bubble": "schedule family: weight gradients run apart",
    "simplest": "fewest knobs off their defaults within 2 % of the best",
    "best that FITS": "the fastest row whose verdict is FITS",
    "best in BF16": "the fastest row without a low-precision recipe",
    "fewer nodes": "the fastest row on fewer nodes than the first row",
    "efficiency": "tokens/s/GPU over that of the smallest cluster",
    "goodput": "share of the time that trains; the rest goes to checkpoints, work done again and restarts",
    "days": "time for --tokens at goodput",
    "GPU hours": "days x 24 x GPUs, spare nodes included",
    "USD": "GPU hours at price_per_gpu_hour_USD",
    "spare nodes": "nodes beside the job that cover those in repair at 99 % of all times",
    "frontier": "no other row needs less memory and is faster",
    "exact": "every legal candidate was evaluated",
    "BF16": "no low-precision recipe: fp8=none",
}
"""Words that are no value of an axis."""


def explain_word(word: str) -> list[str]:
    """Lines that say what a word means; empty for an unknown one."""
    pair = re.fullmatch(r"([ptmr])/([ptmr])", word)
    if pair:
        return [f"time {TERMS[pair[1]]}", f"memory {TERMS[pair[2]]}"]
    term = re.sub(r"^DP\d+$", "DPn", word, flags=re.IGNORECASE).lower()
    found = [TERMS[name] for name in TERMS if name.lower() == term]
    name, equals, value = word.partition("=")
    if equals and value and axis_name(name) in KNOB:
        return meaning({axis_name(name): value})
    values = read_token(word) if word else None
    return [*(meaning(values) if values else []), *found]


def close_words(word: str) -> list[str]:
    """Words like this one that are known."""
    return get_close_matches(word, [*TERMS, *(token for token, _ in every_token())], n=3)


def every_token() -> list[tuple[str, str]]:
    """Examples of the tokens that labels print, with what they mean."""
    tokens = ["TP2", "PP4x2", "mbs2", "zero1", "fsdp2", "full", "full(2)", "recompute:selective", "layout:balanced"]
    tokens += list(schedule_names())
    for knob in KNOBS:
        if isinstance(knob.label, str) and knob.label:
            tokens += [knob.label.format_map({knob.name: word}) for word in _examples(knob)]
        tokens += [knob.plain] if knob.plain else []
    found = []
    for token in dict.fromkeys(tokens):
        values = read_token(token)
        if values:
            summary = algorithm(token).summary if "schedule" in values else "; ".join(meaning(values))
            found.append((token, summary))
    return found


def _examples(knob: Knob) -> list[str]:
    """Values that labels print of a knob, all of its words or one number."""
    if knob.words is not None:
        return [word for word, value in knob.members.items() if value != knob.default]
    return ["2"] if knob.kind in (Kind.DEGREE, Kind.COUNT) else [str(not knob.default)]


def nicknames() -> list[str]:
    """Short names that are accepted for axes."""
    return [f"{short} = {name}" for short, name in NICKNAMES.items()]
