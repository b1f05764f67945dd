"""Megatron and Primus models whose layers are not all plain attention.

Hybrid stacks: each layer is one block, by a letter of a pattern or by shares of layers. M is the stack's own mixer,
* attention, - an MLP, E experts. The experiment's `spec` says which mixer M is and how shares
(`hybrid_attention_ratio`, `hybrid_mlp_ratio`) become a pattern; a pattern without a spec is Mamba-2's.
Each row of `VARIANTS` is one other kind of model: when a file is of that kind, the keys it then reads, and the mixers
and feed-forwards of its layers.
Source: NVIDIA/Megatron-LM core 0.16 and 0.20, ssm/mamba_hybrid_layer_allocation.py, mamba_mixer.py for defaults,
transformer_config.py and experimental_attention_variant_module_specs.py; AMD-AGI/Primus
primus/backends/megatron/core/models/hybrid and primus/configs/models/megatron (deepseek_v4_base.yaml, lfm_base.yaml).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from primus_search.files.fields import Fields
from primus_search.files.known_keys import key_table
from primus_search.models.families import parts
from primus_search.models.families.expert_models import compressed_mixers
from primus_search.models.families.parts import Values, sizes
from primus_search.models.layer_pattern import per_layer
from primus_search.values.model import (
    Attention,
    GatedDeltaNet,
    Indexer,
    KimiDeltaAttention,
    LatentMixer,
    Mamba2,
    Mixer,
    NoFeedForward,
    NoMixer,
    ShortConvolution,
)

PATTERNS = ("hybrid_override_pattern", "hybrid_layer_pattern")
HYBRID_TYPE = "mamba"
LETTERS = {"M": "the stack's mixer", "*": "attention", "-": "MLP", "E": "experts"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerStack:
    """What a `spec` builds: the mixer of the letter M, and the pattern that shares of attention and MLPs stand for."""

    mixer: Callable[[Fields, int], Mixer]
    pattern: Callable[[int, float, float], str]


def is_hybrid(fields: Fields) -> bool:
    """Whether a file says so, has a pattern or shares of single-block layers, or names the spec of a stack."""
    names = (*PATTERNS, "is_hybrid_model", "hybrid_attention_ratio", "hybrid_mlp_ratio")
    given = {key: entry.value for key, entry in fields.entries.items()}
    is_spelled = any(given.get(key) for key in names) or given.get("model_type") == HYBRID_TYPE
    return is_spelled or _stack_of(given.get("spec")) is not None


def hybrid_layers(fields: Fields, declared: Values) -> Values:
    """Mixers, feed-forwards and MoE layers of a hybrid stack; a problem for what is not read."""
    stack, key = _stack(fields), next((key for key in PATTERNS if fields.anything(key)), "")
    if stack is None:
        return {}
    letters = pattern_letters(fields.word(key, "")) if key else _by_shares(fields, declared["num_layers"], stack)
    unknown = sorted(set(letters) - set(LETTERS))
    if unknown:
        allowed = ", ".join(f"{letter} {name}" for letter, name in LETTERS.items())
        fields.problem(key, f"{unknown[0]!r} is no layer - allowed: {allowed}")
        return {}
    if len(letters) != declared["num_layers"]:
        fields.problem(key or "num_layers", f"has {len(letters)} layers; num_layers is {declared['num_layers']}")
        return {}
    mixers: dict[str, Mixer] = {"*": _full(fields, declared), "M": stack.mixer(fields, declared["hidden"])}
    return {
        "mixers": tuple(mixers.get(letter, NoMixer()) for letter in letters),
        "feed_forwards": tuple(None if letter in "-E" else NoFeedForward() for letter in letters),
        "moe_layers": tuple(letter == "E" for letter in letters),
        "mtp_layers": predicted_layers(fields, key, letters) if key else (),
    }


def pattern_letters(pattern: str) -> str:
    """The layers of a pattern, without bars between pipeline stages and the prediction layers behind `/`."""
    return pattern.split("/")[0].replace("|", "")


def predicted_layers(fields: Fields, key: str, letters: str) -> tuple[int, ...]:
    """Layers of a pattern that those of its prediction modules are like; a problem where none is."""
    module = fields.word(key, "").partition("/")[2] or fields.word("mtp_hybrid_override_pattern", "")
    wanted = module.partition("/")[0]
    if not set(wanted) <= set(letters):
        fields.problem(key, f"prediction layers {wanted!r} of a kind that no layer is are not modelled")
        return ()
    return tuple(letters.index(letter) for letter in wanted)


def num_predictions(fields: Fields) -> int:
    """Prediction layers of a pattern: a part behind `/` for each."""
    return next((str(fields.anything(key)).count("/") for key in PATTERNS if fields.anything(key)), 0)


def _stack(fields: Fields) -> LayerStack | None:
    """The stack of the experiment's `spec`; without one Megatron's own, if a pattern says its layers."""
    given = fields.anything("spec")
    if given is not None:
        found = _stack_of(given)
        if found is None:
            known = ", ".join(dict.fromkeys(name for _, name in STACKS))
            fields.problem("spec", f"spec makes layers of its own - read: {known}")
        return found
    if fields.switch("is_hybrid_model", False) and not any(fields.anything(key) for key in PATTERNS):
        what = "the experiment's spec decides what these layers are; read the experiment, or give a pattern or spec"
        fields.problem("is_hybrid_model", what)
        return None
    return STACKS["mamba_layer_specs", "mamba_stack_spec"]


def _stack_of(spec: Any) -> LayerStack | None:
    """The stack that a `spec`, a module and a name in it, stands for; None where it is none that is read."""
    words = re.findall(r"[\w.]+", str(spec))
    return STACKS.get((words[0].rsplit(".", 1)[-1], words[-1])) if len(words) == 2 else None


def _by_shares(fields: Fields, num_layers: int, stack: LayerStack) -> str:
    shares = [fields.number(f"hybrid_{kind}_ratio", 0.0) for kind in ("attention", "mlp")]
    if not all(0.0 <= share <= 1.0 for share in (*shares, sum(shares))):
        fields.problem("hybrid_attention_ratio", "shares of attention and MLP layers are 0 to 1, together at most 1")
        return "M" * num_layers
    return stack.pattern(num_layers, *shares)


def spread(num_layers: int, attention: float, mlp: float) -> str:
    """Megatron's pattern: attention layers evenly between mixers, then MLPs evenly in place of mixers."""
    letters = ["M"] * num_layers
    count = round(num_layers * attention)
    _place(letters, "*", (num_layers - count) / (count + 1))
    mlps = round(num_layers * mlp)
    if mlps:
        _place(letters, "-", (num_layers - count - mlps) / mlps)
    return "".join(letters)


