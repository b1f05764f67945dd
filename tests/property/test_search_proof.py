"""Searches of random spaces against brute force: every framework, sharding, schedule and switch.

Brute force projects every legal row by itself, so it shares no term with the search. A space is drawn axis by axis from
what its knobs know; `RANDOM_SPACES=200` tries more of them than the suite does.
"""

import os
import random
from typing import Any

import numpy as np
import pytest

from primus_search.cost.project import Projector
from primus_search.declare import make_space
from primus_search.exploration.exhaustive.evaluate import BOUND_SLACK, Funnel
from primus_search.exploration.exhaustive.shortlist import without_noise
from primus_search.exploration.expected import expected_shares
from primus_search.exploration.funnel import Options, run_search
from primus_search.space import Enumerator, Space
from primus_search.values.candidates import Floats
from primus_search.values.knobs import KNOB

SPACES = int(os.environ.get("RANDOM_SPACES", "22"))
FEWEST_ROWS, MOST_ROWS = 20, 2000
PLACES = tuple(
    (framework, hardware)
    for framework, many in {
        "torchtitan": ("h100", "mi300x", "b200"),
        "primus": ("mi355x", "mi300x"),
        "megatron": ("h100", "b200"),
        "nemo": ("gb200",),
        "any": ("mi355x", "b200", "a100_80"),
    }.items()
    for hardware in many
)
MODELS = ("tiny", "tiny_moe", "llama3.1_8b", "deepseek_v2_lite", "qwen3_30b_a3b", "gpt_oss_20b")
NUMBERS: dict[str, list[Any]] = {
    "tp": [1, 2, 4], "pp": [1, 2, 4], "vpp": [1, 2, 4], "ep": [1, 2, 4, 8], "etp": [1, 2], "cp": [1, 2, 4],
    "micro_batch_size": [1, 2, 4], "recompute_num_layers": [0, 1, 2], "offload_layers": [0, 1, 2],
    "shard_group": [2, 4], "microbatch_group": [0, 4, 8], "sync_free_stage": [0, 1, 2, 3],
    "optimizer_offload": [0, 50, 100],
    "schedule": ["1f1b", "interleaved", "zb-h1", "zbv", "v-half", "v-min", "dualpipev", "gpipe"],
    "pipeline_layout": ["even", "balanced"],
    "recompute": ["none", "selective", "mlp", "op_sac", {"full": ["all", 1], "method": ["uniform", "block"]}],
    "offload_modules": ["none", "core_attn", "core_attn+attn_proj", "expert_fc1+moe_act"],
}  # fmt: skip
DETAILS = ("recompute_num_layers", "recompute_method")
"""Axes that the value of another one gives."""


def drawn(seed: int) -> Space:
    """A random space of some hundreds of legal rows; draws that leave fewer than a few are drawn again."""
    rng = random.Random(seed)
    while True:
        space = draw(rng, *PLACES[seed % len(PLACES)])
        if Enumerator(space).size >= FEWEST_ROWS:
            return space


def draw(rng: random.Random, framework: str, hardware: str) -> Space:
    """A random space of at most so many legal rows."""
    axes: dict[str, Any] = {}
    for name, knob in KNOB.items():
        if name in DETAILS:
            continue
        values = NUMBERS.get(name) or ([True, False] if knob.words is None else list(knob.members))
        neutral = knob.word(knob.default)
        others = [value for value in values if str(value) != str(neutral)]
        axes[name] = [neutral, *rng.sample(others, min(len(others), rng.choice((0, 1, 1, 2))))]
    axes["sharding"] = ["distributed_optimizer", *rng.sample(["none", "zero2", "fsdp2", "hsdp", "megatron_fsdp"], 2)]
    axes["pp"], axes["schedule"] = [1, 2, 4], ["1f1b", *rng.sample(NUMBERS["schedule"][1:], 2)]
    data = {"model": rng.choice(MODELS), "hardware": hardware, "framework": framework, "nodes": rng.choice((1, 2, 4))}
    workload = {"seq_length": 4096, "global_batch_size": rng.choice((64, 256))}
    while True:
        space = make_space(data | {"workload": workload, "space": axes})
        size = Enumerator(space).size
        if size <= MOST_ROWS:
            return space
        widest = max((name for name in axes if name not in ("sharding", "pp")), key=lambda name: len(axes[name]))
        axes[widest] = axes[widest][:-1]


def by_itself(space: Space) -> tuple[Floats, Floats, Floats, list[int]]:
    """Step, expected step and memory of every legal row, each computed by itself, and the numbers of those that fit."""
    everything = Enumerator(space).chunk(0, 10**9).candidates
    projector = Projector(space.job, memory_margin=space.search.memory_margin, shares_rows=False)
    projection = projector.project(everything)
    step, memory = without_noise(projection.step.total), without_noise(projection.memory.total)
    expected = without_noise(step / expected_shares(projector, everything, step))
    return step, expected, memory, np.flatnonzero(projection.fits).tolist()


@pytest.mark.daily(4)
@pytest.mark.parametrize("seed", range(SPACES))
def test_no_bound_is_above_a_step_and_no_row_above_the_frontier(seed: int) -> None:
    space = drawn(seed)
    step, expected, memory, fitting = by_itself(space)
    funnel = Funnel(space, keep=20)
    (costs,) = funnel.grid_costs
    cells, bundle = costs.bundles.of(np.arange(len(costs.enumerator.class_of_cell)))
    bound_s = costs.bound_s(cells, bundle, costs.layer_sets.at(cells, bundle)) * (1.0 - BOUND_SLACK)
    spread = costs.bundles.lines(cells, bundle)
    numbers = spread.lines.indices
    assert np.all(bound_s[spread.owner] <= step[numbers])
    pipelines, every = costs.pipelines(spread.lines), np.ones(len(numbers), dtype=np.bool_)
    assert np.all(pipelines.bound_s() * (1.0 - BOUND_SLACK) <= step[numbers])
    assert np.allclose(pipelines.step_s(every, pipelines.simulated(every)), step[numbers], rtol=1e-11)
    assert np.allclose(costs.memory_bytes(spread.lines.cells, spread.lines.inner), memory[numbers], rtol=1e-11)
    if not fitting:
        return
    result = run_search(space, Options(keep=20, workers=1))
    frontier: list[int] = []
    for i in sorted(fitting, key=lambda i: (memory[i], expected[i], i)):
        if not frontier or expected[i] < expected[frontier[-1]]:
            frontier.append(i)
    assert result.feasible == len(fitting)
    assert result.frontier.indices.tolist() == frontier
    assert set(result.ranking.indices.tolist()) >= set(sorted(fitting, key=lambda i: (step[i], i))[:20])
