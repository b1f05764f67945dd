"""Random jobs of Megatron: settings that concern speed, memory or legality over published shapes and real worlds.

About half of them are legal. `RandomJob.argv` are Megatron's arguments, `RandomJob.script` a launch script that hands
them to torchrun. Spellings are those of the release's table in spaces/keys/arguments.
"""

import csv
import json
import random
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ARGUMENTS = Path(__file__).parents[2] / "spaces" / "keys" / "arguments"
DRAWN = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class RandomJob:
    """Settings of a job by their argument, and the processes that it has."""

    settings: Mapping[str, Any]
    world: int
    argv: tuple[str, ...]
    environment: Mapping[str, str]

    @property
    def script(self) -> str:
        """A launch script; environment first, one torchrun."""
        per_node = min(self.world, 8)
        exports = "".join(f"export {name}={value}\n" for name, value in self.environment.items())
        start = f"torchrun --nnodes {self.world // per_node} --nproc-per-node {per_node} pretrain_gpt.py"
        return f"#!/bin/bash\n{exports}{start} \\\n    {shlex.join(self.argv)}\n"


def table(release: str) -> dict[str, list[str]]:
    """Rows of a release's table by the name of the argument."""
    text = (ARGUMENTS / f"{release}.tsv").read_text(encoding="utf-8")
    rows = csv.reader(
        (line for line in text.splitlines() if not line.startswith("#")),
        delimiter="\t",
        quotechar=None,
        quoting=csv.QUOTE_NONE,
    )
    return {row[0]: [*row, "", "", ""][:5] for row in rows}


def spelled(row: list[str], value: Any) -> list[str] | None:
    """A setting as the command line has it, nothing where its default says it; None where no flag does."""
    _, kind, default, _, spellings = row
    if kind == "flag":
        if json.loads(default) is value:
            return []
        flags = [one for one in spellings.split() if one.startswith("!") is not value]
        return [flags[0].removeprefix("!")] if flags else None
    listed = map(str, value if isinstance(value, list) else [value])
    words = " ".join(listed).split() if kind.startswith("list") else [str(value)]
    return [spellings.split()[0], *words]


def jobs(release: str, count: int, seed: int = 1, *, of: str = "") -> Iterator[RandomJob]:
    """Random jobs; settings that the release has no argument for are left out.

    of  what they set, instead of a few settings of any kind: "bytes" of weights, gradients and optimizer, or "all": any
        arguments of the release, as its table has them
    """
    rows, rng = table(release), random.Random(seed)
    for _ in range(count):
        yield _job(rows, rng, of)


