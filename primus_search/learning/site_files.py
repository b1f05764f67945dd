"""The two files of a site: `NAME.yaml`, its stack, and `NAME.runs.parquet`, the runs it rests on; and learning again.

`learn` with the same name adds runs to those of the file and fits all of them from the shipped stacks, so that the
order in which runs came does not matter.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from primus_search.base.errors import InputError, Problem, tried
from primus_search.declare.record_table import read_records, write_records
from primus_search.files.hardware_files import load_hardware, load_stack, site_of
from primus_search.files.learned_stacks import RUNS_ENDING
from primus_search.files.search_path import FileKind, shipped
from primus_search.learning.collected_runs import Readings
from primus_search.learning.inference.hypotheses import FRAMEWORK_STACKS, NOT_SOFTWARE
from primus_search.learning.logged_run import SaidBeside, measured_run
from primus_search.learning.site_stack import SiteStack, learn_stack
from primus_search.values.machine.cluster import Cluster
from primus_search.values.machine.stack import Stack
from primus_search.values.measured_run import MeasuredRun

PLAIN_STACK = "megatron_lm"
"""The stack that runs of a framework without a stack file are recorded with; hypotheses do not depend on it."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def runs_path(folder: Path, name: str) -> Path:
    """Where the runs of a site stand."""
    return folder / f"{name}{RUNS_ENDING}"


def learn_from(
    readings: Readings, name: str, beside: SaidBeside, *, base: str | None, folder: Path, framework: str | None = None
) -> SiteStack:
    """The stack of a site from what was read and from the runs of its file; `framework`: of a site without runs.

    Raises `InputError` for a name that cannot be used, an unknown base, and with every fact that the runs lack.
    """
    _check(name, base)
    new = _runs(readings, beside, base)
    path = runs_path(folder, name)
    kept = read_records(path).runs if path.is_file() else ()
    seen = {run.id for run in new}
    runs = [run for run in kept if run.id not in seen] + new
    frameworks = Counter(run.framework for run in runs if run.framework)
    framework = frameworks.most_common(1)[0][0] if frameworks else framework
    cluster = None if runs else _unmeasured(beside, replace(load_stack(base or PLAIN_STACK), is_assumed=base is None))
    return learn_stack(name, runs, framework=framework, base=base, cluster=cluster)


def _unmeasured(beside: SaidBeside, stack: Stack) -> Cluster:
    """The devices of a site that has no runs yet."""
    if beside.hardware is None:
        raise InputError([Problem("FILES", "are needed, or --hardware NAME: what is known of software before it ran")])
    hardware = load_hardware(beside.hardware)
    return Cluster(
        accelerator=hardware.accelerator, network=hardware.network, stack=stack, num_nodes=1, site=site_of(hardware)
    )


def write_runs(runs: Sequence[MeasuredRun], path: Path) -> None:
    """Write the runs of a site. Raises `InputError` where that is impossible."""
    try:
        write_records(runs, path)
    except OSError as error:
        raise InputError([Problem(f"--into {path}", f"cannot be written: {error.strerror}")]) from error


def _check(name: str, base: str | None) -> None:
    problems: list[Problem] = []
    if not _NAME.fullmatch(name):
        problems.append(Problem(f"--as {name}", "a name has letters, digits, '_', '.' and '-' only"))
    elif name in shipped(FileKind.STACK):
        problems.append(Problem(f"--as {name}", "is a stack that ships with the package; choose another name"))
    known = [one for one in shipped(FileKind.STACK) if one not in NOT_SOFTWARE]
    if base is not None and base not in known:
        problems.append(Problem(f"--base {base}", f"is no shipped stack; known: {', '.join(known)}"))
    if problems:
        raise InputError(problems)


def _runs(readings: Readings, beside: SaidBeside, base: str | None) -> list[MeasuredRun]:
    """Every reading as a measured run; the facts that are missing in any of them are one error."""
    found = list(readings.measured)
    problems: list[Problem] = []
    for reading in readings.runs:
        named = FRAMEWORK_STACKS.get(reading.framework, (PLAIN_STACK,))[0]
        try:
            found.append(measured_run(reading, beside, load_stack(base or named)))
        except InputError as error:
            source = reading.source  # many logs are read at once
            problems += (p if source in p.where else replace(p, where=f"{source} @ {p.where}") for p in error.problems)
    if problems:
        raise InputError(list(dict.fromkeys(problems)))
    return found


def needed(readings: Readings, beside: SaidBeside, base: str | None) -> Sequence[Problem]:
    """What `learn_from` would ask for of these readings."""
    problems: list[Problem] = []
    tried(partial(_runs, readings, beside, base), problems)
    return problems
