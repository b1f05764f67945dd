"""AMD Primus: an experiment file and a script that starts it with Primus' command line.

The experiment names one of Primus' own model files where one has this very shape; otherwise it starts from Primus'
plain language model and writes every size. What Primus' defaults would set otherwise is written out.
"""

from typing import Any

from primus_search.files.dotted_keys import nested
from primus_search.files.source import written
from primus_search.launch.adapters import adapter_settings
from primus_search.launch.decided import resting_settings
from primus_search.launch.write.job import LaunchJob
from primus_search.launch.write.megatron import candidate_settings, edits, model_settings, must_start
from primus_search.launch.write.shell import Text, argument_table, launch_file, safe_name
from primus_search.models.families.megatron_hybrid import COMPRESSED_TYPE
from primus_search.models.layer_pattern import layer_pattern
from primus_search.models.megatron_arguments import constant_settings, megatron_keys, padding_multiple, routing_settings
from primus_search.models.registered import registered_model
from primus_search.values.model import CompressedAttention, Model

PLAIN_MODEL = "language_model.yaml"
NO_BIAS = "no bias of routing: Megatron takes it with sigmoid scores alone"


def files(job: LaunchJob) -> dict[str, Text]:
    """The experiment and the script of a candidate."""
    return {"primus.yaml": experiment(job), "primus.sh": launch_file(job, "primus.sh")}


def overrides(job: LaunchJob) -> dict[str, Any]:
    """The trainer overrides of this candidate, in Primus' words."""
    said = candidate_settings(job)
    said.setdefault("overlap_param_gather", False)
    said.setdefault("gradient_accumulation_fusion", job.cluster.stack.kernels.has_gradient_accumulation_fusion)
    said |= {"create_attention_mask_in_dataloader": False, "bf16": True}
    # Some of Primus' model files leave it out, and Megatron refuses a model without it.
    said["max_position_embeddings"] = max(job.workload.seq_length, job.model.learned_positions)
    said.setdefault("recompute_method", None)
    said.setdefault("recompute_num_layers", None)
    return said


def experiment(job: LaunchJob) -> Text:
    """The experiment file, written by a YAML library: no name of a model becomes a key or a tag."""
    name = safe_name(job.model.name)
    own = registered_model(job.framework, job.model)
    resting = resting_settings(job.contract, job.row)  # what its model files set
    sizes = resting | _constants(job) if own else _sizes(job)
    has_text = job.model.adapters is not None
    training: dict[str, Any] = (
        {}
        if has_text
        else {"mock_data": True} | dict.fromkeys(("train_data_path", "valid_data_path", "test_data_path"))
    )
    training |= argument_table("training") | {"finetune": False, "disable_last_saving": True, "lr_decay_iters": None}
    tuned = nested(adapter_settings(job.framework, job.workload))
    laid = sizes | overrides(job) | training
    must_start(job, megatron_keys(job.model) | laid)
    module = {
        "framework": "megatron",
        "config": "sft_trainer.yaml" if tuned else "pre_trainer.yaml",
        "model": own or PLAIN_MODEL,
        "overrides": laid | tuned,
    }
    data = {
        "work_group": "${PRIMUS_TEAM:amd}",
        "user_name": "${PRIMUS_USER:root}",
        "exp_name": f"${{PRIMUS_EXP_NAME:{name}}}",
        "workspace": "${PRIMUS_WORKSPACE:./output}",
        "modules": {"post_trainer" if tuned else "pre_trainer": module},
    }
    own_data = ["sft_dataset_name, tokenizer and the checkpoint to load in primus.yaml"] if has_text else []
    lost, beside = ([NO_BIAS], sizes | {"model_type": COMPRESSED_TYPE}) if _is_compressed(job.model) else ([], {})
    by_hand = [*own_data, *lost, *edits(job, laid, beside)]
    return launch_file(job, "notes.txt", by_hand, written(data), None if tuned else {})


def _constants(job: LaunchJob) -> dict[str, Any]:
    """What Primus' own file of the shape may have of another model: epsilon, rotation, routing, padding."""
    model = job.model
    settings: dict[str, Any] = {"make_vocab_size_divisible_by": padding_multiple(model.vocab_size, job.row["tp"])}
    settings |= {"use_rope_scaling": False} | constant_settings(model)
    if _is_compressed(model):
        scaling = model.constants.scaling
        settings |= {"rope_type": "rope", "moe_router_enable_expert_bias": False}
        settings |= {name: scaling[key] for key, name in argument_table("primus")["stretch"].items() if key in scaling}
    elif model.is_moe:
        settings |= {"moe_router_pre_softmax": False, "moe_router_topk_scaling_factor": None} | routing_settings(model)
    return settings


def _is_compressed(model: Model) -> bool:
    """Whether a model has DeepSeek-V4's attention, whose rotation Primus' classes stretch by themselves.

    Megatron's checks refuse YaRN without latent attention and a bias of routing beside scores other than a sigmoid
    (examples/deepseek-v4/run_deepseek_v4.sh sets both).
    """
    return any(isinstance(kind.mixer, CompressedAttention) for kind in model.kinds)


def _sizes(job: LaunchJob) -> dict[str, Any]:
    """Every size of a model that Primus has no file of."""
    model, table = job.model, argument_table("primus")
    sizes: dict[str, Any] = table["plain"] | model_settings(job)
    sizes |= {"untie_embeddings_and_output_weights": not model.is_tied, "add_bias_linear": model.has_linear_bias}
    # The null tokenizer of mock data adds one word for the end of a document.
    sizes |= {"vocab_size": model.vocab_size - 1, "tokenizer_type": "NullTokenizer"}
    if sizes["position_embedding_type"] != "rope":
        sizes["add_position_embedding"] = True  # Primus' plain model has it off, which Megatron takes with rope alone
    if sizes.pop("no_rope_fusion", False):
        sizes["apply_rope_fusion"] = False
    if model.is_single_block:
        sizes |= {"model_type": "mamba", "num_layers": None}  # the pattern says how many
    # Megatron's arguments turn the text of a pattern into a list, which Primus' configuration does not.
    return sizes | {name: list(layer_pattern(sizes[name])) for name in table["lists"] if name in sizes}
