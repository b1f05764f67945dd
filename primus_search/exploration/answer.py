"""The answer of a run: what to run, in words and figures, and the choices beside it, each with when to take it.

Decided once, after ranking and re-validation; the terminal, report.html, the notebook and later commands print it as it
stands in run.json. A choice is a different idea from those above it: another precision, less memory, plainer switches,
another split. Rows inside the noise of one run are one choice.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from string import ascii_uppercase
from typing import Any

from primus_search.base.guards.files import table_beside
from primus_search.base.units import GB
from primus_search.cost.confidence.coverage import coverage
from primus_search.cost.confidence.uncertainty import TIE, Knowledge, knowledge, memory_error
from primus_search.cost.projection import FITS, room_to_fit_bytes
from primus_search.declare.evidence_files import load_ranges
from primus_search.declare.framework_files import framework_names, load_framework
from primus_search.exploration.expected import RATE, unmeasured_gain
from primus_search.exploration.neighbours import Evaluator, change_text, cheapest_saving, values_of
from primus_search.exploration.result import (
    MEASURED,
    RUN,
    USUAL_SCHEDULES,
    RankingTable,
    SearchResult,
    is_on_cluster_of,
    switch_names,
    traced_shortfall_bytes,
)
from primus_search.schedule import algorithm
from primus_search.space import ClusterChoice, Space
from primus_search.values.candidates import COLUMN_NAMES, Candidates
from primus_search.values.knobs import KNOB, KNOBS
from primus_search.values.knobs.values import PARALLEL
from primus_search.values.machine.cluster import Accelerator

Row = Mapping[str, Any]

MOST_CHOICES = 5
LESS_MEMORY, SLOWEST = 0.9, 0.8
"""A choice of less memory takes at most this share of the first row's; none of its number format has less than this
share of its rate."""
SITES = {
    Knowledge.FIRST_CONTACT: "first contact with this cluster",
    Knowledge.VENDOR: "a cluster that fits have seen",
    Knowledge.OWN_RUNS: "own runs learned",
}
"""What is known of the cluster, in words."""
WORDS: Mapping[str, Mapping[str, str]] = table_beside(__file__)
"""What values of knobs are called in an answer, by knob."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One row of the ranking to choose from.

    letter   what commands and the page take in place of the rank      rank     place in ranking.csv, from 1
    what     the row in words; of all but A what differs from A        when     when to take it
    rate     expected tokens/s/GPU                                     change   of the rate against A's, -0.31
    """

    letter: str
    rank: int
    what: str
    when: str
    rate: float
    change: float
    memory_bytes: float
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the first screen says. Rates in tokens/s/GPU, `low` and `high` the ends of their 90 % interval.

    job, size       model, devices, framework and stack; lengths and counts      what   the recommendation in words
    flops_per_s     of the model per GPU      peak_share   of the peak of `number_format`
    notes           what to know before it is started
    trust           what figures rest on, one sentence each
    remarks         what else was noted of the space and the search
    """

    job: str
    size: str
    what: str
    rate: float
    low: float
    high: float
    flops_per_s: float
    peak_share: float
    number_format: str
    memory_bytes: float
    device_bytes: float
    verdict: str
    fit_probability: float
    trust: tuple[str, ...]
    notes: tuple[str, ...]
    remarks: tuple[str, ...]
    choices: tuple[Choice, ...]
    counts: str

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> "Answer":
        """The answer of `asdict`, as run.json holds it. Raises TypeError or KeyError for other data."""
        chosen = tuple(Choice(**one) for one in data["choices"])
        texts = {name: tuple(map(str, data[name])) for name in ("trust", "notes", "remarks")}
        return cls(**{**data, **texts, "choices": chosen})

    def as_data(self) -> dict[str, Any]:
        """Plain values for run.json."""
        return asdict(self)

    def rank_of(self, letter: str) -> int | None:
        """The rank that a letter stands for; None for one that is not among the choices."""
        return next((one.rank for one in self.choices if one.letter == letter.upper()), None)


def answered(result: SearchResult) -> SearchResult:
    """The result with its answer."""
    return replace(result, answer=answer_of(result))


def answer_of(result: SearchResult) -> Answer:
    """What a search found, for its first screen."""
    best = result.best
    return decide(
        result.space,
        best.ranking,
        result.ranked_rows,
        best.evaluator,
        counts=_counts(result),
        several=len(result.clusters),
        remarks=(*result.space.notes, *result.notes),
    )


