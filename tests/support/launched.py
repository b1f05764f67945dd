"""Random legal candidates of spaces as launch jobs, and the frameworks' own checks where a checkout is there."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from primus_search.launch.read.experiments import read_experiment
from primus_search.launch.write.job import LaunchJob
from primus_search.space import Enumerator, Space

ROOT = Path(__file__).resolve().parents[2]


def jobs(space: Space, count: int, seed: int = 1) -> Iterator[LaunchJob]:
    """Random legal candidates of the first cluster of a space."""
    enumerator = Enumerator(space)
    rng = np.random.default_rng(seed)
    numbers = np.sort(rng.choice(enumerator.size, min(count, enumerator.size), replace=False))
    table = enumerator.rows(numbers)
    for i in range(len(table)):
        yield LaunchJob.of(space, space.clusters[0], table.take(slice(i, i + 1)))


def assert_read(path: Path, wanted: dict[str, Any]) -> None:
    """Of 16 devices the file is the job that is wanted, key by key."""
    job = read_experiment(path, 16)
    assert job.model is not None, job.model_problems
    found = {**job.row, "gpus": job.world.gpus, "seq_length": job.seq_length, "batch": job.global_batch_size}
    found |= {"program": job.program, "model": job.model.name}
    assert {key: found[key] for key in wanted} == wanted


def verdicts(release: str, files: list[Path]) -> list[dict[str, Any]]:
    """What a release of a framework answers to launch files: {file, accepted, why, args} of each, in order."""
    return verdicts_of([(release, files)])[0]


def verdicts_of(cases: list[tuple[str, list[Path]]]) -> list[list[dict[str, Any]]]:
    """`verdicts` of each (release, files); one process starts for all."""
    text = json.dumps([(release, [str(file.resolve()) for file in files]) for release, files in cases])
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.judge.files"]
    done = subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    found: list[list[dict[str, Any]]] = json.loads(done.stdout)
    return found
