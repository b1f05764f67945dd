"""torchtitan 0.2.2: a job file (TOML), a script, and a model specification where it has no flavor of this shape.

A model of any supported shape as a torchtitan 0.2.2 model specification: a module with numbers only.

The specification reuses the classes of a family that torchtitan ships: Llama 3 and Qwen 3 for grouped-query attention,
DeepSeek-V3 for latent attention, GPT-OSS for attention sinks. Its arguments are read back
(`launch.read.torchtitan`): a part of the model that comes back as another is refused.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from typing import Any

from primus_search.launch.contract import settings_of
from primus_search.launch.read.torchtitan import COMPILE, COMPONENTS, MODE, OPTION, ORDER_FILE, model_of
from primus_search.launch.write.job import Inexpressible, LaunchJob, refused_constants, unsaid, unsaid_constants
from primus_search.launch.write.shell import Text, launch_file, safe_name
from primus_search.models.megatron_arguments import sizes
from primus_search.models.presets import model_called, registered_model
from primus_search.schedule import PassKind, Table, order_for
from primus_search.values.machine.framework import Framework
from primus_search.values.model import Model


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


MODULE, FLAVOR = "primus_search_model", "searched"
MODEL_FILE = f"{MODULE}.py"
CLASSES = {
    "llama3": ("TransformerModelArgs", "llama3.model.args"),
    "qwen3": ("Qwen3ModelArgs", "qwen3.model.args"),
    "deepseek_v3": ("DeepSeekV3ModelArgs", "deepseek_v3.model.args"),
    "gpt_oss": ("GptOssModelArgs", "gpt_oss.model.args"),
    "moe_args": ("MoEArgs", "moe"),
    "rope_scaling_args": ("RoPEScalingArgs", "llama3.model.args"),
}
"""Class of the arguments of a family, and of arguments that are of a class themselves, and where it is."""


def flavor_of(framework: Framework, model: Model) -> str | None:
    """`family:flavor` of torchtitan that is this model, constants too; None where it has none."""
    own = registered_model(framework, model)
    known = model_called(framework, own) if own else None
    return own if known is not None and not unsaid_constants(model, known) else None


def edits(job: LaunchJob) -> list[str]:
    """Constants of the model that no argument says, for a person to set."""
    if flavor_of(job.framework, job.model):
        return []
    return unsaid_constants(job.model, model_of(*_family(job.model)))


def model_file(job: LaunchJob) -> str:
    """The module that registers a model. Raises `Inexpressible` for one that no family of torchtitan is."""
    model = job.model
    family, fields = _family(model)
    read = replace(model_of(family, fields), vocab_padding=model.vocab_padding)
    lost = list(dict.fromkeys([*unsaid(model, read), *refused_constants(job)]))
    if job.workload.image_tokens:
        lost.append("towers of other inputs")
    if lost:
        raise Inexpressible(f"torchtitan has no model with parts of {model.name}: {', '.join(lost)}")
    return _module(job, family, fields)


def _module(job: LaunchJob, family: str, fields: Mapping[str, Any]) -> str:
    """The text of the module. Only numbers and switches of the model enter it."""
    imports: dict[str, list[str]] = {}
    for one in (family, *(name for name in fields if name in CLASSES)):
        imports.setdefault(CLASSES[one][1], []).append(CLASSES[one][0])
    plain = {n: {k: repr(v) for k, v in one.items()} if n in CLASSES else repr(one) for n, one in fields.items()}
    values: dict[str, Any] = {
        "module": MODULE,
        "flavor": FLAVOR,
        "family": family,
        "classes": CLASSES,
        "imports": imports,
    }
    return launch_file(job, "torchtitan_model.txt", fields=plain, **values)()


def _family(model: Model) -> tuple[str, dict[str, Any]]:
    """Family and arguments of a model, as near as one comes."""
    constants = model.constants
    common = sizes("model", model, "torchtitan")
    common |= {} if constants.norm_epsilon is None else {"norm_eps": constants.norm_epsilon}
    common |= {} if constants.rotary_base is None else {"rope_theta": constants.rotary_base}
    if model.latent is not None:
        return "deepseek_v3", common | _latent(model)
    common["n_kv_heads"] = model.num_kv_heads
    if model.has_attention_sinks:
        return "gpt_oss", common | _with_sinks(model)
    is_plain = not model.is_moe and not model.has_qk_norm and not model.is_tied
    if is_plain and model.head_dim * model.num_heads == model.hidden:
        return "llama3", common | _plain(model)
    fields = {
        "head_dim": model.head_dim,
        "hidden_dim": model.ffn_hidden,
        "qk_norm": model.has_qk_norm,
        "enable_weight_tying": model.is_tied,
        "moe_enabled": model.is_moe,
        "moe_inter_dim": model.moe.expert_ffn_hidden if model.moe else model.ffn_hidden,
    }
    return "qwen3", common | fields | _experts(model)


def _plain(model: Model) -> dict[str, Any]:
    """Llama's feed-forward size, 8/3 dim times a factor, is rounded up to `multiple_of` (llama3/model/model.py
    FeedForward): from half of that size to that size itself. Its rotation is always scaled, by 1 where it is not."""
    scaling = model.constants.scaling if model.constants.scaling.get("rope_type") == "llama3" else {}
    names = ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    return {
        "multiple_of": model.ffn_hidden,
        "ffn_dim_multiplier": round(0.5 * model.ffn_hidden / int(8 * model.hidden / 3), 6),
        "rope_scaling_args": {"scaling_factor": float(scaling.get("factor", 1.0))}
        | {name: scaling[name] for name in names if name in scaling},
    }


def _latent(model: Model) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "inter_dim": model.ffn_hidden,
        "n_dense_layers": sum(not is_moe for is_moe in model.moe_layers) if model.is_moe else model.num_layers,
        "moe_inter_dim": model.moe.expert_ffn_hidden if model.moe else model.ffn_hidden,
        "q_lora_rank": 0,
        **sizes("latent", model.latent, "torchtitan"),
    }
    return fields | _yarn(model, beta_fast="beta_fast", beta_slow="beta_slow", mscale="mscale") | _experts(model)


def _yarn(model: Model, **theirs: str) -> dict[str, Any]:
    """The stretch of the rotary frequencies; theirs: what a family calls its numbers. A factor of 1 is none."""
    scaling = model.constants.scaling if model.constants.scaling.get("rope_type") == "yarn" else {}
    names = theirs | {"original_max_position_embeddings": "original_seq_len"}
    known = {name: scaling[ours] for ours, name in names.items() if ours in scaling}
    return {"rope_factor": float(scaling.get("factor", 1.0))} | known


def _with_sinks(model: Model) -> dict[str, Any]:
    return {
        "head_dim": model.head_dim,
        "moe_inter_dim": model.moe.expert_ffn_hidden if model.moe else model.ffn_hidden,
        "sliding_window_size": max(model.windows),
        "swiglu_limit": model.activation_clamp,
        **_yarn(model, beta_slow="ntk_alpha", beta_fast="ntk_beta"),
        **_experts(model, gate_bias=bool(model.moe and model.moe.has_router_bias), use_grouped_mm=True),
    }


def _experts(model: Model, **more: Any) -> dict[str, Any]:
    moe, constants = model.moe, model.constants
    if moe is None or not model.is_moe:
        return {}
    limits = {"num_expert_groups": moe.num_groups, "num_limited_groups": moe.top_groups}
    score = constants.router_score or ("sigmoid" if moe.is_router_bias_buffer else "softmax")
    return {
        "moe_args": (limits if moe.num_groups > 1 else {})
        | {
            "num_experts": moe.num_experts,
            "top_k": moe.top_k,
            "num_shared_experts": moe.shared_ffn_hidden // moe.expert_ffn_hidden,
            "score_func": score,
            "route_norm": constants.router_normalises is not False,
            "route_scale": 1.0 if constants.router_scale is None else constants.router_scale,
            "score_before_experts": False,
        }
        | more
    }
