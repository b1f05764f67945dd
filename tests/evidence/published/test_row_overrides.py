"""`run_overrides.yaml` beside tables: what differed in single runs, applied by id and counted by `validate`."""

from pathlib import Path

import pytest

from primus_search.base.errors import InputError
from primus_search.evidence.published.convert import validated
from primus_search.evidence.validate.summary import summary
from tests.evidence.published.test_run_table import LLAMA, outcome_of

ENTRY = """
- runs: [x-1]
  set: {stack.attention_kernel: flash2, hardware.gemm.bf16_efficiency: 0.5, loss_fusion: false}
  reason: an older release on a slower board
  source: somewhere
"""


def test_a_run_has_what_its_entry_says_and_others_have_not(tmp_path: Path) -> None:
    (tmp_path / "run_overrides.yaml").write_text(ENTRY)
    first, second = outcome_of(tmp_path, LLAMA, LLAMA | {"id": "x-2"}).rows
    assert first.run.cluster.stack.kernels.attention_kernel == "flash2"
    assert first.run.cluster.accelerator.gemm.bf16_efficiency == 0.5
    assert not first.run.candidates.loss_fusion[0]
    assert not second.run.overrides and second.predicted > first.predicted


def test_overrides_are_counted_and_listed_with_their_reasons(tmp_path: Path) -> None:
    (tmp_path / "run_overrides.yaml").write_text(ENTRY)
    found = summary(outcome_of(tmp_path, LLAMA, LLAMA | {"id": "x-2", "flags": "unfused rope"}))["overrides"]
    assert (found["runs"], found["of"]) == (2, 2)
    assert found["by_key"]["hardware.gemm.bf16_efficiency"] == 1
    reasons = {(one["id"], one["key"]): one["reason"] for one in found["per_row"]}
    assert reasons["x-1", "hardware.gemm.bf16_efficiency"] == "an older release on a slower board (somewhere)"
    assert reasons["x-2", "stack.kernels.has_fused_rope"] == ""


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("runs: [x-1]", "expected a list of entries with runs, set, reason, source"),
        ("- {runs: [x-1], set: {tp: 2}}", "expected a mapping with runs, set, reason, source"),
        ("- {runs: [x-1], set: {speed: 2}, reason: r, source: s}", "unknown key 'speed'"),
        ("- {runs: x-1, set: {tp: 2}, reason: r, source: s}", "expected runs: [ids] and set: {key: value}"),
    ],
)
def test_a_file_that_is_no_list_of_overrides_is_refused(text: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "run_overrides.yaml").write_text(text)
    with pytest.raises(InputError) as caught:
        outcome_of(tmp_path, LLAMA)
    assert what in str(caught.value) and "run_overrides.yaml" in str(caught.value)


def test_a_number_that_is_none_of_the_machine_skips_the_run_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "run_overrides.yaml").write_text("- {runs: [x-1], set: {stack.magic: 2}, reason: r, source: s}")
    (one,) = outcome_of(tmp_path, LLAMA).skipped
    assert "stack.magic names no number" in one.reason


def test_every_run_that_the_tables_overrides_name_is_in_a_table() -> None:
    """An entry that no run has is a typo, or left behind."""
    import csv

    import yaml

    data = Path(__file__).parents[2] / "oracle" / "data"
    ids = {row.get("id") for table in data.glob("*.csv") for row in csv.DictReader(table.open(encoding="utf-8"))}
    entries = yaml.safe_load((data / "run_overrides.yaml").read_text(encoding="utf-8"))
    assert {name for entry in entries for name in entry["runs"]} <= ids
    assert validated(data / "measured_memory.csv").rows[0].run.cluster.stack.variant
