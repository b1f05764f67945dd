"""The configuration of a published run as a table of one candidate."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from primus_search.evidence.published.run_model import has_layout_of_recipe, pipeline_layout
from primus_search.evidence.published.run_table import PublishedRun, Skipped, arguments, unread
from primus_search.files.framework_files import load_framework
from primus_search.files.known_keys import known_keys
from primus_search.files.setting_keys import setting_keys
from primus_search.files.word_rules import every, first, vocabulary
from primus_search.launch.contract import translated
from primus_search.launch.read.megatron import candidate_words
from primus_search.schedule import algorithm
from primus_search.values.candidates import Candidates
from primus_search.values.knobs.values import PARALLEL
from primus_search.values.layout import BALANCED, EVEN, Layout, stage_layers
from primus_search.values.machine.stack import Stack
from primus_search.values.model import Model


def routing(run: PublishedRun, model: Model, stack: Stack) -> tuple[float, float]:
    """Rows of an expert over its share where no more have room, and the spread of experts' loads."""
    spread = run.told("routing_spread", facts={"stack.": stack}) if model.is_moe else 0.0
    return min(max(float(run.told("routing_imbalance")), 1.0), MOST_CAPACITY), float(spread)


MOST_CAPACITY = 64.0
"""No expert is given room for more than this many times its share; more is read as a typo."""


def build_candidates(run: PublishedRun, model: Model, stack: Stack) -> Candidates:
    """The configuration of a run as a table of one row."""
    pp, vpp, tp = run.count("pp", 1), run.count("vpp", 1), run.count("tp", 1)
    schedule = _schedule(run, pp, vpp)
    vpp = _chunks(schedule, vpp) if pp > 1 else 1
    knobs = _knobs(run, stack)
    layout = _layout(run, model, pp * vpp)
    recompute, layers = _recompute(run, model, pp * vpp, layout)
    sharding = _word(run, "sharding", "fsdp")
    by_contract, _ = of_arguments(run, model)
    if sharding == "hsdp":
        knobs.setdefault("shard_group", run.whole("gpus_per_node", 8) or 8)
    return Candidates.from_words(
        {
            "tp": tp,
            "pp": pp,
            "vpp": vpp,
            "ep": run.count("ep", 1),
            "etp": max(run.parts("etp"), 1),
            "cp": run.count("cp", 1),
            "micro_batch_size": run.count("mbs"),
            "schedule": schedule,
            "pipeline_layout": str(layout),
            "fp8": _word(run, "precision", "precision"),
            "recompute": recompute,
            "recompute_num_layers": layers,
            "recompute_method": "block" if layers else "uniform",
            "sharding": sharding,
            "offload_modules": "+".join(every(vocabulary("words")["offload_modules"], run.words)) or "none",
        }
        | knobs
        | by_contract
        | {
            "sequence_parallel": knobs["sequence_parallel"] and tp > 1,
            "offload_layers": knobs.get("offload_layers", 0) // (pp * vpp),
        }
    )


COLUMNS_OF_DEGREES = frozenset(PARALLEL)
"""Flags that repeat a column."""


def of_arguments(run: PublishedRun, model: Model) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Axes that launch arguments among the flags set, by Megatron's contract, and the flags that nothing reads.

    Arguments that cannot matter for speed or memory are read.
    """
    known, parts = known_keys("megatron"), unread(run.word("flags"))
    given = {key: one for key, one in arguments(parts).items() if key not in COLUMNS_OF_DEGREES}
    left = tuple(
        part for part in parts if part not in {part for k, (part, _) in given.items() if k in known.irrelevant}
    )
    settings = {key: value for key, (_, value) in given.items() if key in setting_keys() and value is not None}
    if not settings:
        return {}, left
    framework = load_framework("megatron")
    degrees = {framework.spellings[axis].key: run.whole(axis, 1) or 1 for axis in ("tp", "pp", "cp", "ep")}
    try:
        (plain, _), (row, read) = (
            candidate_words(framework, translated(framework, degrees | more)[0], model, run.count("gpus"))
            for more in ({}, settings)
        )
    except ValueError:
        return {}, left
    left = tuple(part for part in left if part not in {given[key][0] for key in settings if key in read})
    return {axis: word for axis, word in row.items() if word != plain.get(axis)}, left


def _word(run: PublishedRun, rules: str, column: str) -> str:
    """The value of a column by its rules. Raises `Skipped` for a word that none holds for."""
    found = run.told(rules)
    if found is None:
        raise Skipped(f"{column} {run.word(column)!r} is not known")
    return str(found)


def _knobs(run: PublishedRun, stack: Stack) -> dict[str, Any]:
    """Columns that the words of a run set, by name."""
    facts = run.words | {"stack.": stack}
    found = {name: first(rules, facts) for name, rules in vocabulary("words")["knobs"].items()}
    return {name: value for name, value in found.items() if value is not None}


def _schedule(run: PublishedRun, pp: int, vpp: int) -> str:
    """The pipeline's order; without a pipeline the word does not matter."""
    name = run.told("schedule", facts={"chunks": "several" if vpp > 1 else "one"})
    if name is None and pp > 1:
        raise Skipped(f"schedule {run.word('schedule')!r} is not known")
    return name or "1f1b"