def decide(
    space: Space,
    ranking: RankingTable,
    rows: Sequence[Row],
    evaluator: Evaluator,
    *,
    counts: str,
    several: int,
    remarks: tuple[str, ...],
) -> Answer:
    """The answer of a ranking whose rows, over all of `several` clusters, are `rows`."""
    first, choice = rows[0], ranking.choice
    cluster, device = choice.cluster, choice.cluster.accelerator
    evaluator = replace(evaluator, traced_shortfall_bytes=traced_shortfall_bytes(rows, choice))
    choices = _choices(rows, space.model.num_layers, faster_if_memory_saved(rows, evaluator))
    flops_per_s = first["mfu"] * device.bf16_peak_flops_per_s * first[RATE] / first["tokens_per_s_per_gpu"]
    word = number_format(first)
    best_of = f", the best of {several} clusters" if several > 1 else ""
    return Answer(
        job=f"{space.model.name}, {_billions(space.model)} | {cluster.world:,} {device.name} "
        f"({cluster.num_nodes:,} x {cluster.network.gpus_per_node}) | {choice.framework.title}, "
        f"stack {cluster.stack.title}",
        size=f"sequence {space.workload.seq_length:,}, global batch {space.workload.global_batch_size:,}{best_of}",
        what=in_words(first),
        rate=first[RATE],
        low=first["tokens_per_s_per_gpu_low"],
        high=first["tokens_per_s_per_gpu_high"],
        flops_per_s=flops_per_s,
        peak_share=flops_per_s / _peak_flops_per_s(device, word),
        number_format=word,
        memory_bytes=first["memory_bytes"],
        device_bytes=device.hbm_bytes,
        verdict=first["memory_verdict"],
        fit_probability=first["fit_probability"],
        trust=_trust(ranking, evaluator),
        notes=_notes(space, choice, ranking, rows, choices),
        remarks=remarks,
        choices=choices,
        counts=counts,
    )


def number_format(row: Row) -> str:
    """Number format of a row's products: BF16, FP8 or FP4."""
    return WORDS["fp8"].get(row["fp8"], "FP8")


def _peak_flops_per_s(device: Accelerator, number_format: str) -> float:
    peaks = {"BF16": device.bf16_peak_flops_per_s, "FP4": device.fp4_peak_flops_per_s}
    return peaks.get(number_format, device.fp8_peak_flops_per_s) or device.bf16_peak_flops_per_s


def _billions(model: Any) -> str:
    total, active = model.total_params / 1e9, model.active_params / 1e9
    return f"{total:,.1f} B" if active >= total else f"{total:,.1f} B ({active:,.1f} B active)"


def _counts(result: SearchResult) -> str:
    kind = "all priced" if result.exact else f"searched by {result.method}, the optimum is not proven"
    return f"{result.raw:,} combinations, {result.legal:,} legal, {result.feasible:,} fit; {kind}."


# --- what it rests on ------------------------------------------------------------------------------------------------


def _trust(ranking: RankingTable, evaluator: Evaluator) -> tuple[str, ...]:
    """What was measured, what was not, and how far two runs of one job differ."""
    one, runs, evidence = (
        ranking.candidates.take(slice(0, 1)),
        round(float(ranking.confidence.runs[0])),
        ranking.time_evidence[0],
    )
    parts = coverage(ranking.job, one, float(ranking.projection.memory.total[0]), load_ranges())
    gain = None if evidence in (MEASURED, RUN) else unmeasured_gain(evaluator.projector, one)
    if evidence == RUN:
        rests = "an own run of this very row"
    elif runs:
        rests = f"{runs:,} {'own' if ranking.job.stack.runs_file else 'unseen'} run{'s' * (runs != 1)} of this kind"
    else:
        rests = "no run of this stack and kind"
    band = f"90 % band: {SITES[knowledge(ranking.choice.cluster)]}, {rests}."
    gaps = ", ".join(one.part for one in parts if not one.is_calibrated)
    known = ", ".join(one.part for one in parts if one.is_calibrated)
    covered = f"Measured here: {known}." + (f" Extrapolated: {gaps}." if gaps else "")
    found = [band, covered] if known else [f"{band} No part was measured on such a device."]
    if gain is not None and gain.gain > TIE:
        row, names = one.row(0), [text.partition("=")[0] for text in gain.switches]
        switches = ", ".join(KNOB[name].in_words(row) for name in names)
        found.append(
            f"No measured run had {switches} with A's other switches: a gain of {gain.gain:.0%} is projected, "
            f"{gain.expected:.0%} counted. Time A without it, too."
        )
    found.append(f"Two runs of one job differ by {TIE:.0%}. Memory is {ranking.memory_evidence[0]}.")
    return tuple(found)


