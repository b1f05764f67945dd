"""The model of a published run and its configuration as a table of one candidate.

The machine of a published run: accelerator and network of its GPU, software stack of its source, switches of its
flags.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from primus_search.base.errors import InputError
from primus_search.evidence.published.run_table import PublishedRun, Skipped, arguments, unread
from primus_search.files.fields import known_keys
from primus_search.files.framework_files import load_framework
from primus_search.files.hardware_files import Hardware, load_cluster, load_hardware, load_stack, site_of
from primus_search.files.word_rules import every, first, hardware_named, plain, vocabulary
from primus_search.launch.contract import translated
from primus_search.launch.read.megatron import candidate_words
from primus_search.models.megatron_yaml import setting_keys
from primus_search.schedule import algorithm
from primus_search.values.candidates import Candidates
from primus_search.values.knobs.values import PARALLEL
from primus_search.values.layout import BALANCED, EVEN, Layout, stage_layers
from primus_search.values.machine.cluster import Cluster, Network
from primus_search.values.machine.stack import Stack, number_of, with_numbers
from primus_search.values.model import LatentAttention, MixtureOfExperts, Model


@lru_cache(maxsize=64)
def stack_file(name: str) -> Stack:
    """The stack of that name as its file has it."""
    return load_stack(name)


# --- the device ------------------------------------------------------------------------------------------------------


def hardware_of(run: PublishedRun) -> str:
    """The name of the hardware file of a run's GPU. Raises `Skipped` where there is none."""
    gpu = run.word("gpu")
    words = plain(" | ".join(run.word(column) for column in ("source", "flags", "notes")))
    family = re.search(r"(?<![a-z])[a-z]++\d{2,3}", gpu.lower().replace(" ", ""))
    is_card = family and re.search(rf"(?<![a-z]){family.group()} (?:pcie|nvl)\b(?! ?\d| gen)", words)
    if is_card or first(vocabulary("devices")["limited_power"], {"words": words}):
        raise Skipped(f"the {gpu} is said to be another card, or to run at less power, than the module")
    file = hardware_named(gpu, run.word("notes"), run.word("source"))
    if file is None:
        raise Skipped(f"no hardware file for GPU {gpu!r}")
    return file


@lru_cache(maxsize=64)
def build_hardware(name: str) -> Hardware:
    """The hardware file of that name. Raises `Skipped` where it cannot be read."""
    try:
        return load_hardware(name)
    except InputError as error:
        raise Skipped(f"hardware {name}: {error.problems[0].what}") from None


# --- the cluster -----------------------------------------------------------------------------------------------------


