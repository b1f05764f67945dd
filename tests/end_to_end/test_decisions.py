"""What a run may decide on its user's behalf: precision, how surely it fits, and what the answer rests on."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from primus_search.analysis.explanation import explain
from primus_search.base.errors import InputError, NothingFits
from primus_search.cli import app
from primus_search.exploration.run_folder.saved_run import SavedRun

TINY: dict[str, Any] = {
    "model": "llama3_8b",
    "hardware": "mi300x",
    "nodes": 1,
    "workload": {"seq_length": 8192, "global_batch_size": 128},
    "space": {"tp": [1, 2], "pp": 1, "cp": 1, "micro_batch_size": [1, 2], "recompute": ["none", "full"]},
    "benchmark": {"device": "off"},
}


def run(folder: Path, *words: str, **changes: Any) -> tuple[str, SavedRun]:
    """Output and folder of a run of a tiny space."""
    (folder / "space.yaml").write_text(json.dumps(TINY | changes))
    done = CliRunner().invoke(app, ["run", str(folder / "space.yaml"), "--out", str(folder / "run"), "--force", *words])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return " ".join(done.stdout.split()), SavedRun.open(folder / "run")


def test_precision_is_named_as_a_change_of_the_mathematics_beside_the_best_row_in_bf16(tmp_path: Path) -> None:
    text, saved = run(tmp_path)
    assert saved.ranking[0]["fp8"] == "hybrid"
    assert "FP8 (tensorwise) changes the mathematics" in text and "docs/numerics.md" in text
    (plain,) = [one for one in saved.answer.choices if one.when == "you train in BF16"]
    assert plain.rank == next(place for place, row in enumerate(saved.ranking, start=1) if row["fp8"] == "none")


def test_safe_numerics_search_bf16_alone_and_any_every_recipe_of_the_framework(tmp_path: Path) -> None:
    text, saved = run(tmp_path, "--numerics", "safe")
    assert {row["fp8"] for row in saved.ranking} == {"none"} and "changes the mathematics" not in text
    _, saved = run(tmp_path, "--numerics", "any")
    assert {row["fp8"] for row in saved.ranking} > {"none", "hybrid"}
    with pytest.raises(InputError, match="numerics"):
        run(tmp_path, "--numerics", "best")


def test_rows_that_fit_less_surely_than_asked_are_not_ranked(tmp_path: Path) -> None:
    narrow = {"hardware.hbm_GiB": 80}
    _, saved = run(tmp_path, space=TINY["space"] | narrow)
    chances = sorted({row["fit_probability"] for row in saved.ranking})
    assert chances[0] < 0.95 < chances[-1]
    _, sure = run(tmp_path, "--min-fit", "95", space=TINY["space"] | narrow)
    assert [row for row in saved.ranking if row["fit_probability"] >= 0.95] == list(sure.ranking)
    with pytest.raises(NothingFits, match=r"with a probability of 99\.9 %"):
        run(tmp_path, "--min-fit", "99.9", "--set", "memory_margin=0", space=TINY["space"] | {"hardware.hbm_GiB": 45})


def test_a_row_of_a_run_is_projected_by_its_place_in_the_ranking(tmp_path: Path) -> None:
    _, saved = run(tmp_path)
    words = ["project", "--row", f"{tmp_path}/run/ranking.csv:3", "--json"]
    found = json.loads(CliRunner().invoke(app, words).stdout)
    row = saved.row(3)
    assert found["tokens_per_s_per_gpu"] == pytest.approx(row["tokens_per_s_per_gpu"])
    assert {name: found["candidate"][name] for name in ("tp", "fp8", "recompute")} == {
        name: row[name] for name in ("tp", "fp8", "recompute")
    }
    with pytest.raises(InputError, match="write RUN:RANK"):
        CliRunner().invoke(app, ["project", "--row", "first"], catch_exceptions=False)


def test_a_drawn_schedule_has_no_markup_in_a_pipe() -> None:
    words = ["schedules", "--stages", "2", "--microbatches", "4", "--costs", "1,1,1", "--draw"]
    text = CliRunner().invoke(app, words).stdout
    assert "rank   0 F" in text and "[" not in text.split("rank   0")[1]


def test_numbers_of_the_users_own_are_extrapolated_and_widen_the_interval(tmp_path: Path) -> None:
    _, saved = run(tmp_path, site="vendor")
    text, own = run(
        tmp_path,
        site="vendor",
        space=TINY["space"] | {"hardware.bf16_peak_TFLOPS": 5000, "hardware.fp8_peak_TFLOPS": 9000},
    )
    plain, changed = (
        one.ranking[0]["tokens_per_s_per_gpu_high"] / one.ranking[0]["tokens_per_s_per_gpu_low"] for one in (saved, own)
    )
    assert changed > 1.2 * plain
    for part in ("GEMM", "attention", "stack"):
        assert part in text.partition("Extrapolated: ")[2].partition(".")[0]
        (found,) = [one for one in explain(own, 1).coverage if one.part == part]
        assert "accelerator.bf16_peak_flops_per_s, accelerator.fp8_peak_flops_per_s overridden" in found.why
    assert "no run of this stack and kind" in text
    text, same = run(tmp_path, site="vendor", space=TINY["space"] | {"hardware.hbm_GiB": 100})
    first = same.ranking[0]
    (found,) = [one for one in explain(same, 1).coverage if one.part == "memory"]
    assert "accelerator.hbm_bytes overridden" in found.why
    assert first["tokens_per_s_per_gpu_high"] / first["tokens_per_s_per_gpu_low"] == pytest.approx(plain)
