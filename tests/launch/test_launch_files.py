"""Launch files start what was ranked: they are read back as the same candidate, and hostile names stay names."""

import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, islice
from pathlib import Path

import pytest
from typer.testing import CliRunner

from primus_search.analysis.exported_rows import ranks_of
from primus_search.base.errors import InputError
from primus_search.cli import app
from primus_search.declare import load_space, make_space
from primus_search.files.framework_files import framework_names, load_framework
from primus_search.files.hardware_files import load_cluster
from primus_search.files.source import parse
from primus_search.launch.read.experiments import read_experiment
from primus_search.launch.read.megatron import canonical, group_size
from primus_search.launch.write.job import Inexpressible, LaunchJob
from primus_search.launch.write.launch_files import launch_files
from primus_search.launch.write.torchtitan_model import model_file
from primus_search.models.presets import load_preset
from primus_search.space import Space
from primus_search.space.auto import auto_values
from primus_search.values.candidates import Candidates
from primus_search.values.knobs import KNOBS, DispatchBackend, Kind, Scope
from primus_search.values.layout import Layout
from primus_search.values.machine.framework import Framework
from primus_search.values.machine.state_formats import is_stacks_own
from primus_search.values.model.shape import shape
from primus_search.values.workload import Workload
from tests.support.daily import drawn
from tests.support.judge.checkouts import needs, required, sources
from tests.support.launched import jobs, verdicts, verdicts_of

FRAMEWORKS = tuple(name for name in framework_names() if name != "any")
OLD_TITAN = "torchtitan@0.2.2"
MAIN_FILE = {
    "megatron": "megatron.sh",
    "primus": "primus.yaml",
    "torchtitan": "searched.py",
    OLD_TITAN: "torchtitan.toml",
    "nemo": "nemo.sh",
}
JUDGES = {
    "megatron": ("megatron@core_0.20", "megatron@core_0.16"),
    "primus": ("primus",),
    "torchtitan": ("torchtitan@0.3.0", OLD_TITAN),
}
SHIPPED = {
    "llama3_8b_mi300x": ("primus", "megatron", "torchtitan", OLD_TITAN),
    "mixtral_8x22b": ("primus", "megatron", "torchtitan", OLD_TITAN),
    "mixtral_8x22b_mi355x": ("primus", "megatron", "torchtitan", OLD_TITAN),
    "deepseek_v2_mi355x": ("primus", "megatron", "torchtitan", OLD_TITAN),
    "deepseek_v3_2048gpu": ("megatron",),
    "gpt3_175b_4096gpu": ("megatron",),
    "gpt_oss_120b_gb200": ("megatron", "torchtitan", OLD_TITAN),
    "llama3.1_405b_h100": ("megatron", "torchtitan", OLD_TITAN),
}
"""Shipped spaces and the frameworks that can start their models there."""
CASES = [(space, framework) for space, frameworks in SHIPPED.items() for framework in frameworks]
FEW, MANY = 3, 150
"""Candidates of each space that the frameworks' own checks judge: those of the day, and under `full`."""
EVERY_KNOB = {
    "schedule": ["1f1b", "interleaved", "zb-h1", "zbv", "v-half", "v-min", "gpipe", "interleaved-zb", "dualpipev"],
    "fp8": ["none", "hybrid", "delayed", "blockwise", "rowwise", "mxfp8"],
    "recompute": ["none", "selective", "mlp", "layernorm", "core_attn+layernorm", "op_sac",
                  {"full": [1, 2, "all"], "method": ["uniform", "block"]}],
    "sharding": ["none", "distributed_optimizer", "zero2", "fsdp2", "megatron_fsdp", {"hsdp": [2, 4, 8]}],
    "loss_fusion": [True, False], "overlap_grad_reduce": [True, False], "sequence_parallel": [True, False],
    "pipeline_layout": ["even", "balanced", {"first": 3, "last": 5}], "offload_layers": [0, 1, 4],
    "offload_modules": ["none", "core_attn", "core_attn+attn_proj", "attn_norm+qkv_linear+mlp_norm"],
    "microbatch_group": [0, 4, 6, 8, 12], "optimizer_offload": [0, 25, 100],
    "micro_batch_size": [1, 2, 4], "vpp": [1, 2, 4], "tp": [1, 2, 4, 8], "pp": [1, 2, 4], "cp": [1, 2, 4],
}  # fmt: skip
OF_EXPERTS = {
    "deepep": [True, False], "sync_free_stage": [0, 1, 2, 3], "grouped_gemm": ["turbo", "legacy"], "ep": [1, 2, 8],
    "etp": [1, 2],
}  # fmt: skip
OWN = {
    "dense": {"model": "llama3.1_8b", "hardware": "mi355x", "nodes": 4, "space": EVERY_KNOB},
    "experts": {"model": "mixtral_8x7b", "hardware": "mi355x", "nodes": 4, "space": EVERY_KNOB | OF_EXPERTS},
    "latent": {"model": "deepseek_v2_lite", "hardware": "mi355x", "nodes": 4,
               "space": EVERY_KNOB | OF_EXPERTS | {"recompute": ["none", "mla_up_proj+moe_act+layernorm", "mlp"]}},
}  # fmt: skip
"""Spaces with every knob listed: those not named here with all their values."""
MIXED = {
    "nemotron3_super": ("h100", 32, ("megatron",)),
    "nemotron3_nano": ("mi355x", 4, ("megatron", "primus")),
    "nemotron_h_56b": ("h100", 8, ("megatron",)),
    "qwen3.5_122b_a10b": ("mi355x", 16, ("megatron", "primus")),
    "deepseek_v3.2": ("h100", 128, ("megatron",)),
    "deepseek_v4_flash": ("mi355x", 16, ("primus",)),
}
"""Models with layers of several kinds, the machines they are searched on, and the frameworks that can train them."""
MIXED_CASES = [(model, framework) for model, (_, _, frameworks) in MIXED.items() for framework in frameworks]
OF_PRIMUS = ("deepseek_v4_flash", "primus")
"""Trained by classes of Primus' own, which no arguments say: its files are read with Primus' model beside them."""
NOT_TRAINED = {
    ("deepseek_v4_flash", "megatron"): "hyper-connections, shared-key attention 64",
    ("gemma4_26b_a4b", "megatron"): "sizes of layers, experts, norms, attention 16/2",
    ("llama4_scout", "primus"): "chunks of 8,192",
    ("minimax_m3", "primus"): "attention 64/4, top 2,048",
}
"""Models that a framework cannot train, and a part that the refusal names."""