def _chunks(schedule: str, vpp: int) -> int:
    """Chunks a rank holds: tables leave out the number that a schedule is defined for, two of a V."""
    defined = algorithm(schedule).virtual_stages
    return defined[0] if defined is not None and vpp == 1 else vpp


def _recompute(run: PublishedRun, model: Model, stages: int, layout: Layout) -> tuple[str, int]:
    """The recompute word, and for whole layers their number in every virtual stage (0 = all)."""
    modules = [str(module) for module in every(vocabulary("words")["recompute_modules"], run.words)]
    found = run.told("recompute", "+".join(dict.fromkeys(modules)) or "unknown")
    if found == "unknown":
        raise Skipped(f"recompute {run.word('recompute')!r} is not known")
    if found == "layer ids":
        ids = _layer_ids(run)
        if stages > 1:
            layers = _of_every_stage(ids, model, stages, layout)
            return ("full", layers) if layers else ("none", 0)
        found = len(ids)
    if isinstance(found, int):
        return "full", 0 if found >= model.num_layers else found
    return str(found), 0


def _layer_ids(run: PublishedRun) -> list[int]:
    """Layers, counted over the whole model from 0, that are recomputed: `partial:layer ids 0,1,4-6`."""
    found = re.search(r"layer ids (\d{1,5}(?:[,-]\d{1,5})*)", run.word("recompute").lower())
    ends = [part.partition("-") for part in found.group(1).split(",")] if found else []
    return sorted({number for start, _, last in ends for number in range(int(start), int(last or start) + 1)})


def _of_every_stage(ids: Sequence[int], model: Model, stages: int, layout: Layout) -> int:
    """How many layers of every virtual stage a list of the whole model's layers names. Raises `Skipped` if they differ.

    Megatron-style knobs recompute as many layers of each stage. Where some stages recompute and others do not, neither
    the slowest nor the fullest is that of any such knob.
    """
    dealt = stage_layers(model, stages, layout)
    if dealt is None:
        raise Skipped(f"{model.num_layers} layers cannot be dealt to {stages} virtual stages")
    ends = np.cumsum(dealt.layers)
    counts = np.bincount(np.searchsorted(ends, ids, side="right"), minlength=stages)[:stages]
    if counts.min() != counts.max():
        raise Skipped(f"layers recomputed are {counts.min()} to {counts.max()} per virtual stage, which is no setting")
    return int(counts.min())


def _layout(run: PublishedRun, model: Model, stages: int) -> Layout:
    text = pipeline_layout(run)
    if text:
        return Layout("string", text=text)
    if stages == 1 or model.num_layers % stages == 0:
        return EVEN
    most = -(-model.num_layers // stages)
    rest = model.num_layers - (stages - 1) * most
    if (model.num_mtp_layers or has_layout_of_recipe(run)) and rest >= 0:
        # Megatron-Bridge's layouts of DeepSeek-V3 and Kimi K2: full stages, and what is left to the one with MTP and
        # loss (recipes/kimi/kimi_k2.py, _get_kimi_k2_pipeline_layout).
        return Layout("ends", last=rest)
    if (model.num_layers + 2) % stages == 0:
        # Megatron's account_for_embedding_in_pipeline_split and its twin for the loss: each end counts as a layer.
        at_ends = (model.num_layers + 2) // stages - 1
        return Layout("ends", first=at_ends, last=at_ends)
    return BALANCED
