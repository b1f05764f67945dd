"""Memory of devices as a log prints it, where that is not what their hardware file has."""

from dataclasses import replace

from primus_search.base.units import GIB
from primus_search.files.hardware_files import Hardware

SAME_MEMORY = 0.01
"""Relative difference of a device's memory from that of its file below which both are the same."""


def with_memory(hardware: Hardware, device_bytes: float) -> Hardware:
    """The hardware with the memory that its own log prints; as it is where that is 0 or the same."""
    rated = hardware.accelerator.hbm_bytes
    if not device_bytes or abs(device_bytes / rated - 1.0) < SAME_MEMORY:
        return hardware
    return replace(
        hardware,
        accelerator=replace(hardware.accelerator, hbm_bytes=device_bytes),
        notes=(*hardware.notes, memory_note(hardware.path.stem, rated, device_bytes)),
    )


def memory_note(name: str, rated_bytes: float, device_bytes: float) -> str:
    """A note on a device with other memory than its file has."""
    own, rated = device_bytes / GIB, rated_bytes / GIB
    return (
        f"device memory {own:.2f} GiB, as the log prints it; {name} has {rated:.2f} GiB: "
        f"give --set hardware.hbm_GiB={own:.2f} to run"
    )
