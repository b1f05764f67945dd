"""An experiment on a cluster as a space of one candidate, so that it is judged and projected like any other."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from primus_search.base.errors import InputError, Problem, readable
from primus_search.base.guards.files import MAX_TABLE_BYTES, read_text
from primus_search.base.units import GIB
from primus_search.declare.overrides import set_values
from primus_search.declare.space_file import make_space
from primus_search.declare.variants import stack_fields
from primus_search.files.device_memory import with_memory
from primus_search.files.hardware_files import load_hardware
from primus_search.files.shell.files_beside import beside
from primus_search.launch.adapters import workload_settings
from primus_search.launch.document_packing import with_lengths
from primus_search.launch.experiment import Experiment
from primus_search.launch.refusals import RELEASES, judged, started_by
from primus_search.models.build import VOCAB_MULTIPLE, vocabulary
from primus_search.models.megatron_arguments import class_sizes
from primus_search.space import AXES, Space
from primus_search.values.knobs import KNOB, KNOBS
from primus_search.values.machine.stack import number_of, with_numbers
from primus_search.values.machine.state_formats import is_stacks_own


@dataclass(frozen=True, kw_only=True)
class Start:
    """An experiment with the machine it is started on; `model` names its model, `notes` say what was assumed.

    per_node  GPUs of a node     world  GPUs in all
    """

    experiment: Experiment
    hardware: str
    nodes: int
    per_node: int
    model: str
    notes: tuple[str, ...] = ()

    @property
    def world(self) -> int:
        """GPUs in all."""
        return self.nodes * self.per_node


def space_of(begun: Start, sets: list[str], stack: str | None, framework: str) -> Space:
    """The space of one candidate of an experiment. Raises `InputError` where its batch or sequence is not given."""
    experiment = begun.experiment
    sets, rows = _without_vocabulary(sets)
    given = set_values(sets)
    own = with_memory(load_hardware(begun.hardware), experiment.device_bytes)
    if own.notes and not any(key.startswith("space.hardware.hbm_") for key in given):
        sets = [f"hardware.hbm_GiB={own.accelerator.hbm_bytes / GIB:.2f}", *sets]
    if rows is not None and experiment.model is not None:
        padded = vocabulary(rows, VOCAB_MULTIPLE)
        model = replace(experiment.model, vocab_size=padded["vocab_size"], vocab_padding=padded["vocab_padding"])
        experiment = replace(experiment, model=model)
    row = dict(experiment.row)
    missing = [n for n in ("seq_length", "global_batch_size") if experiment.__getattribute__(n) is None]
    if [name for name in missing if f"workload.{name}" not in given]:
        what = f"does not set {' and '.join(missing)}; add {' '.join(f'--set {name}=N' for name in missing)}"
        raise InputError([Problem(str(experiment.path), what)])
    with readable(str(experiment.path)):
        trained = workload_settings(experiment.tuning, experiment.model)
    data: dict[str, Any] = {
        "name": experiment.path.stem,
        "model": begun.model,
        "hardware": begun.hardware,
        "framework": framework or experiment.framework.name,
        "workload": {
            "seq_length": experiment.seq_length or 1,
            "global_batch_size": experiment.global_batch_size or 1,
            **with_lengths(experiment.workload, given),
            **trained,
        },
        "space": {axis: _given(axis, row) for axis in row if not KNOB[axis].detail_of},
        "search": {"memory_margin": 0.0},
        "gpus_per_node": begun.per_node,
    }
    device = load_hardware(begun.hardware).accelerator
    if stack is None and not framework:
        stack = _stack_of(experiment, device.vendor)
    if stack is not None:
        data["stack"] = stack
    contract = experiment.framework.name
    release = framework if framework.partition("@")[0] == contract.partition("@")[0] else _release(experiment)
    sizes = class_sizes(experiment.model) if contract == "nemo" and experiment.model else {}
    found = judged(release, {**sizes, **experiment.written}, begun.world, device.capability)
    problems = [one for one in found if not one.is_advice]
    if problems and not any(f"space.{axis}" in given for axis in AXES):
        title, other = (
            experiment.framework.title,
            started_by(release, experiment.written, begun.world, device.capability),
        )
        if other and not framework and (version := _older_checkout(experiment)):
            note = f"{title} today does not start it ({problems[0]}); read by the rules of {other}, as in a checkout of"
            space = space_of(begun, sets, stack, other)
            return replace(space, notes=(f"{note} {version}", *space.notes))
        way = f"; an older release starts it: --framework {other}" if other else ""
        raise InputError([Problem(str(experiment.path), f"{title} does not start it: {one}{way}") for one in problems])
    make = partial(
        make_space,
        name=str(experiment.path),
        nodes=begun.nodes,
        overrides=sets,
        environ={},
        model=experiment.model,
        is_started=True,
    )
    set_by_user = stack_fields(key.removeprefix("space.") for key in given)
    decided = {name: value for name, value in experiment.numbers.items() if name not in set_by_user}
    advice = tuple(f"{experiment.framework.title} advises against it: {one}" for one in found if one.is_advice)
    space = _with_numbers(make(data), decided)
    if row["state_format"] != STACK and is_stacks_own(space.cluster.stack, row["state_format"]):
        space = _with_numbers(make(data | {"space": data["space"] | {"state_format": STACK}}), decided)
    return replace(space, notes=(*advice, *_untold(space, row), *space.notes))


def _stack_of(experiment: Experiment, vendor: str) -> str | None:
    """The stack of a vendor's devices that an experiment is run with: its variant, or its launcher's own."""
    own = experiment.framework.stack_of(vendor, experiment.variant) if experiment.variant else None
    return experiment.stacks.get(vendor) if own is None else own


def _untold(space: Space, row: Mapping[str, Any]) -> tuple[str, ...]:
    """A note on an overlap that is off, on a stack whose runs do not tell it from one that is on."""
    numbers = {number_of(space.cluster.stack, name) for name in ("tensor_overlap", "switched_tensor_overlap")}
    is_off = row["sequence_parallel"] and row["tp"] > 1 and not row["tp_overlap"]
    said = f"tp_overlap is off and priced as on: runs of {space.cluster.stack.name} do not tell them apart (slower)"
    return (said,) if is_off and len(numbers) == 1 else ()


def _older_checkout(experiment: Experiment) -> str:
    """The version of a framework that stands around a file of it; empty where it is none, or of today's release."""
    own = experiment.framework.checkout
    file = beside(experiment.path.parent, own["file"]) if own else None
    found = re.findall(own["numbers"], read_text(file, most=MAX_TABLE_BYTES)) if file else []
    newest = re.findall(r"\d+", RELEASES[experiment.framework.name][0].arguments) if found else []
    return f"{own['title']} {'.'.join(found)}" if [*map(int, found)] < [*map(int, newest)] else ""


