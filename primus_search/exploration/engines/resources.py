"""What a run used of its machine."""

import resource
import sys

BYTES_PER_UNIT = 1 if sys.platform == "darwin" else 1024  # getrusage counts KiB on Linux, bytes on macOS


def peak_rss_bytes() -> float:
    """Largest resident memory of this process or of one finished child, whichever is larger; not their sum."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return float(max(own, children) * BYTES_PER_UNIT)
