"""`primus-search bench` on a finished run: memory of its first rows becomes traced, in the run folder and in JSON."""

import csv
import json

from typer.testing import CliRunner

from primus_search.analysis.labels import short
from primus_search.cli import app
from primus_search.exploration.run_folder.saved_run import SavedRun
from tests.support.small_runs import make_run

AXES = {"tp": [1, 2], "pp": [1, 2], "micro_batch_size": 1, "schedule": "1f1b", "sharding": "distributed_optimizer"}


def test_bench_traces_the_first_rows_of_a_run_writes_them_back_and_says_so_as_json(tmp_path):
    run = make_run(tmp_path, model="tiny", space=AXES)
    before = [row["memory_evidence"] for row in csv.DictReader((run / "ranking.csv").open())]
    found = CliRunner().invoke(app, ["bench", str(run), "--device", "trace", "--top", "2", "--json"])
    assert found.exit_code == 0, found.output
    said = json.loads(found.stdout)
    after = [row["memory_evidence"] for row in csv.DictReader((run / "ranking.csv").open())]
    assert set(before) == {"projected"}
    assert after == ["traced"] * 2 + before[2:]
    assert [row["memory_evidence"] for row in said["ranking"]] == ["traced", "traced"]
    assert "time is projected, memory is traced (as asked)" in said["notes"]
    text = CliRunner().invoke(app, ["bench", str(run), "--device", "trace", "--top", "2"]).stdout
    assert [short(row) in text for row in SavedRun.open(run).ranking[:2]] == [True, True]


def test_bench_refuses_a_device_it_does_not_know(tmp_path):
    found = CliRunner().invoke(app, ["bench", str(tmp_path), "--device", "tpu"])
    assert found.exit_code != 0
    assert "'tpu' is not one of auto, trace, cpu, cuda" in str(found.exception)
