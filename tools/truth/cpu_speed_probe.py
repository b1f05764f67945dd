"""CPU speed probe: times a fixed GEMM to detect throttling, and waits until it clears.

A core of a virtual machine shares its execution units with another guest's. No counter shows it: everything takes more
CPU seconds for a while. So a rank times a small product of its own before and after what it measures.
"""

import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from primus_search.measure.device.timing import SLOW_RATIO

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
