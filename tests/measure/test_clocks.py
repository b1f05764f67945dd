"""Clocks of a GPU while it is measured: what the vendors' tools print, and what is said of it."""

import subprocess

import pytest

from primus_search.measure.device import timing as clocks
from primus_search.measure.device.timing import ClockReading, Watch, amd_reading, nvidia_reading, read_clocks

AMD = """WARNING: AMD GPU device(s) is/are in a low-power state
{"card0": {"Temperature (Sensor junction) (C)": "47.0", "sclk clock speed:": "(2100Mhz)", "sclk clock level:": "1",
 "mclk clock speed:": "(1300Mhz)", "Current Socket Graphics Package Power (W)": "612.0"}}"""


def test_a_line_of_nvidia_smi_is_a_reading():
    found = nvidia_reading("1755, 690.12, 61, 0x0000000000000004\n")
    assert found == ClockReading(clock_mhz=1755.0, power_w=690.12, temperature_c=61.0, reasons=4)


def test_what_a_tool_does_not_know_is_no_reading_or_none_of_its_parts():
    assert nvidia_reading("[N/A], [N/A], [N/A], [N/A]") is None
    assert nvidia_reading("") is None
    assert nvidia_reading("1755, [N/A], [N/A], [N/A]") == ClockReading(clock_mhz=1755.0, power_w=0.0, temperature_c=0.0)
    assert amd_reading("no devices") is None


def test_the_json_of_rocm_smi_is_a_reading():
    assert amd_reading(AMD) == ClockReading(clock_mhz=2100.0, power_w=612.0, temperature_c=47.0)


def test_an_old_driver_is_asked_by_the_old_name_of_the_reasons(monkeypatch):
    asked = []

    def run(command, **_):
        asked.append(command[3].rpartition(",")[2])
        if "event" in command[3]:
            raise subprocess.CalledProcessError(6, command)
        return subprocess.CompletedProcess(command, 0, stdout="1980, 300.0, 40, 0x0000000000000000\n")

    monkeypatch.setattr(clocks.shutil, "which", lambda name: name == "nvidia-smi" or None)
    monkeypatch.setattr(clocks.subprocess, "run", run)
    found = read_clocks()
    assert found is not None and found.clock_mhz == 1980.0
    assert asked == ["clocks_event_reasons.active", "clocks_throttle_reasons.active"]


def test_without_a_tool_it_is_said_that_clocks_are_unknown(monkeypatch):
    monkeypatch.setattr(clocks.shutil, "which", lambda _: None)
    with Watch() as watch:
        pass
    assert watch.text == "clocks unknown: no tool reads them" and watch.warnings == ()


def reading(clock, reasons=0, temperature=60.0):
    return ClockReading(clock_mhz=clock, power_w=700.0, temperature_c=temperature, reasons=reasons)


def test_a_device_at_its_power_cap_is_well_and_one_too_hot_is_not():
    idle = reading(345.0, reasons=0x1)
    well = Watch(readings=[idle, reading(1700.0, reasons=0x4), reading(1800.0, reasons=0x4), reading(1750.0)])
    assert well.text == "1750 MHz (1700 to 1800), 700 W, 60 C, held back by its power cap in 67% of readings"
    assert well.warnings == ()
    hot = Watch(readings=[reading(1200.0, reasons=0x40, temperature=90.0), reading(1700.0)])
    assert hot.warnings == (
        "the device was throttled (hardware thermal slowdown) in 50% of readings: measured times may mislead",
    )


@pytest.mark.parametrize("readings", [[], [reading(345.0, reasons=0x1)]])
def test_a_device_never_seen_at_work_has_no_clock(readings):
    assert Watch(readings=readings).text.startswith("clocks unknown")
