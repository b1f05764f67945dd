"""Random jobs of Megatron's arguments, judged by Megatron's own checks."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.judge.checkouts import checkout, missing
from tests.support.random_scripts import DRAWN, jobs, table

ROOT = Path(__file__).parents[2]
RELEASES = ("megatron@core_0.20", "megatron@core_0.16")


@pytest.mark.parametrize("release", RELEASES)
def test_a_seed_draws_the_same_jobs_whose_flags_the_release_has(release: str) -> None:
    drawn = list(jobs(release, 40, seed=3))
    assert [one.argv for one in drawn] == [one.argv for one in jobs(release, 40, seed=3)]
    flags = {flag.removeprefix("!") for row in table(release).values() for flag in row[4].split()}
    assert {word for one in drawn for word in one.argv if word.startswith("--")} <= flags
    assert all("torchrun --nnodes" in one.script for one in drawn)


def test_what_is_drawn_is_an_argument_of_a_release() -> None:
    named = {name for part in ("often", "often_with_experts", "seldom") for name in DRAWN[part]}
    known = {name for release in RELEASES for name in table(release)}
    assert named <= known


def test_megatron_accepts_and_refuses_shares_of_them_each_for_many_reasons() -> None:
    if checkout("megatron@core_0.20") is None:
        pytest.skip(missing("megatron@core_0.20"))
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.judge", "megatron@core_0.20", "150"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    verdicts = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    refused = Counter(one["where"] for one in verdicts if not one["accepted"])
    assert len(verdicts) == 150
    assert 30 <= 150 - refused.total() <= 120
    assert len(refused) > 30
    assert not refused["argparse"]
