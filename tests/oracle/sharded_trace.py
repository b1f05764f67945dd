"""What FSDP2 adds to a layer's memory, from torch itself: its own `fully_shard`, on fake tensors and a fake group.

A short run of equal layers is sharded over as many ranks as the candidate has and runs forward and backward under
`FakeTensorMode`. The process group has all the ranks and sends nothing ("fake" backend), so a rank of 1024 needs
neither devices nor memory. Every storage is followed through the step; those that a collective or one of FSDP's copies
reads or writes are the buffers: gathered weights, all-gather outputs of the layer at work and of the next one,
gradients not yet reduced, reduce-scatter inputs. What outlives the step (sharded weights and their gradients) is no
buffer.

    traced = trace_sharded(model, shard, kind, Sharded(ranks=64, expert_ranks=64))
    traced.buffers_bytes        against `cost.memory.buffers.gathered_bytes`

torch issues all of this in program order whatever the device, and FSDP2 frees by reference, not by stream: a caching
allocator sees the same order of allocations on a GPU.
Source: PyTorch FSDP2, torch/distributed/fsdp/_fully_shard (`fsdp` operators, implicit prefetch).
"""

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from primus_search.measure.device.device_info import CPU
from primus_search.measure.device.torch_device import DTYPES, default_dtype
from primus_search.measure.modules.fused_operations import MissingKernelError
from primus_search.measure.modules.layers import Layer
from primus_search.measure.modules.shard import DtypeName, Shard
from primus_search.values.candidates import GroupedGemm, Recompute
from primus_search.values.model import LayerKind, Model

LAYERS = 3
"""The one in the middle has a neighbour that is gathered ahead and one that is being reduced."""

OWNERS = ("fsdp::", "c10d::")
"""Operators that only sharding calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharded:
    """How weights are dealt: ranks that share a dense weight, ranks that share an expert's, number formats."""

    ranks: int
    expert_ranks: int
    weight_dtype: DtypeName = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedSharding:
    """What sharding holds on one device while a layer works, in bytes.

    resident_bytes  of one layer: its share of weights and of their gradients
    buffers_bytes   highest sum of what comes and goes, in the whole step
    """

    resident_bytes: float
    buffers_bytes: float


@lru_cache(maxsize=256)
def trace_sharded(model: Model, shard: Shard, kind: LayerKind, how: Sharded) -> TracedSharding:
    """One layer of that kind among equal ones under FSDP2. Raises MissingKernelError where it cannot be traced."""
    if shard.recompute & Recompute.OP_SAC:
        raise MissingKernelError("per-operation checkpointing is not traced")
    if dist.is_initialized():
        raise MissingKernelError("sharded layers are traced in a process without a process group of its own")
    shard = replace(shard, expert_kernel=GroupedGemm.TURBO)
    with _fake_group(how) as meshes, default_dtype(how.weight_dtype), FakeTensorMode():
        layers = nn.Sequential(*(Layer(model, shard, kind) for _ in range(LAYERS)))
        for layer in layers:
            _shard(layer, meshes, shard, how)
        fully_shard(layers, mesh=meshes[0])  # what makes them one model: prefetching, and freeing after forward
        if how.expert_ranks != how.ranks:
            _prefetch(layers)
        return _step(layers, model, shard)


def _shard(layer: nn.Module, meshes: tuple[DeviceMesh, DeviceMesh], shard: Shard, how: Sharded) -> None:
    """`fully_shard` as trainers use it: a group a layer, experts in one of their own where fewer ranks share them."""
    dense, experts = meshes
    policy = MixedPrecisionPolicy(param_dtype=DTYPES[shard.dtype], reduce_dtype=torch.float32)
    assert isinstance(layer, Layer)
    if layer.experts is not None and how.expert_ranks != how.ranks:
        fully_shard(layer.experts, mesh=experts, mp_policy=policy)
    fully_shard(layer, mesh=dense, mp_policy=policy)


