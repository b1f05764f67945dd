"""A command as a job of a cluster, through submitit: submitted, followed to its end, cancelled with this process.

    python -m primus_search.learning.submitted slurm slurm_partition=gpu nodes=4 timeout_min=30 -- bash start.sh

What the job prints is printed here, so whoever waits for this process sees a command of its own machine. Parameters are
those of `submitit.AutoExecutor.update_parameters`; the folder is one that the nodes share.
"""

import shlex
import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, Problem

CLUSTERS = ("slurm", "local")
FOLDER = ".jobs"
"""Below the working folder: what submitit writes of a job."""
LOOK_S = 0.5
TERMINATED = 128 + signal.SIGTERM


def through(words: str, command: str) -> str:
    """A command that runs another through submitit, `slurm nodes=4`. Raises `InputError` for what it cannot do."""
    cluster, *given = shlex.split(words) or [""]
    where = f"--through {words}"
    if cluster not in CLUSTERS or not all("=" in one for one in given):
        raise InputError([Problem(where, f"write {' or '.join(CLUSTERS)}, then KEY=VALUE as submitit names them")])
    if find_spec("submitit") is None:
        raise InputError([Problem(where, "needs submitit; install it with: pip install 'primus-search[slurm]'")])
    return (
        f"{shlex.join([sys.executable, '-m', __spec__.name if __spec__ else __name__, cluster, *given])} -- {command}"
    )


def submitted(cluster: str, parameters: dict[str, Any], command: list[str]) -> int:
    """The exit code of a command that ran as a job: 0, or 1 with the last of its errors printed."""
    import submitit

    executor = submitit.AutoExecutor(folder=Path(FOLDER), cluster=cluster)
    executor.update_parameters(**parameters)
    job = executor.submit(submitit.helpers.CommandFunction(command, cwd=Path.cwd()))
    output, shown = Path(job.paths.stdout), 0
    try:
        while not job.done():
            time.sleep(LOOK_S)
            shown += _show(output, shown)
    finally:
        if not job.done():
            job.cancel(check=False)
    _show(output, shown)
    error = job.exception()
    if error is not None:
        print(error, file=sys.stderr)
    return int(error is not None)


def _show(output: Path, shown: int) -> int:
    """Print what a job's log has behind its first bytes; how many those were."""
    if not output.is_file():
        return 0
    with output.open("rb") as opened:
        opened.seek(shown)
        more = opened.read()
    sys.stdout.write(more.decode(errors="replace"))
    sys.stdout.flush()
    return len(more)


def main() -> int:
    """The exit code for the words of the command line."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # so that the job is cancelled
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a local job that inherits an ignored one goes on
    at = sys.argv.index("--")
    pairs = (word.partition("=")[::2] for word in sys.argv[2:at])
    parameters = {key: int(value) if value.isdecimal() else value for key, value in pairs}
    return submitted(sys.argv[1], parameters, sys.argv[at + 1 :])


if __name__ == "__main__":
    sys.exit(main())
