"""Random jobs of frameworks, judged by the frameworks' own checks."""

import importlib.util
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from primus_search.base.errors import InputError
from primus_search.launch.experiment_space import space_of
from primus_search.learning.started_experiment import start
from tests.support import random_files
from tests.support.judge.checkouts import needs, sources
from tests.support.random_files import RandomFile
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
    assert {key for part in ("often", "seldom") for key in random_files.DRAWN["torchtitan@0.2.2"][part]} <= titan.keys()


SHARES = {"megatron@core_0.20": (150, 30), "primus": (60, 12), "torchtitan@0.2.2": (40, 8), "torchtitan@0.3.0": (20, 4)}
"""Jobs that are judged, and places that refuse some of them, at least."""


@cache
def judged(release: str, count: int, seed: int, of: str = "") -> list[dict[str, Any]]:
    """Verdicts of a release on random jobs."""
    if release == "torchtitan@0.2.2" and importlib.util.find_spec("torchtitan") is None:
        pytest.skip("torchtitan is not installed")
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.judge", release, str(count), str(seed), of]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def drawn(release: str, count: int, seed: int, of: str = "") -> Iterator[RandomFile]:
    """The files of random jobs of a release."""
    if release.startswith("megatron"):
        for job in jobs(release, count, seed, of=of):
            yield RandomFile(job.settings, job.world, job.environment, job.script, ".sh")
    else:
        yield from (
            random_files.experiments(count, seed, of=of)
            if release == "primus"
            else random_files.job_files(release.partition("@")[2], count, seed, of=of)
        )


def refusal(file: RandomFile, release: str, folder: Path) -> str:
    """Why a file is not priced; empty where it is."""
    path = folder / f"job{file.suffix}"
    path.write_text(file.text, encoding="utf-8")
    per_node = min(file.world, 8)
    try:
        begun = start(
            path, "mi355x" if release == "primus" else "h100", 0 if file.suffix == ".sh" else file.world // per_node
        )
        begun = replace(begun, nodes=file.world // per_node, per_node=per_node)
        space_of(begun, [], None, release if file.suffix == ".sh" else "")
    except InputError as error:
        return str(error)
    return ""


UNDECIDED = ("LoopedBFS",)
"""What is judged otherwise on purpose: a schedule that is not modelled."""


@pytest.mark.in_turn("judged")
@pytest.mark.parametrize(
    ("release", "count", "seed"),
    [pytest.param(one, SHARES[one][0], 1, marks=[needs(one), pytest.mark.slow]) for one in SHARES]
    + [pytest.param(one, 500, int(time.strftime("%j")), marks=[needs(one), pytest.mark.full])
       for one in (*RELEASES, "primus", "torchtitan@0.2.2", "torchtitan@0.3.0")],
)  # fmt: skip
def test_of_random_jobs_those_are_priced_that_the_framework_starts(
    release: str, count: int, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if release == "primus":
        monkeypatch.setenv("PRIMUS_PATH", str(sources("primus")))
    wrong: dict[bool, list[str]] = {True: [], False: []}
    verdicts = judged(release, count, seed)
    for file, verdict in zip(drawn(release, count, seed), verdicts, strict=True):
        with monkeypatch.context() as started:
            for name, value in file.environment.items() if file.suffix == ".yaml" else ():
                started.setenv(name, value)
            ours = refusal(file, release, tmp_path)
        reasons = f"{ours} {verdict['why']}"
        if bool(ours) == verdict["accepted"] and not any(text in reasons for text in UNDECIDED):
            wrong[verdict["accepted"]].append(reasons)
    legal = sum(one["accepted"] for one in verdicts)
    assert len(wrong[True]) <= 0.01 * legal, "legal ones refused"
    assert len(wrong[False]) <= 0.01 * (count - legal), "illegal ones priced"


ABSENT = ("No such file", "not installed", "is required for", "no longer valid", "invalid literal for int",
          "No module named", "has no attribute", "compute capability")  # fmt: skip
"""What refuses a job whose arguments may be right: files and packages of another machine, an older Megatron's names."""
UNREAD = ("this reader does not read", "not modelled", "read the experiment", "is not a whole number", "out of range")
"""What is no refusal of a framework's: a job that is not priced, and says so."""


@pytest.mark.in_turn("judged")
@pytest.mark.parametrize(
    ("release", "count", "seed"),
    [pytest.param("megatron@core_0.20", 100, 1, marks=[needs("megatron@core_0.20"), pytest.mark.slow])]
    + [pytest.param(one, 1000, int(time.strftime("%j")), marks=[needs(one), pytest.mark.full]) for one in RELEASES],
)
def test_scripts_that_set_any_argument_are_refused_where_megatron_refuses_them(
    release: str, count: int, seed: int, tmp_path: Path
) -> None:
    verdicts, wrong = judged(release, count, seed, "all"), list[str]()
    for file, verdict in zip(drawn(release, count, seed, "all"), verdicts, strict=True):
        ours = refusal(file, release, tmp_path)
        if bool(ours) == verdict["accepted"] and not any(text in f"{ours}{verdict['why']}" for text in ABSENT + UNREAD):
            wrong.append(f"{ours} | {verdict['why']} | {file.settings}")
    assert len(wrong) <= 0.01 * count, "\n".join(wrong)


@pytest.mark.in_turn("judged")
@pytest.mark.slow
@pytest.mark.parametrize("release", [pytest.param(one, marks=needs(one)) for one in SHARES])
def test_a_framework_accepts_and_refuses_shares_of_them_each_for_many_reasons(release: str) -> None:
    count, places = SHARES[release]
    verdicts = judged(release, count, 1)
    refused = Counter(one["where"] for one in verdicts if not one["accepted"])
    assert len(verdicts) == count
    assert 0.15 * count <= count - refused.total() <= 0.8 * count
    assert len(refused) >= places
    assert not refused["argparse"]
