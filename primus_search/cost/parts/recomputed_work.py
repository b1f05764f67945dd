"""Forward work that backward repeats because its activations were not kept.

    core attention (Megatron's `selective`)  scores, softmax, values
    full                                     the whole layer, its collectives included
    modules                                  the named modules of Megatron-Core: MLA up-projections, MLP, expert
                                             activation, norms
    per-operation (torchtitan)               everything but attention's core and every second matrix product; grouped
                                             products of experts and their exchanges too
Source: Korthikanti et al. 2022 (arXiv:2205.05198) section 5; Megatron-Core `recompute_modules`; torchtitan
`activation_checkpoint.selective_ac_option = "op"` and the operations it keeps, models/*/infra/parallelize.py.
"""

import numpy as np

from primus_search.cost.memo import in_order
from primus_search.cost.parts.operations import Module
from primus_search.values.candidates import Floats, Ints, Recompute

_REPEATS: dict[Recompute, dict[Module, float]] = {
    Recompute.CORE_ATTENTION: {Module.CORE: 1.0},
    Recompute.MLA_UP_PROJ: {Module.MLA_UP: 1.0},
    Recompute.MLP: {Module.MLP: 1.0, Module.ACTIVATION: 1.0},
    Recompute.MOE_ACTIVATION: {Module.EXPERT_ACTIVATION: 1.0},
    Recompute.LAYERNORM: {Module.NORM: 1.0},
    Recompute.OP_SAC: {
        Module.LINEAR: 0.5,
        Module.MLA_UP: 0.5,
        Module.MLP: 0.5,
        Module.EXPERTS: 1.0,  # one grouped product, not an `mm`: never kept
        Module.NORM: 1.0,
        Module.ACTIVATION: 1.0,
        Module.EXPERT_ACTIVATION: 1.0,
        Module.ROUTER: 1.0,
        Module.ELEMENTWISE: 1.0,
        Module.EXPERT_COMM: 1.0,  # of collectives only reduce-scatters are kept
    },
    Recompute.FULL: dict.fromkeys(Module, 1.0),
}


def recompute_s(forward_module_s: Floats, recompute: Ints) -> Floats:
    """Seconds one recomputed layer adds to its backward, per candidate; 0 where nothing is recomputed.

    forward_module_s  (modules, rows) of `work.Work`
    """
    total = np.zeros(len(recompute))
    shares = np.zeros((len(Module), len(total)))
    for flag, repeats in _REPEATS.items():
        is_on = ((recompute & int(flag)) > 0).astype(np.float64)
        for module, share in repeats.items():
            shares[module] = np.maximum(shares[module], share * is_on)
    keeps_experts = ((recompute & int(Recompute.OP_SAC_EXPERTS)) > 0) & ((recompute & int(Recompute.FULL)) == 0)
    shares[Module.EXPERTS] = np.where(keeps_experts, 0.0, shares[Module.EXPERTS])
    return in_order([total, *(shares * forward_module_s)])
