"""Megatron and Primus models whose layers are not all plain attention: the keys that make them, and their readers.

Each row of `VARIANTS` is one kind of model: when a file is of that kind, the keys it then reads, and the mixers and
feed-forwards of its layers. Hybrid stacks of single-block layers are read in `megatron_hybrid`.
Source: NVIDIA/Megatron-LM core 0.16 and 0.20, transformer_config.py and experimental_attention_variant_module_specs.py;
AMD-AGI/Primus primus/configs/models/megatron (deepseek_v4_base.yaml, lfm_base.yaml).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from primus_search.declare.families.latent_models import compressed_mixers
from primus_search.declare.families.megatron_hybrid import (
    DeclaredSizes,
    delta_net,
    hybrid_layers,
    is_hybrid,
)
from primus_search.declare.families.parts import Values, layer_types, sizes
from primus_search.declare.fields import Fields, layer_pattern
from primus_search.declare.known_keys import key_table
from primus_search.values.model import Attention, Indexer, LatentMixer, Mixer, ShortConvolution

VARIANT_KEY = "experimental_attention_variant"
COMPRESSED_TYPE = "deepseek_v4"
DELTA_WORDS = ("gated_delta_net", "gdn")


@dataclass(frozen=True, slots=True)
class Variant:
    """One kind of model: `applies` to a file, reads the keys of its name, and `layers` gives fields of `Model`."""

    applies: Callable[[Fields], bool]
    name: str
    layers: Callable[[Fields, DeclaredSizes], Values]

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


def variant_layers(fields: Fields, declared: DeclaredSizes) -> Values:
    """Fields of `Model` that the file's variant gives; none for plain layers. A file of two kinds is a problem."""
    given = _given(fields)
    if len(given) > 1:
        what = "layers of two kinds of models in one file are not read"
        fields.problem(next(key for key in given[1].keys if fields.has(key)), what)
    return given[0].layers(fields, declared) if given else {}


def _given(fields: Fields) -> list[Variant]:
    return [variant for variant in VARIANTS if variant.applies(fields)]


def _value(fields: Fields, key: str) -> object:
    """A key's value without marking it as read."""
    return fields.entries[key].value if key in fields.entries else None


def _gated_delta(fields: Fields, declared: DeclaredSizes) -> Values:
    """Gated DeltaNet with attention in between: N for every N-th layer, or one flag per layer, 1 where it is linear."""
    linear = delta_net(fields, declared.hidden)
    full = replace(_normed(fields, declared), has_output_gate=fields.switch("attention_output_gate", False))
    return {"mixers": _interleaved(fields, "linear_attention_freq", declared.num_layers, linear, full)}


def _normed(fields: Fields, declared: DeclaredSizes) -> Attention:
    """The declared attention, with the norms of queries and keys that the file switches on."""
    return replace(declared.attention, qk_norm="head" if fields.switch("qk_layernorm", False) else "none")


def _interleaved(fields: Fields, key: str, num_layers: int, linear: Mixer, full: Mixer) -> tuple[Mixer, ...]:
    given = fields.anything(key)
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        return tuple(full if (layer + 1) % given == 0 else linear for layer in range(num_layers))
    try:
        flags = layer_pattern(given) if isinstance(given, str) else tuple(int(flag) for flag in fields.items(key))
    except (TypeError, ValueError) as error:
        fields.problem(key, f"{given!r} is not a layer pattern ({error})")
        return (linear,) * num_layers
    if len(flags) != num_layers:
        fields.problem(key, f"has {len(flags)} entries; the model has {num_layers} layers")
        return (linear,) * num_layers
    return tuple(linear if flag else full for flag in flags)


def _sparse_latent(fields: Fields, declared: DeclaredSizes) -> Values:
    """Latent attention over the tokens that an indexer selects, in every layer."""
    if declared.latent is None:
        fields.problem(VARIANT_KEY, "dsa needs multi_latent_attention")
        return {}
    found = sizes(fields, "megatron_indexer")
    indexer = Indexer(**found, query_rank=declared.latent.q_lora_rank, norm_params=2 * found["head_dim"])
    mixer = LatentMixer(num_heads=declared.attention.num_heads, latent=declared.latent, indexer=indexer)
    return {"mixers": (mixer,) * declared.num_layers}


def _compressed(fields: Fields, declared: DeclaredSizes) -> Values:
    """DeepSeek-V4 of Primus: compressed attention with a window, hyper-connections."""
    heads = declared.attention.num_heads
    mixers = compressed_mixers(fields, declared.num_layers, heads, declared.attention.head_dim, "attn_sliding_window")
    streams = fields.integer("hc_mult", 0, least=0)
    return {"mixers": mixers, "num_kv_heads": heads, "hyper_streams": streams, "windows": (), "moe_layers": ()}


def _short_convolutions(fields: Fields, declared: DeclaredSizes) -> Values:
    """LFM2 of Primus: gated short convolutions with attention in between."""
    convolution = ShortConvolution(**sizes(fields, "short_convolution"))
    kinds: dict[str, Mixer] = {"conv": convolution, "full_attention": _normed(fields, declared)}
    words = layer_types(fields, declared.num_layers, tuple(kinds), "lfm_layer_types")
    return {"mixers": tuple(kinds[word] for word in words)}


VARIANTS = (
    Variant(is_hybrid, "hybrid", hybrid_layers),
    Variant(lambda fields: _value(fields, VARIANT_KEY) in DELTA_WORDS, "gated_delta", _gated_delta),
    Variant(lambda fields: _value(fields, VARIANT_KEY) == "dsa", "sparse_latent", _sparse_latent),
    Variant(lambda fields: _value(fields, "model_type") == COMPRESSED_TYPE, "compressed", _compressed),
    Variant(lambda fields: bool(_value(fields, "lfm_layer_types")), "short_convolutions", _short_convolutions),
)
"""Kinds of models; at most one applies to a file."""
