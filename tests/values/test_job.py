"""A job is what its model, its cluster and its workload are together."""

from dataclasses import replace

import pytest

from primus_search.cost.project import Projector
from primus_search.files.hardware_files import load_cluster
from primus_search.models.model_files import load_model
from primus_search.values.candidates import Candidates
from primus_search.values.job import Job
from primus_search.values.workload import Workload

WORKLOAD = Workload(seq_length=4096, global_batch_size=8)


@pytest.mark.parametrize(("model", "dense"), [("llama3.1_8b", True), ("deepseek_v3", False)])
@pytest.mark.parametrize("device", ["b300", "h100"])
def test_a_device_runs_models_without_experts_at_their_own_rate_where_it_has_one(
    model: str, dense: bool, device: str
) -> None:
    """Dense layers of a model with experts run at its rate, and what a job gave to its cluster it gives once."""
    cluster = load_cluster(device, 1)
    acc = cluster.accelerator
    job = Job(load_model(model), cluster, WORKLOAD)
    rate = acc.dense_training_rate if dense and acc.dense_training_rate else acc.training_rate
    assert job.accelerator.training_rate == rate
    views = {job.layer(kind)[0].accelerator.training_rate for kind in job.model.layers}
    assert views == {rate}
    assert replace(job, launcher="").cluster == job.cluster


def test_a_step_without_experts_follows_the_dense_rate_alone() -> None:
    cluster, model = load_cluster("b300", 1), load_model("llama3.1_8b")

    def step_s(**rates: float) -> float:
        own = replace(cluster, accelerator=replace(cluster.accelerator, **rates))  # type: ignore[arg-type]
        return float(Projector(Job(model, own, WORKLOAD)).project(Candidates.table()).step.total[0])

    assert step_s(training_rate=0.5) == step_s()
    assert step_s(dense_training_rate=0.0, training_rate=0.9) == step_s(dense_training_rate=0.9)
    assert step_s(dense_training_rate=0.5) > 1.5 * step_s(dense_training_rate=1.0)
