"""torchtitan 0.2.2: a job file (TOML), a script, and a model specification where it has no flavor of this shape."""

from collections.abc import Mapping
from itertools import count
from typing import Any

from primus_search.launch.contract import settings_of
from primus_search.launch.read.torchtitan import COMPILE, COMPONENTS, MODE, OPTION, ORDER_FILE
from primus_search.launch.write.job import LaunchJob
from primus_search.launch.write.shell import Text, launch_file, safe_name
from primus_search.launch.write.torchtitan_model import FLAVOR, MODEL_FILE, MODULE, edits, flavor_of, model_file
from primus_search.schedule import PassKind, Table, order_for


def files(job: LaunchJob) -> dict[str, Text]:
    """The job file and the script of a candidate, and a model file where torchtitan has no flavor of this shape."""
    import tomli_w

    found: dict[str, Text] = {
        "torchtitan.toml": launch_file(job, "notes.txt", edits(job), tomli_w.dumps(nested(settings(job)))),
        "torchtitan.sh": launch_file(job, "torchtitan.sh"),
    }
    if flavor_of(job.framework, job.model) is None:
        found[MODEL_FILE] = model_file(job)
    order_file = settings(job).get(ORDER_FILE)
    if order_file:
        found[order_file] = order_text(order_for(job.candidate.order(0, job.launcher), job.microbatches))
    return found


def order_text(table: Table) -> str:
    """The passes of a pipeline order, a line per rank, as torch's `_load_csv` reads them: `0F0,0I0,0W0`."""
    letters = {PassKind.F: "F", PassKind.B: "I", PassKind.W: "W", PassKind.BW: "B"}
    ranks = map(table.rank, range(table.stages))
    return "".join(
        ",".join(f"{s}{letters[k]}{m}" for k, s, m in zip(r.kind, r.stage, r.micro_batch, strict=True)) + "\n"
        for r in ranks
    )


def settings(job: LaunchJob) -> dict[str, Any]:
    """Every key of the job file, section and name with dots."""
    row = job.row
    own = flavor_of(job.framework, job.model)
    family, _, flavor = (own or f"{MODULE}:{FLAVOR}").partition(":")
    said: dict[str, Any] = {
        "job.description": f"{safe_name(job.model.name)} on {job.cluster.world} GPUs",
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
    return said | written | _compiled(job) | _degrees(job) | _stages(job) | _checkpointing(job)


def _compiled(job: LaunchJob) -> dict[str, Any]:
    """What torch.compile takes: blocks unless the stack runs them eagerly, and the loss where it is fused."""
    is_compiled = {"model": job.cluster.stack.kernels.has_fused_norm, "loss": job.row["loss_fusion"]}
    components = [name for name, is_on in is_compiled.items() if is_on]
    return {COMPILE: bool(components), COMPONENTS: components}


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
