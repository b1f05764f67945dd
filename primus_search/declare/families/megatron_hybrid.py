"""Hybrid stacks of Megatron and Primus: each layer is one block, by a letter of a pattern or by shares of layers.

M is the stack's own mixer, * attention, - an MLP, E experts. The experiment's `spec` says which mixer M is and how
shares (`hybrid_attention_ratio`, `hybrid_mlp_ratio`) become a pattern; a pattern without a spec is Mamba-2's.
Source: NVIDIA/Megatron-LM core/ssm/mamba_hybrid_layer_allocation.py, mamba_mixer.py for defaults; AMD-AGI/Primus
primus/backends/megatron/core/models/hybrid (hybrid_block.py, gated_delta_net.py, kimi_delta_attention.py).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from primus_search.declare.families.parts import Values, sizes
from primus_search.declare.fields import Fields
from primus_search.values.model import (
    Attention,
    GatedDeltaNet,
    KimiDeltaAttention,
    LatentAttention,
    LatentMixer,
    Mamba2,
    Mixer,
    NoFeedForward,
    NoMixer,
)

PATTERNS = ("hybrid_override_pattern", "hybrid_layer_pattern")
HYBRID_TYPE = "mamba"
LETTERS = {"M": "the stack's mixer", "*": "attention", "-": "MLP", "E": "experts"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredSizes:
    """What a file says about all layers: their number, the hidden size, its attention, latent declared where it has."""

    num_layers: int
    hidden: int
    attention: Attention
    latent: LatentAttention | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerStack:
    """What a `spec` builds: the mixer of the letter M, and the pattern that shares of attention and MLPs stand for."""

    mixer: Callable[[Fields, int], Mixer]
    pattern: Callable[[int, float, float], str]


def is_hybrid(fields: Fields) -> bool:
    """Whether a file says so, or has a pattern of single-block layers."""
    given = {key: fields.entries[key].value for key in (*PATTERNS, "is_hybrid_model") if key in fields.entries}
    return any(given.values()) or ("model_type" in fields.entries and fields.entries["model_type"].value == HYBRID_TYPE)


def hybrid_layers(fields: Fields, declared: DeclaredSizes) -> Values:
    """Mixers, feed-forwards and MoE layers of a hybrid stack; a problem for what is not read."""
    stack, key = _stack(fields), next((key for key in PATTERNS if fields.anything(key)), "")
    if stack is None:
        return {}
    letters = pattern_letters(fields.word(key, "")) if key else _by_shares(fields, declared.num_layers, stack)
    unknown = sorted(set(letters) - set(LETTERS))
    if unknown:
        allowed = ", ".join(f"{letter} {name}" for letter, name in LETTERS.items())
        fields.problem(key, f"{unknown[0]!r} is no layer - allowed: {allowed}")
        return {}
    if len(letters) != declared.num_layers:
        fields.problem(key or "num_layers", f"has {len(letters)} layers; num_layers is {declared.num_layers}")
        return {}
    latent = declared.latent
    full: Mixer = LatentMixer(num_heads=declared.attention.num_heads, latent=latent) if latent else declared.attention
    mixers: dict[str, Mixer] = {"*": full, "M": stack.mixer(fields, declared.hidden)}
    return {
        "mixers": tuple(mixers.get(letter, NoMixer()) for letter in letters),
        "feed_forwards": tuple(None if letter in "-E" else NoFeedForward() for letter in letters),
        "moe_layers": tuple(letter == "E" for letter in letters),
    }


def pattern_letters(pattern: str) -> str:
    """The layers of a pattern, without bars between pipeline stages and the prediction layers behind `/`."""
    return pattern.split("/")[0].replace("|", "")


def num_predictions(fields: Fields) -> int:
    """Prediction layers of a pattern: a part behind `/` for each."""
    return next((str(fields.anything(key)).count("/") for key in PATTERNS if fields.anything(key)), 0)


def _stack(fields: Fields) -> LayerStack | None:
    """The stack of the experiment's `spec`; without one Megatron's own, if a pattern says its layers."""
    given = fields.anything("spec")
    if given is not None:
        words = re.findall(r"[\w.]+", str(given))
        found = STACKS.get((words[0].rsplit(".", 1)[-1], words[-1])) if len(words) == 2 else None
        if found is None:
            fields.problem("spec", f"spec makes layers of its own - read: {', '.join(name for _, name in STACKS)}")
        return found
    if fields.switch("is_hybrid_model", False) and not any(fields.anything(key) for key in PATTERNS):
        what = "the experiment's spec decides what these layers are; read the experiment, or give a pattern or spec"
        fields.problem("is_hybrid_model", what)
        return None
    return STACKS["mamba_layer_specs", "mamba_stack_spec"]


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
    (_PRIMUS, "hybrid_stack_spec"): LayerStack(mixer=_mamba2(1), pattern=in_pairs),
    (_PRIMUS, "gdn_hybrid_stack_spec"): LayerStack(mixer=delta_net, pattern=in_pairs),
    (_PRIMUS, "gdn_hybrid_stack_spec_no_te"): LayerStack(mixer=delta_net, pattern=in_pairs),
    (_PRIMUS, "kda_hybrid_stack_spec"): LayerStack(mixer=_kimi_delta, pattern=in_pairs),
    (_PRIMUS, "kda_hybrid_stack_spec_no_te"): LayerStack(mixer=_kimi_delta, pattern=in_pairs),
}
"""Stacks by the last part of a `spec`'s module and its name."""
