"""Hardware files, software stacks and Primus' hardware_config: units, sources, and whole messages of bad ones."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import pytest

from primus_search.base import units
from primus_search.base.errors import InputError
from primus_search.files.hardware_files import load_cluster, load_hardware, load_stack, read_stack
from primus_search.files.records import Reading, build
from primus_search.files.search_path import HOME_VARIABLE, FileKind, names
from primus_search.files.source import parse, read
from primus_search.values.machine.network import Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    rate_bytes_per_s: float
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    latency_s: float
    kind: Literal["mesh", "switch"]
    is_fused: bool = True
    laws: dict[str, Law]

    def __post_init__(self) -> None:
        if self.latency_s < 0:
            raise ValueError("latency cannot be negative")


GOOD = """\
latency_us: {value: 3, source: "data sheet"}
kind: mesh
laws:
  ring: {rate_GBps: {value: 50, source: "measured"}}
"""


def built(text: str) -> tuple[object, list[str]]:
    document = parse(text, "p.yaml")
    reading = Reading(document)
    return build(Part, document.data, (), reading), [str(problem) for problem in reading.problems]


def test_values_come_out_in_base_units_with_their_sources() -> None:
    document = parse(GOOD, "p.yaml")
    reading = Reading(document)
    part = build(Part, document.data, (), reading)
    assert part == Part(latency_s=3e-6, kind="mesh", laws={"ring": Law(rate_bytes_per_s=50e9)})
    assert [(s.path, s.value, s.source) for s in reading.sources] == [
        ("latency_us", 3, "data sheet"),
        ("kind", "mesh", ""),
        ("laws.ring.rate_GBps", 50, "measured"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("latency_us: {value: 3, source", "latency_us: {value: 3, sauce",
         ["p.yaml:1 @ $.latency_us.sauce: unknown key; did you mean 'source'?",
          'p.yaml:1 @ $.latency_us: missing source: write {value: ..., source: "where the number is from"}']),
        ("latency_us", "latency", ["p.yaml:1 @ $.latency: unknown key; did you mean 'latency_s'?",
         "p.yaml:1 @ $: missing key latency_ns, latency_us, latency_ms or latency_s"]),
        ("ring: {", "ring: {count: {value: 1.5, source: x}, ",
         ["p.yaml:4 @ $.laws.ring.count: expected a whole number, got 1.5"]),
        ("kind: mesh", "kind: mash", ["p.yaml:2 @ $.kind: 'mash' is not one of mesh or switch; did you mean 'mesh'?"]),
        ("kind: mesh", "kind: mesh\nlatency_ms: 1",
         ["p.yaml:3 @ $.latency_ms: is the same quantity as 'latency_us'; keep one"]),
        ("value: 50", "value: fast", ["p.yaml:4 @ $.laws.ring.rate_GBps: expected a number, got 'fast'"]),
        ("value: 50", "value: .inf", ["p.yaml:4 @ $.laws.ring.rate_GBps: expected a number, got inf"]),
        ("value: 3", "value: -3", ["p.yaml:1 @ $.latency_us: must be at least 0, got -3"]),
        ("kind: mesh", "kind: mesh\nis_fused: 1", ["p.yaml:3 @ $.is_fused: expected true or false, got 1"]),
        ("  ring: {rate_GBps", "  ring: {rate_bytes_per_s", []),
        ("value: 3, ", "", ['p.yaml:1 @ $.latency_us: missing value: write {value: ..., source: "..."}']),
    ],
)  # fmt: skip
def test_a_bad_number_says_where_what_and_what_to_do(old: str, new: str, what: list[str]) -> None:
    assert built(GOOD.replace(old, new))[1] == what


@pytest.mark.parametrize("name", names(FileKind.HARDWARE))
def test_every_hardware_file_loads_with_a_source_for_every_number(name: str) -> None:
    hardware = load_hardware(name)
    numbers = [s for s in hardware.sources if isinstance(s.value, int | float) and not isinstance(s.value, bool)]
    assert [s.path for s in numbers if not s.source.strip()] == []
    assert load_cluster(hardware, 2).world == 2 * hardware.network.gpus_per_node


@pytest.mark.parametrize("name", names(FileKind.STACK))
def test_every_stack_loads_with_a_source_for_every_number(name: str) -> None:
    _, sources = read_stack(name)
    numbers = [s for s in sources if isinstance(s.value, int | float) and not isinstance(s.value, bool)]
    assert [s.path for s in numbers if not s.source.strip()] == []


@pytest.mark.parametrize(
    ("name", "bf16_tflops", "hbm_gb", "hbm_gbps", "link_gbps"),
    [
        ("a100_80", 312, 80, 2039, 300),  # NVIDIA A100 data sheet
        ("h100", 989.4, 80, 3350, 450),  # NVIDIA H100 SXM data sheet
        ("b200", 2250, 186, 8000, 900),  # NVIDIA DGX B200 data sheet: 1,440 GB per 8 GPUs usable, 192 GB fitted
        ("mi300x", 1307.4, 192, 5300, 448),  # AMD Instinct MI300X data sheet: 7 links of 64 GB/s
        ("mi355x", 2516.6, 288, 8000, 537.6),  # AMD Instinct MI355X data sheet: 7 links of 76.8 GB/s
    ],
)
def test_peaks_are_those_of_the_data_sheet(
    name: str, bf16_tflops: float, hbm_gb: float, hbm_gbps: float, link_gbps: float
) -> None:
    """1 % for rounding; HBM within 8 %, for files hold what the driver reports (GiB, reserved areas)."""
    hardware = load_hardware(name)
    assert hardware.accelerator.bf16_peak_flops_per_s == pytest.approx(bf16_tflops * 1e12, rel=0.01)
    assert hardware.accelerator.hbm_bytes_per_s == pytest.approx(hbm_gbps * 1e9, rel=0.05)
    assert hardware.accelerator.hbm_bytes == pytest.approx(hbm_gb * 1e9, rel=0.08)
    assert hardware.network.link_bytes_per_s == pytest.approx(link_gbps * 1e9, rel=0.01)


def test_a_home_folder_goes_before_the_shipped_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hardware" / "stacks").mkdir(parents=True)
    (tmp_path / "hardware" / "stacks" / "ours.yaml").write_text(
        "name: ours\nextends: pytorch\nkernels:\n  attention_kernel: flash2\n"
    )
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    assert load_stack("ours").kernels.attention_kernel == "flash2"
    assert load_stack("megatron_te").name == "megatron_te"


# --- Primus' hardware_config ---------------------------------------------------------------------------------------

SHORT = """\
hardware_config:
  node_bw: 448
  pod_bw: 25
  cluster_bw: 12.5
  bw_eff: 0.7
  p2p_bw_eff: 0.8
  node_lat: 0.45
  pod_lat: 2.0
  cluster_lat: 10.0
  node_size: 8
  pod_size: 64
  nics_per_node: 4
  node_topology: mesh
  switch_topology: false
  rccl_overhead_us: 200
  a2a_peer_lat: 0.45
