"""Words of tables are explained and accepted."""

from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from primus_search.analysis.glossary import every_token, explain_word
from primus_search.analysis.labels import short
from primus_search.analysis.why_not import parse_request
from primus_search.base.errors import InputError
from primus_search.cli import app
from primus_search.cost.projection import Memory, Step
from primus_search.declare import make_space
from primus_search.space.tokens import PLAIN, read_token
from primus_search.values.knobs import KNOB, KNOBS, Fp8, Sharding

ROOT = Path(__file__).parents[2]
ROW = PLAIN | {"tp": 2, "pp": 4, "vpp": 3, "ep": 8, "cp": 2, "micro_batch_size": 4, "schedule": "zbv"}
ROW |= {"fp8": "hybrid", "recompute": "full", "recompute_num_layers": 2, "sync_free_stage": 3, "deepep": True}
ROW |= {"sharding": "fsdp2", "loss_fusion": False, "overlap_grad_reduce": False, "grouped_gemm": "legacy", "dp": 16}


def test_every_word_of_a_label_reads_back_as_its_axes() -> None:
    read: dict[str, object] = {}
    for word in short(ROW).split(" "):
        if not word.startswith("DP"):
            values = read_token(word)
            assert values, word
            read |= values
    assert read == {name: value for name, value in ROW.items() if name in read}
    assert len(read) >= 15


@pytest.mark.parametrize("parts", [Step, Memory])
def test_every_part_of_step_and_memory_has_a_meaning(parts: type) -> None:
    for part in fields(parts):
        for word in (part.name, part.name.replace("_", " ")):
            assert any("memory: " in line or "part of the step: " in line for line in explain_word(word)), word


def test_every_token_in_the_glossary_has_a_meaning_and_every_knob_is_there() -> None:
    tokens = dict(every_token())
    named = {name for token in tokens for name in read_token(token) or {}}
    silent = {"sequence_parallel", "recompute_method", "shard_group"}  # never printed
    assert {knob.name for knob in KNOBS} - named <= silent
    assert all(explain_word(token) for token in tokens)
    assert explain_word("AT RISK") and explain_word("at risk") and not explain_word("qwertz")


def test_values_are_accepted_as_tables_print_them() -> None:
    data = {
        "model": "llama3_8b", "hardware": "mi300x", "nodes": 1,
        "workload": {"seq_length": 8192, "global_batch_size": 128}, "space": {"mbs": 2, "sharding": "zero1"},
    }  # fmt: skip
    space = make_space(data, overrides=["shard_group=0", "mbs=4"], environ={})
    assert space.axis("micro_batch_size").values in ((2,), (4,))
    assert space.axis("sharding").values == (Sharding.DISTRIBUTED_OPTIMIZER,)
    assert space.axis("shard_group").values == (0,)
    base = {name: knob.default for name, knob in KNOB.items()}
    assert parse_request("TP4,PP2,BF16,mbs=2,sharding=zero1", base) == {
        "tp": 4, "pp": 2, "fp8": Fp8.NONE, "micro_batch_size": 2, "sharding": Sharding.DISTRIBUTED_OPTIMIZER,
    }  # fmt: skip


def test_words_command_refuses_an_unknown_word_with_close_ones() -> None:
    runner = CliRunner()
    assert "sync_free_stage=3" in runner.invoke(app, ["words", "sf3"]).output
    assert runner.invoke(app, ["words"]).output.count("\n") > 60
    with pytest.raises(InputError, match="did you mean 'fp8:hybrid'"):
        runner.invoke(app, ["words", "fp8:hybird"], catch_exceptions=False)


def test_a_degree_and_a_pair_of_evidence_are_explained() -> None:
    assert explain_word("DP64") == explain_word("DPn") != []
    assert explain_word("sequence_parallel=True") == [f"sequence_parallel=True: {KNOB['sequence_parallel'].summary}"]
    assert [line.split(":")[0] for line in explain_word("m/t")] == ["time measured", "memory traced"]
