"""The small trainer of this package (`tools.truth.train_one`): one line of facts, one line per step."""

import json
import re

from primus_search.runs.learn.reading import LogReading, MemoryKind
from primus_search.runs.learn.steady import StepLine
from primus_search.runs.learn.transcript import Transcript, conclude
from primus_search.values.knobs.values import PARALLEL

FACTS, STEP, PEAK = "small trainer facts: ", "small trainer step ", "small trainer peak bytes: "
_FACTS = re.compile(rf"\A(?>.*?{FACTS})(\{{.*\}})")
_STEP = re.compile(STEP + r"(\d+): (\d+\.\d+) s\b")
_PEAK = re.compile(PEAK + r"(\d+)\b")
SIZES = ("gpus", *PARALLEL, "vpp", "seq_length", "micro_batch_size", "global_batch_size")


def observe(seen: Transcript, line: str) -> None:
    """One line of the trainer."""
    if "small trainer" not in line:
        return
    facts, step, peak = _FACTS.search(line), _STEP.search(line), _PEAK.search(line)
    if facts:
        try:
            found = json.loads(facts[1])
        except ValueError:
            return
        seen.facts.update({name: str(found[name]) for name in (*SIZES, "device", "model") if name in found})
    elif step:
        seen.add_step(StepLine(iteration=int(step[1]), seconds=float(step[2])))
    elif peak:
        seen.peak(MemoryKind.DEVICE, float(peak[1]))


def conclude_run(seen: Transcript) -> LogReading:
    """The run of a small trainer's log."""
    facts = {name: seen.whole(name) for name in SIZES}
    model = {"model_name": seen.facts["model"]} if "model" in seen.facts else {}
    return conclude(seen, "small-trainer", facts | {"model": model, "device": seen.text("device")})
