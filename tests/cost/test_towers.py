"""Vision towers on the first stage: FLOPs as torch counts them, and what images, freezing and stages change."""

from dataclasses import fields, replace

import numpy as np
import pytest

from primus_search.cost.memory.chunk_memory import memory_by_rank
from primus_search.cost.parts.tower_operations import flops_per_token
from primus_search.cost.project import Projector
from primus_search.cost.projection import Projection, Step
from primus_search.files.hardware_files import load_cluster
from primus_search.models.model_files import load_model
from primus_search.values.candidates import Candidates
from primus_search.values.job import Job
from primus_search.values.model import Model, Tower
from primus_search.values.workload import Workload

IMAGES = Workload(seq_length=4096, global_batch_size=32, image_tokens=2048, tokens_per_image=256)
TOWER = Tower(
    name="vision", params=12 * 7_087_872 + 3_000_000, num_layers=12, hidden=768, ffn_hidden=3072, num_heads=12,
    head_dim=64, patch_inputs=768, merge=4, projector=((4096, 3072),),
)  # fmt: skip


def model(tower: Tower = TOWER) -> Model:
    return replace(load_model("llama3.1_8b"), towers=(tower,))


def projected(workload: Workload, of: Model | None = None, **row: object) -> Projection:
    candidate = Candidates.from_words({"tp": 2, "pp": 2, "micro_batch_size": 1} | row)
    return Projector(Job(of or model(), load_cluster("h100", 1), workload)).project(candidate)


def test_without_images_a_tower_is_not_held() -> None:
    text = replace(IMAGES, image_tokens=0, tokens_per_image=0)
    with_tower, without = projected(text), projected(text, load_model("llama3.1_8b"))
    assert with_tower.step.total == without.step.total and with_tower.memory.total == without.memory.total
    assert with_tower.step.tower == 0.0


def test_a_model_without_a_counted_tower_takes_no_images() -> None:
    with pytest.raises(ValueError, match="has no tower whose sizes are known"):
        projected(IMAGES, load_model("llama3.1_8b"))


def test_twice_the_images_take_up_to_twice_the_tower() -> None:
    """Larger products of more patches run at a higher share of peak."""
    half = replace(IMAGES, image_tokens=1024)
    ratio = projected(IMAGES, pp=1).step.tower[0] / projected(half, pp=1).step.tower[0]
    assert 1.5 < ratio <= 2.0


def test_a_frozen_tower_runs_forward_and_keeps_nothing() -> None:
    trained, frozen = projected(IMAGES, pp=1), projected(replace(IMAGES, trains_towers=False), pp=1)
    assert 0.2 < frozen.step.tower[0] / trained.step.tower[0] < 0.45
    text = projected(replace(IMAGES, image_tokens=0, tokens_per_image=0), pp=1)
    assert frozen.memory.optimizer == text.memory.optimizer
    assert frozen.memory.activations == text.memory.activations
    assert frozen.memory.weights > text.memory.weights


def test_the_tower_lies_on_the_first_pipeline_stage() -> None:
    candidate = Candidates.from_words({"pp": 4, "tp": 2, "micro_batch_size": 1})
    cluster = load_cluster("h100", 1)
    text = replace(IMAGES, image_tokens=0, tokens_per_image=0)
    with_tower, without = (memory_by_rank(Job(model(), cluster, work), candidate) for work in (IMAGES, text))
    assert with_tower.weights[0] - without.weights[0] == pytest.approx(2.0 * TOWER.params / 2)
    assert np.array_equal(with_tower.weights[1:], without.weights[1:])
    assert with_tower.activations[0] > without.activations[0]
    assert np.array_equal(with_tower.activations[1:], without.activations[1:])


def test_a_tower_keeps_activations_of_every_microbatch_in_flight() -> None:
    text = replace(IMAGES, image_tokens=0, tokens_per_image=0)
    kept = []
    for pp in (2, 4):
        work = [projected(work, pp=pp, tp=1).memory.activations[0] for work in (IMAGES, text)]
        kept.append(work[0] - work[1])
    assert kept[1] == pytest.approx(2.0 * kept[0])


def test_parts_sum_to_the_step_with_a_tower() -> None:
    step = projected(IMAGES).step
    assert sum(float(getattr(step, f.name)[0]) for f in fields(Step)) == pytest.approx(float(step.total[0]))


def test_model_flops_count_images() -> None:
    cluster = load_cluster("h100", 1)
    text = replace(IMAGES, image_tokens=0, tokens_per_image=0)
    more = flops_per_token(Job(model(), cluster, IMAGES)) - flops_per_token(Job(model(), cluster, text))
    assert more == pytest.approx(3.0 * TOWER.flops_per_token(1024) * 0.5)


def test_flops_are_those_that_torch_counts() -> None:
    """SigLIP of Gemma 3: patch embedding and encoder of transformers, one image of 14 x 14 patches."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    config = transformers.SiglipVisionConfig(vision_use_head=False)
    with torch.device("meta"):
        module = transformers.SiglipVisionModel(config)
        pixels = torch.empty(1, 3, config.image_size, config.image_size)
    with FlopCounterMode(display=False) as counter:
        module(pixels)
    patches = (config.image_size // config.patch_size) ** 2
    tower = replace(TOWER, merge=1, projector=(), image_patches=patches)
    assert patches * tower.flops_per_token(patches) == pytest.approx(counter.get_total_flops(), rel=0.01)
