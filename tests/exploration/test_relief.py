"""Axes that trade time for memory are tried where nothing surely fits without them, and nowhere else."""

from pathlib import Path

import pytest

from primus_search import load_space, search
from primus_search.base.errors import NothingFits
from primus_search.declare import make_space
from primus_search.exploration.funnel import run_search
from primus_search.exploration.run_folder.saved_run import SavedRun

SPACE = {"tp": 8, "pp": 1, "cp": 1, "micro_batch_size": [1, 2], "fp8": "none", "recompute": ["none", "full"]}
RELIEFS = {
    "optimizer_offload": [0, 25, 50, 100],
    "offload_modules": ["none", "expert_fc1+moe_act", "core_attn+attn_proj"],
}
DATA = {
    "model": "llama3.1_70b", "hardware": "h200", "framework": "megatron", "nodes": 1, "space": SPACE,
    "workload": {"seq_length": 4096, "global_batch_size": 64}, "benchmark": {"device": "off"},
}  # fmt: skip


def test_where_nothing_fits_the_best_row_that_offloads_is_found_as_if_the_space_listed_it() -> None:
    """141 GB of an H200 hold 16 of the 18 bytes per parameter that eight of them need of a 70 B model."""
    found, listed = run_search(make_space(DATA)), run_search(make_space(DATA | {"space": SPACE | RELIEFS}))
    assert found.exact and found.ranking.candidates.rows() == listed.ranking.candidates.rows()
    assert (found.ranking.candidates.optimizer_offload > 0).all()
    assert any("optimizer_offload" in note for note in found.notes) and listed.notes == ()


def test_where_a_row_fits_no_row_offloads() -> None:
    found = run_search(make_space(DATA | {"nodes": 2}))
    rows = found.ranking.candidates
    assert not rows.optimizer_offload.any() and not rows.offload_modules.any() and found.notes == ()


def test_where_every_row_is_at_risk_the_best_row_that_surely_fits_offloads() -> None:
    """10,240 tokens leave no room for the error of the projection."""
    one = {"micro_batch_size": 1, "recompute": "none", "sharding": "distributed_optimizer"}
    data = DATA | {"nodes": 2, "workload": {"seq_length": 10240, "global_batch_size": 64}, "space": SPACE | one}
    off = {"optimizer_offload": 0, "offload_modules": "none"}
    plain, found = run_search(make_space(data | {"space": SPACE | one | off})), run_search(make_space(data))
    assert not plain.has_fit and plain.notes == ()
    assert found.has_fit and any("optimizer_offload" in note for note in found.notes)
    first = found.ranking.row(0)
    assert first["memory_verdict"] == "FITS"
    assert first["optimizer_offload"] > 0 or first["offload_modules"] != "none"
    assert found.ranking.expected_rate[0] == found.ranking.expected_rate[found.ranking.is_fit].max()


def test_axes_that_a_space_gives_stay_as_they_are() -> None:
    off = {"optimizer_offload": 0, "offload_modules": "none"}
    with pytest.raises(NothingFits, match=r"what would make it fit: .*optimizer_offload="):
        run_search(make_space(DATA | {"space": SPACE | off}))


def test_a_run_folder_holds_the_space_that_was_searched(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(str(DATA), encoding="utf-8")
    result = search(load_space(path), out=tmp_path / "run")
    saved = SavedRun.open(tmp_path / "run")
    assert saved.space.axes == result.space.axes and saved.facts["exact"]
    assert [one["is_relieved"] for one in saved.facts["clusters"]] == [True] and saved.facts["overrides"] == []
