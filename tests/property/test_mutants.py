"""Whatever a user's files hold, reading them succeeds or is refused in words: no traceback, no hang, bounded memory.

`make test` reads a few hundred mutants, `make test-full` 20,000. A finding names the surface, seed and mutant.
"""

import json
import os
import random
import resource
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from primus_search.analysis.own_configuration import baseline_of
from primus_search.base.errors import NothingFits
from primus_search.cli import COMMANDS, app, unusable
from primus_search.declare import load_space
from primus_search.declare.record_table import read_records, write_records
from primus_search.exploration.funnel import Options, run_search
from primus_search.exploration.run_folder import journal as journals
from primus_search.exploration.run_folder.folder import RunFolder
from primus_search.exploration.run_folder.run_facts import file_facts
from primus_search.files.hardware_files import load_cluster, load_hardware, load_stack
from primus_search.launch.write.launch_files import launch_files
from primus_search.learning.readers import read_log
from primus_search.models.families.family_table import FAMILIES
from primus_search.models.model_files import load_model
from primus_search.nightly.sweep import load_sweep
from primus_search.session.complete_search import keep_inputs
from primus_search.space import Space
from primus_search.values.measured_run import MeasuredRun, Measurement, Provenance
from tests.launch.test_launch_files import shipped_space
from tests.support import written_logs
from tests.support.launched import jobs
from tests.support.mutants import VALUES, Surface, mutated, refusal_problem
from tests.support.small_runs import make_run

ROOT = Path(__file__).parents[2]
FEW = {"space": 30, "hardware": 40, "stack": 20, "model": 30, "huggingface": 40, "layers": 40, "tower": 40,
       "experiment": 16, "baseline": 12, "sweep": 6, "log": 40, "learn": 20, "learn table": 2, "table": 12,
       "records": 30, "run folder": 16, "next": 4, "tune": 4, "journal": 10, "search": 6,
       "command line": 15}  # fmt: skip
ALL = {"space": 3000, "hardware": 2000, "stack": 1000, "model": 2000, "huggingface": 2500, "layers": 1500,
       "tower": 1500, "experiment": 1500, "baseline": 500, "sweep": 300, "log": 2500, "learn": 500,
       "learn table": 200, "table": 600, "records": 1000, "run folder": 1000, "next": 200, "tune": 400,
       "journal": 500, "search": 300,       "command line": 1000}  # fmt: skip
