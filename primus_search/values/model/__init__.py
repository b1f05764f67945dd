"""A language model as a sequence of layers, each a mixer and a feed-forward: sizes, parameter counts and FLOPs.

    Model(..., mixers=[GatedDeltaNet(...), ..., Attention(...)])      one mixer per layer; empty: attention everywhere

A mixer (`mixer`) moves information between tokens: attention in its forms, a state-space model, linear attention, a
convolution. A feed-forward works on each token: a dense MLP, experts, nothing. Both declare their projections and
vectors; parameters, FLOPs, tensor-parallel shares and kept inputs all follow from that one declaration.
"""

from primus_search.values.model.compressed_attention import CompressedAttention
from primus_search.values.model.decoder import LayerKind, Model
from primus_search.values.model.encoder import encoder_model
from primus_search.values.model.feed_forward import DenseMlp, FeedForward, MixtureOfExperts, NoFeedForward
from primus_search.values.model.full_attention import Attention
from primus_search.values.model.gated_delta_net import GatedDeltaNet
from primus_search.values.model.indexer import Indexer
from primus_search.values.model.kimi_delta_attention import KimiDeltaAttention
from primus_search.values.model.latent_attention import LatentAttention, LatentMixer
from primus_search.values.model.lightning_attention import LightningAttention
from primus_search.values.model.mamba2 import Mamba2
from primus_search.values.model.mixer import Mixer, NoMixer, Split
from primus_search.values.model.short_convolution import ShortConvolution
from primus_search.values.model.tower import Tower

__all__ = [
    "Attention",
    "CompressedAttention",
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