def own_space(name: str, framework: str) -> Space:
    workload = {"seq_length": 4096, "global_batch_size": 256}
    axes = unlisted(has_experts=name != "dense") | OWN[name]["space"]
    return make_space(OWN[name] | {"space": axes, "workload": workload, "framework": framework}, name=name)


def mixed_space(model: str, framework: str) -> Space:
    """A space of a model with every knob left out, on the machines of `MIXED` or on 64 nodes."""
    hardware, nodes, _ = MIXED.get(model, ("mi355x", 64, ()))
    workload = {"seq_length": 4096, "global_batch_size": 2048}
    spelled = {"model": model, "hardware": hardware, "nodes": nodes, "workload": workload, "framework": framework}
    return make_space(spelled, name=model)


def unlisted(*, has_experts: bool) -> dict[str, list[object]]:
    """Every value of each knob of choices."""
    knobs = [knob for knob in KNOBS if not knob.detail_of and (has_experts or knob.scope is not Scope.EXPERTS)]
    switches = {knob.name: [False, True] for knob in knobs if knob.kind is Kind.SWITCH}
    return switches | {knob.name: list(knob.members) for knob in knobs if knob.kind is Kind.CHOICE}


def shipped_space(name: str, framework: str) -> Space:
    return load_space(name, overrides=[f"framework={framework}"], environ={})


def canonical_row(job: LaunchJob) -> dict[str, object]:
    """The candidate as it is read back: its layout in the plainest form, no shard group outside HSDP."""
    row = dict(job.row)
    stages = row["pp"] * row["vpp"]
    if job.dp * row["cp"] == 1 and not any(job.framework.spellings["sharding"].values.values()):
        # Degrees alone say what is sharded, and all are 1; torchtitan 0.3.0 wraps a single rank as well.
        row["sharding"] = "fsdp2" if job.framework.name == "torchtitan" else "none"
    return row | {"pipeline_layout": str(canonical(Layout.parse(row["pipeline_layout"]), job.model, stages))}


