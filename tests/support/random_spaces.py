"""Spaces drawn by a seed, small enough to be searched in a second or two on any engine."""

import random
from typing import Any

MODELS = ("tiny_moe", "tiny_moe", "qwen3_30b_a3b", "llama3.1_8b", "moonlight_16b")
HARDWARE = ("mi355x", "mi300x", "b200", "h100", "gb200")
AXES: dict[str, tuple[Any, ...]] = {
    "tp": (1, 2, 4),
    "pp": (1, 2, 4),
    "vpp": (1, 2),
    "ep": (1, 2, 4, 8),
    "micro_batch_size": (1, 2),
    "schedule": ("1f1b", "interleaved", "zb-h1"),
    "fp8": ("none", "hybrid"),
    "recompute": ("none", "selective", "full"),
    "deepep": (False, True),
    "cuda_graph": ("none", "full"),
    "sync_free_stage": (0, 1, 2),
    "overlap_grad_reduce": (False, True),
    "loss_fusion": (False, True),
}


def random_space(seed: int) -> dict[str, Any]:
    """The content of a space file: a model, a device or two, some values of some axes."""
    draw = random.Random(seed)
    axes = {name: draw.sample(values, draw.randint(1, len(values))) for name, values in AXES.items()}
    axes["tp"], axes["pp"] = sorted({1, *axes["tp"]}), sorted({1, *axes["pp"]})
    axes["vpp"], axes["ep"] = sorted({1, *axes["vpp"]}), sorted({1, *axes["ep"]})
    axes["schedule"] = sorted({"1f1b", *axes["schedule"]})
    return {
        "name": f"random_{seed}",
        "model": draw.choice(MODELS),
        "hardware": draw.choice(HARDWARE),
        "nodes": draw.choice((2, 4)),
        "framework": "any",
        "workload": {"seq_length": draw.choice((1024, 4096)), "global_batch_size": draw.choice((64, 128))},
        "benchmark": {"device": "off"},
        "space": axes | {"etp": 1, "cp": 1},
    }
