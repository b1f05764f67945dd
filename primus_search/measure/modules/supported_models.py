"""Which models the torch modules of this folder can stand for. No torch here."""

from collections.abc import Callable
from typing import Any

from primus_search.cost.parts.mixer_operations import is_plain_attention
from primus_search.values.model import Attention, LatentMixer, LayerKind, Mixer, Model, NoMixer

SANDWICH_NORMS = 4  # norms of a layer that normalises inputs and outputs of both blocks
MODULES: dict[type[Mixer], Callable[..., Any]] = {}  # torch modules of further mixers, by type


def without_module(model: Model) -> tuple[str, ...]:
    """What a model has that no torch module here computes: mixers, streams and embeddings of a kind of their own."""
    absent = [
        model.mixer(kind).name
        for kind in model.kinds
        if not holds_plain_attention(kind) and not has_module(model.mixer(kind))
    ]
    if model.adapters is not None:
        absent += [f"adapters of {model.mixer(kind).name}" for kind in model.kinds if not holds_plain_attention(kind)]
        absent += ["packed weights"] if model.adapters.base.is_packed else []
    absent += ["hyper-connections"] if model.hyper_streams else []
    absent += ["per-layer embeddings"] if model.per_layer_embedding else []
    return (*absent, *(["norms of parallel blocks"] if model.num_norms > SANDWICH_NORMS else []))


def holds_plain_attention(kind: LayerKind) -> bool:
    """Whether the attention modules of `layers` hold the layer's mixer, or it has none."""
    mixer = kind.mixer
    if mixer is None or isinstance(mixer, NoMixer) or is_plain_attention(mixer):
        return True
    return isinstance(mixer, LatentMixer) and mixer.indexer is None


def has_module(mixer: Mixer) -> bool:
    """Whether a mixer has a torch module."""
    return has_kernel(mixer) or type(mixer) in MODULES


def has_kernel(mixer: Mixer) -> bool:
    """Whether torch itself has a kernel of the mixer."""
    return isinstance(mixer, Attention) and mixer.indexer is None