def read_back(job: LaunchJob, folder: Path) -> dict[str, object]:
    """The candidate of the files of a job as it is read back."""
    return as_read(launch_files(job).texts[MAIN_FILE[job.framework.name]], job, folder)


def as_read(text: str, job: LaunchJob, folder: Path) -> dict[str, object]:
    """The candidate of a launch file; a format and an exchange that the job's stack has anyway are the stack's."""
    path = folder / MAIN_FILE[job.framework.name]
    path.write_text(text, encoding="utf-8")
    row = read_experiment(path, job.cluster.world, job.model).candidate.row(0)
    named = row["cp_comm"] == job.cluster.stack.communication.cp_comm and job.row["cp_comm"] == "stack"
    row |= {"cp_comm": "stack"} if named else {}
    return row | ({"state_format": "stack"} if is_stacks_own(job.cluster.stack, row["state_format"]) else {})


@pytest.mark.daily(2)
@pytest.mark.parametrize("framework", ["primus", "megatron", "torchtitan", OLD_TITAN])
@pytest.mark.parametrize("own", OWN)
def test_random_candidates_come_back_from_their_files(own: str, framework: str, tmp_path: Path) -> None:
    for job in jobs(own_space(own, framework), 70):
        assert read_back(job, tmp_path) == canonical_row(job)


def rings_of_groups(framework: str) -> Space:
    """A space of all-to-alls inside rings; 64 ranks of 32 heads and 8 key-value heads."""
    axes = {"cp": [4, 8, 16, 32], "cp_comm": [f"a2a{ranks}_p2p" for ranks in (2, 4, 8, 16)], "micro_batch_size": 1}
    spelled = {"model": "llama3.1_8b", "hardware": "h100" if framework == "nemo" else "mi355x", "nodes": 8}
    workload = {"seq_length": 65536, "global_batch_size": 64}
    return make_space(spelled | {"space": axes, "workload": workload, "framework": framework}, name="rings")


@pytest.mark.daily(1)
@pytest.mark.parametrize("framework", ["primus", "megatron", "nemo"])
def test_an_all_to_all_inside_a_ring_comes_back_with_its_ranks(framework: str, tmp_path: Path) -> None:
    found = set()
    for job in jobs(rings_of_groups(framework), 30):
        text = launch_files(job).texts[MAIN_FILE[framework]]
        inner = int(job.row["cp_comm"].removeprefix("a2a").removesuffix("_p2p"))
        assert re.search(rf"hierarchical.context.parallel.sizes\W+{inner}\W+{job.row['cp'] // inner}\b", text)
        found.add(inner)
        if framework != "nemo":
            assert read_back(job, tmp_path) == canonical_row(job)
    assert found == {2, 4, 8}, "16 ranks do not divide 8 key-value heads"


