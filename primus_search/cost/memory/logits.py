"""Head and loss on one device, in bytes: what waits for backward and what exists only while they run.

Vocabulary is split over tp, tokens over cp. A fused loss writes the gradient over the BF16 logits (2 bytes per logit,
Transformer Engine); separate kernels, and Megatron-Core's own fused one (`keeps_softmax`), upcast to FP32 and keep
softmax beside the logits (stack's `unfused_logit_bytes`); a softmax put together across tensor-parallel ranks is one of
separate kernels, compiled or not (`split_logit_bytes`). Where forward and backward of the head do not follow each other
(GPipe: all micro-batches in flight), each micro-batch keeps what its loss saved: the gradient written over the logits,
or an FP32 softmax; where weight gradients are put off, the gradient of the logits waits with the head's input. The
head's weight gradient exists in BF16 before, or as the placeholder of, its accumulation.
Where head and loss run piece by piece, each forward and backward before the next, logits of one piece exist at a time
and none waits; the gradient of the head's input gathers in FP32 (torchtitan's ChunkedLossWrapper, GradAccumulator).
Source: Megatron-Core tensor_parallel/cross_entropy.py, fusions/fused_cross_entropy.py, Transformer Engine
common/triton/cross_entropy.py, PyTorch distributed/tensor/parallel/loss.py.
"""

from dataclasses import dataclass

import numpy as np

from primus_search.cost.memory.share import BF16_BYTES, FP32_BYTES, Share, shards_weights
from primus_search.values.candidates import Floats
from primus_search.values.machine.stack import Stack
from primus_search.values.model import Model


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeadMemory:
    """Bytes of the head on one device.

    Per micro-batch from forward to backward: inputs of norm and matrix, kept_logits; from input to weight gradient:
    waiting_input, waiting_logits. While it runs: running_logits beyond those it keeps, and gathered: what exists over
    all tokens where sequence parallelism had split them, the gradient of the input and the input. The gathered input is
    for good (gathered_input) in Megatron's own linear, which has a buffer for it: Megatron-Core
    tensor_parallel/layers.py, get_global_memory_buffer; its layers are Transformer Engine's, which have none.
    """

    inputs: Floats
    kept_logits: Floats
    waiting_input: Floats
    waiting_logits: Floats
    running_logits: Floats
    gathered: Floats
    gathered_input: Floats


def head_memory(model: Model, stack: Stack, s: Share) -> HeadMemory:
    """Saved input of the final norm and of the output matrix; logits with upcasts."""
    m = stack.memory
    fused, unfused = m.fused_logit_bytes, m.unfused_logit_bytes
    writes_over = s.has_fused_loss & (not m.keeps_softmax)
    at_worst = np.where(
        writes_over,
        np.where(s.tp > 1, m.split_fused_logit_bytes or fused, fused),
        np.where(s.tp > 1, m.split_logit_bytes or unfused, unfused),
    )
    kept = np.where(writes_over, m.element_bytes, FP32_BYTES)
    num_losses = 1 + model.num_mtp_layers
    logits = s.tokens * model.vocab_size / s.tp * num_losses
    is_whole = m.loss_chunks <= 1.0
    stream = s.split_tokens * model.hidden * num_losses
    is_trained = model.adapters is None
    whole = np.where(s.split_tokens < s.tokens, BF16_BYTES * s.tokens * model.hidden, 0.0)
    gathered_input = np.where(shards_weights(s), 0.0, whole)
    return HeadMemory(
        inputs=BF16_BYTES * (1.0 + is_trained) * stream,
        kept_logits=kept * logits * is_whole,
        waiting_input=is_trained * BF16_BYTES * stream,
        waiting_logits=is_trained * m.element_bytes * logits * is_whole,
        running_logits=np.maximum(at_worst - kept, 0.0) * logits
        if is_whole
        else at_worst * logits / m.loss_chunks + FP32_BYTES * stream,
        gathered=2.0 * whole - gathered_input,
        gathered_input=gathered_input,
    )


def head_weight_gradient(model: Model, s: Share) -> Floats:
    """Bytes of the weight gradient of the output matrix while it exists beside the main gradient."""
    is_trained = model.adapters is None
    return np.where(shards_weights(s), 0.0, is_trained * BF16_BYTES * model.head_params / s.tp)
