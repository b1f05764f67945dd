"""Candidates from the keys of torchtitan 0.2.2's job file, section and name with a dot.

Its model arguments as a model, those of a module that an export wrote or of a registered flavor:

model_of("llama3", {"dim": 4096, "n_layers": 32, ...})
model_of_module(Path("primus_search_model.py").read_text())
"""

import ast
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from primus_search.base.guards.values import whole_number
from primus_search.files.fields import key_table
from primus_search.files.framework_files import load_framework
from primus_search.launch.contract import whole, words_of
from primus_search.launch.read.megatron import dealt, sharded
from primus_search.values.layout import Layout
from primus_search.values.machine.framework import Framework, Settings
from primus_search.values.model import Attention, Constants, LatentAttention, MixtureOfExperts, Model


def flattened(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys."""
    found: dict[str, Any] = {}
    for key, value in tables.items():
        found |= flattened(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return found


ORDER_FILE = "parallelism.pipeline_parallel_schedule_csv"
"""The file of a pipeline order; beside it the schedule's name decides where stages live."""
COMPILE, COMPONENTS = "compile.enable", "compile.components"
EAGER = "eager"
"""The variant of a stack whose blocks are not compiled."""
MODE, OPTION = "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"
SIZES = {name: f"training.{key}" for name, key in (("seq_length", "seq_len"),
         ("global_batch_size", "global_batch_size"), ("local_batch_size", "local_batch_size"))}  # fmt: skip
COPIES, SHARDS = "parallelism.data_parallel_replicate_degree", "parallelism.data_parallel_shard_degree"
READ = {*SIZES.values(), COMPILE, COMPONENTS, COPIES, SHARDS}
OWN = {"job.description", "job.dump_folder", "model.name", "model.flavor", "experimental.custom_import",
       "training.steps"}  # fmt: skip
"""Keys of which no time and no memory follows."""


def words(framework: Framework, found: Settings, model: Model | None, world: int) -> tuple[dict[str, Any], set[str]]:
    """The axes of a candidate that a job file's settings give, on `world` devices, and the keys that were read."""
    row, read = words_of(framework, found, has_experts=model is None or model.is_moe)
    knobs, defaults = framework.spellings, framework.defaults
    pp = row.get("pp", 1)
    row["sequence_parallel"] = row.get("tp", 1) > 1
    row |= _pipeline_words(framework, found, model, pp, read)
    row |= _recompute(framework, found, model, pp * row["vpp"])
    read |= knobs["recompute"].keys
    if pp == 1:
        key = SIZES["local_batch_size"]
        row["micro_batch_size"] = whole(key, _get(found, defaults, key), least=1)
    row |= _sharding(found, defaults, row, world)
    read |= READ | OWN
    row["loss_fusion"] = "loss" in compiled(found, defaults)
    return row, read


def compiled(found: Settings, defaults: Settings) -> list[str]:
    """What a job file compiles: model, loss."""
    return list(_get(found, defaults, COMPONENTS) or []) if _get(found, defaults, COMPILE) else []


def _get(found: Settings, defaults: Settings, key: str) -> Any:
    return found.get(key, defaults.get(key))


def _recompute(framework: Framework, found: Settings, model: Model | None, stages: int) -> dict[str, Any]:
    mode = str(_get(found, framework.defaults, MODE) or "none").lower()
    option = str(_get(found, framework.defaults, OPTION))
    if mode == "selective" and option == "op":
        return {"recompute": "op_sac"}
    if mode == "selective" and option in ("0", "1"):
        return {"recompute": "full"}
    if mode == "selective" and (every := whole_number(option)) and model is not None:
        layers = model.num_layers // stages // every
        block = {"recompute": "full", "recompute_method": "block", "recompute_num_layers": layers}
        return block if layers else {"recompute": "none"}
    if mode in ("none", "full"):
        return {"recompute": str(mode)}
    raise ValueError(f"activation_checkpoint: mode {mode} with option {option} is not modelled")


def _sharding(found: Settings, defaults: Settings, row: Mapping[str, Any], world: int) -> dict[str, Any]:
    copies, shard = _copies(found), whole(SHARDS, _get(found, defaults, SHARDS))
    shard = world // (_ranks(row) * copies) if shard < 0 else shard
    return sharded(copies, shard * row.get("cp", 1)) if shard * row.get("cp", 1) > 1 else {"sharding": "none"}


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
    return text + ("L" if "output" in modules else "")


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
    framework = load_framework("torchtitan")
    return framework.spelled.union(READ, framework.effects)


Fields = Mapping[str, Any]
NAME = "searched"


def model_of_module(text: str) -> Model:
    """The model that a module registers: its family and the arguments of `MODEL`. Raises ValueError for other texts.

    Nothing is run: names, numbers and calls of them are read from the syntax tree.
    """
    family, fields = "", None
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and any(one.name == "get_train_spec" for one in node.names):
            family = str(node.module).rpartition(".")[2]
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "MODEL":
            fields = _plain(node.value)
    if family not in READERS or not isinstance(fields, dict):
        raise ValueError("registers no model of llama3, qwen3, deepseek_v3 or gpt_oss as MODEL")
    return model_of(family, fields)


def _plain(node: ast.expr) -> Any:
    if isinstance(node, ast.Call):
        return {str(word.arg): _plain(word.value) for word in node.keywords}
    return ast.literal_eval(node)


KERNEL = re.compile(r"_((?:flex|varlen|sdpa)(?:_attn|_flash)?)$")


def flavor(name: str) -> tuple[Model, str] | None:
    """The model that torchtitan registers as `family:flavor`; None for another name.

    Beside it the kernel of its attention, where a flavor of the same sizes has the usual one.

    Of `spaces/keys/torchtitan_flavors.yaml`; a flavor of another release that only names its kernel is that of its
    sizes (`70B_flex_flash`).
    """
    family, _, flavor = name.partition(":")
    registered = key_table("torchtitan_flavors").get(family, {"flavors": {}})
    called = f"{family}_{flavor}".lower().replace("-", "_")
    named = "" if flavor in registered["flavors"] else (found := KERNEL.search(flavor)) and found[1]
    flavor = flavor.removesuffix(f"_{named}")
    if flavor not in registered["flavors"]:
        return None
    fields = registered["flavors"][flavor]
    kernel = fields.get("attn_type", registered["defaults"]["attn_type"])
    if named:
        return replace(model_of(family, fields), name=called), str(named)
    twins = (dict(registered["defaults"], **one) for one in registered["flavors"].values())
    has_twin = any(one != dict(one, attn_type=kernel) == registered["defaults"] | fields for one in twins)
    return replace(model_of(family, fields), name=called), str(kernel) if has_twin and kernel != "sdpa" else ""


MOE_ARGS = {"num_experts": 8, "top_k": 1, "num_shared_experts": 1, "score_func": "sigmoid", "route_norm": False,
            "route_scale": 1.0, "gate_bias": False}  # fmt: skip
"""Defaults of torchtitan/models/moe/moe.py MoEArgs; those of a family's arguments are in `torchtitan_flavors`."""


def model_of(family: str, fields: Fields) -> Model:
    """The model of a family's arguments, its defaults where they are left out."""
    given = key_table("torchtitan_flavors")[family]["defaults"] | dict(fields)
    return READERS[family](given | {"moe_args": MOE_ARGS | dict(given.get("moe_args") or {})})


def _model(fields: Fields, scaling: Fields, moe: MixtureOfExperts | None = None, **more: Any) -> Model:
    """A model of the fields that all families call the same, with its constants; scaling: of the rotary frequencies."""
    experts, routing = fields["moe_args"], dict[str, Any]()
    if moe is not None:
        routing = {"router_score": experts["score_func"], "router_normalises": experts["route_norm"]}
        routing["router_scale"] = float(experts["route_scale"])
    constants = Constants(
        norm_epsilon=float(fields["norm_eps"]),
        rotary_base=float(fields["rope_theta"]),
        rotary_scaling=tuple(sorted(scaling.items(), key=lambda pair: (pair[0] != "rope_type", pair[0]))),
        activation="silu",
        **routing,
    )
    return Model(
        name=NAME,
        num_layers=fields["n_layers"],
        hidden=fields["dim"],
        num_heads=fields["n_heads"],
        num_kv_heads=fields.get("n_kv_heads") or fields["n_heads"],
        vocab_size=fields["vocab_size"],
        moe=moe,
        constants=constants,
        **more,
    )


def _experts(experts: Fields, size: int, **more: Any) -> MixtureOfExperts:
    """Experts of a size. torchtitan balances every router by a bias beside it; of models, those with sigmoid scores
    have it."""
    limits = {"num_groups": experts.get("num_expert_groups"), "top_groups": experts.get("num_limited_groups")}
    has_rule = experts["score_func"] == "sigmoid"
    rule = {"has_router_bias": has_rule, "is_router_bias_buffer": has_rule}
    return MixtureOfExperts(
        num_experts=experts["num_experts"],
        top_k=experts["top_k"],
        expert_ffn_hidden=size,
        shared_ffn_hidden=experts["num_shared_experts"] * size,
        **{key: value for key, value in limits.items() if value},
        **rule | more,
    )


def _llama_scaling(given: Fields | None, factor: float, high: float) -> dict[str, Any]:
    """Llama's stretch of the rotary frequencies; factor, high: its defaults."""
    found = {"scaling_factor": factor, "low_freq_factor": 1.0, "high_freq_factor": high} | dict(given or {})
    found.setdefault("original_max_position_embeddings", 8192)
    return {"rope_type": "llama3", "factor": found.pop("scaling_factor"), **found}


def _llama3(fields: Fields) -> Model:
    hidden = int(8 * fields["dim"] / 3)
    if fields.get("ffn_dim_multiplier") is not None:
        hidden = int(fields["ffn_dim_multiplier"] * hidden)
    multiple, scaling = fields["multiple_of"], _llama_scaling(fields.get("rope_scaling_args"), 8.0, 4.0)
    return _model(
        fields,
        scaling if scaling["factor"] != 1.0 else {},
        ffn_hidden=multiple * -(-hidden // multiple),
        head_dim=fields["dim"] // fields["n_heads"],
    )


def _llama4(fields: Fields) -> Model:
    """Sizes as torchtitan/models/llama4/model/model.py makes them: the hidden size is shared by a token's experts."""
    experts, multiple = fields["moe_args"], fields["multiple_of"]
    width = int((fields.get("ffn_dim_multiplier") or 1.0) * int(8 * fields["dim"] / 3))
    shares = experts["top_k"] + experts["num_shared_experts"] if fields["auto_scale_hidden_dim"] else 1
    layers, head_dim = range(fields["n_layers"]), fields["dim"] // fields["n_heads"]
    kv_heads = fields.get("n_kv_heads") or fields["n_heads"]
    full = Attention(num_heads=fields["n_heads"], num_kv_heads=kv_heads, head_dim=head_dim)
    every, chunked = fields.get("every_n_layers_nope"), replace(full, chunk=fields["fixed_attn_block_size"])
    given = fields.get("rope_scaling_args")
    return _model(
        fields,
        {} if given is None else _llama_scaling(given, 16.0, 1.0),
        ffn_hidden=multiple * -(-width // multiple),
        head_dim=head_dim,
        moe=_experts(experts, multiple * -(-int(width / shares) // multiple)),
        moe_layers=tuple((layer + 1) % fields["interleave_moe_layer_step"] == 0 for layer in layers),
        mixers=tuple(chunked if layer % every else full for layer in layers) if every else (),
    )


def _qwen3(fields: Fields) -> Model:
    return _model(
        fields,
        {},
        ffn_hidden=fields["hidden_dim"],
        head_dim=fields["head_dim"],
        has_qk_norm=fields["qk_norm"],
        is_tied=fields["enable_weight_tying"],
        moe=_experts(fields["moe_args"], fields["moe_inter_dim"]) if fields["moe_enabled"] else None,
    )


def _deepseek_v3(fields: Fields) -> Model:
    sizes = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    latent = LatentAttention(**{key: fields[key] for key in sizes})
    dense, layers, factor = fields["n_dense_layers"], fields["n_layers"], float(fields["rope_factor"])
    moe = _experts(fields["moe_args"], fields["moe_inter_dim"]) if dense < layers else None
    scaling: dict[str, Any] = {"rope_type": "yarn", "factor": factor, "mscale_all_dim": float(fields["mscale"])}
    scaling |= {key: float(fields[key]) for key in ("beta_fast", "beta_slow", "mscale")}
    scaling["original_max_position_embeddings"] = int(fields["original_seq_len"])
    return _model(
        dict(fields, n_kv_heads=fields["n_heads"]),
        scaling if factor != 1.0 else {},
        ffn_hidden=fields["inter_dim"],
        head_dim=latent.qk_nope_head_dim,
        latent=latent,
        moe=moe,
        moe_layers=tuple(layer >= dense for layer in range(layers)) if moe else (),
    )


def _gpt_oss(fields: Fields) -> Model:
    experts, factor, window = fields["moe_args"], float(fields["rope_factor"]), fields["sliding_window_size"]
    bias = {"has_router_bias": experts["gate_bias"], "is_router_bias_buffer": False}
    scaling = {
        "rope_type": "yarn",
        "factor": factor,
        "beta_fast": float(fields["ntk_beta"]),
        "beta_slow": float(fields["ntk_alpha"]),
        "original_max_position_embeddings": fields["original_seq_len"],
        "truncate": False,
    }
    return _model(
        fields,
        scaling if factor != 1.0 else {},
        ffn_hidden=fields["moe_inter_dim"],
        head_dim=fields["head_dim"],
        has_linear_bias=True,
        has_attention_sinks=True,
        activation_clamp=float(fields["swiglu_limit"]),
        windows=tuple(0 if layer % 2 else window for layer in range(fields["n_layers"])),
        moe=_experts(experts, fields["moe_inter_dim"], **bias),
    )


READERS = {"llama3": _llama3, "llama4": _llama4, "qwen3": _qwen3, "deepseek_v3": _deepseek_v3, "gpt_oss": _gpt_oss}
"""What reads the arguments of a family of torchtitan 0.2.2 (torchtitan/models/*/model/args.py)."""
