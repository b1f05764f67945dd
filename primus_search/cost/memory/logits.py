"""Head and loss on one device, in bytes: what waits for backward and what exists only while they run.

Vocabulary is split over tp, tokens over cp. A fused loss writes the gradient over the BF16 logits (2 bytes per logit,
Transformer Engine); separate kernels upcast to FP32 and keep softmax beside the logits (stack's
`unfused_logit_bytes`). The head's weight gradient exists in BF16 before, or as the placeholder of, its accumulation.
Source: Megatron-Core tensor_parallel/cross_entropy.py, Transformer Engine common/triton/cross_entropy.py.
"""

from dataclasses import dataclass

import numpy as np

from primus_search.candidates import Floats
from primus_search.cost.memory.share import BF16_BYTES, Share, shards_weights
from primus_search.model import Model
from primus_search.stack import Stack


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Head:
    """Bytes of the head on one device.

    waiting: per micro-batch in flight. While it runs: logits, weight_gradient, and gathered: input and gradient over
    all tokens where sequence parallelism had split them.
    """

    waiting: Floats
    logits: Floats
    weight_gradient: Floats
    gathered: Floats


def head_memory(model: Model, stack: Stack, s: Share) -> Head:
    """Saved input of the final norm and of the output matrix; logits with upcasts; weight gradient of the matrix."""
    per_logit = np.where(s.loss_fusion, stack.memory.fused_logit_bytes, stack.memory.unfused_logit_bytes)
    num_losses = 1 + model.num_mtp_layers
    stream = s.split_tokens * model.hidden
    return Head(
        waiting=BF16_BYTES * 2.0 * stream * num_losses,
        logits=per_logit * s.tokens * model.vocab_size / s.tp * num_losses,
        weight_gradient=np.where(shards_weights(s), 0.0, BF16_BYTES * model.head_params / s.tp),
        gathered=np.where(s.split_tokens < s.tokens, 2.0 * BF16_BYTES * s.tokens * model.hidden, 0.0),
    )
