"""Random jobs of frameworks, judged by the frameworks' own checks."""

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support import random_files
from tests.support.judge.checkouts import needs
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


def test_files_are_drawn_alike_and_their_keys_are_of_the_release() -> None:
    titan = table("torchtitan@0.2.2")
    for drawn in (random_files.experiments(30, seed=3), random_files.job_files("0.2.2", 30, seed=3)):
        files = list(drawn)
        of_primus = files[0].suffix == ".yaml"
        again = random_files.experiments(30, seed=3) if of_primus else random_files.job_files("0.2.2", 30, seed=3)
        assert [one.text for one in files] == [one.text for one in again]
        known = table("primus").keys() | {"model"} if of_primus else titan.keys()
        assert {key for one in files for key in one.settings} <= known
    assert {key for part in ("often", "seldom") for key in random_files.DRAWN["torchtitan"][part]} <= titan.keys()


SHARES = {"megatron@core_0.20": (150, 30), "primus": (60, 12), "torchtitan@0.2.2": (40, 8)}
"""Jobs that are judged, and places that refuse some of them, at least."""


@pytest.mark.slow
@pytest.mark.parametrize("release", [pytest.param(one, marks=needs(one)) for one in SHARES])
def test_a_framework_accepts_and_refuses_shares_of_them_each_for_many_reasons(release: str) -> None:
    if release.startswith("torchtitan") and importlib.util.find_spec("torchtitan") is None:
        pytest.skip("torchtitan is not installed")
    count, places = SHARES[release]
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.judge", release, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    verdicts = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    refused = Counter(one["where"] for one in verdicts if not one["accepted"])
    assert len(verdicts) == count
    assert 0.15 * count <= count - refused.total() <= 0.8 * count
    assert len(refused) >= places
    assert not refused["argparse"]
