"""Names of devices: near in kind, not in letters; an own file that adds a price is the same device."""

from pathlib import Path

import pytest

from primus_search.base.errors import InputError
from primus_search.files.hardware_files import load_hardware
from primus_search.files.search_path import FileKind, shipped

PRICE = "name: {name}\nextends: h200\nprice_per_gpu_hour_USD: {{value: 2.5, source: contract}}\n"


@pytest.mark.parametrize("name", ["gh100", "gh400", "v100", "l4", "mi100", "b100", "h400", "ascend910b"])
def test_a_device_of_another_series_is_not_suggested(name: str) -> None:
    with pytest.raises(InputError) as caught:
        load_hardware(name)
    assert "did you mean" not in str(caught.value)
    assert "docs/own_hardware.md" in str(caught.value)


@pytest.mark.parametrize("name, meant", [("mi355", "mi355x"), ("MI-300X", "mi300x"), ("h200_sxm", "h200")])
def test_another_spelling_of_a_device_is(name: str, meant: str) -> None:
    with pytest.raises(InputError, match=f"did you mean '{meant}'"):
        load_hardware(name)


def test_the_catalogue_holds_devices_that_exist() -> None:
    assert "gh200" in shipped(FileKind.HARDWARE)
    assert "mine" not in shipped(FileKind.HARDWARE)


def test_gh200_is_a_hopper_beside_a_grace() -> None:
    gh200, h100, gb200 = (load_hardware(name) for name in ("gh200", "h100", "gb200"))
    assert gh200.accelerator.bf16_peak_flops_per_s == h100.accelerator.bf16_peak_flops_per_s
    assert gh200.accelerator.launch.host_factor == gb200.accelerator.launch.host_factor
    assert gh200.network.gpus_per_node == 4


def test_a_file_that_only_adds_a_price_is_the_same_device(tmp_path: Path) -> None:
    (tmp_path / "rented.yaml").write_text(PRICE.format(name="RENTED"))
    (tmp_path / "faster.yaml").write_text(
        PRICE.format(name="FASTER") + "accelerator:\n  hbm_GBps: {value: 5000, source: contract}\n"
    )
    plain, rented, faster = (
        load_hardware(str(one)) for one in ("h200", tmp_path / "rented.yaml", tmp_path / "faster.yaml")
    )
    assert rented.accelerator == plain.accelerator and rented.price_per_gpu_hour_usd == 2.5
    assert faster.accelerator.name == "FASTER"
