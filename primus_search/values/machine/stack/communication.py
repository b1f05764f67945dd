"""How tensor, context and pipeline parallel traffic is sent, and the share of it hidden behind compute."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """Group `communication` of a stack file."""

    cp_comm: Literal["p2p", "a2a", "all_gather"]
    """Context parallel attention: ring of point-to-point, all-to-all over heads, or all-gather."""

    tensor_overlap: float
    """Share of tensor-parallel traffic hidden behind its GEMM."""

    switched_tensor_overlap: float
    """`tensor_overlap` of a run that switches on user-buffer or asynchronous tensor parallelism."""

    tensor_async_overlap: float
    """Share of the traffic that tensor parallelism starts beside a backward GEMM and that it hides."""

    copies_gathered: bool
    """What is gathered or scattered along the sequence is rearranged by a copy: torch's collectives join along the
    first dimension, the batch, and no compiler joins the copy to what comes next."""

    context_overlap: float
    """Share of ring attention's traffic hidden behind attention."""

    pipeline_blocking: float
    """Share of a pipeline hop during which the sending rank computes nothing (0: asynchronous)."""
