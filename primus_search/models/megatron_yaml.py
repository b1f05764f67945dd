"""Models from Primus and Megatron YAML: `extends` chains, experiment files, environment variables in values.

A file may `extend` others (`bases` and `includes` mean the same in older files); a child wins over its parents, a
later parent over an earlier one. An experiment file names its model under `modules.pre_trainer.model` and overrides
it under `overrides`. `${VAR:default}` is filled from the environment. Files of Primus that stand nowhere beside are
those of a table, `primus_files`; every chain of models ends in Primus' `language_model.yaml`.

Vocabulary: `padded_vocab_size`, else `vocab_size` plus `vocab_extra_ids`, else that of the file's `tokenizer_model`
(`tokenizers`), padded to 128 or to the file's `make_vocab_size_divisible_by` times its tensor-parallel degree, as
Megatron pads. There is no silent default.

Every key is read, or listed in `spaces/keys/megatron.yaml` as one that decides no size, or refused by its name.
"""

import json
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, Problem, did_you_mean
from primus_search.files.fields import Fields, Located
from primus_search.files.known_keys import key_rows, key_table, known_keys
from primus_search.files.setting_keys import setting_keys
from primus_search.files.source import Document, Keys, plain, read
from primus_search.files.unread_keys import drop_ignored, refuse_unread
from primus_search.models.build import VOCAB_MULTIPLE, build_model, vocabulary
from primus_search.models.families.megatron_hybrid import (
    COMPRESSED_TYPE,
    HYBRID_TYPE,
    PATTERNS,
    claim_variant_keys,
    num_predictions,
    pattern_letters,
    variant_layers,
)
from primus_search.models.families.parts import sizes
from primus_search.models.layer_pattern import per_layer
from primus_search.models.model_constants import of_megatron
from primus_search.models.tokenizers import vocabulary_of
from primus_search.values.model import LatentAttention, MixtureOfExperts, Model

PARENT_KEYS = ("extends", "bases", "includes")
OWN_KEYS = (*PARENT_KEYS, "modules", "ffn_hidden_size", "num_query_groups", "kv_channels", "tokenizer_type", "swiglu")
"""Keys that no HuggingFace configuration has."""

PRESET_FOLDER = Path("primus/configs/models/megatron")
TRAINER_FOLDER = Path("primus/configs/modules/megatron")
DEFAULT_TRAINER = "pre_trainer.yaml"
"""Settings of a trainer that the table of Primus' arguments has as its defaults."""


@lru_cache(maxsize=1)
def readable_keys() -> tuple[str, ...]:
    """Every key that is read where it applies; a list of its own file, which presets need not load."""
    return tuple(key_table("megatron")["read"])


MODEL_TYPES = ("gpt", "GPT", "encoder_or_decoder", HYBRID_TYPE, COMPRESSED_TYPE)
"""Values of `model_type` that are read."""

TRAINERS = ("pre_trainer", "post_trainer")
TRAINER_KEYS = ("framework", "config", "model", "overrides", "name")

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]{0,200})(?::([^}]{0,400}))?\}")


def recognises(data: Mapping[str, Any]) -> bool:
    """Whether a mapping reads like a Primus or Megatron file."""
    return any(key in data for key in (*PARENT_KEYS, "modules", "hidden_size", "num_attention_heads"))


def from_document(document: Document, path: Path, ignore: Collection[str] = (), vocab_size: int | None = None) -> Model:
    """The model a Primus/Megatron model file or experiment file describes; InputError with every problem.

    ignore: keys left out knowingly. vocab_size: rows of the embedding before padding, instead of the file's.
    """
    chain = _Chain(os.environ)
    if "modules" in document.data:
        chain.experiment(document, path)
    else:
        chain.add(document, path)
    if chain.problems:
        raise InputError(chain.problems)
    fields = Fields(chain.entries, document.where())
    ignored = drop_ignored(fields, ignore)
    return _model(fields, path.stem, ignored, vocab_size)