@pytest.mark.parametrize(
    ("cp", "levels", "word"),
    [
        (8, "8 1", "a2a"),
        (8, "1 8", "p2p"),
        (8, "4 2", "a2a4_p2p"),
        (8, "2 2 2", None),
        (8, "4 4", None),
        (12, "6 2", None),
    ],
)
def test_levels_of_context_are_read_as_transformer_engine_takes_them(
    cp: int, levels: str, word: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "megatron.sh"
    path.write_text(f"torchrun pretrain_gpt.py --context-parallel-size {cp} --cp-comm-type a2a+p2p "
                    f"--hierarchical-context-parallel-sizes {levels} --micro-batch-size 1 --global-batch-size 64 "
                    "--seq-length 65536\n")  # fmt: skip
    model = load_preset("llama3.1_8b").model
    if word is None:
        with pytest.raises(InputError, match="hierarchical_context_parallel_sizes: "):
            read_experiment(path, 96, model)
    else:
        assert read_experiment(path, 96, model).candidate.row(0)["cp_comm"] == word


@pytest.mark.daily(2)
@pytest.mark.parametrize(("model", "framework"), [case for case in MIXED_CASES if case != OF_PRIMUS])
def test_models_of_mixed_layers_come_back_from_their_files(model: str, framework: str, tmp_path: Path) -> None:
    """With every layer: the file's own model has the parameters of the searched one, padding of its head aside."""
    for job in jobs(mixed_space(model, framework), 5, seed=3):
        assert read_back(job, tmp_path) == canonical_row(job)
        found = read_experiment(tmp_path / MAIN_FILE[framework], job.cluster.world)
        assert found.model is not None and found.model_problems == ()
        ours, theirs = (model.total_params - model.embedding_params - model.head_params
                        + 2 * model.vocab_padding * model.hidden for model in (job.model, found.model))  # fmt: skip
        assert ours == theirs
        assert found.model.flops_per_token(4096) == job.model.flops_per_token(4096)


@pytest.mark.parametrize(("model", "framework"), NOT_TRAINED)
def test_a_model_that_a_framework_cannot_train_is_refused_by_its_parts(model: str, framework: str) -> None:
    job = next(iter(jobs(mixed_space(model, framework), 1)))
    with pytest.raises(Inexpressible) as caught:
        launch_files(job)
    assert f"{job.framework.title} has no arguments for parts of {model}: " in str(caught.value)
    assert NOT_TRAINED[model, framework] in str(caught.value)


@pytest.mark.parametrize("model", MIXED)
def test_torchtitan_starts_no_model_of_mixed_layers(model: str) -> None:
    assert list(jobs(mixed_space(model, "torchtitan"), 1)) == []
    assert list(jobs(mixed_space(model, OLD_TITAN), 1)) == []


@needs("primus")
def test_an_experiment_that_names_primus_own_model_is_that_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIMUS_PATH", str(sources("primus")))
    job = next(iter(jobs(mixed_space("deepseek_v4_flash", "primus"), 1)))
    path = tmp_path / MAIN_FILE["primus"]
    path.write_text(launch_files(job).texts[path.name], encoding="utf-8")
    found = read_experiment(path, job.cluster.world)
    assert found.model is not None and found.model.moe is not None and job.model.moe is not None
    routed = replace(job.model.moe, has_router_bias=False, is_router_bias_buffer=False)
    assert shape(found.model) == shape(replace(job.model, moe=routed))
    # Primus' defaults say how context parallelism communicates where a candidate leaves it to the stack.
    assert found.candidate.row(0) | {"cp_comm": "stack"} == canonical_row(job) | {"cp_comm": "stack"}


@pytest.mark.parametrize(("space", "framework"), [("mixtral_8x22b", "primus"), ("llama3.1_405b_h100", "megatron")])
def test_comments_are_never_read(space: str, framework: str, tmp_path: Path) -> None:
    for job in jobs(shipped_space(space, framework), 5):
        text = launch_files(job).texts[MAIN_FILE[framework]]
        bare = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("# "))
        assert as_read(bare, job, tmp_path) == canonical_row(job)


HOSTILE = ["a\nb", "$(touch owned)", "`touch owned`", '"; touch owned; "', "'; touch owned; '", "!!python/object:x",
           "[x]\ny=1", "\N{PILE OF POO}", "x" * 10_000, "../../etc", "-rf", ""]  # fmt: skip


@cache
def one_job(framework: str) -> LaunchJob:
    """A job of a shipped space that a framework starts."""
    return next(jobs(shipped_space("gpt_oss_120b_gb200" if framework == "nemo" else "llama3_8b_mi300x", framework), 1))