def _place(letters: list[str], letter: str, distance: float) -> None:
    """Put a letter in place of a mixer after every `distance` mixers."""
    left = distance
    for i, one in enumerate(letters):
        if one == "M" and left < 0.5:
            letters[i], left = letter, left + distance
        elif one == "M":
            left -= 1


def in_pairs(num_layers: int, attention: float, mlp: float) -> str:
    """Primus' pattern: every mixer is followed by an MLP, and attention, a share of the mixers, leads a group."""
    pairs = num_layers // 2
    full = int(pairs * attention)
    own = pairs - full
    if not full or not own:
        return ("*-" if full else "M-") * pairs
    if attention <= 0.5:
        return ("*-" + "M-" * (own // full)) * full + "M-" * (own % full)
    return "*-" * (full - own) + "*-M-" * own


def _mamba2(expand: int) -> Callable[[Fields, int], Mamba2]:
    """Reader of Megatron's keys; without a number of heads the scan is `expand` times as wide as the model."""

    def read(fields: Fields, hidden: int) -> Mamba2:
        found, heads = sizes(fields, "megatron_mamba2"), fields.integer("mamba_num_heads", 0, least=0)
        heads = heads or fields.integer("mamba_expand", expand) * hidden // found["head_dim"]
        return Mamba2(**found, num_heads=heads)

    return read


def delta_net(fields: Fields, hidden: int) -> GatedDeltaNet:
    """Gated DeltaNet of Megatron's keys; its defaults are those of transformer_config.py."""
    if not fields.switch("use_short_conv", True):
        fields.problem("use_short_conv", "Gated DeltaNet without its short convolution is not modelled")
    return GatedDeltaNet(**sizes(fields, "delta_net"))


def _kimi_delta(fields: Fields, hidden: int) -> KimiDeltaAttention:
    """KDA whose low-rank gates are as wide as a value head, the output gate with a bias."""
    found = sizes(fields, "megatron_kimi_delta")
    if fields.integer("linear_num_key_heads", found["num_heads"]) != found["num_heads"]:
        fields.problem("linear_num_key_heads", "key heads of KDA other than linear_num_value_heads are not modelled")
    return KimiDeltaAttention(**found, gate_rank=found["value_dim"], has_gate_bias=True)


_PRIMUS = "hybrid_mamba_mla_layer_specs"
STACKS: dict[tuple[str, str], LayerStack] = {
    ("mamba_layer_specs", "mamba_stack_spec"): LayerStack(mixer=_mamba2(2), pattern=spread),
    ("hybrid_layer_specs", "hybrid_stack_spec"): LayerStack(mixer=_mamba2(2), pattern=spread),
    (_PRIMUS, "hybrid_stack_spec"): LayerStack(mixer=_mamba2(1), pattern=in_pairs),
    (_PRIMUS, "gdn_hybrid_stack_spec"): LayerStack(mixer=delta_net, pattern=in_pairs),
    (_PRIMUS, "gdn_hybrid_stack_spec_no_te"): LayerStack(mixer=delta_net, pattern=in_pairs),
    (_PRIMUS, "kda_hybrid_stack_spec"): LayerStack(mixer=_kimi_delta, pattern=in_pairs),
    (_PRIMUS, "kda_hybrid_stack_spec_no_te"): LayerStack(mixer=_kimi_delta, pattern=in_pairs),
}
"""Stacks by the last part of a `spec`'s module and its name."""


VARIANT_KEY = "experimental_attention_variant"
COMPRESSED_TYPE = "deepseek_v4"
DELTA_WORDS = ("gated_delta_net", "gdn")


@dataclass(frozen=True, slots=True)
class Variant:
    """One kind of model: `applies` to a file, reads the keys of its name, and `layers` gives fields of `Model`."""

    applies: Callable[[Fields], bool]
    name: str
    layers: Callable[[Fields, Values], Values]

    @property
    def keys(self) -> list[str]:
        """Keys that a file of this kind has read."""
        found: list[str] = key_table("megatron")["variants"][self.name]
        return found


def claim_variant_keys(fields: Fields) -> None:
    """Mark the keys that a file's variant reads as read, so that they are not refused before."""
    for variant in _given(fields):
        for key in variant.keys:
            fields.anything(key)


def variant_layers(fields: Fields, declared: Values) -> Values:
    """Fields of `Model` that the file's variant gives; none for plain layers. A file of two kinds is a problem."""
    given = _given(fields)
    if len(given) > 1:
        what = "layers of two kinds of models in one file are not read"
        fields.problem(next(key for key in given[1].keys if fields.has(key)), what)
    found = given[0].layers(fields, declared) if given else {}
    if any(declared["windows"]) and len(found.get("mixers", ())) == len(declared["windows"]):
        pairs = zip(found["mixers"], declared["windows"], strict=True)
        found["mixers"] = tuple(replace(one, window=at) if isinstance(one, Attention) else one for one, at in pairs)
    return found


def _given(fields: Fields) -> list[Variant]:
    found = [variant for variant in VARIANTS if variant.applies(fields)]
    return found or [GATED] * GATED.applies(fields)


def _value(fields: Fields, key: str) -> object:
    """A key's value without marking it as read."""
    return fields.entries[key].value if key in fields.entries else None


def _gated_delta(fields: Fields, declared: Values) -> Values:
    """Gated DeltaNet with attention in between: N for every N-th layer, or one flag per layer, 1 where it is linear."""
    linear = delta_net(fields, declared["hidden"])
    return {
        "mixers": _interleaved(fields, "linear_attention_freq", declared["num_layers"], linear, _full(fields, declared))
    }


def _full(fields: Fields, declared: Values) -> Attention | LatentMixer:
    """The declared attention, with the norms of queries and keys, biases, sinks and gate that the file switches on."""
    if latent := declared["latent"]:
        return LatentMixer(num_heads=declared["num_heads"], latent=latent, has_sinks=declared["has_attention_sinks"])
    return parts.attention(
        declared,
        qk_norm="head" if fields.switch("qk_layernorm", False) else "none",
        has_qkv_bias=declared["has_linear_bias"] or declared["has_qkv_bias"],
        has_output_bias=declared["has_linear_bias"],
        has_sinks=declared["has_attention_sinks"],
        has_output_gate=fields.switch("attention_output_gate", False),
    )


def _gated(fields: Fields, declared: Values) -> Values:
    """Plain layers whose attention has a gate on its output."""
    full, windows = _full(fields, declared), declared["windows"] or (0,)
    if not isinstance(full, Attention):
        return {}
    return {"mixers": tuple(replace(full, window=windows[i % len(windows)]) for i in range(declared["num_layers"]))}


def _interleaved(fields: Fields, key: str, num_layers: int, linear: Mixer, full: Mixer) -> tuple[Mixer, ...]:
    given = fields.anything(key)
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        return tuple(full if (layer + 1) % given == 0 else linear for layer in range(num_layers))
    flags = per_layer(fields, key, num_layers) or (1,) * num_layers
    return tuple(linear if flag else full for flag in flags)


def _sparse_latent(fields: Fields, declared: Values) -> Values:
    """Latent attention over the tokens that an indexer selects, in every layer."""
    if declared["latent"] is None:
        fields.problem(VARIANT_KEY, "dsa needs multi_latent_attention")
        return {}
    found = sizes(fields, "megatron_indexer")
    indexer = Indexer(**found, query_rank=declared["latent"].q_lora_rank, norm_params=2 * found["head_dim"])
    mixer = LatentMixer(num_heads=declared["num_heads"], latent=declared["latent"], indexer=indexer)
    return {"mixers": (mixer,) * declared["num_layers"]}


def _compressed(fields: Fields, declared: Values) -> Values:
    """DeepSeek-V4 of Primus: compressed attention with a window, hyper-connections."""
    heads = declared["num_heads"]
    mixers = compressed_mixers(fields, declared["num_layers"], heads, declared["head_dim"], "attn_sliding_window")
    streams = fields.integer("hc_mult", 0, least=0)
    return {"mixers": mixers, "num_kv_heads": heads, "hyper_streams": streams, "windows": (), "moe_layers": ()}


def _short_convolutions(fields: Fields, declared: Values) -> Values:
    """LFM2 of Primus: gated short convolutions with attention in between."""
    convolution = ShortConvolution(**sizes(fields, "short_convolution"))
    kinds: dict[str, Mixer] = {"conv": convolution, "full_attention": _full(fields, declared)}
    words = parts.layer_types(fields, declared["num_layers"], tuple(kinds), "lfm_layer_types")
    return {"mixers": tuple(kinds[word] for word in words)}


VARIANTS = (
    Variant(is_hybrid, "hybrid", hybrid_layers),
    Variant(lambda fields: _value(fields, VARIANT_KEY) in DELTA_WORDS, "gated_delta", _gated_delta),
    Variant(lambda fields: _value(fields, VARIANT_KEY) == "dsa", "sparse_latent", _sparse_latent),
    Variant(lambda fields: _value(fields, "model_type") == COMPRESSED_TYPE, "compressed", _compressed),
    Variant(lambda fields: bool(_value(fields, "lfm_layer_types")), "short_convolutions", _short_convolutions),
)
"""Kinds of models; at most one applies to a file."""
GATED = Variant(lambda fields: bool(_value(fields, "attention_output_gate")), "gated", _gated)
"""What layers of no other kind are where their attention has a gate."""
