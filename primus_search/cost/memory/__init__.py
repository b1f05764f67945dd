"""Device memory of a training step: one effect per module, in bytes, on the worst pipeline rank.

share        what one device sees of model and micro-batch       parameters   weights, gradients, optimizer
activations  what waits for backward, tensor by tensor           logits       head and loss
buffers      collectives, gradients in flight, context            price        bytes of each
live         micro-batches each pipeline rank holds              mixer_memory parameters and saved tensors of mixers
chunk_memory all of it over chunks of candidates                 rank_memory  of one candidate, rank by rank
fit          probability that a candidate fits
"""

from primus_search.cost.memory.activations import layer_activations, saved_tensors
from primus_search.cost.memory.chunk_memory import MemoryTable
from primus_search.cost.memory.fit import fit_probability, fit_verdict
from primus_search.cost.memory.rank_memory import memories_by_rank, memory_by_rank
from primus_search.cost.memory.share import Share

__all__ = [
    "MemoryTable",
    "Share",
    "fit_probability",
    "fit_verdict",
    "layer_activations",
    "memories_by_rank",
    "memory_by_rank",
    "saved_tensors",
]
