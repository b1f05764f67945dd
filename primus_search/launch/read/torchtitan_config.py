"""torchtitan 0.3.0: a configuration function of a Python file, the JSON that a job dumps, and flags over either.

    of_configuration(Path("config_registry.py"), text, 64, None, ["--config", "llama3_8b", "--compile.enable"])

A function is followed by its syntax tree (`files.python`), never run. Its settings have the names of Trainer.Config,
`model_spec.X` is argument X of `model_registry`, and a part that is one of several classes stands under its own name
(`activation_checkpoint: FullAC`).
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from primus_search.base.errors import Problem
from primus_search.base.guards.files import MAX_TABLE_BYTES, read_text
from primus_search.files.argument_tables import Argument, arguments
from primus_search.files.dotted_keys import flattened
from primus_search.files.framework_files import load_framework
from primus_search.files.python.python_module import PythonModule
from primus_search.files.python.python_values import CallRecord, Name, Unknown
from primus_search.files.shell.files_beside import beside
from primus_search.files.source import shown
from primus_search.launch.experiment import Experiment
from primus_search.launch.read.torchtitan import CHECKPOINTING, CLASSED, LOSS, READ
from primus_search.launch.read.torchtitan_experiment import flavored, of_torchtitan
from primus_search.launch.refusals import typed
from primus_search.models.preset_names import model_named
from primus_search.models.torchtitan_builders import built_model
from primus_search.values.model import Model

RELEASE = "torchtitan@0.3.0"
REGISTRY = "model_registry"
LONGEST = "max_seq_len"
OF_LENGTH = f"layers.attention.rope.{LONGEST}"
"""What of a model a configuration may change without making it another: the longest sequence."""
MOST_NAMED = 40


def of_configuration(
    path: Path, text: str, world: int, model: Model | None, given: Sequence[str] = (), name: str = ""
) -> Experiment:
    """The job of a configuration function of a file; `given`: flags, `--config NAME` among them.

    Raises ValueError for a file with several where none is named, and for a setting that only a run has.
    """
    module, flags = PythonModule.of(path, text), flags_of(RELEASE, given)
    named = str(flags.pop("config", name))
    flags.pop("module", None)
    made = module.returned(_function(module, named))
    config = _in_trainer(made)
    if not isinstance(config, CallRecord):
        raise ValueError(f"{named}: returns no configuration that can be followed without running it")
    settings = {**_before(path, text), **settings_of(config, flags), **flags}
    loaded, problem = (model, "") if model else _model(module, config, settings)
    problem = "" if loaded else problem
    read = of_torchtitan(path, settings, world, loaded, load_framework(RELEASE))
    read = replace(read, model_problems=(Problem(shown(path), problem),)) if problem else read
    read = replace(read, assumed=(*read.assumed, OF_POLICY)) if made.at("trainer") else read
    longest = config.at(f"model_spec.model.{OF_LENGTH}")
    return replace(read, written={**read.written, LONGEST: longest}) if longest and read.written else read


def _in_trainer(config: Any) -> Any:
    """The trainer's configuration in that of an experiment, which is made of one (graph_trainer) or has one (rl)."""
    if not isinstance(config, CallRecord):
        return config
    base, trainer = next(iter(config.arguments), None), config.fields.get("trainer")
    if isinstance(base, CallRecord):
        return replace(base, fields={**base.fields, **config.fields})
    return _of_policy(config, trainer) if isinstance(trainer, CallRecord) else config


def _of_policy(config: CallRecord, trainer: CallRecord) -> CallRecord:
    """The trainer of a policy with its batch: as many rows as samples of a step, each of a row's length.

    Source: torchtitan experiments/rl: controller.py AsyncLoopConfig, components/batcher.py BatchConfig
    """
    if "num_prompts_per_step" in config.fields:
        raise ValueError("is a policy's of torchtitan before 0.3.0 (RLTrainer), whose rows are as long as a rollout's")
    counts = [config.at(f"async_loop.{key}", 8) for key in ("num_prompts_per_train_step", "num_samples_per_prompt")]
    batch = {key: config.at(f"async_loop.batcher.batch.{key}", usual) for key, usual in ROWS.items()}
    batch["global_batch_size"] = prod(counts) if all(isinstance(one, int) for one in counts) else Unknown(str(counts))
    given = {key: one for key, one in config.fields.items() if key in ("model_spec", "compile")} | trainer.fields
    given |= {CHECKPOINTING: given.pop("ac_config", CallRecord("SelectiveAC.Config"))}
    return replace(trainer, fields={**given, "training": CallRecord(fields=batch)})


