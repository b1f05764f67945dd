"""Space files: from YAML, flags and environment to a typed `Space`, or every problem at once.

load_space("spaces/mixtral_8x22b.yaml", nodes=32, overrides=["tp=8"])
make_space({"model": "llama3_8b", "hardware": "mi300x", "workload": {...}})     the same from Python
"""

import hashlib
import itertools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, Problem, did_you_mean, tried
from primus_search.base.guards.values import name_problem
from primus_search.declare import variants
from primus_search.declare.axes import ALL, AXIS, Item, Reader, Word
from primus_search.declare.file_problems import FileProblems
from primus_search.declare.machines import MachineReader
from primus_search.declare.overrides import applied
from primus_search.declare.record_table import with_measured_switches
from primus_search.declare.space_schema import SpaceFile, validate
from primus_search.declare.workload_file import PolicyError, all_weights, with_documents, workload_of
from primus_search.files.search_path import FileKind, find, is_path, title
from primus_search.files.source import Document, join_words, read
from primus_search.models.model_constants import not_priced
from primus_search.models.model_files import load_model
from primus_search.space import (
    AXES,
    Axis,
    AxisValue,
    BenchmarkSettings,
    ClusterChoice,
    Constraint,
    ConstraintError,
    Goal,
    SearchSettings,
    Space,
    parse,
    word_values,
)
from primus_search.space.auto import RECIPES, RELIEFS, every_value, with_needed
from primus_search.space.tokens import axis_name
from primus_search.space.types import Numerics
from primus_search.values.knobs import NUMERIC
from primus_search.values.layout import Layout, expand
from primus_search.values.model import Model
from primus_search.values.workload import Workload


def load_space(
    path: str | Path,
    *,
    nodes: int | None = None,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    host_file: Callable[[], Path] | None = None,
) -> Space:
    """The space in a file (a path, or the name of one that ships with the package).

    `overrides` are `key=value` texts as after `--set` (or `--flag key=value`, for messages to name); `environ` replaces
    the process environment; `host_file` is called when the hardware is `host` (see `files.hardware_files`).
    Raises InputError with every problem.
    """
    text = str(path)
    found = find(FileKind.SPACE, text) if not is_path(text) and not Path(text).exists() else Path(text)
    if isinstance(found, str):
        raise InputError([Problem("space", found)])
    document = read(found)
    digest = hashlib.sha256(found.read_bytes()).hexdigest()
    assembly = _Assembly(document=document, beside=found.parent, host_file=host_file)
    space = assembly.space(nodes, overrides, os.environ if environ is None else environ)
    return replace(space, source=document.name, sha256=digest)


def make_space(
    data: Mapping[str, Any],
    *,
    name: str = "space",
    nodes: int | None = None,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    model: Model | None = None,
    is_started: bool = False,
) -> Space:
    """The space that a mapping with the keys of a space file describes; `name` stands for the file in messages.

    model: stands in for the one that the mapping names. is_started: the job of a launch file, whose framework is named
    for its rules and may be started by another program, which has the adapters.
    """
    assembly = _Assembly(document=Document(name, dict(data)), model=model, is_started=is_started)
    return assembly.space(nodes, overrides, os.environ if environ is None else environ)


