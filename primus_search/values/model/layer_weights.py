"""Weight matrices of one layer in the order that Megatron makes them, and how many of its parameters are none.

Source: NVIDIA/Megatron-LM d98e8a64 core/transformer: attention.py and multi_latent_attention.py (the output projection
first), mlp.py, moe/moe_layer.py (router, projections of a latent space, experts, shared experts).
"""

from collections import defaultdict

from primus_search.values.model.attention_mixers import Attention, LatentMixer
from primus_search.values.model.decoder import Model
from primus_search.values.model.layer_kinds import LayerKind
from primus_search.values.model.mixer import Split, WeightMatrix, column, row, whole

UNCAST = ("router", "gate")
"""Matrices that are never cast to FP8."""


def layer_weights(model: Model, kind: LayerKind) -> list[list[WeightMatrix]]:
    """Matrices of a layer, routed experts apart; those of one product together."""
    mixer, groups = model.mixer(kind), defaultdict[str, list[WeightMatrix]](list)
    for one in mixer.projections(model.hidden):
        groups[one.group].append(one)
    is_attention = isinstance(mixer, Attention | LatentMixer)
    found = sorted(groups.values(), key=lambda group: is_attention and group[0].split is not Split.ROW)
    widths, moe = [model.ffn_hidden_of(kind)], model.moe
    if moe is not None and kind.is_moe:
        latent, gate = moe.latent_hidden, int(moe.has_shared_gate and moe.shared_ffn_hidden > 0)
        beside = [("router", moe.num_experts, model.hidden), ("latent", latent, model.hidden)]
        beside += [("latent", model.hidden, latent), ("gate", gate, model.hidden)]
        found += [[whole(*one)] for one in beside if one[1] * one[2]]
        widths = [moe.shared_ffn_hidden, moe.parallel_ffn_hidden]
    return found + [[one] for width in widths if width for one in mlp_weights(model, width, model.hidden)]


def mlp_weights(model: Model, width: int, outer: int) -> tuple[WeightMatrix, WeightMatrix]:
    """Both products of an MLP, or of an expert."""
    return column("up", (model.num_mlp_matrices - 1) * width, outer), row("down", outer, width)


def uncast_params(model: Model, kind: LayerKind) -> int:
    """Parameters of matrices that FP8 does not cast: routers, gates of shared experts, hyper-connections, gates and
    projections of a layer's own embedding."""
    own = model.hyper_params + model.per_layer_params
    return own + sum(one.params for group in layer_weights(model, kind) for one in group if one.group in UNCAST)


def layer_vectors(model: Model, kind: LayerKind) -> tuple[int, int]:
    """Parameters that are no matrices, routed experts apart: norms, biases, convolutions, scalars of an activation;
    those divided by tp, and those that every rank has whole."""
    split, beside = model.mixer(kind).vectors(model.hidden)
    of_mlp = model.mlp_biases(model.ffn_hidden_of(kind))
    beside += round(model.layer_norms(kind) * model.norm_params) + of_mlp[1]
    if model.moe is not None and kind.is_moe:
        return split, beside + model.router_params - model.moe.num_experts * model.hidden + model.latent_vectors
    return split + of_mlp[0], beside + (model.activation_params if model.ffn_hidden_of(kind) else 0)
