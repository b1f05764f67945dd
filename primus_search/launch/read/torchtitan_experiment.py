"""The experiment of torchtitan's settings, and the model that its flavor or a module beside the file names."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from primus_search.base.errors import Problem
from primus_search.base.guards.files import MAX_TABLE_BYTES, read_text
from primus_search.files.known_keys import key_table
from primus_search.files.source import shown
from primus_search.launch.adapters import LoraKeys, keys_of, tuning_in
from primus_search.launch.contract import translated
from primus_search.launch.experiment import Experiment, experiment_of
from primus_search.launch.read import torchtitan
from primus_search.launch.world import World
from primus_search.models import torchtitan_arguments
from primus_search.models.megatron_yaml import PRESET_FOLDER, from_document, primus_file, primus_files
from primus_search.models.presets import load_preset, presets
from primus_search.models.registered import model_called, part_called
from primus_search.models.torchtitan_arguments import NAME, model_of_module
from primus_search.values.machine.framework import NOTHING, Framework, Settings
from primus_search.values.model import Model

CONTEXT, TOKENS = "training.max_context_length", "training.num_tokens_per_microbatch_per_dp_rank"
STEP_TOKENS = "training.num_tokens_per_train_step"
"""Sizes in tokens, which torchtitan has in place of rows after 0.3.0."""
IN_TOKENS = {CONTEXT: 2048, TOKENS: 16384, STEP_TOKENS: -1}
PIECES = "parallelism.num_pp_microbatches"
"""How many micro-batches of so many tokens a pipeline takes at a time."""


OF_VOCABULARY = ("training.vocab_size", "model.vocab_size")
"""Settings of forks whose tokens are their own; a release takes the tokenizer's."""


