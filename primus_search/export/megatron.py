"""Megatron-LM: one executable script with environment, rendezvous and every argument of model, candidate, training."""

from typing import Any

from primus_search.declare.launch.scripts import FLAGS
from primus_search.export import shell
from primus_search.export.job import LaunchJob
from primus_search.export.megatron_arguments import argument_table, candidate_settings
from primus_search.export.megatron_models import edits, model_settings

SCRIPT = "megatron.sh"
EDITS = [
    "MEGATRON_PATH, a checkout of Megatron-LM; DATA_PATH for your data (mock data without it)",
    "tokenizer, learning rate, iterations and checkpoint folders below",
]


HYBRID_ENTRY = (
    'ENTRY=pretrain_mamba.py; if [[ -f "$MEGATRON_PATH/pretrain_hybrid.py" ]]; then ENTRY=pretrain_hybrid.py; fi'
)
"""What trains a hybrid stack, by the name that the checkout has."""


def arguments(job: LaunchJob) -> dict[str, dict[str, Any]]:
    """Every argument, by the array it stands in."""
    model = job.model
    sizes = model_settings(job) | {
        "untie_embeddings_and_output_weights": not model.is_tied,
        "disable_bias_linear": not model.has_linear_bias,
    }
    return {
        "MODEL_ARGS": sizes,
        "CANDIDATE_ARGS": {"bf16": True} | {FLAGS.get(k, k): v for k, v in candidate_settings(job).items()},
        "TRAINING_ARGS": {"use_mcore_models": True, "transformer_impl": "transformer_engine"}
        | argument_table("training"),
        # The null tokenizer adds one word for the end of a document; the padded vocabulary is that of the model.
        "TOKENIZER_ARGS": {"tokenizer_type": "NullTokenizer", "vocab_size": model.vocab_size - 1},
    }


def files(job: LaunchJob) -> dict[str, str]:
    """The script that starts a candidate."""
    groups = arguments(job)
    is_fsdp = any(groups["CANDIDATE_ARGS"].get(name) for name in ("use_torch_fsdp2", "use_megatron_fsdp"))
    lines = [
        # Megatron wants 1 for overlap with tensor and context parallelism, and refuses 1 under FSDP (arguments.py).
        f"export CUDA_DEVICE_MAX_CONNECTIONS={8 if is_fsdp else 1}",
        "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        # Graphs of modules are refused with expandable segments otherwise (arguments.py).
        "export NCCL_GRAPH_REGISTER=0",
        *shell.offloading(job.row["offload_modules"]),
        ': "${MEGATRON_PATH:?set it to a checkout of Megatron-LM}"',
        shell.rendezvous(job),
    ]
    entry = "pretrain_gpt.py"
    if job.model.is_single_block:
        entry = "$ENTRY"
        lines.append(HYBRID_ENTRY)
    for name, settings in groups.items():
        lines += shell.array(name, settings)
    lines += [
        "DATA_ARGS=(--mock-data)",
        'if [[ -n "${DATA_PATH:-}" ]]; then DATA_ARGS=(--data-path "$DATA_PATH" --split 99,1,0); fi',
        shell.TORCHRUN,
        f'  "$MEGATRON_PATH/{entry}" \\',
        "  " + " ".join(f'"${{{name}[@]}}"' for name in (*groups, "DATA_ARGS")) + ' "$@"',
    ]
    return {SCRIPT: shell.script(job, SCRIPT, EDITS + edits(job), lines)}
