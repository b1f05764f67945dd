"""Room that dispatchers of tokens to experts take beside the framework's allocator."""

from dataclasses import replace

import numpy as np
import pytest

from primus_search.cost.memory.buffers import expert_buffer
from primus_search.cost.memory.share import Share
from primus_search.files.hardware_files import load_stack
from primus_search.models.model_files import load_model
from primus_search.values.candidates import Candidates, DispatchBackend
from primus_search.values.workload import Workload

MODEL = load_model("deepseek_v3")
HYBRID = load_stack("megatron_core_2026")
WORKLOAD = Workload(seq_length=4096, global_batch_size=64)
GIGABYTE = 1e9


def test_hybridep_has_room_for_every_token_of_its_group_twice_and_deepep_for_what_it_routes() -> None:
    """DeepSeek-V3 on 64 ranks, 4,096 tokens each: 64 x 4096 x 7168 x 2 B = 3.76 GB for dispatch, and for combine."""
    table = Candidates.table(ep=[64, 64, 1], deepep=[True, False, True])
    assert MODEL.moe is not None and MODEL.moe.top_k == 8
    columns = Share(MODEL, WORKLOAD, HYBRID, table, 64)
    hybrid = expert_buffer(MODEL, HYBRID, columns) / GIGABYTE
    assert hybrid.tolist() == pytest.approx([2 * 3.758, 0.0, 0.0], rel=1e-3)
    named = replace(table, dispatch_backend=np.full(3, DispatchBackend.DEEPEP))
    deepep = expert_buffer(MODEL, HYBRID, Share(MODEL, WORKLOAD, HYBRID, named, 64)) / GIGABYTE
    assert deepep.tolist() == pytest.approx([4 * 8 * 4096 * 7168 * 2 / GIGABYTE, 0.0, 0.0])
