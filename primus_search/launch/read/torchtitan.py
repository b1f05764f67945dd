"""Candidates from the keys of torchtitan, section and name with a dot: a job file's (0.2.2) or a configuration's."""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from primus_search.base.guards.values import finite_number, whole_number
from primus_search.files.framework_files import load_framework
from primus_search.files.known_keys import known_keys
from primus_search.launch.contract import whole, word_of, words_of
from primus_search.launch.read.megatron import dealt, sharded
from primus_search.values.layout import Layout
from primus_search.values.machine.framework import Framework, Settings
from primus_search.values.model import Model

ORDER_FILE = "parallelism.pipeline_parallel_schedule_csv"
"""The file of a pipeline order; beside it the schedule's name decides where stages live."""
COMPILE, COMPONENTS = "compile.enable", "compile.components"
EAGER = "eager"
"""The variant of a stack whose blocks are not compiled."""
CHECKPOINTING, LOSS = "activation_checkpoint", "loss"
CLASSED = (CHECKPOINTING, "dataloader", LOSS, "optimizer")
"""Sections of 0.3.0 that are one of several classes."""
EXPERT_TP = "parallelism.expert_tensor_parallel_degree"
HEADS = ("output", "lm_head")
"""The output layer in 0.2.2 and in 0.3.0."""
MODE, OPTION = "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"
BUDGET = "activation_checkpoint.memory_budget"
SIZES = {name: f"training.{key}" for name, key in (("seq_length", "seq_len"),
         ("global_batch_size", "global_batch_size"), ("local_batch_size", "local_batch_size"))}  # fmt: skip
COPIES, SHARDS = "parallelism.data_parallel_replicate_degree", "parallelism.data_parallel_shard_degree"
READ = {*SIZES.values(), COMPILE, COMPONENTS, COPIES, SHARDS}


def words(framework: Framework, found: Settings, model: Model | None, world: int) -> tuple[dict[str, Any], set[str]]:
    """The axes of a candidate that a job file's settings give, on `world` devices, and the keys that were read."""
    row, read = words_of(framework.of(model), found)
    knobs, defaults = framework.spellings, framework.defaults
    pp = row.get("pp", 1)
    row.setdefault("sequence_parallel", row.get("tp", 1) > 1)
    if row.get("ep", 1) == 1:  # with no ranks of their own, experts are split as attention is, whatever etp says
        row["etp"] = row.get("tp", 1)
    row |= _pipeline_words(framework, found, model, pp, read)
    row |= _recompute(framework, found, model, pp * row["vpp"])
    read |= knobs["recompute"].keys
    if pp == 1:
        key = SIZES["local_batch_size"]
        row["micro_batch_size"] = whole(key, _get(found, defaults, key), least=1)
    row |= _sharding(found, defaults, row, world)
    read |= READ | known_keys(framework.keys).read_beside
    row["loss_fusion"] = "loss" in compiled(found, defaults)
    return row, read


def compiled(found: Settings, defaults: Settings) -> list[str]:
    """What a job file compiles: model, loss."""
    return list(_get(found, defaults, COMPONENTS) or []) if _get(found, defaults, COMPILE) else []


def _get(found: Settings, defaults: Settings, key: str) -> Any:
    return found.get(key, defaults.get(key))


def _recompute(framework: Framework, found: Settings, model: Model | None, stages: int) -> dict[str, Any]:
    if is_budgeted(found):
        share = _get(found, framework.defaults, BUDGET)
        return {"recompute": _within_budget(0.5 if share is None else share)}
    if MODE not in framework.defaults:
        policy = found.get(CHECKPOINTING, framework.defaults[CHECKPOINTING])
        word = word_of(framework.spellings["recompute"], {CHECKPOINTING: policy}, framework.defaults)
        if word is None:
            raise ValueError(
                f"{CHECKPOINTING}: {policy} is not modelled; modelled: none, SelectiveAC, FullAC, MemoryBudgetAC"
            )
        return {"recompute": word}
    mode = str(_get(found, framework.defaults, MODE) or "none").lower()
    option = str(_get(found, framework.defaults, OPTION))
    if mode == "selective" and option == "op":
        return {"recompute": "op_sac"}
    if mode == "selective" and option in ("0", "1"):
        return {"recompute": "full"}
    if mode == "selective" and (every := whole_number(option)):
        layers = (model.num_layers if model else 0) // stages // every  # that a file names no model is said apart
        block = {"recompute": "full", "recompute_method": "block", "recompute_num_layers": layers}
        return block if layers else {"recompute": "none"}
    if mode in ("none", "full"):
        return {"recompute": str(mode)}
    raise ValueError(f"activation_checkpoint: mode {mode} with option {option} is not modelled")


