"""Parameters on one device and saved tensors of mixers other than plain attention, from their lists of projections."""

from dataclasses import dataclass

import numpy as np

from primus_search.cost.memory.share import BF16_BYTES, FP32_BYTES, Share
from primus_search.values.candidates import Bools, Floats, Recompute
from primus_search.values.model import Attention, CompressedAttention, LatentMixer, Mixer, Split
from primus_search.values.model.mixer import WeightMatrix


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Saved:
    """One tensor kept from forward to backward. `weight_input`: a weight gradient needs it."""

    name: str
    bytes: Floats
    dropped_by: Recompute = Recompute.NONE
    weight_input: bool = False


def mixer_share_params(mixer: Mixer, hidden: int, s: Share) -> Floats:
    """Parameters of one mixer on one device: divided by tp up to a projection's limit, or whole.

    Those of keys and values are divided even where tp exceeds their heads: Megatron gathers the outputs (attention.py,
    `num_query_groups < world_size`), torchtitan refuses such a tp.
    """
    split, whole = mixer.vectors(hidden)
    count: Floats = split / s.tp + whole
    for p in mixer.projections(hidden):
        count = count + p.params / projection_ranks(p, s)
    return count


def projection_ranks(p: WeightMatrix, s: Share) -> Floats:
    """Ranks that divide a projection's parameters."""
    return _ranks(p.split, 0 if p.group == "qkv" else p.limit, s)


def mixer_outputs(mixer: Mixer, hidden: int, s: Share, groups: tuple[str, ...] = ()) -> Floats:
    """Elements of the outputs of all projections but those onto the residual stream, or of some, on one device."""
    count = np.zeros_like(s.tokens)
    for p in mixer.projections(hidden):
        if p.split is not Split.ROW and (not groups or p.group in groups):
            count = count + _rows(p.split, s) * p.copies * p.n / _ranks(p.split, p.limit, s)
    return count


def mixer_tensors(mixer: Mixer, hidden: int, s: Share, low_bytes: Floats, attention_bytes: Floats) -> list[Saved]:
    """What one mixer saves between its norm and the residual stream.

    Outputs of its projections (inputs of convolution, scan or attention; kept whole, because convolutions, norms and
    gates read views of them), inputs of the core that are copies, latents that further projections read, the input of
    the output projection, the same before a norm or gate, what the kernel keeps per row, and selected keys.
    low_bytes: bytes of an element of a saved linear input; attention_bytes: of attention's output as its projection
    saves it, beside which the kernel keeps its own in BF16 where a gate or the projection has another.
    """
    core, rank = mixer.core(hidden), s.tokens / s.tp
    outputs = mixer_outputs(mixer, hidden, s) - rank * core.passing
    outputs = outputs + (s.tokens - s.split_tokens) * _gathered_width(mixer, hidden)
    outputs = outputs + 2.0 * rank * core.group_width * np.maximum(s.tp * s.cp - core.groups, 0.0)
    up = mixer_outputs(mixer, hidden, s, core.up) - rank * core.passing if core.up else np.zeros_like(outputs)
    of_up = Recompute.MLA_UP_PROJ if core.up else Recompute.NONE
    kept = [
        Saved(name="inputs of the mixer", bytes=BF16_BYTES * (outputs - up)),
        Saved(name="outputs of up-projections", bytes=BF16_BYTES * up, dropped_by=of_up),
    ]
    for p in mixer.projections(hidden):
        if p.split is Split.ROW:
            saved = attention_bytes if isinstance(mixer, Attention) else low_bytes
            name, size = "mixer output", saved * s.tokens * p.k / s.tp
            if isinstance(mixer, Attention) and not mixer.has_output_gate:
                of_kernel = np.where(saved < BF16_BYTES, BF16_BYTES, 0.0) * s.tokens * p.k / s.tp
                kept.append(Saved(name="output of the kernel", bytes=of_kernel, dropped_by=Recompute.CORE_ATTENTION))
        elif p.k != hidden:
            saved = np.where(has_up_again(mixer, hidden, s) & (p.group in core.up), BF16_BYTES, low_bytes)
            name, size = f"input of {p.group}", saved * _rows(p.split, s) * p.copies * p.k / _copies(p.copies, s)
        else:
            continue
        kept.append(Saved(name=name, bytes=size, weight_input=True))
    kept.append(Saved(name="inputs of the core", bytes=BF16_BYTES * rank * core.copied, dropped_by=of_up))
    kept.append(Saved(name="output before its norm and gate", bytes=BF16_BYTES * rank * core.before_gate))
    is_attention = isinstance(mixer, Attention | LatentMixer | CompressedAttention)
    dropped_by = Recompute.CORE_ATTENTION if is_attention else Recompute.NONE
    kept.append(Saved(name="rows of the kernel", bytes=FP32_BYTES * rank * core.rows, dropped_by=dropped_by))
    if isinstance(mixer, Attention | LatentMixer) and mixer.indexer is not None and mixer.indexer.has_own:
        selected = FP32_BYTES * s.tokens * (mixer.indexer.top_k / mixer.indexer.block)
        kept.append(Saved(name="selected keys", bytes=selected))
    if core.gathered:
        others = BF16_BYTES * s.tokens * (s.cp - 1.0) * sum(core.gathered)
        kept.append(Saved(name="keys of other ranks", bytes=others, dropped_by=Recompute.CORE_ATTENTION))
    return kept


def has_up_again(mixer: Mixer, hidden: int, s: Share) -> Bools:
    """Whether queries, keys and values are projected again: their input stays in BF16, beside no cast of its own."""
    mask: Bools = np.not_equal(s.recompute & int(Recompute.MLA_UP_PROJ), 0) & bool(mixer.core(hidden).up)
    return mask


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
