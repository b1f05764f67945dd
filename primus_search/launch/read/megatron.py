"""Candidates from Megatron's settings, named with underscores as Primus and Bridge share them."""

from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import Any

from primus_search.files.known_keys import known_keys
from primus_search.launch.contract import modules_of, schedule_of, whole, word_of, words_of
from primus_search.models.families.megatron_hybrid import PATTERNS, VARIANTS
from primus_search.models.megatron_yaml import readable_keys
from primus_search.schedule.algorithms.interleaved import group_size
from primus_search.values.knobs import CpComm
from primus_search.values.layout import BALANCED, EVEN, Layout, expand, layout_string
from primus_search.values.machine.framework import Framework, Settings
from primus_search.values.model import Model

LEVELS = "hierarchical_context_parallel_sizes"
RANK_TOKENS = "max_seqlen_per_dp_cp_rank"
"""Ranks of the all-to-all and of the ring around it (ModelParallelConfig:103)."""
GROUP = "microbatch_group_size_per_vp_stage"
COUNTED = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")


def sharded(copies: int, ranks: int, alone: str = "fsdp2") -> dict[str, Any]:
    """The axes of weights in so many copies, each sharded over `ranks`; `alone`: the word of a single copy."""
    return {"sharding": "hsdp", "shard_group": ranks} if copies > 1 else {"sharding": alone}


def _group(row: Mapping[str, Any], found: Settings, world: int) -> int:
    """Micro-batches of a group where a file chooses them: 0 for those that interleaving has anyway."""
    group, pp = row.get("microbatch_group", 0), row["pp"]
    batch = whole("global_batch_size", found.get("global_batch_size") or 0, least=0)
    replicas = world // (row.get("tp", 1) * pp * row.get("cp", 1))
    microbatches = batch // max(row.get("micro_batch_size", 1) * replicas, 1)
    is_usual = group == pp or (microbatches > pp and microbatches % pp and group == group_size(microbatches, pp))
    return 0 if row["schedule"] != "interleaved" or is_usual else int(group)


def _context(row: Mapping[str, Any], found: Settings, read: set[str]) -> str:
    """Exchange of context where a file gives the ranks of its levels; one level of a single rank leaves the other.

    Raises ValueError for levels that are no all-to-all of 2, 4, 8 or 16 ranks inside a ring.
    Source: NVIDIA/TransformerEngine context_parallel.py attn_forward_func_with_cp, which takes two levels.
    """
    read.add(LEVELS)
    word = str(row.get("cp_comm", "stack"))
    if not CpComm[word.upper()].inner_ranks or row.get("cp", 1) == 1:
        return word
    given = found.get(LEVELS) or []
    sizes = [whole(LEVELS, size, least=1) for size in (given if isinstance(given, list) else str(given).split())]
    if len(sizes) != 2 or sizes[0] * sizes[1] != row["cp"]:
        raise ValueError(f"{LEVELS}: {sizes} is no all-to-all and ring of {row['cp']} ranks")
    if 1 in sizes:
        return "p2p" if sizes[0] == 1 else "a2a"
    words = {way.inner_ranks: way.name.lower() for way in CpComm if way.inner_ranks}
    if sizes[0] not in words:
        raise ValueError(
            f"{LEVELS}: an all-to-all of {sizes[0]} ranks inside a ring has no word; known: {sorted(words)}"
        )
    return words[sizes[0]]


