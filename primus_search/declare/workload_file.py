"""The workload of a space file, what is trained included: `task` and `lora` as adapters beside frozen weights."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from primus_search.base.errors import did_you_mean
from primus_search.declare.document_lengths import FORMS, lengths_of
from primus_search.declare.space_schema import WorkloadFile
from primus_search.files.known_keys import key_table
from primus_search.files.source import join_words
from primus_search.values.lengths import BALANCED
from primus_search.values.model import Adapters, BaseFormat, Model, adapted_matrices
from primus_search.values.model.adapters import DEFAULT_MODULES, EVERY, modules_of, named
from primus_search.values.tasks import TASKS, Policy, Task
from primus_search.values.workload import Workload

BASES = "base_formats"
DEFAULT_BASE = {"lora": "bf16", "qlora": "nf4"}


def workload_of(file: WorkloadFile, model: Model | None) -> Workload:
    """The workload with what is trained of a model. Raises ValueError for adapters that cannot be."""
    adapters = _adapters_of(file.task, file.lora.model_dump(), model, is_given="lora" in file.model_fields_set)
    return replace(all_weights(file), task=file.task, adapters=adapters, policy=_policy_of(file))


class PolicyError(ValueError):
    """What is wrong with `policy` of a workload."""


def _policy_of(file: WorkloadFile) -> Policy | None:
    """How a policy is trained; None of a task without one. Raises PolicyError for settings that the task has not."""
    parts, given = TASKS[file.task], file.policy.model_fields_set if "policy" in file.model_fields_set else set()
    if not parts.has_reference:
        if given:
            policies = join_words([name for name, one in TASKS.items() if one.has_reference])
            raise PolicyError(f"is of the tasks {policies}; task is {file.task}")
        return None
    if not parts.has_rollouts and (odd := sorted(given - {"reference"})):
        raise PolicyError(f"{odd[0]} is of tasks with rollouts, grpo and ppo; {file.task} has reference alone")
    return Policy(**file.policy.model_dump())


def all_weights(file: WorkloadFile) -> Workload:
    """The workload as if all weights were trained and samples one document; images that do not fit a sample, which are
    refused, are left out."""
    given = file.model_dump(exclude={"task", "lora", "policy", *OF_DOCUMENTS})
    fits = given["tokens_per_image"] <= given["image_tokens"] <= given["seq_length"]
    return Workload(**given if fits else given | {"image_tokens": 0, "tokens_per_image": 0})


OF_DOCUMENTS = ("document_length", "packing", "balanced_packing")


def with_documents(workload: Workload, file: WorkloadFile, beside: Path | None) -> Workload:
    """A workload with the documents of a file. Raises ValueError with what is wrong."""
    given, packing, is_balanced = (file.__getattribute__(name) for name in OF_DOCUMENTS)
    lengths = lengths_of(given, beside)
    if lengths is None and not (given == 0.0 or 1.0 <= given < math.inf):
        raise ValueError(f"is at least 1 token, or 0 where a sample is one document, not {given}")
    if given == 0.0 and packing != "cut":
        raise ValueError(f"is needed by packing: {packing}; give {FORMS}")
    if is_balanced and (lengths is None or packing not in BALANCED):
        raise ValueError(f"balanced_packing needs the distribution of lengths and packing: {join_words(BALANCED)}")
    seen = lengths.seen(workload.seq_length) if lengths else given
    return replace(workload, document_length=seen, lengths=lengths, packing=packing, balanced_packing=is_balanced)


def _adapters_of(task: Task, given: Mapping[str, Any], model: Model | None, *, is_given: bool) -> Adapters | None:
    """The adapters of a task; None of one that trains all weights. Raises ValueError with what is wrong.

    given: rank, alpha, modules, dropout and base, empty for that of the task; no modules, or all: those that the model
    has.
    """
    if TASKS[task].adapters == "never" and is_given:
        raise ValueError(
            f"is of the tasks {join_words([n for n, t in TASKS.items() if t.adapters != 'never'])}, not {task}"
        )
    if TASKS[task].adapters != "always" and not is_given:
        return None
    name, formats = given["base"] or DEFAULT_BASE.get(task, "bf16"), key_table(BASES)
    if name not in formats:
        raise ValueError(f"base {name!r} is none of {', '.join(formats)}{did_you_mean(name, formats)}")
    base = BaseFormat(name=name, bytes_per_param=float(formats[name]["bytes_per_param"]))
    names = given["modules"]
    modules = (
        named(names, model) if model is None or (names and not EVERY.intersection(names)) else modules_of(model, names)
    )
    rest = {key: value for key, value in given.items() if key not in ("base", "modules")}
    found = Adapters(**rest, modules=modules or DEFAULT_MODULES, base=base)
    if model is not None:
        _must_fit(found, model)
    return found


def _must_fit(adapters: Adapters, model: Model) -> None:
    """Raises ValueError for modules that no layer of a model has."""
    adapted = replace(model, adapters=adapters)
    found = {one.module for kind in model.kinds for one in adapted_matrices(adapted, kind)}
    absent = [name for name in adapters.modules if name not in found]
    if absent:
        raise ValueError(
            f"{model.name} has no {', '.join(absent)}; of these modules it has {', '.join(found) or 'none'}"
        )