ROWS: Mapping[str, Any] = {"local_batch_size": 8, "seq_len": 2048, "disable_cuda_graphs": True}
"""Rows of a rank and their length of torchtitan's reinforcement learning, by default, which replays no graphs."""
OF_POLICY = (
    "rollouts are not in the step (workload.policy.rollout_s); a row for each sample, which the trainer packs, too"
)


def functions_of(module: PythonModule) -> list[str]:
    """Functions of a file that return a configuration and take nothing."""
    return [
        name
        for name, one in module.functions.items()
        if one.returns is not None
        and _returns(one.returns).endswith((".Config", "BackendConfig"))
        and not one.args.args
        and name[0] != "_"
    ]


def _returns(node: Any) -> str:
    import ast

    return ast.unparse(node).strip("'\"")


def _function(module: PythonModule, named: str) -> str:
    names = functions_of(module)
    if named in module.functions or (not named and len(names) == 1):
        return named or names[0]
    listed = ", ".join(names[:MOST_NAMED])
    if named:
        raise ValueError(f"has no configuration {named}; it has {listed}")
    how = f"primus-search project {module.path.name} --args '--config {names[0] if names else 'NAME'}'"
    raise ValueError(f"has {len(names)} configurations: {listed}; name one: {how}")


# --- settings ---------------------------------------------------------------------------------------------------------


def settings_of(config: CallRecord, given: Collection[str] = ()) -> dict[str, Any]:
    """The settings of a configuration. Raises ValueError for one that is read, only a run has and is not `given`."""
    found: dict[str, Any] = {}
    for section, value in config.fields.items():
        value = _of_mode(value) if getattr(value, "last", "") == "ActivationCheckpointConfig" else value
        if section == "model_spec":
            found |= dict(_spec(value))
        elif isinstance(value, CallRecord):
            found |= {section: OLDER.get(value.last, value.last)} if section in CLASSED and value.last else {}
            found |= {f"{section}.{key}": _plain(one) for key, one in value.fields.items()}
        elif value is None and section in _sections() and section not in given:
            raise ValueError(f"{section} = None: torchtitan stops where it reads its fields or builds it")
        else:
            found[section] = _plain(value)
    counts = READ | load_framework(RELEASE).spelled
    for key, value in found.items():
        text = value.text if isinstance(value, Unknown) else value.name if isinstance(value, CallRecord | Name) else ""
        if text and key in counts and key not in given:
            raise ValueError(f"{key}: {text} is known only when it runs; give it by --args '--{key} VALUE'")
    return {key: value for key, value in found.items() if not isinstance(value, Unknown | Name | CallRecord)}


OLDER: Mapping[str, str] = {"ChunkedCELoss": "ChunkedLossWrapper"}
"""Names of classes before 2026-06-26 (#3362)."""


def _before(path: Path, text: str) -> dict[str, Any]:
    """What a release before CUDA graphs of a whole step has: none (2026-08-13, #3559), by the copy around a file."""
    file = beside(path.parent, "torchtitan/config/configs.py")
    own = read_text(file, most=MAX_TABLE_BYTES) if file else ""
    has = "disable_cuda_graphs" in own if file else "ActivationCheckpointConfig(" not in text
    return {} if has else {"training.disable_cuda_graphs": True}


