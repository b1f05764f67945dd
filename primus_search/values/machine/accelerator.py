"""One device: its peaks, its memory, and the parameters of the laws that price its kernels.

Every number is read from `hardware/*.yaml`, where it carries its unit and its source. The laws themselves (formulas)
live in `cost/laws/`; these types only hold their parameters. Three kinds of numbers stand side by side in YAML:
data-sheet values, values quoted from a published measurement, and values fitted by `primus_search.measure.calibrate`;
the last kind says "fitted" in its source, and there are at most twelve of it per accelerator.

All efficiencies are fractions of the dense data-sheet peak at the *sustained* clock: what a device keeps up for hours
under full load, which is what training sees. A measurement of a few iterations on a cool device is faster by
1 / `sustained_over_burst`.
"""

import re
from dataclasses import dataclass

from primus_search.values.machine.kernel_tables import NO_TABLES, Tables


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
    cutlass_factor    BF16 rate of CUTLASS's grouped kernel, as torch calls it, over a dense GEMM; 0: the stack's
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
    cutlass_factor: float = 0.0


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


_ARCHITECTURE = re.compile(r"sm(\d+)\d|gfx(\d+)[0-9a-f]{2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """Rates of one device. Peaks are dense (no sparsity); 0 where the device has no such format.

    num_compute_units     streaming multiprocessors (NVIDIA) or compute units (AMD)
    hbm_bytes             usable device memory as the driver reports it
    sustained_over_burst  rate under hours of load over the rate of a short benchmark (see the module docstring)
    training_rate         compute rate inside a training step over that of the kernel laws: power, caches and links are
                          shared with everything else; fitted to training runs, 1 where there are none
    dense_training_rate   the same of models without experts where runs with experts alone identified `training_rate`;
                          0: one rate for both
    ancestor              device whose efficiencies stand in for those of one that nobody measured; empty: it was
    spread_low, spread_high  of such a device: rates that it may reach, over those of its file, 90 % interval
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
    dense_training_rate: float = 0.0
    ancestor: str = ""
    spread_low: float = 1.0
    spread_high: float = 1.0
    tables: Tables = NO_TABLES

    @property
    def capability(self) -> int | None:
        """The major number of the architecture as torch reports it (sm90, gfx942: 9; sm103: 10), or None."""
        found = _ARCHITECTURE.fullmatch(self.arch)
        return int(found[1] or found[2]) if found else None

    def room_bytes(self, margin: float = 0.0) -> float:
        """Device memory less a share `margin` of it that stays free."""
        return self.hbm_bytes * (1.0 - margin)
