"""One training job: a model, the cluster it runs on, and what one optimizer step trains."""

from dataclasses import dataclass, replace

from primus_search.values.candidates import Bools, Candidates, Degrees, Ints, Sharding, degrees
from primus_search.values.machine.accelerator import Accelerator
from primus_search.values.machine.cluster import Cluster
from primus_search.values.machine.network import Network
from primus_search.values.machine.stack import Stack
from primus_search.values.model import LayerKind, Model
from primus_search.values.workload import Workload


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that a projection depends on besides the candidate.

    launcher  framework that starts it, whose own pipeline orders are priced; empty: the best order of every name
    """

    model: Model
    cluster: Cluster
    workload: Workload
    launcher: str = ""

    def __post_init__(self) -> None:
        """A job's model has what the workload says: towers where it has images, adapters beside frozen weights. Its
        device runs at the rate of such models (`Accelerator.dense_training_rate`)."""
        has_images = self.workload.image_tokens > 0
        adapters = self.workload.adapters
        trains_towers = self.workload.trains_towers and adapters is None
        held = tuple(replace(t, is_trained=trains_towers) for t in self.model.towers if t.is_counted)
        towers = held if has_images else ()
        if has_images and not held:
            raise ValueError(f"image_tokens: {self.model.name} has no tower whose sizes are known")
        if towers != self.model.towers or adapters != self.model.adapters:
            object.__setattr__(self, "model", replace(self.model, towers=towers, adapters=adapters))
        rate = self.accelerator.dense_training_rate
        if rate and self.model.moe is None:
            device = replace(self.accelerator, training_rate=rate, dense_training_rate=0.0)
            object.__setattr__(self, "cluster", replace(self.cluster, accelerator=device))

    @property
    def accelerator(self) -> Accelerator:
        return self.cluster.accelerator

    @property
    def network(self) -> Network:
        return self.cluster.network

    @property
    def stack(self) -> Stack:
        return self.cluster.stack

    def room_bytes(self, margin: float = 0.0) -> float:
        """Device memory that a candidate may use: all of it less what an engine of rollouts holds, and less a share
        `margin` that stays free."""
        return self.accelerator.room_bytes(margin + self.workload.reserved_share)

    def degrees(self, c: Candidates) -> Degrees:
        """Data-parallel degrees and micro-batches of every candidate."""
        return degrees(c, world=self.cluster.world, global_batch_size=self.workload.global_batch_size)

    def runs_sharding(self, c: Candidates) -> Ints:
        """`Sharding` codes of what a step of every candidate does (`Candidates.run_sharding`)."""
        return c.run_sharding(once=self.stack.sharding.gathers_once)

    def gathers_weights(self, c: Candidates) -> Bools:
        """Whether a step gathers weights layer by layer: FSDP2, HSDP and Megatron-FSDP."""
        return self.runs_sharding(c) >= Sharding.FSDP2

    def layer(self, kind: LayerKind) -> "tuple[Job, LayerKind]":
        """The job as layers of that kind see it (`Model.layer_view`), and the one kind of layer of that view."""
        view = self.model.layer_view(kind)
        return (self, kind) if view is self.model else (replace(self, model=view), view.layers[0])
