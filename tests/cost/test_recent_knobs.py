"""Knobs of 2026 against published runs and pairs; docs/dev/knobs.md lists them with their errors."""

from pathlib import Path

import pytest

from primus_search.runs.published import validated

DATA = Path(__file__).parents[1] / "oracle" / "data"


def test_mxfp4_on_instinct_is_within_5_percent_of_the_clean_run() -> None:
    """Source: DaiXindi-AMD/Lumen docs/mxfp4_training_report.md section 4.6: Qwen3-8B on 8 MI350X, TE MXFP4 in all
    layers, 22,990 tokens/s/GPU; projected as NVFP4 before (4.5 % off)."""
    outcome = validated(DATA / "amd_runs.csv")
    (row,) = (row for row in outcome.rows if row.run.id == "ah-022")
    assert row.run.candidates.row(0)["fp8"] == "mxfp4"
    assert row.predicted == pytest.approx(22990.2, rel=0.05)
