"""The traced rung of evidence: activation bytes of a layer at its true size, with no memory allocated.

The layer's modules run forward and backward on torch's meta device: shapes and dtypes are real, storage is not. Every
storage an operation creates is watched; what is still alive when forward has returned is what backward needs, and the
highest sum on the way is the working set.

    traced = trace_layer(model, Shard(micro_batch_size=1, seq_length=8192, tp=8, sequence_parallel=True), kind)
    traced.activation_bytes, traced.workspace_bytes

Conventions: the layer's input counts, its output does not (it is the next layer's input); parameters, their gradients
and rotary tables do not count.
"""

import gc
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from primus_search.measure.device.torch_device import default_dtype
from primus_search.measure.modules.fused_operations import MissingKernelError, Trace
from primus_search.measure.modules.layers import Layer
from primus_search.measure.modules.shard import Shard
from primus_search.measure.traced_layer import TracedLayer
from primus_search.values.candidates import GroupedGemm, Recompute
from primus_search.values.model import LayerKind, Model


class StorageWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows every storage that an operation returns: which are alive, how large they are, how high they stood."""

    def __init__(self, *, ignored: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ignored = {tensor.untyped_storage()._cdata for tensor in ignored}
        self._live: dict[int, StorageWeakRef] = {}
        self.peak_bytes = 0.0

    def watch(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._ignored and storage._cdata not in self._live:
            self._live[storage._cdata] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.watch(leaf)
        self.peak_bytes = max(self.peak_bytes, self.live_bytes())
        return out

    def live_bytes(self) -> float:
        """Bytes of all watched storages that somebody still holds; a storage resized to nothing counts as nothing."""
        total = 0.0
        for key, weak in list(self._live.items()):
            # _new_with_weak_ptr is how torch itself turns a weak storage reference back into a storage.
            storage = torch.UntypedStorage._new_with_weak_ptr(weak.cdata)
            if storage is None:
                del self._live[key]
            else:
                total += storage.nbytes()
        return total


@lru_cache(maxsize=4096)
def trace_layer(model: Model, shard: Shard, kind: LayerKind) -> TracedLayer:
    """One decoder layer of that kind; looped experts hold the same tensors as grouped ones, which trace faster."""
    if shard.recompute & Recompute.OP_SAC:
        raise MissingKernelError("per-operation checkpointing is not traced")
    shard = replace(shard, expert_kernel=GroupedGemm.TURBO)
    return trace_module(lambda: Layer(model, shard, kind), lambda: (hidden_states(model, shard),), shard)


def hidden_states(model: Model, shard: Shard) -> Tensor:
    """What a layer takes in."""
    return torch.empty(shard.micro_batch_size, shard.resident_seq, model.hidden, requires_grad=True)


def trace_module(build: Callable[[], nn.Module], inputs: Callable[[], tuple[Tensor, ...]], shard: Shard) -> TracedLayer:
    """Any module that `build` makes, on the tensors that `inputs` makes; in the dtype of the shard."""
    collects = gc.isenabled()
    gc.disable()  # a collection in the middle of a pass would free cycles at random points and move the peak
    try:
        with default_dtype(shard.dtype), torch.device("meta"), Trace():
            kept, forward_peak, backward_peak = _bytes(build(), inputs())
    finally:
        if collects:
            gc.enable()
    return TracedLayer(activation_bytes=kept, forward_peak_bytes=forward_peak, backward_peak_bytes=backward_peak)


def _bytes(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[float, float, float]:
    """Bytes kept for backward, highest live sum in forward, highest in backward.

    Backward asks for the input's gradient only: gradients of parameters are accumulated in place by the frameworks
    and belong to another account than activations.
    """
    with StorageWatch(ignored=[*module.parameters(), *module.buffers()]) as watch:
        for tensor in inputs:
            watch.watch(tensor)
        out = module(*inputs)
        activations, forward_peak = watch.live_bytes() - out.untyped_storage().nbytes(), watch.peak_bytes
        grad = torch.empty_like(out)
        watch.peak_bytes = watch.live_bytes()
        wanted = [tensor for tensor in inputs if tensor.requires_grad]
        if wanted:
            torch.autograd.backward(out, grad, inputs=wanted)
    return activations, forward_peak, watch.peak_bytes
