"""The loop closes: runs that a site made stand in the ranking, are not undercut and are not picked again."""

import csv
import json
import shutil
from dataclasses import replace
from math import exp, log, nan
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from primus_search.cli import app
from primus_search.cost.confidence.uncertainty import MODEL_ERROR, RUN_NOISE
from primus_search.declare.record_table import read_records, write_records
from primus_search.exploration.expected import RATE as EXPECTED
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.report.html import content, page
from primus_search.values.candidates import COLUMN_NAMES
from tests.learning.test_learn_command import megatron_log, written
from tests.support.written_logs import STEP_S

SHARED = Path(__file__).parents[3] / "shared" / "logs"
RATE = 64 * 4096 / 16 / STEP_S
"""Tokens/s/GPU of the written logs."""
QWEN3_14B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 128,
    "hidden_size": 5120,
    "intermediate_size": 17408,
    "num_attention_heads": 40,
    "num_hidden_layers": 40,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
    "vocab_size": 151936,
}


def ran(*words: str | Path) -> str:
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == 0, done.exception
    return done.stdout


def searched(folder: Path, stack: Path, space: dict[str, Any], **more: Any) -> list[dict[str, str]]:
    """Rows of the ranking of a search with a learned stack."""
    whole = {"stack": str(stack), "space": space, "benchmark": {"device": "off"}} | more
    (folder / "space.yaml").write_text(yaml.safe_dump(whole), encoding="utf-8")
    ran("run", folder / "space.yaml", "--out", folder / "run")
    with (folder / "run" / "ranking.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a written log of Megatron (TP 2, PP 2, micro-batch 1, nothing said of overlap and graphs) and the
    stack learned from it."""
    folder = tmp_path_factory.mktemp("learned")
    ran("learn", megatron_log(folder), "--as", "mine", "--into", folder / "sites")
    return folder


@pytest.fixture
def site(learned: Path, tmp_path: Path) -> Path:
    """A copy of it, which a test may change."""
    shutil.copytree(learned, tmp_path, dirs_exist_ok=True)
    return tmp_path


def of_log(folder: Path, **space: Any) -> list[dict[str, str]]:
    """The ranking of a space with the stack in that folder."""
    plain = {"vpp": 1, "cp": 1, "fp8": "none", "recompute": "none", "sharding": "distributed_optimizer"}
    job = {"model": "llama2_7b", "hardware": "h100", "nodes": 2}
    workload = {"seq_length": 4096, "global_batch_size": 64}
    return searched(folder, folder / "sites" / "mine.yaml", plain | space, **job, workload=workload)


def picked(folder: Path) -> list[dict[str, Any]]:
    return list(json.loads(ran("next", folder / "run", "--count", "8", "--json"))["picks"])


@pytest.mark.daily(1)
@pytest.mark.parametrize("overlaps", [True, False])
def test_what_a_log_does_not_print_keeps_no_run_from_its_row(site: Path, overlaps: bool) -> None:
    switches = {"tp_overlap": overlaps, "overlap_grad_reduce": overlaps, "loss_fusion": overlaps, "cuda_graph": "none"}
    rows = of_log(site, tp=[1, 2], pp=[1, 2], micro_batch_size=[1, 2], **switches)
    (own,) = [row for row in rows if row["time_evidence"] == "run"]
    assert (own["tp"], own["pp"], own["micro_batch_size"]) == ("2", "2", "1")
    assert own["tp_overlap"] == str(overlaps).lower()
    assert float(own["expected_tokens_per_s_per_gpu"]) == pytest.approx(RATE, rel=0.01)
    assert rows.index(own) + 1 not in [pick["rank"] for pick in picked(site)]


def test_a_run_outside_the_space_is_a_row_and_what_it_reached_is_not_undercut(site: Path) -> None:
    rows = of_log(site, tp=[4, 8], pp=[4], micro_batch_size=[1], cuda_graph="none")
    (own,) = [row for row in rows if row["time_evidence"] == "run"]
    assert (own["tp"], own["pp"], own["memory_verdict"]) == ("2", "2", "FITS")
    assert float(rows[0]["expected_tokens_per_s_per_gpu"]) >= float(own["expected_tokens_per_s_per_gpu"])
    assert rows.index(own) + 1 not in [pick["rank"] for pick in picked(site)]


@pytest.mark.in_turn
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared logs")
def test_a_torchtitan_run_that_the_memory_margin_leaves_out_is_ranked(tmp_path: Path) -> None:
    (tmp_path / "q14").mkdir()
    model = tmp_path / "q14" / "config.json"
    model.write_text(json.dumps(QWEN3_14B))
    log = SHARED / "torchtitan__qwen3_14b_8gpu_fsdp8.log"
    ran("learn", log, "--model", model, "--as", "mine", "--into", tmp_path / "sites")
    job = {"model": str(model), "hardware": "b200", "nodes": 1, "framework": "torchtitan"}
    workload = {"seq_length": 128, "global_batch_size": 1280}
    space = {"tp": [1, 2], "pp": 1, "cp": 1, "fp8": "none"}
    rows = searched(tmp_path, tmp_path / "sites" / "mine.yaml", space, **job, workload=workload)
    (own,) = [row for row in rows if row["time_evidence"] == "run"]
    assert (own["tp"], own["micro_batch_size"], own["memory_verdict"]) == ("1", "160", "FITS")
    assert float(own["expected_tokens_per_s_per_gpu"]) == pytest.approx(10_361, rel=0.01)
    assert float(rows[0]["expected_tokens_per_s_per_gpu"]) >= float(own["expected_tokens_per_s_per_gpu"])
    assert rows.index(own) + 1 not in [pick["rank"] for pick in picked(tmp_path)]


def test_a_dry_run_asks_for_what_learning_asks_for(tmp_path: Path) -> None:
    log = written(tmp_path, "torchtitan")
    refused = CliRunner().invoke(app, ["learn", str(log), "--as", "mine", "--into", str(tmp_path / "sites")])
    said = json.loads(ran("learn", log, "--dry-run", "--json"))["needed"]
    assert said and all(one in str(refused.exception) for one in said)
    assert any("--hardware NAME" in one for one in said) and any("--model NAME" in one for one in said)


def knobs(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(row[name] for name in COLUMN_NAMES)


def is_twin(row: dict[str, str], own: dict[str, str]) -> bool:
    """One switch apart, and projected within 2 %."""
    apart = abs(float(row["step_s"]) / float(own["step_s"]) - 1.0)
    return apart < 0.02 and sum(a != b for a, b in zip(knobs(row), knobs(own), strict=True)) == 1


def rerun_at(folder: Path, factor: float) -> None:
    """The measured rates of a learned stack's runs times a factor; the stack stays."""
    file = folder / "sites" / "mine.runs.parquet"
    runs = read_records(file).runs
    faster = [
        replace(run, measured=replace(run.measured, tokens_per_s_per_gpu=run.tokens_per_s_per_gpu * factor, step_s=nan))
        for run in runs
    ]
    write_records(faster, file)


@pytest.mark.in_turn
def test_a_run_has_one_rate_in_every_answer(site: Path) -> None:
    """The row of a run far behind the first rows: ranking.csv, screen, page, `--baseline`, `--why-not`, `project`."""
    of_log(site, tp=[1, 2], pp=[2, 1], micro_batch_size=[1, 2], fp8=["none", "hybrid"], tp_overlap=[False, True])
    rerun_at(site, 0.7)
    log, again = site / "run0.log", site / "again"
    shown = ran("run", site / "space.yaml", "--out", again, "--baseline", log, "--all")
    with (again / "ranking.csv").open() as file:
        rows = list(csv.DictReader(file))
    (own,) = [row for row in rows if row["time_evidence"] == "run"]
    rank, said = rows.index(own) + 1, f"{0.7 * RATE:,.0f}"
    assert rank > 8
    assert f"{float(own[EXPECTED]):,.0f}" == said
    assert any(line.split()[0] == f"{rank}r" and said in line for line in shown.splitlines() if line.strip())
    assert f"rank {rank:,} at {said} tok/s/GPU" in shown
    assert "T/M" not in shown.partition("Global optimum")[0].splitlines()[2]
    baseline = json.loads((again / "run.json").read_text())["baseline"]
    assert (baseline["rank"], f"{baseline['figures'][EXPECTED]:,.0f}") == (rank, said)
    assert f"({said} tokens/s/GPU)" in ran("explain", again, "--why-not", f"@{log}")
    explained = json.loads(ran("explain", again, str(rank), "--json"))
    assert f"{explained[EXPECTED]:,.0f}" == said
    projected = json.loads(ran("project", "--row", f"{again}:{rank}", "--json"))
    assert (f"{projected[EXPECTED]:,.0f}", projected["time_evidence"]) == (said, "run")
    saved = SavedRun.open(again)
    text = page(saved, content(saved))
    assert said.replace(",", "") in text.replace(",", "")
    (point,) = json.loads(text.split('id="data">')[1].split("</script>")[0])["own_runs"]
    assert (f"{point['rate']:,.0f}", point["GB"]) == (said, pytest.approx(float(own["memory_bytes"]) / 1e9, rel=0.05))


@pytest.mark.parametrize("factor", [0.92, 1.08])
def test_a_row_moves_with_the_run_that_it_resembles(site: Path, factor: float) -> None:
    """The twin of a run, another switch and the same projection within 2 %, moves with what the run measured by the
    closed form for one run: its log(factor) times resemblance over 1 + noise; rows that differ more keep more of the
    rate that the stack expects."""
    space = {"tp": [1, 2], "pp": [1, 2], "micro_batch_size": [1, 2], "overlap_grad_reduce": [True, False]}
    before = {knobs(row): float(row[EXPECTED]) for row in of_log(site, **space, cuda_graph="none")}
    rerun_at(site, factor)
    ran("run", site / "space.yaml", "--out", site / "again")
    with (site / "again" / "ranking.csv").open() as file:
        rows = list(csv.DictReader(file))
    (own,) = [row for row in rows if row["time_evidence"] == "run"]
    moved = {knobs(row): float(row[EXPECTED]) / before[knobs(row)] for row in rows}
    twins = [row for row in rows if row is not own and is_twin(row, own)]
    assert twins
    for row in twins:
        apart = log(float(row["step_s"]) / float(own["step_s"])) / MODEL_ERROR
        weight = exp(-0.5 * apart**2) / (1.0 + (RUN_NOISE / MODEL_ERROR) ** 2)
        assert moved[knobs(row)] == pytest.approx(factor**weight, rel=1e-3)  # rates of the table have five digits
    others = [abs(moved[knobs(row)] - 1.0) for row in rows if row["tp"] != own["tp"] and row["pp"] != own["pp"]]
    assert all(found < abs(factor - 1.0) for found in others)


def test_a_row_alone_is_the_run_only_where_it_is_in_the_ranking(site: Path) -> None:
    """Rows that differ in what the log does not print, one of them with a value that it is not assumed to have."""
    rows = of_log(site, tp=[2], pp=[2], micro_batch_size=[1], overlap_grad_reduce=[True, False], tp_overlap=True)
    assert [row["time_evidence"] for row in rows].count("run") == 1 < len(rows)
    for rank, row in enumerate(rows, start=1):
        alone = json.loads(ran("project", "--row", f"{site / 'run'}:{rank}", "--json"))
        assert alone["time_evidence"] == row["time_evidence"]
        assert alone[EXPECTED] == pytest.approx(float(row[EXPECTED]), rel=1e-9)
