"""The training step of dpo, grpo and ppo: passes, models that are held, memory of an engine of rollouts."""

from typing import Any

import numpy as np
import pytest

from primus_search.base.errors import InputError
from primus_search.cost.project import Projector
from primus_search.cost.projection import Projection
from primus_search.declare import make_space
from primus_search.launch.write.job import Inexpressible
from primus_search.launch.write.launch_files import launch_files
from primus_search.space import Space
from primus_search.values.candidates import Candidates
from tests.support.launched import jobs

ROWS = Candidates.from_rows(
    [
        {"tp": 1, "pp": 1, "sharding": "distributed_optimizer", "recompute": "none"},
        {"tp": 2, "pp": 2, "sharding": "distributed_optimizer", "recompute": "full"},
        {"tp": 1, "pp": 1, "sharding": "fsdp2", "recompute": "none"},
    ]
)


def space(task: str, **workload: Any) -> Space:
    data = {"model": "llama3.1_8b", "hardware": "h100", "nodes": 2, "framework": "any"}
    return make_space(data | {"workload": {"seq_length": 4096, "global_batch_size": 64, "task": task} | workload})


def projected(task: str, **workload: Any) -> Projection:
    return Projector(space(task, **workload).job).project(ROWS)


def pipeline_s(found: Projection) -> np.ndarray:
    s = found.step
    parts = (
        s.attention,
        s.mlp,
        s.norms,
        s.embedding_and_head,
        s.recompute,
        s.launch,
        s.tensor_comm,
        s.shard_comm,
        s.bubble,
    )
    return np.sum(parts, axis=0)


def test_passes_without_training_cost_a_forward_each() -> None:
    """A forward is a third of three, a quarter where it is repeated in backward; none without reference."""
    usual, grpo = projected("sft"), projected("grpo")
    share = grpo.step.log_probs / pipeline_s(usual) / 2.0
    assert share[0] == pytest.approx(0.33, abs=0.04) and share[1] == pytest.approx(0.26, abs=0.04)
    once = projected("grpo", policy={"reference": "none"})
    assert np.allclose(once.step.log_probs * 2.0, grpo.step.log_probs)
    none = projected("grpo", policy={"reference": "none", "old_log_probs": False})
    assert np.array_equal(none.step.total, usual.step.total) and np.array_equal(none.memory.total, usual.memory.total)
    assert np.allclose(projected("grpo", policy={"epochs": 4}).step.log_probs * 4.0, grpo.step.log_probs)
    dpo = projected("dpo")
    assert np.allclose(dpo.step.log_probs * 2.0, grpo.step.log_probs)


def test_a_reference_holds_weights_alone() -> None:
    usual, resident, host = projected("sft"), projected("dpo"), projected("dpo", policy={"reference": "host"})
    assert np.allclose(resident.memory.weights, 2.0 * usual.memory.weights)
    assert np.array_equal(resident.memory.optimizer, usual.memory.optimizer)
    assert np.array_equal(host.memory.total, usual.memory.total)
    assert np.array_equal(host.step.total, resident.step.total)
    lora, policy = projected("lora"), projected("dpo", lora={"rank": 32})
    assert np.array_equal(lora.memory.weights, policy.memory.weights) and np.all(policy.step.log_probs > 0.0)


def test_a_critic_is_a_second_model() -> None:
    grpo, ppo = projected("grpo"), projected("ppo")
    assert np.allclose(ppo.memory.optimizer, 2.0 * grpo.memory.optimizer)
    assert np.allclose(ppo.memory.weights, 1.5 * grpo.memory.weights)
    trained_s = pipeline_s(grpo) + grpo.step.gradient_comm + grpo.step.optimizer
    assert np.allclose(ppo.step.critic, trained_s) and np.allclose(ppo.step.log_probs, 1.5 * grpo.step.log_probs)


def test_rollouts_take_memory_and_the_seconds_that_are_given() -> None:
    usual = projected("grpo")
    shared = projected("grpo", policy={"gpu_memory_utilization": 0.5, "rollout_s": 30.0})
    job = space("grpo", policy={"gpu_memory_utilization": 0.5}).job
    assert job.room_bytes(0.08) == pytest.approx(0.42 * job.accelerator.hbm_bytes)
    assert np.all(shared.headroom_bytes < usual.headroom_bytes)
    assert np.array_equal(shared.memory.weights, usual.memory.weights)
    assert np.all(shared.step.rollout == 30.0) and np.all(usual.step.rollout == 0.0)
    assert np.all(shared.step.total >= usual.step.total + 30.0)


def test_bounds_hold_and_sum_to_the_step() -> None:
    for task in ("dpo", "grpo", "ppo"):
        projector = Projector(space(task, policy={"reference": "host"}).job)
        assert np.all(projector.bound(ROWS) <= projector.step(ROWS).total * (1 + 1e-12))


@pytest.mark.parametrize(
    "task, given, what",
    [
        ("sft", {"policy": {"epochs": 2}}, "workload.policy: is of the tasks dpo, grpo or ppo; task is sft"),
        ("dpo", {"policy": {"rollout_s": 2}}, "rollout_s is of tasks with rollouts, grpo and ppo"),
        ("grpo", {"policy": {"reference": "cpu"}}, "'cpu' is not one of resident, host or none"),
        ("grpo", {"policy": {"gpu_memory_utilization": 1.0}}, "gpu_memory_utilization"),
        ("pretrain", {"lora": {"rank": 8}}, "lora: is of the tasks lora, qlora, dpo, grpo or ppo, not pretrain"),
    ],
)  # fmt: skip
def test_what_a_task_does_not_have_is_refused(task: str, given: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError) as caught:
        space(task, **given)
    assert what in str(caught.value)


def test_no_framework_of_training_alone_starts_a_policy() -> None:
    data = {"model": "llama3.1_8b", "hardware": "h100", "framework": "megatron"}
    found = make_space(data | {"workload": {"seq_length": 4096, "global_batch_size": 64, "task": "grpo"}})
    with pytest.raises(Inexpressible, match="starts no grpo step"):
        launch_files(next(jobs(found, 1)))