def _notes(
    space: Space, choice: ClusterChoice, ranking: RankingTable, rows: Sequence[Row], choices: Sequence[Choice]
) -> tuple[str, ...]:
    """What to know before the first row is started."""
    first, found = rows[0], list[str]()
    if first["memory_verdict"] != FITS:
        sure = next((one.letter for one in choices if one.verdict == FITS), "no row")
        instead = f"{sure} surely fits"
        found.append(f"It may run out of memory in its first steps: {instead}.")
    numeric = [knob for knob in KNOBS if knob.is_numeric and first[knob.name] != knob.word(knob.off)]
    changed = [precision_words(first) if knob.name == "fp8" else knob.in_words(first) for knob in numeric]
    if changed:
        found.append(f"{', '.join(changed)} changes the mathematics (docs/numerics.md).")
    if choice.is_framework_assumed and not choice.framework.is_any:
        found.append(f"{choice.framework.title} is assumed; --framework changes it.")
    return (*found, *_unstartable(space, choice, ranking))


def _unstartable(space: Space, choice: ClusterChoice, ranking: RankingTable) -> list[str]:
    """Of a search over any framework: which of the first rows no framework can start."""
    if not choice.framework.is_any:
        return []
    vendor = choice.cluster.accelerator.vendor
    known = [load_framework(name) for name in framework_names()]
    there = [
        Evaluator(space, replace(choice, framework=one)) for one in known if not one.is_any and one.runs_on(vendor)
    ]
    rows = range(min(len(ranking), space.search.top_k))
    lost = [str(row + 1) for row in rows if all(one.broken(values_of(ranking.candidates, row)) for one in there)]
    if not there or not lost:
        return []
    names = ", ".join(one.choice.framework.name for one in there)
    return [f"No framework ({names}) can start ranks {', '.join(lost)}; --framework NAME ranks what one can start."]


# --- words -----------------------------------------------------------------------------------------------------------

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
    return WORDS["sharding"][row["sharding"]].format(dp=row["dp"], shards=shards, group=row[_SHARDING_DETAIL])


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
        found["sharding"] = own["sharding"].removeprefix(f"{row['dp']} replicas, ")
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


# --- choices ---------------------------------------------------------------------------------------------------------


def _idea(row: Row) -> tuple[Any, ...]:
    """What choices are told apart by: rows of one split and precision are one; CPn x mbs n is as mbs 1."""
    per_rank = row["micro_batch_size"] / row["cp"]
    family = algorithm(row["schedule"]).family if row["pp"] > 1 else ""
    return (row["tp"], row["pp"], row["ep"], row["etp"], per_rank, number_format(row), row["recompute"], family)


def _choices(rows: Sequence[Row], layers: int, faster: "FasterIfMemorySaved | None") -> tuple[Choice, ...]:
    """The first row and at most four others, each of them another idea that FITS, or what saving memory would give."""
    first = rows[0]
    mine = [
        place
        for place, row in enumerate(rows)
        if row["memory_verdict"] == FITS
        and is_on_cluster_of(row, first)
        and not (row["vpp"] > 1 and row["pp"] * row["vpp"] >= layers)  # one layer a chunk: for papers
    ]
    found: dict[int, str] = {0: "default"}
    if first["memory_verdict"] != FITS and mine:
        found[max(mine, key=lambda place: rows[place][RATE])] = "A runs out of memory"
    for when, is_one in _wanted(first):
        ideas = {_idea(rows[place]) for place in found}
        taken = {_split(rows[place]) for place in found} - {_split(first)}
        place = _nearest(
            [p for p in mine if is_one(rows[p]) and not {_idea(rows[p]), _split(rows[p])} & (ideas | taken)], rows
        )
        is_format = place is not None and number_format(rows[place]) != number_format(first)
        if place is not None and (is_format or rows[place][RATE] >= SLOWEST * first[RATE]):
            found[place] = when(rows[place])
    if faster is not None and faster.gain > TIE:
        found[faster.rank - 1] = f"you free {faster.saving_bytes / GB:.0f} GB" + (
            f" ({faster.remedy})" if faster.remedy else ""
        )
    fewer = next((p for p, row in enumerate(rows) if row.get("nodes", 0) < first.get("nodes", 0)), None)
    if fewer is not None:
        found[fewer] = f"only {rows[fewer]['nodes']} nodes are free"
    shown = sorted(list(found.items())[:MOST_CHOICES], key=lambda pair: (pair[0] != 0, -rows[pair[0]][RATE]))
    return tuple(
        Choice(
            letter=letter,
            rank=place + 1,
            what="as above" if place == 0 else _what(rows[place], first),
            when=when,
            rate=rows[place][RATE],
            change=rows[place][RATE] / first[RATE] - 1.0,
            memory_bytes=rows[place]["memory_bytes"],
            verdict=rows[place]["memory_verdict"],
        )
        for letter, (place, when) in zip(ascii_uppercase, shown, strict=False)
    )


