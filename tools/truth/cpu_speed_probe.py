"""CPU speed probe: times a fixed GEMM to detect throttling, and waits until it clears.

A core of a virtual machine shares its execution units with another guest's. No counter shows it: everything takes more
CPU seconds for a while. So a rank times a small product of its own before and after what it measures.
"""

import ctypes
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from primus_search.measure.device.device_info import LARGEST_MMAP_THRESHOLD

CALM_SHARE = 0.05  # of the cores that other processes may take during a training step that counts as undisturbed
SLOW_RATIO = 1.15  # a core that much slower than at its best shares its execution units with another guest's
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
M, N, K = 512, 1024, 256  # of the product; some milliseconds
PATIENCE_S, PAUSE_S = 4.0, 0.05  # what one process waits in all for slow spells to end, and between two looks


def anywhere(is_so: bool) -> bool:
    """Whether it is so on any rank; all ranks come to the same answer."""
    found = torch.tensor(float(is_so))
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return bool(found)


@dataclass(slots=True, kw_only=True)
class Core:
    """How fast this rank's core is: CPU seconds of one and the same small product, the lesser of two.

    calm_s      what it takes on a calm core, as far as known;  patience_s  left to wait for calm cores
    """

    calm_s: float
    patience_s: float = PATIENCE_S
    factors: tuple[Tensor, Tensor] = field(default_factory=lambda: (torch.randn(M, K), torch.randn(K, N)))

    def yard_s(self) -> float:
        found = min(self._once(), self._once())
        self.calm_s = min(self.calm_s or found, found)
        return found

    def _once(self) -> float:
        start = time.process_time()
        torch.mm(*self.factors)
        return time.process_time() - start

    def awaited_s(self) -> float:
        """The yardstick once no rank's core is slow, or once patience has ended; all ranks wait alike."""
        while True:
            found = self.yard_s()
            if not anywhere(found > SLOW_RATIO * self.calm_s) or self.patience_s <= 0.0:
                return found
            time.sleep(PAUSE_S)
            self.patience_s -= PAUSE_S


def forget_peak() -> None:
    """Let VmHWM start again from what is resident now (proc_pid_clear_refs(5)); nothing where the system has none."""
    refs = Path("/proc/self/clear_refs")
    if refs.exists():
        refs.write_text("5")


def return_freed_memory_from(num_bytes: int) -> None:
    """The C library gives allocations of that many bytes and more back to the system as they are freed (mallopt(3)).

    With a small number resident memory is what the process holds; with a large one the heap keeps what it once needed,
    as a GPU's caching allocator reserves more than is allocated. Does nothing where the C library is not glibc.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(M_MMAP_THRESHOLD, min(num_bytes, LARGEST_MMAP_THRESHOLD))
        library.mallopt(M_TRIM_THRESHOLD, num_bytes)


def busy_s() -> float:
    """CPU seconds all processes of this machine have used since it started, time stolen by its host included.

    0 where the system does not say (proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal in ticks).
    """
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    ticks = [int(word) for word in stat.read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
