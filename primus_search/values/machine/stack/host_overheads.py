"""Times that the host takes, and what of them a graph replays."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOverheads:
    """Group `host` of a stack file."""

    host_launch_s: float
    """Host time to launch one kernel; a layer cannot run faster than its launches."""

    host_race_power: float
    """How sharply the slower of host and device sets the time of a pass (docs/cost/layer.md): 1 adds both, 0 stands for
    the longer."""

    host_moe_s: float
    """Host time of router, dispatcher and expert bookkeeping of one MoE layer, per direction."""

    host_dispatch_factor: float
    """`host_moe_s` with a fused dispatcher (DeepEP, HybridEP) over it with an all-to-all."""

    host_overlap_factor: float
    """`host_moe_s` under an FP8 recipe, over it without, while two micro-batches run interleaved to hide their dispatch
    (the four nodes of a layer enter the recipe's context one by one: docs/cost/layer.md)."""

    pass_s: float
    """Host time per pass of a virtual stage of a pipeline: Python, posting and waiting for sends."""

    cuda_graph: Literal["none", "router", "partial", "full"]
    """Launches replayed as a graph: none, router (and preparation), partial (attention, too), full."""

    router_graph_share: float
    """Share of a layer's launches that a graph of router and preparation replays."""

    partial_graph_share: float
    """Share of a layer's launches that a graph of attention, norms, residuals and router replays."""

    host_syncs_per_moe_layer: float
    """Times the host waits for token counts in one MoE layer; each sync-free stage removes one."""

    host_sync_s: float
    """Time of one such wait: the drained queue of launches has to fill again."""

    step_s: float
    """Fixed time per optimizer step: data, logging, clipping, Python."""

    straggler_per_doubling: float
    """Growth of the step per doubling of the number of nodes."""
