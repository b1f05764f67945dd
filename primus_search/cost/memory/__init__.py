"""Device memory of a training step: one effect per module, in bytes, on the worst pipeline rank.

share        what one device sees of model and micro-batch       parameters    weights, gradients, optimizer
activations  what waits for backward, tensor by tensor           logits        head and loss; vision towers
buffers      collectives, gradients in flight, context           mixer_memory  parameters and saved tensors of mixers
rank_moments micro-batches and layers that each rank holds       price         bytes of each
chunk_memory all of it over chunks of candidates, and of one candidate rank by rank
"""

from primus_search.cost.memory.activations import layer_activations, saved_tensors
from primus_search.cost.memory.chunk_memory import MemoryTable, memories_by_rank, memory_by_rank
from primus_search.cost.memory.share import Share
from primus_search.cost.projection import fit_probability, fit_verdict

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
