"""One accelerator: its data-sheet rates and the laws that say what its kernels really achieve.

Every number here is read from `hardware/*.yaml`, where it carries its unit and its source. The laws themselves
(formulas) live in `cost/`; these types only hold their parameters.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """Rates of one device. Peaks are dense (no sparsity); 0 where the device has no such format.

    num_compute_units  streaming multiprocessors (NVIDIA) or compute units (AMD)
    hbm_bytes          usable device memory as the driver reports it
    """

    name: str
    vendor: str
    arch: str
    num_compute_units: int
    clock_hz: float
    bf16_peak_flops_per_s: float
    fp8_peak_flops_per_s: float
    fp4_peak_flops_per_s: float
    hbm_bytes: float
    hbm_bytes_per_s: float
