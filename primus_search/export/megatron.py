"""Megatron-LM: one executable script with environment, rendezvous and every argument of model, candidate, training."""

import re
import shlex
from typing import Any

from primus_search.export import shell
from primus_search.export.job import LaunchJob
from primus_search.export.megatron_arguments import GROUP, argument_table, candidate_settings
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
FLAGS = {GROUP: "microbatch_group_size_per_virtual_pipeline_stage"}
"""Arguments that the command line spells otherwise than the configuration (ModelParallelConfig:434)."""


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
    return {SCRIPT: shell.script(job, SCRIPT, EDITS + edits(job.model), lines)}


ASSIGNED = re.compile(r"(?:^|;)\s*(?:export\s+)?([A-Za-z_]\w*)=([^\s;()]*)", re.MULTILINE)
REFERENCE = re.compile(r"\$\{(\w+)(?::?[-=]([^}]*))?\}|\$(\w+)")


def settings_in(text: str) -> dict[str, Any]:
    """Megatron arguments in a script or a list of arguments; a bare switch is True, several words are a list.

    Variables that the script itself assigns are filled in, and the default of `${TP:-8}`; others stay as written.
    """
    body = ARRAY.sub(" -- ", resolved(text.replace("\\\n", " ")))
    found: dict[str, list[str]] = {}
    name = ""
    for word in shlex.split(body, comments=True):
        if word.startswith("--"):
            flag, equals, value = word.removeprefix("--").rstrip(")").partition("=")
            name = flag.replace("-", "_")
            found |= {name: [value] if equals else []} if name else {}
        elif name:
            found[name].append(word.rstrip(")") if "(" not in word else word)
    return {name: True if not values else values if name in LISTS else values[0] for name, values in found.items()}


ARRAY = re.compile(r"^\s*(?:declare\s+-a\s+)?\w+\+?=\(|^\s*\)\s*$", re.MULTILINE)
"""Where an array of arguments begins and ends."""


LISTS = (
    "spec", "recompute_modules", "offload_modules", "cuda_graph_modules", "cuda_graph_scope", "data_path",
    "hierarchical_context_parallel_sizes",
)  # fmt: skip
"""Arguments of several words."""


def resolved(text: str) -> str:
    """A script with the values of its own variables and the defaults of others filled in."""
    known = {name: _without_itself(name, value.strip("\"'")) for name, value in ASSIGNED.findall(text)}

    def value(match: re.Match[str]) -> str:
        found = known.get(match[1] or match[3], match[2])
        return match[0] if found is None else str(found)

    for _ in range(4):  # a variable may hold another
        text = REFERENCE.sub(value, text)
    return text


def _without_itself(name: str, value: str) -> str:
    """A value that may refer to its own variable's default, `PP=${PP:-4}`, without that reference."""
    return REFERENCE.sub(lambda match: match[2] if match[1] == name and match[2] is not None else match[0], value)


def devices_in(text: str, found: dict[str, Any]) -> int:
    """GPUs a script starts: `--nnodes` times `--nproc-per-node`; 0 where it does not say."""
    try:
        return int(str(found.get("nnodes", 1))) * int(str(found.get("nproc_per_node", 0)))
    except ValueError:
        return 0
