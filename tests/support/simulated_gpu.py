"""A GPU that is not there: every operation runs on tensors without storage and takes the time that a known law says.

Real code paths of a device run at full size on any machine: tensors lie on torch's `meta` device, a dispatch mode
charges each kernel its seconds (products and attention by the cost model's laws of a chosen accelerator, everything
else by the bytes it reads and writes), and follows every storage as a caching allocator would. What torch says of a
device (events, memory, properties) is answered from that account. So a sweep, a fit, layers and training steps can be
held against projections whose every input is known: what differs is what one of the two sides forgot.
"""

import random
import sys
from collections.abc import Callable
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from primus_search.cost.laws.attention import attention_s
from primus_search.cost.laws.expert_products import expert_products_s
from primus_search.cost.laws.gemm import gemm_s
from primus_search.measure import isolate
from primus_search.measure.device import device_info
from primus_search.measure.device.timing import ClockReading
from primus_search.measure.isolate import ProcessOutcome, ProcessVerdict
from primus_search.measure.modules import attention_modules, products
from primus_search.values.candidates import Fp8, GroupedGemm
from primus_search.values.machine.accelerator import Accelerator
from tests.support.attention_kernel import count_attention

count_attention()

aten = torch.ops.aten
ROUNDING = 512  # bytes, of CUDA's caching allocator
CONTEXT_BYTES = 0.6e9
HEALTHY = {"clock_mhz": 1755.0, "power_w": 690.0, "temperature_c": 61.0, "reasons": 0x4}
_OVERWRITE = {"aten::copy_", "aten::zero_", "aten::fill_"}
_FREE = {"aten::detach", "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty"}


