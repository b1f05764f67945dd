"""What `from primus_search import ...` promises, end to end on a space small enough to project whole."""

import inspect
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from primus_search import load_model, load_space, project, search
from primus_search.cost.confidence.uncertainty import TIE
from primus_search.space import Enumerator
from primus_search.space.types import BenchmarkSettings


def test_the_best_of_a_search_is_the_best_of_projecting_everything() -> None:
    narrow = ["tp=[1, 2]", "pp=1", "cp=1", "micro_batch_size=[1, 2]", "fp8=none", "recompute=[none, full]"]
    space = load_space("llama3_8b_mi300x", overrides=[*narrow, "memory_margin=0.0"], environ={})
    assert space.model == load_model("llama3_8b")
    enumerator = Enumerator(space)
    everything = project(space.model, space.cluster, space.workload, enumerator.chunk(0, enumerator.size).candidates)
    fits = everything.headroom_bytes >= 0
    found = search(replace(space, benchmark=BenchmarkSettings(device="off")))
    assert found.exact
    assert (found.legal, found.feasible) == (enumerator.size, np.count_nonzero(fits))
    best = float(np.max(everything.tokens_per_s_per_gpu[fits]))
    assert found.ranking["tokens_per_s_per_gpu"].max() == pytest.approx(best, rel=1e-12)
    fastest = found.ranking[
        "expected_tokens_per_s_per_gpu"
    ].max()  # the plainest row that one run could not tell from it is the best
    assert fastest * (1.0 - TIE) <= found.best.best_tokens_per_s_per_gpu <= fastest * (1.0 + 1e-9)


TINY = {
    "model": "llama3_8b",
    "hardware": "mi300x",
    "nodes": 1,
    "workload": {"seq_length": 8192, "global_batch_size": 128},
    "space": {"tp": [1, 2], "pp": 1, "cp": 1, "micro_batch_size": [1, 2], "fp8": "none", "recompute": ["none", "full"]},
}


def test_search_is_a_function_with_a_signature() -> None:
    import primus_search as ps
    import primus_search.exploration.funnel  # a loaded subpackage does not hide it

    assert inspect.isfunction(ps.search)
    assert list(inspect.signature(ps.search).parameters)[:2] == ["space", "options"]
    assert "Raises InputError" in (ps.search.__doc__ or "")


def test_search_revalidates_and_writes_the_run_folder_as_run_does(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from primus_search.cli import app

    file = tmp_path / "tiny.yaml"
    file.write_text(json.dumps(TINY))
    seen = []
    found = search(
        TINY, overrides=["benchmark.device=trace", "benchmark.top_k=1"], out=tmp_path / "api", on_result=seen.append
    )
    assert seen == [found.result] and found.ranking.memory_evidence[1] == "traced"
    words = ["run", str(file), "--out", str(tmp_path / "cli"), "--bench", "trace", "--set", "benchmark.top_k=1"]
    assert CliRunner().invoke(app, words).exit_code == 0
    written = {path.name for path in (tmp_path / "api").iterdir()}
    # A space from Python has no texts to keep.
    assert written == {path.name for path in (tmp_path / "cli").iterdir()} - {"inputs"}
    assert {"run.json", "ranking.csv", "pareto.csv", "candidates.parquet", "report.html"} <= written
    for name in ("ranking.csv", "pareto.csv"):
        assert (tmp_path / "api" / name).read_bytes() == (tmp_path / "cli" / name).read_bytes()


@pytest.mark.in_turn
def test_a_path_a_mapping_and_a_space_are_the_same_search(tmp_path: Path) -> None:
    off = ["benchmark.device=off"]
    file = tmp_path / "tiny.yaml"
    file.write_text(json.dumps(TINY))
    tables = [
        search(given, overrides=words).ranking.to_dict("records")
        for given, words in ((file, off), (TINY, off), (load_space(file, overrides=off), ()))
    ]
    assert tables[0] == tables[1] == tables[2]
    with pytest.raises(ValueError, match="overrides change a space file"):
        search(load_space(file), overrides=off)
