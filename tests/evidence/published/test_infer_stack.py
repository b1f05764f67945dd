"""What is assumed of software that nobody named, and how much less is then claimed of rates and memory."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from primus_search.cost.confidence.fit import AT_RISK, FITS, OUT_OF_MEMORY, fit_verdict
from primus_search.cost.confidence.uncertainty import ASSUMED, Exposed, band, interval, memory_error
from primus_search.cost.project import Projector
from primus_search.declare.space_file import make_space
from primus_search.evidence.published.convert import validated
from primus_search.evidence.published.run_machine import build_stack, inferred_stack
from primus_search.evidence.published.run_table import PublishedRun
from primus_search.files.hardware_files import load_cluster, load_hardware, load_stack
from primus_search.files.search_path import FileKind, names
from primus_search.models.model_files import load_model
from primus_search.values.candidates import Fp8, Sharding
from primus_search.values.job import Job
from primus_search.values.machine.cluster import Cluster
from primus_search.values.machine.stack import ErrorBand, Stack
from primus_search.values.workload import Workload
from tests.support.published_run import excerpt, run_with

TABLE = Path(__file__).parents[2] / "oracle" / "data" / "training_runs.csv"


def run_of(**cells: str) -> PublishedRun:
    return run_with({"gpu": "H100", "fsdp": "zero1", "precision": "bf16", "source": "someone"} | cells)


@pytest.mark.parametrize(
    ("cells", "stack"),
    [
        ({}, "megatron_lm"),
        ({"flags": "no tp/p2p/grad overlap", "num_experts": "8"}, "megatron_lm"),
        ({"flags": "dispatcher=None"}, "megatron_lm"),
        ({"flags": "cuda_graph=full_iteration"}, "nemo_2024"),
        ({"flags": "TP overlap"}, "megatron_lm"),
        ({"flags": "dispatcher=deepep", "num_experts": "128"}, "megatron_lm"),
        ({"flags": "dispatcher=hybridep", "num_experts": "128"}, "megatron_core_2026"),
        ({"precision": "mxfp8", "gpu": "B200"}, "megatron_core_2026"),
        ({"fsdp": "zero3"}, "deepspeed"),
        ({"source": "LLaMA-Factory, a user's report", "fsdp": "zero2"}, "deepspeed"),
        ({"source": "someone's PaddleNLP"}, "deepspeed"),
        ({"fsdp": "fsdp2"}, "torchtitan"),
        ({"fsdp": "fsdp2", "source": "someone (2024-06)"}, "torchtitan"),
        ({"fsdp": "fsdp (FULL_SHARD)", "source": "someone (2024-06)"}, "fsdp_2023"),
        ({"fsdp": "fsdp (FULL_SHARD)", "source": "someone (2025-06)"}, "torchtitan"),
        ({"source": "someone's trainer", "notes": "built on Automodel", "fsdp": "fsdp2"}, "automodel"),
        ({"fsdp": "FSDP", "notes": "Megatron FSDP"}, "megatron_core_2026"),
        ({"gpu": "MI300X", "fsdp": "fsdp2"}, "primus_torchtitan"),
        ({"gpu": "MI300X", "flags": "cuda graph"}, "primus_megatron"),
        ({"gpu": "MI300X", "notes": "MaxText", "fsdp": "fsdp"}, "maxtext"),
        ({"gpu": "MI300X", "flags": "Megatron local, kernels of Lumen"}, "megatron_lumen"),
        ({"gpu": "MI300X", "flags": "HF model, eager", "fsdp": "fsdp2"}, "hf_rocm"),
        ({"gpu": "MI300X", "flags": "Megatron + TransformerEngine"}, "megatron_te_rocm"),
    ],
)
def test_words_tell_the_stack_of_a_source_nobody_knows(cells: dict[str, str], stack: str) -> None:
    run = run_of(**cells)
    hardware = load_hardware({"H100": "h100", "B200": "b200", "MI300X": "mi300x"}[run.word("gpu")])
    assert inferred_stack(run, hardware) == stack
    found, assumed = build_stack(run, hardware)
    assert found.is_assumed and assumed


def test_a_hidden_source_leaves_the_configuration_to_tell() -> None:
    run = run_of(source="NVIDIA Megatron-Bridge 26.02", flags="cuda_graph=full_iteration", fsdp="zero1")
    hardware = load_hardware("h100")
    assert build_stack(run, hardware)[0].name == "megatron_core_2026"
    assert not build_stack(run, hardware)[0].is_assumed
    assert inferred_stack(run.without("source", "flags", "notes", "stack"), hardware) == "megatron_lm"


def test_a_fork_is_what_it_forked_as_far_as_one_knows() -> None:
    ours = build_stack(run_of(source="pytorch/torchtitan main"), load_hardware("h100"))[0]
    theirs, assumed = build_stack(run_of(source="torchtitan fork of somebody"), load_hardware("h100"))
    assert theirs == replace(ours, is_assumed=True, has_words=True)
    assert assumed == ("torchtitan assumed of a fork",)


@pytest.mark.parametrize(
    ("cells", "has_words"),
    [
        ({"fsdp": "fsdp2"}, False),
        ({"fsdp": "fsdp2", "notes": "as in torchtitan"}, False),
        ({"fsdp": "fsdp2", "source": "someone's trainer", "notes": "built on Automodel"}, True),
        ({"stack": "someone's trainer"}, False),
        ({"source": "someone (2023-06)"}, True),
        ({"source": "torchtitan fork of somebody"}, True),
        ({"precision": "mxfp8", "gpu": "B200"}, False),
    ],
)
def test_words_that_say_no_more_than_the_configuration_tell_nothing(cells: dict[str, str], has_words: bool) -> None:
    run = run_of(**cells)
    hardware = load_hardware("b200" if run.word("gpu") == "B200" else "h100")
    found, _ = build_stack(run, hardware)
    assert (found.is_assumed, found.has_words) == (True, has_words)
    named, _ = build_stack(run_of(stack="torchtitan"), hardware)
    assert not named.has_words
    site = load_cluster("h100", 1).site
    assert site is not None and site.of(named) == site.of(replace(named, is_assumed=True, has_words=True)) == site
    assert (site.of(found) == site) == has_words and site.of(found).quantile >= site.quantile


def test_a_prototype_is_changed_software_too() -> None:
    source = "NVIDIA/Megatron-LM examples/megatron_fsdp_v2_prototype"
    assert build_stack(run_of(source=source, stack="megatron-lm"), load_hardware("h100"))[0].is_assumed


def test_every_stack_that_may_be_assumed_says_how_far_off_that_may_be() -> None:
    for name in ("megatron_lm", "deepspeed", "torchtitan", "megatron_core_2026", "nemo_2024"):
        errors = load_stack(name).errors
        for kind in ("dense", "moe"):
            assert errors[ASSUMED + kind].high / errors[ASSUMED + kind].low > 1.5
        assert errors[ASSUMED + "memory"].high > 1.1


def test_a_stack_nobody_named_has_the_wider_band() -> None:
    model = load_model("llama3.1_8b")
    named, left_out = load_cluster("h100", 1, "megatron_core_2026"), load_cluster("h100", 1)
    assert left_out.stack == replace(named.stack, is_assumed=True)
    assert (named.stack.title, left_out.stack.title) == ("megatron_core_2026", "megatron_core_2026 (assumed)")
    wide, narrow = band(left_out, model, Fp8.DELAYED), band(named, model, Fp8.DELAYED)
    assert wide.low < narrow.low and wide.high > narrow.high
    assert memory_error(replace(named, site=None), model) is None and memory_error(left_out, model) is not None
    theirs = memory_error(named, model)
    assert theirs is not None and named.site is not None and theirs.high == named.site.memory_high


def test_memory_of_a_named_stack_of_which_nobody_saw_a_run_or_a_peak_is_doubted_half_as_much() -> None:
    dense, experts = load_model("llama3.1_8b"), load_model("gpt_oss_20b")
    vendors = replace(load_cluster("h100", 1), site=None)

    def on(stack: Stack) -> Cluster:
        return replace(vendors, stack=stack)

    assert memory_error(on(load_stack("nemo_2024")), dense) is None  # runs were seen
    assert memory_error(on(load_stack("torchtitan")), experts) is None  # peaks were seen
    stack = load_stack("xtuner")
    named, assumed = memory_error(on(stack), experts), memory_error(on(replace(stack, is_assumed=True)), experts)
    assert named is not None and assumed is not None
    assert named.low == pytest.approx(assumed.low**0.5) and named.high == pytest.approx(assumed.high**0.5)


def test_a_regime_that_a_named_stack_was_never_seen_in_has_a_wider_band_and_says_so() -> None:
    model, nobodys = load_model("llama3.1_8b"), load_model("mixtral_8x7b")
    cluster = load_cluster("h100", 1, "nemo_mlperf")
    seen, unseen = band(cluster, model, Fp8.DELAYED), band(cluster, model, Fp8.NVFP4)
    assert seen == cluster.stack.errors["dense/sm90/fp8"] and seen.runs > 0
    assert unseen == cluster.stack.errors["dense"] and unseen.runs == 0
    assert unseen.low < seen.low and unseen.high > seen.high
    assert band(cluster, nobodys, Fp8.NONE) == cluster.stack.errors[ASSUMED + "moe"]


def test_rows_of_one_table_have_the_band_of_their_own_precision() -> None:
    cluster, model = replace(load_cluster("h100", 1, "nemo_2024"), site=None), load_model("llama3.1_8b")
    nothing = Exposed(host=np.zeros(3), exchange=np.zeros(3))
    found = interval(cluster, model, np.array([Fp8.NONE, Fp8.DELAYED, Fp8.NONE]), np.array([1.0, 1.0, 2.0]), nothing)
    errors = cluster.stack.errors
    assert found.low[2] == 2.0 * found.low[0] == 2.0 * errors["dense/sm90/bf16"].low
    assert found.high[1] == errors["dense/sm90/fp8"].high and found.runs[1] == errors["dense/sm90/fp8"].runs


def test_what_is_not_known_of_memory_makes_both_verdicts_careful() -> None:
    cluster, work = load_cluster("h100", 1, "nemo_2024"), Workload(seq_length=4096, global_batch_size=8)
    known = Job(load_model("llama3.1_8b"), cluster, work)
    doubtful = replace(known, cluster=replace(cluster, stack=replace(cluster.stack, is_assumed=True)))
    fits, room = np.array([0.95, 0.8, 0.3, 0.05]), np.array([10.0, 10.0, -10.0, -10.0])
    assert fit_verdict(known, fits, room).tolist() == [FITS, AT_RISK, OUT_OF_MEMORY, OUT_OF_MEMORY]
    assert fit_verdict(doubtful, fits, room).tolist() == [FITS, AT_RISK, AT_RISK, OUT_OF_MEMORY]


def test_hardware_of_one_vendor_alone_leaves_several_stacks_to_guess_from() -> None:
    assert not load_cluster("mi355x", 1).stack.is_assumed
    assert {"megatron_lm", "deepspeed"} <= set(names(FileKind.STACK))


def test_bands_end_on_both_sides_of_the_projection() -> None:
    for name in names(FileKind.STACK):
        for found in load_stack(name).errors.values():
            assert isinstance(found, ErrorBand) and found.low <= 1.0 <= found.high and np.isfinite(found.high)


def test_run_and_validate_project_megatron_fsdp_with_the_same_numbers(tmp_path: Path) -> None:
    """Published runs of NeMo under Megatron-FSDP, at the rate that a space which names the framework gives them."""
    rows = validated(
        excerpt(TABLE, tmp_path, lambda rows: [row for row in rows if "megatron_fsdp=True" in row["flags"]])
    ).rows
    rows = tuple(row for row in rows if row.run.candidates.sharding[0] == Sharding.MEGATRON_FSDP)
    assert len(rows) >= 5
    for row in rows:
        run = row.run
        given = {
            "model": "llama3_70b",
            "hardware": run.cluster.accelerator.name.lower(),
            "nodes": run.cluster.num_nodes,
            "framework": "nemo",
            "workload": {"seq_length": run.workload.seq_length, "global_batch_size": run.workload.global_batch_size},
        }
        space = make_space(given, model=run.model, environ={})
        projection = Projector(replace(space.job, workload=run.workload)).project(run.candidates)
        assert projection.tokens_per_s_per_gpu[0] == row.projection.tokens_per_s_per_gpu[0]
