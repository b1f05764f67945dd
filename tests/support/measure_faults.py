"""Functions for isolated processes that fail in every way a benchmark can."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def echo(payload):
    return payload


def hang_with_child(payload):
    """Starts a grandchild, notes its number, and never returns."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(payload).write_text(str(child.pid))
    time.sleep(600)


def hang_with_child_named(payload):
    hang_with_child(payload["note"])


def killed(payload):
    os.kill(os.getpid(), signal.SIGKILL)


def crash(payload):
    os.kill(os.getpid(), signal.SIGSEGV)


def leave(payload):
    print("driver lost", file=sys.stderr)
    sys.exit(7)


def out_of_memory(payload):
    raise MemoryError("no room")


def device_out_of_memory(payload):
    raise RuntimeError("CUDA out of memory. Tried to allocate 20 GiB")


def not_finite(payload):
    class NotFiniteError(RuntimeError):
        pass

    raise NotFiniteError("the output holds NaN or infinity")


def missing_kernel(payload):
    raise NotImplementedError("no kernel for the dtype")
