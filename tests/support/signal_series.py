"""Signals and kills at random moments of small runs, counted: `python -m tests.support.signal_series --count 300`.

Each run is started as a user starts it or with tasks cut small, with one worker or two, and gets one of TERM, INT, HUP,
KILL at a moment drawn from the whole time that such a run takes, its start included. What must hold: the exit code is
128 + n, or 0 where the run was complete before; no traceback; continued, the same files to the byte. Before our first
line Python ends by the signal itself, which shells show as 128 + n too: such a run has left nothing.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.support.kills import PATIENCE_S, Run, write_space

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL)
LATEST = 1.1
"""Last moment, over the wall time of an undisturbed run."""


def outcomes(count: int, seed: int, folder: Path) -> Iterator[tuple[str, str]]:
    """The signal and what became of each run; a line that begins with FAULT where it should not have."""
    space = write_space(folder)
    kinds = [Run(space, folder, ("--workers", workers), is_plain=plain) for workers in "12" for plain in (False, True)]
    answers, walls = [], []
    for number, kind in enumerate(kinds):
        started, whole = time.monotonic(), replace(kind, folder=folder / f"whole{number}")
        whole.finish()
        walls.append(time.monotonic() - started)
        answers.append(whole.answer())
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        which, sent = draw.randrange(len(kinds)), draw.choice(SIGNALS)
        later_s = draw.uniform(0.0, LATEST * walls[which])
        run = replace(kinds[which], folder=folder / str(number))
        yield sent.name, _outcome(run, sent, later_s, answers[which])


def _outcome(run: Run, sent: signal.Signals, later_s: float, answer: bytes) -> str:
    process = run.start()
    try:
        process.wait(later_s)
    except subprocess.TimeoutExpired:
        process.send_signal(sent)
    text = process.communicate(timeout=PATIENCE_S)[1].decode()
    run.wait_until_gone()
    is_complete, was_begun = (run.folder / "run.json").exists(), run.folder.exists()
    what = f"exit {process.returncode}"
    if "Traceback" in text or "ignored" in text:
        return f"FAULT {what} after {later_s:.3f} s: {text}"
    if process.returncode == 0:
        what += " complete" if is_complete else " FAULT incomplete"
    elif process.returncode == -sent:
        what = "killed" if sent is signal.SIGKILL else "ended before the first line"
        what += " FAULT with a folder" if was_begun and sent is not signal.SIGKILL else ""
    elif process.returncode != 128 + sent:
        what = f"FAULT {what} after {later_s:.3f} s: {text}"
    run.finish(*(["--resume"] if (run.folder / "journal.bin").exists() or is_complete else []))
    return what if run.answer() == answer else f"FAULT other bytes after {what} at {later_s:.3f} s"


def main() -> None:
    """Counts by signal and outcome as JSON; exit code 1 where one is a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    for ignored in (signal.SIGHUP, signal.SIGINT):  # by nohup, or by the shell of a background job
        signal.signal(ignored, signal.SIG_DFL)
    with tempfile.TemporaryDirectory() as folder:
        counts: Counter[str] = Counter()
        for name, what in outcomes(given.count, given.seed, Path(folder)):
            counts[f"{name}: {what}"] += 1
            print(counts.total(), name, what, file=sys.stderr, flush=True)
    print(json.dumps({"seed": given.seed, "runs": counts.total()} | dict(sorted(counts.items())), indent=1))
    sys.exit(any("FAULT" in what for what in counts))


if __name__ == "__main__":
    main()
