"""torchtitan 0.3.0: one module with a configuration function, and with the model where torchtitan has no such flavor.

`python -m torchtitan.train --module searched --config searched` starts it. A model of its own is built by the functions
that make the layers of torchtitan's flavors (`spaces/keys/torchtitan_builders.yaml`), and registered beside them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from primus_search.files.dotted_keys import flattened, nested
from primus_search.files.known_keys import key_table
from primus_search.launch.read.torchtitan import LOSS
from primus_search.launch.write.job import Inexpressible, LaunchJob, unsaid_constants
from primus_search.launch.write.shell import argument_table, launch_file
from primus_search.launch.write.torchtitan_model import family_of, flavor_of, refuse_lost_parts
from primus_search.models.torchtitan_arguments import MOE_ARGS, NAME, defaults_of, model_of
from primus_search.models.torchtitan_builders import BUILDERS
from primus_search.values.model import Model

Fields = dict[str, Any]
SECTIONS = ("training", "parallelism", "compile", "debug")
"""Parts of the configuration, each of the class of its name: TrainingConfig."""
CONVERTERS, CHECKPOINTING = "model_spec.converters", "activation_checkpoint"


def config_file(job: LaunchJob, settings: Mapping[str, Any]) -> str:
    """The module of a job with these settings. Raises `Inexpressible` for a model that no family of torchtitan is."""
    own = flavor_of(job.framework, _main(job.model))
    family, _, flavor = (own or "").partition(":")
    shape = None if own else _shape(job)
    converter = next(iter(settings[CONVERTERS]), "")
    checkpointing, has_mtp = settings[CHECKPOINTING], job.model.num_mtp_layers > 0
    if has_mtp and LOSS in settings:
        what = "takes prediction layers with a whole loss alone; no launch file of stack.loss_chunks above 1"
        raise Inexpressible(f"{job.framework.title} {what}")
    chunked = [settings[LOSS]] if LOSS in settings else []
    values: Fields = {
        "family": family or (shape or {})["family"],
        "flavor": flavor or NAME,
        "shape": shape,
        "mtp": has_mtp,
        "losses": [*chunked, "CrossEntropyLoss"],
        "chunks": _section(LOSS, settings) if chunked else None,
        "seq_len": job.workload.seq_length,
        "registry": {k: repr(v) for k, v in _registry(job, settings).items()},
        "converter": converter,
        "conversion": {k: repr(v) for k, v in _conversion(converter, settings).items()},
        "checkpointing": checkpointing,
        "sections": [
            (one, f"{one.title()}Config", _section(one, settings)) for one in SECTIONS if _section(one, settings)
        ],
    }
    return launch_file(job, "searched.py.txt", edits(job), **values)()


def edits(job: LaunchJob) -> list[str]:
    """Constants of the model that no argument says, for a person to set."""
    if flavor_of(job.framework, _main(job.model)):
        return []
    return unsaid_constants(job.model, _read_back(job.model)[2])


def _main(model: Model) -> Model:
    """A model without its prediction layers, which are an argument of the registry."""
    return replace(model, num_mtp_layers=0) if model.latent is not None else model


def _section(name: str, settings: Mapping[str, Any]) -> Fields:
    return {k.partition(".")[2]: repr(v) for k, v in settings.items() if k.startswith(f"{name}.")}


def _registry(job: LaunchJob, settings: Mapping[str, Any]) -> Fields:
    """Arguments of `model_registry` beside the flavor."""
    said: Fields = {"attn_backend": settings["model_spec.attn_backend"]}
    if job.model.is_moe:
        said["moe_comm_backend"] = settings["model_spec.moe_comm_backend"]
        if settings["model_spec.moe_comm_backend"] == "hybridep" and job.row["cuda_graph"] != "none":
            said["non_blocking_capacity_factor"] = 1.0
    if job.model.num_mtp_layers:
        said["num_mtp_layers"] = job.model.num_mtp_layers
    return said


def _conversion(converter: str, settings: Mapping[str, Any]) -> Fields:
    said: Fields = {"model_compile_enabled": settings["compile.enable"]}
    kept, converted = (argument_table("torchtitan")[name].get(converter) for name in ("kept", "converted"))
    if kept:
        said |= {"recipe_name": settings[f"{CONVERTERS}.recipe_name"], "filter_fqns": kept}
    return said | ({"fqns": converted} if converted else {})


def _builder(family: str, fields: Mapping[str, Any]) -> str:
    """The function that makes the layers of a family."""
    named = [str(name) for name, one in key_table(BUILDERS).items() if one["family"] == family]
    return named[-1] if fields.get("moe_enabled") else named[0]


def _read_back(model: Model) -> tuple[str, Fields, Model]:
    """The function that builds a model, the arguments of its family, and the model that they come back as."""
    family, fields = family_of(model, ties_llama=True)
    fields |= {"hidden_dim": model.ffn_hidden} if family == "llama3" else {}
    name = _builder(family, fields)
    found = model_of(family, nested(flattened(fields) | key_table(BUILDERS)[name].get("fixed", {})))
    return name, fields, replace(found, num_mtp_layers=model.num_mtp_layers) if model.latent else found


def _shape(job: LaunchJob) -> Fields:
    """What the template says of a model of its own."""
    model = job.model
    name, given, read = _read_back(model)
    refuse_lost_parts(job, read)
    table = key_table(BUILDERS)[name]
    fields = defaults_of(table["family"]) | given
    fields["moe_args"] = MOE_ARGS | dict(fields.get("moe_args") or {})
    ties = fields.get("enable_weight_tying", False)
    shared = fields["moe_args"]["num_shared_experts"] if table["family"] == "qwen3" and model.is_moe else 0
    layer = {k: value for k, path in table.get("edits", {}).items() if (value := _at(fields, path)) is not None}
    if table["family"] == "qwen3" and not model.has_qk_norm:
        layer["attention.qk_norm"] = None
    options = table["options"]
    arguments = {k: value for k, path in table["arguments"].items() if (value := _at(fields, path)) is not None}
    head = table["head"]
    starts = "_EMBEDDING_SKIP_INIT" if ties else "_EMBEDDING_INIT"
    imports = [table["model"], name, table["flavors"], starts, "_NORM_INIT", head,
                "model_registry", *(["_build_mtp_layers"] if model.num_mtp_layers else [])]  # fmt: skip
    extra = {"num_mtp_layers": "0"} if table["family"] == "deepseek_v3" else {}
    return {
        "family": table["family"],
        "model": table["model"],
        "flavors": table["flavors"],
        "rotation": table["rotation"],
        "builder": name,
        "imports": sorted({*imports, *(["_LINEAR_INIT"] if shared else [])}),
        "parameters": ", ".join([*options, *(f"{k}={v}" for k, v in extra.items())]),
        "rope": {k: repr(v) for k, v in _rope(model, table, fields, job.workload.seq_length).items()},
        "arguments": {k: repr(v) for k, v in {**arguments, **table.get("constants", {})}.items()}
        | {one: one for one in options},
        "edits": {k: repr(v) for k, v in layer.items()},
        "shared": shared * fields["moe_inter_dim"] if shared else 0,
        "dim": model.hidden,
        "vocab": fields["vocab_size"],
        "tied": bool(ties),
        "head": head if head.isupper() else f"{head}({model.hidden})",
        "eps": repr(fields["norm_eps"]),
    }


def _at(fields: Mapping[str, Any], path: str) -> Any:
    """A field by its name with dots; None where it is not there."""
    part: Any = fields
    for step in path.split("."):
        part = (part or {}).get(step)
    return part


def _rope(model: Model, table: Mapping[str, Any], fields: Mapping[str, Any], length: int) -> Fields:
    """Arguments of the rotation; what stretches nothing is left out."""
    said: Fields = {"dim": model.latent.qk_rope_head_dim if model.latent else model.head_dim, "max_seq_len": length}
    scaling = str(model.constants.scaling.get("rope_type", "")).replace("llama3", "llama")
    for name, path in table["rope"].items():
        value = _at(fields, path)
        if value is not None and (name == "theta" or scaling in ("llama", "yarn")):
            said[name] = value
    if scaling in ("llama", "yarn"):
        said["scaling"] = scaling
    return said | ({"truncate": False} if table["family"] == "gpt_oss" else {})
