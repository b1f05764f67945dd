"""Pieces travel to isolated processes as JSON: every shipped model's pieces arrive as they were sent."""

from primus_search.measure.layer_bench import TimedPiece
from primus_search.measure.modules.layers import without_module
from primus_search.measure.modules.shard import Shard
from primus_search.models.model_files import load_model
from primus_search.models.presets import presets
from primus_search.values.candidates import Candidates
from primus_search.values.workload import Workload


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
