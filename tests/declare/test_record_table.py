"""Tables of measured runs: what is written is read back, few columns are enough, bad cells are named by place."""

import math
from pathlib import Path

import pandas as pd
import pytest

from primus_search.base.errors import InputError
from primus_search.declare.record_table import read_records, write_records
from primus_search.evidence.published.convert import measured_table, validated
from primus_search.evidence.validate.summary import summary
from tests.support.daily import TODAY_OR_ALL, drawn
from tests.support.published_run import excerpt

DATA = Path(__file__).parents[1] / "oracle" / "data"
FEW = {
    "model": "llama3.1_8b", "hardware": "h100", "nodes": "2", "seq_length": "8192", "global_batch_size": "64",
    "tokens_per_s_per_gpu": "9000",
}  # fmt: skip


PUBLISHED = ("measured_memory", "unseen_runs_3")
ROWS_OF_THE_DAY = 25


def table_of(folder: Path, *rows: dict[str, str]) -> Path:
    path = folder / "mine.csv"
    pd.DataFrame(list(rows), dtype=str).to_csv(path, index=False)
    return path


@pytest.mark.in_turn
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_records_are_read_back_as_they_were_written(ending: str, tmp_path: Path) -> None:
    """Published runs with switches, overrides, layouts, adapters of every kind."""
    for name in PUBLISHED:
        table = measured_table(DATA / f"{name}.csv")
        path = tmp_path / f"{name}.{ending}"
        write_records(table.runs, path)
        again = read_records(path)
        for before, after in zip(table.runs, again.runs, strict=True):
            assert (before.model, before.cluster, before.workload) == (after.model, after.cluster, after.workload)
            assert before.candidates.row(0) == after.candidates.row(0)
            assert before.duplicate_key == after.duplicate_key and before.group == after.group
            same = (before.measured.tokens_per_s_per_gpu, after.measured.tokens_per_s_per_gpu)
            assert same[0] == same[1] or all(map(math.isnan, same))


@pytest.mark.in_turn
@pytest.mark.daily(1)
@pytest.mark.parametrize("whole", TODAY_OR_ALL)
@pytest.mark.parametrize("name", PUBLISHED)
def test_records_that_are_read_back_have_the_same_projections(name: str, whole: bool, tmp_path: Path) -> None:
    some = excerpt(DATA / f"{name}.csv", tmp_path, lambda rows: drawn(name, rows, ROWS_OF_THE_DAY, whole=whole))
    path = tmp_path / "again.csv"
    write_records(measured_table(some).runs, path)
    first, second = summary(validated(some)), summary(validated(path))
    for key in ("rows", "median_abs_error", "p90_abs_error", "per_row", "memory_per_row", "coverage_90"):
        assert first[key] == second[key]


def test_five_columns_and_a_figure_are_enough(tmp_path: Path) -> None:
    (run,) = read_records(table_of(tmp_path, FEW)).runs
    assert (run.cluster.world, run.cluster.stack.is_assumed, run.tokens_per_s_per_gpu) == (16, True, 9000.0)
    assert (run.id, run.gpu, run.precision) == ("line 2", "H100", "bf16")


def test_columns_are_the_axes_of_a_space_in_its_own_words(tmp_path: Path) -> None:
    knobs = {"tp": "2", "recompute": "selective", "fp8": "hybrid", "sharding": "fsdp2", "loss_fusion": "no"}
    (run,) = read_records(table_of(tmp_path, FEW | knobs | {"overrides": '{"stack.cuda_graph": "full"}'})).runs
    row = run.candidates.row(0)
    assert {name: str(row[name]) for name in knobs} == knobs | {"loss_fusion": "False"}
    assert run.cluster.stack.host.cuda_graph == "full" and run.overrides[0].key == "stack.host.cuda_graph"


def test_gpus_may_stand_for_nodes_and_figures_have_their_own_units(tmp_path: Path) -> None:
    cells = {name: cell for name, cell in FEW.items() if name not in ("nodes", "tokens_per_s_per_gpu")}
    (run,) = read_records(table_of(tmp_path, cells | {"gpus": "4", "step_ms": "2500", "peak_GiB": "40"})).runs
    assert (run.cluster.num_nodes, run.cluster.world) == (1, 4)
    assert run.measured.step_s == 2.5 and run.measured.peak_bytes == 40 * 2**30
    assert run.tokens_per_s_per_gpu == pytest.approx(8192 * 64 / 2.5 / 4)


def test_every_bad_cell_is_named_with_its_line(tmp_path: Path) -> None:
    rows = [FEW | {"model": "llama9"}, FEW | {"tp": "two"}, FEW | {"overrides": '{"stack.magic": 1}'}]
    rows += [FEW | {"tokens_per_s_per_gpu": ""}, FEW | {"peak_kind": "felt"}, FEW | {"recompute": "most"}]
    with pytest.raises(InputError) as caught:
        read_records(table_of(tmp_path, *rows))
    lines = str(caught.value).splitlines()
    assert [line.split(" @ ")[0] for line in lines] == [f"{tmp_path / 'mine.csv'}:{n}" for n in range(2, 8)]
    assert "unknown model preset 'llama9'" in lines[0] and "tp 'two' is not a number" in lines[1]
    assert "stack.magic names no number" in lines[2] and "no measured figure" in lines[3]


def test_unknown_and_missing_columns_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_records(table_of(tmp_path, {"modell": "x", "hardware": "h100"}))
    text = str(caught.value)
    assert "unknown column 'modell'; did you mean 'model'?" in text
    assert all(f"no column {name}" in text for name in ("model", "seq_length", "global_batch_size", "nodes or gpus"))
