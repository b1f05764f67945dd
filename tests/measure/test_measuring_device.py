"""The device a measurement runs on: names as the hardware files have them, and a stopwatch that starts cold.

No GPU is needed: what torch says of one is put in its place.
"""

from types import SimpleNamespace

import pytest
import torch

from primus_search.files.hardware_files import load_hardware
from primus_search.measure.device.device_info import CPU, CUDA, describe, is_architecture_of, is_named_like
from primus_search.measure.device.torch_device import COLD_BYTES, clock

NVIDIA = {"h200": ("NVIDIA H200", 9, 0), "h100": ("NVIDIA H100 80GB HBM3", 9, 0), "b200": ("NVIDIA B200", 10, 0)}
NVIDIA |= {"b300": ("NVIDIA B300 SXM6 AC", 10, 3), "a100_80": ("NVIDIA A100-SXM4-80GB", 8, 0)}
AMD = {"mi300x": ("AMD Instinct MI300X", "gfx942:sramecc+:xnack-"), "mi355x": ("AMD Instinct MI355X", "gfx950")}


@pytest.fixture
def seen(monkeypatch):
    """Let torch report a GPU: its name, and compute capability or gcn architecture."""

    def put(name, *what):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.version, "hip", "6.4" if len(what) == 1 else None)
        numbers = {"gcnArchName": what[0]} if len(what) == 1 else dict(zip(("major", "minor"), what, strict=True))
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(name=name, **numbers))
        return describe(CUDA)

    return put


@pytest.mark.parametrize("hardware", [*NVIDIA, *AMD])
def test_a_gpu_is_of_the_architecture_and_the_name_of_its_own_hardware_file(seen, hardware):
    accelerator = load_hardware(hardware).accelerator
    info = seen(*(NVIDIA | AMD)[hardware])
    assert is_architecture_of(info, accelerator.arch, accelerator.name), (info.arch, accelerator.arch)
    assert is_named_like(info, accelerator.name)


def test_a_product_of_the_same_architecture_is_told_from_the_target(seen):
    target = load_hardware("h200").accelerator
    info = seen(*NVIDIA["h100"])
    assert is_architecture_of(info, target.arch, target.name) and not is_named_like(info, target.name)
    other = load_hardware("b200").accelerator
    assert not is_architecture_of(info, other.arch, other.name)


def test_a_cold_stopwatch_overwrites_the_caches_before_its_first_event(monkeypatch):
    log = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            log.append("event")

        def elapsed_time(self, end):
            return 2.0

    def scratch(size, dtype, device):
        assert (size, dtype, device) == (COLD_BYTES, torch.uint8, CUDA)
        return SimpleNamespace(zero_=lambda: log.append("overwrite"))

    monkeypatch.setattr(torch, "empty", scratch)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("wait"))
    stopwatch = clock(CUDA, is_cold=True)
    assert [stopwatch(lambda: log.append("run")) for _ in range(2)] == [0.002, 0.002]
    assert log == ["overwrite", "event", "run", "event", "wait"] * 2


def test_a_cpu_is_timed_as_it_is():
    assert clock(CPU, is_cold=True) is clock(CPU)
