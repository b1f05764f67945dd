"""Kernels of mixers other than plain attention: state-space models, linear attention, sparse and gated attention.

Products follow from the mixer's own list of projections. What mixes tokens is one call per mixer with two bounds, the
FLOPs of its chunked algorithm at a share of the device's peak and the bytes it has to move; the larger one counts.
None of these kernels is in the tables of measured kernels, so a projection names them as extrapolated (`coverage`).
"""

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from primus_search.base.units import BF16_BYTES, FP32_BYTES
from primus_search.cost.laws.attention import AttentionCall, attention_s
from primus_search.cost.laws.memory_bound import Stream, bandwidth_bytes_per_s
from primus_search.cost.parts.operations import (
    ROWS,
    Call,
    LinearOp,
    Module,
    Operation,
    Part,
    Producer,
    Traffic,
    streamed,
)
from primus_search.values.candidates import Candidates, Floats
from primus_search.values.job import Job
from primus_search.values.machine.accelerator import Accelerator
from primus_search.values.machine.stack import UNFUSED, Stack
from primus_search.values.model import (
    Attention,
    CompressedAttention,
    Indexer,
    LatentMixer,
    LayerKind,
    Mixer,
    Model,
    NoMixer,
    ShortConvolution,
    Split,
)
from primus_search.values.model.mixer import attended_tokens

if TYPE_CHECKING:
    from primus_search.cost.memory.share import Share

CHUNKED_BACKWARD = 3.0
"""Backward over forward of a chunked scan: two gradients of every product, and the states made again."""

CONVOLUTION_PASSES = (2.0, 4.0)
"""Reads and writes of an element of a depthwise convolution with its activation: forward, backward (input, gradient,
input gradient, and the weight gradient's second read)."""


def is_plain_attention(mixer: Mixer) -> bool:
    """Whether a mixer is attention whose sizes say all of its cost: no gate, no indexer, keys and values of its own."""
    if isinstance(mixer, LatentMixer):
        return mixer.indexer is None and not mixer.has_output_gate
    if not isinstance(mixer, Attention):
        return False
    has_more = mixer.has_output_gate or mixer.has_shared_kv or mixer.reuses_kv or mixer.indexer is not None
    return not has_more and mixer.value_dim == mixer.head_dim


def unmeasured_mixers(model: Model) -> tuple[LayerKind, ...]:
    """Kinds of layers whose mixer no kernel table has: scans, linear, sparse and gated attention."""
    return tuple(
        kind
        for kind in model.kinds
        if kind.mixer is not None and not isinstance(kind.mixer, NoMixer) and not is_plain_attention(kind.mixer)
    )


def mixer_operations(job: Job, mixer: Mixer, window: int, c: Candidates, s: "Share") -> list[Operation]:
    """Every kernel of one mixer: its products, convolution, gates and norms, and the mixing itself."""
    if isinstance(mixer, NoMixer):
        return []
    return [
        *_products(job.model.hidden, mixer, c, s),
        *_vectors(job.model.hidden, mixer, c, s),
        *_core(job, mixer, window, c),
    ]


def _products(hidden: int, mixer: Mixer, c: Candidates, s: "Share") -> list[Operation]:
    """The projections as linears; those of one group and input are one product."""
    merged: dict[tuple[str, int, Split], Floats] = {}
    up = mixer.core(hidden).up
    for p in mixer.projections(hidden):
        ranks = np.minimum(c.tp, p.limit) if p.limit else np.asarray(c.tp)
        columns = p.copies * p.n / (ranks if p.split is Split.COLUMN else 1.0) * np.ones(len(c))
        key = (p.group, p.k, p.split)
        merged[key] = merged.get(key, np.zeros(len(c))) + columns
    made: list[Operation] = []
    for (group, k, split), n in merged.items():
        module = Module.MLA_UP if group in up else Module.LINEAR
        linear = partial(LinearOp, Part.ATTENTION, module, precision=c.fp8)
        if split is Split.ROW:
            made.append(linear(s.tokens, n, k / c.tp, gradient_share=s.split_share))
            continue
        tokens = s.split_tokens if split is Split.WHOLE else s.tokens
        producer = Producer.NORM if k == hidden else Producer.OTHER
        share = s.split_share if split is Split.COLUMN and k == hidden else 1.0
        made.append(linear(tokens, n, float(k), producer=producer, input_share=share))
    return made


def _vectors(hidden: int, mixer: Mixer, c: Candidates, s: "Share") -> list[Operation]:
    """Streams over inner vectors: convolution, rotation and norms of queries and keys, norm and gate of the output."""
    core = mixer.core(hidden)
    rows = s.tokens / c.tp
    forward, backward = CONVOLUTION_PASSES
    every = (
        (core.convolved, forward, backward, Stream.ELEMENTWISE, Module.ELEMENTWISE),
        (core.turned, 2.0, 2.0, Stream.NORM, Module.MLA_UP if core.up else Module.ELEMENTWISE),
        (core.gated, 3.0, 5.0, Stream.NORM, Module.ELEMENTWISE),
    )
    return [_stream(rows * width, ahead, back, kind, part) for width, ahead, back, kind, part in every if width]


