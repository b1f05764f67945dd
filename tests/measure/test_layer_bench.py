"""Pieces travel to isolated processes as JSON, as they were sent; adapters are measured beside frozen weights."""

from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from primus_search.measure import layer_bench
from primus_search.measure.device.device_info import CPU
from primus_search.measure.layer_bench import TimedPiece, bench
from primus_search.measure.modules.fused_operations import MissingKernelError
from primus_search.measure.modules.shard import Shard
from primus_search.measure.modules.supported_models import without_module
from primus_search.models.model_files import load_model
from primus_search.models.presets import presets
from primus_search.values.candidates import Candidates
from primus_search.values.model import Adapters, BaseFormat, Model
from primus_search.values.workload import Workload

SMALL = Model(
    name="small", num_layers=2, hidden=64, ffn_hidden=64, num_heads=2, num_kv_heads=2, head_dim=32, vocab_size=64,
    source="to measure",
)  # fmt: skip


def test_a_piece_of_every_model_that_can_be_measured_survives_json():
    shard = Shard.of(Candidates.table(tp=2, fp8=1), 0, Workload(seq_length=128, global_batch_size=16))
    sent = 0
    for name in presets():
        model = load_model(name)
        if not without_module(model):
            for kind in model.kinds:
                piece = TimedPiece(piece="layer", model=model, shard=shard, kind=kind)
                arrived = TimedPiece.from_json(piece.to_json())
                assert arrived == piece and hash(arrived.model) == hash(model), name
                sent += 1
    assert sent >= 10


def adapted(rank: int, name: str = "bf16", bytes_per_param: float = 0.0) -> Model:
    base = BaseFormat(name=name, bytes_per_param=bytes_per_param)
    return replace(SMALL, adapters=Adapters(rank=rank, modules=("linear_qkv",), base=base))


@pytest.mark.parametrize("name", ["layer", "embedding", "head"])
def test_frozen_weights_stay_frozen_while_a_piece_is_measured(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chains: list[list[nn.Module]] = []
    build = layer_bench._chain

    def kept(*given: Any) -> list[nn.Module]:
        chains.append(build(*given))
        return chains[-1]

    monkeypatch.setattr(layer_bench, "_chain", kept)
    model = adapted(4)
    kind = model.kinds[0] if name == "layer" else None
    shard = Shard(micro_batch_size=1, seq_length=16, dtype="float32")
    bench(TimedPiece(piece=name, model=model, shard=shard, kind=kind), kind=CPU, budget_s=0.01)
    trained = [one for module in chains[0] for one in module.parameters() if one.requires_grad]
    assert {min(parameter.shape) for parameter in trained} == ({4} if name == "layer" else set())


def test_a_layer_with_adapters_is_another_shape_and_packed_weights_are_refused() -> None:
    shard = Shard(micro_batch_size=1, seq_length=16, dtype="float32")
    models = (SMALL, adapted(4), adapted(8))
    pieces = [TimedPiece(piece="layer", model=one, shard=shard, kind=one.kinds[0]) for one in models]
    assert len({piece.shape for piece in pieces}) == 3
    packed = adapted(4, "nf4", 0.516)
    with pytest.raises(MissingKernelError, match="unpacked for each product"):
        bench(TimedPiece(piece="layer", model=packed, shard=shard, kind=packed.kinds[0]), kind=CPU, budget_s=0.01)