def experiment_settings(document: Document, path: Path) -> dict[str, Any]:
    """Every key of an experiment and of the model files it builds on, variables filled in; the experiment's win.

    Raises `InputError` with every problem.
    """
    chain = _Chain(os.environ)
    chain.experiment(document, path)
    return chain.settings()


def file_settings(path: Path) -> dict[str, Any]:
    """Every key of a YAML file of Primus and of those that it extends, variables at their defaults."""
    chain = _Chain({})
    chain.add(read(path), path)
    return chain.settings()


def filled(document: Document, value: Any) -> Any:
    """A value with `${VAR:default}` filled in everywhere inside it; InputError for a variable without a value."""
    chain = _Chain(os.environ)
    found = chain.filled_inside(document, (), value)
    if chain.problems:
        raise InputError(chain.problems)
    return found


@dataclass(slots=True)
class _Chain:
    """Follows parents depth first and collects the keys that win."""

    environ: Mapping[str, str]
    entries: dict[str, Located] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def settings(self) -> dict[str, Any]:
        """Every key that wins, and its value. Raises `InputError` with every problem."""
        if self.problems:
            raise InputError(self.problems)
        return {key: located.value for key, located in self.entries.items()}

    def add(self, document: Document, path: Path, above: tuple[Path, ...] = (), folder: Path = PRESET_FOLDER) -> None:
        """Lay a file's keys over what its parents say, which stand beside it or in a folder of Primus."""
        resolved = path.resolve()
        if resolved in above:
            names = [step.name for step in (*above[above.index(resolved) :], resolved)]
            self.problems.append(document.problem((), f"extends itself: {' -> '.join(names)}; break the cycle"))
            return
        if not isinstance(document.data, dict):
            self.problems.append(document.problem((), "expected a mapping of model sizes"))
            return
        for key in PARENT_KEYS:
            given = document.data.get(key)
            parents = given if isinstance(given, list) else [given] if given is not None else []
            for i, parent in enumerate(parents):
                at = (key, i) if isinstance(given, list) else (key,)
                self._parent(document, path, str(self._filled(document, at, parent)), at, (*above, resolved), folder)
        self._lay(document, document.data, ())

    def experiment(self, document: Document, path: Path) -> None:
        """The model of an experiment file: `modules.pre_trainer.model` with `overrides` on top."""
        modules = document.data["modules"]
        given = [name for name in TRAINERS if isinstance(modules, dict) and isinstance(modules.get(name), dict)]
        trainer = modules[given[0]] if given else {}
        module: Keys = ("modules", given[0] if given else TRAINERS[0])
        for key in trainer:
            if key == "trainer_class":
                what = f"{trainer[key]} trains another kind of model (diffusion, images); nothing here prices that"
                self.problems.append(document.problem((*module, key), what))
            elif key not in TRAINER_KEYS:
                near = did_you_mean(key, TRAINER_KEYS, self.problems)
                what = f"unknown key '{key}'{near} - known: {', '.join(TRAINER_KEYS)}"
                self.problems.append(document.problem((*module, key), what))
        if "model" not in trainer:
            what = f"expected modules.{TRAINERS[0]}.model, the model file of the experiment"
            self.problems.append(document.problem(("modules",), what))
            return
        framework = str(self._filled(document, (*module, "framework"), trainer.get("framework", "megatron")))
        if framework != "megatron":
            what = f"models of framework '{framework}' are not read - read: megatron"
            self.problems.append(document.problem((*module, "framework"), what))
            return
        for key, folder in (("config", TRAINER_FOLDER), ("model", PRESET_FOLDER)):
            name = str(self._filled(document, (*module, key), trainer.get(key, DEFAULT_TRAINER)))
            if name != DEFAULT_TRAINER:
                self._parent(document, path, name, (*module, key), (path.resolve(),), folder)
        laid = trainer.get("overrides") or {}
        if not isinstance(laid, dict):
            self.problems.append(document.problem((*module, "overrides"), "expected a mapping of keys"))
            return
        self._lay(document, laid, (*module, "overrides"))

    def _parent(
        self, document: Document, path: Path, name: str, keys: Keys, above: tuple[Path, ...], folder: Path
    ) -> None:
        if len(above) > 20:
            self.problems.append(document.problem(keys, "is more than 20 files deep"))
            return
        try:
            found = primus_file(name, path.parent, self.environ, folder)
            if found is not None:
                self.add(*found, above, folder)
        except InputError as error:
            self.problems.extend(error.problems)
            return
        if found is None and "modules" not in Path(name).parts:
            where = f"beside this file or in {folder} of a folder above it or of $PRIMUS_PATH"
            self.problems.append(document.problem(keys, f"no such file '{name}' {where}"))

    def _lay(self, document: Document, data: Mapping[str, Any], keys: Keys) -> None:
        for key, value in data.items():
            if key not in PARENT_KEYS:
                at = (*keys, key)
                self.entries[key] = Located(self._filled(document, at, value), document.where(at))

    def filled_inside(self, document: Document, keys: Keys, value: Any) -> Any:
        """A nested value with every variable filled in."""
        if isinstance(value, dict):
            return {key: self.filled_inside(document, (*keys, key), one) for key, one in value.items()}
        if isinstance(value, list):
            return [self.filled_inside(document, (*keys, i), one) for i, one in enumerate(value)]
        return self._filled(document, keys, value)

    def _filled(self, document: Document, keys: Keys, value: Any) -> Any:
        """The value with `${VAR:default}` replaced; numbers become numbers again."""
        if not isinstance(value, str) or "${" not in value:
            return value

        def fill(match: re.Match[str]) -> str:
            name, default = match.groups()
            if name not in self.environ and default is None:
                self.problems.append(document.problem(keys, f"environment variable {name} is not set; give a default"))
            return self.environ.get(name, default or "")

        return plain(_VARIABLE.sub(fill, value))


