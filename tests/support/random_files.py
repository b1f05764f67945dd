"""Random experiments of Primus and job files of torchtitan: their settings over models that the frameworks have.

About half of them are legal. `RandomFile.text` is the file, for `RandomFile.world` processes.
"""

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support import random_scripts
from tests.support.random_scripts import any_settings, chosen, degrees, seldom, table

DRAWN = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class RandomFile:
    """Settings of a job by their key, its processes and environment, and its file."""

    settings: Mapping[str, Any]
    world: int
    environment: Mapping[str, str]
    text: str
    suffix: str


def experiments(count: int, seed: int = 1, *, of: str = "") -> Iterator[RandomFile]:
    """Experiments of Primus on the Megatron back end; of "all" any settings of its table beside some."""
    rows, rng = table("primus"), random.Random(seed)
    own = DRAWN["primus"]
    for _ in range(count):
        model, world = dict(rng.choice(own["models"])), rng.choice(random_scripts.DRAWN["worlds"])
        settings = degrees(model, world, rng)
        if rng.random() < 0.05:
            del settings["max_position_embeddings"]
        parts = ("often", "often_with_experts") if "num_experts" in model else ("often",)
        for drawn in (random_scripts.DRAWN, own):
            settings |= chosen(drawn, rng, parts)
            settings |= seldom(drawn, settings, rng)
        if settings.get("recompute_granularity") == "full":
            settings = {"recompute_method": "uniform", "recompute_num_layers": 1} | settings
        settings |= any_settings(rows, rng) if of == "all" else {}
        kept = {name: _typed(rows[name][1], value) for name, value in settings.items() if name in rows}
        environment = {name: rng.choice(values) for name, values in own["environment"].items() if rng.random() < 0.5}
        trainer = {"framework": "megatron", "config": "pre_trainer.yaml", "model": f"{model['model']}.yaml"}
        named = dict.fromkeys(("work_group", "user_name", "exp_name", "workspace"), "random")
        file = named | {"modules": {"pre_trainer": trainer | {"overrides": kept | {"mock_data": True}}}}
        yield RandomFile(kept | {"model": model["model"]}, world, environment, yaml.safe_dump(file), ".yaml")


def job_files(release: str, count: int, seed: int = 1, *, of: str = "") -> Iterator[RandomFile]:
    """Job files of torchtitan; keys are `section.name`; of "all" as those of Primus."""
    rows, rng = table(f"torchtitan@{release}"), random.Random(seed)
    own = DRAWN[f"torchtitan@{release}"]
    for _ in range(count):
        model, world = dict(rng.choice(own["models"])), rng.choice(DRAWN["torchtitan_worlds"])
        settings: dict[str, Any] = {"model.name": model["name"], "model.flavor": model["flavor"]}
        settings |= _titans_degrees(model, world, rng)
        settings |= chosen(own, rng, ("often", "often_with_experts") if "experts" in model else ("often",))
        settings |= seldom(own, settings, rng)
        settings |= any_settings({name: row for name, row in rows.items() if "." in name}, rng) if of == "all" else {}
        if release == "0.3.0":
            kept = {name: value for name, value in settings.items() if name in rows or name.startswith(OF_MODEL)}
            yield RandomFile(kept, world, {}, _configuration(kept), ".py")
            continue
        kept = {name: value for name, value in settings.items() if name in rows}
        sections: dict[str, list[str]] = {}
        for name, value in kept.items():
            section, _, key = name.partition(".")
            sections.setdefault(section, []).append(f"{key} = {json.dumps(value)}\n")
        text = "".join(f"[{section}]\n{''.join(lines)}" for section, lines in sections.items())
        yield RandomFile(kept, world, {}, text, ".toml")


