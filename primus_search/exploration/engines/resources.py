"""What a run used of its machine, and how many workers the machine bears."""

import resource
import sys
from pathlib import Path

from primus_search.base.cores import available_cores, control_group_values
from primus_search.base.units import GB

BYTES_PER_UNIT = 1 if sys.platform == "darwin" else 1024  # getrusage counts KiB on Linux, bytes on macOS


def peak_rss_bytes() -> float:
    """Largest resident memory of this process or of one finished child, whichever is larger; not their sum."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return float(max(own, children) * BYTES_PER_UNIT)


def affordable(asked: int) -> tuple[int, str]:
    """Workers to start on this machine, and the sentence that says why they are fewer than asked for.

    At most one per core (and two at least, so that a small machine can be asked for more than one), and no more than
    fit in free memory if each grows to what this process holds once the space is planned. 0 asks for every core.
    """
    each, free = peak_rss_bytes(), free_bytes()
    by_memory = max(int(free / each), 1) if free else asked
    cores = available_cores()
    wanted = asked or cores
    most = min(max(cores, 2), by_memory)
    if wanted <= most:
        return asked, ""
    why = f"{cores} cores" if most < by_memory or not free else f"{free / GB:.1f} GB free, {each / GB:.2f} GB each"
    return most, f"{wanted:,} workers were asked for; {most} were started: this machine has {why}"


def free_bytes() -> float:
    """Memory that can still be taken: of the machine, or of the control group if that is less; 0 where unknown."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(float(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return 0.0
    groups = zip(control_group_values("memory.max"), control_group_values("memory.current"), strict=False)
    return max(min([free, *(float(limit) - float(used) for limit, used in groups if limit.strip() != "max")]), 0.0)
