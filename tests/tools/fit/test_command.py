"""`python -m tools.fit`: validation by left-out fits, and refused words."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from primus_search.base.errors import InputError
from primus_search.cli import app as package
from tools.fit.__main__ import app

ROOT = Path(__file__).parents[3]
RUNS = ROOT / "tests" / "oracle" / "data" / "unseen_runs.csv"


def test_an_unknown_way_to_leave_runs_out_is_refused() -> None:
    with pytest.raises(InputError, match="one of source and model, model, source, publisher"):
        CliRunner().invoke(app, ["validate", str(RUNS), "--leave-out", "moon"], catch_exceptions=False)


def test_left_out_runs_are_printed_as_validate_prints_runs() -> None:
    shown = CliRunner().invoke(package, ["validate", str(RUNS)], catch_exceptions=False).output.splitlines()
    left_out = CliRunner().invoke(app, ["validate", str(RUNS)], catch_exceptions=False).output.splitlines()
    assert left_out[0] == shown[0]
    assert left_out[1] != shown[1] and left_out[1].startswith("tokens/s/GPU: median error ")