def build_cluster(run: PublishedRun, hardware: Hardware, stack: Stack) -> Cluster:
    """As many nodes as the run had GPUs; a run on part of one node, or of each node, has smaller nodes."""
    gpus = run.count("gpus")
    network = _fabric(run, hardware.network)
    per_node = min(run.parts("gpus_per_node") or network.gpus_per_node, network.gpus_per_node, gpus)
    if gpus % per_node:
        raise Skipped(f"{gpus} GPUs are no whole number of nodes of {per_node}")
    usual = replace(hardware, network=network)
    cluster = load_cluster(usual, gpus // per_node, stack, gpus_per_node=per_node)
    return replace(cluster, site=site_of(hardware, run.publisher))


def _fabric(run: PublishedRun, network: Network) -> Network:
    """The network with the NICs a run says it had: `4x100Gb RoCE/node`, or a total per node."""
    nics = run.told("nics", file="devices", default=[0, 0])
    if all(nics):
        return replace(network, nics_per_node=nics[0], nic_bytes_per_s=_bytes_per_s(nics[1]))
    total = run.told("nic_total", file="devices", default=0)
    if total:
        rate = _bytes_per_s(total) / network.nics_per_node
        return replace(network, nic_bytes_per_s=rate, pod_bytes_per_s=min(rate, network.pod_bytes_per_s))
    return network


def _bytes_per_s(gbit: int) -> float:
    return float(gbit) * 1e9 / 8.0


# --- the stack -------------------------------------------------------------------------------------------------------


def build_stack(
    run: PublishedRun, hardware: Hardware, supposed: str = "", *, variant: str = ""
) -> tuple[Stack, tuple[str, ...]]:
    """The stack of a run with the switches its flags name, and what had to be assumed to know it.

    A column `stack` (or `stack=` in the flags) names a stack file; else the source tells; else the words of notes and
    flags; else what most runs on such a device are made with. supposed: this stack whatever the run says.
    variant: which one of the stack that its column or source tells.
    """
    if supposed:
        return replace(switched(stack_file(supposed), run, hardware), is_assumed=True), (f"{supposed} supposed",)
    in_flags = re.search(r"\bstack=([^;]*)", run.word("flags"))
    named = run.word("stack") or (in_flags.group(1).strip() if in_flags else "")
    assumed: tuple[str, ...] = ()
    name, version = None, f"@{variant}" if variant else ""
    if named:
        try:
            return switched(stack_file(named + version), run, hardware), ()
        except InputError:
            name = stack_name(run.facts | {"source": named})
            assumed = (f"stack {named!r} " + (f"read as {name}" if name else "is not known"),)
    name = name or stack_name(run.facts)
    is_assumed = name is None
    if name is None:
        name = inferred_stack(run, hardware)
        assumed += (f"no stack is known for this source: {name} assumed",)
    elif variant:
        name += version
    elif run.told("is_fork", file="stacks"):
        is_assumed, assumed = True, (*assumed, f"{name} assumed of a fork")
    try:
        return replace(switched(stack_file(name), run, hardware), is_assumed=is_assumed), assumed
    except InputError as error:
        raise Skipped(f"stack {name}: {error.problems[0].what}") from None


def stack_name(words: Mapping[str, str]) -> str | None:
    """The stack that runs of a source (with these flags, on this GPU) were made with; None: not known."""
    found: str | None = first(vocabulary("stacks")["by_source"], words)
    return found


def inferred_stack(run: PublishedRun, hardware: Hardware) -> str:
    """What a run of an unknown source was most likely made with; docs/fidelity.md has the error that this costs."""
    sharding = run.told("sharding")
    facts = _facts(run, hardware) | {
        "is_sharded": "yes" if sharding in ("fsdp2", "hsdp", "megatron_fsdp") else "no",
        "is_moe": "yes" if (run.whole("num_experts", 0) or 0) > 1 else "no",
    }
    return str(first(vocabulary("stacks")["likely"], facts))


def switched(stack: Stack, run: PublishedRun, hardware: Hardware) -> Stack:
    """The stack with what a run's words switch on or off on that device."""
    facts = _facts(run, hardware)
    for group in vocabulary("switches"):
        for name, value in (first(group, facts | {"stack.": stack}) or {}).items():
            is_float = isinstance(number_of(stack, name), float)
            stack = with_numbers(stack, {name: float(value) if is_float else value})
    return stack


def _facts(run: PublishedRun, hardware: Hardware) -> dict[str, Any]:
    acc = hardware.accelerator
    return run.facts | {
        "device.vendor": acc.vendor,
        "device.arch": acc.arch,
        "device.kernels": " ".join(acc.attention.kernels),
        "device.default_stack": hardware.default_stack or "",
    }


def routing_imbalance(run: PublishedRun, stack: Stack) -> float:
    """Rows of the busiest expert over its share."""
    return min(max(float(run.told("routing_imbalance", facts={"stack.": stack})), 1.0), MOST_CAPACITY)


MOST_CAPACITY = 64.0
"""No expert is given room for more than this many times its share; more is read as a typo."""


def build_candidates(run: PublishedRun, model: Model, stack: Stack) -> Candidates:
    """The configuration of a run as a table of one row."""
    pp, vpp, tp = run.count("pp", 1), run.count("vpp", 1), run.count("tp", 1)
    schedule = _schedule(run, pp, vpp)
    vpp = _chunks(schedule, vpp) if pp > 1 else 1
    knobs = _knobs(run, stack)
    layout = _layout(run, model, pp * vpp)
    recompute, layers = _recompute(run, model, pp * vpp, layout)
    sharding = _word(run, "sharding", "fsdp")
    by_contract, _ = of_arguments(run, model)
    if sharding == "hsdp":
        knobs.setdefault("shard_group", run.whole("gpus_per_node", 8) or 8)
    return Candidates.from_words(
        {
            "tp": tp,
            "pp": pp,
            "vpp": vpp,
            "ep": run.count("ep", 1),
            "etp": max(run.parts("etp"), 1),
            "cp": run.count("cp", 1),
            "micro_batch_size": run.count("mbs"),
            "schedule": schedule,
            "pipeline_layout": str(layout),
            "fp8": _word(run, "precision", "precision"),
            "recompute": recompute,
            "recompute_num_layers": layers,
            "recompute_method": "block" if layers else "uniform",
            "sharding": sharding,
            "offload_modules": "+".join(every(vocabulary("words")["offload_modules"], run.words)) or "none",
        }
        | knobs
        | by_contract
        | {
            "sequence_parallel": knobs["sequence_parallel"] and tp > 1,
            "offload_layers": knobs.get("offload_layers", 0) // (pp * vpp),
        }
    )


COLUMNS_OF_DEGREES = frozenset(PARALLEL)
"""Flags that repeat a column."""


def of_arguments(run: PublishedRun, model: Model) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Axes that launch arguments among the flags set, by Megatron's contract, and the flags that nothing reads.

    Arguments that cannot matter for speed or memory are read.
    """
    known, parts = known_keys("megatron"), unread(run.word("flags"))
    given = {key: one for key, one in arguments(parts).items() if key not in COLUMNS_OF_DEGREES}
    left = tuple(
        part for part in parts if part not in {part for k, (part, _) in given.items() if k in known.irrelevant}
    )
    settings = {key: value for key, (_, value) in given.items() if key in setting_keys() and value is not None}
    if not settings:
        return {}, left
    framework = load_framework("megatron")
    degrees = {framework.spellings[axis].key: run.whole(axis, 1) or 1 for axis in ("tp", "pp", "cp", "ep")}
    try:
        (plain, _), (row, read) = (
            candidate_words(framework, translated(framework, degrees | more)[0], model, run.count("gpus"))
            for more in ({}, settings)
        )
    except ValueError:
        return {}, left
    left = tuple(part for part in left if part not in {given[key][0] for key in settings if key in read})
    return {axis: word for axis, word in row.items() if word != plain.get(axis)}, left


def _word(run: PublishedRun, rules: str, column: str) -> str:
    """The value of a column by its rules. Raises `Skipped` for a word that none holds for."""
    found = run.told(rules)
    if found is None:
        raise Skipped(f"{column} {run.word(column)!r} is not known")
    return str(found)


def _knobs(run: PublishedRun, stack: Stack) -> dict[str, Any]:
    """Columns that the words of a run set, by name."""
    facts = run.words | {"stack.": stack}
    found = {name: first(rules, facts) for name, rules in vocabulary("words")["knobs"].items()}
    return {name: value for name, value in found.items() if value is not None}


def _schedule(run: PublishedRun, pp: int, vpp: int) -> str:
    """The pipeline's order; without a pipeline the word does not matter."""
    name = run.told("schedule", facts={"chunks": "several" if vpp > 1 else "one"})
    if name is None and pp > 1:
        raise Skipped(f"schedule {run.word('schedule')!r} is not known")
    return name or "1f1b"


def _chunks(schedule: str, vpp: int) -> int:
    """Chunks a rank holds: tables leave out the number that a schedule is defined for, two of a V."""
    defined = algorithm(schedule).virtual_stages
    return defined[0] if defined is not None and vpp == 1 else vpp


def _recompute(run: PublishedRun, model: Model, stages: int, layout: Layout) -> tuple[str, int]:
    """The recompute word, and for whole layers their number in every virtual stage (0 = all)."""
    modules = [str(module) for module in every(vocabulary("words")["recompute_modules"], run.words)]
    found = run.told("recompute", "+".join(dict.fromkeys(modules)) or "unknown")
    if found == "unknown":
        raise Skipped(f"recompute {run.word('recompute')!r} is not known")
    if found == "layer ids":
        ids = _layer_ids(run)
        if stages > 1:
            layers = _of_every_stage(ids, model, stages, layout)
            return ("full", layers) if layers else ("none", 0)
        found = len(ids)
    if isinstance(found, int):
        return "full", 0 if found >= model.num_layers else found
    return str(found), 0


def _layer_ids(run: PublishedRun) -> list[int]:
    """Layers, counted over the whole model from 0, that are recomputed: `partial:layer ids 0,1,4-6`."""
    found = re.search(r"layer ids (\d{1,5}(?:[,-]\d{1,5})*)", run.word("recompute").lower())
    ends = [part.partition("-") for part in found.group(1).split(",")] if found else []
    return sorted({number for start, _, last in ends for number in range(int(start), int(last or start) + 1)})


def _of_every_stage(ids: Sequence[int], model: Model, stages: int, layout: Layout) -> int:
    """How many layers of every virtual stage a list of the whole model's layers names. Raises `Skipped` if they differ.

    Megatron-style knobs recompute as many layers of each stage. Where some stages recompute and others do not, neither
    the slowest nor the fullest is that of any such knob.
    """
    dealt = stage_layers(model, stages, layout)
    if dealt is None:
        raise Skipped(f"{model.num_layers} layers cannot be dealt to {stages} virtual stages")
    ends = np.cumsum(dealt.layers)
    counts = np.bincount(np.searchsorted(ends, ids, side="right"), minlength=stages)[:stages]
    if counts.min() != counts.max():
        raise Skipped(f"layers recomputed are {counts.min()} to {counts.max()} per virtual stage, which is no setting")
    return int(counts.min())


def _layout(run: PublishedRun, model: Model, stages: int) -> Layout:
    text = pipeline_layout(run)
    if text:
        return Layout("string", text=text)
    if stages == 1 or model.num_layers % stages == 0:
        return EVEN
    most = -(-model.num_layers // stages)
    rest = model.num_layers - (stages - 1) * most
    if (model.num_mtp_layers or has_layout_of_recipe(run)) and rest >= 0:
        # Megatron-Bridge's layouts of DeepSeek-V3 and Kimi K2: full stages, and what is left to the one with MTP and
        # loss (recipes/kimi/kimi_k2.py, _get_kimi_k2_pipeline_layout).
        return Layout("ends", last=rest)
    if (model.num_layers + 2) % stages == 0:
        # Megatron's account_for_embedding_in_pipeline_split and its twin for the loss: each end counts as a layer.
        at_ends = (model.num_layers + 2) // stages - 1
        return Layout("ends", first=at_ends, last=at_ends)
    return BALANCED


AGREES = 0.01
"""A parameter count this close to the published one settles which variant of a model it is."""


def build_model(run: PublishedRun) -> Model:
    """The transformer of a run. Gated or not, tied or not: whichever agrees with the published parameter count."""
    hidden, heads, layers = run.count("hidden"), run.count("heads"), run.count("num_layers")
    experts, dense = _experts(run), run.parts("first_dense_layers")
    period = run.told("moe_layer_freq")
    family: dict[str, Any] = {}
    for fields in every(vocabulary("models")["families"], run.words):
        family |= fields
    prefers_gate = family.pop("prefers_gate", True)
    has_positions = family.pop("has_learned_positions", False)
    try:
        plain = Model(
            name=run.word("model"),
            num_layers=layers,
            hidden=hidden,
            ffn_hidden=run.parts("ffn_hidden") or 4 * hidden,
            num_heads=heads,
            num_kv_heads=run.parts("kv_heads") or heads,
            head_dim=run.parts("head_dim") or max(hidden // heads, 1),
            vocab_size=run.parts("vocab") or run.told("vocabulary", file="models"),
            latent=_latent(run, hidden),
            moe=experts,
            moe_layers=[experts is not None and i >= dense and (i + 1) % period == 0 for i in range(layers)],
            windows=_windows(run, layers),
            learned_positions=run.parts("seq_len") if has_positions else 0,
            num_mtp_layers=run.told("num_mtp_layers", pipeline_layout(run).count("m")),
            source=run.word("source"),
            **family,
        )
    except ValueError as error:
        raise Skipped(f"no such model: {error}") from None
    return _closest(plain, run.number("params_b"), prefers_gate=prefers_gate)


OF_RECIPE = "recipe"
"""What a table writes for a pipeline layout that the vendor's recipe has, without printing it."""


def pipeline_layout(run: PublishedRun) -> str:
    """The layout string of a run's pipeline; empty where there is none, or only the word that it is the recipe's."""
    return "" if has_layout_of_recipe(run) else str(run.told("pp_layout", ""))


def has_layout_of_recipe(run: PublishedRun) -> bool:
    """Whether a run has its recipe's own pipeline layout, which its table does not print."""
    return bool(run.told("pp_layout", "") == OF_RECIPE)


def _closest(plain: Model, params_b: float | None, *, prefers_gate: bool) -> Model:
    variants = [
        replace(plain, is_gated=gated, is_tied=tied)
        for gated in (prefers_gate, not prefers_gate)
        for tied in (not prefers_gate, prefers_gate)
    ]
    if not params_b or params_b < 0.0:
        return variants[0]
    errors = [round(abs(variant.total_params / 1e9 / params_b - 1.0), 2) for variant in variants]
    agreeing = (i for i, error in enumerate(errors) if error < AGREES)
    return variants[next(agreeing, errors.index(min(errors)))]


def _experts(run: PublishedRun) -> MixtureOfExperts | None:
    experts = run.parts("num_experts")
    if experts < 2:
        return None
    inner = run.count("moe_ffn")
    return MixtureOfExperts(
        num_experts=experts,
        top_k=run.count("topk"),
        expert_ffn_hidden=inner,
        shared_ffn_hidden=run.parts("shared_experts") * inner,
    )


def _latent(run: PublishedRun, hidden: int) -> LatentAttention | None:
    if not run.parts("mla"):
        return None
    sizes = dict(run.told("latent", file="models"))
    if hidden <= sizes.pop("compressed_above_hidden"):
        sizes["q_lora_rank"] = 0
    return LatentAttention(**sizes)


def _windows(run: PublishedRun, layers: int) -> list[int]:
    found = run.told("windows", file="models", default={"tokens": 0, "period": [0]})
    return [found["tokens"] * found["period"][i % len(found["period"])] for i in range(layers)]
