"""What all Megatron-based frameworks print alike: argument dump or configuration, and the names of arguments."""

from typing import Any

from primus_search.base.guards.values import whole_number
from primus_search.files.known_keys import known_keys
from primus_search.files.setting_keys import setting_keys
from primus_search.launch.read.megatron import model_keys
from primus_search.learning.conclusion import conclude, product
from primus_search.learning.log_table import LogTable
from primus_search.learning.logs import table
from primus_search.learning.reading import Assumption, LogReading
from primus_search.learning.transcript import Transcript

_TABLE = table("arguments")
LAYOUT_ARGUMENTS: tuple[str, ...] = tuple(_TABLE["layout"])
MODEL_ARGUMENTS: tuple[str, ...] = (*_TABLE["model"], *model_keys())
SETTING_ARGUMENTS: tuple[str, ...] = tuple(sorted({*setting_keys(), *known_keys("megatron").effects} - {"recipe"}))
NO_EXPERTS = "[1]"
"""How Megatron-DeepSpeed prints the experts of a dense model."""

_RUN_LAYOUT = tuple(_TABLE["restart"])
_ARGUMENTS = "- arguments -"


def observe(seen: Transcript, line: str) -> None:
    """A second dump of arguments: where the run goes on with another layout, only what follows counts."""
    if _ARGUMENTS in line and seen.steps:
        seen.scratch["before"] = (_layout(seen), seen.steps, dict(seen.peaks))
        seen.steps, seen.peaks, seen.death, seen.at_death = [], {}, None, 0


def joined_restart(seen: Transcript) -> None:
    """Put the steps before a restart back where it kept the layout, or where it has none of its own."""
    layout, steps, peaks = seen.scratch.pop("before", (None, [], {}))
    if layout == _layout(seen) or (steps and not seen.steps):
        seen.steps, seen.at_death = [*steps, *seen.steps], len(steps) + seen.at_death
        for kind, size in peaks.items():
            seen.peak(kind, size)
    elif layout is not None:
        seen.note("the log holds an earlier run of another layout, which is left out")


def _layout(seen: Transcript) -> tuple[int | None, ...]:
    return tuple(argument(seen, name) for name in _RUN_LAYOUT)


def argument(seen: Transcript, name: str) -> int | None:
    """A whole number from the argument dump, the layout line or the command line, in this order."""
    return seen.whole(name, "line:" + name.removesuffix("_size").replace("_", "-"), "flag:" + name)


def virtual_stages(seen: Transcript, pp: int | None) -> int | None:
    """Virtual stages per rank as printed, or from the layers per virtual stage."""
    printed = argument(seen, "virtual_pipeline_model_parallel_size")
    printed = printed or argument(seen, "num_virtual_stages_per_pipeline_rank")
    per_stage = argument(seen, "num_layers_per_virtual_pipeline_stage")
    layers = argument(seen, "num_layers")
    if printed is None and per_stage and layers and pp and layers % (per_stage * pp) == 0:
        return layers // (per_stage * pp)
    return printed


def model_facts(seen: Transcript) -> dict[str, Any]:
    """Printed facts of the model under their Megatron names, whole numbers as numbers."""
    facts: dict[str, Any] = {}
    for name in MODEL_ARGUMENTS:
        text = seen.text(name, "flag:" + name)
        if text is not None and text != NO_EXPERTS:
            number = whole_number(text)
            facts[name] = text if number is None else number
    if facts.get("num_query_groups", 0) and "group_query_attention" not in facts:
        facts["group_query_attention"] = "True"
    return facts


