"""Projected activations against what torch itself keeps for backward, at true size, without allocating anything."""

from dataclasses import replace

import pytest

from primus_search.cost.memory.activations import layer_activations
from primus_search.cost.memory.share import Share
from primus_search.files.hardware_files import load_stack
from primus_search.measure.modules.shard import Shard
from primus_search.measure.trace import trace_layer
from primus_search.values.candidates import Candidates, Recompute
from primus_search.values.model import Model
from primus_search.values.workload import Workload
from tests.cost.test_memory_formulas import LITE, LLAMA_70B

SEQ = 4096
FULL, SELECTIVE, UP = int(Recompute.FULL), int(Recompute.CORE_ATTENTION), int(Recompute.MLA_UP_PROJ)
# Padded values are an AITER habit that the traced modules do not have.
STACK = load_stack("primus_megatron")
STACK = replace(STACK, memory=replace(STACK.memory, latent_kv_padding=False))


@pytest.mark.parametrize(
    ("model", "layer", "columns"),
    [
        (LLAMA_70B, 0, {}),
        (LLAMA_70B, 0, {"tp": 8, "sequence_parallel": True}),
        (LLAMA_70B, 0, {"tp": 8, "sequence_parallel": True, "recompute": SELECTIVE}),
        (LLAMA_70B, 0, {"tp": 4, "sequence_parallel": True, "recompute": FULL}),
        (LITE, 0, {"micro_batch_size": 2}),
        (LITE, 1, {"ep": 8, "deepep": True}),
        (LITE, 1, {"ep": 8, "deepep": True, "recompute": UP}),
        (LITE, 1, {"ep": 8, "deepep": True, "recompute": FULL}),
    ],
)
def test_kept_activations_agree_with_torch_within_three_percent(
    model: Model, layer: int, columns: dict[str, int | bool]
) -> None:
    kind = model.kinds[layer]
    c = Candidates.table(**columns)
    s = Share(model, Workload(seq_length=SEQ, global_batch_size=64), STACK, c, 8)
    projected = float(layer_activations(model, STACK, kind, s, SEQ).kept[0])
    if int(c.recompute[0]) & FULL:
        projected = float(s.split_tokens[0]) * model.hidden * 2.0
    known = {key: value for key, value in columns.items() if key != "deepep"}
    traced = trace_layer(model, Shard(seq_length=SEQ, **({"micro_batch_size": 1} | known)), kind)
    assert projected == pytest.approx(traced.activation_bytes, rel=0.03)
