"""The orders that candidates are priced with are those that the frameworks' own code builds."""

import ast
import csv
import gzip
import io
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from primus_search.base.errors import ScheduleError
from primus_search.schedule import Costs, PassKind, algorithm, build, launchers, simulate
from primus_search.schedule.table import Table
from tests.support.judge.checkouts import needs, sources

DATA = Path(__file__).parent / "data" / "schedules"
MEGATRONS = ("megatron@core_0.20", "megatron@core_0.16")
SHAPES = [(2, 2), (2, 3), (2, 8), (3, 7), (4, 4), (4, 8), (4, 24), (5, 10), (6, 5), (8, 8), (8, 17), (8, 64)]

Pass = tuple[str, int, int]


def passes(table: Table) -> list[list[Pass]]:
    """What every rank runs: F, I (input gradient), W or B (both), with stage and micro-batch."""
    words = {PassKind.F: "F", PassKind.B: "I", PassKind.W: "W", PassKind.BW: "B"}
    return [
        [(words[PassKind(k)], int(s), int(j)) for k, s, j in zip(r.kind, r.stage, r.micro_batch, strict=True)]
        for r in map(table.rank, range(table.stages))
    ]


# --- torch: its own classes build the order of every rank -------------------------------------------------------------

OF_TORCH = {"interleaved": "Interleaved1F1B", "interleaved-zb": "InterleavedZeroBubble", "zbv": "ZBVZeroBubble",
            "dualpipev": "DualPipeV"}  # fmt: skip


def stages_of_torch(p: int, vpp: int) -> list[SimpleNamespace]:
    """What the schedules of torch read of the stages of rank 0."""
    return [
        SimpleNamespace(num_stages=p * vpp, group_size=p, group_rank=0, stage_index=i * p, has_backward=True,
                        submod=None, is_first=i == 0, is_last=False)
        for i in range(vpp)
    ]  # fmt: skip


def runs_of_torch(schedule, p: int) -> list[list[Pass]]:  # type: ignore[no-untyped-def]
    """Passes of every rank, overlapped pairs one after the other."""
    words = {"F": "F", "I": "I", "W": "W", "B": "B"}
    ranks = []
    for rank in range(p):
        flat = [one for action in schedule.pipeline_order[rank] if action is not None
                for one in (action.sub_actions or (action,))]  # fmt: skip
        ranks.append([(words[str(a.computation_type.value)], a.stage_index, a.microbatch_index) for a in flat])
    return ranks


@pytest.mark.parametrize("name", OF_TORCH)
@pytest.mark.parametrize(("p", "m"), SHAPES)
def test_torchtitan_runs_the_orders_that_torch_builds(name: str, p: int, m: int) -> None:
    pytest.importorskip("torch")
    from torch.distributed.pipelining.schedules import get_schedule_class

    for vpp in (2,) if algorithm(name, "torchtitan").virtual_stages else (2, 3):
        try:
            theirs = get_schedule_class(OF_TORCH[name])(stages_of_torch(p, vpp), m, loss_fn=lambda *_: None)
        except ValueError:
            assert not algorithm(name, "torchtitan").serves(np.array(p), np.array(m))
            continue
        ours = build(name, launcher="torchtitan", stages=p, microbatches=m, virtual_stages=vpp)
        assert passes(ours) == runs_of_torch(theirs, p)


class _Recorded(SimpleNamespace):
    """A stage that writes down which passes the schedule has it run."""

    def forward_one_chunk(self, index: int, *_: object, **__: object) -> None:
        self.ran.append(("F", self.stage_index, index))

    def backward_one_chunk(self, index: int, *_: object, **__: object) -> None:
        self.ran.append(("B", self.stage_index, index))

    def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: []


@pytest.mark.parametrize(("name", "theirs"), [("1f1b", "1F1B"), ("gpipe", "GPipe")])
@pytest.mark.parametrize(("p", "m"), [shape for shape in SHAPES if shape[1] >= shape[0]])
def test_torchtitan_runs_single_stage_schedules_as_torch_steps_them(name: str, theirs: str, p: int, m: int) -> None:
    pytest.importorskip("torch")
    from torch.distributed.pipelining.schedules import get_schedule_class

    for rank, ours in enumerate(passes(build(name, launcher="torchtitan", stages=p, microbatches=m))):
        stage = _Recorded(stage_index=rank, num_stages=p, group_size=p, group_rank=rank, is_first=rank == 0,
                          is_last=rank == p - 1, has_backward=True, ran=[])  # fmt: skip
        schedule = get_schedule_class(theirs)(stage, m)
        schedule._initialize_stage = lambda *_: None
        schedule._step_microbatches([()] * m, [{}] * m)
        assert stage.ran == ours