def _job(rows: Mapping[str, list[str]], rng: random.Random, of: str) -> RandomJob:
    settings: dict[str, Any] = dict(rng.choice(DRAWN["models"]))
    world = rng.choice(DRAWN["worlds"])
    has_experts = "num_experts" in settings
    settings |= degrees(settings, world, rng)
    settings |= chosen(DRAWN, rng, ("often", "often_with_experts") if has_experts else ("often",))
    if "num_query_groups" in settings:
        settings["group_query_attention"] = True
    if settings.get("recompute_granularity") == "full":
        settings |= {"recompute_method": rng.choice(("uniform", "block")), "recompute_num_layers": 1}
    if of == "bytes":
        settings |= chosen(DRAWN, rng, ("of_bytes",))
        settings |= mostly_with(DRAWN, settings, rng) | layout(settings, rng)
    else:
        settings |= seldom(DRAWN, settings, rng) | {"vocab_size": 128000}
    settings |= {"mock_data": True, "train_iters": 10, "tokenizer_type": "NullTokenizer"}
    if "lr" in rows:
        settings |= {"lr": 0.0001, "min_lr": 0.00001}
    if of == "all":
        settings |= any_settings(rows, rng)
    argv: list[str] = []
    kept: dict[str, Any] = {}
    for name, value in settings.items():
        words = spelled(rows[name], value) if name in rows and value is not None else None
        if words is not None:
            kept[name] = value
            argv += words
    environment = (
        {}
        if settings.get("use_torch_fsdp2") or settings.get("use_megatron_fsdp")
        else {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    )
    if settings.get("fine_grained_activation_offloading"):
        environment["NVTE_CPU_OFFLOAD_V1"] = "1"
    return RandomJob(kept, world, tuple(argv), environment)


def any_settings(rows: Mapping[str, list[str]], rng: random.Random) -> dict[str, Any]:
    """One to six arguments of a table, whatever they are."""
    return {name: any_value(rows[name], rng) for name in rng.sample(sorted(rows), rng.randint(1, 6))}


def any_value(row: list[str], rng: random.Random) -> Any:
    """A value of an argument: another than its default, of its choices and its type."""
    _, kind, default, choices, _ = row
    usual = json.loads(default) if default else None
    if choices:
        return rng.choice(json.loads(choices))
    if kind == "flag":
        return not usual
    if kind.startswith("list"):
        return [rng.choice((1, 2, 4)) for _ in range(rng.randint(1, 3))]
    if kind in ("int", "float"):
        half = usual // 2 if kind == "int" and usual else 0.5
        return rng.choice((0, 1, 2, 8, 64, 2 * usual, half) if usual else (0, 1, 2, 8, 64))
    return rng.choice(("x", "1", "all"))


def chosen(drawn: Mapping[str, Any], rng: random.Random, parts: Iterable[str]) -> dict[str, Any]:
    """Settings that a share of the jobs has, of some parts of what is drawn."""
    shares = [(name, *row) for part in parts for name, row in drawn[part].items()]
    return {name: rng.choice(values) for name, share, *values in shares if rng.random() < share}


def seldom(drawn: Mapping[str, Any], settings: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """A few settings that most jobs do not have, mostly with what they need."""
    names = rng.sample(list(drawn["seldom"]), min(rng.choice((0, 0, 1, 1, 2, 2, 3, 4, 6)), len(drawn["seldom"])))
    found = {name: rng.choice(drawn["seldom"][name]) for name in names}
    return found | mostly_with(drawn, settings | found, rng)


def mostly_with(drawn: Mapping[str, Any], settings: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """What settings mostly need."""
    found: dict[str, Any] = {}
    for name, needed in drawn["mostly_with"].items():
        if (settings | found).get(name) and rng.random() < 0.85:
            found |= needed
    return found


def layout(settings: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """Now and then the layers of every stage by letters, as many as there are, and nothing else that deals them."""
    pp, layers = settings["pipeline_model_parallel_size"], settings["num_layers"]
    stages = pp * rng.choice((1, 2))
    if pp == 1 or rng.random() > 0.1:
        return {}
    cuts = sorted(rng.sample(range(1, layers), min(stages, layers) - 1))
    parts = ["t" * (end - begin) for begin, end in zip([0, *cuts], [*cuts, layers], strict=True)]
    parts[-1] += "m" * settings.get("mtp_num_layers", 0)
    others = [name for name in settings if "pipeline" in name and not name.startswith("pipeline_model")]
    return dict.fromkeys(others) | {"pipeline_model_parallel_layout": f"E{'|'.join(parts)}L"}


def degrees(settings: Mapping[str, Any], world: int, rng: random.Random) -> dict[str, Any]:
    """Degrees that mostly divide the world and the model, lengths and batches."""

    def some(limit: int) -> int:
        return rng.choice([one for one in (1, 2, 4, 8) if one <= limit])

    layers = settings["num_layers"]
    tp = some(min(world, 8))
    pp = rng.choice(
        [one for one in (1, 1, 2, 3, 4, 8, 16) if tp * one <= world and (not layers % one or rng.random() < 0.1)]
    )
    cp = rng.choice((1, 1, 1, 2)) if tp * pp * 2 <= world else 1
    if world % (tp * pp * cp) and rng.random() < 0.9:
        tp = pp = cp = 1
    dp = max(world // (tp * pp * cp), 1)
    micro = rng.choice((1, 1, 2, 4))
    length = rng.choice((2048, 4096, 8192, 32768))
    found: dict[str, Any] = {
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "context_parallel_size": cp,
        "micro_batch_size": micro,
        "global_batch_size": micro * dp * rng.choice((1, 2, 8, 16)) + (rng.random() < 0.03),
        "seq_length": length,
        "max_position_embeddings": length,
    }
    experts = settings.get("num_experts")
    if experts:
        found["expert_model_parallel_size"] = some(min(max(world // pp, 1), experts))
        if rng.random() < 0.3:
            found["expert_tensor_parallel_size"] = 1
    each = layers // pp
    if pp > 1 and rng.random() < 0.4:
        divisors = [one for one in range(1, each) if not each % one] or [1]
        found["num_layers_per_virtual_pipeline_stage"] = rng.choice(divisors)
    return found
