"""`validate` answers any CSV: with a score, with reasons, or with one clear refusal; never with a crash."""

import csv
import io
import math
from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from primus_search.base.errors import InputError
from primus_search.evidence.published.convert import validated
from primus_search.evidence.published.run_table import NUMBERS, WORDS
from primus_search.evidence.validate.summary import summary
from tests.support.daily import today_or_all

DATA = Path(__file__).parents[1] / "oracle" / "data" / "training_runs.csv"
with DATA.open(newline="", encoding="utf-8") as file:
    RUNS = [row for row in csv.DictReader(file) if row["complete"] == "yes"][::37]

ODD = st.sampled_from(
    ["", " ", "0", "-1", "0.5", "1e9", "1e308", "nan", "inf", "-inf", "1,024", "8k", "yes", "None", "?", "unknown",
     "16384", "999999999", "1e-300", "H100", "MI9000X", "fp12", "full:all", "partial:", "partial:9999999999",
     "partial:layer ids 9-1", "selective:", "zb-2p", "v-min", "dualpipe", "interleaved-1f1b", "hsdp", "zero9",
     "pp_layout=Et*3|(tt|)*30m,L", "pp_layout=))((", "cpu_offload_layers=x; cuda_graph=none", "0x0Gb", "stack=\u00e4"]
)  # fmt: skip
CELL = ODD | st.text(max_size=12).filter(lambda text: "\x00" not in text)
COLUMNS = (*NUMBERS, *WORDS)


@st.composite
def mangled(draw: st.DrawFn) -> list[dict[str, str]]:
    """Some real runs with cells replaced, columns dropped and columns added."""
    rows = [dict(row) for row in draw(st.lists(st.sampled_from(RUNS), min_size=1, max_size=3))]
    for row in rows:
        for name in draw(st.lists(st.sampled_from(COLUMNS), max_size=4)):
            row[name] = draw(CELL)
    dropped = draw(st.lists(st.sampled_from(COLUMNS), max_size=2))
    return [{name: cell for name, cell in row.items() if name not in dropped} for row in rows]


def as_csv(rows: list[dict[str, str]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def answered(content: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "runs.csv"
        path.write_bytes(content)
        try:
            outcome = validated(path)
        except InputError as refusal:
            assert refusal.problems and all(problem.where == str(path) for problem in refusal.problems)
            return
    figures = summary(outcome)
    assert all(one.reason.strip() for one in outcome.skipped)
    for row in outcome.rows:
        assert math.isfinite(row.predicted) and row.predicted > 0.0
        assert math.isfinite(float(row.projection.memory.total[0]))
    told = figures["rows"] + figures["skipped"] + figures["memory_only"] + figures["ran_out"]
    assert told == len(outcome.rows) + len(outcome.skipped) + len(outcome.memory_only) + len(outcome.ran_out)


@pytest.mark.parametrize("count", today_or_all(50, 120))
def test_a_mangled_table_of_runs_is_scored_or_explained(count: int) -> None:
    @settings(max_examples=count)
    @given(mangled())
    def check(rows: list[dict[str, str]]) -> None:
        answered(as_csv(rows).encode())

    check()


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200))
@example(b"gpu,gpus,step_time_s\n")
@example(b"gpu,gpus,step_time_s\nH100,8\nH100,8,1,2,3\n")
@example(b'gpu,gpus,step_time_s\n"H100,8,1\n')
@example("gpu;gpus;step_time_s\n".encode("utf-16"))
def test_any_bytes_are_refused_or_explained(content: bytes) -> None:
    answered(content)
