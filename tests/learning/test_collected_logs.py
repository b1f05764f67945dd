"""Logs of public repositories, where a collection with an index of their contents is in `$PRIMUS_SEARCH_LOGS`."""

import json
import os
from pathlib import Path

import pytest

from primus_search.learning.readers import read_log

FOLDER = Path(os.environ.get("PRIMUS_SEARCH_LOGS", "no such folder"))
INDEX = json.loads((FOLDER / "index.json").read_text()) if (FOLDER / "index.json").is_file() else []
FIELDS = {
    "gpus": "gpus",
    "tp": "tp",
    "pp": "pp",
    "cp": "cp",
    "ep": "ep",
    "vpp": "vpp",
    "seq_length": "seq_len",
    "micro_batch_size": "micro_batch",
    "global_batch_size": "global_batch",
}


@pytest.mark.skipif(not INDEX, reason="PRIMUS_SEARCH_LOGS names no folder with logs and their index.json")
@pytest.mark.parametrize("entry", INDEX, ids=lambda entry: entry["file"])
def test_a_collected_log_reads_as_its_index_says(entry: dict[str, object]) -> None:
    """Step time within 1 % of the index's median; no layout or batch that contradicts it. The index also holds facts
    from other files than the log, so a fact may be None here."""
    reading = read_log(FOLDER / str(entry["file"]))
    assert reading.framework == entry["framework"]
    assert reading.step_s == pytest.approx(entry["steady_step_s"], rel=0.01)
    for field, column in FIELDS.items():
        value = getattr(reading, field)
        assert value is None or entry[column] is None or value == entry[column], field