def _nearest(places: Sequence[int], rows: Sequence[Row]) -> int | None:
    """Of the rows inside the noise of the first of some places, best first, the one that changes least of A."""
    near = [place for place in places if rows[place][RATE] >= (1.0 - TIE) * rows[places[0]][RATE]]
    return min(near, key=lambda place: sum(rows[place][name] != rows[0][name] for name in COLUMN_NAMES), default=None)


def _what(row: Row, first: Row) -> str:
    if not is_on_cluster_of(row, first) and "nodes" in row:
        return f"{row['nodes']} nodes, {difference_in_words(row, first)}"
    return difference_in_words(row, first)


Wanted = tuple[Callable[[Row], str], Callable[[Row], bool]]


def _wanted(first: Row) -> list[Wanted]:
    """When to take another row than the first, and which rows answer that, the most asked-for first."""
    word, less_bytes = number_format(first), min(LESS_MEMORY * first["memory_bytes"], first["memory_bytes"] - GB)

    def is_faster_format(row: Row) -> bool:
        return number_format(row) != "BF16" and row[RATE] > first[RATE] * (1.0 + TIE)

    def is_plainer(row: Row) -> bool:
        return len(switch_names(row)) < len(switch_names(first)) and _split(row) == _split(first)

    def in_format(is_one: Callable[[Row], bool]) -> Callable[[Row], bool]:
        return lambda row: number_format(row) == word and is_one(row)

    return [
        (
            lambda row: f"you train in {number_format(row)}",
            is_faster_format if word == "BF16" else lambda row: number_format(row) == "BF16",
        ),
        (
            lambda row: f"sequences grow: {(first['memory_bytes'] - row['memory_bytes']) / GB:.0f} GB less",
            in_format(lambda row: row["memory_bytes"] <= less_bytes),
        ),
        (lambda row: "a switch of A fails", in_format(is_plainer)),
        (lambda row: _when_split(row, first), in_format(lambda row: _num_degrees_changed(row, first) == 1)),
    ]


def _split(row: Row) -> tuple[Any, ...]:
    return (number_format(row), *(row[name] for name in ("tp", "pp", "ep", "etp")))


def _num_degrees_changed(row: Row, first: Row) -> int:
    return sum(one != other for one, other in zip(_split(row), _split(first), strict=True))


def _when_split(row: Row, first: Row) -> str:
    """What another split is good for."""
    if row["pp"] > first["pp"]:
        return "NICs are slower than rated"
    if row["pp"] < first["pp"]:
        return "fewer stages suit you"
    if row["tp"] != first["tp"]:
        return "the batch must shrink" if row["tp"] > first["tp"] else "links in the node are slow"
    return "expert exchange is slow" if row["ep"] < first["ep"] else "memory of experts is short"


# --- what saving memory would gain -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FasterIfMemorySaved:
    """A row that is faster than the first one and does not surely fit.

    rank           place in ranking.csv, from 1     gain    of the expected rate over the first row's, 0.012
    saving_bytes   less memory with which it FITS
    remedy         the fastest single change that saves so much, in words; empty where none does
    """

    rank: int
    row: Row
    gain: float
    saving_bytes: float
    remedy: str


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
    sure_bytes = room_to_fit_bytes(cluster.accelerator, memory_error(cluster, evaluator.space.model))
    saving = max(row["memory_bytes"] - sure_bytes, -row["headroom_bytes"])
    found = cheapest_saving(evaluator, values_of(Candidates.from_words({n: row[n] for n in COLUMN_NAMES})), saving)
    return FasterIfMemorySaved(
        rank=place + 1,
        row=row,
        gain=row[RATE] / first[RATE] - 1.0,
        saving_bytes=saving,
        remedy="" if found is None else change_text(found),
    )
