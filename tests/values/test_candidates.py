"""The table of candidates and the layouts it speaks of."""

from dataclasses import replace

import numpy as np
import pytest

from primus_search.values.candidates import Candidates, degrees
from primus_search.values.knobs import KNOB
from primus_search.values.layout import BALANCED, EVEN, Layout, layout_string, stage_layers
from primus_search.values.model import MixtureOfExperts, Model

MODEL = Model(
    name="odd", num_layers=61, hidden=64, ffn_hidden=128, num_heads=4, num_kv_heads=2, head_dim=16, vocab_size=1000,
    moe=MixtureOfExperts(num_experts=8, top_k=2, expert_ffn_hidden=32),
    moe_layers=[False] * 3 + [True] * 58, num_mtp_layers=1,
)  # fmt: skip


def test_a_row_in_words_comes_back_as_the_same_candidate() -> None:
    table = Candidates.table(
        tp=2, pp=4, vpp=2, ep=8, deepep=True, fp8=5, recompute=3, sharding=4, grouped_gemm=1, recompute_method=1,
        schedule=1, pipeline_layout=1, schedules=("1f1b", "zbv"), layouts=(EVEN, Layout("ends", first=1, last=2)),
    )  # fmt: skip
    row = table.row(0)
    assert Candidates.from_words(row).row(0) == row


def test_columns_are_read_only_and_owned() -> None:
    tp = np.array([1, 2])
    table = Candidates.table(tp=tp)
    tp[0] = 8
    assert table.tp.tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        table.tp[0] = 4


def test_an_unknown_column_is_named() -> None:
    with pytest.raises(TypeError, match="pipe"):
        Candidates.table(pipe=2)


def test_degrees_divide_once_for_dense_and_expert_groups() -> None:
    table = Candidates.table(tp=[2, 3], cp=2, pp=2, ep=8, micro_batch_size=2)
    found = degrees(table, world=64, global_batch_size=128)
    assert found.is_whole.tolist() == [True, False]
    assert (found.dp[0], found.edp[0], found.microbatches[0]) == (8, 4, 8)


@pytest.mark.parametrize("word", ["none", "selective", "full", "core_attention+mla_up_proj", "op_sac"])
def test_recompute_words_and_flags_are_inverse(word: str) -> None:
    recompute = KNOB["recompute"]
    assert recompute.word(recompute.code(word)) == word


def test_a_balanced_layout_spares_the_stages_with_head_and_embedding() -> None:
    counts = stage_layers(MODEL, 16, BALANCED)
    assert counts is not None
    assert counts.layers.tolist() == [3] + [4] * 14 + [2]  # the last holds the MTP module, too
    assert counts.has_embedding[0] == counts.has_head[15] == counts.mtp[15] == 1
    assert stage_layers(MODEL, 16, EVEN) is None


@pytest.mark.parametrize(("layers", "dealt"), [(14, [0] + [1] * 14 + [0]), (15, [1] * 15 + [0]), (13, None)])
def test_embedding_and_loss_may_have_a_stage_of_their_own(layers: int, dealt: list[int] | None) -> None:
    model = replace(MODEL, num_layers=layers, moe_layers=(True,) * layers, windows=(), num_mtp_layers=0)
    counts = stage_layers(model, 16, BALANCED)
    assert (counts if counts is None else counts.layers.tolist()) == dealt


def test_a_layout_string_and_its_stages_agree() -> None:
    text = layout_string(MODEL, 4, BALANCED)
    assert text is not None
    by_string = stage_layers(MODEL, 4, Layout("string", text=text))
    by_name = stage_layers(MODEL, 4, BALANCED)
    assert by_string is not None and by_name is not None
    assert np.array_equal(by_string.counts, by_name.counts)


@pytest.mark.parametrize("text", ["even", "balanced", "first=3,last=None", "Et*3|(tt|)*2tL"])
def test_a_layout_reads_back_what_it_prints(text: str) -> None:
    assert str(Layout.parse(text)) == text


def test_a_layout_string_that_cannot_be_read_names_the_place() -> None:
    with pytest.raises(ValueError, match="cannot read 'x' at position 3"):
        Layout.parse("Et|x")
