"""Device memory of a training step: one effect per module, in bytes, on the worst pipeline rank.

share        what one device sees of model and micro-batch       parameters   weights, gradients, optimizer
activations  what waits for backward, tensor by tensor           logits       head and loss
buffers      collectives and weight gradients in flight          runtime      context, communicators, slack
live, ranks  micro-batches and layers each pipeline rank holds   price        bytes of each
project      all of it over tables of candidates                 fit          does it fit, and how surely
"""

from primus_search.cost.memory.activations import LayerActivations, Saved, layer_activations, saved_tensors
from primus_search.cost.memory.project import MemoryTable, memory_by_rank, project_memory
from primus_search.cost.memory.share import Share, share

__all__ = [
    "LayerActivations",
    "MemoryTable",
    "Saved",
    "Share",
    "layer_activations",
    "memory_by_rank",
    "project_memory",
    "saved_tensors",
    "share",
]
