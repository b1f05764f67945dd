"""Progress that a log states as steps done and time passed: bars of tqdm, records of Trainers."""

import re

from primus_search.learn.steady import StepLine
from primus_search.learn.transcript import Transcript

SHORTEST_BAR_STEP_S = 20.0
"""A progress bar counts whole seconds: differences below this are added up until they reach it."""

_CLOCK = re.compile(r"(?:(\d+)d ?)?(?:(\d+)h ?)?(?:(\d+)m ?)?(?:(\d+)s)?$")
_COLONS = re.compile(r"(?:(\d+) days?, )?(?:(\d+):)?(\d+):(\d+)$")


def observe_progress(
    seen: Transcript, step: int, elapsed: float | None, shortest_s: float, rate: float | None = None
) -> None:
    """A step line from the time since the progress before; evaluation bars restart and are no progress."""
    if elapsed is None:
        return
    last_step, last_elapsed = seen.scratch.get("last", (0, None))
    if step <= last_step:
        return
    if last_elapsed is not None and elapsed - last_elapsed < shortest_s:
        return
    span = step - last_step
    seconds = (elapsed - last_elapsed) / span if last_elapsed is not None else 0.0
    seen.add_step(StepLine(iteration=step, seconds=max(seconds, 0.0), span=span, rate=rate))
    seen.scratch["last"] = (step, elapsed)


def clock_s(text: str) -> float | None:
    """Seconds of `1h 2m 3s`, `1:02:03` or `02:03`."""
    colons, clock = _COLONS.match(text), _CLOCK.match(text)
    if colons:
        days, hours, minutes, seconds = (float(part or 0) for part in colons.groups())
    elif clock and text:
        days, hours, minutes, seconds = (float(part or 0) for part in clock.groups())
    else:
        return None
    return ((days * 24.0 + hours) * 60.0 + minutes) * 60.0 + seconds