LAUNCH_FILES = {
    "primus": "primus.yaml",
    "megatron": "megatron.sh",
    "torchtitan@0.2.2": "torchtitan.toml",
    "torchtitan": "searched.py",
}
MOST_MORE_BYTES = 1 << 30
SEED = "MUTANTS_SEED"
"""Seed of `make test-full`, by default the day; `make test` has a fixed one."""
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2, "tie_word_embeddings": False},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2, "num_key_value_heads": 2},
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "decoder_sparse_step": 1,
                  "num_key_value_heads": 2, "head_dim": 64, "mlp_only_layers": []},
    "deepseek_v3": {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "q_lora_rank": 64,
                    "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
                    "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1},
    "gpt_oss": {"num_local_experts": 8, "num_experts_per_tok": 2, "num_key_value_heads": 2, "head_dim": 64,
                "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 128},
    "mpt": {"d_model": 256, "n_heads": 4, "n_layers": 2, "expansion_ratio": 4, "attn_config": {"alibi": True}},
    "gpt2": {"n_embd": 256, "n_head": 4, "n_layer": 2},
    "nemotron-nas": {"block_configs": [{"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 2.5}},
                                       {"attention": {"no_op": True}, "ffn": {"no_op": True}}]},
    "lfm2": {"num_key_value_heads": 2, "block_ffn_dim_multiplier": 1.5, "full_attn_idxs": [1]},
    "kimi_linear": {"num_experts": 8, "num_experts_per_token": 2, "moe_intermediate_size": 64, "kv_lora_rank": 64,
                    "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
                    "linear_attn_config": {"kda_layers": [1], "full_attn_layers": [2], "num_heads": 4, "head_dim": 64}},
    "nemotron_h": {"hybrid_override_pattern": "M*"},
}  # fmt: skip
"""config.json of some families, beside the sizes that all have."""
ENCODER = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
TOWERS: dict[str, dict[str, Any]] = {
    "qwen3_vl": {"depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "out_hidden_size": 256,
                 "deepstack_visual_indexes": [0, 1], "patch_size": 16},
    "gemma3": ENCODER | {"image_size": 224, "patch_size": 14},
    "gemma4": ENCODER | {"num_key_value_heads": 4, "head_dim": 16},
    "llama4": ENCODER | {"image_size": 336, "pixel_shuffle_ratio": 0.5},
    "mistral3": ENCODER | {"head_dim": 16},
    "minimax_m3_vl": ENCODER | {"img_token_compression_config": {"spatial_merge_size": 2}},
    "kimi_k25": {"vt_hidden_size": 64, "vt_intermediate_size": 128, "vt_num_hidden_layers": 2,
                 "merge_kernel_size": [2, 2]},
    "llava_onevision": {"depth": 3},
}  # fmt: skip
"""vision_config of some families."""
HYBRID = {"num_layers": 6, "hidden_size": 256, "num_attention_heads": 4, "vocab_size": 1024, "ffn_hidden_size": 512,
          "position_embedding_type": "rope"}  # fmt: skip
LAYERS: tuple[dict[str, Any], ...] = (
    {"hybrid_override_pattern": "M*-EM-", "num_experts": 8, "moe_router_topk": 2, "mamba_num_heads": 4},
    {"is_hybrid_model": True, "hybrid_layer_pattern": "M*-M*-", "mamba_head_dim": 32, "mamba_state_dim": 16},
    {
        "spec": ["hybrid_mamba_mla_layer_specs", "hybrid_stack_spec"],
        "is_hybrid_model": True,
        "hybrid_attention_ratio": 0.3,
        "hybrid_mlp_ratio": 0.3,
    },
    {
        "spec": ["hybrid_mamba_mla_layer_specs", "gdn_hybrid_stack_spec"],
        "is_hybrid_model": True,
        "hybrid_attention_ratio": 0.3,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 32,
    },
    {
        "spec": ["hybrid_mamba_mla_layer_specs", "kda_hybrid_stack_spec"],
        "hybrid_attention_ratio": 0.5,
        "is_hybrid_model": True,
    },
    {"num_experts": 8, "moe_layer_freq": "([0]*1+[1]*5)", "moe_router_topk": 2, "mtp_num_layers": 1},
    {"window_size": [127, 0], "window_attn_skip_freq": 2, "qk_layernorm": True},
)
"""Megatron and Primus model files whose layers differ, beside the sizes that all have."""
TITAN = {
    "exp_name": "x",
    "modules": {
        "pre_trainer": {
            "framework": "torchtitan",
            "config": "pre_trainer.yaml",
            "model": "llama3_8B.yaml",
            "overrides": {
                "training": {"local_batch_size": 1, "seq_len": 8192, "global_batch_size": 64},
                "parallelism": {"tensor_parallel_degree": 2, "data_parallel_shard_degree": -1},
                "activation_checkpoint": {"mode": "full"},
                "float8": {"enable_fsdp_float8_all_gather": True},
            },
        }
    },
}
"""Primus' torchtitan back end."""
LAUNCH = f"{sys.executable} -c 1 {{candidate}}"
SIZES = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 32, "intermediate_size": 512,
         "vocab_size": 1024, "_name_or_path": "x/y", "max_position_embeddings": 4096}  # fmt: skip


def shipped(pattern: str) -> list[tuple[str, bytes]]:
    return [(path.name, path.read_bytes()) for path in sorted(ROOT.glob(pattern))]


@pytest.fixture(scope="module")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    axes = {"tp": [1, 2], "pp": [1, 2], "etp": 1, "cp": 1, "micro_batch_size": [1, 2], "schedule": "1f1b",
            "recompute": "none", "fp8": "none"}  # fmt: skip
    run = make_run(tmp_path_factory.mktemp("run"), framework="primus", model="llama3_8b", space=axes)
    keep_inputs(load_space(run.with_name("space.yaml"), environ={}), run)
    return run


def cli(*words: str) -> None:
    """A command in this process; its exception if it is none that a command ends with."""
    outcome = CliRunner().invoke(app, list(words))
    error = outcome.exception
    if isinstance(error, OSError) and unusable(error):
        return
    if error is not None and not isinstance(error, SystemExit):
        raise error


class Surfaces:
    """Every way in, made in a folder where mutants are written."""

    def __init__(self, folder: Path, small_run: Path) -> None:
        self.folder, self.run = folder, small_run

    def _reading(self, seeds: list[tuple[str, bytes]], read: Callable[[Path], object]) -> Surface:
        def use(name: str, content: bytes) -> None:
            path = self.folder / name
            path.write_bytes(content)
            read(path)

        return Surface(seeds, use)

    def space(self) -> Surface:
        seeds = [one for one in shipped("spaces/*.yaml") if one[0] not in ("stress_1e9.yaml", "tiny_host.yaml")]
        return self._reading(seeds, lambda path: load_space(path, environ={}))

    def hardware(self) -> Surface:
        def read(path: Path) -> None:
            load_hardware(str(path))
            load_cluster(str(path), 2)

        seeds = [one for one in shipped("hardware/*.yaml") if one[0] in ("mi355x.yaml", "h100.yaml", "gb200.yaml")]
        return self._reading(seeds, read)

    def stack(self) -> Surface:
        names = ("primus_megatron.yaml", "megatron_te.yaml", "maxtext.yaml")
        seeds = [one for one in shipped("hardware/stacks/*.yaml") if one[0] in names]
        return self._reading(seeds, lambda path: load_stack(str(path)))

    def model(self) -> Surface:
        return self._reading(shipped("spaces/models/*.yaml"), lambda path: load_model(str(path)))

    def huggingface(self) -> Surface:
        seeds = [("config.json", json.dumps({"model_type": name} | SIZES | CONFIGS.get(name, {})).encode())
                 for name in FAMILIES]  # fmt: skip
        return self._reading(seeds, lambda path: load_model(str(path)))

    def tower(self) -> Surface:
        text = {"model_type": "qwen2", "num_key_value_heads": 2} | SIZES
        seeds = [("config.json", json.dumps({"model_type": name, "text_config": text, "vision_config": one}).encode())
                 for name, one in TOWERS.items()]  # fmt: skip
        return self._reading(seeds, lambda path: load_model(str(path)))

    def layers(self) -> Surface:
        seeds = [("model.yaml", yaml.safe_dump(HYBRID | one).encode()) for one in LAYERS]
        return self._reading(seeds, lambda path: load_model(str(path)))

    @staticmethod
    def _experiments() -> list[tuple[str, bytes]]:
        seeds = []
        for framework, name in LAUNCH_FILES.items():
            job = next(iter(jobs(shipped_space("llama3_8b_mi300x", framework), 1)))
            seeds.append((name, launch_files(job).texts[name].encode()))
        return [*seeds, ("titan.yaml", yaml.safe_dump(TITAN).encode())]

    def baseline(self) -> Surface:
        result = run_search(small_space(), Options(keep=50, workers=1))
        return self._reading(self._experiments(), lambda path: baseline_of(result, path))

    def experiment(self) -> Surface:
        seeds = self._experiments()
        words = ("--hardware", "mi355x", "--nodes", "2", "--json")
        return self._reading(seeds, lambda path: cli("project", str(path), *words))

    def sweep(self) -> Surface:
        text = (ROOT / "sweeps/nightly.yaml").read_bytes().split(b"  - name: deepseek-v2")[0]
        return self._reading([("nightly.yaml", text)], load_sweep)

    def log(self) -> Surface:
        return self._reading(self._logs(), lambda path: read_log(path).as_json())

    def learn(self) -> Surface:
        words = ("--as", "x", "--into", str(self.folder / "sites"), "--json")
        return self._reading(self._logs(), lambda path: cli("learn", str(path), *words))

    @staticmethod
    def _logs() -> list[tuple[str, bytes]]:
        makers = (written_logs.megatron_lm, written_logs.primus, written_logs.megatron_bridge, written_logs.nemo,
                  written_logs.torchtitan, written_logs.maxtext, written_logs.deepspeed, written_logs.mlperf,
                  written_logs.huggingface)  # fmt: skip
        return [(f"{make.__name__}.log", "\n".join(make()).encode()) for make in makers]

    @staticmethod
    def _tables() -> list[tuple[str, bytes]]:
        lines = (ROOT / "tests/oracle/data/training_runs.csv").read_bytes().splitlines(keepends=True)
        return [("runs.csv", b"".join([lines[0], *lines[first : first + 3]])) for first in range(1, 200, 40)]

    def records(self) -> Surface:
        """Tables as `learn` and `tune` write them, every cell of one row filled."""
        path = self.folder / "written.csv"
        job = next(iter(jobs(shipped_space("llama3_8b_mi300x", "primus"), 1)))
        runs = [
            MeasuredRun(
                model=job.model, cluster=job.cluster, workload=job.workload, candidates=job.candidate,
                measured=Measurement(tokens_per_s_per_gpu=9000.0), provenance=Provenance(id="1", source="x"),
                hardware="mi300x", framework="primus", assumed=("schedule",),
            )
        ]  # fmt: skip
        write_records(runs, path)

        def read(path: Path) -> None:
            read_records(path)

        return self._reading([("records.csv", path.read_bytes())], read)

    def learn_table(self) -> Surface:
        words = ("--as", "x", "--into", str(self.folder / "sites"), "--base", "megatron_te", "--json")
        return self._reading(self._tables(), lambda path: cli("learn", str(path), *words))

    def next(self) -> Surface:
        return self._reading(self._tables(), lambda path: cli("next", str(self.run), "--runs", str(path)))

    def tune(self) -> Surface:
        """The folder of a loop that was stopped, one of its files damaged; trials that start again print nothing."""
        whole = self.folder / "tuned"
        words = ("--launch", LAUNCH, "--trials", "2", "--until", "0", "--out")
        shutil.copytree(self.run, whole / "search")
        cli("tune", "llama3_8b_mi300x", *words, str(whole))
        trial = whole / "trials/001"
        (trial / "process.json").write_text(json.dumps({"pid": 0, "started": "1"}))
        ran = {"verdict": "ran", "tokens_per_s_per_gpu": 9000.0, "step_s": 3.0, "reason": "8 steps", "noise": 0.01}
        result = json.dumps(json.loads((trial / "result.json").read_text()) | ran).encode()
        seeds = [("trials/001/result.json", result), ("trials/001/process.json", (trial / "process.json").read_bytes()),
                 ("study.log", (whole / "study.log").read_bytes())]  # fmt: skip

        def use(name: str, content: bytes) -> None:
            folder = self.folder / "damaged"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(whole, folder)
            (folder / "trials/001/result.json").write_bytes(result)
            (folder / name).write_bytes(content)
            if name.endswith("process.json"):
                (folder / "trials/001/result.json").unlink()
            cli("tune", "llama3_8b_mi300x", *words, str(folder))

        return Surface(seeds, use)

    def table(self) -> Surface:
        points = (ROOT / "tests/oracle/data/kernel_points.csv").read_bytes().splitlines(keepends=True)[:12]

        def read(path: Path) -> None:
            if path.name == "runs.csv":
                cli("validate", str(path), "--json")
            else:
                cli("calibrate", "--measurements", str(path))

        return self._reading([*self._tables(), ("points.csv", b"".join(points))], read)

    def run_folder(self) -> Surface:
        names = ("run.json", "run.json", "run.json", "ranking.csv", "ranking.csv", "pareto.csv", "candidates.parquet",
                 "inputs/index.json")  # fmt: skip
        seeds = [(name, (self.run / name).read_bytes()) for name in names]
        rng = random.Random(0)

        def use(name: str, content: bytes) -> None:
            folder = self.folder / "damaged"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(self.run, folder)
            (folder / name).write_bytes(content)
            if name.endswith((".csv", ".parquet")) and rng.random() < 0.7:  # forged with its checksum
                facts = json.loads((folder / "run.json").read_text())
                facts["files"][name] = file_facts(content)
                (folder / "run.json").write_text(json.dumps(facts))
            commands = (("pareto",), ("explain",), ("compare", str(self.run)), ("export", "1"),
                        ("schedules", "--run"), ("next", "--count", "1"), ("project", "--row"))  # fmt: skip
            command, *more = rng.choice(commands)
            place = f"{folder}:1" if "--row" in more else str(folder)
            cli(command, *more, place) if more and more[-1].startswith("--") else cli(command, place, *more)

        return Surface(seeds, use)

    def journal(self) -> Surface:
        space = replace(small_space(), name="journal")
        folder = self.folder / "journalled"
        opened = RunFolder.open(folder, resume=False)
        result = run_search(space, Options(keep=20, workers=1, folder=opened))
        opened.close()
        whole = (folder / "journal.bin").read_bytes()
        answer = list(result.ranking.rows())

        def use(name: str, content: bytes) -> None:
            (folder / name).write_bytes(content)
            with RunFolder.open(folder, resume=True) as again:
                found = run_search(space, Options(keep=20, workers=1, folder=again, resume=True))
            assert list(found.ranking.rows()) == answer

        return Surface([("journal.bin", whole), ("journal.bin", whole)], use)

    def search(self) -> Surface:
        seeds = [one for one in shipped("spaces/*.yaml") if one[0].startswith(("llama3_8b", "mixtral_8x22b_mi"))]

        def read(path: Path) -> None:
            space = load_space(path, environ={})
            if space.model.num_layers < 200:
                run_search(replace(space, search=replace(space.search, budget_candidates=500, budget_seconds=2.0)),
                           Options(keep=10, workers=1))  # fmt: skip

        return self._reading(seeds, read)

    def command_line(self) -> Surface:
        """Options with odd values, in lists of words; nothing that measures or writes outside the folder."""
        run, out = str(self.run), str(self.folder / "out")
        lines = [
            ["run", "llama3_8b_mi300x", "--nodes", "1", "--bench", "off", "--out", out, "--set", "tp=8",
             "--set", "pp=1", "--set", "search.budget.seconds=2"],
            ["project", "--model", "llama3_8b", "--hardware", "h100", "--nodes", "2", "--set", "tp=2", "--json"],
            ["explain", run, "1", "--what-if", "hardware.nic_GBps=100"], ["explain", run, "1", "--why-not", "tp=2"],
            ["pareto", run, "--json"], ["compare", run, run],
            ["export", run, "1,2", "--format", "primus", "--out", out],
            ["models", "llama3_8b", "--json"],
            ["schedules", "--stages", "4", "--microbatches", "8", "--costs", "1,1,1", "--comm", "0.1", "--vpp", "2"],
            ["schedules", "--stages", "2", "--microbatches", "4", "--memory-limit", "2"], ["hardware", "h100"],
            ["learn", str(ROOT / "README.md"), "--dry-run", "--as", "x"], ["validate", run, "--json"],
            ["calibrate", "--measurements", run, "--hardware", "h100"], ["nightly", run], ["schema"], ["doctor", "x"],
        ]  # fmt: skip
        for line in lines:
            assert line[0] in COMMANDS
            if line[0] == "schedules":
                cli(*line)  # compiles, where this machine has not yet
        seeds = [("words.json", json.dumps(line).encode()) for line in lines]

        def use(name: str, content: bytes) -> None:
            words = json.loads(content)
            cli(*words)

        return CommandLines(seeds, use)


class CommandLines(Surface):
    """Words of a command line; the command itself stays."""

    def findings(self, count: int, seed: int) -> Any:
        for number in range(count):
            rng = random.Random(f"{seed} {number}")
            words = json.loads(rng.choice(self.seeds)[1])
            for _ in range(rng.randint(1, 3)):
                at = rng.randrange(1, len(words)) if len(words) > 1 else 0
                if at and words[at - 1] != "--out":
                    words[at] = self._other(rng, words[at])
            if any("\0" in word or _is_unsafe(word) for word in words):
                continue
            problem = refusal_problem(lambda words=words: self.read("", json.dumps(words).encode()))
            if problem:
                yield f"seed {seed}, mutant {number}: {words}: {problem}"

    @staticmethod
    def _other(rng: random.Random, word: str) -> str:
        value = str(rng.choice(VALUES))
        key, equals, _ = word.partition("=")
        if equals and rng.random() < 0.7:
            return f"{key}={value}"
        if rng.random() < 0.3:
            return mutated(rng, word.encode(errors="replace"), "").decode(errors="replace")
        return value


def _is_unsafe(word: str) -> bool:
    """What measures this machine."""
    return word == "host" or "\udc80" in word


@cache
def small_space() -> Space:
    return load_space("llama3_8b_mi300x", overrides=["tp=[1,2]", "pp=1", "recompute=none", "fp8=none", "cp=1"])


def check(name: str, count: int, seed: int, folder: Path, small_run: Path) -> None:
    surface: Surface = getattr(Surfaces(folder, small_run), name.replace(" ", "_"))()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    findings = list(surface.findings(count, seed))
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert not findings, f"{len(findings)} of {count}:\n" + "\n\n".join(findings[:5])
    assert more < MOST_MORE_BYTES


@pytest.mark.daily(6)
@pytest.mark.parametrize("name", FEW)
def test_a_few_mutants_are_read_or_refused(
    name: str, tmp_path: Path, small_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check(name, FEW[name], 1, tmp_path, small_run)


@pytest.mark.full
@pytest.mark.parametrize("name", ALL)
def test_many_mutants_are_read_or_refused(
    name: str, tmp_path: Path, small_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    seed = int(os.environ.get(SEED) or f"{datetime.now(UTC):%Y%m%d}")
    print(f"{SEED}={seed}")
    check(name, ALL[name], seed, tmp_path, small_run)


def test_the_full_suite_reads_20000() -> None:
    assert sum(ALL.values()) >= 20_000
    assert issubclass(NothingFits, Exception) and journals.MAGIC