@pytest.mark.parametrize("framework", MAIN_FILE)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_names(name: str, framework: str, tmp_path: Path) -> None:
    job = one_job(framework)
    job = replace(
        job, model=replace(job.model, name=name, hidden=job.model.hidden * 2, head_dim=job.model.head_dim * 2)
    )
    files = launch_files(job, "slurm")
    for filename, text in files.texts.items():
        path = tmp_path / filename
        path.write_text(text, encoding="utf-8")
        assert "touch owned" not in text and "\N{PILE OF POO}" not in text
        assert max(map(len, text.splitlines())) < 1200
        if filename.endswith((".sh", ".slurm")):
            subprocess.run(["bash", "-n", str(path)], check=True)
        elif filename.endswith(".yaml"):
            assert set(parse(text, filename).data) == {"work_group", "user_name", "exp_name", "workspace", "modules"}
        elif filename.endswith(".toml"):
            known = {"job", "model", "training", "parallelism", "compile", "activation_checkpoint", "experimental"}
            assert set(tomllib.loads(text)) <= known | {"quantize"}
        else:
            compile(text, filename, "exec")


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck on PATH")
@pytest.mark.parametrize("framework", MAIN_FILE)
def test_scripts_pass_shellcheck(framework: str, tmp_path: Path) -> None:
    texts = launch_files(one_job(framework), "slurm").texts
    path = tmp_path / f"{framework.partition('@')[0]}.sh"
    path.write_text(texts[path.name])
    subprocess.run(["shellcheck", "-S", "warning", str(path)], check=True)


def written(space: Space, name: str, count: int, folder: Path) -> list[Path]:
    """The main files of random legal candidates of a space, each in a folder with what lies beside it."""
    main = Path(space.framework.options.get("file") or MAIN_FILE[space.framework.launcher])
    made = []
    for number, job in enumerate(drawn(name, list(jobs(space, MANY)), count)):
        path = folder / f"{name}-{number}" / main.name
        path.parent.mkdir()
        for file, text in launch_files(job).texts.items():
            (path.parent / file).write_text(text, encoding="utf-8")
        made.append(path)
    return made


def refused(judge: str, files: list[Path]) -> list[Mapping[str, object]]:
    """The files that a framework's own check does not accept, and why."""
    answers = verdicts(judge, files)
    assert len(answers) == len(files) and files
    return refusals(answers)


JUDGED = [
    pytest.param(judge, framework, marks=needs(judge)) for framework, judges in JUDGES.items() for judge in judges
]


def contract_of(judge: str) -> str:
    """The contract at the release of a judge, where it names that release; else the newest."""
    name, _, release = judge.partition("@")
    return judge if release in load_framework(name).releases else name


Judged = Callable[[str], Mapping[str, Sequence[Mapping[str, object]]]]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """What a judge says of random candidates, by their space; all start once and together, as that takes seconds."""

    def samples(contract: str) -> dict[str, list[Path]]:
        """Files of each space."""
        folder, framework = tmp_path_factory.mktemp(contract), contract.partition("@")[0]
        spaces = {name: shipped_space(name, contract) for name, on in SHIPPED.items() if framework in on}
        spaces |= {name: own_space(name, contract) for name in OWN}
        files = {name: written(space, name, FEW, folder) for name, space in spaces.items()}
        if framework == "torchtitan":
            return files
        files["rings"] = written(rings_of_groups(contract), "rings", FEW, folder)
        for model in (model for model, on in MIXED_CASES if on == framework):
            files[model] = written(mixed_space(model, contract), model, 2 * FEW, folder)
        return files

    @cache
    def answers() -> dict[str, dict[str, list[dict[str, object]]]]:
        there = {one: contract_of(one) for judges in JUDGES.values() for one in judges if required(one) is not None}
        files = {contract: samples(contract) for contract in set(there.values())}
        cases = [(judge, files[contract]) for judge, contract in there.items()]
        told = verdicts_of([(judge, [*chain(*parts.values())]) for judge, parts in cases])
        found: dict[str, dict[str, list[dict[str, object]]]] = {}
        for (judge, parts), rows in zip(cases, told, strict=True):
            each = iter(rows)
            found[judge] = {name: list(islice(each, len(part))) for name, part in parts.items()}
            assert all(parts.values()) and all(len(found[judge][name]) == len(part) for name, part in parts.items())
        return found

    return lambda judge: answers()[judge]


