"""Random jobs with Megatron's verdict, a JSON line each: `python -m tests.support.judge RELEASE [COUNT [SEED]]`.

A process of its own, since Megatron is imported with stand-ins and a process holds one release.
"""

import json
import sys
import warnings

from tests.support.judge.checkouts import checkout, missing
from tests.support.judge.megatron import Megatron
from tests.support.random_scripts import jobs


def main(release: str, count: str = "2000", seed: str = "1") -> None:
    warnings.simplefilter("ignore")
    home = checkout(release)
    if home is None:
        sys.exit(missing(release))
    judge = Megatron(home)
    for job in jobs(release, int(count), int(seed)):
        verdict = judge.verdict(job.argv, job.world, job.environment)
        words = {"settings": job.settings, "world": job.world, "environment": job.environment}
        print(
            json.dumps({"accepted": verdict.accepted, "why": verdict.why, "where": verdict.where, **words}), flush=True
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