def _of_mode(config: CallRecord) -> CallRecord | None:
    """Recompute by its mode, as of torchtitan from 2026-02-23 to 2026-06-15 (#2386, #3674), by its class."""
    older = {"mode": "selective", "selective_ac_option": "op"}  # every second layer was "2", until 2026-03-23 (#2357)
    mode, option = (str(config.fields.get(key, usual)) for key, usual in older.items())
    policy = f"{mode} {option}" if mode == "selective" and option != "op" else mode.replace("_", "-")
    fields = {key.removeprefix("per_op_sac_"): value for key, value in config.fields.items() if key not in older}
    kind = POLICIES.get(policy, policy)
    return CallRecord(kind, fields=fields) if kind else None


def _sections() -> set[str]:
    """Sections that every configuration has; recompute alone may be none."""
    return {name.partition(".")[0] for name in arguments(RELEASE) if "." in name} - {CHECKPOINTING} | BUILT


BUILT = {LOSS, "tokenizer"}
"""Sections of several classes without a field that all of them have."""


def _spec(value: Any) -> Iterator[tuple[str, Any]]:
    """Arguments of `model_registry`, and its converters by their classes."""
    if not isinstance(value, CallRecord) or value.last != REGISTRY:
        return
    yield "model_spec.name", value.name.split(".")[-2] if "." in value.name else ""
    yield "model_spec.flavor", value.arguments[0] if value.arguments else value.fields.get("flavor")
    for key, one in value.fields.items():
        if key == "converters" and isinstance(one, list):
            converters = [c for c in one if isinstance(c, CallRecord)]
            yield "model_spec.converters", [c.last for c in converters]
            for converter in converters:
                own = {k: v for k, v in converter.fields.items() if not isinstance(v, CallRecord)}
                yield from ((f"model_spec.converters.{k}", _plain(v)) for k, v in own.items())
        elif key not in ("model", "flavor"):
            yield f"model_spec.{key}", _plain(one)


def _plain(value: Any) -> Any:
    """A list of calls as their names."""
    return [one.last if isinstance(one, CallRecord) else one for one in value] if isinstance(value, list) else value


def flags_of(release: str, words: Sequence[str]) -> dict[str, Any]:
    """Flags of torchtitan's command line as settings: `--a.b c`, `--a.b=c`, `--a.no-b`, `loss:mtp`."""
    table, found, name = arguments(release), dict[str, Any](), ""
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word[2:].partition("=")
            name = flag.replace("-", "_")
            *path, last = name.split(".")
            positive = ".".join([*path, last.removeprefix("no_")])
            if name not in table and positive in table:
                found[positive], name = False, ""
            else:
                found[name] = value if equals else True
        elif ":" in word and word.partition(":")[0].replace("-", "_") in CLASSED:
            section, _, kind = word.partition(":")
            found[section.replace("-", "_")] = POLICIES.get(kind, kind)
        elif name and found[name] is True and not (name in table and table[name].kind == "flag"):
            found[name] = word
        elif name and release == RELEASE and (name not in table or table[name].kind[:4] in ("list", "tabl")):
            found[name] = f"{found[name]} {word}"
        else:
            raise ValueError(f"{word}: torchtitan's parser refuses it{f' behind --{name}' if name else ''}")
    return {
        key: _parsed(table[key], value) if key in table and key not in CLASSED else value
        for key, value in found.items()
    }


def _parsed(one: Argument, value: Any) -> Any:
    """A flag's value as torchtitan's parser takes it; ValueError for none, and for one behind a switch."""
    if (one.kind == "flag") is not isinstance(value, bool):
        what = f"={value} follows a switch, which takes no value" if one.kind == "flag" else " needs a value"
        raise ValueError(f"--{one.name}{what}: torchtitan's parser refuses it")
    return typed(one, value, is_parsed=True)


POLICIES = {"full": "FullAC", "selective": "SelectiveAC", "memory-budget": "MemoryBudgetAC", "none": None}
"""Classes of recompute by their names on the command line (distributed/activation_checkpoint.py)."""


# --- the model --------------------------------------------------------------------------------------------------------