class SimulatedGpu(TorchDispatchMode):
    """Charges every operation and follows every storage. `noise` is the standard deviation of ln(seconds)."""

    def __init__(self, acc: Accelerator, *, noise: float = 0.0, overhead: Callable[[str], float] = lambda _: 1.0):
        super().__init__()
        self.acc, self.noise, self.overhead = acc, noise, overhead
        self.random = random.Random(0)
        self.now_s = self.peak = 0.0
        self.live: dict[int, tuple[Any, int]] = {}
        self.known: dict[tuple[Any, ...], float] = {}
        self.seconds_by_op: dict[str, float] = {}
        self.memory_rate = acc.hbm_bytes_per_s * acc.memory.stream_efficiency

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func._schema.name
        if name == "aten::_local_scalar_dense":
            return True if args[0].dtype == torch.bool else 1.0
        if name == "aten::_fused_adamw_":
            weights, gradients, *moments = args[:4]
            written = [weights, *moments]
            self._charge(name, sum(t.nbytes for t in gradients) + sum(2 * t.nbytes for group in written for t in group))
            return None
        out = func(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        before = {t.untyped_storage()._cdata for t in tensors}
        is_new = any(t.untyped_storage()._cdata not in before for t in made)
        for t in made:
            self._follow(t)
        if name in _FREE or not (is_new or func._schema.is_mutable):
            return out
        if name in _LAWS:
            key = (name, *((t.shape, t.dtype) for t in tensors))
            if key not in self.known:
                self.known[key] = _LAWS[name](self.acc, args, kwargs)
            self._take(name, self.known[key])
        else:
            written_over = args[0] if name in _OVERWRITE else kwargs.get("out")
            read = sum(_bytes(t) for t in tensors if t is not written_over)
            self._charge(name, read + sum(_bytes(t) for t in made))
        return out

    def _charge(self, name: str, num_bytes: float) -> None:
        self._take(name, self.acc.memory.latency_s + num_bytes / self.memory_rate)

    def _take(self, name: str, seconds: float) -> None:
        seconds *= self.overhead(name) * (self.random.lognormvariate(0.0, self.noise) if self.noise else 1.0)
        self.now_s += float(seconds)
        self.seconds_by_op[name] = self.seconds_by_op.get(name, 0.0) + float(seconds)

    def _follow(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.live:
            size = -(-storage.nbytes() // ROUNDING) * ROUNDING
            self.live[storage._cdata] = (torch.multiprocessing.reductions.StorageWeakRef(storage), size)
            self.peak = max(self.peak, self.allocated())

    def allocated(self) -> float:
        """Bytes of the storages that somebody still holds."""
        gone = [key for key, (weak, _) in self.live.items() if weak.expired()]
        for key in gone:
            del self.live[key]
        return float(sum(size for _, size in self.live.values()))


def _bytes(t: torch.Tensor) -> float:
    return float(min(t.numel() * t.element_size(), max(t.untyped_storage().nbytes(), 0)))


def _code(t: torch.Tensor) -> int:
    return int(Fp8.HYBRID) if t.element_size() == 1 else int(Fp8.NONE)


def _gemm(acc: Accelerator, m: int, n: int, k: int, code: int) -> float:
    return float(gemm_s(acc, m, n, k, code))


def _grouped(acc: Accelerator, rows: int, groups: int, n: int, k: int) -> float:
    return float(expert_products_s(acc, rows, groups, n, k, int(Fp8.NONE), int(GroupedGemm.TURBO)))


def _mm(acc, args, kwargs):
    a, b = args[:2]
    return _gemm(acc, a.shape[0], b.shape[1], a.shape[1], _code(a))


def _bmm(acc, args, kwargs):
    a, b = args[:2]
    return _grouped(acc, a.shape[1], a.shape[0], b.shape[2], a.shape[2])


def _grouped_mm(acc, args, kwargs):
    a, b = args[:2]
    offsets = args[2] if len(args) > 2 else kwargs["offs"]
    groups = offsets.shape[0]
    if b.dim() == 2:  # weight gradients: the rows of all groups are contracted
        return _grouped(acc, a.shape[0], groups, b.shape[1], a.shape[1] // groups)
    return _grouped(acc, a.shape[0] // groups, groups, b.shape[2], a.shape[1])


def _attend(acc, args, kwargs, backward: bool = False):
    q, k, v, reads = args[1:] if backward else args
    seq = q.shape[2]
    window = round(seq - max(seq * seq - 2.0 * seq * reads, 0.0) ** 0.5)  # that reads so many keys on average
    call = attention_s(
        acc, "sdpa", batch=q.shape[0], heads=q.shape[1], kv_heads=k.shape[1], seq_q=q.shape[2], seq_kv=k.shape[2],
        qk_dim=q.shape[3], v_dim=v.shape[3], window=window % seq, causal=True,
    )  # fmt: skip
    return float(call.backward_s if backward else call.forward_s)


_LAWS: dict[str, Callable[..., float]] = {
    "aten::mm": _mm,
    "aten::_scaled_mm": _mm,
    "aten::addmm": lambda acc, args, kwargs: _mm(acc, args[1:], kwargs),
    "aten::bmm": _bmm,
    "aten::_grouped_mm": _grouped_mm,
    "primus_search::attention": _attend,
    "primus_search::attention_backward": lambda acc, args, kwargs: _attend(acc, args, kwargs, backward=True),
}


class _Event:
    gpu: SimulatedGpu

    def __init__(self, enable_timing: bool = False) -> None:
        self.at_s = 0.0

    def record(self, stream: object = None) -> None:
        self.at_s = self.gpu.now_s

    def elapsed_time(self, end: "_Event") -> float:
        return (end.at_s - self.at_s) * 1e3


def sdpa(q, k, v, *, is_causal, enable_gqa=False, scale=None):
    """What flash attention keeps and computes: an operation without kernel stands for it."""
    return attention_modules.traced_attention(q, k, v, q.shape[2] / 2.0)


@contextmanager
def simulated(monkeypatch, acc: Accelerator, *, name: str = "NVIDIA H200", gcn: str = "", **how: Any):
    """Let torch have that device for as long as the block runs; processes of their own become calls.

    gcn  architecture of an AMD device, as ROCm spells it
    """
    gpu = SimulatedGpu(acc, **how)
    _Event.gpu = gpu
    major, minor = 9, 0
    properties = SimpleNamespace(
        name=name, major=major, minor=minor, L2_cache_size=50 << 20, total_memory=int(acc.hbm_bytes),
        gcnArchName=gcn, multi_processor_count=132,
    )  # fmt: skip

    def reset() -> None:
        gpu.peak = gpu.allocated()

    patches = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "Event": _Event,
        "synchronize": lambda *_: None,
        "empty_cache": lambda: None,
        "set_device": lambda _: None,
        "get_device_properties": lambda *_: properties,
        "get_device_capability": lambda *_: (major, minor),
        "memory_allocated": lambda *_: gpu.allocated(),
        "max_memory_allocated": lambda *_: gpu.peak,
        "max_memory_reserved": lambda *_: 1.04 * gpu.peak,
        "reset_peak_memory_stats": reset,
        "memory_reserved": lambda *_: 1.04 * gpu.peak,
        "mem_get_info": lambda *_: (acc.hbm_bytes - 1.04 * gpu.peak - CONTEXT_BYTES, acc.hbm_bytes),
    }
    for attribute, value in patches.items():
        monkeypatch.setattr(torch.cuda, attribute, value)
    monkeypatch.setattr(torch.version, "hip", "7.0" if gcn else None)
    monkeypatch.setattr(torch.backends.cuda, "can_use_cudnn_attention", lambda _: True)
    products._is_fnuz.cache_clear()
    monkeypatch.setitem(device_info.TORCH_NAMES, device_info.CUDA, "meta")
    monkeypatch.setattr(attention_modules.F, "scaled_dot_product_attention", sdpa)
    monkeypatch.setattr("primus_search.measure.device.preflight.pinned_like", torch.empty_like)
    monkeypatch.setattr("primus_search.measure.device.timing.read_clocks", lambda _: ClockReading(**HEALTHY))
    optimizer = sys.modules["torch.optim.optimizer"]
    fused = [*optimizer._get_fused_kernels_supported_devices(), "meta"]
    monkeypatch.setattr(optimizer, "_get_fused_kernels_supported_devices", lambda: fused)
    run_here(monkeypatch)
    try:
        with gpu:
            yield gpu
    finally:
        products._is_fnuz.cache_clear()


def run_here(monkeypatch) -> None:
    """What would be a process of its own is a call."""

    def call(function: str, payload: Any) -> ProcessOutcome:
        found = isolate.outcome_of(function, payload)
        return ProcessOutcome(verdict=ProcessVerdict(found["verdict"]), value=found["value"], cause=found["cause"])

    def isolated(function, payload, *, limit_s, environment=None):
        return call(function, payload)

    def run_jobs(jobs, *, ranks, threads, warm):
        extra = {"rank": 0, "ranks": 1, "threads": threads, "resident_bytes": 0.0}
        return [[call(job.function, job.payload | extra)] for job in jobs]

    monkeypatch.setattr(isolate, "isolated", isolated)
    for module in ("device.preflight", "rank_group"):
        monkeypatch.setattr(f"primus_search.measure.{module}.isolated", isolated, raising=False)
    for module in ("candidate_bench", "rank_group"):
        monkeypatch.setattr(f"primus_search.measure.{module}.run_jobs", run_jobs)
