"""Attention in FP8: faster where a kernel of known rate exists, with its casts, and legal beside FP8 recipes alone."""

import numpy as np
import pytest

from primus_search.cost.parts.layer import core_attention
from primus_search.declare import make_space
from primus_search.launch.write.job import LaunchJob
from primus_search.launch.write.launch_files import launch_files
from primus_search.launch.write.nemo import overrides
from primus_search.space import Enumerator
from primus_search.space.rules import cautions_of
from primus_search.values.candidates import Candidates, Fp8
from primus_search.values.job import Job
from tests.support.launched import jobs

ASKED = {
    "model": "llama3_8b",
    "nodes": 1,
    "framework": "nemo",
    "workload": {"seq_length": 8192, "global_batch_size": 32},
}


def seconds(hardware: str, **columns: object) -> tuple[np.ndarray, np.ndarray]:
    space = make_space(ASKED | {"hardware": hardware})
    job = Job(model=space.model, cluster=space.cluster, workload=space.workload)
    call = core_attention(job, job.model.kinds[0], Candidates.table(**columns))
    return np.asarray(call.seconds[0]), np.asarray(call.seconds[1])


def test_it_is_faster_on_a_device_with_rates_and_the_same_elsewhere() -> None:
    forward, backward = seconds("gb300", fp8=Fp8.MXFP8, fp8_attention=[False, True])
    assert 1.1 < forward[0] / forward[1] < 1.56 and 1.0 < backward[0] / backward[1] < 1.31
    plain, low = seconds("h100", fp8=Fp8.HYBRID, fp8_attention=[False, True])[0]
    assert plain == low


def test_casts_of_block_scales_write_both_layouts() -> None:
    delayed, blocks = seconds("gb300", fp8=[Fp8.DELAYED, Fp8.MXFP8], fp8_attention=True)[0]
    assert delayed < blocks


@pytest.mark.parametrize(
    ("hardware", "fp8", "numerics", "found"),
    [
        ("gb300", ["none", "mxfp8", "blockwise"], "any", {("none", False), ("mxfp8", False), ("mxfp8", True),
                                                          ("blockwise", False)}),
        ("gb300", ["mxfp8"], "usual", {("mxfp8", False)}),
        ("h100", ["hybrid"], "any", {("hybrid", False)}),
    ],
)  # fmt: skip
def test_it_is_searched_only_where_any_numerics_may_be(
    hardware: str, fp8: list[str], numerics: str, found: set[tuple[str, bool]]
) -> None:
    space = {"fp8": fp8, "tp": 1, "pp": 1, "cp": 1, "micro_batch_size": 1}
    search = {"numerics": numerics}
    enumerator = Enumerator(make_space(ASKED | {"hardware": hardware, "space": space, "search": search}))
    table = enumerator.chunk(0, enumerator.size).candidates
    rows = (table.row(i) for i in range(len(table)))
    assert {(row["fp8"], row["fp8_attention"]) for row in rows} == found


def test_megatron_bridge_sets_it_in_the_precision_of_the_recipe() -> None:
    space = {"fp8": "mxfp8", "fp8_attention": True, "tp": 1, "pp": 1, "cp": 1, "micro_batch_size": 1}
    job: LaunchJob = next(iter(jobs(make_space(ASKED | {"hardware": "gb300", "space": space}), 1)))
    said = overrides(job)
    assert said["mixed_precision"].items() >= {"fp8_dot_product_attention": True, "fp8_recipe": "mxfp8"}.items()
    heads = {"model.fp8_output_proj": False}
    assert {name: value for name, value in said.items() if name.startswith("model.fp8")} == heads


def test_attention_beside_fp4_takes_its_format_from_the_environment() -> None:
    space = {"fp8": "nvfp4", "fp8_attention": True, "tp": 1, "pp": 1, "cp": 1, "micro_batch_size": 1}
    job = next(iter(jobs(make_space(ASKED | {"hardware": "gb200", "space": space}), 1)))
    assert (
        'export NVTE_DPA_FP8_RECIPE="${NVTE_DPA_FP8_RECIPE:-Float8CurrentScaling}"'
        in launch_files(job).texts["nemo.sh"]
    )
    cautions = cautions_of(job.framework)
    assert any(one.name == "fp4_attention_by_environment" for one in cautions)
