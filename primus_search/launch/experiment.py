"""One experiment of a framework: a candidate in words with its sizes, and notes on settings that no axis covers."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from primus_search.base.errors import Problem
from primus_search.launch.contract import notes_of, whole
from primus_search.launch.decided import decided_keys, decided_numbers
from primus_search.launch.document_packing import PackingKeys, full_rows, packing_in
from primus_search.launch.read.megatron import canonical
from primus_search.launch.workload_settings import workload_keys, workload_values
from primus_search.launch.world import NO_WORLD, World
from primus_search.models.megatron_arguments import constant_settings, megatron_keys
from primus_search.values.candidates import Candidates
from primus_search.values.knobs import KNOB
from primus_search.values.layout import Layout
from primus_search.values.machine.framework import NOTHING, Framework, Settings
from primus_search.values.model import Model


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One experiment of a framework.

    row           its axes in words      seq_length, global_batch_size  None where the file does not say
    model         None where the file names none that can be read; `model_problems` then say why
    world         GPUs it starts and those of a node, 0 where the file does not say
    numbers       numbers of the stack that its settings decide
    not_modelled  `key: value` of every setting that no axis covers, with its effect where that is known
    variant       of the framework's stack, where settings of the file mean one (eager: blocks are not compiled)
    written       settings as a file has them, which its framework checks when it starts; empty for a run of a log
    assumed       `axis = value: why` of what a log does not print
    tuning        `task` and `lora` of its workload; empty where all weights are trained
    workload      other values of it that settings make
    program       the launcher whose file it is, where that is not the framework's own; its stacks, by vendor
    device_bytes  memory of its device as its log prints it; 0 where nothing does
    """

    path: Path
    framework: Framework
    row: Mapping[str, Any]
    seq_length: int | None
    global_batch_size: int | None
    model: Model | None
    model_problems: tuple[Problem, ...] = ()
    world: World = NO_WORLD
    numbers: Mapping[str, Any] = field(default_factory=dict)
    not_modelled: tuple[str, ...] = field(default=())
    variant: str = ""
    written: Settings = field(default_factory=dict)
    assumed: tuple[str, ...] = field(default=())
    program: str = ""
    tuning: Mapping[str, Any] = field(default_factory=dict)
    workload: Mapping[str, Any] = field(default_factory=dict)
    stacks: Mapping[str, str] = field(default_factory=dict)
    device_bytes: float = 0.0

    @property
    def candidate(self) -> Candidates:
        """The experiment as a table of one candidate."""
        return Candidates.from_words(self.row)


def silent_axes(framework: Framework, row: Mapping[str, Any], given: Collection[str]) -> tuple[str, ...]:
    """Axes that no setting among `given` is about, but for those without effect in this row."""
    idle = {"sequence_parallel", "tp_overlap"} if row["tp"] == 1 else set()
    idle |= {"cp_comm"} if row["cp"] == 1 else set()
    idle |= {"vpp", "pipeline_layout", "microbatch_group"} if row["pp"] == 1 else set()
    idle |= {one.axis for one in framework.idles if row[one.where] in one.words}
    return tuple(
        axis
        for axis, spelling in framework.spellings.items()
        if axis not in idle and not KNOB[axis].detail_of and spelling.keys.isdisjoint(given)
    )


def experiment_of(
    path: Path,
    framework: Framework,
    row: dict[str, Any],
    sizes: Settings,
    given: Settings,
    read_keys: set[str],
    loaded: tuple[Model | None, tuple[Problem, ...]],
    world: World = NO_WORLD,
    origin: Mapping[str, str] = NOTHING,
    *,
    is_whole: bool = True,
) -> Experiment:
    """An experiment from its settings under the names of the contract; `origin`: what a file calls some of them."""
    model, problems = loaded
    row = settled(framework, row, model)
    sizes = {**sizes, "add_bias_linear": model.has_linear_bias} if model else sizes
    contract = framework.of(model)
    decided = decided_keys(contract, row, sizes)
    decided |= workload_keys(contract, sizes)
    rows = PackingKeys(rows=framework.packing)
    packing = packing_in(sizes, rows)
    decided |= rows.met(sizes)
    notes = notes_of(
        contract,
        row,
        given,
        read_keys,
        job=of_job(framework, model, sizes),
        is_whole=is_whole,
        decided=decided,
    )
    batch, length = sizes.get("global_batch_size"), sizes.get("seq_length")
    defaults = framework.defaults
    return Experiment(
        path=path,
        framework=framework,
        row=row,
        seq_length=_count("seq_length", length if length is not None else defaults.get("seq_length")),
        global_batch_size=_count(
            "global_batch_size", batch if batch is not None else defaults.get("global_batch_size")
        ),
        model=model,
        model_problems=problems,
        world=world,
        numbers=decided_numbers(contract, row, sizes, is_whole=is_whole),
        workload={**workload_values(contract, sizes), **packing},
        assumed=full_rows(packing),
        not_modelled=tuple(_as_written(note, origin) for note in notes),
    )


def of_job(framework: Framework, model: Model | None, given: Settings) -> dict[str, Any]:
    """Settings of a job with those of a model that none of them sizes, but for constants and padding."""
    if model is None or framework.keys != "megatron" or "hidden_size" in given:
        return dict(given)
    left_out = {"padded_vocab_size"} | constant_settings(model).keys()
    of_model = {key: value for key, value in megatron_keys(model).items() if key not in left_out}
    return {**of_model, "vocab_size": model.vocab_size, **given}


def _as_written(note: str, origin: Mapping[str, str]) -> str:
    """A note with the key that the file has."""
    key = note.partition(":")[0]
    return f"{origin[key]}, which is {note}" if key in origin else note


def _count(key: str, value: Any) -> int | None:
    return whole(key, value, least=1) if value is not None else None


def settled(framework: Framework, row: dict[str, Any], model: Model | None) -> dict[str, Any]:
    """The row with axes that have no effect at their neutral value, and the plainest layout."""
    words = Candidates.from_words(row).row(0)
    words |= {"sequence_parallel": False, "tp_overlap": False} if words["tp"] == 1 else {}
    words |= {"cp_comm": "stack"} if words["cp"] == 1 else {}
    words |= {} if words["deepep"] else {"dispatch_backend": "stack"}
    if model is not None and not model.is_moe:
        words |= {"ep": 1, "etp": 1}
    words |= {one.axis: KNOB[one.axis].default for one in framework.idles if words[one.where] in one.words}
    layout = canonical(Layout.parse(words["pipeline_layout"]), model, words["pp"] * words["vpp"])
    return words | {"pipeline_layout": str(layout)}