def candidate_words(
    framework: Framework, found: Settings, model: Model | None, world: int
) -> tuple[dict[str, Any], set[str]]:
    """The axes of a candidate that a file's settings give, on `world` devices, and the keys that were read."""
    row, read = words_of(framework.of(model), found)
    knobs = framework.spellings
    row["etp"] = row.get("etp", row.get("tp", 1))
    row |= _pipeline(framework, found, model, row.get("pp", 1), read)
    row["microbatch_group"] = _group(row, found, world)
    row["cp_comm"] = _context(row, found, read)
    if row.get("hybrid_cp") and found.get(RANK_TOKENS) == whole("seq_length", found.get("seq_length", 0)) // row["cp"]:
        read.add(RANK_TOKENS)  # as priced; another number is listed as not priced
    if found.get("recompute_granularity") != "full":
        row["recompute"] = modules_of("recompute", knobs["recompute"], found, framework.defaults)
    else:
        row |= _full_recompute(framework, found, _most_layers(row, model))
    if row.get("sharding") in ("fsdp2", "hsdp", "megatron_fsdp"):
        copies = whole(knobs["shard_group"].key, found.get(knobs["shard_group"].key) or 1)
        alone = "fsdp2" if row["sharding"] == "hsdp" else row["sharding"]
        ranks = world // (row.get("tp", 1) * row["pp"]) // copies
        is_whole = ranks == 1 and copies > 1 and alone == "megatron_fsdp"  # each rank is a group
        is_whole &= found.get("outer_dp_sharding_strategy") != "optim"
        row |= {"sharding": "none"} if is_whole else sharded(copies, ranks, alone)
    read |= {"recompute_granularity", knobs["recompute"].key, knobs["recompute_num_layers"].key}
    read |= knobs["recompute_method"].keys | {knobs["shard_group"].key, "seq_length", "global_batch_size"}
    return row, read


SCHEDULE = "step_batch_size_schedule"


