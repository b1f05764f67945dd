"""Megatron-LM: one executable script with environment, rendezvous and every argument of model, candidate, training.

Megatron arguments of a candidate, as names with underscores; Primus and Megatron-Bridge share them.

`candidate_settings` writes the axes of a candidate, `launch.read.megatron` reads them back. The sizes of the model
are written in `models.megatron_arguments`, and read back: a part of the model that differs has no argument.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError
from primus_search.files.fields import Fields
from primus_search.files.source import Document
from primus_search.launch.contract import setting, settings_of, translated
from primus_search.launch.decided import deciding_settings, had_otherwise
from primus_search.launch.read.megatron import GROUP, LEVELS, RANK_TOKENS
from primus_search.launch.refusals import refused
from primus_search.launch.workload_settings import workload_settings
from primus_search.launch.write.job import Inexpressible, LaunchJob, refused_constants, unsaid, unsaid_constants
from primus_search.launch.write.shell import Text, argument_table, launch_file, words
from primus_search.models.megatron_arguments import constant_settings, megatron_keys, model_arguments
from primus_search.models.megatron_yaml import from_document
from primus_search.models.model_constants import of_megatron
from primus_search.schedule.algorithms.interleaved import group_size
from primus_search.values.knobs import CpComm
from primus_search.values.machine.framework import NOTHING, Framework
from primus_search.values.model import Model

FLAGS = {
    "microbatch_group_size_per_vp_stage": "microbatch_group_size_per_virtual_pipeline_stage",
    "apply_rope_fusion": "rope_fusion",
}
"""Arguments that the command line spells otherwise than the configuration (ModelParallelConfig:434)."""


def arguments(job: LaunchJob) -> dict[str, dict[str, Any]]:
    """Every argument, by the array it stands in."""
    model = job.model
    sizes = model_settings(job) | {
        "untie_embeddings_and_output_weights": not model.is_tied,
        "disable_bias_linear": not model.has_linear_bias,
    }
    if "window_size" in sizes:
        sizes["window_size"] = ",".join(map(str, sizes["window_size"]))
    return {
        "MODEL_ARGS": sizes,
        "CANDIDATE_ARGS": {"bf16": True} | dict(_flag(job.framework, *one) for one in candidate_settings(job).items()),
        "TRAINING_ARGS": {"use_mcore_models": True, "transformer_impl": "transformer_engine"}
        | argument_table("training"),
        # The null tokenizer of core 0.16 adds a word for the end of a document; either is padded to the model's.
        "TOKENIZER_ARGS": {"tokenizer_type": "NullTokenizer", "vocab_size": model.vocab_size - 1},
    }


def files(job: LaunchJob) -> dict[str, Text]:
    """The script that starts a candidate."""
    groups = arguments(job)
    written = {key: value for group in groups.values() for key, value in group.items()}
    must_start(job, written)
    values: dict[str, Any] = {
        "arrays": {name: words(settings) for name, settings in groups.items()},
        "is_fsdp": not groups["CANDIDATE_ARGS"].keys().isdisjoint(("use_torch_fsdp2", "use_megatron_fsdp")),
        "is_hybrid": job.model.is_single_block,
    }
    return {"megatron.sh": launch_file(job, "megatron.sh", edits(job, written), **values)}


def _flag(framework: Framework, key: str, value: Any) -> tuple[str, Any]:
    """A setting as an argument of the command line: `--no-X` where it is off and on by default."""
    flag = FLAGS.get(key, key)
    return (f"no_{flag}", True) if value is False and framework.defaults.get(key) is True else (flag, value)


def must_start(job: LaunchJob, settings: Mapping[str, Any]) -> None:
    """Raise `Inexpressible` where the framework refuses the settings that a file would have."""
    problems = refused(job.framework.name, settings, job.cluster.world, job.cluster.accelerator.capability)
    if problems:
        raise Inexpressible(f"{job.framework.title} does not start it: {'; '.join(map(str, problems))}")


def arguments_of(job: LaunchJob) -> dict[str, Any]:
    """The arguments of the job's model, whether or not they say all of it."""
    stages = job.stage_parts if job.model.is_single_block else ()
    return model_arguments(job.model, job.workload.seq_length, job.row["tp"], stages)