"""


def test_a_primus_file_is_laid_over_the_hardware_it_is_named_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mi300x.yml").write_text(SHORT)
    hardware, base = load_hardware("./mi300x.yml"), load_hardware("mi300x")
    network = hardware.network
    assert hardware.accelerator == base.accelerator
    assert (network.link_bytes_per_s, network.nic_bytes_per_s, network.pod_bytes_per_s) == (448e9, 25e9, 12.5e9)
    assert (network.ring_efficiency, network.nic_efficiency, network.p2p_efficiency) == (0.7, 0.7, 0.8)
    assert (network.link_hop_latency_s, network.nic_hop_latency_s) == pytest.approx((0.45e-6, 2e-6))
    assert (network.pod_size, network.nics_per_node, network.topology) == (64, 4, "mesh")
    assert hardware.notes == (
        "mi300x.yml: laid over the hardware file 'mi300x'",
        "mi300x.yml: switch_topology is read but not used; each device owns its share of the NICs",
        "mi300x.yml: rccl_overhead_us is read but not used; the hardware file's measured link_latency and "
        "nic_latency say it",
        "mi300x.yml: a2a_peer_lat is read but not used; link_hop_latency and nic_hop_latency say it",
    )


def test_the_long_keys_of_primus_custom_example_are_known(tmp_path: Path) -> None:
    path = tmp_path / "custom.yaml"
    path.write_text(
        "base: mi300x\nhardware_config: {gpu_memory_gb: 192, gpu_compute_tflops: 1307, intra_node_bandwidth_gbps: 896, "
        "intra_node_latency_us: 1.0, inter_node_bandwidth_gbps: 400, inter_node_latency_us: 2.0, gpus_per_node: 8, "
        "nics_per_node: 8, intra_node_efficiency: 0.85, inter_node_efficiency: 0.7, alltoall_intra_efficiency: 0.8, "
        "alltoall_inter_efficiency: 0.6}\n"
    )
    hardware = load_hardware(str(path))
    assert hardware.accelerator.hbm_bytes == 192e9
    assert (hardware.network.link_bytes_per_s, hardware.network.nic_bytes_per_s) == (448e9, 50e9)
    assert (hardware.network.all_to_all_efficiency, hardware.network.nic_all_to_all_efficiency) == (0.8, 0.6)


def test_a_bad_primus_file_says_every_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mi3000.yml").write_text(
        "hardware_config:\n  nodebw: 448\n  pod_bw: -1\n  node_topology: ring\n  nics_per_node: x\n"
        "  bw_eff: 2\n  node_lat: .inf\n"
    )
    with pytest.raises(InputError) as caught:
        load_hardware("./mi3000.yml")
    assert str(caught.value) == (
        "mi3000.yml:1 @ $: unknown base 'mi3000'; did you mean 'mi300x'?; a hardware_config says nothing about the "
        "accelerator: name the file after one, or add base: NAME\n"
        "mi3000.yml:2 @ $.hardware_config.nodebw: unknown key; did you mean 'node_bw'?\n"
        "mi3000.yml:3 @ $.hardware_config.pod_bw: must be above 0, got -1\n"
        "mi3000.yml:6 @ $.hardware_config.bw_eff: is a share of the line rate and cannot exceed 1, got 2\n"
        "mi3000.yml:7 @ $.hardware_config.node_lat: inf is not a finite number\n"
        "mi3000.yml:5 @ $.hardware_config.nics_per_node: 'x' is not a whole number of at least 1\n"
        "mi3000.yml:4 @ $.hardware_config.node_topology: 'ring' is not switch or mesh"
    )


def test_a_transport_replaces_the_numbers_of_the_network_between_nodes_and_nothing_else() -> None:
    plain, over = load_hardware("b300"), load_hardware("b300@efa")
    numbers = read(names(FileKind.HARDWARE_BASE)["efa"]).data["network"]
    changed = {
        field.name
        for field in fields(Network)
        if getattr(plain.network, field.name) != getattr(over.network, field.name)
    }
    assert changed == {"transport", *(units.to_base(key, 0.0)[0] for key in numbers)}
    assert (over.name, over.accelerator) == ("B300@efa", plain.accelerator)
    assert sum("crazyguitar" in one.source for one in over.sources) == 3


def test_a_transport_without_a_file_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(InputError) as caught:
        load_hardware("b300@efb")
    assert [one.what for one in caught.value.problems] == [
        "no file of the transport 'efb'; did you mean 'efa'? - known: efa"
    ]
