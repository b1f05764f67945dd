"""Megatron's arguments in scripts, and candidates from them, named with underscores as Primus and Bridge share them."""

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from primus_search.files.fields import known_keys
from primus_search.launch.contract import modules_of, schedule_of, whole, word_of, words_of
from primus_search.launch.script import bash
from primus_search.launch.script.shell_variables import MARK, MOST_TEXT, UNSET
from primus_search.launch.world import World, world_of
from primus_search.models.families.megatron_hybrid import PATTERNS, VARIANTS
from primus_search.models.megatron_yaml import readable_keys
from primus_search.schedule.algorithms.interleaved import group_size
from primus_search.values.knobs import CpComm
from primus_search.values.layout import BALANCED, EVEN, Layout, expand, layout_string
from primus_search.values.machine.framework import Framework, Settings
from primus_search.values.model import Model

LEVELS = "hierarchical_context_parallel_sizes"
"""Ranks of the all-to-all and of the ring around it (ModelParallelConfig:103)."""
GROUP = "microbatch_group_size_per_vp_stage"
COUNTED = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
MANUAL = "decoder_pipeline_manual_split_list"
"""Primus: layers of each virtual stage (primus_megatron_module.yaml, patches/args/validate_args_patches.py)."""


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
    row, read = words_of(framework, found, has_experts=model is None or model.is_moe)
    knobs = framework.spellings
    row["etp"] = row.get("etp", row.get("tp", 1))
    row |= _pipeline(framework, found, model, row.get("pp", 1), read)
    row["microbatch_group"] = _group(row, found, world)
    row["cp_comm"] = _context(row, found, read)
    if found.get("recompute_granularity") != "full":
        row["recompute"] = modules_of("recompute", knobs["recompute"], found, framework.defaults)
    else:
        row |= {"recompute": "full"} | _full_recompute(framework, found, _most_layers(row, model))
    if row.get("sharding") in ("fsdp2", "hsdp", "megatron_fsdp"):
        copies = whole(knobs["shard_group"].key, found.get(knobs["shard_group"].key) or 1)
        alone = "fsdp2" if row["sharding"] == "hsdp" else row["sharding"]
        row |= sharded(copies, world // (row.get("tp", 1) * row["pp"]) // copies, alone)
    read |= {"recompute_granularity", knobs["recompute"].key, knobs["recompute_num_layers"].key}
    read |= knobs["recompute_method"].keys | {knobs["shard_group"].key, "seq_length", "global_batch_size"}
    return row, read


def _most_layers(row: Mapping[str, Any], model: Model | None) -> int:
    """Layers of the fullest virtual stage; 0 where they are not known."""
    if model is None:
        return 0
    stages = row["pp"] * row["vpp"]
    text = layout_string(model, stages, Layout.parse(row["pipeline_layout"]))
    return max(stage.count("t") for stage in text.split("|")) if text else -(-model.num_layers // stages)


def _full_recompute(framework: Framework, found: Settings, most: int) -> dict[str, Any]:
    """Method and count of full recompute; a count beyond the layers of a virtual stage recomputes all of them.

    Source: megatron/core/transformer/transformer_block.py _checkpointed_forward.
    """
    knobs = framework.spellings
    method = word_of(knobs["recompute_method"], found, framework.defaults) or "uniform"
    key = knobs["recompute_num_layers"].key
    count = whole(key, found.get(key) or 1)
    if (method == "uniform" and count == 1) or (method == "block" and count >= most > 0):
        count = 0
    elif most:
        count = min(count, most)
    return {"recompute_method": method, "recompute_num_layers": count}


def _pipeline(framework: Framework, found: Settings, model: Model | None, pp: int, read: set[str]) -> dict[str, Any]:
    """Virtual stages, layout and schedule."""
    layout_key, vpp_key = framework.spellings["pipeline_layout"].key, framework.spellings["vpp"].key
    others = (*PATTERNS, "virtual_pipeline_model_parallel_size", "num_layers_per_virtual_pipeline_stage", "num_layers",
              "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers", MANUAL, *COUNTED)  # fmt: skip
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
    elif found.get(MANUAL):
        counts = [whole(MANUAL, count) for count in found[MANUAL]]
        vpp, layout = max(len(counts) // pp, 1), Layout("string", text=dealt(counts))
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


# --- arguments of a script --------------------------------------------------------------------------------------------

FLAGS = {
    "microbatch_group_size_per_vp_stage": "microbatch_group_size_per_virtual_pipeline_stage",
    "apply_rope_fusion": "rope_fusion",
}
"""Arguments that the command line spells otherwise than the configuration (ModelParallelConfig:434)."""

LISTS = (
    "spec", "recompute_modules", "offload_modules", "cuda_graph_modules", "cuda_graph_scope", "data_path",
    "hierarchical_context_parallel_sizes", "rampup_batch_size",
)  # fmt: skip
"""Arguments of several words."""
CONFIG, WRITTEN = "deepspeed_config", "deepspeed_config_text"
"""The file of DeepSpeed's settings that a script names, and its text where the script writes it."""
UNDECIDED, STARTS, WORLD, PER_NODE = "undecided", "starts", "world_size", "nproc_per_node"
"""What guesses the settings depend on (name: keys), keys in which several runs of a script differ, its GPUs, and those
of a node."""
ARGUMENTS = {"micro_batch_size", "tensor_model_parallel_size", "num_layers", "hidden_size"}
_OPTIONS = re.compile(f"{MARK}\\w*(?:option|opt|arg|flag|param|extra\\w*)s?{MARK}", re.IGNORECASE)
"""A variable without a value that is called after a list of options, which bash leaves out."""


def settings_in(text: str, environ: Mapping[str, str] | None = None, folder: Path | None = None) -> dict[str, Any]:
    """Megatron arguments in a script or a list of arguments; a bare switch is True, several words are a list.

    Variables have the value that the script gives them, else that of the environment, else the script's default; the
    name of one without any stays in the value (`UNSET`). Raises ValueError where the script ends before it starts
    anything.
    """
    if len(text) > MOST_TEXT:
        raise ValueError(f"is longer than a script of {MOST_TEXT} characters")
    environ = os.environ if environ is None else environ
    script = bash.followed(text, environ, folder)
    found = _settings(script)
    if not ARGUMENTS & found.keys() and script.missing:
        raise ValueError(f"reads {', '.join(map(bash.short, script.missing))}, which is not beside it")
    if not ARGUMENTS & found.keys() and script.left and not script.guesses:
        raise ValueError(f"line {script.left}: the script exits before it starts a training")
    undecided: dict[str, set[str]] = {name: set() for name in script.missing}
    for at, guess in list(script.guesses.items())[: bash.MOST_TRIES]:
        for answer in guess.others:
            taken = {one: made.answer for one, made in script.guesses.items()}
            other = bash.followed(text, environ, folder, taken | {at: answer})
            turned = {} if other.left else _settings(other)
            differs = {key for key in found.keys() | turned.keys() if found.get(key) != turned.get(key)}
            for name in guess.names if differs and (ARGUMENTS & turned.keys()) else ():
                undecided.setdefault(name, set()).update(differs)
    if undecided:
        found[UNDECIDED] = undecided
    if text := script.written(str(found.get(CONFIG, ""))):
        found[WRITTEN] = text
    return found


RUNS_RECIPE = re.compile(r"(?:^|\s)--recipe[= ]")
"""A program of Megatron-Bridge that is given a recipe."""
_OVERRIDE = re.compile(r"\A\+{0,2}~?[a-z]\w*+\.(?:\w+\.)*+(\w+)=(.*)", re.DOTALL)


def recipe_in(text: str, folder: Path | None = None) -> tuple[str, dict[str, str], World]:
    """The last recipe that a script runs (`run_recipe.py --recipe NAME section.key=value`), its overrides by their last
    name, and the GPUs. Raises ValueError where it runs none, or where a variable of them has no value."""
    script = bash.followed(text, os.environ, folder)
    runs = [(words, [part for word in words for part in (word.split("=", 1) if word[:2] == "--" else [word])])
            for words in script.commands]  # fmt: skip
    words, parts = next(((words, parts) for words, parts in reversed(runs) if "--recipe" in parts[:-1]), ([], []))
    if not parts:
        raise ValueError("starts no program with --recipe NAME")
    overrides = {found[1]: found[2] for word in words if (found := _OVERRIDE.fullmatch(word))}
    name = parts[parts.index("--recipe") + 1]
    if unset := UNSET.search(" ".join([name, *overrides.values()])):
        raise ValueError(f"depends on {unset[1]}: set it in the environment (NAME=value before the command)")
    return name, overrides, world_of(words, bash.slurm(text))


def _settings(script: bash.Script) -> dict[str, Any]:
    """Settings of the training that a script starts; of all its words where it starts none."""
    runs = [(words, _arguments(_of_program(words))) for words in script.commands]
    trainings = [(words, found) for words, found in runs if ARGUMENTS & found.keys()]
    if not trainings:  # a file of arrays that another one starts
        listed = [word for held in script.variables.arrays.values() for word in held.values()]
        texts = [word for value in script.variables.values.values() if "--" in value for word in value.split()]
        return _arguments(listed + texts) | {key: value for _, found in runs for key, value in found.items()}
    words, last = trainings[-1]
    differs = {key for _, one in trainings for key in one.keys() | last.keys() if one.get(key) != last.get(key)}
    launched = world_of(words, bash.slurm(script.text))
    started = {WORLD: str(launched.gpus), PER_NODE: str(launched.per_node)} if launched else {}
    return last | ({STARTS: differs} if differs else {}) | started


def _of_program(words: list[str]) -> list[str]:
    """The words behind the program that a command starts; all where none has an argument of a model behind it."""
    for i in range(len(words) - 1, 0, -1):
        behind = words[i + 1 :]
        if (words[i].endswith(".py") or words[i - 1] == "--module") and ARGUMENTS & _arguments(behind).keys():
            return behind
    return words


def _arguments(words: list[str]) -> dict[str, Any]:
    found: dict[str, list[str]] = {}
    name = ""
    for word in (part for one in words for part in (one.split() if one.lstrip().startswith("--") else [one])):
        if word.startswith("--"):
            flag, equals, value = word.removeprefix("--").partition("=")
            name = flag.replace("-", "_")
            found |= {name: [value] if equals else []} if name else {}
        elif name and not _OPTIONS.fullmatch(word):
            found[name].append(word)
    several = {name for name, values in found.items() if name in LISTS or (name == "num_experts" and len(values) > 1)}
    lists = {name: " ".join(found[name]).strip("[]").split() for name in several}  # `[a b]` of functional tests, too
    return {name: True if not values else lists.get(name, values[0]) for name, values in found.items()}