def model_settings(job: LaunchJob) -> dict[str, Any]:
    """The sizes of the job's model; True is a bare switch. Raises `Inexpressible` where Megatron cannot say them."""
    written = arguments_of(job)
    read = read_back(job.model, written)
    lost = read if isinstance(read, list) else unsaid(job.model, read)
    lost += refused_constants(job)
    if lost:
        what = f"{job.framework.title} has no arguments for parts of {job.model.name}: {', '.join(lost)}"
        raise Inexpressible(what)
    return written


def edits(job: LaunchJob, settings: Mapping[str, Any], beside: Mapping[str, Any] = NOTHING) -> list[str]:
    """What a person has to set: constants of the model that no argument says, nor a setting `beside` them.

    And what the framework has otherwise than the search that priced the job, under the settings of its file.
    """
    document = Document("arguments", megatron_keys(job.model, arguments_of(job)) | dict(beside))
    started = job.model.towers if job.framework.options.get("towers") else ()
    read = replace(job.model, constants=of_megatron(Fields.of(document, document.data)), towers=started)
    return unsaid_constants(job.model, read) + priced_otherwise(job, settings)


def priced_otherwise(job: LaunchJob, settings: Mapping[str, Any]) -> list[str]:
    """Numbers that priced a job and that its framework has otherwise under the settings of its file."""
    written = translated(job.framework, settings)[0] | {"add_bias_linear": job.model.has_linear_bias}
    return had_otherwise(job.contract, job.cluster.stack, job.row, written, ranks=job.dp * job.row["cp"])


def read_back(model: Model, written: Mapping[str, Any]) -> Model | list[str]:
    """The model of some arguments, or what is wrong with them."""
    try:
        return from_document(Document("arguments", megatron_keys(model, written)), Path("arguments"))
    except InputError as error:
        return [problem.what for problem in error.problems]


def candidate_settings(job: LaunchJob) -> dict[str, Any]:
    """Every argument this candidate sets in the words of the job's framework."""
    framework, row, workload = job.contract, job.row, job.workload
    written: dict[str, Any] = {"seq_length": workload.seq_length, "global_batch_size": workload.global_batch_size}
    written |= settings_of(framework, row)
    if row["cuda_graph"] == "partial" and not job.model.is_moe:  # of a hybrid stack
        written |= framework.spellings["cuda_graph"].reads["partial"][-1]
    if job.model.is_single_block:
        pass  # the stages stand in the pattern of layers
    elif job.layout is not None:
        written[framework.spellings["pipeline_layout"].key] = job.layout
    elif row["vpp"] > 1:
        written[framework.spellings["vpp"].key] = row["vpp"]
    if row["schedule"] == "interleaved" and job.microbatches % row["pp"]:
        written.setdefault(GROUP, group_size(job.microbatches, row["pp"]))
    exchange = job.cluster.stack.communication.cp_comm
    if row["cp"] > 1 and row["cp_comm"] == "stack" and exchange != "p2p":  # by default: TransformerConfig cp_comm_type
        written |= setting(framework.spellings["cp_comm"], exchange)
    inner = CpComm[row["cp_comm"].upper()].inner_ranks
    if inner:
        written[LEVELS] = [inner, row["cp"] // inner]
    if row["hybrid_cp"]:
        written[RANK_TOKENS] = workload.seq_length // row["cp"]
    if row["sharding"] == "hsdp":
        written[framework.spellings["shard_group"].key] = job.num_copies
    decided = deciding_settings(framework, job.cluster.stack, row, ranks=job.dp * row["cp"])
    of_model = constant_settings(job.model)
    decided = {key: value for key, value in decided.items() if of_model.get(key) != value}
    if row["overlap_grad_reduce"] and written.get("use_distributed_optimizer"):
        decided.setdefault("overlap_param_gather", True)
    return decided | written | workload_settings(job) | _recompute(job)


def _recompute(job: LaunchJob) -> dict[str, Any]:
    knobs, row = job.framework.spellings, job.row
    written = setting(knobs["recompute"], row["recompute"])
    if row["recompute"] == "full":
        written |= dict(knobs["recompute_method"].values[row["recompute_method"]])
        # Uniform in groups of one layer recomputes every layer; block counts the layers of a virtual stage.
        written[knobs["recompute_num_layers"].key] = row["recompute_num_layers"] or 1
    return written
