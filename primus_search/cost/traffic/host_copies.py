"""Copies of offloaded activations, which go to the host in forward and back in backward.

Both directions have copy engines of their own, which take no compute units, and a module's copy starts when the module
is done:

    forward max(0, bytes / rate - forward_s), backward likewise

Source: Megatron-LM core/pipeline_parallel/fine_grained_activation_offload.py (streams d2h and h2d, reload one group
ahead). Valid: not compared with a measured pair; published runs with offloading changed other settings as well.
"""

from primus_search.cost.memory.activations import offloaded_bytes
from primus_search.cost.memory.share import Share
from primus_search.cost.traffic.comm_table import LayerTraffic, comm, exposed_s
from primus_search.values.candidates import Candidates, Floats
from primus_search.values.job import Job
from primus_search.values.model import LayerKind


def host_copies(job: Job, kind: LayerKind, c: Candidates, *, forward_s: Floats, backward_s: Floats) -> LayerTraffic:
    """Copies of one layer and micro-batch to the host and back, and what of each shows."""
    s = Share.of(job, c)
    moved = offloaded_bytes(job.model, job.stack, kind, s, job.workload.seq_length)
    seconds = moved / job.cluster.network.host_copy_bytes_per_s
    count = 1.0 * (moved > 0)
    left_forward, left_backward = (exposed_s(seconds, hiding_s, overlap=1.0) for hiding_s in (forward_s, backward_s))
    return LayerTraffic(
        forward=comm("activations to the host", moved, count, seconds, left_forward),
        backward=comm("activations from the host", moved, count, seconds, left_backward),
    )
