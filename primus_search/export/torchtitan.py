"""torchtitan 0.2.2: a job file (TOML), a script, and a model specification where it has no flavor of this shape."""

from collections.abc import Mapping
from itertools import count
from typing import Any

from primus_search.declare.presets import registered_model
from primus_search.export import shell
from primus_search.export.job import LaunchJob, sharded
from primus_search.export.megatron_arguments import dealt
from primus_search.export.settings import settings_of, whole, words_of
from primus_search.export.torchtitan_models import FLAVOR, MODEL_FILE, MODULE, model_file
from primus_search.values.layout import Layout
from primus_search.values.machine.framework import Framework, Settings
from primus_search.values.model import Model

JOB, SCRIPT = "torchtitan.toml", "torchtitan.sh"
EDITS = [
    "model.hf_assets_path and training.dataset in torchtitan.toml (its small test data as written)",
    "learning rate, steps and checkpoint folder in torchtitan.toml",
]


def files(job: LaunchJob) -> dict[str, str]:
    """The job file and the script of a candidate, and a model file where torchtitan has no flavor of this shape."""
    import tomli_w

    found = {JOB: shell.notes(job, EDITS) + tomli_w.dumps(nested(settings(job))), SCRIPT: script(job)}
    if registered_model(job.framework, job.model) is None:
        found[MODEL_FILE] = model_file(job.model)
    return found


def settings(job: LaunchJob) -> dict[str, Any]:
    """Every key of the job file, section and name with dots."""
    row = job.row
    own = registered_model(job.framework, job.model)
    family, _, flavor = (own or f"{MODULE}:{FLAVOR}").partition(":")
    said: dict[str, Any] = {
        "job.description": f"{shell.safe_name(job.model.name)} on {job.cluster.world} GPUs",
        "job.dump_folder": "./outputs",
        "model.name": family,
        "model.flavor": flavor,
        "training.seq_len": job.workload.seq_length,
        "training.global_batch_size": job.workload.global_batch_size,
        # With a pipeline a local batch is cut into micro-batches, without one it is a micro-batch.
        "training.local_batch_size": row["micro_batch_size"] * (job.microbatches if row["pp"] > 1 else 1),
        "training.steps": 50,
        "training.mixed_precision_param": "bfloat16",
        "training.mixed_precision_reduce": "float32",
    }
    if own is None:
        said["experimental.custom_import"] = MODULE
    written = settings_of(job.framework, row, has_experts=job.model.is_moe)
    if row["pp"] == 1:
        written = {k: v for k, v in written.items() if not k.startswith("parallelism.pipeline_parallel_")}
        written["parallelism.pipeline_parallel_degree"] = 1
    return said | written | _degrees(job) | _stages(job) | _checkpointing(job)


def _checkpointing(job: LaunchJob) -> dict[str, Any]:
    """What is recomputed: every layer, or every n-th where a number of layers per virtual stage is given."""
    row = job.row
    said = dict(job.framework.spellings["recompute"].values[row["recompute"]])
    if row["recompute"] == "full" and row["recompute_num_layers"]:
        each = job.model.num_layers // (row["pp"] * row["vpp"]) // row["recompute_num_layers"]
        said = {MODE: "selective", OPTION: str(each)}
    return said


