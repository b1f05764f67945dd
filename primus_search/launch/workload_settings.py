"""Values of a workload as settings of a launch file, and back, by the rows of a contract (`Framework.workload`).

    workload_values(megatron, {"moe_pad_expert_input_to_capacity": True, "moe_expert_capacity_factor": 1.5}, True)

What no row of a framework writes is of the data or of the router: it stands under Edit of each file.
"""

from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any

from primus_search.base.guards.values import finite_number
from primus_search.launch.contract import same
from primus_search.launch.document_packing import PackingKeys, packing_in
from primus_search.launch.write.job import LaunchJob
from primus_search.values.machine.framework import NOTHING, Framework, Settings, WorkloadSetting
from primus_search.values.workload import Workload

DEFAULTS = {one.name: one.default for one in fields(Workload) if one.default is not MISSING}


def workload_values(framework: Framework, given: Settings) -> dict[str, Any]:
    """Fields of a workload that settings of a job make."""
    found: dict[str, Any] = {}
    for row in _made(framework, given):
        found |= dict(row.values) | {field: float(given[key]) for field, key in row.keys.items()}
    return found


def workload_keys(framework: Framework, given: Settings) -> frozenset[str]:
    """Keys that are priced by the values they make."""
    rows = _made(framework, given)
    return frozenset(key for row in rows for key in (*row.settings, *row.keys.values()))


def _made(framework: Framework, given: Settings) -> Iterator[WorkloadSetting]:
    """Rows whose settings a job has, numbers of at least 1 included."""
    for row in framework.workload:
        is_set = all(same(given.get(key, framework.defaults.get(key)), value) for key, value in row.settings.items())
        numbers = [finite_number(str(given.get(key))) or 0.0 for key in row.keys.values()]
        if is_set and all(number >= 1.0 for number in numbers):
            yield row


def workload_settings(job: LaunchJob) -> dict[str, Any]:
    """The settings of a job's workload, of rows whose values it has where they are not the defaults."""
    found: dict[str, Any] = {}
    for row in _written(job):
        found |= dict(row.settings) | {key: _value(job, field) for field, key in row.keys.items()}
    return found


def unwritten(job: LaunchJob, given: Settings | None = NOTHING) -> dict[str, Any]:
    """Fields of a job's workload that no setting says, where they are not what its file is read as.

    given  the settings of the file, as far as they say how rows are filled; None: what the file runs brings them
    """
    of_rows = {field for row in _written(job) for field in (*row.values, *row.keys)}
    rows = PackingKeys(rows=job.framework.packing)
    read = {**DEFAULTS, **({"packing": None} if given is None else packing_in(given, rows))}
    if not job.workload.documents:
        read["packing"] = job.workload.packing
    return {
        field: _value(job, field)
        for field, default in read.items()
        if field in DEFAULTS and field not in of_rows and _value(job, field) != default
    }


def _written(job: LaunchJob) -> Iterator[WorkloadSetting]:
    for row in job.contract.workload:
        is_whole = all(_value(job, field) == value for field, value in row.values.items())
        is_said = any(_value(job, field) != DEFAULTS[field] for field in row.values)
        if is_whole and is_said:
            yield row


def _value(job: LaunchJob, field: str) -> Any:
    return job.workload.__getattribute__(field)
