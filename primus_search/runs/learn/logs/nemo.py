"""NeMo 1 and 2 (Lightning): step timing in the progress bar, in DLLogger's lines or in the console lines.

`train_step_timing` is a running mean over a few steps; the precise lines are preferred to the bar's three digits.
"""

import re
from typing import Any

from primus_search.runs.learn.megatron_lines import (
    LAYOUT_ARGUMENTS,
    MODEL_ARGUMENTS,
    SETTING_ARGUMENTS,
    megatron_facts,
    observe_layout,
)
from primus_search.runs.learn.reading import LogReading, MemoryKind
from primus_search.runs.learn.steady import StepLine
from primus_search.runs.learn.transcript import (
    Transcript,
    clock_s,
    conclude,
    observe_configuration,
    observe_progress,
    product,
)

_NAMES = frozenset(
    (*LAYOUT_ARGUMENTS, *MODEL_ARGUMENTS, *SETTING_ARGUMENTS, "num_nodes", "devices", "activation", "bias")
)
_NUMBER = r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?=[\s,|\]]|$)"
_DLL = re.compile(r"DLL [\d-]+ [\d:.]+ - (\d+) (.*)$")
_DLL_PARAMETER = re.compile(r"cfg/([\w/]{1,120}) : (\S+)")
_BAR = re.compile(r"global_step=" + _NUMBER)
_BAR_CLOCK = re.compile(r"(?<!\d)\d{1,12}/\d{1,12} \[((?:\d{1,6}:)?\d{1,6}:\d\d)<")
_CONSOLE = re.compile(r"iteration (\d+)/\d+ \|")
_GLOBAL_STEP = re.compile(r"global_step: (\d+)\b")
_TIMING = re.compile(r"train_step_timing(?: in s)?\s*[=:]\s*" + _NUMBER)
_BATCH = re.compile(r"global_batch_size: (\d+)\b")
_RATE = re.compile(r"tokens_per_sec_per_gpu: " + _NUMBER)
_PEAK = re.compile(r"max_memory_(allocated|reserved): " + _NUMBER)
_MEMBER = re.compile(r"GLOBAL_RANK: \d+, MEMBER: \d+/(\d+)\b")
_GROUPS = re.compile(
    r"All (context parallel|tensor model parallel|pipeline model parallel) group ranks: \[\[([\d, ]+)\]"
)
_PROCESSES = re.compile(r"Starting with (\d+) processes")


def observe(seen: Transcript, line: str) -> None:
    """One line of a NeMo log."""
    if not seen.scratch.get("precise") and not seen.steps:
        _observe_facts(seen, line)
    if "train_step_timing" not in line:
        if "global_step=" in line:
            _observe_bar(seen, line)
        return
    dll, console = _DLL.search(line), _CONSOLE.search(line)
    if dll:
        _add(seen, int(dll[1]), dll[2], is_precise=True)
    elif console:
        step = _GLOBAL_STEP.search(line)
        _add(seen, int(step[1]) if step else int(console[1]), line, is_precise=True)
    else:
        bar = _BAR.search(line)
        if bar:
            _add(seen, round(float(bar[1])), line, is_precise=False)


def _observe_bar(seen: Transcript, line: str) -> None:
    """The progress bar of a release without step timing: its clock counts whole seconds."""
    step, clock = _BAR.search(line), _BAR_CLOCK.search(line)
    if step and clock:
        observe_progress(seen, round(float(step[1])), clock_s(clock[1]))


def _observe_facts(seen: Transcript, line: str) -> None:
    observe_configuration(seen, line, _NAMES)
    observe_layout(seen, line)
    if "cfg/" in line:
        seen.facts.update({name: value for name, value in _DLL_PARAMETER.findall(line) if "/" not in name})
    groups = _GROUPS.search(line) if "group ranks: " in line else None
    if groups:
        seen.facts[f"line:{groups[1].replace(' ', '_')}_size"] = str(groups[2].count(",") + 1)
    for pattern in (_MEMBER, _PROCESSES):
        found = pattern.search(line)
        if found:
            seen.facts["members"] = found[1]


def _add(seen: Transcript, iteration: int, text: str, *, is_precise: bool) -> None:
    timing = _TIMING.search(text)
    if timing is None:
        return
    batch, rate = _BATCH.search(text), _RATE.search(text)
    for name, size in _PEAK.findall(text):
        seen.peak(MemoryKind.ALLOCATED if name == "allocated" else MemoryKind.RESERVED, float(size))
    line = StepLine(
        iteration=iteration,
        seconds=float(timing[1]),
        shape=(int(batch[1]) if batch else None,),
        rate=float(rate[1]) if rate else None,
    )
    seen.add_step(line)
    if is_precise:
        seen.scratch.setdefault("precise", []).append(seen.steps[-1])


def conclude_run(seen: Transcript) -> LogReading:
    """The run of a NeMo log."""
    if seen.scratch.get("precise"):
        seen.steps = seen.scratch["precise"]
    if "swiglu" in (seen.text("activation") or ""):
        seen.facts.setdefault("swiglu", "True")
    if seen.text("bias") is not None:
        seen.facts.setdefault("add_bias_linear", seen.facts["bias"])
    facts, assumed = megatron_facts(seen)
    facts["gpus"] = _gpus(seen, facts)
    return conclude(seen, "nemo", facts, assumed, settings=SETTING_ARGUMENTS)


def _gpus(seen: Transcript, facts: dict[str, Any]) -> int | None:
    """Lightning's count of processes, else nodes x devices of its trainer, else what else the log prints."""
    return seen.whole("members") or product(seen.whole("num_nodes"), seen.whole("devices")) or facts["gpus"]