def is_budgeted(found: Settings) -> bool:
    """Whether the compiler chooses what is recomputed, within a share of the memory of activations."""
    return found.get(MODE) == "memory_budget" or found.get(CHECKPOINTING) == "MemoryBudgetAC"


def _within_budget(share: Any) -> str:
    """The nearest recompute of a share of activations: all kept, none kept, else the products kept.

    Source: torchtitan/config/job_config.py ActivationCheckpoint.memory_budget.
    """
    number = finite_number(str(share))
    if number is None:
        raise ValueError(f"{BUDGET}: {str(share)[:80]!r} is not a number")
    return "none" if number >= 1 else "full" if number <= 0 else "op_sac"


def _sharding(found: Settings, defaults: Settings, row: Mapping[str, Any], world: int) -> dict[str, Any]:
    copies, shard = _copies(found), whole(SHARDS, _get(found, defaults, SHARDS))
    shard = (world // (_ranks(row) * copies) if shard < 0 else shard) * row.get("cp", 1)
    is_wrapped = shard > 1 or (copies == 1 and MODE not in defaults)  # 0.3.0 wraps a single rank as well
    return sharded(copies, shard) if is_wrapped else {"sharding": "none"}


def _copies(found: Settings) -> int:
    return whole(COPIES, found.get(COPIES, 1), least=1)


def _ranks(row: Mapping[str, Any]) -> int:
    return int(row.get("tp", 1)) * int(row.get("cp", 1)) * int(row.get("pp", 1))


def devices(found: Settings, row: Mapping[str, Any]) -> int:
    """GPUs that the degrees of a job file multiply to; 0 where the sharded copy takes what is left."""
    return max(whole(SHARDS, found.get(SHARDS, -1)), 0) * _copies(found) * _ranks(row)


def _pipeline_words(
    framework: Framework, found: Settings, model: Model | None, pp: int, read: set[str]
) -> dict[str, Any]:
    """Virtual stages, layout and schedule."""
    key = "parallelism.pipeline_parallel_"
    first, last = f"{key}first_stage_less_layers", f"{key}last_stage_less_layers"
    fqns, each = "parallelism.module_fqns_per_model_part", f"{key}layers_per_stage"
    read |= {first, last, fqns, each, f"{key}schedule", ORDER_FILE, f"{key}microbatch_size"}
    if pp == 1:
        return {"vpp": 1, "schedule": "1f1b", "pipeline_layout": "even"}
    name = str(_get(found, framework.defaults, f"{key}schedule"))
    file = PurePosixPath(str(found.get(ORDER_FILE) or "")).name
    schedule = next(
        (
            n
            for n, s in framework.schedules.items()
            if (s.keys[f"{key}schedule"].lower(), s.keys.get(ORDER_FILE, "")) == (name.lower(), file)
        ),
        None,
    )
    if schedule is None and file:
        known = ", ".join(str(s.keys[ORDER_FILE]) for s in framework.schedules.values() if ORDER_FILE in s.keys)
        raise ValueError(f"{ORDER_FILE}: {file} is none of the orders that export writes with {name}: {known}")
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
    return text + ("L" if not {*HEADS}.isdisjoint(modules) else "")


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


def setting_keys() -> frozenset[str]:
    """Every key of a job file that makes a candidate or a workload, or moves time or memory."""
    framework = load_framework("torchtitan@0.2.2")
    return framework.spelled.union(READ, framework.effects)
