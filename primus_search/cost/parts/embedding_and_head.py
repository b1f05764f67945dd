"""What the first and the last stage run besides layers: embedding, output head with its loss, and MTP modules."""

from collections.abc import Sequence

import numpy as np

from primus_search.base.units import BF16_BYTES, FP32_BYTES
from primus_search.cost.laws.memory_bound import Stream
from primus_search.cost.memory.share import Share
from primus_search.cost.parts.layer import layer_operations
from primus_search.cost.parts.operations import LinearOp, Module, Operation, Part, Traffic, streamed
from primus_search.values.candidates import Candidates, Floats, Fp8
from primus_search.values.job import Job
from primus_search.values.machine.state_formats import state_bytes
from primus_search.values.model import Model

# Passes over the logits, in bytes per logit. Fused: read BF16 logits for maximum and sum, read again and write the
# gradient in place. Unfused: cast to FP32, subtract the maximum, exponentiate, sum, divide, gather, and a gradient
# that is scaled, masked and cast back, each one reading and writing FP32.
LOSS_BYTES = {True: (2 * BF16_BYTES, 2 * BF16_BYTES), False: (BF16_BYTES + 9 * FP32_BYTES, 5 * FP32_BYTES + BF16_BYTES)}
_ENDS = (Part.EMBEDDING_AND_HEAD, Module.ELEMENTWISE)
LOSS_KERNELS = {True: (3.0, 2.0), False: (10.0, 6.0)}


def embedding_operations(job: Job, c: Candidates) -> list[Operation]:
    """Look-up of a row per token, and in backward the gradient of the whole table, whose other rows are zeros.

    The table of per-layer embeddings is `wide` columns beside the H of the token embedding.

    Formula, bytes per micro-batch: tokens * H * (2 read + 2 read + 2 written) to add rows to the gradient, and for each
        of the V H / tp elements 2 to fill it with zeros, 2 to read it and 2 * main gradient to add it there: no
        epilogue of a product does that. FP32 main gradients: 12 bytes per element whatever the tokens.
    Source: torch aten/native/cuda/Embedding.cu (embedding_dense_backward); NVIDIA/Megatron-LM
        core/distributed/distributed_data_parallel.py (`main_grad.add_(grad)` where no product added it).
    Valid: Megatron. FSDP copies the table to the buffer it scatters instead of adding it, about as many bytes.
    """
    model = job.model
    s = Share.of(job, c)
    wide = model.per_layer_embedding * model.num_layers
    elements = s.tokens * (model.hidden + wide)
    table = model.vocab_size * (model.hidden + wide) / c.tp
    gradient_bytes = state_bytes(job.stack, "gradient_bytes", c.state_format)
    is_trained = model.adapters is None
    return [
        *_per_layer_projection(model, c, s.tokens),
        streamed(*_ENDS, elements, (2.0, 3.0 * is_trained, 3.0, 2.0), (Stream.PERMUTE, Stream.PERMUTE)),
        Traffic(*_ENDS, (0.0, is_trained * table * (2 * BF16_BYTES + 2 * gradient_bytes)), kernels=(1.0, 2.0)),
    ]


def _per_layer_projection(model: Model, c: Candidates, tokens: Floats) -> list[Operation]:
    """The product of the token embedding that per-layer embeddings are added to, for all layers at once."""
    wide = model.per_layer_embedding * model.num_layers
    if not wide:
        return []
    part, columns, is_trained = Part.EMBEDDING_AND_HEAD, wide / c.tp, model.adapters is None
    linear = LinearOp(part, Module.LINEAR, tokens, columns, float(model.hidden), Fp8.NONE, is_trained=is_trained)
    return [linear]


def head_operations(job: Job, c: Candidates) -> list[Operation]:
    """Final norm, output matrix (always BF16, split over the vocabulary by tp) and the loss, fused or not."""
    model = job.model
    s = Share.of(job, c)
    vocabulary = model.vocab_size / c.tp
    logits = s.tokens * vocabulary
    forward, backward = (np.where(c.loss_fusion, LOSS_BYTES[True][i], LOSS_BYTES[False][i]) for i in (0, 1))
    kernels = [np.where(c.loss_fusion, LOSS_KERNELS[True][i], LOSS_KERNELS[False][i]) for i in (0, 1)]
    moved = (logits * forward, logits * backward)
    part, is_trained = Part.EMBEDDING_AND_HEAD, model.adapters is None
    return [
        LinearOp(part, Module.LINEAR, s.tokens, vocabulary, float(model.hidden), Fp8.NONE, is_trained=is_trained),
        Traffic(*_ENDS, moved, kernels=(kernels[0], kernels[1]), streams=(Stream.SOFTMAX, Stream.SOFTMAX)),
    ]


def mtp_operations(job: Job, c: Candidates) -> Sequence[Operation]:
    """One multi-token-prediction module: the 2H x H join, its layers, and the head once more."""
    model = job.model
    if not model.num_mtp_layers:
        return ()
    s = Share.of(job, c)
    hidden: Floats = np.full(len(c), float(model.hidden))
    is_trained, wide = model.adapters is None, 2.0 * model.hidden
    join = LinearOp(Part.MLP, Module.LINEAR, s.tokens, hidden / c.tp, wide, Fp8.NONE, is_trained=is_trained)
    layers = [one for kind in model.mtp_kinds for one in layer_operations(job, kind, c)]
    return [join, *layers, *head_operations(job, c)]
