"""What the driver holds on one device beside the framework's allocator, in bytes."""

import numpy as np

from primus_search.cost.memory.share import Share
from primus_search.values.candidates import Floats
from primus_search.values.machine.accelerator import Accelerator
from primus_search.values.machine.stack import Stack


def context_bytes(accelerator: Accelerator, stack: Stack, s: Share) -> Floats:
    """What no tensor of the model explains: device context, buffers of one communicator per group with more than one
    member, what the stack adds to them.

    Groups: world, tensor, context, pipeline, data, expert and expert-data parallel. The world's own communicator is
    there as soon as there is more than one device.

    An allocator with a pool of its own (`device_share`) takes it when it starts: these have what is beside it, all of
    which is lost to the pool. Source: JAX, "GPU memory allocation", XLA_PYTHON_CLIENT_MEM_FRACTION.
    """
    if stack.memory.device_share < 1.0:
        return np.full_like(s.tp, accelerator.hbm_bytes * (1.0 - stack.memory.device_share))
    groups = [s.tp > 1, s.cp > 1, s.pp > 1, s.dp > 1, s.ep > 1, (s.ep > 1) & (s.edp > 1)]
    devices = s.tp * s.cp * s.dp * s.pp
    number = np.sum(groups, axis=0) + (devices > 1)
    communicators: Floats = accelerator.footprint.communicator_bytes * number
    return accelerator.footprint.context_bytes + stack.memory.driver_bytes + communicators