def primus_file(name: str, beside: Path, environ: Mapping[str, str], folder: Path) -> tuple[Document, Path] | None:
    """The file a parent's name stands for, as Primus looks it up, else Primus' own as it stood at the table's date.

    folder: `primus/configs/models` or `modules` of a back end. Raises `InputError` for a file that cannot be read.
    """
    primus = environ.get("PRIMUS_PATH", "")
    folders = [beside]
    folders += [above / folder for above in (beside.resolve(), *beside.resolve().parents)]
    folders += [Path(primus) / folder] if primus else []
    for one in folders:
        for candidate in (one / name, one / f"{name}.yaml"):
            if candidate.is_file():
                return read(candidate), candidate
    for one in (beside, folder):  # a parent of a file of Primus stands beside that
        own = Path(os.path.normpath(one / f"{name.removesuffix('.yaml')}.yaml"))
        if keys := primus_files().get(own.as_posix()):
            return Document(f"{own} of Primus", json.loads(keys)), own
    return None


@lru_cache(maxsize=1)
def primus_files() -> Mapping[str, str]:
    """Primus' own files of models and trainers by their paths, the keys of each as JSON."""
    return dict(key_rows("primus_files"))


def _model(fields: Fields, name: str, ignored: tuple[str, ...] = (), vocab_size: int | None = None) -> Model:
    kind = fields.word("model_type", MODEL_TYPES[0])
    if kind not in MODEL_TYPES:
        fields.problem("model_type", f"'{kind}' is not a model type that is read - read: {', '.join(MODEL_TYPES)}")
    claim_variant_keys(fields)
    refuse_unread(fields, known_keys("megatron"), (*readable_keys(), *setting_keys()))
    num_layers, hidden = _num_layers(fields), fields.integer("hidden_size")
    num_heads = fields.integer("num_attention_heads")
    is_grouped = fields.switch("group_query_attention", False)
    is_gated = fields.switch("swiglu", True) or fields.switch("quick_geglu", False)
    ffn_hidden = fields.integer("ffn_hidden_size", _default_ffn(hidden, is_gated))
    moe, latent = _experts(fields, ffn_hidden), _latent(fields)
    rows = _vocabulary(fields, vocab_size)
    has_positions = fields.word("position_embedding_type", "learned_absolute") == "learned_absolute"
    has_positions = has_positions and not fields.switch("use_rotary_position_embeddings", False)
    num_kv_heads = fields.integer("num_query_groups", num_heads) if is_grouped else num_heads
    head_dim = fields.integer("kv_channels", max(hidden // num_heads, 1))
    streams = fields.integer("mhc_num_residual_streams", 4)  # core 0.20: transformer_config.py
    values: dict[str, Any] = {
        "num_layers": num_layers,
        "hidden": hidden,
        "ffn_hidden": ffn_hidden,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "latent": latent,
        "moe": moe,
        "moe_layers": _moe_layers(fields, num_layers) if moe else (),
        "windows": _windows(fields, num_layers),
        "is_gated": is_gated,
        "is_tied": not fields.switch("untie_embeddings_and_output_weights", True),
        "norm": "rmsnorm" if fields.word("normalization", "LayerNorm").lower() == "rmsnorm" else "layernorm",
        "has_linear_bias": fields.switch("add_bias_linear", False),
        "has_qkv_bias": fields.switch("add_qkv_bias", False),
        # Under MLA, qk_layernorm means the norms of the compressed queries and keys, which MLA always has.
        "has_qk_norm": fields.switch("qk_layernorm", False) and latent is None,
        "has_attention_sinks": _has_sinks(fields),
        "activation_clamp": _clamp(fields),
        "learned_positions": fields.integer("max_position_embeddings") if has_positions else 0,
        "num_mtp_layers": fields.integer("mtp_num_layers", num_predictions(fields), least=0),
        "hyper_streams": streams if fields.switch("enable_mhc_connections", False) else 0,
    }
    values |= variant_layers(fields, values)
    constants = of_megatron(fields)
    return build_model(fields, name=name, source=fields.where, ignored=ignored, constants=constants, **rows, **values)


def _num_layers(fields: Fields) -> int:
    """The layers of a file, or of the pattern that says them alone."""
    given = next((fields.entries[key].value for key in PATTERNS if key in fields.entries and fields.has(key)), "")
    stated = len(pattern_letters(str(given)))
    return fields.integer("num_layers", stated) if stated else fields.integer("num_layers")


def _has_sinks(fields: Fields) -> bool:
    """A learned sink per head: Megatron's softmax_type, Primus-Turbo's use_sink_attention."""
    return fields.word("softmax_type", "vanilla") == "learnable" or fields.switch("use_sink_attention", False)


def _clamp(fields: Fields) -> float:
    """Megatron's limit of the gated activation; null, its default, is none."""
    key = "activation_func_clamp_value"
    return fields.number(key) if fields.has(key) and fields.entries[key].value is not None else 0.0


def _default_ffn(hidden: int, is_gated: bool) -> int:
    """Megatron's inner size where none is given: 4 H, for a gated MLP two thirds of it in steps of 64."""
    return int(4 * hidden * 2 / 3 / 64) * 64 if is_gated else 4 * hidden


def _vocabulary(fields: Fields, given: int | None) -> dict[str, int]:
    """Rows of the embedding, and how many of them pad it. given: what the user says instead of the file."""
    if fields.has("padded_vocab_size") and given is None:
        return {"vocab_size": fields.integer("padded_vocab_size")}
    multiple = fields.integer("make_vocab_size_divisible_by", VOCAB_MULTIPLE)
    multiple *= fields.integer("tensor_model_parallel_size", 1)
    return vocabulary(given if given is not None else _stated_vocabulary(fields), multiple)


def _stated_vocabulary(fields: Fields) -> int:
    """`vocab_size` with its extra rows, or what the tokenizer has; a problem where neither is known."""
    if fields.has("vocab_size"):
        return fields.integer("vocab_size") + fields.integer("vocab_extra_ids", 0, least=0)
    tokenizer = fields.word("tokenizer_model", "")
    kind = fields.word("patch_tokenizer_type", fields.word("tokenizer_type", ""))
    extra = fields.integer("extra_vocab_size", 0, least=0)
    found = vocabulary_of(tokenizer, kind, extra)
    if found is not None:
        return found + extra
    why = f"tokenizer '{tokenizer}' is not listed" if tokenizer else "the file names no tokenizer"
    fields.problem(
        "vocab_size", f"missing key vocab_size, and {why}; add vocab_size or padded_vocab_size, or --set vocab_size="
    )
    return 1


def _latent(fields: Fields) -> LatentAttention | None:
    if not fields.switch("multi_latent_attention", False):
        return None
    return LatentAttention(**sizes(fields, "megatron_latent"))


def _experts(fields: Fields, ffn_hidden: int) -> MixtureOfExperts | None:
    key = "num_moe_experts" if fields.has("num_moe_experts") else "num_experts"
    num_experts = fields.integer(key, 0, least=0)
    if num_experts == 0:
        return None
    has_rule = fields.switch("moe_router_enable_expert_bias", False)
    read = sizes(fields, "megatron_experts")
    if read["num_groups"] < 2:  # of one group, all of it
        read |= {"num_groups": 0, "top_groups": 0}
    return MixtureOfExperts(
        **read,
        num_experts=num_experts,
        expert_ffn_hidden=fields.integer("moe_ffn_hidden_size", ffn_hidden),
        # A bias by rule is a buffer; the router of a model with biased linears has one that is trained (TopKRouter).
        has_router_bias=has_rule or fields.switch("add_bias_linear", False),
        is_router_bias_buffer=has_rule,
    )


def _moe_layers(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    """Which layers have experts: every f-th from the first for a whole number, else one flag per layer."""
    given = fields.anything("moe_layer_freq")
    given = 1 if given is None else plain(given) if isinstance(given, str) else given
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        return tuple(layer % given == 0 for layer in range(num_layers))
    flags = per_layer(fields, "moe_layer_freq", num_layers) or (0,) * num_layers
    return tuple(flag > 0 for flag in flags)


def _windows(fields: Fields, num_layers: int) -> tuple[int, ...]:
    """Attention window per layer: `window_size` is (left, right) or left; every skip-th layer sees everything."""
    given = fields.anything("window_size")
    given = [plain(part.strip()) for part in given.strip("()").split(",")] if isinstance(given, str) else given
    left = given[0] if isinstance(given, list) and given else given
    if left is None:
        return _sink_windows(fields, num_layers)
    if isinstance(left, bool) or not isinstance(left, int) or left < 0:
        fields.problem("window_size", f"{given!r} is not a window; write [tokens to the left, 0]")
        return ()
    skip = fields.anything("window_attn_skip_freq")
    if skip is None:
        return (left + 1,) * num_layers
    if isinstance(skip, int) and not isinstance(skip, bool) and skip > 0:
        return tuple(0 if (layer + 1) % skip == 0 else left + 1 for layer in range(num_layers))
    flags = per_layer(fields, "window_attn_skip_freq", num_layers) or ()
    return tuple(left + 1 if flag else 0 for flag in flags)


def _sink_windows(fields: Fields, num_layers: int) -> tuple[int, ...]:
    """Primus-Turbo's spelling of a window: `sink_sliding_window` tokens, in the even layers only by default."""
    window = fields.integer("sink_sliding_window", 0, least=0) if fields.switch("use_sink_attention", False) else 0
    if not window:
        return ()
    step = 2 if fields.switch("sink_window_even_layers_only", True) else 1
    return tuple(window if layer % step == 0 else 0 for layer in range(num_layers))
