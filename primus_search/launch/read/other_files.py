"""What a file is that starts no job which is read, and the command that prices the same job.

not_read(Path("train.py"), text)     "is Python (a recipe of Megatron-Bridge), which is not run; ..."
"""

import re
from pathlib import Path

from primus_search.launch.read.recipes import recipes

_FUNCTION = re.compile(r"^def ([a-z]\w{1,200}_config)\(|\bas ([a-z]\w{1,200}_config)\b", re.MULTILINE)
"""A function of a Python file that may be a recipe, or one that it imports under another name."""
MOST_NAMED = 12
KINDS: tuple[tuple[str, str, str], ...] = (
    (r"\.py$", r"torchtitan", "is Python (torchtitan) without a function that returns a Trainer.Config"),
    (r"\.py$", r"megatron\.bridge|nemo\.", "is Python (a recipe of Megatron-Bridge or NeMo), which is not run"),
    (r"\.py$", r"TrainingArguments|SFTConfig|accelerat", "is Python (Hugging Face Trainer), which is not run"),
    (r"\.py$", r"deepspeed", "is Python (a program of DeepSpeed), which is not run"),
    (r"\.py$", r"", "is Python, which is not run"),
    (r"\.json$", r'"zero_optimization"', "is DeepSpeed's JSON, which names no model; its script is read"),
    (r"\.json$", r'"(?:model_type|architectures)"', "is a model's config.json: give it as --model"),
    (r"\.ya?ml$", r"^compute_environment:", "is accelerate's YAML, which names no model; its script is read"),
    (r"\.ya?ml$", r"^apiVersion:", "is a manifest of Kubernetes; the script inside it is read"),
    (r"\.ya?ml$", r"^(?:workload|space):", "is a space of primus-search: primus-search run searches it"),
    (r"\.ya?ml$", r"^(?:extends|num_layers|hidden_size):", "is a model file, which starts nothing: give it as --model"),
    (r"\.ya?ml$", r"", "is a YAML of no launcher that is read"),
    (r"", r"^#SBATCH", "is a Slurm wrapper: give the script or file that it starts"),
    (r"", r"deepspeed", "is a script of DeepSpeed without a model's name and a batch per device"),
    (r"", r"\.py\b", "is a script that starts a program which is not read"),
    (r"", r"", "is no job file or script that is read"),
)  # fmt: skip
"""Ends of a file's name, a pattern of its text, and what such a file is; the first that fits counts."""
FOUND = {
    "tp": r"tensor_(?:model_)?parallel(?:_size|_degree|ism)?|tp_size|tp|model_parallel_size",
    "pp": r"pipeline_(?:model_)?parallel(?:_size|_degree|ism)?|pp_size|pp|pipe_parallel_size",
    "cp": r"context_parallel(?:_size|_degree|ism)?|cp_size|cp",
    "ep": r"expert_(?:model_)?parallel(?:_size|_degree|ism)?|ep_size|ep",
    "micro_batch_size": r"(?:train_)?micro_batch_size(?:_per_gpu)?|per_device_train_batch_size|local_batch_size|mbs",
    "seq_length": r"seq_len(?:gth)?|sequence_length|max_(?:seq_)?length|cutoff_len",
    "global_batch_size": r"global_batch_size|train_batch_size|gbs",
}
"""Names that launchers have for an axis or a size of the workload."""


def not_read(path: Path, text: str) -> str:
    """What the file is, and the `project` command with the sizes that stand in it."""
    if names := [
        name for pair in _FUNCTION.findall(text) for name in pair if name.removesuffix("_config") in recipes()
    ]:
        shown = ", ".join(names[:MOST_NAMED]) + (" ..." if len(names) > MOST_NAMED else "")
        return f"holds {len(names)} recipes; name one: primus-search project --recipe {names[0]} ({shown})"
    kind = next(what for end, has, what in KINDS if re.search(end, path.name) and re.search(has, text, re.MULTILINE))
    return f"is no experiment: it {kind}; the same job is priced by {command(text)}"


def command(text: str) -> str:
    """`primus-search project` with the sizes that a text gives by their usual names."""
    sets = []
    for name, pattern in FOUND.items():
        found = re.search(
            rf"(?<![\w-])(?:{pattern.replace('_', '[_-]')})[\"']?\s*[:= ]\s*[\"']?(\d{{1,7}})(?![\w.])", text
        )
        sets += [f"--set {name}={found[1]}"] if found else []
    named = " ".join(sets) or "--set tp=.. --set micro_batch_size=.. --set global_batch_size=.."
    return f"primus-search project --model MODEL --hardware NAME --nodes N {named}"