def megatron_facts(seen: Transcript) -> tuple[dict[str, Any], dict[str, Assumption]]:
    """Layout, batches and model of a run, and what is assumed where its release prints no such argument."""
    joined_restart(seen)
    tp, pp = argument(seen, "tensor_model_parallel_size"), argument(seen, "pipeline_model_parallel_size")
    if tp is None and (tp := argument(seen, "model_parallel_size")) is not None:
        pp = pp or 1  # releases of before pipelines
    cp = argument(seen, "context_parallel_size")
    ep = argument(seen, "expert_model_parallel_size") or argument(seen, "moe_expert_parallel_size")
    assumed: dict[str, Assumption] = {}
    facts: dict[str, Any] = {
        "model": model_facts(seen),
        "gpus": _gpus(seen, tp, pp, cp),
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": ep,
        "vpp": virtual_stages(seen, pp),
        "seq_length": argument(seen, "seq_length") or argument(seen, "encoder_seq_length"),
        "micro_batch_size": argument(seen, "micro_batch_size"),
        "global_batch_size": argument(seen, "global_batch_size"),
    }
    _take_batch_of_a_rank(seen, facts)
    if facts["gpus"] is None and (printed := argument(seen, "world_size")) is not None:
        because = f"the log prints a world of {printed}, which its degrees do not divide; one replica is taken"
        assumed["gpus"] = Assumption(value=product(tp, pp, cp or 1), because=because)
    _take_printed_shape(seen, facts)
    known_otherwise = {"ep"} if seen.text("expert_parallel") == "True" else set()  # Megatron-Core 0.4: its size is none
    for name, value in (("cp", cp), ("ep", ep)):
        if value is None and tp is not None and name not in known_otherwise:
            assumed[name] = Assumption(value=1, because=f"the log prints no argument for {name}")
    return facts, assumed


def _gpus(seen: Transcript, tp: int | None, pp: int | None, cp: int | None) -> int | None:
    """The first printed count of GPUs that the degrees divide; None where none does."""
    ranks = product(tp or 1, pp or 1, cp or 1) or 1
    counts = [seen.whole(name) for name in ("world_size", "line:world", "flag:world_size")]
    counts += [product(argument(seen, "data_parallel_size"), tp, pp, cp or 1), seen.whole("env_world_size")]
    return next((count for count in counts if count and count % ranks == 0), None)


def _take_batch_of_a_rank(seen: Transcript, facts: dict[str, Any]) -> None:
    """`batch_size`: the batch of one replica, as releases before gradient accumulation print it; a step has one."""
    size = argument(seen, "batch_size")
    if facts["micro_batch_size"] is None and facts["global_batch_size"] is None and size and facts["tp"]:
        facts["micro_batch_size"] = size
        if facts["gpus"] and facts["gpus"] % (facts["tp"] * (facts["pp"] or 1)) == 0:
            facts["global_batch_size"] = size * facts["gpus"] // (facts["tp"] * (facts["pp"] or 1))


def _take_printed_shape(seen: Transcript, facts: dict[str, Any]) -> None:
    """The batch and length of the steady iterations where their lines print them (ramp-up, curricula)."""
    found = seen.steady()
    if found is None:
        return
    batch, length = (*found.lines[-1].shape, None, None)[:2]
    if batch:
        facts["global_batch_size"] = batch
    if length:
        facts["seq_length"] = length


def conclude_run(table: LogTable, seen: Transcript) -> LogReading:
    """The run of a log of Megatron-LM and of what prints the like."""
    for name, alias in table.aliases.items():
        if seen.text(name) is not None:
            is_off = alias.endswith("_parallel_size") and seen.facts[name] == "0"
            seen.facts.setdefault(alias, "1" if is_off else seen.facts[name])
    for note in table.notes:
        value = seen.text(note["fact"])
        if value is not None and (value == note["is"] if "is" in note else value != note["unless"]):
            seen.note(note["note"])
    facts, assumed = megatron_facts(seen)
    ranks = {whole_number(name.removeprefix("rank:")) for name in seen.facts if name.startswith("rank:")}
    if facts["gpus"] is None and len(ranks) > 1 and ranks == set(range(len(ranks))):
        because = f"{len(ranks)} local ranks print their configuration; the world size is not printed"
        assumed["gpus"] = Assumption(value=len(ranks), because=because)
    facts |= {name: value for name, value in table.fields(seen).items() if name in table.run and value is not None}
    return conclude(seen, table.name, facts, assumed, settings=printed_settings(seen))


def printed_settings(seen: Transcript) -> tuple[str, ...]:
    """Names of settings that a log may print: the known ones, and what its dump of arguments has beside them."""
    if "dumped" not in seen.scratch:
        return SETTING_ARGUMENTS
    known = known_keys("megatron")
    left = known.irrelevant.keys() | known.companions | set(MODEL_ARGUMENTS) | {"iteration"}
    return tuple(sorted({*SETTING_ARGUMENTS, *seen.scratch["dumped"]} - left))
