"""Memory of vision towers on the first stage: their state, and what their layers keep for backward, in bytes.

Layers of an encoder keep what a dense decoder layer keeps, in BF16 and without recompute; a frozen tower keeps nothing.
"""

import numpy as np

from primus_search.cost.memory.activations import layer_activations
from primus_search.cost.memory.parameters import ModelState, state
from primus_search.cost.memory.share import BF16_BYTES, Share
from primus_search.values.candidates import Floats, Recompute
from primus_search.values.machine.stack import Stack
from primus_search.values.model import Model, Tower, encoder_model
from primus_search.values.workload import Workload


def tower_state(tower: Tower, stack: Stack, s: Share) -> ModelState:
    """A tower, split over tp where its heads are; a frozen one is BF16 weights alone, whole on every replica."""
    count = tower.params / tower.ranks(s.tp.astype(np.int64))
    if tower.is_trained:
        return state(stack, s, count, s.shards)
    nothing = np.zeros_like(count)
    return ModelState(weights=count * BF16_BYTES, gradients=nothing, optimizer=nothing, count=nothing)


def towers_kept(model: Model, stack: Stack, workload: Workload, s: Share) -> Floats:
    """Activations that one micro-batch's images keep for backward."""
    found = np.zeros_like(s.tokens)
    for tower in model.towers:
        if tower.is_trained:
            found = found + _kept(tower, stack, workload, s)
    return found


def _kept(tower: Tower, stack: Stack, workload: Workload, s: Share) -> Floats:
    """Inputs of the patch embedding and of the projector's matrices, and what every encoder layer keeps."""
    image_tokens = s.tokens * s.cp * (workload.image_tokens / workload.seq_length)
    tokens, ranks = image_tokens * tower.merge, tower.ranks(s.tp.astype(np.int64)).astype(np.float64)
    encoder = encoder_model(tower)
    own = s.replaced(
        tp=ranks,
        cp=np.ones_like(s.cp),
        tokens=tokens,
        split_tokens=tokens,
        kv_heads=tower.num_heads / ranks,
        recompute=np.full_like(s.recompute, int(Recompute.NONE)),
        is_fp8=np.zeros_like(s.is_fp8),
    )
    layer = layer_activations(encoder, stack, encoder.kinds[0], own, int(tower.patches(workload)))
    ends = tokens * tower.patch_inputs + image_tokens * float(sum(k for _, k in tower.projector))
    return tower.num_layers * layer.kept + BF16_BYTES * ends
