"""The space of configurations that are trained for real: a small GPT and a small MoE on two devices.

Their axes are those that this package's trainer has, with every value that a batch of eight sequences leaves: how the
work is split, which schedule, what is recomputed, how large a micro-batch. The enumerator lists what is legal.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from primus_search.files.plain_forms import from_plain
from primus_search.files.source import read
from primus_search.measure.modules.shard import DtypeName
from primus_search.space import AXES, Axis, AxisValue, ClusterChoice, Constraint, Enumerator, Space
from primus_search.values.candidates import DEFAULTS, Candidates, Recompute, Sharding
from primus_search.values.knobs import KNOB, Kind
from primus_search.values.machine.cluster import Cluster
from primus_search.values.model import Model
from primus_search.values.workload import Workload

_FILE = read(Path(__file__).with_name("space.yaml")).data
MODELS = {name: from_plain(Model, row) for name, row in _FILE["models"].items()}
GPT, MOE = MODELS.values()
WORKLOAD = Workload(seq_length=256, global_batch_size=8)
RANKS = 2
FLOAT: DtypeName = "float32"

DECLARED: dict[str, tuple[AxisValue, ...]] = {
    name: tuple(KNOB[name].code(value) if KNOB[name].kind in (Kind.CHOICE, Kind.MODULES) else value for value in values)
    for name, values in _FILE["axes"].items()
}
CONSTRAINTS = tuple(Constraint(text=text, where=where) for text, where in _FILE["constraints"].items())

WORDS = {Recompute.NONE: "", Recompute.CORE_ATTENTION: "selective ", Recompute.FULL: "recompute "}


@dataclass(frozen=True, slots=True, kw_only=True)
class TruthCase:
    """One configuration: its name, its model and its row of `Candidates`."""

    name: str
    model: Model
    row: Candidates

    @property
    def mode(self) -> str:
        """How the trainer splits the work: pp, tp, fsdp or dp (experts dealt to the ranks included)."""
        return _mode(self.row)

    @property
    def schedule(self) -> str:
        return self.row.schedules[int(self.row.schedule[0])]


def space(model: Model, cluster: Cluster) -> Space:
    """What may be declared of a model for this trainer, everything else as by default."""
    axes = tuple(Axis(name=name, values=DECLARED.get(name, (DEFAULTS[name],))) for name in AXES)
    choice = ClusterChoice(cluster=cluster, axes=axes)
    return Space(name=model.name, model=model, workload=WORKLOAD, clusters=(choice,), constraints=CONSTRAINTS)


def legal(cluster: Cluster) -> tuple[TruthCase, ...]:
    """Every legal configuration of both models."""
    found = []
    for prefix, model in MODELS.items():
        enumerator = Enumerator(space(model, cluster))
        c = enumerator.chunk(0, enumerator.size).candidates
        rows = [c.take(np.array([i])) for i in range(len(c))]
        found += [TruthCase(name=f"{prefix} {_name(row)}", model=model, row=row) for row in rows]
    return tuple(found)


def _mode(c: Candidates) -> str:
    if c.pp[0] > 1 or c.tp[0] > 1:
        return "pp" if c.pp[0] > 1 else "tp"
    return "fsdp" if c.sharding[0] == Sharding.FSDP2 else "dp"


def _name(c: Candidates) -> str:
    again = WORDS[Recompute(int(c.recompute[0]))]
    split = "ep2" if c.ep[0] > 1 else f"{_mode(c)}2"
    if c.pp[0] > 1:
        split += f" v{c.vpp[0]}" if c.vpp[0] > 1 else f" {c.schedules[int(c.schedule[0])]}"
    return f"{split} {again}b{c.micro_batch_size[0]}"
