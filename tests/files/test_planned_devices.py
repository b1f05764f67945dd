"""Devices that nobody measured: efficiencies of a named ancestor with a spread, marked wherever they stand."""

from pathlib import Path

import numpy as np
import pytest

from primus_search import load_cluster, load_model
from primus_search.analysis.answer import answer_of
from primus_search.base.errors import InputError
from primus_search.cost.confidence.uncertainty import band
from primus_search.declare import make_space
from primus_search.exploration.funnel import Options, run_search
from primus_search.exploration.neighbours import Evaluator
from primus_search.exploration.ranking_table import RankingTable
from primus_search.files.hardware_files import load_hardware
from primus_search.values.candidates import Candidates

PLANNED = {"vr200": "GB300", "r100": "GB300", "mi455x": "MI355X", "mi440x": "MI355X"}
CARDS = dict.fromkeys(("l40s", "rtx_4090", "rtx_a6000", "rtx_pro_6000", "a10"), "A100-80") | {"mi210": "MI250X"}
ANCESTORS = PLANNED | CARDS
SHEET = """name: NEWCHIP
vendor: nvidia
accelerator:
  bf16_peak_TFLOPS: {value: 3000, source: data sheet}
  hbm_GBps: {value: 16000, source: data sheet}
"""


@pytest.mark.parametrize("name", ANCESTORS)
def test_such_a_device_is_marked_and_names_whose_efficiencies_it_has(name: str) -> None:
    found = load_hardware(name)
    status = "planned" if name in PLANNED else "unmeasured"
    assert found.accelerator.name.endswith(f" ({status})") and found.name == found.accelerator.name
    assert found.accelerator.ancestor == ANCESTORS[name]
    parent = load_hardware(ANCESTORS[name].lower().replace("-", "_"))
    assert found.accelerator.gemm == parent.accelerator.gemm


@pytest.mark.parametrize("name", ANCESTORS)
def test_its_band_is_wider_than_its_ancestors_and_rests_on_no_run(name: str) -> None:
    model = load_model("mixtral_8x22b")
    ours, theirs = (band(load_cluster(one, 8), model, 0) for one in (name, ANCESTORS[name].lower().replace("-", "_")))
    assert ours.runs == 0.0
    assert ours.low < theirs.low and ours.high > theirs.high


def test_no_answer_for_a_planned_device_speaks_of_runs_of_its_kind() -> None:
    data = {
        "model": "llama3_8b",
        "hardware": "vr200",
        "nodes": 2,
        "workload": {"seq_length": 4096, "global_batch_size": 64},
        "space": {"tp": 1, "pp": 1, "cp": 1, "recompute": "none", "sharding": "fsdp2"},
        "benchmark": {"device": "off"},
    }
    answer = answer_of(run_search(make_space(data, environ={}), Options(workers=1)))
    assert "VR200 NVL72 (planned)" in answer.job
    assert "a device that nobody measured, at the efficiencies of GB300 with a spread" in answer.trust[0]
    assert not any("of this kind" in text for text in answer.trust)


def test_the_published_run_of_vr200_lies_in_the_band() -> None:
    """Nemotron 3 Ultra, MXFP8, 256 GPUs, 1,788.89 TFLOP/s/GPU (NVIDIA-NeMo/Megatron-Bridge#5721).

    Tokens: the publisher's own count, 1,281 TFLOP/s/GPU at 3,552 tokens/s/GPU of the same recipe on GB300.
    """
    measured = 1788.89 / 1281.0 * 3552.0
    values = {"ep": 64, "fp8": "mxfp8", "sharding": "megatron_fsdp", "micro_batch_size": 1}
    data = {
        "model": "nemotron3_ultra",
        "hardware": "vr200",
        "nodes": 64,
        "site": "vendor",
        "workload": {"seq_length": 8192, "global_batch_size": 256},
        "space": values | {"tp": 1, "pp": 1, "cp": 1},
    }
    space = make_space(data, environ={})
    evaluator = Evaluator(space, space.clusters[0])
    one = Candidates.from_words(values)
    sure = RankingTable.of(evaluator, np.zeros(1, np.int64), one).confidence
    assert sure.low[0] < measured < sure.high[0]


def test_a_data_sheet_alone_is_answered_by_the_word_that_completes_it(tmp_path: Path) -> None:
    path = tmp_path / "newchip.yaml"
    path.write_text(SHEET)
    with pytest.raises(InputError) as caught:
        load_hardware(str(path))
    (problem,) = caught.value.problems
    assert "add 'extends:' with the nearest device (" in problem.what and "'status: planned'" in problem.what
    path.write_text(SHEET + "extends: b300\nstatus: planned\n")
    found = load_hardware(str(path))
    assert found.accelerator.name == "NEWCHIP (planned)" and found.accelerator.ancestor == "B300"


def test_a_status_of_another_word_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "newchip.yaml"
    path.write_text(SHEET + "extends: b300\nstatus: maybe\n")
    with pytest.raises(InputError, match="is planned or unmeasured, or left out"):
        load_hardware(str(path))
