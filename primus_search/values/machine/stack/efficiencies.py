"""Rates of a framework over the kernel laws of the device (1.0: as the microbenchmark)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiencies:
    """Group `efficiencies` of a stack file."""

    gemm_efficiency: float
    """Of dense matrix products."""

    attention_efficiency: float
    """Of attention kernels."""

    grouped_gemm_efficiency: float
    """Of grouped matrix products of experts."""

    memory_efficiency: float
    """Of operations bound by memory bandwidth."""

    fp8_efficiency: float
    """Of FP8 matrix products, beside `gemm_efficiency`."""

    network_efficiency: float
    """Of collectives between nodes."""

    scan_efficiency: float
    """Share of the device's BF16 peak that chunked scans reach (Mamba-2, linear attention, delta rule)."""

    sparse_attention_efficiency: float
    """Of attention on keys that an indexer selected, over attention on the same number of keys in a row."""

    indexer_efficiency: float
    """Share of the device's BF16 peak that an indexer's scores of all earlier tokens reach."""