def default_batch(found: Settings, world: int) -> int:
    """Sequences of a step of a job that names none: the last of its schedule, else a micro-batch of every replica; 0
    where it names no micro-batch.

    Source: megatron/training/arguments.py:702, core/num_microbatches_calculator.py:451 of d98e8a64.
    """
    if steps := str(found.get(SCHEDULE) or "").replace(",", " ").split():
        return whole(SCHEDULE, steps[-1].rpartition(":")[2], least=1)
    degrees = (f"{axis}_parallel_size" for axis in ("tensor_model", "pipeline_model", "context"))
    ranks = prod(whole(key, found.get(key) or 1, least=1) for key in degrees)
    return whole("micro_batch_size", found.get("micro_batch_size") or 0, least=0) * max(world // ranks, 1)


def _most_layers(row: Mapping[str, Any], model: Model | None) -> int:
    """Layers of the fullest virtual stage; 0 where they are not known."""
    if model is None:
        return 0
    stages = row["pp"] * row["vpp"]
    text = layout_string(model, stages, Layout.parse(row["pipeline_layout"]))
    return max(stage.count("t") for stage in text.split("|")) if text else -(-model.num_layers // stages)


def _full_recompute(framework: Framework, found: Settings, most: int) -> dict[str, Any]:
    """Method and count of full recompute; a count beyond the layers of a virtual stage recomputes all of them, a block
    of none nothing.

    Source: megatron/core/transformer/transformer_block.py _checkpointed_forward.
    """
    knobs = framework.spellings
    method = word_of(knobs["recompute_method"], found, framework.defaults) or "uniform"
    key = knobs["recompute_num_layers"].key
    if method == "block" and str(found.get(key)) == "0":
        return {"recompute": "none"}
    count = whole(key, found.get(key) or 1, least=1)
    if (method == "uniform" and count == 1) or (method == "block" and count >= most > 0):
        count = 0
    elif most:
        count = min(count, most)
    return {"recompute": "full", "recompute_method": method, "recompute_num_layers": count}


def _pipeline(framework: Framework, found: Settings, model: Model | None, pp: int, read: set[str]) -> dict[str, Any]:
    """Virtual stages, layout and schedule."""
    layout_key, vpp_key = framework.spellings["pipeline_layout"].key, framework.spellings["vpp"].key
    others = (*PATTERNS, "virtual_pipeline_model_parallel_size", "num_layers_per_virtual_pipeline_stage", "num_layers",
              "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers", *COUNTED)  # fmt: skip
    read |= {layout_key, vpp_key, *others}
    read |= {key for schedule in framework.schedules.values() for key in schedule.keys}
    vpp, layout = 1, EVEN
    letters = next((str(found[key]) for key in PATTERNS if found.get(key)), "")
    if "|" in letters:
        text = _layout_of(letters)
        vpp, layout = max(len(expand(text)) // pp, 1), Layout("string", text=text)
    elif found.get(layout_key):
        text = str(found[layout_key])
        vpp, layout = max(len(expand(text)) // pp, 1), Layout.parse(text)
    else:
        vpp = _virtual_stages(found, vpp_key, model, pp)
        first, last = (found.get(f"decoder_{end}_pipeline_num_layers") for end in ("first", "last"))
        if first is not None or last is not None:
            layout = Layout("ends", first and whole("decoder_first_pipeline_num_layers", first),
                            last and whole("decoder_last_pipeline_num_layers", last))  # fmt: skip
        elif model is not None and pp > 1:
            layout = _with_counted_ends(found, model.num_layers, pp * vpp)
    if pp == 1 and vpp == 1:
        layout = EVEN
    schedule = schedule_of(framework, found, vpp)
    if schedule is None:
        raise ValueError(f"no schedule of {framework.title} has these settings with {vpp} virtual stages per rank")
    return {"pp": pp, "vpp": vpp, "schedule": schedule, "pipeline_layout": str(canonical(layout, model, pp * vpp))}


def _with_counted_ends(found: Settings, layers: int, stages: int) -> Layout:
    """The layout where embedding or loss count as a layer of the first or last virtual stage.

    Raises ValueError where layers and ends do not divide, which Megatron-Core refuses as well (transformer_config.py).
    """
    counted = [bool(found.get(key)) for key in COUNTED]
    if not any(counted):
        return EVEN
    each, rest = divmod(layers + sum(counted), stages)
    if rest:
        raise ValueError(f"{layers} layers and {sum(counted)} counted ends do not divide over {stages} virtual stages")
    first, last = (each - 1 if one else None for one in counted)
    return Layout("ends", first, last)


def _layout_of(letters: str) -> str:
    """The layout of a hybrid pattern, `M-M|*-M/E`: bars between virtual stages, a part for each prediction layer."""
    main, *predictions = letters.split("/")
    return dealt([len(stage) for stage in main.split("|")], len(predictions))


def dealt(counts: list[int], predictions: int = 0) -> str:
    """The layout of so many layers on each virtual stage."""
    return "E" + "|".join("t" * count for count in counts) + "m" * predictions + "L"


def _virtual_stages(found: Settings, key: str, model: Model | None, pp: int) -> int:
    """Chunks of a rank, from their number or from the layers of each, embedding and loss counted where a file counts
    them. Raises ValueError where they do not divide. Source: megatron/training/arguments.py validate_args."""
    for name in (key, "virtual_pipeline_model_parallel_size"):
        if found.get(name):
            return whole(name, found[name])
    each = found.get("num_layers_per_virtual_pipeline_stage")
    if not each:
        return 1
    layers = whole("num_layers", found["num_layers"]) if found.get("num_layers") else model.num_layers if model else 0
    if not layers:
        raise ValueError("num_layers_per_virtual_pipeline_stage needs num_layers or a model")
    ends = sum(bool(found.get(key)) for key in COUNTED)
    of_rank, rest = divmod(layers + ends, pp)
    chunks, over = divmod(of_rank, whole("num_layers_per_virtual_pipeline_stage", each, least=1))
    if rest or over or not chunks:
        counted = f" and {ends} counted ends" * bool(ends)
        raise ValueError(f"{layers} layers{counted} do not divide over {pp} stages in chunks of {each} layers")
    return chunks


def canonical(layout: Layout, model: Model | None, stages: int) -> Layout:
    """The plainest layout that deals the layers in the same way."""
    if model is None:
        return layout
    text = layout_string(model, stages, layout)
    if not text:
        return layout
    parts = text.split("|")
    ends = Layout("ends", parts[0].count("t"), parts[-1].count("t"))
    return next((plain for plain in (EVEN, BALANCED, ends) if layout_string(model, stages, plain) == text), layout)


@lru_cache(maxsize=1)
def model_keys() -> frozenset[str]:
    """Every argument that sizes a model, or makes layers of another kind."""
    variants = (key for variant in VARIANTS for key in variant.keys)
    return frozenset((*readable_keys(), *known_keys("megatron").switches, *variants))
