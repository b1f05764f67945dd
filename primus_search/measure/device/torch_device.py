"""torch on a device: its clock, where tensors are made and of which dtype, what its allocator and its caches hold."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from primus_search.measure.device.device_info import CUDA, TORCH_NAMES

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
HEAT_S, HEAT_SIZE = 1.5, 8192  # of products before a GPU is timed: clocks settle at what training runs at
COLD_BYTES = 1 << 29  # twice the largest last-level cache of a GPU, the 256 MB of AMD's CDNA 3


def memory_bytes(kind: str) -> float:
    """All memory of the device of that kind; of a CPU 0, whose file is the machine itself."""
    return float(torch.cuda.get_device_properties(0).total_memory) if kind == CUDA else 0.0


def heat(kind: str) -> None:
    """Keep a GPU busy until its clocks are those of sustained load: a cool one runs faster than it trains."""
    if kind != CUDA:
        return
    with on(kind):
        x = torch.randn(HEAT_SIZE, HEAT_SIZE, dtype=torch.bfloat16)
        started = time.perf_counter()
        while time.perf_counter() - started < HEAT_S:
            x @ x
            torch.cuda.synchronize()


Stopwatch = Callable[[Callable[[], object]], float]


def clock(kind: str, *, is_cold: bool = False) -> Stopwatch:
    """A stopwatch: seconds the device took for one call. Device events on CUDA, a monotonic clock on CPU.

    is_cold  a GPU first overwrites more memory than its caches hold. What is called finds them cold, and as the host
             launches it meanwhile, a short kernel is timed without the host's time to launch it.
    """
    if kind != CUDA:
        return _host_seconds
    return _cold_stopwatch() if is_cold else _cuda_seconds


def _cold_stopwatch() -> Stopwatch:
    scratch = torch.empty(COLD_BYTES, dtype=torch.uint8, device=TORCH_NAMES[CUDA])

    def seconds(run: Callable[[], object]) -> float:
        scratch.zero_()
        return _cuda_seconds(run)

    return seconds


def _host_seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _cuda_seconds(run: Callable[[], object]) -> float:
    start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e-3


def synchronize(kind: str) -> None:
    """Wait for the device; nothing to do on CPU."""
    if kind == CUDA:
        torch.cuda.synchronize()


def on(kind: str) -> torch.device:
    """The device tensors are made on; a context in which they are."""
    return torch.device(TORCH_NAMES[kind])


@contextmanager
def default_dtype(name: str) -> Iterator[None]:
    """Tensors made inside have that dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES[name])
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def placed(kind: str, dtype: str) -> Iterator[None]:
    """Tensors made inside have that dtype and lie on that device."""
    with default_dtype(dtype), on(kind):
        yield


def allocated_bytes(kind: str) -> float:
    """Bytes of live tensors as the device's allocator counts them; 0 on a CPU, whose allocator does not."""
    return float(torch.cuda.memory_allocated()) if kind == CUDA else 0.0


def peaks_bytes(kind: str, run: Callable[[], object]) -> dict[str, float]:
    """Bytes before and at the worst moment of a call, by the device's allocator and its driver; empty on a CPU.

    resident, allocated, reserved  of this process      driver  of all processes on the device, contexts included
    """
    if kind != CUDA:
        return {}
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    resident = allocated_bytes(kind)
    run()
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return {
        "resident": resident,
        "allocated": float(torch.cuda.max_memory_allocated()),
        "reserved": float(torch.cuda.max_memory_reserved()),
        "driver": float(total - free),
    }


def cache_bytes(kind: str) -> int:
    """Size of the last-level cache: what rotation must exceed for data to be cold."""
    if kind == CUDA:
        return int(torch.cuda.get_device_properties(0).L2_cache_size)
    index = Path("/sys/devices/system/cpu/cpu0/cache")
    units = {"K": 1 << 10, "M": 1 << 20}
    sizes = [path.read_text().strip() for path in index.glob("index*/size")] if index.exists() else []
    return max((int(size[:-1]) * units[size[-1]] for size in sizes if size[-1] in units), default=32 << 20)
