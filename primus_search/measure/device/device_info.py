"""The device a measurement runs on: its name, its software versions, and whether it is the target's own.

One "device" of a CPU host is one thread: `hardware: host` is a node whose devices are its cores, which is what two
training processes on two cores really are. On CUDA and ROCm a device is a GPU. torch is loaded where there may be one.
"""

import platform
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from primus_search.base.cores import available_cores

CPU, CUDA = "cpu", "cuda"
TORCH_NAMES = {CPU: "cpu", CUDA: "cuda"}  # of a device of each kind; ROCm's is called cuda too
METHOD = {CPU: 4, CUDA: 4}  # raise when the way of measuring changes, so that no old measurement answers for a new one
DRIVERS = tuple(map(Path, ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")))  # of NVIDIA, of AMD, of either under WSL
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
        versions = f"torch {version('torch')}, python {platform.python_version()}, method {METHOD[CPU]}"
        return DeviceInfo(kind=CPU, name=cpu_name(), arch=platform.machine(), versions=versions)
    if kind != CUDA or not has_gpu():
        raise ValueError(f"this machine has no device of kind {kind!r}")
    import torch

    properties = torch.cuda.get_device_properties(0)
    is_amd = torch.version.hip is not None
    arch = properties.gcnArchName.split(":")[0] if is_amd else f"sm{properties.major}{properties.minor}"
    runtime = f"rocm {torch.version.hip}" if is_amd else f"cuda {torch.version.cuda}"
    dnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    versions = f"torch {torch.__version__}, {runtime}, dnn {dnn}, driver {_driver()}"
    versions += f", method {METHOD[CUDA]}"
    return DeviceInfo(kind=CUDA, name=properties.name, arch=arch, versions=versions)


def _driver() -> str:
    for path in (Path("/sys/module/nvidia/version"), Path("/sys/module/amdgpu/version")):
        if path.exists():
            return path.read_text().strip()
    return "unknown"


def best_kind() -> str:
    """cuda (also ROCm, which torch calls cuda) where there is such a device, else cpu."""
    return CUDA if has_gpu() else CPU


def has_gpu() -> bool:
    """Whether torch can use a GPU; torch is not loaded on Linux without a driver."""
    if sys.platform == "linux" and "torch" not in sys.modules and not any(one.exists() for one in DRIVERS):
        return False
    import torch

    return torch.cuda.is_available()


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


def resident_bytes(which: str = "VmRSS") -> int:
    """Resident memory of this process: VmRSS now, VmHWM at its highest; 0 where the system does not say."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    line = next(text for text in status.read_text().splitlines() if text.startswith(which))
    return int(line.split()[1]) * 1024
