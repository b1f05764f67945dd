"""The pipeline of one candidate of a run, for comparing it under every schedule.

What a schedule is given is the candidate's own: the time of every virtual stage (embedding and head on their true
stages, layers as its layout deals them), its hops inside and between fast domains, its micro-batches, and how many
micro-batches of activations its device has room for.
"""

from dataclasses import dataclass, replace

import numpy as np

from primus_search.analysis.breakdown import Stages, pipeline_costs, stages_of
from primus_search.base.errors import InputError, Problem, ScheduleError
from primus_search.cost.memory.chunk_memory import memory_by_rank
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.schedule import Algorithm, Costs, Placement, algorithm, order_for, peak_activations, simulate
from primus_search.schedule.side_by_side import Compared, compare_under
from primus_search.values.candidates import Candidates, Floats, Recompute, degrees
from primus_search.values.job import Job

MS_PER_S = 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPipeline:
    """One candidate's pipeline.

    room  micro-batches of activations its fullest rank has memory for    room_twice  with the model's states held twice
    """

    run: SavedRun
    rank: int
    one: Candidates
    microbatches: int
    room: float
    room_twice: float

    @classmethod
    def of(cls, run: SavedRun, rank: int) -> "RunPipeline":
        """Raises `InputError` where that rank does not exist or has no pipeline."""
        one = run.candidate(rank)
        if one.pp[0] == 1:
            raise InputError([Problem(f"rank {rank}", "has pp = 1, no pipeline to schedule; choose one with stages")])
        cluster, workload = run.cluster(rank).cluster, run.space.workload
        d = degrees(one, world=cluster.world, global_batch_size=workload.global_batch_size)
        microbatches = int(d.microbatches[0])
        room, room_twice = _room(run, rank, one, microbatches)
        return cls(run=run, rank=rank, one=one, microbatches=microbatches, room=room, room_twice=room_twice)

    @property
    def stages(self) -> int:
        return int(self.one.pp[0])

    @property
    def virtual_stages(self) -> int:
        """Chunks per rank of the candidate."""
        return int(self.one.vpp[0])

    @property
    def own(self) -> tuple[str, float]:
        """The schedule, and milliseconds of the pipeline with the order that the framework runs under that name."""
        order = self.one.order(0, self.job.launcher)
        costs = self.costs(algorithm(order.schedule, order.launcher), order.vpp)
        name = f"{order.schedule} as {order.launcher} runs it" if order.launcher else order.schedule
        return name, simulate(order_for(order, self.microbatches), costs).makespan

    @property
    def job(self) -> Job:
        return self.run.space.job_on(self.run.cluster(self.rank))

    def compared(self, *, virtual_stages: int, memory_limit: float | None = None) -> list[Compared]:
        """Every schedule for this pipeline, times in milliseconds; within the memory there is unless limited."""

        def conditions(algorithm: Algorithm, chunks: int) -> tuple[Costs, float]:
            room = self.room_twice if algorithm.placement is Placement.BIDIRECTIONAL else self.room
            if room <= 0.0:
                raise ScheduleError(f"{algorithm.name}: the states of two model copies alone exceed the device")
            return self.costs(algorithm, chunks), room if memory_limit is None else memory_limit

        return compare_under(
            conditions, stages=self.stages, microbatches=self.microbatches, virtual_stages=virtual_stages
        )

    def costs(self, algorithm: Algorithm, virtual_stages: int) -> Costs:
        """Milliseconds of every virtual stage when the model is cut for that schedule; raises where it cannot be."""
        if algorithm.splits_weight and self.one.recompute[0] != Recompute.NONE:
            raise ScheduleError(f"{algorithm.name}: schedules that split the weight gradient run without recompute")
        cut = replace(
            self.one, schedules=(algorithm.name,), schedule=np.zeros(1, np.int64), vpp=np.array([virtual_stages])
        )
        stages = stages_of(self.job, cut)
        seconds = pipeline_costs(stages)
        return Costs(
            forward=MS_PER_S * np.asarray(seconds.forward),
            backward=MS_PER_S * np.asarray(seconds.backward),
            weight=MS_PER_S * np.asarray(seconds.weight),
            comm=MS_PER_S * np.asarray(seconds.comm),
            activation=_activation(stages),
        )


def _activation(stages: Stages) -> Floats:
    """What each virtual stage keeps of a micro-batch, by decoder layers; 1 is the rank that has most of them."""
    return np.asarray(stages.layers / np.bincount(stages.rank, weights=stages.layers).max())


def _room(run: SavedRun, rank: int, one: Candidates, microbatches: int) -> tuple[float, float]:
    """Micro-batches of activations that fit beside everything else on the device, less the search's margin.

    Everything else is what each rank holds under the candidate's own schedule; a micro-batch takes what that
    schedule's activations take, divided by how many it holds. Second, the same with weights, gradients and optimizer
    of a second model copy.
    """
    space = run.space
    job = space.job_on(run.cluster(rank))
    table = order_for(one.order(0, job.launcher), microbatches)
    weight = _activation(stages_of(job, one))
    held = peak_activations(table, np.tile(weight, table.copies))
    memory = memory_by_rank(job, one)
    per_microbatch = float((memory.activations / held).max())
    free = job.room_bytes(space.search.memory_margin) - (memory.total - memory.activations)
    states = memory.weights + memory.gradients + memory.optimizer
    second = 0.0 * states if table.copies > 1 else states
    return float(free.min()) / per_microbatch, float((free - second).min()) / per_microbatch