def _degrees(job: LaunchJob) -> dict[str, Any]:
    """Replicated and sharded ranks: FSDP shards over all of dp, HSDP inside groups that span context parallelism."""
    shard = {"none": 1, "fsdp2": job.dp, "hsdp": max(job.dp // job.num_copies, 1)}[job.row["sharding"]]
    return {
        "parallelism.data_parallel_replicate_degree": job.dp // shard,
        "parallelism.data_parallel_shard_degree": shard,
    }


def _stages(job: LaunchJob) -> dict[str, Any]:
    """Layers of each stage: an even split without torchtitan's discount for embedding and head, or lists."""
    row = job.row
    if row["pp"] == 1:
        return {}
    if job.layout is not None:
        return {"parallelism.module_fqns_per_model_part": _parts(job.layout)}
    return {
        "parallelism.pipeline_parallel_layers_per_stage": job.model.num_layers // (row["pp"] * row["vpp"]),
        "parallelism.pipeline_parallel_first_stage_less_layers": 0,
        "parallelism.pipeline_parallel_last_stage_less_layers": 0,
    }


def _parts(layout: str) -> list[list[str]]:
    """The modules of each virtual stage."""
    layers = count()

    def modules(letter: str) -> list[str]:
        return [f"layers.{next(layers)}"] if letter == "t" else ENDS.get(letter, [])

    return [[name for letter in stage for name in modules(letter)] for stage in layout.split("|")]


ENDS = {"E": ["tok_embeddings"], "L": ["norm", "output"]}
"""Modules of the first and the last stage by their letter in a layout."""


def nested(said: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as nested tables."""
    tables: dict[str, Any] = {}
    for key, value in said.items():
        *path, name = key.split(".")
        table = tables
        for part in path:
            table = table.setdefault(part, {})
        table[name] = value
    return tables


def flattened(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys."""
    found: dict[str, Any] = {}
    for key, value in tables.items():
        found |= flattened(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return found


def script(job: LaunchJob) -> str:
    """The script that starts torchtitan's trainer on every node."""
    lines = [
        "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        'export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"',
        shell.rendezvous(job),
        shell.TORCHRUN,
        f'  -m torchtitan.train --job.config_file "$PWD/{JOB}" "$@"',
    ]
    return shell.script(job, SCRIPT, EDITS, lines)


# --- reading ----------------------------------------------------------------------------------------------------------


MODE, OPTION = "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"
READ = {
    "training.local_batch_size", "training.global_batch_size", "training.seq_len", "compile.enable",
    "parallelism.data_parallel_replicate_degree", "parallelism.data_parallel_shard_degree", "compile.components",
}  # fmt: skip


def words(framework: Framework, found: Settings, model: Model | None, world: int) -> tuple[dict[str, Any], set[str]]:
    """The axes of a candidate that a job file's settings give, on `world` devices, and the keys that were read."""
    row, read = words_of(framework, found, has_experts=model is None or model.is_moe)
    knobs, defaults = framework.spellings, framework.defaults
    pp = row.get("pp", 1)
    row["sequence_parallel"] = row.get("tp", 1) > 1
    row |= _pipeline_words(framework, found, model, pp, read)
    row |= _recompute(framework, found, model, pp * row["vpp"])
    read |= knobs["recompute"].keys
    if pp == 1:
        row["micro_batch_size"] = whole("training.local_batch_size", _get(found, defaults, "training.local_batch_size"))
    row |= _sharding(found, defaults, row, world)
    read |= READ
    components = _get(found, defaults, "compile.components") or []
    row["loss_fusion"] = bool(_get(found, defaults, "compile.enable")) and "loss" in components
    return row, read


def _get(found: Settings, defaults: Settings, key: str) -> Any:
    return found.get(key, defaults.get(key))


def _recompute(framework: Framework, found: Settings, model: Model | None, stages: int) -> dict[str, Any]:
    mode = _get(found, framework.defaults, MODE)
    option = str(_get(found, framework.defaults, OPTION))
    if mode == "selective" and option == "op":
        return {"recompute": "op_sac"}
    if mode == "selective" and option in ("0", "1"):
        return {"recompute": "full"}
    if mode == "selective" and option.isdecimal() and model is not None:
        layers = model.num_layers // stages // int(option)
        block = {"recompute": "full", "recompute_method": "block", "recompute_num_layers": layers}
        return block if layers else {"recompute": "none"}
    if mode in ("none", "full"):
        return {"recompute": str(mode)}
    raise ValueError(f"activation_checkpoint: mode {mode} with option {option} is not modelled")


def _sharding(found: Settings, defaults: Settings, row: Mapping[str, Any], world: int) -> dict[str, Any]:
    replicas = whole("data_parallel_replicate_degree", found.get("parallelism.data_parallel_replicate_degree", 1))
    shard = whole("data_parallel_shard_degree", _get(found, defaults, "parallelism.data_parallel_shard_degree"))
    cp = row.get("cp", 1)
    ranks = row.get("tp", 1) * cp * row.get("pp", 1)
    shard = world // (ranks * replicas) if shard < 0 else shard
    if shard * cp <= 1:
        return {"sharding": "none"}
    return sharded(replicas, shard * cp)


def _pipeline_words(
    framework: Framework, found: Settings, model: Model | None, pp: int, read: set[str]
) -> dict[str, Any]:
    """Virtual stages, layout and schedule."""
    key = "parallelism.pipeline_parallel_"
    first, last = f"{key}first_stage_less_layers", f"{key}last_stage_less_layers"
    fqns, each = "parallelism.module_fqns_per_model_part", f"{key}layers_per_stage"
    read |= {first, last, fqns, each, f"{key}schedule", f"{key}microbatch_size"}
    if pp == 1:
        return {"vpp": 1, "schedule": "1f1b", "pipeline_layout": "even"}
    name = str(_get(found, framework.defaults, f"{key}schedule"))
    schedule = next(
        (n for n, s in framework.schedules.items() if s.keys[f"{key}schedule"].lower() == name.lower()), None
    )
    if schedule is None:
        raise ValueError(f"{key}schedule: {name} is not modelled; known: {', '.join(framework.schedules)}")
    stages = pp * framework.schedules[schedule].least
    less = [whole(k, _get(found, framework.defaults, k)) for k in (first, last)]
    if found.get(fqns):
        text = "|".join(_letters(part) for part in found[fqns])
        return {"vpp": len(found[fqns]) // pp, "schedule": schedule, "pipeline_layout": text}
    if found.get(each) and model is not None:
        stages = -(-(model.num_layers + sum(less)) // whole(each, found[each], least=1))
    layout = "even" if model is None else str(_split(model.num_layers, stages, *less))
    return {"vpp": max(stages // pp, 1), "schedule": schedule, "pipeline_layout": layout}


def _letters(modules: list[str]) -> str:
    text = "E" if "tok_embeddings" in modules else ""
    text += "t" * sum(module.startswith("layers.") for module in modules)
    return text + ("L" if "output" in modules else "")


def _split(layers: int, stages: int, first: int, last: int) -> Layout:
    """The layers of each stage as torchtitan deals them: embedding and head count as so many layers.

    Source: torchtitan/distributed/pipeline_parallel.py, generate_llm_fqn_per_model_part.
    """
    each, extra = divmod(layers + first + last, stages)
    counts = [each + (stage < extra) for stage in range(stages)]
    counts[0], counts[-1] = counts[0] - first, counts[-1] - last
    if len(set(counts)) == 1:
        return Layout("even")
    return Layout("string", text=dealt(counts))
