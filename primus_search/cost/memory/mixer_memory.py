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

    Outputs of its projections (inputs of convolution, scan or attention; kept whole, because convolutions, norms and
    gates read views of them), inputs of the core that are copies, latents that further projections read, the input of
    the output projection, the same before a norm or gate, what the kernel keeps per row, and selected keys.
    low_bytes: bytes of an element of a saved linear input.
    """
    outputs = mixer_outputs(mixer, hidden, s) - s.tokens / s.tp * _passing_outputs(mixer)
    outputs = outputs + (s.tokens - s.split_tokens) * _gathered_width(mixer, hidden)
    kept = [Saved(name="inputs of the mixer", bytes=BF16_BYTES * outputs)]
    for p in mixer.projections(hidden):
        if p.split is Split.ROW:
            name, size = "mixer output", low_bytes * s.tokens * p.k / s.tp
        elif p.k != hidden:
            name, size = f"input of {p.group}", low_bytes * _rows(p.split, s) * p.copies * p.k / _copies(p.copies, s)
        else:
            continue
        kept.append(Saved(name=name, bytes=size, weight_input=True))
    copied, gated, rows = _further(mixer, hidden)
    rank = s.tokens / s.tp
    kept.append(Saved(name="inputs of the core", bytes=BF16_BYTES * rank * copied))
    kept.append(Saved(name="output before its norm and gate", bytes=BF16_BYTES * rank * gated))
    core = (
        Recompute.CORE_ATTENTION if isinstance(mixer, Attention | LatentMixer | CompressedAttention) else Recompute.NONE
    )
    kept.append(Saved(name="rows of the kernel", bytes=FP32_BYTES * rank * rows, dropped_by=core))
    if isinstance(mixer, Attention | LatentMixer) and mixer.indexer is not None and mixer.indexer.has_own:
        selected = FP32_BYTES * s.tokens * (mixer.indexer.top_k / mixer.indexer.block)
        kept.append(Saved(name="selected keys", bytes=selected))
    return kept


def _passing_outputs(mixer: Mixer) -> int:
    """Elements per token of projection outputs that nothing keeps: their copies, rotated or taken apart, are kept.

    Of MLA under an indexer keys and values per head, which its absorbed form never makes.
    """
    match mixer:
        case LatentMixer():
            a = mixer.latent
            keys = mixer.num_heads * (a.qk_nope_head_dim + a.v_head_dim)
            return keys if mixer.indexer is not None else keys + mixer.num_heads * a.qk_head_dim
        case CompressedAttention():
            return mixer.num_heads * mixer.head_dim
        case _:
            return 0


def _gathered_width(mixer: Mixer, hidden: int) -> int:
    """Columns of replicated projections whose outputs every rank needs of all tokens: indexers and compressors."""
    groups = ("index queries", "index keys", "compressor")
    return sum(p.n for p in mixer.projections(hidden) if p.group in groups)


def _copies(copies: int, s: Share) -> Floats | float:
    """Ranks that blocks of a grouped projection are dealt to."""
    return np.minimum(s.tp, copies) if copies > 1 else 1.0


def _rows(split: Split, s: Share) -> Floats:
    return s.split_tokens if split is Split.WHOLE else s.tokens


def _ranks(split: Split, limit: int, s: Share) -> Floats:
    if split is Split.WHOLE:
        return np.ones_like(s.tp)
    return np.minimum(s.tp, limit) if limit else s.tp


def _further(mixer: Mixer, hidden: int) -> tuple[int, int, float]:
    """Elements per token, all ranks: copies that the core reads, outputs before their norm or gate, FP32 rows kept.

    Sources of the lists: Megatron-Core 0.20 ssm/mamba_mixer.py with mamba_ssm's MambaSplitConv1dScanCombinedFn (keeps
    the joint projection and the output before its gate), ssm/gated_delta_net (queries and keys normalised and repeated
    for every value head, gate copied), experimental_attention_variant (absorbed MLA, DSA); flash-linear-attention
    ops/kda/chunk.py (keeps two squares of each chunk) and ops/gated_delta_rule (one).
    """
    match mixer:
        case Mamba2():
            return 0, 2 * mixer.inner, 1
        case GatedDeltaNet():
            heads = mixer.num_value_heads
            repeated = 2 * heads * mixer.key_dim
            copies = 2 * mixer.key_out + repeated + 2 * mixer.value_out
            return copies, mixer.value_out, heads * (2.0 + mixer.chunk / 2)
        case KimiDeltaAttention():
            return 2 * mixer.inner + mixer.value_out, mixer.value_out, mixer.num_heads * (2.0 + mixer.chunk)
        case LightningAttention():
            return 3 * mixer.inner, mixer.inner, 0
        case ShortConvolution():
            return 2 * hidden, 0, 0
        case Attention():
            heads = mixer.num_heads + (0 if mixer.reuses_kv else mixer.num_kv_heads)
            gate = mixer.num_heads * mixer.value_dim if mixer.has_output_gate else 0
            return heads * mixer.head_dim, gate, mixer.num_heads
        case LatentMixer() if mixer.indexer is not None:
            wide = mixer.num_heads * (mixer.latent.kv_lora_rank + mixer.latent.qk_rope_head_dim)
            gate = mixer.num_heads * mixer.latent.v_head_dim if mixer.has_output_gate else 0
            return wide, mixer.num_heads * mixer.latent.kv_lora_rank + gate, mixer.num_heads
        case LatentMixer():
            gate = mixer.num_heads * mixer.latent.v_head_dim if mixer.has_output_gate else 0
            copies = mixer.num_heads * (2 * mixer.latent.qk_head_dim + mixer.latent.v_head_dim)
            return copies, gate, mixer.num_heads
        case CompressedAttention():
            return mixer.num_heads * mixer.head_dim, 0, mixer.num_heads
        case _:
            return 0, 0, 0