def _prefetch(layers: nn.Sequential) -> None:
    """With experts in a group of their own both groups of the next layer are gathered ahead.

    Source: pytorch/torchtitan, models/llama4/infra/parallelize.py, explicit prefetching where expert parallelism is on.
    """
    groups: list[list[FSDPModule]] = []
    for layer in layers:
        assert isinstance(layer, Layer) and isinstance(layer, FSDPModule)
        groups.append([layer, layer.experts] if isinstance(layer.experts, FSDPModule) else [layer])
    for this, following in pairwise(groups):
        this[0].set_modules_to_forward_prefetch(following)
        following[0].set_modules_to_backward_prefetch(this)


def _step(layers: nn.Module, model: Model, shard: Shard) -> TracedSharding:
    x = torch.empty(shard.micro_batch_size, shard.resident_seq, model.hidden, dtype=DTYPES[shard.dtype])
    x.requires_grad_()
    # A collection in the middle would free cycles at random points and move the peak.
    gc.collect()
    with Diary() as diary, warnings.catch_warnings():
        # Experts return a view; nothing here writes into it.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        out = layers(x)
        torch.autograd.backward(out, torch.empty_like(out))
        del out
        gc.collect()
    owners = [tensor for parameter in layers.parameters() for tensor in (parameter, parameter.grad)]
    storages = [local.untyped_storage() for tensor in owners for local in _plain(tensor)]
    return TracedSharding(
        resident_bytes=sum({storage._cdata: storage.nbytes() for storage in storages}.values()) / LAYERS,
        buffers_bytes=float(max(diary.owned_bytes())),
    )


class Diary(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """How large every storage was after each operation, and which of them belong to sharding.

    now  operations so far
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self._weak: dict[int, StorageWeakRef] = {}
        self._watched: set[int] = set()
        self._sizes: dict[int, list[tuple[int, int]]] = {}
        self._owned: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        is_owner = func.name().startswith(OWNERS)
        for leaf in tree_leaves((args, kwargs, out)):
            for tensor in _plain(leaf):
                storage = tensor.untyped_storage()
                key = storage._cdata
                # A weak reference keeps the address taken, so no other storage ever has the same key.
                if key not in self._weak:
                    self._weak[key] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
                    self._sizes[key] = []
                    self._watched.add(key)
                if is_owner:
                    self._owned.add(key)
        self._sample()
        self.now += 1
        return out

    def _sample(self) -> None:
        """Note every storage whose size has changed; one that is gone has none."""
        for key in list(self._watched):
            # _new_with_weak_ptr is how torch itself turns a weak storage reference back into a storage.
            storage = torch.UntypedStorage._new_with_weak_ptr(self._weak[key].cdata)
            size, known = 0 if storage is None else storage.nbytes(), self._sizes[key]
            if not known or known[-1][1] != size:
                known.append((self.now, size))
            if storage is None:
                self._watched.discard(key)

    def owned_bytes(self) -> list[int]:
        """After each operation, the bytes of sharding's storages but those that are still there at the end."""
        changes = [0] * (self.now + 1)
        for key in self._owned:
            if self._sizes[key][-1][1]:
                continue
            before = 0
            for when, size in self._sizes[key]:
                changes[when] += size - before
                before = size
        total, sums = 0, []
        for change in changes:
            total += change
            sums.append(total)
        return sums


def _plain(leaf: Any) -> Iterator[Tensor]:
    """The tensors with memory behind a value: a distributed tensor is a wrapper of its local one."""
    if not isinstance(leaf, Tensor):
        return
    if not is_traceable_wrapper_subclass(leaf):
        yield leaf
        return
    for name in leaf.__tensor_flatten__()[0]:
        yield from _plain(leaf.__getattribute__(name))


@contextmanager
def _fake_group(how: Sharded) -> Iterator[tuple[DeviceMesh, DeviceMesh]]:
    """Meshes of the ranks that share dense weights, and of those that share experts, none of which exist."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=how.ranks, store=FakeStore())
    try:
        whole = init_device_mesh(CPU, (how.ranks // how.expert_ranks, how.expert_ranks), mesh_dim_names=("ep", "edp"))
        yield init_device_mesh(CPU, (how.ranks,)), whole["edp"]
    finally:
        dist.destroy_process_group()