def _in_rows(given: dict[str, Any]) -> dict[str, Any]:
    """Settings whose sizes in tokens are those in rows of the longest context."""
    if not IN_TOKENS.keys() & given.keys():
        return given
    length, tokens, of_step = (int(str(given.get(key, default))) for key, default in IN_TOKENS.items())
    rows = {"seq_length": length, "local_batch_size": max(tokens // max(length, 1), 1)}
    rows |= {"global_batch_size": max(of_step // max(length, 1), 1)} if of_step > 0 else {}
    kept = {key: value for key, value in given.items() if key not in (*IN_TOKENS, PIECES)}
    if int(str(given.get("parallelism.pipeline_parallel_degree", 1))) > 1:
        kept |= {"parallelism.pipeline_parallel_microbatch_size": rows["local_batch_size"]}
        rows["local_batch_size"] *= int(str(given.get(PIECES, 1)))
    return {torchtitan.SIZES[name]: count for name, count in rows.items()} | kept


def of_torchtitan(
    path: Path,
    given: dict[str, Any],
    world: int,
    model: Model | None,
    framework: Framework,
    preset: Settings = NOTHING,
    *,
    is_whole: bool = True,
) -> Experiment:
    """The experiment of torchtitan settings; `preset` holds what a launcher sets where they do not."""
    lora = keys_of(framework)
    tuning, notes_of_tuning = _tuning(given, lora)
    given = _in_rows(_without_adapters(given, lora) if tuning else given)
    given, origin = translated(framework, given)
    found = {**preset, **given}
    loaded = model or _of_vocabulary(flavored(framework, found), given) or _imported(path, found)
    problems = () if loaded else (Problem(shown(path), "names no model that a preset has the shape of; give --model"),)
    row, keys = torchtitan.words(framework, found, loaded, world)
    set_for = {name: found.get(key, framework.defaults.get(key)) for name, key in torchtitan.SIZES.items()}
    local, ranks = int(str(set_for["local_batch_size"])), row.get("tp", 1) * row.get("pp", 1) * row.get("cp", 1)
    started = torchtitan.devices(found, row)
    if int(str(set_for["global_batch_size"] or -1)) < 0:
        set_for["global_batch_size"] = local * ((started or world) // ranks) or None
    batch = int(str(set_for["global_batch_size"] or 0))
    read = experiment_of(
        path,
        framework,
        row,
        {**found, **set_for},
        given,
        keys,
        (loaded, problems),
        World(started),
        origin,
        is_whole=is_whole,
    )
    own = (torchtitan.COMPILE, torchtitan.COMPONENTS, *(OF_VOCABULARY if not model else ()))
    keys_of_variant = tuple(origin.get(key, key) for key in own)
    notes = [note for note in read.not_modelled if not note.startswith(keys_of_variant)]
    if row.get("pp", 1) > 1 and started and batch * ranks != local * started:
        flushes = f"projected as {batch * ranks // started}: the pipeline is emptied once a step"
        notes.append(f"training.local_batch_size: {local} ({flushes})")
    if torchtitan.is_budgeted(found):
        notes.append(f"{torchtitan.CHECKPOINTING}: memory budget (projected as {row['recompute']})")
    is_job_file = torchtitan.MODE in framework.defaults
    registered = torchtitan_arguments.flavor(_flavor_name(found)) if is_job_file and not model else None
    if registered and registered[1]:
        flavor = f"model.flavor: {found['model.flavor']}"
        notes.append(f"{flavor} ({flavor} (not priced: attention by {registered[1]} over packed documents))")
    is_eager = "model" not in torchtitan.compiled(found, framework.defaults)
    facts = {"num_chunks": int(read.numbers.get("loss_chunks", 1)), **_facts(loaded, found)} if loaded else {}
    written = {**framework.defaults, **found, **facts} if is_whole and loaded else NOTHING
    has_part = loaded is not None and loaded == part_called(_flavor_name(found))
    return replace(
        read,
        not_modelled=(*notes, *notes_of_tuning),
        variant=torchtitan.EAGER if is_eager else "",
        written=written,
        tuning=tuning or read.tuning,
        assumed=(*read.assumed, *((OF_TOWER,) if has_part else ())),
    )


OF_TOWER = "the language model alone: a tower for images is not priced, documents of text are assumed"


def _of_vocabulary(model: Model | None, given: Settings) -> Model | None:
    """The model of a flavor with the vocabulary that a fork's own setting names, where one does."""
    counts = (int(size) for key in OF_VOCABULARY if (size := str(given.get(key, ""))).isdecimal() and int(size))
    rows = next(counts, 0)
    return replace(model, vocab_size=rows) if model and rows else model


def _facts(model: Model, found: Settings) -> dict[str, Any]:
    """What refusals look up of a model, by the names of `refusals/torchtitan.yaml`."""
    return {
        "model_name": found.get("model_spec.name", found.get("model.name")),
        "n_layers": model.num_layers,
        "n_experts": model.moe.num_experts if model.moe and model.is_moe else 1,
        "n_heads": model.num_heads,
        "n_kv_heads": model.num_heads if model.latent else model.num_kv_heads,
        "is_tied": model.is_tied,
        "num_mtp_layers": model.num_mtp_layers,
        "attn_type": torchtitan_arguments.kernel(_flavor_name(found)),
        "non_blocking_capacity_factor": found.get("model_spec.non_blocking_capacity_factor"),
    }


CONVERTERS = "model_spec.converters"


def _tuning(given: Settings, keys: LoraKeys) -> tuple[dict[str, Any], list[str]]:
    """`task` and `lora` of a workload as converters say them, and a note on adapters that are priced otherwise."""
    tuning, names = tuning_in(given, keys), given.get(keys.modules[0]) or []
    note = f"{CONVERTERS}: LoRAConverter (projected as an adapter of K and one of V, none of the head)"
    return tuning, [note] if tuning and (not names or "wkv" in names) else []


def _without_adapters(given: Settings, keys: LoraKeys) -> dict[str, Any]:
    """Settings without those of adapters."""
    named = given[CONVERTERS]
    others = [one for one in named if "lora" not in str(one).lower()] if isinstance(named, list) else []
    rest = {key: value for key, value in given.items() if key not in keys.read}
    return rest | ({CONVERTERS: others} if others else {})


def namesake(path: Path, name: str) -> Model | None:
    """The model of a file of Primus' back ends: the preset, or the Megatron file of Primus, that is called the same.

    Source: AMD-AGI/Primus fd1eeabb primus/backends/megatron_bridge/recipes/zebra_llama: mixed layers have one spec
    """
    stem = Path(name).stem.lower().removesuffix("-fp8").replace("x16e", "16e").replace("x128e", "128e")
    known = presets()
    if stem in known:
        return known[stem].model
    of_stem = (Path(one).name for one in primus_files() if Path(one).parent == PRESET_FOLDER)
    same = next((one for one in of_stem if one.lower() == f"{stem}.yaml"), stem)
    found = primus_file(same, path.parent, os.environ, PRESET_FOLDER)
    if not found:
        return None
    document, file = found
    has_mixed = isinstance(document.data, dict) and document.data.get("is_hybrid_model")
    return from_document(replace(document, data={"spec": MIXED, **document.data}) if has_mixed else document, file)


MIXED = ("primus.backends.megatron.core.models.hybrid.hybrid_mamba_mla_layer_specs", "hybrid_stack_spec")


def _imported(path: Path, found: Settings) -> Model | None:
    """The model that a module beside the file registers under the name in the file."""
    module = path.with_name(f"{found.get('experimental.custom_import')}.py")
    if not module.is_file() or _flavor_name(found) != f"{module.stem}:{NAME}":
        return None
    return replace(model_of_module(read_text(module, most=MAX_TABLE_BYTES)), name=module.stem)


def flavored(framework: Framework, found: Settings) -> Model | None:
    """The model of a flavor: the preset that the contract names for it, else what torchtitan registers or did."""
    name = _flavor_name(found)
    registered = torchtitan_arguments.flavor(name)
    known = model_called(framework, name) or (registered and registered[0]) or part_called(name)
    if known is None and (preset := key_table(framework.keys)["earlier_models"].get(name)):
        known = load_preset(preset).model
    predicted = found.get("model_spec.num_mtp_layers")
    return replace(known, num_mtp_layers=int(predicted)) if known and predicted else known


def _flavor_name(found: Settings) -> str:
    part = "model_spec" if "model_spec.name" in found else "model"
    return f"{found.get(f'{part}.name')}:{found.get(f'{part}.flavor')}"
