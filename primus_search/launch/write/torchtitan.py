"""torchtitan: a script, and a configuration module (0.3.0), or a job file and a model specification (0.2.2, TOML)."""

from collections.abc import Mapping
from itertools import count
from typing import Any

from primus_search.files.dotted_keys import nested
from primus_search.launch.contract import settings_of
from primus_search.launch.decided import deciding_settings
from primus_search.launch.read.torchtitan import COMPILE, COMPONENTS, EXPERT_TP, HEADS, MODE, OPTION, ORDER_FILE
from primus_search.launch.workload_settings import workload_settings
from primus_search.launch.write.job import Inexpressible, LaunchJob
from primus_search.launch.write.shell import Text, launch_file, safe_name
from primus_search.launch.write.torchtitan_model import FLAVOR, MODEL_FILE, MODULE, edits, flavor_of, model_file
from primus_search.launch.write.torchtitan_module import config_file
from primus_search.schedule import PassKind, Table, order_for


def files(job: LaunchJob) -> dict[str, Text]:
    """The files of a candidate: its script, what it is set to, its model where torchtitan has no flavor of this shape,
    and its pipeline order where that is one of ours."""
    main, said = job.framework.options["file"], settings(job)
    found: dict[str, Text] = {"torchtitan.sh": launch_file(job, "torchtitan.sh")}
    found |= {main: config_file(job, said)} if main.endswith(".py") else _job_files(job, main, said)
    order_file = said.get(ORDER_FILE)
    if order_file:
        found[order_file] = order_text(order_for(job.candidate.order(0, job.launcher), job.microbatches))
    return found


def _job_files(job: LaunchJob, main: str, said: Mapping[str, Any]) -> dict[str, Text]:
    import tomli_w

    if "loss" in said:
        raise Inexpressible(f"{job.framework.title} has no loss in pieces; no launch file of stack.loss_chunks above 1")
    found: dict[str, Text] = {main: launch_file(job, "notes.txt", edits(job), tomli_w.dumps(nested(said)))}
    return found | ({MODEL_FILE: model_file(job)} if flavor_of(job.framework, job.model) is None else {})


def order_text(table: Table) -> str:
    """The passes of a pipeline order, a line per rank, as torch's `_load_csv` reads them: `0F0,0I0,0W0`."""
    letters = {PassKind.F: "F", PassKind.B: "I", PassKind.W: "W", PassKind.BW: "B"}
    ranks = map(table.rank, range(table.stages))
    return "".join(
        ",".join(f"{s}{letters[k]}{m}" for k, s, m in zip(r.kind, r.stage, r.micro_batch, strict=True)) + "\n"
        for r in ranks
    )


def settings(job: LaunchJob) -> dict[str, Any]:
    """Every key of what torchtitan is set to, section and name with dots."""
    row = job.row
    sizes: dict[str, Any] = {
        "training.seq_len": job.workload.seq_length,
        "training.global_batch_size": job.workload.global_batch_size,
        # With a pipeline a local batch is cut into micro-batches, without one it is a micro-batch.
        "training.local_batch_size": row["micro_batch_size"] * (job.microbatches if row["pp"] > 1 else 1),
        "training.steps": 50,
        "training.mixed_precision_param": "bfloat16",
        "training.mixed_precision_reduce": "float32",
    }
    written = settings_of(job.contract, row)
    if row["pp"] == 1:
        written = {k: v for k, v in written.items() if not k.startswith("parallelism.pipeline_parallel_")}
        written["parallelism.pipeline_parallel_degree"] = 1
    decided = deciding_settings(job.contract, job.cluster.stack, row, ranks=job.dp * row["cp"])
    found = sizes | written | decided | workload_settings(job)
    found |= _compiled(job) | _degrees(job) | _stages(job) | _checkpointing(job)
    if MODE in job.framework.defaults:
        return _named(job) | found
    found.pop(EXPERT_TP, None)  # follows from tensor and expert parallelism
    return found | {"model_spec.attn_backend": "varlen" if job.model.has_attention_sinks and row["cp"] == 1 else "flex"}


def _named(job: LaunchJob) -> dict[str, Any]:
    """What a job file calls its job and its model."""
    own = flavor_of(job.framework, job.model)
    family, _, flavor = (own or f"{MODULE}:{FLAVOR}").partition(":")
    said = {
        "job.description": f"{safe_name(job.model.name)} on {job.cluster.world} GPUs",
        "job.dump_folder": "./outputs",
        "model.name": family,
        "model.flavor": flavor,
    }
    return said if own else said | {"experimental.custom_import": MODULE}


def _compiled(job: LaunchJob) -> dict[str, Any]:
    """What torch.compile takes: blocks unless the stack runs them eagerly, and the loss where it is fused."""
    is_whole = job.cluster.stack.kernels.has_fused_norm or job.row["tp_overlap"]
    is_compiled = {"model": is_whole, "loss": job.row["loss_fusion"]}
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
        head = HEADS[0 if MODE in job.framework.defaults else 1]
        ends = {"E": ["tok_embeddings"], "L": ["norm", head]}
        return {"parallelism.module_fqns_per_model_part": _parts(job.layout, ends)}
    return {
        "parallelism.pipeline_parallel_layers_per_stage": job.model.num_layers // (row["pp"] * row["vpp"]),
        "parallelism.pipeline_parallel_first_stage_less_layers": 0,
        "parallelism.pipeline_parallel_last_stage_less_layers": 0,
    }


def _parts(layout: str, ends: Mapping[str, list[str]]) -> list[list[str]]:
    """The modules of each virtual stage; ends: those of the first and the last one by their letter in a layout."""
    layers = count()

    def modules(letter: str) -> list[str]:
        return [f"layers.{next(layers)}"] if letter == "t" else ends.get(letter, [])

    return [[name for letter in stage for name in modules(letter)] for stage in layout.split("|")]
