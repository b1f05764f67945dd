"""Frozen weights and adapters in memory, time and traffic: what goes away, what comes, by hand and by property."""

from dataclasses import replace

import numpy as np
import pytest

from primus_search.cost.memory.parameters import adapter_shares
from primus_search.cost.memory.share import Share
from primus_search.cost.parts.layer import layer_operations
from primus_search.cost.parts.operations import Pass, tallied
from primus_search.cost.project import Projector
from primus_search.cost.projection import Projection
from primus_search.cost.replicas import params_per_rank
from primus_search.files.hardware_files import load_cluster
from primus_search.models.model_files import load_model
from primus_search.values.candidates import Candidates, Sharding
from primus_search.values.job import Job
from primus_search.values.model import Adapters, BaseFormat
from primus_search.values.workload import Workload

MODEL, MOE = load_model("llama3.1_8b"), load_model("qwen3_30b_a3b")
CLUSTER = load_cluster("mi300x", 1)
FOUR_BITS = BaseFormat(name="nf4", bytes_per_param=0.516)
TRAINED = Workload(seq_length=2048, global_batch_size=64)
TABLE = Candidates.table(
    tp=[1, 2, 8, 1, 1, 1], sequence_parallel=[0, 1, 1, 0, 0, 0], pp=[1, 1, 1, 2, 1, 1],
    sharding=[int(one) for one in (1, 1, 1, 1, Sharding.FSDP2, Sharding.FSDP2)], recompute=[0, 0, 0, 0, 0, 1],
)  # fmt: skip


def lora(base: BaseFormat | None = None, **given: object) -> Workload:
    adapters = Adapters(rank=16, base=base or BaseFormat())
    return replace(TRAINED, task="qlora" if base else "lora", adapters=replace(adapters, **given))


def projected(workload: Workload, c: Candidates = TABLE, *, model: object = MODEL) -> Projection:
    return Projector(Job(model, CLUSTER, workload)).project(c)  # type: ignore[arg-type]


def test_frozen_weights_have_no_gradients_states_or_gradient_traffic() -> None:
    whole, frozen = projected(TRAINED), projected(lora())
    share = Job(MODEL, CLUSTER, lora()).model.trained_params / MODEL.total_params
    assert share < 0.01
    for part in ("gradients", "optimizer"):
        kept, held = getattr(frozen.memory, part), getattr(whole.memory, part)
        assert np.all(kept < 1.5 * share * held)
    assert np.all(frozen.memory.weights >= whole.memory.weights)
    assert np.all(frozen.step.optimizer < whole.step.optimizer)
    assert np.all(frozen.step.gradient_comm <= 0.1 * whole.step.gradient_comm)


def test_backward_of_a_frozen_layer_is_its_input_gradient_and_what_adapters_add() -> None:
    one = Candidates.table()
    kind = MODEL.kinds[0]
    whole = tallied(job := Job(MODEL, CLUSTER, TRAINED), layer_operations(job, kind, one), one)
    frozen = tallied(job := Job(MODEL, CLUSTER, lora()), layer_operations(job, kind, one), one)
    assert whole.pass_s(Pass.WEIGHT_GRAD)[0] > 10 * frozen.pass_s(Pass.WEIGHT_GRAD)[0] > 0.0
    for which in (Pass.FORWARD, Pass.INPUT_GRAD):
        assert whole.pass_s(which)[0] < frozen.pass_s(which)[0] < 1.3 * whole.pass_s(which)[0]


def test_packed_weights_take_their_bytes_and_time_to_unpack() -> None:
    held, packed = projected(lora()), projected(lora(FOUR_BITS))
    layers = MODEL.num_layers * (MODEL.layer_params(MODEL.kinds[0]) - 2 * MODEL.hidden)  # norms are not packed
    assert held.memory.weights[0] - packed.memory.weights[0] == pytest.approx((2.0 - 0.516) * layers, rel=1e-6)
    is_sharded = TABLE.sharding >= Sharding.FSDP2
    assert np.all(packed.step.total[~is_sharded] > held.step.total[~is_sharded])
    assert np.all(packed.step.shard_comm[is_sharded] < held.step.shard_comm[is_sharded])


@pytest.mark.parametrize(
    "modules",
    [
        ("linear_qkv", "linear_fc2"),
        ("linear_proj", "experts"),
        ("shared_expert_adapters",),
        ("linear_fc1_up", "experts"),
    ],
)
def test_adapters_of_all_ranks_add_up_to_those_that_are_trained(modules: tuple[str, ...]) -> None:
    """tp and etp divide both matrices, ep the experts; one adapter for all experts is on every rank."""
    workload = lora(modules=modules)
    for tp, ep in ((1, 1), (4, 1), (1, 8), (2, 4)):
        job, c = Job(MOE, CLUSTER, workload), Candidates.table(tp=tp, ep=ep)
        dense, experts = adapter_shares(job.model, MOE.kinds[0], Share.of(job, c))
        total = MOE.num_layers * (
            float(dense[0]) * (1 if "shared_expert_adapters" in modules else tp) + float(experts[0]) * ep
        )
        assert total == pytest.approx(job.model.trained_params)
        assert sum(float(one[0]) for one in params_per_rank(job, c)) == pytest.approx(
            MOE.num_layers * float(dense[0] + experts[0])
        )


def test_a_higher_rank_never_needs_less_nor_takes_less() -> None:
    few, many = projected(lora(rank=8)), projected(lora(rank=64))
    assert np.all(many.memory.total >= few.memory.total)
    assert np.all(many.step.total >= few.step.total)


def test_fine_tuning_of_all_weights_costs_what_training_does() -> None:
    sft = projected(replace(TRAINED, task="sft"))
    assert np.array_equal(sft.step.total, projected(TRAINED).step.total)


def test_a_row_of_adapters_costs_the_same_alone_as_in_a_table() -> None:
    """No term reads a column that its key does not hold."""
    chance, rows = np.random.default_rng(0), 12
    axes: dict[str, list[int]] = {
        "tp": [1, 2], "pp": [1, 2], "cp": [1, 2], "ep": [1, 2, 4], "etp": [1, 2], "micro_batch_size": [1, 2],
        "sequence_parallel": [0, 1], "sharding": [0, 1, 2, 3, 4], "recompute": [0, 1, 2], "fp8": [0, 1],
        "grouped_gemm": [0, 1], "optimizer": [0, 1],
    }  # fmt: skip
    c = Candidates.table(**{name: chance.choice(values, rows) for name, values in axes.items()})
    job = Job(MOE, CLUSTER, lora(FOUR_BITS, modules=("linear_qkv", "experts"), dropout=0.1))
    table = Projector(job)
    memory, step, bound = table.memory(c).total, table.step(c).total, table.bound(c)
    assert np.all(bound <= step * (1.0 + 1e-9))
    for row in range(rows):
        alone = Projector(job).project(c.take(np.array([row])))
        assert alone.memory.total[0] == memory[row]
        assert alone.step.total[0] == step[row]


def test_layers_that_no_adapter_is_beside_keep_nothing_for_its_products() -> None:
    hybrid, rest = load_model("nemotron3_nano"), lora(modules=("linear_qkv",))
    assert projected(rest, Candidates.table(tp=1), model=hybrid).memory.total[0] > 0.0