def refusals(answers: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    return [answer for answer in answers if not answer["accepted"]]


@pytest.mark.in_turn("judged")
@pytest.mark.slow
@pytest.mark.parametrize(("judge", "framework"), JUDGED)
def test_frameworks_accept_a_sample(judge: str, framework: str, judged: Judged) -> None:
    uniform = {name: answers for name, answers in judged(judge).items() if name not in MIXED}
    assert set(OWN) <= set(uniform)
    assert {name: refusals(answers) for name, answers in uniform.items() if refusals(answers)} == {}


@pytest.mark.in_turn("judged")
@pytest.mark.daily(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "framework"),
    [pytest.param(*case, marks=needs(*JUDGES[case[1]])) for case in MIXED_CASES],
)
def test_frameworks_accept_models_of_mixed_layers(model: str, framework: str, judged: Judged) -> None:
    assert [one for judge in JUDGES[framework] for one in refusals(judged(judge)[model])] == []


@pytest.mark.full
@pytest.mark.parametrize(("judge", "framework"), JUDGED)
@pytest.mark.parametrize("name", [*SHIPPED, *OWN])
def test_frameworks_accept_every_candidate(name: str, judge: str, framework: str, tmp_path: Path) -> None:
    if framework not in SHIPPED.get(name, JUDGES):
        pytest.skip(f"{framework} cannot start the model of {name} there")
    contract = contract_of(judge)
    space = own_space(name, contract) if name in OWN else shipped_space(name, contract)
    assert refused(judge, written(space, name, MANY, tmp_path)) == []


@pytest.mark.parametrize("name", ["llama2_7b", "llama2_70b", "llama3_8b", "llama3.1_405b"])
def test_the_feed_forward_of_torchtitans_llama_is_that_of_the_model(name: str) -> None:
    """torchtitan/models/llama3/model/model.py FeedForward, of the arguments that our model file gives it."""
    model = load_preset(name).model
    text = model_file(replace(one_job(OLD_TITAN), model=model))
    multiple, factor = (
        float(re.search(rf"{key}=([\d.e-]+)", text)[1]) for key in ("multiple_of", "ffn_dim_multiplier")
    )
    hidden = int(factor * int(2 * 4 * model.hidden / 3))
    assert multiple * ((hidden + multiple - 1) // multiple) == model.ffn_hidden


# --- contracts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_contract_loads_and_names_its_sources(name: str) -> None:
    contract = load_framework(name)
    assert contract.name == name and contract.release and contract.schedules and contract.spellings
    entries = [*contract.schedules.values(), *contract.spellings.values(), *contract.requires, *contract.idles]
    assert all(entry.source for entry in [*entries, *contract.lifted])


def names_of(framework: str) -> list[str]:
    return [rule.name for rule in load_framework(framework).requires]


def test_an_earlier_release_refuses_what_later_ones_lifted() -> None:
    assert set(names_of("nemo@25.11")) - set(names_of("nemo@26.04")) == {
        "exchange_overlap_without_graphs",
        "hybridep_in_racks",
    }
    assert set(names_of("nemo@26.04")) - set(names_of("nemo@26.06")) == {
        "whole_iteration_without_experts",
        "delta_net_whole_sequence",
    }
    assert set(names_of("nemo@26.06")) - set(names_of("nemo@26.08")) == {"sparse_attention_whole_sequence"}
    assert names_of("nemo@26.08") == names_of("nemo")


@pytest.mark.parametrize(
    ("framework", "hardware", "kernels"),
    [
        ("nemo@25.11", "h100", DispatchBackend.DEEPEP),
        ("nemo@25.11", "gb200", DispatchBackend.HYBRIDEP),
        ("nemo@26.02", "b200", DispatchBackend.HYBRIDEP),
        ("megatron", "h100", DispatchBackend.HYBRIDEP),
        ("any", "h100", DispatchBackend.HYBRIDEP),
    ],
)
def test_a_fused_dispatch_is_searched_with_kernels_that_the_release_takes(
    framework: str, hardware: str, kernels: DispatchBackend
) -> None:
    model, workload = load_preset("qwen3_30b_a3b").model, Workload(seq_length=4096, global_batch_size=512)
    found = auto_values("dispatch_backend", model, load_cluster(hardware, 2), workload, load_framework(framework))
    assert found == (kernels,)


def test_an_earlier_release_has_the_files_of_its_launcher() -> None:
    space = shipped_space("gpt_oss_120b_gb200", "nemo@26.04")
    assert space.framework.name == "nemo@26.04"
    job = next(iter(jobs(space, 1)))
    files = (launch_files(one).texts["nemo.sh"] for one in (job, replace(job, framework=load_framework("nemo"))))
    ours, newest = (text.splitlines() for text in files)
    needs, starts = (line for line in ours if line not in newest)
    assert needs.startswith("# Needs: NeMo Megatron-Bridge 26.04") and "--dataset llm-pretrain-mock" in starts
    _, head, started = (line for line in newest if line not in ours)
    assert "model.fp8_output_proj=false" in head and "--dataset" not in started


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nemo@27.01", "has no release '27.01' - releases: 25.11, "),
        ("primus@26.04", "has no release '26.04' - its contract names no releases"),
    ],
)
def test_an_unknown_release_is_refused(name: str, says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
        load_framework(name)


def test_any_is_the_union_and_starts_nothing() -> None:
    assert load_framework("any") == Framework()
    job = one_job("primus")
    with pytest.raises(InputError, match="no job starts from 'any framework'"):
        launch_files(replace(job, framework=Framework()))


def test_a_framework_without_releases_for_the_devices_is_refused() -> None:
    with pytest.raises(InputError, match="AMD Primus does not run on GB200"):
        shipped_space("gpt_oss_120b_gb200", "primus")


def test_several_frameworks_are_searched_as_one_axis() -> None:
    space = load_space("llama3_8b_mi300x", overrides=["framework=[primus, megatron]"], environ={})
    labels = [choice.labels for choice in space.clusters]
    assert labels == [
        (("stack", "primus_megatron"), ("framework", "primus")),
        (("stack", "megatron_te_rocm"), ("framework", "megatron")),
    ]


@pytest.mark.parametrize(("microbatches", "stages", "size"), [(5, 4, 5), (6, 4, 6), (9, 4, 5), (10, 4, 5), (11, 4, 6)])
def test_groups_of_interleaving_leave_no_short_rest(microbatches: int, stages: int, size: int) -> None:
    """megatron/core/pipeline_parallel/schedules.py:1174: the rest of M by N is 0 or at least the stages."""
    found = group_size(microbatches, stages)
    assert found >= stages and (microbatches % found == 0 or microbatches % found >= stages)
    assert found == size


# --- export -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ranks"), [("1", [1]), ("1,3,8", [1, 3, 8]), ("2-4", [2, 3, 4]), ("3,1-3", [3, 1, 2])]
)
def test_ranks_are_numbers_lists_and_ranges(text: str, ranks: list[int]) -> None:
    assert ranks_of(text) == ranks


