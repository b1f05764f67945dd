"""FLOPs that torch counts over the modules a trace runs; the product needs their bytes alone."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from primus_search.measure.device.torch_device import default_dtype
from primus_search.measure.modules.layers import Layer
from primus_search.measure.modules.shard import Shard
from primus_search.measure.trace import hidden_states
from primus_search.values.candidates import GroupedGemm
from primus_search.values.model import LayerKind, Model
from tests.support.attention_kernel import count_attention

count_attention()


def layer_flops(model: Model, shard: Shard, kind: LayerKind) -> tuple[float, float]:
    """FLOPs of forward and backward of one decoder layer; backward includes what recomputation runs again."""
    shard = replace(shard, expert_kernel=GroupedGemm.TURBO)
    return module_flops(lambda: Layer(model, shard, kind), lambda: (hidden_states(model, shard),), shard)


def module_flops(
    build: Callable[[], nn.Module], inputs: Callable[[], tuple[Tensor, ...]], shard: Shard
) -> tuple[float, float]:
    """FLOPs of forward and of the whole backward of any module, in the dtype of the shard."""
    with default_dtype(shard.dtype), FakeTensorMode():
        module, tensors = build(), inputs()
        with FlopCounterMode(display=False) as counter:
            out = module(*tensors)
            forward = counter.get_total_flops()
            out.backward(torch.empty_like(out))
            return float(forward), float(counter.get_total_flops() - forward)