@pytest.mark.parametrize("name", ["zb-h1", "zb-h2", "v-half", "v-min", "1f1b-v"])
@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 13), (8, 16)])
def test_torch_reads_and_runs_the_orders_that_export_writes_for_torchtitan(
    name: str, p: int, m: int, tmp_path: Path
) -> None:
    """`_load_csv` of the class that torchtitan 0.2.2 makes for a file, then torch's own simulation with messages."""
    pytest.importorskip("torch")
    from torch.distributed.pipelining.schedules import (
        _add_send_recv,
        _PipelineScheduleRuntime,
        _simulate_comms_compute,
    )

    from primus_search.launch.write.torchtitan import order_text

    table = build(name, launcher="torchtitan", stages=p, microbatches=m)
    (tmp_path / "order.csv").write_text(order_text(table))
    runtime = _PipelineScheduleRuntime(stages_of_torch(p, table.virtual_stages), m, loss_fn=lambda *_: None)
    runtime._load_csv(str(tmp_path / "order.csv"))
    assert runs_of_torch(runtime, p) == passes(table)
    assert [runtime.stage_index_to_group_rank[s] for s in range(table.model_stages)] == table.rank_of_stage.tolist()
    with_messages = _add_send_recv(runtime.pipeline_order, runtime.stage_index_to_group_rank.__getitem__,
                                   table.model_stages)  # fmt: skip
    ran = _simulate_comms_compute(with_messages, runtime.stage_index_to_group_rank.__getitem__, table.model_stages)
    assert sum(action is not None for rank in ran.values() for action in rank) > len(table)


# --- Megatron: its own functions give the order of chunks and the warm-up --------------------------------------------


def of_megatron(release: str) -> dict[str, object]:
    """The functions of Megatron-Core that decide the order, run from its source without its imports."""
    path = sources(release) / "megatron/core/pipeline_parallel/schedules.py"
    wanted = {"get_schedule_table", "get_pp_rank_microbatches", "convert_schedule_table_to_order"}
    body = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.FunctionDef) and n.name in wanted]
    for function in body:
        for argument in function.args.args:
            argument.annotation = None
    found: dict[str, object] = {}
    exec(compile(ast.Module(body=body, type_ignores=[]), str(path), "exec"), found)  # the judge's source
    return found


def as_megatron_runs(functions: dict, p: int, m: int, vpp: int, group: int) -> Iterator[list[Pass]]:
    """Warm-up forwards, then one forward and one backward in turn, then the backwards that are left."""
    for rank in range(p):
        functions["parallel_state"] = SimpleNamespace(
            get_pipeline_model_parallel_world_size=lambda: p,
            get_pipeline_model_parallel_rank=lambda rank=rank: rank,
            get_virtual_pipeline_model_parallel_world_size=lambda: None if vpp == 1 else vpp,
        )
        order = functions["get_schedule_table"](m, vpp, group)
        total, _, warm_up, _ = functions["get_pp_rank_microbatches"](m, vpp, group)
        forward = [("F", chunk * p + rank, micro) for micro, chunk in order]
        backward = [("B", (vpp - 1 - chunk) * p + rank, micro) for micro, chunk in order]
        steady = [one for k in range(total - warm_up) for one in (forward[warm_up + k], backward[k])]
        yield [*forward[:warm_up], *steady, *backward[total - warm_up :]]


@pytest.mark.parametrize("release", [pytest.param(one, marks=needs(one)) for one in MEGATRONS])
@pytest.mark.parametrize("launcher", ["megatron", "nemo", "primus"])
def test_megatrons_functions_give_the_orders_of_its_launchers(release: str, launcher: str) -> None:
    functions = of_megatron(release)
    for p, m in SHAPES:
        one = build("1f1b", launcher=launcher, stages=p, microbatches=m)
        if m >= p - 1:
            assert passes(one) == list(as_megatron_runs(functions, p, m, 1, p))
        for vpp in (2, 3):
            for group in (p, p + 1):
                if p <= group <= m and (m % group == 0 or m % group >= p):
                    own = None if group == p else group
                    ours = build(
                        "interleaved", launcher=launcher, stages=p, microbatches=m, virtual_stages=vpp, group=own
                    )
                    assert passes(ours) == list(as_megatron_runs(functions, p, m, vpp, group))