@pytest.mark.parametrize("text", ["", "a", "4-2", "1-999999", "-1", "1;2", "\N{SUPERSCRIPT TWO}"])
def test_other_texts_are_no_ranks(text: str) -> None:
    with pytest.raises(InputError):
        ranks_of(text)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on Primus."""
    folder = tmp_path_factory.mktemp("export")
    space = folder / "space.yaml"
    space.write_text(
        "model: llama3_8b\nhardware: mi300x\nnodes: 1\nworkload: {seq_length: 4096, global_batch_size: 64}\n"
        "space: {tp: [1, 2], pp: [1, 2], cp: 1, micro_batch_size: [1, 2], sharding: distributed_optimizer}\n"
    )
    done = CliRunner().invoke(app, ["run", str(space), "--bench", "off", "--out", str(folder / "run")])
    assert done.exit_code == 0, done.output
    return folder / "run"


@pytest.mark.in_turn
def test_one_folder_a_rank_holds_files_that_can_be_executed(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "files"
    done = CliRunner().invoke(app, ["export", str(run), "1-3", "--format", "primus", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in out.iterdir()) == ["1", "2", "3"]
    assert (out / "2" / "primus.sh").stat().st_mode & 0o111
    done = CliRunner().invoke(app, ["export", str(run), "pareto", "--format", "slurm", "--out", str(out)])
    assert done.exit_code == 0 and (out / "pareto_1" / "job.slurm").is_file()


def test_a_format_may_name_the_release_of_its_framework(run: Path, tmp_path: Path) -> None:
    words = ["export", str(run), "1", "--format", "torchtitan@0.2.1", "--out", str(tmp_path / "files")]
    with pytest.raises(InputError, match=r"torchtitan has no release '0.2.1' - releases: 0.2.2, 0.3.0"):
        app(words, standalone_mode=False)


def test_what_a_framework_cannot_start_exits_4_with_the_nearest_and_writes_nothing(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "files"
    with pytest.raises(Inexpressible) as caught:
        app(["export", str(run), "1", "--format", "torchtitan", "--out", str(out)], standalone_mode=False)
    assert caught.value.exit_code == 4 and not out.exists()
    assert "torchtitan can express sharding: none, fsdp2, hsdp" in str(caught.value)
    assert "nearest that it can start: fp8=rowwise, sharding=fsdp2" in str(caught.value)
    assert "tokens/s/GPU" in str(caught.value) and "GB of memory per GPU" in str(caught.value)


def test_files_as_json_write_nothing(run: Path) -> None:
    done = CliRunner().invoke(app, ["export", str(run), "1", "--json"])
    assert done.exit_code == 0 and set(json.loads(done.stdout)["1"]) == {"primus.yaml", "primus.sh"}
    assert not (run / "exports").exists()


# --- files that others wrote ------------------------------------------------------------------------------------------

BY_HAND = r"""
TP=2; PP=${PP:-4}
torchrun --nproc-per-node 8 --nnodes 4 pretrain_gpt.py \
    --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --padded-vocab-size 32000 \
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size=${PP} --num-layers-per-virtual-pipeline-stage 4 \
    --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce --micro-batch-size 2 \
    --recompute-granularity selective --fp8-format hybrid --bf16 --some-new-flag 3  # a comment
