"""The catalogue commands and the published schema, through the command line users have."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from primus_search.cli import app
from primus_search.declare.space_schema import json_schema
from primus_search.files.search_path import FileKind, names


def printed(*arguments: str) -> str:
    """Standard output of a command that succeeds, 80 columns wide."""
    done = CliRunner().invoke(app, [*arguments], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    return done.stdout


def test_models_fit_eighty_columns_and_their_json_has_the_counts() -> None:
    text = printed("models")
    assert max(len(line) for line in text.splitlines()) <= 80
    rows = {row["name"]: row for row in json.loads(printed("models", "--json"))}
    assert set(rows) == set(names(FileKind.MODEL))
    assert rows["mixtral_8x22b"]["total_params"] == 140_620_634_112
    assert rows["deepseek_v3"]["published_source"].startswith("deepseek-ai/DeepSeek-V3 README_WEIGHTS.md")


def test_one_model_shows_its_sizes_its_source_and_what_is_published() -> None:
    details = json.loads(printed("models", "gpt_oss_20b", "--json"))
    assert [(k["is_moe"], k["window"], k["layers"]) for k in details["layer_kinds"]] == [(True, 128, 12), (True, 0, 12)]
    assert [k["mixer"] for k in details["layer_kinds"]] == ["attention 64/8, window 128", "attention 64/8"]
    assert details["active_params_with_embedding"] - details["active_params"] == details["embedding_params"]
    assert "openai/gpt-oss-20b" in printed("models", "gpt_oss_20b")


def test_hardware_fits_eighty_columns_and_one_file_shows_every_source() -> None:
    text = printed("hardware")
    assert max(len(line) for line in text.splitlines()) <= 80
    assert {row["name"] for row in json.loads(printed("hardware", "--json"))} == set(names(FileKind.HARDWARE))
    details = json.loads(printed("hardware", "mi355x", "--json"))
    by_path = {number["path"]: number for number in details["numbers"]}
    assert by_path["network.link_GBps"]["value"] == 537.6
    assert by_path["network.link_GBps"]["source"] in printed("hardware", "mi355x")


def test_a_variant_of_a_stack_is_shown_with_its_own_numbers() -> None:
    numbers = json.loads(printed("hardware", "torchtitan@2026", "--json"))["numbers"]
    own = {n["path"] for n in numbers if not n["inherited_from"] and not n["path"].startswith(("name", "errors."))}
    assert own == {"experts.permutation", "memory.loss_chunks", "memory.hides_expert_layers"}


def test_a_stack_is_shown_like_hardware() -> None:
    assert "attention_kernel" in printed("hardware", "megatron_te")


@pytest.mark.daily(1)
@pytest.mark.parametrize("command", ["models", "hardware"])
def test_an_unknown_name_ends_with_exit_code_two_and_one_line(command: str) -> None:
    words = [sys.executable, "-m", "primus_search", command, "nothing_like_it"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)


def test_the_schema_is_printed_and_is_itself_valid() -> None:
    schema = json.loads(printed("schema"))
    assert schema == json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)


@cache
def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json_schema())


@pytest.mark.parametrize("name", names(FileKind.SPACE))
def test_every_space_that_ships_passes_the_schema(name: str) -> None:
    validator().validate(yaml.safe_load(names(FileKind.SPACE)[name].read_text()))


MINIMAL = {"model": "llama3_8b", "hardware": "h100", "workload": {"seq_length": 4096, "global_batch_size": 128}}


@pytest.mark.parametrize(
    "change",
    [
        {"nmae": "x"},
        {"nodes": "many"},
        {"space": {"ttp": 1}},
        {"space": {"tp": 0}},
        {"space": {"tp": [1, "some"]}},
        {"space": {"fp8": "hybird"}},
        {"space": {"deepep": "maybe"}},
        {"space": {"sync_free_stage": 4}},
        {"search": {"memory_margin": 1.5}},
        {"search": {"method": "bayes"}},
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(change: dict[str, Any]) -> None:
    validator().validate(MINIMAL)
    with pytest.raises(jsonschema.ValidationError):
        validator().validate(MINIMAL | change)


def described(node: Any, path: str = "$") -> list[str]:
    """Paths of properties that say nothing about themselves."""
    silent = []
    for name, child in node.get("properties", {}).items():
        if (
            "$ref" not in child
            and "description" not in child
            and path not in ("$.space",)
            and name not in ("first", "last")
        ):
            silent.append(f"{path}.{name}")
    return silent


def test_every_key_of_the_schema_describes_itself() -> None:
    schema = json_schema()
    silent = described(schema) + [p for name, part in schema["$defs"].items() for p in described(part, name)]
    assert silent == []
    assert [
        name
        for name, axis in schema["properties"]["space"]["properties"].items()
        if "Allowed" not in axis["description"]
    ] == []


def test_the_schema_only_changes_on_purpose() -> None:
    """Keys and axes of the published schema; a new one is added here and to CHANGELOG.md."""
    schema = json_schema()
    assert list(schema["properties"]) == [
        "name", "model", "vocab_size", "ignore", "hardware", "nodes", "gpus", "price", "goal", "gpus_per_node", "stack",
        "site", "framework", "workload", "space", "constraints", "search", "benchmark",
    ]  # fmt: skip
    assert list(schema["properties"]["space"]["properties"]) == [
        "tp", "pp", "vpp", "ep", "etp", "cp", "micro_batch_size", "schedule", "deepep", "sync_free_stage", "fp8",
        "recompute", "recompute_num_layers", "recompute_method", "sharding", "shard_group", "loss_fusion",
        "overlap_grad_reduce", "grouped_gemm", "sequence_parallel", "pipeline_layout", "offload_layers",
        "offload_modules", "microbatch_group", "exchange_overlap", "cuda_graph", "tp_overlap", "cp_comm",
        "hybrid_cp", "state_format", "optimizer", "optimizer_offload", "fp8_attention", "dispatch_backend",
    ]  # fmt: skip
    assert schema["required"] == ["model", "hardware", "workload"]


def test_an_installed_package_would_ship_every_data_file() -> None:
    """setup.py maps the data folders into the package; a new folder of YAML must be listed there."""
    root = Path(__file__).parent.parent.parent
    mapped = (root / "setup.py").read_text()
    folders = {
        str(path.parent.relative_to(root)) for top in ("hardware", "spaces") for path in (root / top).rglob("*.yaml")
    }
    assert [folder for folder in sorted(folders) if f'"{folder}"' not in mapped] == []
