"""The device a measurement runs on: its name, its clock, its software versions, and whether it is the target's own.

One "device" of a CPU host is one thread: `hardware: host` is a node whose devices are its cores, which is what two
training processes on two cores really are. On CUDA and ROCm a device is a GPU.
"""

import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from primus_search.base.cores import available_cores

CPU, CUDA = "cpu", "cuda"
TORCH_NAMES = {CPU: "cpu", CUDA: "cuda"}  # of a device of each kind; ROCm's is called cuda too
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
METHOD = {CPU: 4, CUDA: 4}  # raise when the way of measuring changes, so that no old measurement answers for a new one
HEAT_S, HEAT_SIZE = 1.5, 8192  # of products before a GPU is timed: clocks settle at what training runs at
COLD_BYTES = 1 << 29  # twice the largest last-level cache of a GPU, the 256 MB of AMD's CDNA 3
LARGEST_MMAP_THRESHOLD = 1 << 25  # what mallopt(3) takes at most, DEFAULT_MMAP_THRESHOLD_MAX on 64 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """What a measurement must carry to be compared: kind (cpu or cuda), name, architecture, versions of what ran it."""

    kind: str
    name: str
    arch: str
    versions: str

    @property
    def label(self) -> str:
        return f"{self.name} ({self.versions})"


def cpu_name() -> str:
    """The processor's model name as the kernel prints it, and how many of its cores this process may use."""
    cores = available_cores()
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.split(':', 1)[1].strip()}, {cores} cores"
    return f"{platform.processor() or platform.machine()}, {cores} cores"


def describe(kind: str) -> DeviceInfo:
    """The device of that kind on this machine. Raises ValueError where there is none."""
    if kind == CPU:
        versions = f"torch {torch.__version__}, python {platform.python_version()}, method {METHOD[CPU]}"
        return DeviceInfo(kind=CPU, name=cpu_name(), arch=platform.machine(), versions=versions)
    if kind != CUDA or not torch.cuda.is_available():
        raise ValueError(f"this machine has no device of kind {kind!r}")
    properties = torch.cuda.get_device_properties(0)
    is_amd = torch.version.hip is not None
    arch = properties.gcnArchName.split(":")[0] if is_amd else f"sm{properties.major}{properties.minor}"
    runtime = f"rocm {torch.version.hip}" if is_amd else f"cuda {torch.version.cuda}"
    dnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    versions = f"torch {torch.__version__}, {runtime}, dnn {dnn}, driver {_driver()}"
    versions += f", method {METHOD[CUDA]}"
    return DeviceInfo(kind=CUDA, name=properties.name, arch=arch, versions=versions)


def memory_bytes(kind: str) -> float:
    """All memory of the device of that kind; of a CPU 0, whose file is the machine itself."""
    return float(torch.cuda.get_device_properties(0).total_memory) if kind == CUDA else 0.0


def _driver() -> str:
    for path in (Path("/sys/module/nvidia/version"), Path("/sys/module/amdgpu/version")):
        if path.exists():
            return path.read_text().strip()
    return "unknown"


def best_kind() -> str:
    """cuda (also ROCm, which torch calls cuda) where there is such a device, else cpu."""
    return CUDA if torch.cuda.is_available() else CPU


def is_architecture_of(info: DeviceInfo, arch: str, accelerator: str) -> bool:
    """Whether a time measured here may stand for the target: same architecture, and for the host the machine itself."""
    if info.kind == CPU:
        return accelerator == "host"
    return info.arch.lower() == arch.lower()


def is_named_like(info: DeviceInfo, accelerator: str) -> bool:
    """Whether the device's own name holds that of the accelerator, so that clocks and memory are its too."""
    words = _words(info.name)
    return all(any(word.startswith(part) for word in words) for part in _words(accelerator))


def _words(name: str) -> list[str]:
    return "".join(c if c.isalnum() else " " for c in name.lower()).split()


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


def resident_bytes(which: str = "VmRSS") -> int:
    """Resident memory of this process: VmRSS now, VmHWM at its highest; 0 where the system does not say."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    line = next(text for text in status.read_text().splitlines() if text.startswith(which))
    return int(line.split()[1]) * 1024
