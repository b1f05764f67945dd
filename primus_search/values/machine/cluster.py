"""The machine a job runs on: accelerators, the links between them, the software stack, and how many nodes.

Rates are line rates in one direction; what a collective achieves of them is a named efficiency next to it, so that a
study of a faster NIC changes one number. Parameters come from `hardware/*.yaml`; the formulas live in
`cost/laws/collectives.py`.

    domain   devices on the fast fabric (NVLink switch, xGMI mesh): 8 in a node, 72 in an NVL72 rack
    node     what a scheduler hands out; owns the NICs (an NVL72 tray has 4 devices)
    pod      devices behind one layer of the scale-out fabric; traffic that leaves it may run slower

Every number here is read from `hardware/*.yaml`, where it carries its unit and its source. The laws themselves
(formulas) live in `cost/`; these types only hold their parameters. Three kinds of numbers stand side by side in YAML:
data-sheet values, values quoted from a published measurement, and values fitted by `primus_search.measure.calibrate`;
the last kind says "fitted" in its source, and there are at most twelve of it per accelerator.

All efficiencies are fractions of the dense data-sheet peak at the *sustained* clock: what a device keeps up for
hours under full load, which is what training sees. A measurement of a few iterations on a cool device is faster by
1 / `sustained_over_burst`.

A table holds measured calls of one kind (a GEMM in BF16, forward; an all-reduce), which projections take before any
law; `measured_correction` interpolates between them. It is a CSV beside the hardware file, written by
`primus-search calibrate --device`.

A range is a box of measured sizes. Its owner is a device or a software stack; its kind names the law and the sizes:

    gemm/<recipe>               m, n, k of the forward product
    attention/<family>          queries of one rank, size of a query/key head
    grouped_gemm/<recipe>       rows of one expert, n, k
    collectives/inside, /across ranks inside one domain; nodes of a group that spans several
    dispatch/inside, /across    likewise, of tokens sent to their experts
    memory/<dense|moe>          peak in GB
    <device>/<dense|moe>/<bf16|low>   of a stack: GPUs and sequence length of the training runs it was fitted to
Recipes are named as in `candidates.Fp8`, BF16 as bf16.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

from primus_search.values.machine.stack import SiteErrors, Stack

GROUPED = "grouped_gemm"
"""Kind of a call that multiplies for all experts of a rank, in tables, ranges and files of points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTable:
    """Seconds of one kind of call at measured shapes; a shape is as many sizes as the kind has, all positive.

    Shapes by kind (kinds are joined with '/'):
        gemm/<recipe>/fwd|bwd       m, n, k of the forward product; bwd is both gradients together
        grouped_gemm/<recipe>/...   groups, rows of each, n, k; likewise
        attention/<family>/...      batch times heads, sequence, head dimension; causal, whole sequences
        all_reduce, all_gather, reduce_scatter, all_to_all, send    ranks, bytes as the cost model counts them
    """

    kind: str
    shapes: tuple[tuple[float, ...], ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.shapes or len(self.shapes) != len(self.seconds):
            raise ValueError(f"{self.kind}: a table needs one duration for each of its shapes, and at least one")
        if min(self.seconds) <= 0.0 or min(min(shape) for shape in self.shapes) <= 0.0:
            raise ValueError(f"{self.kind}: sizes and seconds are positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """All tables of a device or a network, at most one of each kind."""

    tables: tuple[KernelTable, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.tables)

    def __iter__(self) -> Iterator[KernelTable]:
        return iter(self.tables)

    def of(self, kind: str) -> KernelTable | None:
        """The table of that kind, if it was measured."""
        return next((table for table in self.tables if table.kind == kind), None)


NO_TABLES = Tables()


OCTAVE = 2.0
"""Laws are smooth: up to this factor beyond the ends of a range still counts as measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A box of sizes in which so many points were measured, and where they are from."""

    points: int
    low: tuple[float, ...]
    high: tuple[float, ...]
    source: str

    def __post_init__(self) -> None:
        if len(self.low) != len(self.high) or any(a > b for a, b in zip(self.low, self.high, strict=False)):
            raise ValueError("low and high need as many sizes, low the smaller ones")

    def outside(self, sizes: Sequence[float]) -> int | None:
        """The position of the first size beyond the box and its octave; None inside."""
        if len(sizes) != len(self.low):
            raise ValueError(f"this range is of {len(self.low)} sizes")
        for i, (size, low, high) in enumerate(zip(sizes, self.low, self.high, strict=True)):
            if not low / OCTAVE <= size <= high * OCTAVE:
                return i
        return None


Ranges = Mapping[str, Mapping[str, Range]]
"""Owner -> kind -> range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmLaw:
    """Dense matrix products; the formula is in `cost/laws/gemm.py`.

    efficiency        share of peak deep inside a large tile, per precision: BF16, FP8 with one scale per tensor,
                      per 128-block, per row, MXFP8 and the device's FP4 (NVFP4 or MXFP4; 0 where it lacks the format)
    tile_overhead     elements h: a tile of a x b pays 1 + h (1/a + 1/b), the price of loading its edges
    depth_overhead    elements of K spent on prologue and epilogue of each BF16 tile
    fp8_depth_overhead  likewise for FP8 and FP4 tiles, whose main loop is faster and so hides less
    occupancy_power   how much an incomplete last wave costs: 1 all of it, 0 nothing
    latency_s         time of the smallest GEMM
    backward_factor   rate of input-gradient and weight-gradient products over forward ones of the same shape
    fp8_backward_factor  likewise for the FP8 recipes
    mx_backward_factor   likewise for MXFP8, MXFP4 and NVFP4; 0: as the FP8 recipes
    fp8_library_factor  rate of the library's FP8 and FP4 kernels that training calls over those of the sweeps the
                      efficiencies were fitted to (CUTLASS kernels of serving engines)
    fp8_layouts       copies of an FP8 operand with one scale per tensor that its two products need: 2 where both
                      operands must run along K, 1 where the matrix units take any layout
    """

    bf16_efficiency: float
    fp8_tensor_efficiency: float
    fp8_block_efficiency: float
    fp8_row_efficiency: float
    mxfp8_efficiency: float
    nvfp4_efficiency: float
    tile_overhead: float
    depth_overhead: float
    fp8_depth_overhead: float
    occupancy_power: float
    latency_s: float
    backward_factor: float
    fp8_backward_factor: float
    mx_backward_factor: float = 0.0
    fp8_layouts: float = 2.0
    fp8_library_factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKernel:
    """Share of the BF16 peak of one attention kernel family at long sequences and large head dimension.

    A family the device lacks is absent from the table. `latent_backward_factor` multiplies the backward rate for
    heads whose query/key and value dimensions differ (MLA), `small_head_factor` both rates for heads of at most 64
    dimensions, which a family may leave to a slower kernel.
    """

    forward_efficiency: float
    backward_efficiency: float
    latent_backward_factor: float
    small_head_factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLaw:
    """Fused attention; the formula is in `cost/laws/attention.py`.

    softmax_dims      head-dimension equivalents d0 of exponentials and rescaling: rate ~ d / (d + d0)
    ramp_tokens       keys s0 a query block needs before the pipeline is full: rate ~ s / (s + s0)
    causal_tokens     keys c0 a causal mask adds: the masked half of the last blocks, and uneven work per block
    latency_s         time of the smallest call, forward
    kernels           kernel family -> its rates: flash1 to flash4, cudnn, cudnn_fp8, aiter, ck, triton, sdpa
    """

    softmax_dims: float
    ramp_tokens: float
    causal_tokens: float
    latency_s: float
    kernels: dict[str, AttentionKernel]

    def in_fp8(self, family: str) -> str:
        """The family of the same kernel in FP8; empty where the device has no rates of one."""
        return f"{family}_fp8" if f"{family}_fp8" in self.kernels else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedGemmLaw:
    """All experts of a rank in one grouped kernel; the formula is in `cost/laws/expert_products.py`.

    factor            rate of the grouped kernel over a dense GEMM with the same tiles
    backward_factor   likewise for both gradients, relative to the grouped forward
    fp8_factor, fp8_backward_factor  likewise for FP8 recipes
    fp8_unaligned_factor  share of that rate where the rows of an FP8 operand do not end on a cache line
    gradient_depth_overhead  rows a group's weight gradient pays on top of a dense one: its depth differs per group
    """

    factor: float
    backward_factor: float
    fp8_factor: float
    fp8_backward_factor: float
    gradient_depth_overhead: float
    fp8_unaligned_factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLaw:
    """Bandwidth-bound kernels: share of the data-sheet bandwidth by kind; the formula is in `memory_bound`.

    permute_efficiency  whatever surrounds the products of a serving MoE layer, as sweeps of such layers show it
    gather_efficiency   rows gathered by index in a training step; 0: as permute_efficiency
    cast_efficiency     casts to low precision in the sweeps of serving kernels that FP8 products are fitted to
    library_cast_efficiency  casts of training libraries; 0: as cast_efficiency
    """

    stream_efficiency: float
    norm_efficiency: float
    norm_backward_efficiency: float
    softmax_efficiency: float
    permute_efficiency: float
    cast_efficiency: float
    optimizer_efficiency: float
    latency_s: float
    gather_efficiency: float = 0.0
    library_cast_efficiency: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchLaw:
    """Time between two kernels on one stream, launched one by one or replayed from a CUDA/HIP graph.

    host_factor  time of one thread of this device's host over that of the x86 hosts the other devices sit in
    """

    stream_s: float
    graph_s: float
    host_factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Device memory that is gone before the first tensor; the formula is in `cost/memory/price.py`.

    context_bytes           driver context with the kernels a training process loads
    communicator_bytes      buffers of one NCCL / RCCL communicator
    spread                  standard deviation of the logarithm of measured over projected memory on this device
    """

    context_bytes: float = 0.0
    communicator_bytes: float = 0.0
    spread: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """Rates of one device. Peaks are dense (no sparsity); 0 where the device has no such format.

    num_compute_units     streaming multiprocessors (NVIDIA) or compute units (AMD)
    hbm_bytes             usable device memory as the driver reports it
    sustained_over_burst  rate under hours of load over the rate of a short benchmark (see the module docstring)
    training_rate         compute rate inside a training step over that of the kernel laws: power, caches and links are
                          shared with everything else; fitted to training runs, 1 where there are none
    tables                measured kernels, asked before the laws; see `cost/laws/measured_correction.py`
    """

    name: str
    vendor: str
    arch: str
    num_compute_units: int
    bf16_peak_flops_per_s: float
    fp8_peak_flops_per_s: float
    fp4_peak_flops_per_s: float
    hbm_bytes: float
    hbm_bytes_per_s: float
    sustained_over_burst: float
    gemm: GemmLaw
    attention: AttentionLaw
    grouped_gemm: GroupedGemmLaw
    memory: MemoryLaw
    launch: LaunchLaw
    footprint: Footprint = Footprint()
    training_rate: float = 1.0
    tables: Tables = NO_TABLES

    def room_bytes(self, margin: float = 0.0) -> float:
        """Device memory less a share `margin` of it that stays free."""
        return self.hbm_bytes * (1.0 - margin)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Topology, line rates, latencies, and the share of the line that collectives reach.

    gpus_per_node              devices per node as schedulers count nodes (one NVL72 tray: 4)
    domain_size                devices that reach each other over the fast fabric (8 in a node, 72 in NVL72)
    topology                   "switch": any pair at full rate; "mesh": one link per pair, a group of g uses g-1
    link_bytes_per_s           all links of one device together, one direction
    link_latency_s             a collective of no bytes inside a domain: launch, synchronisation, first hop
    link_hop_latency_s         each step of a ring, each level of a tree, each peer of a direct exchange
    link_half_speed_bytes      wire bytes at which protocol ramp-up takes as long as the transfer itself
    ring_efficiency            share of the link a ring reaches (all-gather, reduce-scatter, ring all-reduce)
    pair_loss                  share of that rate a ring of g members loses: pair_loss / g (fewer channels)
    in_network_efficiency      rate of a link during a switch-reduced all-reduce (NVLS) over its line rate; 0: none
    all_to_all_efficiency      share of the link a direct exchange reaches
    p2p_efficiency             share of the link (mesh: of the one link between the pair) a send reaches
    dispatch_efficiency        share of the link that fused expert dispatch / combine kernels reach (DeepEP, MORI)
    nics_per_node              NICs of one node; every device owns an equal share of them
    nic_bytes_per_s            one NIC, one direction
    nic_port_bytes_per_s       one port of a NIC that has several, which is all that a pair of ranks uses; 0: one port
    nic_latency_s              a collective of no bytes that leaves the domain
    nic_hop_latency_s          each hop between domains
    nic_half_speed_bytes       as link_half_speed_bytes, for the bytes through the NICs of one device
    nic_efficiency             share of the NIC a ring or a send reaches
    nic_all_to_all_efficiency  share of the NIC a direct exchange reaches
    nic_dispatch_efficiency    share of the NIC that fused expert dispatch / combine kernels reach
    scale_loss                 slow-down of rings per doubling of domains beyond two (congestion)
    pod_size                   devices in one pod
    pod_bytes_per_s            one NIC, one direction, for traffic that leaves its pod
    pod_latency_s              what each hop between pods adds
    host_copy_bytes_per_s      one device's copies to or from host memory, all devices at once; 0: not known
    host_update_bytes_per_s    what one process's optimizer on the host reads and writes; 0: not known
    tables                     measured collectives inside the domain, asked before the laws (`measured_correction`)
    """

    gpus_per_node: int
    domain_size: int
    topology: Literal["switch", "mesh"]
    link_bytes_per_s: float
    link_latency_s: float
    link_hop_latency_s: float
    link_half_speed_bytes: float
    ring_efficiency: float
    pair_loss: float
    in_network_efficiency: float
    all_to_all_efficiency: float
    p2p_efficiency: float
    dispatch_efficiency: float
    nics_per_node: int
    nic_bytes_per_s: float
    nic_latency_s: float
    nic_hop_latency_s: float
    nic_half_speed_bytes: float
    nic_efficiency: float
    nic_all_to_all_efficiency: float
    nic_dispatch_efficiency: float
    scale_loss: float
    pod_size: int
    pod_bytes_per_s: float
    pod_latency_s: float
    nic_port_bytes_per_s: float = 0.0
    host_copy_bytes_per_s: float = 0.0
    host_update_bytes_per_s: float = 0.0
    tables: Tables = NO_TABLES

    def __post_init__(self) -> None:
        for name in ("gpus_per_node", "domain_size", "nics_per_node", "pod_size"):
            if self.__getattribute__(name) < 1:
                raise ValueError(f"{name} must be at least 1")
        shares = [f.name for f in fields(self) if f.name.endswith("_efficiency")]
        positive = ("link_bytes_per_s", "nic_bytes_per_s", "pod_bytes_per_s", *shares)
        for name in (one for one in positive if one != "in_network_efficiency"):
            if self.__getattribute__(name) <= 0.0:
                raise ValueError(f"{name} must be above 0; a link that is not there belongs to no group")
        if any(self.__getattribute__(name) > 1.0 for name in (*shares, "pair_loss")):
            raise ValueError("an efficiency is a share of the line rate and cannot exceed 1")

    @property
    def nic_bytes_per_s_per_gpu(self) -> float:
        """Line rate out of the node that one device owns: its share of the node's NICs."""
        return self.nics_per_node * self.nic_bytes_per_s / self.gpus_per_node

    @property
    def pod_bytes_per_s_per_gpu(self) -> float:
        """Line rate out of the pod that one device owns."""
        return self.nics_per_node * self.pod_bytes_per_s / self.gpus_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """What a long run on many nodes loses; a zero switches its term off (`exploration/scaling_table.py`).

    node_mtbf_hours           hours between two failures of one node that end a job
    restart_minutes           from a failure to the next step: finding it, replacing the node, loading the checkpoint
    checkpoint_bytes_per_s    rate at which one node writes its part of a checkpoint
    node_repair_hours         from a failure until that node can be used again; spare nodes stand in meanwhile
    """

    node_mtbf_hours: float = 0.0
    restart_minutes: float = 0.0
    checkpoint_bytes_per_s: float = 0.0
    node_repair_hours: float = 0.0


UNFAILING = Reliability()
"""Of hardware that says nothing: no failures, and checkpoints that take no time."""


CAPACITY = "accelerator.hbm_bytes"
"""A number that says how much fits, and nothing about rates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A homogeneous cluster.

    overridden  numbers that a user gave in place of the files', by field path: `accelerator.hbm_bytes_per_s`
    site        errors of a cluster that no fit has seen; None: that of a publisher whose runs are in the fits
    """

    accelerator: Accelerator
    network: Network
    stack: Stack
    num_nodes: int
    overridden: tuple[str, ...] = ()
    site: SiteErrors | None = None

    def __post_init__(self) -> None:
        if self.num_nodes < 1:
            raise ValueError("a cluster has at least one node")

    @property
    def is_hypothetical(self) -> bool:
        """Whether a rate, a link or a number of the software is a user's own: no measurement speaks for it."""
        return any(path != CAPACITY for path in self.overridden)

    @property
    def world(self) -> int:
        """Devices in the whole cluster."""
        return self.num_nodes * self.network.gpus_per_node
