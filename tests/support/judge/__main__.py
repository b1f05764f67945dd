"""Random jobs with their framework's verdict, a JSON line each:
`python -m tests.support.judge RELEASE [COUNT [SEED [OF]]]`.

RELEASE is megatron@core_0.20, megatron@core_0.16, primus, torchtitan@0.2.2 or torchtitan@0.3.0. A process of its
own, since frameworks are imported with stand-ins and a process holds one release.
"""

import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.support.judge.checkouts import missing, required
from tests.support.judge.verdict import Verdict
from tests.support.random_files import RandomFile, experiments, job_files
from tests.support.random_scripts import RandomJob, jobs

Judged = Iterator[tuple[RandomJob | RandomFile, Verdict]]


def judged(release: str, count: int, seed: int, of: str = "") -> Judged:
    """Random jobs of a release and its verdicts; those that set what `of` says (`jobs`)."""
    if release.startswith("megatron"):
        from tests.support.judge.megatron import Megatron

        megatron = Megatron(*required(release))
        for job in jobs(release, count, seed, of=of):
            yield job, megatron.verdict(job.argv, job.world, job.environment)
        return
    judge: Any
    if release == "primus":
        from tests.support.judge.primus import Primus

        judge, files = Primus(*required(release)), experiments(count, seed, of=of)
    elif sources := required(release):
        from tests.support.judge.torchtitan_configs import TorchtitanConfigs

        judge, files = TorchtitanConfigs(*sources), job_files(release.partition("@")[2], count, seed, of=of)
    else:
        from tests.support.judge.torchtitan import Torchtitan

        judge, files = Torchtitan(), job_files(release.partition("@")[2], count, seed, of=of)
    with TemporaryDirectory() as folder:
        for file in files:
            path = Path(folder, f"job{file.suffix}")
            path.write_text(file.text, encoding="utf-8")
            yield file, judge.verdict(path, file.world, environment=file.environment)


def main(release: str, count: str = "2000", seed: str = "1", of: str = "") -> None:
    warnings.simplefilter("ignore")
    if required(release) is None:
        sys.exit(missing(release))
    for job, verdict in judged(release, int(count), int(seed), of):
        found = {"accepted": verdict.accepted, "why": verdict.why, "where": verdict.where, "given": verdict.given}
        words = {"settings": job.settings, "world": job.world, "environment": job.environment}
        print(json.dumps(found | words, default=str), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
