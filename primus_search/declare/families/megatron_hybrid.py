"""Layers of Megatron's hybrid models: one letter per layer of `hybrid_override_pattern`, and the keys `mamba_*`.

M is a Mamba-2 mixer, * attention, - an MLP, E experts, each a layer of its own. Where a file gives shares of layers
(`hybrid_attention_ratio`) instead of a pattern, its mixers follow from the experiment's `spec` and it is refused.
Source: NVIDIA/Megatron-LM core/ssm/mamba_hybrid_layer_allocation.py, mamba_mixer.py for defaults.
"""

from typing import Any

from primus_search.declare.fields import Fields
from primus_search.model import Attention, LatentAttention, LatentMixer, Mamba2, Mixer, NoFeedForward, NoMixer

PATTERNS = ("hybrid_override_pattern", "hybrid_layer_pattern")
HYBRID_TYPE = "mamba"
LETTERS = {"M": "Mamba-2", "*": "attention", "-": "MLP", "E": "experts"}
MAMBA_SPECS = ("hybrid_mamba_mla_layer_specs', 'hybrid_stack_spec", "mamba_layer_specs', 'mamba_stack_spec")
"""Ends of an experiment's `spec` under which the letter M is Mamba-2; under others it may be another mixer."""
HYBRID_SIZES = (
    *PATTERNS, "is_hybrid_model", "mamba_num_heads", "mamba_head_dim", "mamba_state_dim", "mamba_num_groups",
    "mamba_expand",
)  # fmt: skip


def claim_hybrid_keys(fields: Fields) -> None:
    """Mark the keys that `hybrid_layers` reads as read, so that they are not refused before."""
    for key in HYBRID_SIZES:
        fields.anything(key)
    if "spec" in fields.entries and str(fields.entries["spec"].value).strip("[]' ").endswith(MAMBA_SPECS):
        fields.anything("spec")


def hybrid_layers(
    fields: Fields, num_layers: int, hidden: int, attention: Attention, latent: LatentAttention | None
) -> dict[str, Any]:
    """Mixers, feed-forwards and MoE layers by a file's pattern; nothing where it has none. Notes what is not read."""
    key = next((key for key in PATTERNS if fields.anything(key)), "")
    is_hybrid, is_mamba = fields.switch("is_hybrid_model", False), fields.word("model_type", "gpt") == HYBRID_TYPE
    if not key and not is_hybrid and not is_mamba:
        return {}
    if not key and is_hybrid:
        what = "shares of layers whose mixers the experiment's spec decides are not read; give hybrid_override_pattern"
        fields.problem("is_hybrid_model", what)
        return {}
    letters = fields.word(key, "") if key else "M" * num_layers
    unknown = sorted(set(letters) - set(LETTERS))
    if unknown:
        allowed = ", ".join(f"{letter} {name}" for letter, name in LETTERS.items())
        fields.problem(key, f"{unknown[0]!r} is no layer - allowed: {allowed}")
        return {}
    if len(letters) != num_layers:
        fields.problem(key, f"has {len(letters)} layers; num_layers is {num_layers}")
        return {}
    full: Mixer = LatentMixer(num_heads=attention.num_heads, latent=latent) if latent else attention
    mixers: dict[str, Mixer] = {"*": full, "M": _mamba2(fields, hidden)}
    return {
        "mixers": tuple(mixers.get(letter, NoMixer()) for letter in letters),
        "feed_forwards": tuple(None if letter in "-E" else NoFeedForward() for letter in letters),
        "moe_layers": tuple(letter == "E" for letter in letters),
    }


def _mamba2(fields: Fields, hidden: int) -> Mamba2:
    """Sizes by Megatron's keys; without a number of heads the scan is twice as wide as the model."""
    head_dim = fields.integer("mamba_head_dim", 64)
    heads = fields.integer("mamba_num_heads", 0, least=0) or fields.integer("mamba_expand", 2) * hidden // head_dim
    return Mamba2(
        num_heads=heads,
        head_dim=head_dim,
        state_dim=fields.integer("mamba_state_dim", 128),
        num_groups=fields.integer("mamba_num_groups", 8),
    )
