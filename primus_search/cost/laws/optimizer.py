"""Seconds of an optimizer step: it reads gradients, master weights and moments, and writes them back."""

import numpy as np
from numpy.typing import ArrayLike

from primus_search.cost.laws.gemm import gemm_s
from primus_search.cost.laws.memory_bound import Stream, bandwidth_bytes_per_s
from primus_search.values.candidates import Floats, Ints
from primus_search.values.machine.accelerator import Accelerator
from primus_search.values.machine.network import Network
from primus_search.values.machine.stack import Stack
from primus_search.values.machine.state_formats import master_bytes, state_bytes

# Passes of an optimizer written as one kernel per arithmetic step, over the fused one.
UNFUSED_PASSES = 2.5
WEIGHT_BYTES = 2.0


def bytes_per_param(stack: Stack, formats: Ints, scaling: Ints, moments: Floats | float = 2.0) -> Floats:
    """HBM bytes per updated parameter: gradient twice (norm, then update), master and moments in and out, new weight.

    Adam (arXiv:1412.6980) in mixed precision (arXiv:1710.03740): 4 + 4 + 2*4 + 2*2*4 + 2 = 34 with FP32 everywhere.
    """
    moment, gradient = (state_bytes(stack, name, formats) for name in ("moment_bytes", "gradient_bytes"))
    state = 2.0 * master_bytes(stack, formats, scaling) + 2.0 * moments * moment
    total = 2.0 * gradient + state + WEIGHT_BYTES
    return total if stack.kernels.has_fused_optimizer else total * UNFUSED_PASSES


def optimizer_s(
    acc: Accelerator, stack: Stack, params_per_rank: Floats, formats: Ints, scaling: Ints, moments: Floats | float = 2.0
) -> Floats:
    """Seconds to update `params_per_rank` parameters, whose state this rank owns.

    formats, scaling: `StateFormat` and `Fp8` codes."""
    rate = bandwidth_bytes_per_s(acc, Stream.OPTIMIZER) * stack.efficiencies.memory_efficiency
    return np.asarray(params_per_rank, np.float64) * bytes_per_param(stack, formats, scaling, moments) / rate


ORTHOGONAL_STEPS = 5
"""Newton-Schulz iterations of Muon: `muon_num_ns_steps` of Megatron-LM, `ns_steps` of torch.optim.Muon."""


MATRIX_MOMENTS = np.array([2.0, 1.0, 1.0, 1.0, 2.0, 1.0])
"""Moments per parameter of a matrix, by code of `Optimizer`; Megatron-Core optimizer/emerging_optimizers.py."""
END_MOMENTS = np.array([2.0, 1.0, 2.0, 2.0, 2.0, 2.0])
"""Moments of embedding, head and norms: Adam's where matrices have an optimizer of their own (`_is_muon_excluded`)."""
IS_ORTHOGONAL = np.array([False, False, True, True, True, False])
"""Whether an optimizer orthogonalises matrices, by code of `Optimizer`."""


def newton_schulz_s(acc: Accelerator, rows: ArrayLike, columns: ArrayLike) -> Floats:
    """Seconds to orthogonalise one matrix, whole, on one device.

    Formula: 5 steps of A = X X^T, A A and B X with X of m x n, m <= n: 5 (4 m^2 n + 2 m^3) FLOPs in BF16
    Source: Jordan et al. 2024 (kellerjordan.github.io/posts/muon); NVIDIA-NeMo/Emerging-Optimizers newton_schulz.
    Valid: not yet compared with a measured kernel; symmetric products (SYRK, 1.03 to 1.08 on MI250) are not counted.
    """
    m, n = np.minimum(rows, columns), np.maximum(rows, columns)
    step = gemm_s(acc, m, m, n) + gemm_s(acc, m, m, m) + gemm_s(acc, m, n, m)
    return ORTHOGONAL_STEPS * step


HOST_UPDATE_BYTES, HOST_COPY_BYTES = 28.0, 8.0
"""Per parameter that the host updates: weight and moments in and out and the gradient in, all FP32; and what crosses
the host link, an FP32 gradient one way and an FP32 weight the other."""


def host_update_s(network: Network, params_per_rank: Floats) -> Floats:
    """Seconds in which the host updates parameters of one device, copies included, with nothing beside it.

    Source: Megatron-Core optimizer/cpu_offloading/hybrid_optimizer.py; overlapping the copies with the update gives
    7 % (NVIDIA-NeMo/Megatron-Bridge#3062), nothing in NVIDIA-NeMo/RL#3628, and is not counted.
    """
    seconds_per_param = HOST_UPDATE_BYTES / network.host_update_bytes_per_s
    return params_per_rank * (seconds_per_param + HOST_COPY_BYTES / network.host_copy_bytes_per_s)
