"""What an installation has to work with: versions, devices, Ray, folders it must be able to write."""

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from primus_search.base.cores import available_cores
from primus_search.base.units import GB

NEEDED = ("numpy", "numba", "scipy", "pydantic", "pyarrow")
EXTRAS = {
    "torch": "memory stays projected and nothing is measured; pip install 'primus-search[torch]'",
    "ray": "searches use this machine alone; pip install 'primus-search[ray]'",
    "optuna": "large spaces are not sampled; pip install 'primus-search[optuna]'",
    "ortools": "the schedules `ilp` and `ilp-v` cannot be solved; pip install 'primus-search[ilp]'",
}
"""What may be missing, and what is then not done."""
SPARE_BYTES = 1.0 * GB
"""Free disk below which a run folder with its Parquet table and a Ray session may not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fact, and whether the tool can work with it."""

    name: str
    value: str
    is_well: bool = True


def examine() -> list[Finding]:
    """Every finding, in the order a person would ask."""
    return [*_versions(), *_machine(), *_devices(), *_folders()]


def _versions() -> Iterator[Finding]:
    yield Finding(name="python", value=platform.python_version())
    for name in ("primus-search", *NEEDED):
        try:
            yield Finding(name=name, value=metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Finding(name=name, value="not installed", is_well=False)
    for name, without in EXTRAS.items():
        try:
            yield Finding(name=name, value=metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Finding(name=name, value=f"not installed, optional: {without}")


def _machine() -> Iterator[Finding]:
    yield Finding(name="processors", value=str(available_cores()))
    address = os.environ.get("RAY_ADDRESS", "")
    yield Finding(name="ray cluster", value=address or "none named by RAY_ADDRESS; a local one is started when it pays")


def _devices() -> Iterator[Finding]:
    """Accelerators by their drivers' device files, so that torch need not be loaded."""
    nvidia = sorted(Path("/dev").glob("nvidia[0-9]*"))
    amd = sorted(Path("/sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id"))
    num_amd = sum(path.read_text(encoding="utf-8").strip() not in ("", "0") for path in amd)
    if not nvidia and not num_amd:
        yield Finding(name="accelerators", value="none; times stay projected, memory is traced on the processor")
        return
    yield Finding(name="accelerators", value=f"{len(nvidia)} NVIDIA, {num_amd} AMD")


def _folders() -> Iterator[Finding]:
    for name, folder in (("run folders", Path("results/runs")), ("temporary files", Path(tempfile.gettempdir()))):
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        can_write, free = os.access(there, os.W_OK), shutil.disk_usage(there).free
        value = f"{folder} ({'writable' if can_write else 'NOT writable'}, {free / GB:.0f} GB free)"
        yield Finding(name=name, value=value, is_well=can_write and free > SPARE_BYTES)
