"""Bytes per parameter of gradients, weights and optimizer state: the software's, or those a candidate's format sets.

A format replaces single numbers of the stack: `BF16_MOMENTS` those of Adam's state, so that the rest stays the
software's. Sources: NVIDIA/Megatron-LM megatron/core/optimizer/optimizer_config.py (use_precision_aware_optimizer,
main_grads_dtype, exp_avg_dtype; fp8_recipe), NVIDIA/TransformerEngine pytorch/optimizers/fused_adam.py
(store_param_remainders), megatron/training/arguments.py (grad_reduce_in_bf16) and core/distributed/
distributed_data_parallel.py (gradients are reduced in the type that they accumulate in); pure BF16 training keeps no
FP32 copy; MaxText configs/base.yml (weight_dtype float32: the weights are updated themselves).
"""

from collections.abc import Mapping

import numpy as np

from primus_search.values.candidates import Floats, Ints
from primus_search.values.knobs import Fp8, StateFormat
from primus_search.values.machine.stack import Stack, number_of

_BF16 = {"gradient_bytes": 2.0, "sharded_gradient_bytes": 2.0, "moment_bytes": 2.0, "weight_bytes": 2.0}
_FP32 = {"gradient_bytes": 4.0, "sharded_gradient_bytes": 4.0, "moment_bytes": 4.0, "weight_bytes": 4.0}
_LOW = {"moment_bytes": 2.0, "master_weight_bytes": 2.0}
FORMATS: Mapping[StateFormat, Mapping[str, float]] = {
    StateFormat.BF16_MOMENTS: _LOW,
    StateFormat.BF16_STATE: _LOW | {"gradient_bytes": 2.0, "gradient_comm_bytes": 2.0},
    StateFormat.BF16_REDUCTION: {"gradient_bytes": 2.0, "gradient_comm_bytes": 2.0},
    StateFormat.BF16_ALL: _BF16 | {"gradient_comm_bytes": 2.0, "master_weight_bytes": 0.0},
    StateFormat.FP32_ALL: _FP32 | {"master_weight_bytes": 0.0},
}
"""Numbers of the stack that a format replaces, bytes per parameter."""


def state_bytes(stack: Stack, name: str, formats: Ints) -> Floats:
    """Bytes per parameter of one number of the stack (`moment_bytes`), a row per candidate's format."""
    kept: Floats = np.broadcast_to(np.asarray(number_of(stack, name), dtype=np.float64), np.shape(formats))
    if not formats.any():
        return kept
    for code, numbers in FORMATS.items():
        if name in numbers:
            kept = np.where(formats == code, numbers[name], kept)
    return kept


def master_bytes(stack: Stack, formats: Ints, scaling: Ints) -> Floats:
    """Bytes per parameter of master weights, by format and FP8 scaling.

    The precision-aware optimizer keeps the 16 bits that BF16 weights lack; whole ones where FP8 scales are not delayed;
    beside main weights that software has in buffers, it has its own (`fused_master_bytes`).
    """
    is_whole = np.isin(scaling, _WHOLE_MASTERS) & np.isin(formats, (StateFormat.BF16_MOMENTS, StateFormat.BF16_STATE))
    kept = state_bytes(stack, "master_weight_bytes", np.where(is_whole, StateFormat.STACK, formats))
    return kept + stack.precision.fused_master_bytes


_WHOLE_MASTERS = (Fp8.HYBRID, Fp8.BLOCKWISE, Fp8.ROWWISE, Fp8.MXFP8)


def is_stacks_own(stack: Stack, word: str) -> bool:
    """Whether a format has the bytes that the stack has anyway (gradients reduced in BF16 where it reduces them so)."""
    numbers = FORMATS.get(StateFormat[word.upper()], {})
    return all(number_of(stack, name) == value for name, value in numbers.items())
