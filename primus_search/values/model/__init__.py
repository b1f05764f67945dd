"""A language model as a sequence of layers, each a mixer and a feed-forward: sizes, parameter counts and FLOPs.

    Model(..., mixers=[GatedDeltaNet(...), ..., Attention(...)])      one mixer per layer; empty: attention everywhere

A mixer (`mixer`) moves information between tokens: attention in its forms, a state-space model, linear attention, a
convolution. A feed-forward works on each token: a dense MLP, experts, nothing. Both declare their projections and
vectors; parameters, FLOPs, tensor-parallel shares and kept inputs all follow from that one declaration.
"""

from primus_search.values.model.adapters import Adapters as Adapters
from primus_search.values.model.adapters import BaseFormat as BaseFormat
from primus_search.values.model.adapters import adapted_matrices as adapted_matrices
from primus_search.values.model.attention_mixers import Attention as Attention
from primus_search.values.model.attention_mixers import CompressedAttention as CompressedAttention
from primus_search.values.model.attention_mixers import Indexer as Indexer
from primus_search.values.model.attention_mixers import LatentAttention as LatentAttention
from primus_search.values.model.attention_mixers import LatentMixer as LatentMixer
from primus_search.values.model.constants import Constants as Constants
from primus_search.values.model.decoder import Model as Model
from primus_search.values.model.decoder import encoder_model as encoder_model
from primus_search.values.model.layer_kinds import DenseMlp as DenseMlp
from primus_search.values.model.layer_kinds import FeedForward as FeedForward
from primus_search.values.model.layer_kinds import LayerKind as LayerKind
from primus_search.values.model.layer_kinds import MixtureOfExperts as MixtureOfExperts
from primus_search.values.model.layer_kinds import NoFeedForward as NoFeedForward
from primus_search.values.model.mixer import Mixer as Mixer
from primus_search.values.model.mixer import NoMixer as NoMixer
from primus_search.values.model.mixer import Split as Split
from primus_search.values.model.scan_mixers import GatedDeltaNet as GatedDeltaNet
from primus_search.values.model.scan_mixers import KimiDeltaAttention as KimiDeltaAttention
from primus_search.values.model.scan_mixers import LightningAttention as LightningAttention
from primus_search.values.model.scan_mixers import Mamba2 as Mamba2
from primus_search.values.model.scan_mixers import ShortConvolution as ShortConvolution
from primus_search.values.model.tower import Tower as Tower
