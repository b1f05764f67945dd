"""Odd terminals and names: no traceback, no escape sequence, a clear sentence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = (sys.executable, "-m", "primus_search")
SPACE = "model: llama3_8b\nhardware: h100\nname: {}\nworkload: {{seq_length: 4096, global_batch_size: 64}}\n"


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command line with `primus-search` in it, through a shell."""
    line = command.replace("primus-search", " ".join(PROGRAM))
    return subprocess.run(line, shell=True, capture_output=True, text=True, env=os.environ | environment, check=False)


@pytest.mark.parametrize(
    "command",
    ["LC_ALL=C PYTHONUTF8=0 PYTHONIOENCODING=ascii primus-search schedules --stages 2 --microbatches 4",
     "primus-search models >&-", "primus-search models 2>&-"],
)  # fmt: skip
def test_ascii_and_closed_streams_end_no_command(command: str) -> None:
    done = shell(command)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


@pytest.mark.in_turn
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_output_is_one_sentence() -> None:
    done = shell("primus-search models > /dev/full")
    assert done.returncode == 1
    assert "standard output cannot be written: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", ['"a\\e[31mred"', '"two\\nlines"', '"' + "x" * 10_000 + '"', '"nul\\0"', '""'])
def test_names_that_cannot_be_printed_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SPACE.format(name))
    done = shell(f"primus-search run {tmp_path}/s.yaml --bench off --out {tmp_path}/run")
    assert done.returncode == 2
    assert "@ $.name: is a" in done.stderr or "@ $.name: is an empty name" in done.stderr
    assert "\x1b" not in done.stderr


def test_a_container_without_home_or_user_searches(tmp_path: Path) -> None:
    """A uid without a passwd entry and no HOME, as containers have."""
    bare = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME")}
    command = ["unshare", "-U", "--map-user=12345", "--map-group=12345", *PROGRAM, "models"]
    done = subprocess.run(command, capture_output=True, text=True, env=bare, check=False)
    if "unshare" in done.stderr:
        pytest.skip(f"user namespaces are not available here: {done.stderr.strip()[:80]}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.in_turn
@pytest.mark.daily(1)
@pytest.mark.parametrize("command", ["primus-search models", "primus-search words", "primus-search models --json"])
def test_a_reader_that_went_away_is_no_failed_check(command: str) -> None:
    done = shell(f"bash -c '{command} | true; exit ${{PIPESTATUS[0]}}'")
    assert (done.returncode, "Traceback" in done.stderr) in [(141, False), (0, False)], done.stderr
    closed = shell(f"bash -c 'mkfifo $0/p; exec 3<>$0/p; exec 4>$0/p 3<&-; {command} >&4; exit $?' $(mktemp -d)")
    assert closed.returncode == 141, closed.stderr