@dataclass(slots=True, kw_only=True)
class _Assembly(FileProblems):
    """Builds one space from one document, collecting what is wrong on the way; `model` stands in for the file's."""

    beside: Path | None = None
    host_file: Callable[[], Path] | None = None
    model: Model | None = None
    is_started: bool = False

    def space(self, nodes: int | None, overrides: Sequence[str], environ: Mapping[str, str]) -> Space:
        """The space with flags and variables laid over the file; InputError with every problem."""
        self.document, won, unread = applied(self.document, nodes=nodes, sets=overrides, environ=environ)
        shape, self.skip, self.problems = validate(self.document)
        self.problems += unread
        if shape is None:
            raise InputError(self.problems)
        space = self._space(shape)
        if self.problems or space is None:
            raise InputError(sorted(self.problems, key=_line))
        return with_measured_switches(replace(space, overrides=won))

    def _space(self, shape: SpaceFile) -> Space | None:
        if shape.name is not None and (wrong := name_problem(shape.name)):
            self.problem(("name",), wrong)
        model = self._model(shape)
        workload = self._workload(shape, model)
        items, hardware_axes = self._axes_as_written(shape.space)
        machines = MachineReader(self, self.beside, self.host_file, self.is_started)
        choices = machines.clusters(shape, hardware_axes, model)
        constraints = self._constraints(shape, has_adapters=workload.adapters is not None)
        if model is None or not choices or "workload" in self.skip:
            return None
        numerics = shape.search.numerics
        choices = [self._with_axes(choice, items, model, workload, numerics) for choice in choices]
        if self.problems:
            return None
        self._check_layouts(choices[0], model)
        self._check_batch(choices, workload)
        given = [shape.hardware] if isinstance(shape.hardware, str) else shape.hardware
        hardware = " or ".join(title(text) for text in given)
        space = Space(
            name=shape.name or f"{title(shape.model)} on {hardware}",
            model=replace(model, adapters=workload.adapters),
            workload=workload,
            clusters=tuple(choices),
            constraints=constraints,
            search=_search(shape),
            notes=tuple(self.notes),
            benchmark=BenchmarkSettings(**shape.benchmark.model_dump()),
            goal=Goal(**shape.goal.model_dump()),
        )
        self._check_goal(space, shape)
        return space

    # --- model, workload, clusters ---------------------------------------------------------------------------------

    def _model(self, shape: SpaceFile) -> Model | None:
        if "model" in self.skip:
            return None
        where = self.document.where(("model",))
        if self.model is not None and not shape.ignore and shape.vocab_size is None:
            self.notes += not_priced(self.model)
            return self.model
        changed = partial(load_model, ignore=tuple(shape.ignore), vocab_size=shape.vocab_size)
        model = tried(partial(changed, shape.model, beside=self.beside, where=where), self.problems)
        if model is not None:
            self._note_towers(model, shape)
            self.notes += not_priced(model)
        self.notes += [f"model key '{key}' ignored as told (--ignore)" for key in (model.ignored if model else ())]
        return model

    def _workload(self, shape: SpaceFile, model: Model | None) -> Workload:
        """The workload of the file; one that trains all weights where its adapters cannot be read."""
        try:
            workload = workload_of(shape.workload, model)
        except ValueError as error:
            self.problem(("workload", "policy" if isinstance(error, PolicyError) else "lora"), str(error))
            workload = all_weights(shape.workload)
        try:
            return with_documents(workload, shape.workload, self.beside)
        except ValueError as error:
            self.problem(("workload", "document_length"), str(error))
            return workload

    def _note_towers(self, model: Model, shape: SpaceFile) -> None:
        """Say what every tower costs, or why it is not projected; a problem for images without a tower."""
        work = shape.workload
        if work.image_tokens and not any(tower.is_counted for tower in model.towers):
            what = "image_tokens: the model has no tower whose sizes are known"
            self.problem(("workload", "image_tokens"), what)
        if not work.tokens_per_image <= work.image_tokens <= work.seq_length:
            what = "tokens_per_image is at most image_tokens, and these at most seq_length"
            self.problem(("workload", "image_tokens"), what)
        for tower in model.towers:
            if not tower.is_counted:
                self.notes.append(f"{tower.name} tower of the model is not counted: text model only")
                continue
            size = f"{tower.name} tower ({tower.params / 1e9:.2f} B)"
            per_token = tower.flops_per_token(tower.patches(all_weights(work)))
            share = per_token / (model.flops_per_token(work.seq_length) / 3.0)
            cost = f"{per_token / 1e9:.1f} GFLOP per image token forward, {share:.2f} of the text model's"
            held = "on the first stage" if work.image_tokens else "not held: workload.image_tokens is 0, text alone"
            frozen = "" if work.trains_towers else ", frozen"
            self.notes.append(f"{size}{frozen} {held}; {cost}")

    def _check_goal(self, space: Space, shape: SpaceFile) -> None:
        """Problems of a goal that cannot be computed: tokens, prices or watts are missing."""
        goal = space.goal
        for key in ("within_days", "budget_USD"):
            if getattr(goal, key) and not goal.tokens:
                what = "needs the tokens to train on: goal.tokens, or --tokens 15T"
                self.problem(("goal", key), what)
        needs_price = [("goal", "budget_USD")] if goal.budget_USD else []
        needs_price += [("search", "objective")] if space.search.objective == "tokens_per_dollar" else []
        lacking = [one.cluster.accelerator.name for one in space.clusters if not one.price_per_gpu_hour_USD]
        for keys in needs_price if lacking else []:
            names = list(dict.fromkeys(lacking))
            what = (
                f"no price of {join_words(names)}: --price {names[0].lower()}=USD_PER_GPU_HOUR, or price: in the space"
            )
            self.problem(keys, what)
        dark = [one.cluster.accelerator.name for one in space.clusters if not one.power.busy_w]
        if space.search.objective == "tokens_per_joule" and dark:
            dark = list(dict.fromkeys(dark))
            what = f"no watts of {join_words(dark)}: --set hardware.busy_W=WATTS, or power: in its file"
            self.problem(("search", "objective"), what)

    # --- axes ------------------------------------------------------------------------------------------------------

    def _axes_as_written(self, section: Mapping[str, Any]) -> tuple[dict[str, list[Item]], list[variants.HardwareAxis]]:
        """Items of every axis in the order written, `auto` where the file is silent; hardware axes apart."""
        reader = Reader(self.document)
        written: dict[str, list[Item]] = {}
        hardware: list[variants.HardwareAxis] = []
        for written_as, raw in section.items():
            key, keys = axis_name(written_as), ("space", written_as)
            if key.startswith(variants.PREFIXES):
                axis = variants.read_axis(self.document, keys, raw, reader.problems)
                hardware += [axis] if axis else []
            elif key in AXIS:
                written[key] = reader.axis(AXIS[key], raw, keys)
            else:
                reader.problem(
                    keys, f"unknown axis{did_you_mean(key, AXIS, reader.problems)} - allowed: {', '.join(AXIS)}"
                )
        for name, items in reader.implied.items():
            if name in written:
                reader.problem(("space", name), "is given twice: here and inside another axis; keep one")
            written[name] = items
        self.problems += reader.problems
        if not _mentions_auto(written.get("recompute", [Word("auto", "")])):
            written.setdefault("recompute_num_layers", [ALL])
        for name in AXES:
            written.setdefault(name, [Word("auto", self.document.where(("space",)))])
        return written, hardware

    def _with_axes(
        self,
        choice: ClusterChoice,
        items: Mapping[str, list[Item]],
        model: Model,
        workload: Workload,
        numerics: Numerics,
    ) -> ClusterChoice:
        """A cluster with its axes: values as written, words filled in for this cluster alone."""
        axes = [Axis(name=name, values=self._resolved(name, items[name], model, choice, workload)) for name in AXES]
        auto = {name for name in AXES if _mentions_auto(items[name])}
        axes = with_needed(axes, auto, model, choice, workload)
        free = auto.intersection(RECIPES) if numerics == "any" else ()
        axes = [replace(one, values=every_value(one.name, choice)) if one.name in free else one for one in axes]
        reliefs = (Axis(name=name, values=every_value(name, choice)) for name in RELIEFS if name in auto)
        return replace(choice, axes=tuple(axes), reliefs=tuple(axis for axis in reliefs if len(axis.values) > 1))

    def _resolved(
        self, name: str, items: list[Item], model: Model, choice: ClusterChoice, workload: Workload
    ) -> tuple[AxisValue, ...]:
        """Values of an axis on a cluster with its words filled in, in order."""
        values: dict[AxisValue, None] = {}
        for item in items:
            if not isinstance(item, Word):
                values.setdefault(item)
                continue
            try:
                found = word_values(name, item.text, model, choice.cluster, workload, choice.framework)
            except ValueError as error:
                problem = Problem(item.where, str(error))
                self.problems += [problem] if problem not in self.problems else []
                break
            values.update(dict.fromkeys(found))
        return tuple(values) or (AXIS[name].knob.least,)

    # --- checks across sections ------------------------------------------------------------------------------------

    def _constraints(self, shape: SpaceFile, *, has_adapters: bool) -> tuple[Constraint, ...]:
        constraints = []
        for i, text in enumerate(shape.constraints):
            where = self.document.where(("constraints", i))
            try:
                parse(text)
            except ConstraintError as error:
                self.problems.append(Problem(where, f"{text!r}: {error}"))
            constraints.append(Constraint(text=text, where=where))
        if has_adapters:
            where = self.document.where(("workload", "lora"))
            constraints.append(Constraint(text=f"{shape.workload.lora.rank} % tp == 0", where=where))
        if shape.search.numerics == "safe":
            where = self.document.where(("search", "numerics"))
            constraints += [Constraint(text=f"{knob.name} == {knob.word(knob.off)!r}", where=where) for knob in NUMERIC]
        return tuple(constraints)

    def _check_layouts(self, choice: ClusterChoice, model: Model) -> None:
        """A layout string that deals another number of layers than the model has can never be legal."""
        values = choice.axis("pipeline_layout").values
        for i, layout in enumerate(values):
            if isinstance(layout, Layout) and layout.kind == "string":
                layers = "".join(expand(layout.text)).count("t")
                if layers != model.num_layers:
                    keys = ("space", "pipeline_layout", i) if len(values) > 1 else ("space", "pipeline_layout")
                    what = f"deals {layers} layers, the model has {model.num_layers}; count the letters t"
                    self.problem(keys, what)

    def _check_batch(self, choices: list[ClusterChoice], workload: Workload) -> None:
        """At least one combination of degrees must split the global batch into whole micro-batches."""
        steps: set[int] = set()
        for choice in choices:
            world = choice.cluster.world
            by_name = {axis.name: axis.values for axis in choice.axes}
            for tp, pp, cp in itertools.product(by_name["tp"], by_name["pp"], by_name["cp"]):
                ranks = int(tp) * int(pp) * int(cp)  # type: ignore[arg-type]
                if world % ranks == 0:
                    steps |= {world // ranks * int(mbs) for mbs in by_name["micro_batch_size"]}  # type: ignore[arg-type]
        batch = workload.global_batch_size
        if not steps:
            what = f"no tp * pp * cp of this space divides the {choices[0].cluster.world} devices of the cluster"
            self.problem(("nodes",), f"{what}; change nodes or these axes")
        elif not any(batch % step == 0 for step in steps):
            least = min(steps)
            near = dict.fromkeys(n for n in (batch // least * least, -(-batch // least) * least) if n > 0)
            what = f"{batch} samples do not split into whole micro-batches: dp * micro_batch_size is "
            what += f"{_few(sorted(steps))} in this space; use {join_words(list(near))}, or change nodes or these axes"
            self.problem(("workload", "global_batch_size"), what)


def _line(problem: Problem) -> int:
    """The line a problem is on; those of flags and variables come first."""
    found = re.search(r":(\d+) @ ", problem.where)
    return int(found.group(1)) if found else 0


def _few(numbers: list[int]) -> str:
    """`8, 16 or 32`, cut short where there are many."""
    if len(numbers) > 6:
        return ", ".join(str(n) for n in numbers[:6]) + f" ... {numbers[-1]}"
    return join_words(numbers)


def _mentions_auto(items: list[Item]) -> bool:
    return any(isinstance(item, Word) for item in items)


def _search(shape: SpaceFile) -> SearchSettings:
    budget = {f"budget_{key}": value for key, value in shape.search.budget}
    return SearchSettings(**budget, **shape.search.model_dump(exclude={"budget"}))
