"""From blank to launch file: what export writes, read back with its own stack, has the numbers of the first screen."""

import csv
import json
from itertools import product
from pathlib import Path

import pytest
from typer.testing import CliRunner

from primus_search.cli import app
from primus_search.declare import make_space

OWN_MODEL = {
    "model_type": "llama", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 30,
    "num_attention_heads": 24, "num_key_value_heads": 8, "vocab_size": 50000, "rms_norm_eps": 1e-6,
    "rope_theta": 2000000.0, "tie_word_embeddings": False,
}  # fmt: skip
STACKS = {
    "h100": "torchtitan",
    "h200": "torchtitan",
    "b200": "torchtitan",
    "mi300x": "primus_torchtitan",
    "mi355x": "primus_torchtitan",
}
RELEASES = {"torchtitan@0.2.2": ("torchtitan.toml", "hybrid", {}),
            "torchtitan": ("searched.py", "rowwise", {one: f"{one}@2026" for one in STACKS.values()})}  # fmt: skip
"""Main file of each release, a format of FP8 that it has, and the stacks that it runs on where these are others."""
VARIED = ("h200", "mi300x")
"""One device of each stack, on which its variant is read back as well."""
AXES = {
    "tp": [1, 2], "pp": [1, 2], "cp": 1, "vpp": [1, 3], "micro_batch_size": [1, 2], "recompute": ["none", "op_sac"],
    "schedule": ["1f1b", "interleaved"],
}  # fmt: skip


@pytest.mark.daily(5)
@pytest.mark.parametrize(
    ("release", "hardware", "variant"),
    [(release, *case) for release in RELEASES for case in [*product(STACKS, [""]), *product(VARIED, ["eager"])]],
)
def test_a_torchtitan_file_read_back_has_the_numbers_of_its_row(
    release: str, hardware: str, variant: str, tmp_path: Path
) -> None:
    model = tmp_path / "own.json"
    model.write_text(json.dumps(OWN_MODEL))
    main, fp8, others = RELEASES[release]
    stack = others.get(STACKS[hardware], STACKS[hardware])
    stack += ("-" if "@" in stack else "@") + variant if variant else ""
    space = {"name": "own", "model": str(model), "hardware": hardware, "nodes": 2, "framework": release,
             "workload": {"seq_length": 8192, "global_batch_size": 64},
             "space": AXES | {"fp8": ["none", fp8]}}  # fmt: skip
    if variant:
        space["stack"] = stack
    assert make_space(space, name="own", environ={}).cluster.stack.reference == stack
    file, folder, exports = tmp_path / "own.yaml", tmp_path / "run", tmp_path / "exports"
    file.write_text(json.dumps(space))
    runner = CliRunner()
    done = runner.invoke(app, ["run", str(file), "--bench", "off", "--workers", "1", "--out", str(folder)])
    assert done.exit_code == 0, done.output
    assert runner.invoke(app, ["export", str(folder), "1", "--out", str(exports)]).exit_code == 0
    launch = exports / "1" / main
    read = runner.invoke(app, ["project", str(launch), "--hardware", hardware, "--nodes", "2", "--json"])
    assert read.exit_code == 0, read.output
    figures, row = json.loads(read.output), next(csv.DictReader((folder / "ranking.csv").open()))
    assert figures["not_modelled"] == []
    pairs = {
        "tokens_per_s_per_gpu": figures["tokens_per_s_per_gpu"],
        "mfu": figures["mfu"],
        "memory_bytes": figures["memory"]["total_bytes"],
        "step_s": figures["step"]["total_s"],
    }
    for name, ours in pairs.items():
        assert f"{ours:.12g}" == f"{float(row[name]):.12g}", name


def test_no_command_is_printed_that_export_refuses(tmp_path: Path) -> None:
    axes = {"tp": 8, "pp": 1, "cp": 1, "ep": 8, "etp": 1, "vpp": 1, "micro_batch_size": 1, "recompute": "full"}
    axes |= {"fp8": "none", "cuda_graph": "none", "offload_modules": "none", "deepep": False}
    space = {"model": "llama4_scout", "hardware": "h100", "nodes": 16, "framework": "megatron", "space": axes,
             "workload": {"seq_length": 4096, "global_batch_size": 512}}  # fmt: skip
    file = tmp_path / "own.yaml"
    file.write_text(json.dumps(space))
    done = CliRunner().invoke(
        app, ["run", str(file), "--bench", "off", "--workers", "1", "--out", str(tmp_path / "run")]
    )
    assert done.exit_code == 0, done.output
    assert "Files: none: Megatron-LM has no arguments for parts of llama4_scout" in done.output
    assert "primus-search export" not in done.output


def test_the_stack_of_torchtitan_is_that_of_its_release_and_the_model() -> None:
    """0.2.2 compiles no blocks of GPT-OSS (models/gpt_oss/infra/parallelize.py), 0.3.0 whole logits with MTP."""
    stacks = {
        ("gpt_oss_20b", "torchtitan@0.2.2"): "torchtitan@eager",
        ("gpt_oss_20b", "torchtitan"): "torchtitan@2026",
        ("deepseek_v3", "torchtitan"): "torchtitan@2026-whole-loss",
        ("gpt_oss_20b", "nemo"): "megatron_core_2026",
    }
    for (model, framework), stack in stacks.items():
        space = {"model": model, "hardware": "h100", "nodes": 2, "framework": framework,
                 "workload": {"seq_length": 4096, "global_batch_size": 64}}  # fmt: skip
        found = make_space(space, name="own", environ={}).cluster.stack
        assert (found.reference, found.is_assumed) == (stack, False)
