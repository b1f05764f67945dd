"""Megatron-Core builds, on every pipeline rank, as many parameters as the cost model counts there."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from primus_search.cost.memory.parameters import ModelState, embedding_state, layer_state, mtp_state, state
from primus_search.cost.memory.share import Share
from primus_search.declare import make_space
from primus_search.launch.write.job import LaunchJob
from primus_search.launch.write.launch_files import launch_files
from primus_search.values.candidates import Optimizer, Sharding
from tests.support.judge.checkouts import needs
from tests.support.launched import ROOT, jobs

pytestmark = needs("megatron@core_0.16")
BUILDER = "tests.support.megatron_builder"
MODELS = ("llama3.1_8b", "qwen3_30b_a3b", "deepseek_v2_lite", "gpt_oss_20b", "qwen2.5_7b", "deepseek_v3", "tiny_moe",
          "qwen3_0.6b", "llama2_7b", "mixtral_8x7b")  # fmt: skip
AXES = {
    "tp": [1, 2, 4, 8], "pp": [1, 2, 4], "ep": [1, 2, 4, 8], "etp": [1, 2], "cp": [1, 2], "vpp": [1, 2], "sharding":
    "distributed_optimizer", "recompute": "none", "fp8": "none", "cuda_graph": "none", "offload_modules": "none",
    "schedule": ["1f1b", "interleaved"], "tp_overlap": False, "exchange_overlap": False, "deepep": False,
}  # fmt: skip
FEW, MANY = 3, 30
FEWER = {"deepseek_v3": 1}
"""Of a model whose 58 layers of 256 experts take seconds to make."""
Case = tuple[LaunchJob, dict[str, object]]
Builds = dict[str, list[Case]]


def counted(job: LaunchJob, part: str = "count", **knobs: int) -> list[float]:
    """Parameters of each pipeline rank as memory counts them, or another part of their state, with knobs changed."""
    model, stack, c = job.model, job.cluster.stack, job.candidate
    c = replace(c, **{name: np.array([code]) for name, code in knobs.items()})
    share = Share(model, job.workload, stack, c, job.cluster.world)
    pp, parts = job.row["pp"], job.stage_parts

    def of(one: ModelState) -> float:
        return float(getattr(one, part)[0])

    layers = iter([of(layer_state(model, stack, kind, share)) for kind in model.layers])
    embedding = of(embedding_state(model, stack, share))
    last_kind = of(layer_state(model, stack, model.layers[-1], share))
    found = np.zeros(pp)
    for stage, letters in enumerate(parts):
        rank = stage % pp
        for letter in letters:
            if letter == "t":
                found[rank] += next(layers)
            elif letter == "E":
                found[rank] += embedding
            elif letter == "m":
                found[rank] += last_kind + of(mtp_state(model, stack, share))
            elif letter == "L":
                is_shared = model.is_tied and pp == 1
                ends = np.array([model.norm_params + (0 if is_shared else model.head_params / job.row["tp"])])
                found[rank] += of(state(stack, share, ends, share.shards, is_linear=False))
        if "m" in letters and "E" not in letters:
            found[rank] += embedding  # its prediction layers embed their own input
    return found.tolist()


def built(files: list[Path]) -> list[dict[str, object]]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", BUILDER, *map(str, files)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def chosen(model: str, count: int) -> list[LaunchJob]:
    space = {"model": model, "hardware": "h100", "nodes": 4, "framework": "megatron",
             "workload": {"seq_length": 2048, "global_batch_size": 512}, "space": AXES}  # fmt: skip
    return list(jobs(make_space(space, name=model), count))


def compare(models: Sequence[str], count: int, folder: Path) -> Builds:
    """Candidates of each model and what Megatron builds of them; it starts once for all, as that takes seconds."""
    few = FEWER if count == FEW else {}
    cases = [(model, job) for model in models for job in chosen(model, few.get(model, count))]
    files = [folder / f"{number}.sh" for number in range(len(cases))]
    for file, (_, job) in zip(files, cases, strict=True):
        file.write_text(launch_files(job).texts["megatron.sh"], encoding="utf-8")
    found: Builds = {model: [] for model in models}
    for (model, job), answer in zip(cases, built(files), strict=True):
        found[model].append((job, answer))
    return found


def agree(cases: Sequence[Case], count: int) -> None:
    assert len(cases) == count
    for job, answer in cases:
        assert (answer["why"], answer["params"]) == ("", counted(job)), job.row


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Builds:
    return compare(MODELS, FEW, tmp_path_factory.mktemp("builds"))


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_megatron_builds_what_is_counted(model: str, sample: Builds) -> None:
    agree(sample[model], FEWER.get(model, FEW))


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_megatron_has_the_matrices_whose_state_muon_halves(model: str, sample: Builds) -> None:
    """A master of 4 bytes and one momentum of 4 for matrices, two for the rest; layers' norms count as matrices."""
    for job, answer in sample[model]:
        ranks = zip(answer["params"], answer["matrices"], strict=True)  # type: ignore[call-overload]
        expected = [12.0 * total - 4.0 * matrices for total, matrices in ranks]
        held = counted(job, "optimizer", optimizer=int(Optimizer.MUON), sharding=int(Sharding.NONE))
        assert held == pytest.approx(expected, rel=0.002)


@pytest.mark.full
@pytest.mark.parametrize("model", MODELS)
def test_megatron_builds_what_is_counted_for_many_candidates(model: str, tmp_path: Path) -> None:
    agree(compare([model], MANY, tmp_path)[model], MANY)
