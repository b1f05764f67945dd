"""Two runs side by side: what differs is found, and the steps of the attribution multiply to the whole difference."""

import json
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from primus_search.analysis.run_comparison import compare, hypervolume
from primus_search.cli import app
from primus_search.exploration.expected import RATE
from primus_search.exploration.run_folder.saved_run import SavedRun
from tests.support.small_runs import AXES, make_run

Maker = Callable[..., SavedRun]


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Maker:
    def make(**changes: Any) -> SavedRun:
        return SavedRun.open(make_run(tmp_path_factory.mktemp("run"), keep=500, **changes))

    return make


@pytest.fixture(scope="module")
def usual(run_of: Maker) -> SavedRun:
    return run_of()


def test_a_run_is_like_itself(usual: SavedRun) -> None:
    found = compare(usual, usual)
    assert (found.inputs, found.winner, found.moved, found.unexplained) == ((), {}, (), "")
    assert all(a == b for a, b in found.figures.values())
    assert found.recorded is not None and found.recorded[1] == pytest.approx(found.recorded[0], rel=1e-9)


@pytest.mark.parametrize(
    ("changes", "input_name", "group"),
    [
        ({"space": AXES | {"hardware.link_GBps": 20}}, "cluster.network.link_bytes_per_s", "network"),
        ({"space": AXES | {"stack.gemm_efficiency": 0.7}}, "cluster.stack.efficiencies.gemm_efficiency", "stack"),
        ({"workload": {"seq_length": 2048, "global_batch_size": 64}}, "workload.seq_length", "workload"),
        ({"nodes": 4}, "cluster.num_nodes", "nodes"),
        ({"hardware": "mi300x"}, "cluster.accelerator.hbm_bytes", "accelerator"),
    ],
)
def test_what_moved_the_number_is_named(
    run_of: Maker, usual: SavedRun, changes: dict[str, Any], input_name: str, group: str
) -> None:
    other = run_of(**changes)
    found = compare(usual, other)
    assert input_name in {one.what for one in found.inputs}
    assert group in {one.group for one in found.moved}
    if all(one.change is not None for one in found.moved):
        a, b = found.figures["expected_tokens_per_s_per_gpu"]
        assert prod(1.0 + (one.change or 0.0) for one in found.moved) == pytest.approx(b / a, rel=1e-9)


def test_a_run_whose_inputs_are_gone_is_compared_by_what_it_recorded(run_of: Maker, usual: SavedRun) -> None:
    gone = run_of(space=AXES | {"fp8": "none"})
    Path(str(gone.facts["source"])).unlink()
    (gone.path / "resolved.json").unlink()
    found = compare(usual, gone)
    assert found.unexplained and not found.moved
    assert found.figures["tokens_per_s_per_gpu"][1] == gone.ranking[0]["tokens_per_s_per_gpu"]


@pytest.mark.in_turn
def test_the_command_prints_both_ways(run_of: Maker, usual: SavedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    other, terminal = run_of(space=AXES | {"hardware.link_GBps": 20, "fp8": "none"}), CliRunner()
    for more, words in (([], "WHY    network"), (["-v"], "what moved the number")):
        done = terminal.invoke(app, ["compare", str(usual.path), str(other.path), *more], catch_exceptions=False)
        assert done.exit_code == 0 and words in done.output
        assert max(len(line) for line in done.output.splitlines()) <= 80
        assert more or len(done.output.splitlines()) <= 25
    done = terminal.invoke(app, ["compare", str(usual.path), str(other.path), "--json"], catch_exceptions=False)
    told = json.loads(done.output)
    assert {one["what"] for one in told["inputs"]} >= {"cluster.network.link_bytes_per_s", "axis fp8"}


ROWS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=1, max_size=12)


@given(ROWS)
def test_the_hypervolume_is_the_area_under_the_steps(points: list[tuple[int, int]]) -> None:
    """Against counting unit squares: (m, s) is dominated where some point has less memory and more speed."""
    rows = [{"memory_bytes": m * 1e9, RATE: float(s)} for m, s in points]
    most = 51
    squares = sum(any(p <= m and q >= s for p, q in points) for m in range(most) for s in range(1, 51))
    assert hypervolume(rows, most * 1e9) == pytest.approx(squares)