OF_MODEL = ("model.", "registry.")
"""What begins settings that a configuration function gives to the model's registry."""
CONFIGURATION = """
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.components.quantization import Float8LinearConverter
from torchtitan.distributed.activation_checkpoint import FullAC, MemoryBudgetAC, SelectiveAC
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.{family} import model_registry
from torchtitan.trainer import Trainer


def job() -> Trainer.Config:
    model_spec = model_registry("{flavor}"{arguments})
    tokens = CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model_spec))
    config = Trainer.Config(
        model_spec=model_spec,
        loss={loss},
        activation_checkpoint={recompute},
        hf_assets_path="./tests/assets/tokenizer",
        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4_test"),
        optimizer=default_adamw(lr=3e-4),
    )
{lines}
    return config
"""


def _configuration(settings: Mapping[str, Any]) -> str:
    """A configuration function of 0.3.0; `registry.NAME` are arguments of the model's registry as Python has them."""
    arguments = {key.partition(".")[2]: value for key, value in settings.items() if key.startswith("registry.")}
    recompute = settings.get("activation_checkpoint")
    plain = {key: value for key, value in settings.items() if "." in key and not key.startswith(OF_MODEL)}
    return CONFIGURATION.format(
        family=settings["model.name"],
        flavor=settings["model.flavor"],
        arguments="".join(f", {name}={value}" for name, value in arguments.items()),
        loss="tokens" if settings.get("loss") == "whole" else "ChunkedLossWrapper.Config(loss_fn=tokens)",
        recompute=f"{recompute}.Config()" if recompute else None,
        lines="\n".join(f"    config.{key} = {value!r}" for key, value in plain.items()),
    )


def _typed(kind: str, value: Any) -> Any:
    """A value as YAML has it: some are drawn as the words of a command line."""
    if kind == "pattern" and str(value).isdigit():
        return int(value)
    if kind.startswith("list") and value is not None:
        words = value if isinstance(value, list) else str(value).split()
        return [int(one) if "int" in kind else one for one in words]
    return value


def _titans_degrees(model: Mapping[str, Any], world: int, rng: random.Random) -> dict[str, Any]:
    """Degrees and batches that mostly fill the world and the model."""

    def some(limit: int, *weights: int) -> int:
        return rng.choice([one for one in (1, *weights, 2, 4, 8) if one <= limit])

    tp = some(world, 1)
    pp = some(world // tp, 1, 1, 1)
    cp = some(world // (tp * pp), 1, 1, 1, 1)
    left = world // (tp * pp * cp)
    replicas = some(left, 1, 1, 1)
    local = rng.choice((1, 2, 4, 8, 16, 32))
    batch = local * left
    found: dict[str, Any] = {
        "parallelism.tensor_parallel_degree": tp + (rng.random() < 0.03),
        "parallelism.pipeline_parallel_degree": pp,
        "parallelism.context_parallel_degree": cp,
        "parallelism.data_parallel_replicate_degree": replicas,
        "parallelism.data_parallel_shard_degree": rng.choice((-1, -1, left // replicas)) if rng.random() < 0.95 else 1,
        "training.local_batch_size": local,
        "training.global_batch_size": rng.choice((-1, batch, batch * 2, batch * 8)) + (rng.random() < 0.03),
        "training.seq_len": rng.choice((2048, 4096, 8192, 32768)) if rng.random() < 0.95 else 5000,
    }
    if model.get("experts") and rng.random() < 0.8:
        found["parallelism.expert_parallel_degree"] = some(left * tp, 16) if rng.random() < 0.9 else 3
        found["parallelism.expert_tensor_parallel_degree"] = rng.choice((1, 1, 1, tp)) if rng.random() < 0.95 else 2
    if pp > 1:
        schedules = ("1F1B", "GPipe", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
        found["parallelism.pipeline_parallel_schedule"] = rng.choice(schedules)
        if rng.random() < 0.6:
            each = max(1, -(-(model["layers"] + 2) // (pp * rng.choice((1, 2, 2, 3)))))
            found["parallelism.pipeline_parallel_layers_per_stage"] = each
    return found
