"""Rows of a ranking in words: what an engineer calls a split, its recompute and its precision, and what differs."""

from collections.abc import Mapping
from typing import Any

from primus_search.analysis.labels import counted
from primus_search.base.guards.files import table_beside
from primus_search.schedule import algorithm
from primus_search.values.knobs import KNOBS
from primus_search.values.knobs.values import PARALLEL, USUAL_SCHEDULES

Row = Mapping[str, Any]
WORDS: Mapping[str, Mapping[str, str]] = table_beside(__file__)
"""What values of knobs are called in an answer, by knob."""


def number_format(row: Row) -> str:
    """Number format of a row's products: BF16, FP8 or FP4."""
    return WORDS["fp8"].get(row["fp8"], "FP8")


_PARALLEL = {name: f"{word} parallel" for name, word in PARALLEL.items() if name != "pp"} | {
    "etp": "tensor parallel experts"
}


def in_words(row: Row) -> str:
    """A row as an engineer would say it: how it is split, its micro-batches, recompute, precision, further switches."""
    split = [_sharding_words(row)] if row["dp"] * row["cp"] > 1 else []
    split += [f"{text} {row[name]}" for name, text in _PARALLEL.items() if row[name] > 1]
    if row["pp"] > 1:
        layout = [_layout_words(row)] * (row["pipeline_layout"] != "even")
        split += [f"{row['pp']} stages{_chunks(row)} ({', '.join([_schedule_words(row), *layout])})"]
    missing = [text for name, text in (("tp", "tensor"), ("pp", "pipeline")) if row[name] == 1]
    split += [f"no {' or '.join(missing)} parallel"] if missing else []
    batch = f"micro-batch {row['micro_batch_size']} ({row['microbatches']} per step)"
    return ", ".join([*split, batch, recompute_words(row), precision_words(row), *_switches(row)])


def _sharding_words(row: Row) -> str:
    shards = row["dp"] * row["cp"]
    replicas = counted(row["dp"], "replica")
    return WORDS["sharding"][row["sharding"]].format(replicas=replicas, shards=shards, group=row[_SHARDING_DETAIL])


def _chunks(row: Row) -> str:
    """Chunks of a rank, where the schedule leaves them open."""
    is_open = row["vpp"] > 1 and algorithm(row["schedule"]).virtual_stages is None
    return f" x {row['vpp']} chunks" if is_open else ""


def _schedule_words(row: Row) -> str:
    """The schedule with its kind, where the name alone does not say it; empty without a pipeline."""
    name = str(row["schedule"]) if row["pp"] > 1 else ""
    return name if name in ("", *USUAL_SCHEDULES) else f"{name} ({algorithm(name).family})"


def _layout_words(row: Row) -> str:
    layout = str(row["pipeline_layout"])
    return WORDS["pipeline_layout"].get(layout, f"layout {layout}") if row["pp"] > 1 else ""


def recompute_words(row: Row) -> str:
    """What is recomputed, in words."""
    if row["recompute"] == "none":
        return "no recompute"
    if row["recompute"] == "full":
        layers = row["recompute_num_layers"]
        return f"full recompute of {layers} layer{'s' * (layers != 1)} per chunk" if layers else "full recompute"
    return f"recompute of {', '.join(WORDS['recompute'].get(one, one) for one in str(row['recompute']).split('+'))}"


def precision_words(row: Row) -> str:
    """The number format of products, with its recipe."""
    word = number_format(row)
    recipe = {"hybrid": "tensorwise", "delayed": "delayed scales"}.get(row["fp8"], row["fp8"])
    return word if word == "BF16" else f"{word} ({recipe})"


_SHARDING_DETAIL = next(knob.name for knob in KNOBS if knob.detail_of == "sharding")


def _switches(row: Row) -> list[str]:
    """Knobs that are not at their default, beside those that have words of their own."""
    return [knob.in_words(row) for knob in KNOBS if knob.said and row[knob.name] != knob.word(knob.default)]


def difference_in_words(row: Row, first: Row) -> str:
    """What differs from the first row, the most telling first."""
    own, other = (_facets(one) for one in (row, first))
    found = {name: text for name, text in own.items() if text != other[name]}
    if "pipeline" in found:  # another pipeline has its own layout, and chunks say that it is interleaved
        found = {name: text for name, text in found.items() if name != "layout" and text != "interleaved"}
    if row["sharding"] == first["sharding"]:
        found.pop("sharding", "")
    elif row["dp"] > 1:
        found["sharding"] = own["sharding"].removeprefix(f"{counted(row['dp'], 'replica')}, ")
    switched = [knob.in_words(row) for knob in KNOBS if row[knob.name] != first[knob.name]]
    return ", ".join(filter(None, [*found.values(), *switched])) or "as A"


def _facets(row: Row) -> dict[str, str]:
    """A row in words, aspect by aspect, in the order of weight."""
    return {
        "precision": precision_words(row),
        "pipeline": f"PP{row['pp']}{_chunks(row)}" if row["pp"] > 1 else "no pipeline",
        "schedule": _schedule_words(row),
        "layout": _layout_words(row),
        "tp": f"TP{row['tp']}",
        "ep": f"EP{row['ep']}" + (f" ETP{row['etp']}" if row["etp"] > 1 else ""),
        "cp": f"CP{row['cp']}",
        "micro_batch": f"micro-batch {row['micro_batch_size']}",
        "recompute": recompute_words(row),
        "sharding": _sharding_words(row),
    }
