"""The projected step as a Chrome trace: it follows the format, and it ends where the step ends."""

import gzip
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from primus_search.cli import app

# Trace Event Format: what each phase must have besides ph, name, pid and tid.
SCHEMA: dict[str, dict[str, type | tuple[type, ...]]] = {
    "X": {"ts": (int, float), "dur": (int, float), "cat": str, "args": dict},
    "C": {"ts": (int, float), "args": dict},
    "M": {"args": dict},
    "s": {"ts": (int, float), "cat": str, "id": int},
    "f": {"ts": (int, float), "cat": str, "id": int, "bp": str},
}
CASES = {
    "no pipeline": ["--nodes", "1"],
    "1f1b": ["--nodes", "1", "--set", "pp=4"],
    "interleaved": ["--nodes", "1", "--set", "pp=4", "--set", "vpp=2"],
    "v-half": ["--nodes", "1", "--set", "pp=4", "--set", "vpp=2", "--set", "schedule=v-half", "--framework", "primus",
               "--set", "overlap_grad_reduce=false"],
    "dualpipe": ["--nodes", "1", "--set", "pp=2", "--set", "schedule=dualpipe", "--framework", "any"],
}  # fmt: skip


def written(case: str, path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The trace of a case and its figures."""
    command = ["project", "--model", "llama3_8b", "--hardware", "mi300x", *CASES[case], "--json", "--trace", str(path)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return json.loads(text), json.loads(done.stdout)


@pytest.mark.parametrize("case", CASES)
def test_a_trace_follows_the_format_and_ends_with_the_step(case: str, tmp_path: Path) -> None:
    trace, figures = written(case, tmp_path / "step.json")
    assert trace["displayTimeUnit"] == "ms"
    slices = defaultdict(list)
    for event in trace["traceEvents"]:
        assert {"name", "pid", "tid"} <= set(event)
        for key, kind in SCHEMA[event["ph"]].items():
            assert isinstance(event[key], kind), (event, key)
        if event["ph"] == "X":
            slices[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    pp, m = figures["candidate"]["pp"], figures["candidate"]["microbatches"]
    assert set(slices) == set(range(pp))
    for track in slices.values():
        track.sort()
        assert all(later[0] >= earlier[1] - 1e-5 for earlier, later in pairwise(track))
        assert track[0][0] >= 0.0
    end = max(stop for track in slices.values() for _, stop in track)
    assert end == pytest.approx(1e6 * figures["step"]["total_s"], rel=1e-9)
    forwards = [e for e in trace["traceEvents"] if e.get("cat") == "forward"]
    assert len(forwards) == m * pp * figures["candidate"]["vpp"]


@pytest.mark.parametrize("case", ["1f1b", "v-half"])
def test_every_message_is_an_arrow_from_slice_to_slice_of_two_ranks(case: str, tmp_path: Path) -> None:
    trace, figures = written(case, tmp_path / "step.json.gz")
    slices = [e for e in trace["traceEvents"] if e["ph"] == "X"]

    def slice_at(event: dict[str, Any]) -> dict[str, Any]:
        found = [s for s in slices if s["tid"] == event["tid"] and s["ts"] <= event["ts"] <= s["ts"] + s["dur"]]
        assert len(found) == 1, event
        return found[0]

    starts = {e["id"]: e for e in trace["traceEvents"] if e["ph"] == "s"}
    ends = {e["id"]: e for e in trace["traceEvents"] if e["ph"] == "f"}
    pp, m = figures["candidate"]["pp"], figures["candidate"]["microbatches"]
    stages = pp * figures["candidate"]["vpp"]
    # The two stages at the bottom of the V are on one rank.
    hops = stages - 1 - (case == "v-half")
    assert set(starts) == set(ends)
    assert len(starts) == 2 * hops * m
    for number, start in list(starts.items())[:200]:
        sender, receiver = slice_at(start), slice_at(ends[number])
        assert start["tid"] != ends[number]["tid"]
        assert sender["args"]["micro_batch"] == receiver["args"]["micro_batch"]
        assert abs(sender["args"]["virtual_stage"] - receiver["args"]["virtual_stage"]) == 1
        assert sender["ts"] + sender["dur"] <= receiver["ts"] + 1e-5


def test_a_trace_has_the_same_bytes_every_time(tmp_path: Path) -> None:
    for path in (tmp_path / "one.json.gz", tmp_path / "two.json.gz"):
        written("1f1b", path)
    assert (tmp_path / "one.json.gz").read_bytes() == (tmp_path / "two.json.gz").read_bytes()


def test_a_trace_of_too_many_passes_is_refused(tmp_path: Path) -> None:
    command = ["project", "--model", "llama3_8b", "--hardware", "mi300x", "--nodes", "1", "--set", "pp=8",
               "--set", "global_batch_size=100000", "--trace", str(tmp_path / "step.json")]  # fmt: skip
    done = CliRunner().invoke(app, command, standalone_mode=False)
    assert "passes are more than a trace holds" in str(done.exception)
    assert not (tmp_path / "step.json").exists()


def test_perfettos_importer_reads_every_slice_and_arrow(tmp_path: Path) -> None:
    """Where its trace processor is installed; the package on PyPI downloads the program when it first runs."""
    processor = pytest.importorskip("perfetto.trace_processor", reason="needs `pip install perfetto` and its program")
    trace, _ = written("1f1b", tmp_path / "step.json")
    try:
        opened = processor.TraceProcessor(trace=str(tmp_path / "step.json"))
    except Exception as error:
        pytest.skip(f"the trace processor cannot be started here: {error}")
    phases = [event["ph"] for event in trace["traceEvents"]]
    assert next(opened.query("select count(*) as n from slice")).n == phases.count("X")
    assert next(opened.query("select count(*) as n from flow")).n == phases.count("s")
