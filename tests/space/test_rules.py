"""Rules of legality against what kernels and launchers support."""

import numpy as np
import pytest

from primus_search.declare import make_space
from primus_search.space import Enumerator
from primus_search.values.knobs import CudaGraph


@pytest.mark.parametrize(
    ("hardware", "is_legal"), [("h100", False), ("mi300x", False), ("mi355x", False), ("b200", True)]
)
def test_whole_iteration_graphs_of_experts_need_a_blackwell_device(hardware: str, is_legal: bool) -> None:
    """Source: TransformerEngine pytorch/ops/_common.py and Megatron-LM core/transformer/moe/experts.py
    `_is_fused_impl_supported`: CUDA kernels of SM100, which AMD devices with FP4 units do not have either."""
    axes = {"cuda_graph": ["none", "full"], "deepep": True, "dispatch_backend": "hybridep", "fp8": ["none", "mxfp8"]}
    axes |= {"tp": 1, "pp": 1, "cp": 1, "micro_batch_size": 1, "recompute": "none"}
    data = {"model": "qwen3_30b_a3b", "hardware": hardware, "nodes": 2, "framework": "any", "space": axes}
    if hardware in ("h100", "mi300x"):
        axes["fp8"] = ["none", "hybrid"]
    enumerator = Enumerator(make_space(data | {"workload": {"seq_length": 4096, "global_batch_size": 64}}))
    graphs = enumerator.chunk(0, enumerator.size).candidates.cuda_graph
    assert len(graphs) and bool(np.any(graphs == CudaGraph.FULL)) == is_legal


@pytest.mark.parametrize(
    ("hardware", "formats"), [("mi355x", {"mxfp4"}), ("b200", {"nvfp4"}), ("mi300x", set()), ("h100", set())]
)
def test_fp4_is_the_block_format_of_the_vendor(hardware: str, formats: set[str]) -> None:
    """MXFP4 on CDNA 4 (Primus `fp4_recipe: mxfp4`), NVFP4 on Blackwell (Transformer Engine NVFP4BlockScaling)."""
    axes = {"fp8": ["none", "mxfp4", "nvfp4"], "tp": 1, "pp": 1, "cp": 1, "micro_batch_size": 1, "recompute": "none"}
    data = {"model": "llama3.1_8b", "hardware": hardware, "nodes": 1, "framework": "any", "space": axes}
    enumerator = Enumerator(make_space(data | {"workload": {"seq_length": 4096, "global_batch_size": 64}}))
    rows = enumerator.chunk(0, enumerator.size).candidates.rows()
    assert {row["fp8"] for row in rows} - {"none"} == formats
