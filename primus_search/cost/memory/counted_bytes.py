"""Bytes of every row as peaks of a kind count them: allocated, reserved or the driver's."""

from primus_search.cost.projection import Memory
from primus_search.values.candidates import Floats
from primus_search.values.measured_run import PeakKind


def counted_bytes(memory: Memory, kind: PeakKind) -> Floats:
    """Bytes of every row as peaks of a kind count them.

    Buffers of DeepEP are no allocator's: it takes them from the driver (deepseek-ai/DeepEP csrc/deep_ep.cpp).
    """
    if kind == "driver":
        return memory.driver
    return (memory.allocated if kind == "allocated" else memory.reserved) - memory.expert_buffers
