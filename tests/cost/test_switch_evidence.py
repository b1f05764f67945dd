"""Gains of switches that no run had on together count in part; measured ones count in full."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from primus_search.cost.confidence.switch_evidence import SwitchEvidence, shape_of, unmeasured
from primus_search.cost.confidence.uncertainty import site_ratio
from primus_search.cost.project import Projector
from primus_search.declare.record_table import write_records
from primus_search.exploration.expected import expected_shares, unmeasured_gain
from primus_search.files.evidence_files import load_switches
from primus_search.files.hardware_files import load_cluster
from primus_search.models.model_files import load_model
from primus_search.values.candidates import Candidates, joined
from primus_search.values.job import Job
from primus_search.values.knobs import KNOBS, CudaGraph
from primus_search.values.measured_run import MeasuredRun, Measurement, Provenance
from primus_search.values.workload import Workload

MOE = load_model("qwen3_30b_a3b")
TOGETHER = joined([Candidates.from_words({"deepep": True}), Candidates.from_words({"cuda_graph": "partial"})])
EVIDENCE = SwitchEvidence(sets={"B200": {"moe": TOGETHER}}, shares={"moe": 0.5})


def part_of(device: str = "B200", **words: object) -> dict[str, object]:
    return EVIDENCE.measured_part(device, MOE, Candidates.from_words(words)).row(0)


def test_switches_that_a_run_had_together_stay() -> None:
    assert part_of(deepep=True)["deepep"] is True
    assert part_of(cuda_graph="partial", tp=4)["cuda_graph"] == "partial"


def test_what_the_nearest_run_lacks_takes_its_value() -> None:
    both = part_of(deepep=True, cuda_graph="partial")
    assert (both["deepep"], both["cuda_graph"]) == (True, "none")
    assert part_of(cuda_graph="full")["cuda_graph"] == "partial", "another value is nearer than none"


def test_a_part_of_a_combination_was_not_measured() -> None:
    known = SwitchEvidence(
        sets={"B200": {"moe": Candidates.from_words({"deepep": True, "exchange_overlap": True})}}, shares={"moe": 0.5}
    )
    part = known.measured_part("B200", MOE, Candidates.from_words({"deepep": True})).row(0)
    assert (part["deepep"], part["exchange_overlap"]) == (True, True)
    plain = Candidates.from_words({})
    assert not unmeasured(plain, known.measured_part("B200", MOE, plain)).any(), "nothing is claimed of a switch"


def test_a_device_without_runs_has_measured_no_switch() -> None:
    assert part_of("MI250X", deepep=True, tp=8)["deepep"] is False


def test_a_run_in_another_number_format_or_of_another_model_says_nothing() -> None:
    assert part_of(deepep=True, fp8="mxfp8")["deepep"] is False
    shipped, both = load_switches(), Candidates.from_words({"fp8": "mxfp8", "deepep": True, "cuda_graph": "partial"})
    other = load_model("kimi_k2")
    assert not unmeasured(both, shipped.measured_part("B200", MOE, both)).any()
    assert unmeasured(both, shipped.measured_part("B200", other, both)).all()
    assert shape_of(MOE) == "48 layers of 2048, 128 experts" != shape_of(other)


def test_layouts_are_no_switches() -> None:
    names = {knob.name for knob in KNOBS if knob.is_switch}
    assert {"deepep", "cuda_graph", "exchange_overlap", "tp_overlap"} <= names
    assert not names & {
        "tp",
        "pp",
        "vpp",
        "micro_batch_size",
        "fp8",
        "recompute",
        "sharding",
        "sequence_parallel",
        "dispatch_backend",
    }


def test_gains_are_discounted_and_losses_are_not() -> None:
    step_s, part_s = np.array([1.0, 1.0, 2.0]), np.array([1.44, 1.0, 1.0])
    assert EVIDENCE.expected_share(MOE, step_s, part_s) == pytest.approx([1.2 / 1.44, 1.0, 1.0])


def test_a_ranking_discounts_rows_whose_switches_were_not_measured_together() -> None:
    job = Job(MOE, load_cluster("b200", 8), Workload(seq_length=4096, global_batch_size=512))
    table = Candidates.table(ep=8, grouped_gemm=0, deepep=[False, True], cuda_graph=[0, int(CudaGraph.FULL)])
    projector = Projector(job)
    projection = projector.project(table)
    part = load_switches().measured_part("B200", MOE, table)
    shares = expected_shares(projector, table, projection.step.total)
    assert unmeasured(table, part).tolist() == [False, True]
    shares = shares / site_ratio(job.cluster, job.model)
    assert shares[0] == 1.0 and 0.5 < shares[1] < 1.0
    said = unmeasured_gain(projector, table.take(slice(1, 2)))
    assert said is not None and 0.0 < said.expected < said.gain
    assert 1.0 + said.expected == pytest.approx((1.0 + said.gain) * shares[1])
    assert unmeasured_gain(projector, table.take(slice(0, 1))) is None


def test_every_share_is_of_left_out_pairs_and_raises_no_gain() -> None:
    assert set(load_switches().shares) == {"dense", "moe"}
    assert all(0.0 < share <= 1.0 for share in load_switches().shares.values())


def test_runs_of_a_site_are_evidence_beside_the_shipped_ones() -> None:
    own = EVIDENCE.beside({"B200": {"moe": Candidates.from_words({"deepep": True, "cuda_graph": "full"})}})
    both = Candidates.from_words({"deepep": True, "cuda_graph": "full"})
    assert not unmeasured(both, own.measured_part("B200", MOE, both)).any()
    assert unmeasured(both, EVIDENCE.measured_part("B200", MOE, both)).all()
    assert not unmeasured(TOGETHER, own.measured_part("B200", MOE, TOGETHER)).any()


def test_what_a_site_ran_with_a_learned_stack_counts_in_full(tmp_path: Path) -> None:
    together = {"ep": 8, "deepep": True, "cuda_graph": "full", "sync_free_stage": 2}
    cluster = load_cluster("mi355x", 1)
    one = Candidates.from_words(together)
    run = MeasuredRun(
        model=MOE,
        cluster=cluster,
        workload=Workload(seq_length=4096, global_batch_size=64),
        candidates=one,
        measured=Measurement(tokens_per_s_per_gpu=1000.0),
        provenance=Provenance(id="own"),
        hardware="mi355x",
    )
    write_records([run], tmp_path / "mine.runs.parquet")
    learned = replace(cluster.stack, runs_file=str(tmp_path / "mine.runs.parquet"))
    own = Projector(Job(MOE, replace(cluster, stack=learned), run.workload))
    shipped = Projector(run.job)
    assert unmeasured_gain(shipped, one) is not None
    assert unmeasured_gain(own, one) is None
    shares = expected_shares(own, one, own.project(one).step.total)
    assert shares[0] == site_ratio(own.job.cluster, own.job.model)


def over_efa(nodes: int = 8, ep: int = 32, **words: object) -> tuple[Projector, Candidates]:
    cluster = load_cluster("b300@efa", nodes)
    job = Job(MOE, cluster, Workload(seq_length=4096, global_batch_size=512))
    table = Candidates.table(ep=ep, grouped_gemm=0, micro_batch_size=4, deepep=[False, True])
    return Projector(job), table.with_columns(words)


def test_a_library_that_nobody_ran_over_a_transport_gains_nothing_there() -> None:
    projector, table = over_efa()
    step_s = projector.project(table).step.total
    shares = expected_shares(projector, table, step_s)
    plain_s, fused_s = step_s / shares
    assert step_s[1] < 0.9 * step_s[0], "a gain is projected"
    assert plain_s == pytest.approx(fused_s)
    said = unmeasured_gain(projector, table.take(slice(1, 2)))
    assert said is not None and said.gain > 0.1 and said.expected == pytest.approx(0.0)
    assert "on B300@efa had deepep=True" in str(said) and "0% counted" in str(said)


def test_an_overlap_of_exchange_that_nobody_ran_over_a_transport_gains_nothing_there() -> None:
    projector, table = over_efa(deepep=np.zeros(2, np.bool_), exchange_overlap=np.array([False, True]))
    step_s = projector.project(table).step.total
    plain_s, overlapped_s = step_s / expected_shares(projector, table, step_s)
    assert step_s[1] < 0.95 * step_s[0], "a gain is projected"
    assert plain_s == pytest.approx(overlapped_s)


def test_inside_a_node_a_transport_says_nothing_of_a_library() -> None:
    (over, table), plain = over_efa(1, ep=8), Job(MOE, load_cluster("b300", 1), over_efa()[0].job.workload)
    found = [expected_shares(one, table, one.project(table).step.total) for one in (over, Projector(plain))]
    assert found[0] == pytest.approx(found[1])


def test_a_library_that_the_site_ran_over_its_transport_counts(tmp_path: Path) -> None:
    projector, table = over_efa()
    run = MeasuredRun(
        model=MOE,
        cluster=projector.job.cluster,
        workload=projector.job.workload,
        candidates=table.take(slice(1, 2)),
        measured=Measurement(tokens_per_s_per_gpu=1000.0),
        provenance=Provenance(id="own"),
        hardware="b300@efa",
    )
    write_records([run], tmp_path / "mine.runs.parquet")
    learned = replace(run.cluster.stack, runs_file=str(tmp_path / "mine.runs.parquet"))
    own = Projector(Job(MOE, replace(run.cluster, stack=learned), run.workload))
    assert unmeasured_gain(own, run.candidates) is None
