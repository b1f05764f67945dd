"""Damaged files that once ended in a traceback are refused by name; what no reader refuses ends in a line to report."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from primus_search.base.errors import UNREADABLE, InputError, readable
from primus_search.declare.record_table import read_records
from primus_search.files.snapshot import FOLDER, INDEX, Snapshot
from primus_search.learning.logs.mlperf import observe
from primus_search.learning.transcript import Transcript


@pytest.mark.parametrize("error", [kind("why") for kind in (*UNREADABLE, KeyError, OverflowError, UnicodeError)])
def test_what_reading_raises_becomes_a_problem_at_its_place(error: Exception) -> None:
    with pytest.raises(InputError, match=r"^x.csv:2: '?why"), readable("x.csv:2"):
        raise error


def test_a_record_with_a_moved_column_is_refused_at_its_row(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text(
        "model,hardware,nodes,seq_length,global_batch_size,tokens_per_s_per_gpu,assumed\nllama3_8b,mi300x,1,8192,64,9000,sequence\n"
    )
    with pytest.raises(InputError) as caught:
        read_records(table)
    assert [problem.where for problem in caught.value.problems] == [f"{table}:2 @ row"]


def test_an_index_that_leads_out_of_its_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    index = {"files": {}, "source": "relative.yaml", "roots": [], "sites": "/sites", "host": ""}
    (tmp_path / FOLDER / INDEX).write_text(json.dumps(index))
    with pytest.raises(InputError, match=r"'relative\.yaml' is no absolute path"):
        Snapshot.read(tmp_path)


@pytest.mark.parametrize("number", ["Infinity", "NaN", "1e999"])
def test_a_number_that_is_none_is_no_step_of_a_log(number: str) -> None:
    seen = Transcript(source="x.log")
    record = f'{{"key": "tracked_stats", "value": {{"train_step_time": 1.5}}, "metadata": {{"step": {number}}}}}'
    observe(seen, f":::MLLOG {record}")
    assert seen.steps == []


def test_an_error_without_a_message_ends_with_a_line_to_report() -> None:
    """At the edge of the command line: its kind, where it was, the version; no traceback unless asked for."""
    text = """
import sys
from primus_search import cli
def broken(): raise KeyError("column")
cli.app = broken
sys.argv = ["primus-search", "models"]
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 70
    assert done.stderr.startswith("primus-search: KeyError: 'column'\n") and "Traceback" not in done.stderr
    assert "Please report it" in done.stderr and "__init__.py:" in done.stderr
