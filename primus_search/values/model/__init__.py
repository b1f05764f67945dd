"""A language model as a sequence of layers, each a mixer and a feed-forward: sizes, parameter counts and FLOPs.

    Model(..., mixers=[GatedDeltaNet(...), ..., Attention(...)])      one mixer per layer; empty: attention everywhere

A mixer (`mixer`) moves information between tokens: attention in its forms, a state-space model, linear attention, a
convolution. A feed-forward works on each token: a dense MLP, experts, nothing. Both declare their projections and
vectors; parameters, FLOPs, tensor-parallel shares and kept inputs all follow from that one declaration.
"""

from primus_search.values.model.attention_mixers import (
    Attention,
    CompressedAttention,
    Indexer,
    LatentAttention,
    LatentMixer,
)
from primus_search.values.model.decoder import (
    Constants,
    DenseMlp,
    FeedForward,
    LayerKind,
    MixtureOfExperts,
    Model,
    NoFeedForward,
    encoder_model,
)
from primus_search.values.model.mixer import Mixer, NoMixer, Split
from primus_search.values.model.scan_mixers import (
    GatedDeltaNet,
    KimiDeltaAttention,
    LightningAttention,
    Mamba2,
    ShortConvolution,
)
from primus_search.values.model.tower import Tower

__all__ = [
    "Attention",
    "CompressedAttention",
    "Constants",
    "DenseMlp",
    "FeedForward",
    "GatedDeltaNet",
    "Indexer",
    "KimiDeltaAttention",
    "LatentAttention",
    "LatentMixer",
    "LayerKind",
    "LightningAttention",
    "Mamba2",
    "Mixer",
    "MixtureOfExperts",
    "Model",
    "NoFeedForward",
    "NoMixer",
    "ShortConvolution",
    "Split",
    "Tower",
    "encoder_model",
]