"""


def test_a_script_written_by_hand_is_understood(tmp_path: Path) -> None:
    path = tmp_path / "launch.sh"
    path.write_text(BY_HAND)
    experiment = read_experiment(path)
    row = experiment.candidate.row(0)
    wanted = {
        "tp": 2, "pp": 4, "vpp": 2, "schedule": "interleaved", "sequence_parallel": True, "micro_batch_size": 2,
        "sharding": "distributed_optimizer", "overlap_grad_reduce": True, "recompute": "selective", "fp8": "delayed",
        "loss_fusion": False, "ep": 1,
    }  # fmt: skip
    assert {name: row[name] for name in wanted} == wanted
    assert experiment.world.gpus == 32
    assert "some_new_flag: 3" in experiment.not_modelled


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "a.sh",
            "train --tensor-model-parallel-size ${TP}",
            "depends on TP: set them in the environment",
        ),
        ("b.sh", "python train.py --tp 8", "is a script that starts a program which is not read"),
        ("c.toml", "[parallelism", "Expected ']'"),
        ("d.yaml", "modules:\n  post_trainer: {}\n", "expected modules.pre_trainer.model"),
        ("e.yaml", "modules:\n  pre_trainer: {framework: jax, model: x.yaml}\n", "framework 'jax' is not read"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_in_words(tmp_path: Path, name: str, text: str, said: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_experiment(path)
    assert said in str(caught.value)


def test_a_dump_of_arguments_in_a_log_is_read(tmp_path: Path) -> None:
    arguments = {"tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 2, "micro_batch_size": 1,
                 "global_batch_size": 64, "seq_length": 4096, "use_distributed_optimizer": True, "world_size": 16,
                 "recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 3}  # fmt: skip
    filler = {f"some_argument_{i}": i for i in range(20)}
    path = tmp_path / "log.txt"
    path.write_text(
        "\n".join(f"  {key} {'.' * (48 - len(key))} {value}" for key, value in (arguments | filler).items())
    )
    experiment = read_experiment(path)
    row = experiment.candidate.row(0)
    assert (row["tp"], row["pp"], row["recompute"], row["recompute_num_layers"]) == (4, 2, "full", 3)
    assert (experiment.world.gpus, experiment.seq_length, experiment.global_batch_size) == (16, 4096, 64)
    assert len(experiment.not_modelled) == 20


def test_one_candidate_of_defaults_is_a_table() -> None:
    assert len(Candidates.from_words({})) == 1