def _release(experiment: Experiment) -> str:
    """The contract of an experiment, with the release that a launch file of this program says it needs."""
    contract = experiment.framework.name
    if experiment.path.suffix != ".sh" or not experiment.path.is_file():
        return contract
    text = experiment.path.read_text(encoding="utf-8", errors="replace")
    named = (one.arguments for one in RELEASES.get(contract, ()))
    return next(
        (one for one in named if f"# Needs: {experiment.framework.title} {one.rpartition('@')[2]};" in text), contract
    )


def _with_numbers(space: Space, numbers: Mapping[str, Any]) -> Space:
    """The space on a stack with the numbers that a file decides, noted where they differ from the stack's own."""
    stack = space.cluster.stack
    differs = {name: value for name, value in numbers.items() if number_of(stack, name) != value}
    if not differs:
        return space
    pairs = (f"{name} {_word(value)} (stack file: {_word(number_of(stack, name))})" for name, value in differs.items())
    choices = tuple(
        replace(one, cluster=replace(one.cluster, stack=with_numbers(one.cluster.stack, differs)))
        for one in space.clusters
    )
    return replace(space, clusters=choices, notes=(*space.notes, f"by settings of the file: {', '.join(pairs)}"))


def _word(value: Any) -> str:
    """A number of a stack for a note."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


STACK = "stack"
"""The word of an axis for what the stack has anyway."""


def _without_vocabulary(sets: list[str]) -> tuple[list[str], int | None]:
    """`--set` without the rows of the embedding, and those; None where none is given."""
    given = [text for text in sets if text.partition("=")[0].strip() == "vocab_size"]
    number = given[-1].partition("=")[2].strip().replace("_", "") if given else ""
    if given and (not number.isdecimal() or not 0 < int(number) < 10_000_000):
        raise InputError([Problem(f"--set {given[-1]}", "vocab_size is a whole number of rows")])
    return [text for text in sets if text not in given], int(number) if given else None


def _given(axis: str, row: Mapping[str, Any]) -> Any:
    """A word of a candidate as a space file writes it, with its details: `{full: 2, method: block}`."""
    value = row[axis]
    details = {detail.detail_key: detail for detail in KNOBS if detail.detail_of == axis}
    if value in details:
        return {key: row[one.name] or ("all" if one.has_all else 0) for key, one in details.items()}
    if axis == "pipeline_layout" and str(value).startswith("first="):
        ends = dict(part.split("=") for part in str(value).split(","))
        return {end: int(n) for end, n in ends.items() if n != "None"}
    return value
