"""Room that whole matrices leave empty in the buffers of weights and gradients, on every rank.

Megatron's layer-wise optimizers (Muon, Lion with the distributed optimizer) deal matrices whole to the replicas. A
buffer has a shard of one size for each replica, with room for the largest matrix: where a chunk of a rank has fewer
parameters than its replicas times that matrix, shards stay partly empty. The replica with that matrix holds its state
whole.
Formula: empty = chunks * max(replicas * largest - parameters of a chunk, 0)
Source: NVIDIA/Megatron-LM d98e8a64 core/optimizer/layer_wise_optimizer.py `_compute_per_buffer_param_layout`.
Valid: ranks whose matrices fill one bucket. Those that fill several, under overlapped reduction on the first pipeline
rank, have further 0 to 15 % of a buffer empty (8B on 8 and 16 replicas, 70B on 4), which is not counted.
"""

from collections import defaultdict

import numpy as np

from primus_search.cost.memo import in_order
from primus_search.cost.memory.mixer_memory import projection_ranks
from primus_search.cost.memory.parameters import ModelState, layer_dense_params, layer_expert_params, state
from primus_search.cost.memory.share import Share
from primus_search.values.candidates import Floats, Optimizer, Sharding
from primus_search.values.machine.stack import Stack
from primus_search.values.model import Mixer, Model


def empty_room(model: Model, stack: Stack, s: Share) -> dict[str, ModelState]:
    """Bytes beside what a rank's parameters need, by the unit that has the matrices: any layer, dense MLPs, experts."""
    is_dealt = (s.sharding == Sharding.DISTRIBUTED_OPTIMIZER) & (s.optimizer > Optimizer.SGD)
    is_dealt |= (s.optimizer == Optimizer.DIST_MUON) & stack.memory.pads_dealt_matrices
    of_mlp = (model.num_mlp_matrices - 1) / model.num_mlp_matrices
    moe, kinds = model.moe, {kind: model.layers.count(kind) for kind in model.kinds}
    beside = of_mlp * model.shared_expert_params / s.tp
    largest = np.maximum.reduce([beside, *(_largest(model.mixer(kind), model.hidden, s) for kind in kinds)])
    stages = s.pp * s.vpp
    dense = in_order(layer_dense_params(model, kind, s) * many for kind, many in kinds.items()) / stages
    room = np.maximum(s.shards * largest - dense, 0.0)
    with_mlp = np.maximum(s.shards * np.maximum(largest, of_mlp * model.dense_mlp_params / s.tp) - dense, 0.0)
    found = {"attention_present": (s.vpp * room, s.shards), "mlp_present": (with_mlp - room, s.shards)}
    if moe is not None:
        experts = layer_expert_params(model, s) * sum(many for kind, many in kinds.items() if kind.is_moe) / stages
        widest = of_mlp * model.expert_params / s.etp
        found["experts_present"] = s.vpp * np.maximum(s.expert_shards * widest - experts, 0.0), s.expert_shards
    return {unit: state(stack, s, is_dealt * empty, shards) for unit, (empty, shards) in found.items()}


def _largest(mixer: Mixer, hidden: int, s: Share) -> Floats:
    """Parameters of a mixer's largest matrix on one device; projections of one group are one matrix."""
    groups: dict[str, Floats] = defaultdict(lambda: np.zeros_like(s.tp))
    for one in mixer.projections(hidden):
        groups[one.group] = groups[one.group] + one.params / projection_ranks(one, s)
    found: Floats = np.maximum.reduce([np.zeros_like(s.tp), *groups.values()])
    return found
