"""Parameters on one device and saved tensors of mixers other than plain attention, from their lists of projections."""

import numpy as np

from primus_search.candidates import Floats, Recompute
from primus_search.cost.memory.saved import Saved
from primus_search.cost.memory.share import BF16_BYTES, FP32_BYTES, Share
from primus_search.model import (
    Attention,
    CompressedAttention,
    GatedDeltaNet,
    KimiDeltaAttention,
    LatentMixer,
    LightningAttention,
    Mamba2,
    Mixer,
    ShortConvolution,
    Split,
)


def mixer_share_params(mixer: Mixer, hidden: int, s: Share) -> Floats:
    """Parameters of one mixer on one device: divided by tp up to a projection's limit, or whole."""
    split, whole = mixer.vectors(hidden)
    count: Floats = split / s.tp + whole
    for p in mixer.projections(hidden):
        ranks = np.ones_like(s.tp) if p.split is Split.WHOLE else np.minimum(s.tp, p.limit) if p.limit else s.tp
        count = count + p.params / ranks
    return count


def mixer_outputs(mixer: Mixer, hidden: int, s: Share) -> Floats:
    """Elements of the outputs of all projections but those onto the residual stream, on one device."""
    count = np.zeros_like(s.tokens)
    for p in mixer.projections(hidden):
        if p.split is not Split.ROW:
            count = count + _rows(p.split, s) * p.copies * p.n / _ranks(p.split, p.limit, s)
    return count


def mixer_tensors(mixer: Mixer, hidden: int, s: Share, low_bytes: Floats) -> list[Saved]:
    """What one mixer saves between its norm and the residual stream.

    Outputs of its projections (inputs of convolution, scan or attention), the convolved copy of them, latents that
    further projections read, the input of the output projection, the same before a norm or gate of the output, and
    what the kernel keeps per row. low_bytes: bytes of an element of a saved linear input.
    """
    kept = [Saved(name="inputs of the mixer", bytes=BF16_BYTES * mixer_outputs(mixer, hidden, s))]
    for p in mixer.projections(hidden):
        if p.split is Split.ROW:
            name, size = "mixer output", low_bytes * s.tokens * p.k / s.tp
        elif p.k != hidden:
            name, size = f"input of {p.group}", low_bytes * _rows(p.split, s) * p.k
        else:
            continue
        kept.append(Saved(name=name, bytes=size, weight_input=True))
    convolved, gated, rows = _further(mixer)
    rank = s.tokens / s.tp
    kept.append(Saved(name="convolved inputs", bytes=BF16_BYTES * rank * convolved))
    kept.append(Saved(name="output before its norm and gate", bytes=BF16_BYTES * rank * gated))
    core = (
        Recompute.CORE_ATTENTION if isinstance(mixer, Attention | LatentMixer | CompressedAttention) else Recompute.NONE
    )
    kept.append(Saved(name="rows of the kernel", bytes=FP32_BYTES * rank * rows, dropped_by=core))
    return kept


def _rows(split: Split, s: Share) -> Floats:
    return s.split_tokens if split is Split.WHOLE else s.tokens


def _ranks(split: Split, limit: int, s: Share) -> Floats:
    if split is Split.WHOLE:
        return np.ones_like(s.tp)
    return np.minimum(s.tp, limit) if limit else s.tp


def _further(mixer: Mixer) -> tuple[int, int, int]:
    """Elements per token, all ranks: convolved copies, outputs before their norm or gate, FP32 rows a kernel keeps."""
    match mixer:
        case Mamba2():
            return mixer.conv_channels, mixer.inner, mixer.num_heads
        case GatedDeltaNet():
            return 2 * mixer.key_out + mixer.value_out, mixer.value_out, mixer.num_value_heads * (1 + mixer.chunk // 2)
        case KimiDeltaAttention():
            decay = mixer.inner  # the decay of every channel, FP32
            return 2 * mixer.inner + mixer.value_out, mixer.value_out, decay + mixer.num_heads * mixer.chunk // 2
        case LightningAttention():
            return 3 * mixer.inner, mixer.inner, 0
        case ShortConvolution():
            return 0, 0, 0
        case Attention():
            turned = (mixer.num_heads + mixer.num_kv_heads) * mixer.head_dim
            return turned, mixer.num_heads * mixer.value_dim if mixer.has_output_gate else 0, mixer.num_heads
        case LatentMixer():
            gate = mixer.num_heads * mixer.latent.v_head_dim if mixer.has_output_gate else 0
            return 2 * mixer.num_heads * mixer.latent.qk_head_dim, gate, mixer.num_heads
        case CompressedAttention():
            return mixer.num_heads * mixer.head_dim, 0, mixer.num_heads
        case _:
            return 0, 0, 0
