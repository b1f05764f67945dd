"""What a stack assumes is switched on in the file that is priced with it, and a stand-in stack is said."""

from dataclasses import replace
from pathlib import Path

import pytest

from primus_search.cli.project import of_file
from primus_search.declare import make_space
from primus_search.launch.write.job import LaunchJob
from primus_search.launch.write.launch_files import launch_files
from primus_search.space import Space
from tests.support.launched import jobs

AXES = {"tp": 8, "pp": 1, "cp": 1, "recompute": "none", "cuda_graph": "none", "micro_batch_size": 1}


def space_of(framework: str, hardware: str, **axes: object) -> Space:
    return make_space({"model": "llama3.1_8b", "hardware": hardware, "nodes": 2, "framework": framework,
                       "workload": {"seq_length": 4096, "global_batch_size": 64}, "space": AXES | axes})  # fmt: skip


def text_of(framework: str, **axes: object) -> str:
    job: LaunchJob = next(iter(jobs(space_of(framework, "h100", **axes), 1)))
    return "\n".join(launch_files(job).texts.values())


@pytest.mark.parametrize(("fp8", "is_written"), [("hybrid", True), ("delayed", True), ("none", False)])
def test_weights_gathered_in_fp8_are_written_where_they_are_priced(fp8: str, is_written: bool) -> None:
    assert ("--fp8-param-gather" in text_of("megatron", fp8=fp8, sharding="distributed_optimizer")) is is_written


def test_weights_that_are_not_sharded_are_not_gathered_in_fp8() -> None:
    assert "--fp8-param-gather" not in text_of("megatron", fp8="hybrid", sharding="none")


def test_the_precision_of_bridge_says_whether_weights_are_gathered_in_fp8() -> None:
    texts = [text_of("nemo", fp8="hybrid", sharding=one) for one in ("distributed_optimizer", "none")]
    assert ["fp8_param_gather:true" in text for text in texts] == [True, False]


@pytest.mark.parametrize(("hardware", "is_said"), [("mi300x", True), ("h100", False)])
def test_the_stack_that_stands_in_for_plain_torchtitan_is_said(hardware: str, is_said: bool) -> None:
    notes = space_of("torchtitan", hardware, sharding="fsdp2", tp=1).notes
    assert any("no run of plain torchtitan" in note for note in notes) is is_said


def test_a_recipe_that_rotates_by_yarn_says_that_it_fuses_nothing(tmp_path: Path) -> None:
    """Megatron-Bridge v0.6.0 models/gpt_provider.py:230; `project` of the command has it unfused, too."""
    name, script = "gpt_oss_20b_pretrain_16gpu_h100_bf16", tmp_path / "run.sh"
    space = make_space({"model": "gpt_oss_20b", "hardware": "h100", "nodes": 2, "framework": "nemo",
                        "workload": {"seq_length": 4096, "global_batch_size": 64}})  # fmt: skip
    text = launch_files(replace(next(jobs(space, 1)), recipe=name)).texts["nemo.sh"]
    assert "Edit: has_fused_rope: priced with True, NeMo Megatron-Bridge has False" in text
    script.write_text(
        f"$BRIDGE_PATH/scripts/training/run_recipe.py --recipe {name}_config model.apply_rope_fusion=true"
    )
    assert of_file(script, "h100")[0].cluster.stack.kernels.has_fused_rope is False