def _model(module: PythonModule, config: CallRecord, settings: Mapping[str, Any]) -> tuple[Model | None, str]:
    """The model of a configuration, and why there is none."""
    spec = config.fields.get("model_spec")
    flavor = settings.get("model_spec.flavor")
    if (name := config.fields.get("hf_model")) and "debug" not in str(flavor):
        problem = f"takes its model from {name}, which no preset is; give --model its config.json"
        return model_named(str(name), {}), problem
    if not isinstance(spec, CallRecord) or not isinstance(flavor, str):
        return None, "names no model that torchtitan registers; give --model"
    if changed := sorted(set(_changed(spec.fields.get("model"))) - {OF_LENGTH}):
        return None, f"changes model_spec.model.{changed[0]} of {flavor}; give --model its config.json"
    own = module.stored.get(flavor)
    if isinstance(own, Name) and own.name in module.functions:
        made = module.returned(own.name, keywords=spec.fields)
        found = built_model(made) if isinstance(made, CallRecord) else None
        predicted = int(settings.get("model_spec.num_mtp_layers") or 0)
        return (
            (replace(found, name=module.path.stem, num_mtp_layers=predicted), "") if found else (None, BUILT_OTHERWISE)
        )
    return flavored(load_framework(RELEASE), settings), ""


BUILT_OTHERWISE = "builds its model by functions that are not torchtitan's own; give --model its config.json"


def _changed(part: Any, above: str = "") -> Iterator[str]:
    """Dotted names of what is set below a part."""
    for key, value in part.fields.items() if isinstance(part, CallRecord) else ():
        if isinstance(value, CallRecord) and not value.name:
            yield from _changed(value, f"{above}{key}.")
        else:
            yield above + key


# --- the JSON of a job ------------------------------------------------------------------------------------------------

KINDS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "activation_checkpoint": (("force_recompute_mm_shapes_by_fqns", "SelectiveAC"), ("memory_budget", "MemoryBudgetAC"),
                              ("", "FullAC")),
    "loss": (("num_chunks", "ChunkedLossWrapper"), ("mtp_scale", "MTPLoss"), ("", "CrossEntropyLoss")),
    "dispatcher": (("non_blocking_capacity_factor", "hybridep"), ("cudagraphable", "deepep"),
                   ("dtype", "minimal_async_ep"), ("", "standard")),
}  # fmt: skip
"""Classes of a part of a dump, which names none, by a field that each has alone."""


def is_dump(text: str) -> bool:
    """Whether a text is the JSON of a job's configuration (debug.save_config_file)."""
    return '"model_spec"' in text and '"training"' in text and '"parallelism"' in text


def of_dump(path: Path, text: str, world: int, model: Model | None, given: Sequence[str] = ()) -> Experiment:
    """The job of a dumped configuration with flags over it."""
    data = json.loads(text)
    spec = data.pop("model_spec", None) or {}
    layers = (spec.get("model") or {}).get("layers") or []
    settings = flattened(data)
    for section in ("activation_checkpoint", "loss"):
        settings[section] = _kind(section, data.get(section))
    settings |= {"model_spec.name": spec.get("name"), "model_spec.flavor": spec.get("flavor")}
    experts = [one["moe"] for one in layers if isinstance(one, dict) and one.get("moe")]
    if experts:
        settings["model_spec.moe_comm_backend"] = _kind("dispatcher", experts[0]["routed_experts"]["token_dispatcher"])
    predicted = len((spec.get("model") or {}).get("mtp_layers") or [])
    settings |= {"model_spec.num_mtp_layers": predicted} if predicted else {}
    settings |= flags_of(RELEASE, given)
    framework = load_framework(RELEASE)
    loaded = model or flavored(framework, settings)
    if loaded is not None and model is None and len(layers) != loaded.num_layers:
        settings["model_spec.flavor"] = loaded = None  # changed by its configuration
    read = of_torchtitan(path, settings, world, loaded, framework)
    read = replace(read, written={**read.written, LONGEST: settings.get("training.seq_len")}) if read.written else read
    return replace(read, assumed=(*read.assumed, "fp8 = none: a dump names no converters; --set fp8= changes it"))


def _kind(section: str, part: Any) -> str | None:
    if part is None:
        return None
    return next(kind for field, kind in KINDS[section] if not field or field in part)