def _stream(
    elements: Floats, forward: float, backward: float, kind: Stream, module: Module = Module.ELEMENTWISE
) -> Operation:
    return streamed(Part.ATTENTION, module, elements, (forward, backward, 1.0, 1.0), (kind, kind))


def _core(job: Job, mixer: Mixer, window: int, c: Candidates) -> list[Operation]:
    """The mixing itself."""
    match mixer:
        case ShortConvolution():
            rows = c.micro_batch_size * (job.workload.seq_length / c.cp)
            return [_stream(rows * job.model.hidden / c.tp, 2.0 * CONVOLUTION_PASSES[0], 2.0 * CONVOLUTION_PASSES[1],
                            Stream.ELEMENTWISE)]  # fmt: skip
        case Attention():
            sizes = (mixer.num_heads, mixer.num_kv_heads, mixer.head_dim, mixer.value_dim)
            return _attention(job, c, *sizes, window or mixer.window or mixer.chunk, mixer.indexer)
        case LatentMixer() if mixer.indexer is not None:
            # Selected keys differ from query to query and not from head to head, so latents are attended to themselves.
            wide = mixer.latent.kv_lora_rank + mixer.latent.qk_rope_head_dim
            return _attention(job, c, mixer.num_heads, 1, wide, mixer.latent.kv_lora_rank, 0, mixer.indexer)
        case LatentMixer():
            a = mixer.latent
            return _attention(job, c, mixer.num_heads, mixer.num_heads, a.qk_head_dim, a.v_head_dim, 0, None)
        case CompressedAttention():
            reach = mixer.window + round(mixer.entries(job.workload.seq_length))
            found = _attention(job, c, mixer.num_heads, 1, mixer.head_dim, mixer.head_dim, reach, None)
            if mixer.is_indexed:
                entries = attended_tokens(job.workload.seq_length // mixer.ratio, 0)
                found.append(_index_call(job, c, 2.0 * mixer.index_heads * mixer.index_dim * entries))
            return found
        case _:
            return [_chunked(job, mixer, c)]


def attention_family(acc: Accelerator, stack: Stack, model: Model) -> str:
    """The kernel family a stack uses on a device: its own, or the device's first where it has no such family."""
    wanted = stack.kernels.attention_kernel
    if model.latent is not None and wanted != UNFUSED:
        wanted = stack.kernels.latent_attention_kernel or wanted
    if wanted == UNFUSED or wanted in acc.attention.kernels:
        return wanted
    return next(iter(acc.attention.kernels))


def attended_length(job: Job, c: Candidates, kernel: str) -> Floats:
    """Tokens of the sequences a kernel family works on: packed documents are as many more, as much shorter.

    A kernel that stores its scores works on the full square whatever the mask.
    """
    attended = job.workload.filling(c.micro_batch_size).attended
    return np.full(len(c), float(job.workload.seq_length)) if kernel == UNFUSED else attended


def attention_call(
    job: Job, c: Candidates, heads: int, kv_heads: int, qk_dim: int, v_dim: int, window: int
) -> tuple[str, AttentionCall]:
    """The kernel family and the sizes of one micro-batch's attention; heads are those of the model.

    Every rank owns 1/cp of the causal pairs: q = seq/cp queries, (seq + q)/2 keys, the last of them under the mask,
    which is seq^2 / (2 cp) pairs.
    """
    kernel = attention_family(job.accelerator, job.stack, job.model)
    seq = attended_length(job, c, kernel)
    ranks = _ranks_of_documents(job, c)
    queries = seq / ranks
    return kernel, AttentionCall(
        batch=c.micro_batch_size * (job.workload.seq_length / seq) * (ranks / c.cp),
        heads=heads / c.tp,
        kv_heads=np.maximum(kv_heads / c.tp, 1.0),
        seq_q=queries,
        seq_kv=seq if kernel == UNFUSED else 0.5 * (seq + queries),
        qk_dim=qk_dim,
        v_dim=v_dim,
        window=window,
        causal=True,
    )


def _ranks_of_documents(job: Job, c: Candidates) -> Floats:
    """Context-parallel ranks that share a document, as the mean pair of tokens sees them."""
    ranks = c.cp.astype(np.float64)
    for cp in np.unique(c.cp[c.hybrid_cp]).tolist():
        shares = job.workload.group_shares(cp)
        ranks[c.hybrid_cp & (c.cp == cp)] = sum(size * squares for size, (_, squares) in shares.items())
    return ranks


def _attention(
    job: Job, c: Candidates, heads: int, kv_heads: int, qk_dim: int, v_dim: int, window: int, indexer: Indexer | None
) -> list[Operation]:
    """Fused attention of these sizes; with an indexer on the keys it selects, after its scores of all keys."""
    acc, stack = job.accelerator, job.stack
    kernel, call = attention_call(job, c, heads, kv_heads, qk_dim, v_dim, window)
    is_sparse = np.zeros(len(c), np.bool_) if indexer is None else indexer.top_k < attended_length(job, c, kernel)
    if indexer is not None:
        call["window"] = np.where(is_sparse, indexer.top_k, window)
    times = attention_s(acc, kernel, **call)
    sparse_rate = np.where(is_sparse, stack.efficiencies.sparse_attention_efficiency, 1.0)
    rate = stack.efficiencies.attention_efficiency * acc.training_rate * sparse_rate
    seconds = (times.forward_s / rate, times.backward_s / rate)
    calls: list[Operation] = [Call(Part.ATTENTION, Module.CORE, seconds, kernels=(1.0, 3.0))]
    if indexer is not None and indexer.has_own:
        calls.append(_index_call(job, c, indexer.scoring_flops(job.workload.seq_length)))
    return calls


def _index_call(job: Job, c: Candidates, flops_per_token: float) -> Call:
    """Scores of an indexer and the selection: replicated over tp, backward as forward (the indexer's own loss)."""
    tokens = c.micro_batch_size * (job.workload.seq_length / c.cp)
    acc = job.accelerator
    rate = acc.bf16_peak_flops_per_s * job.stack.efficiencies.indexer_efficiency * acc.training_rate
    seconds = tokens * flops_per_token / rate
    return Call(Part.ATTENTION, Module.CORE, (seconds, 2.0 * seconds), kernels=(2.0, 2.0))


def _chunked(job: Job, mixer: Mixer, c: Candidates) -> Call:
    """A scan in chunks: FLOPs at their share of peak, or queries, keys, values, output and states at full bandwidth."""
    acc, stack, core = job.accelerator, job.stack, mixer.core(job.model.hidden)
    tokens = c.micro_batch_size * (job.workload.seq_length / c.cp) / c.tp
    flops = tokens * mixer.mixing_flops(job.workload.seq_length)
    moved = tokens * (BF16_BYTES * core.scanned + 2.0 * FP32_BYTES * core.state / core.chunk)
    bytes_s = moved / (bandwidth_bytes_per_s(acc, Stream.ELEMENTWISE) * stack.efficiencies.memory_efficiency)
    compute_s = flops / (acc.bf16_peak_flops_per_s * stack.efficiencies.scan_efficiency * acc.training_rate)
    forward_s = np.maximum(compute_s, bytes_s)
    return Call(Part.ATTENTION, Module.ELEMENTWISE, (forward_s, CHUNKED_BACKWARD * forward_s), kernels=(5.0, 8.0))


def latent_expert_operations(model: Model, c: Candidates, s: "Share") -> list[Operation]:
    """Projections into the latent space of routed experts and out of it, on each rank's own tokens."""
    assert model.moe is not None
    latent, hidden, own = float(model.moe.latent_hidden), float(model.hidden), s.tokens / c.tp

    linear = partial(LinearOp, Part.EXPERTS, Module.ROUTER, own)
    return [linear(latent, hidden), linear(hidden, latent)]


def hyper_operations(model: Model, c: Candidates, s: "Share", streams: int) -> list[Operation]:
    """Hyper-connections of a layer: per block the mixing weights from all streams, one read and one write of them."""
    rows = s.split_tokens
    wide = float(streams * model.hidden)
    mixing = LinearOp(Part.NORMS, Module.ELEMENTWISE, 2.0 * rows, float(2 * streams + streams**2), wide)
    return [mixing, streamed(Part.NORMS, Module.ELEMENTWISE, 2.0 * rows * wide, (3.0, 5.0, 4.0, 6.0))]


def per_layer_operations(model: Model, s: "Share") -> list[Operation]:
    """What a layer's own embedding costs: a gate from the stream, its product with the embedding, a projection, a norm.

    Source: transformers 5.23 models/gemma4/modeling_gemma4.py Gemma4TextDecoderLayer.
    """
    rows, wide, hidden = s.split_tokens, float(model.per_layer_embedding), float(model.hidden)

    linear = partial(LinearOp, Part.MLP, Module.ELEMENTWISE, rows)
    moved = Traffic(
        Part.NORMS,
        Module.ELEMENTWISE,
        ((4.0 * wide + 3.0 * hidden) * rows * BF16_BYTES, (6.0 * wide + 5.0 * hidden) * rows * BF16_BYTES),
        kernels=(3.0, 4.0),
        streams=ROWS,
    )
    return [linear(wide, hidden), linear(hidden, wide), moved]