# --- Primus: what its own generators reach at many pipelines and costs -----------------------------------------------

OF_PRIMUS = {
    "1f1b": "1f1b",
    "interleaved-1f1b": "interleaved",
    "zb-h1 (primus zero-bubble)": "zb-h1",
    "zbv-formatted": "zbv",
    "zbv-greedy-half": "v-half",
    "zbv-greedy-min": "v-min",
    "v-half": "v-half",
    "v-min": "v-min",
}


def rows_of_primus() -> list[dict[str, str]]:
    """Rows of the tables that AMD Primus' generators made (fd1eeabb; README of the data)."""
    packed = gzip.decompress((DATA / "peer_makespans.csv.gz").read_bytes()).decode()
    rows = [*csv.DictReader(io.StringIO(packed)), *csv.DictReader((DATA / "fresh_peer_rows.csv").open())]
    return [row for row in rows if "Primus" in row["peer"] and row["algorithm"] in OF_PRIMUS]


@pytest.mark.parametrize("name", sorted(set(OF_PRIMUS.values())))
def test_primus_orders_take_the_time_and_memory_of_its_own_generators(name: str) -> None:
    compared = 0
    for row in rows_of_primus():
        if OF_PRIMUS[row["algorithm"]] != name or (name == "zb-h1" and int(row["m"]) < int(row["p"]) - 1):
            continue
        costs = Costs(forward=float(row["F"]), backward=float(row["B"]), weight=float(row["W"]),
                      comm=float(row["comm"]), last_head_extra=float(row["last_head_extra"]))  # fmt: skip
        shape = {"stages": int(row["p"]), "microbatches": int(row["m"]), "virtual_stages": int(row["vpp"])}
        run = simulate(build(name, launcher="primus", costs=costs, **shape), costs)
        found = (run.makespan, run.span, run.peak_activations.max(), run.peak_activations_half_at_b.max())
        told = [float(row[key]) for key in ("makespan", "span", "peak_max", "peak_half_at_B_max")]
        assert found == pytest.approx(told, rel=1e-6), row
        compared += 1
    assert compared > 50


def test_the_orders_of_v_half_and_v_min_do_not_react_to_costs() -> None:
    for name in ("v-half", "v-min", "zbv"):
        uneven = Costs(forward=10, backward=14, weight=6, comm=1)
        one, other = (build(name, launcher="primus", stages=4, microbatches=12, costs=c) for c in (Costs(), uneven))
        assert passes(one) == passes(other)


# --- every framework and schedule name -------------------------------------------------------------------------------


def test_every_schedule_that_a_framework_names_is_its_own_order_or_a_file() -> None:
    """Schedules without a choice are built alike by all; orders of ours are handed over as a file."""
    from primus_search.files.framework_files import load_framework
    from primus_search.launch.read.torchtitan import ORDER_FILE

    plain = {"1f1b", "gpipe", "dualpipev"}
    for launcher in launchers():
        for name, schedule in load_framework(launcher).schedules.items():
            own = bool(algorithm(name, launcher).launchers)
            assert own or name in plain or ORDER_FILE in schedule.keys, (launcher, name)


def test_an_unknown_launcher_is_refused_by_name() -> None:
    with pytest.raises(ScheduleError) as caught:
        build("zbv", stages=4, microbatches=8, launcher="primas")
    assert str(caught.value) == (
        "zbv: launcher='primas'; launchers with orders of their own: megatron, nemo, primus, torchtitan"
    )


def test_orders_of_launchers_are_complete_and_finish() -> None:
    for launcher in launchers():
        for name in ("interleaved", "interleaved-zb", "zb-h1", "zbv", "v-half", "v-min", "dualpipev"):
            chosen = algorithm(name, launcher)
            for p, m in [*SHAPES, (16, 16), (12, 95), (31, 7), (32, 200)]:
                if chosen.launchers and chosen.serves(np.array(p), np.array(m)) and (m >= p or name != "interleaved"):
                    vpp = 2 if chosen.virtual_stages is None else 1
                    table = build(name, launcher=launcher, stages=p, microbatches=m, virtual_stages=vpp)
                    assert simulate(table, Costs()).makespan >= 3.0 * m
