"""What `explain` says holds against the search itself, the projection, and re-running without a knob."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from primus_search.analysis.breakdown import TRAFFIC_PARTS
from primus_search.analysis.explanation import Explained, explain
from primus_search.analysis.why_not import parse_request, what_if, why_not
from primus_search.base.errors import InputError
from primus_search.cli import app
from primus_search.cost.confidence.uncertainty import TIE
from primus_search.cost.projection import Step
from primus_search.exploration.funnel import Options, run_search
from primus_search.exploration.neighbours import Evaluator, Values, values_of, word
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.files.framework_files import load_framework
from primus_search.launch.write.job import LaunchJob
from primus_search.launch.write.launch_files import launch_files
from primus_search.space import Axis, Enumerator
from primus_search.values.candidates import Candidates
from primus_search.values.knobs import KNOB
from tests.support.daily import drawn
from tests.support.page_rows import columns
from tests.support.small_runs import make_run

DENSE: dict[str, Any] = {
    "model": "tiny",
    "hardware": "h100",
    "space": {"tp": [1, 2], "pp": [1, 2], "cp": [1, 2], "micro_batch_size": [1, 2], "vpp": [1, 2],
              "schedule": ["1f1b", "interleaved", "zbv"], "fp8": "none", "recompute": ["none", "selective", "full"],
              "sharding": ["distributed_optimizer", "fsdp2", "hsdp"]},
}  # fmt: skip
WINNERS: dict[str, dict[str, Any]] = {
    "deepseek_v2": {
        "model": "deepseek_v2", "nodes": 4, "workload": {"seq_length": 4096, "global_batch_size": 512},
        "space": {"tp": 1, "pp": [4, 8], "ep": 8, "etp": 1, "cp": 1, "micro_batch_size": [1, 2], "vpp": [1, 2],
                  "schedule": ["1f1b", "interleaved", "zbv"], "fp8": "none", "recompute": ["none", "full"],
                  "sharding": "distributed_optimizer", "loss_fusion": True, "overlap_grad_reduce": True},
    },
    "mixtral_8x22b": {
        "model": "mixtral_8x22b", "nodes": 4, "workload": {"seq_length": 8192, "global_batch_size": 256},
        "space": {"tp": [1, 2], "pp": [4, 8], "ep": [4, 8], "etp": 1, "cp": [1, 2], "micro_batch_size": 1,
                  "vpp": [1, 2], "schedule": ["1f1b", "interleaved"], "fp8": ["none", "hybrid"], "recompute": "none",
                  "sharding": "distributed_optimizer", "loss_fusion": True, "overlap_grad_reduce": True},
    },
}  # fmt: skip


NOISE = TIE / (1.0 - TIE) + 1e-9
"""What the fastest row may gain over the recommended one, the plainest that one run could not tell from it."""


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    return SavedRun.open(make_run(tmp_path_factory.mktemp("experts"), keep=10**6))


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    return SavedRun.open(make_run(tmp_path_factory.mktemp("dense"), keep=10**6, **DENSE))


@pytest.fixture(scope="module", params=sorted(WINNERS))
def winner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Explained:
    return explain(SavedRun.open(make_run(tmp_path_factory.mktemp("winner"), **WINNERS[request.param])), 1)


def hold_together(e: Explained) -> None:
    step = e.projection.step
    assert sum(e.figures.step.values()) == pytest.approx(e.figures.step_s, rel=1e-12)
    for part in (*TRAFFIC_PARTS, "gradient_comm"):
        told = sum(sent.exposed_s for sent in e.traffic if sent.part == part)
        assert told == pytest.approx(float(step.__getattribute__(part)[0]), rel=1e-9, abs=1e-12), part
    after = ("gradient_comm", "optimizer", "overhead", "stragglers")
    pipeline_s = sum(e.figures.step[f.name] for f in fields(Step) if f.name not in after)
    if e.timeline is None:
        assert e.figures.microbatches * e.stages.work_s.sum() == pytest.approx(pipeline_s, rel=1e-9)
    else:
        assert e.timeline.makespan == pytest.approx(pipeline_s, rel=1e-9)
    assert float(e.memory_by_rank.total.max()) == pytest.approx(e.figures.memory_bytes, rel=1e-9)


@pytest.mark.in_turn("winners")
def test_the_parts_of_published_winners_sum_to_their_totals(winner: Explained) -> None:
    hold_together(winner)


def test_the_parts_of_any_row_sum_to_their_totals(experts: SavedRun, dense: SavedRun) -> None:
    for run in (experts, dense):
        for rank in drawn("parts", range(1, len(run.ranking) + 1), 10):
            hold_together(explain(run, rank))


@pytest.mark.daily(2)
@pytest.mark.parametrize("knob", ["fp8", "deepep", "schedule", "vpp", "sync_free_stage", "recompute", "ep", "pp"])
def test_what_a_knob_gives_re_tuned_is_what_a_search_without_it_finds(experts: SavedRun, knob: str) -> None:
    e = explain(experts, 1)
    found = {one.knob: one for one in e.ablations}
    if knob not in found:
        assert e.base[knob] == KNOB[knob].off
        return
    off = KNOB[knob].off
    assert off in e.space.axis(knob).values, "the space of this test offers every knob's off"
    narrowed = e.space.on(e.choice.with_axes([Axis(name=knob, values=(off,))]))
    without = float(run_search(narrowed, Options(workers=1)).ranking.expected_rate.max())
    gain = found[knob].tuned_gain
    assert gain == pytest.approx(e.figures.expected_tokens_per_s_per_gpu / without - 1.0, rel=1e-9)


def test_a_knob_switched_off_alone_never_beats_tuning_without_it(experts: SavedRun, dense: SavedRun) -> None:
    for run in (experts, dense):
        for one in explain(run, 1).ablations:
            if one.gain is not None and one.tuned_gain is not None and one.alone.fits:
                inside = all(
                    v in run.space.axis(n).values for n, v in one.alone.values.items() if n in one.alone.changes
                )
                assert not inside or one.gain >= one.tuned_gain - 1e-9, one.knob


def test_no_legal_step_inside_the_space_beats_an_exact_winner(experts: SavedRun, dense: SavedRun) -> None:
    for run in (experts, dense):
        e = explain(run, 1)
        inside = 0
        for step in e.steps:
            values = step.trial.values
            if step.trial.fits and all(values[n] in e.space.axis(n).values for n in step.trial.changes):
                assert step.behind is not None and step.behind >= -NOISE, step.axis
                inside += 1
        assert inside >= 4


def test_a_legal_row_and_a_row_the_enumerator_lists_are_the_same_thing(experts: SavedRun) -> None:
    """The evaluator asks the rules about one row; the enumerator lists the legal ones: both must agree, both ways."""
    e, rng = explain(experts, 1), np.random.default_rng(1)
    table = Enumerator(e.space).chunk(0, 10**9).candidates
    legal = {tuple(str(v) for v in values_of(table, i).values()) for i in range(len(table))}
    agreed = [0, 0]
    for _ in range(200):
        values: Values = e.evaluator.settled(
            {axis.name: axis.values[rng.integers(len(axis.values))] for axis in e.space.axes}
        )
        is_legal = not e.evaluator.broken(values)
        if is_legal and tuple(str(v) for v in values.values()) not in legal:
            # Doubles are dropped by the enumerator; what is left of them is the same run.
            one = e.evaluator.projector.project(_table(values)).step.total[0]
            assert np.isclose(e.evaluator.projector.project(table).step.total, one, rtol=1e-12).any()
        agreed[int(is_legal)] += 1
    assert min(agreed) > 10
    for i in rng.integers(len(table), size=50):
        assert e.evaluator.broken(values_of(table, int(i))) == ()


def _table(values: Values) -> Candidates:
    from primus_search.exploration.neighbours import table_of

    return table_of([values])


@pytest.mark.in_turn("winners")
def test_advice_is_true_and_never_beats_the_winner_inside_its_space(experts: SavedRun, winner: Explained) -> None:
    for e in (explain(experts, 1), winner):
        for one in e.advice:
            assert one.remedies, one.topic
            for remedy in one.remedies:
                if remedy.trial.changes and remedy.gain is not None:
                    again = Evaluator(e.space, e.choice).project([remedy.trial.values])[0]
                    rates = [one.expected_tokens_per_s_per_gpu for one in (again, e.figures)]
                    assert rates[0] / rates[1] - 1 == pytest.approx(remedy.gain)
                changes = remedy.trial.changes
                inside = changes and all(remedy.trial.values[n] in e.space.axis(n).values for n in changes)
                if inside and remedy.trial.fits:
                    assert remedy.gain is not None and remedy.gain <= NOISE, remedy.what


# --- why not, what if -----------------------------------------------------------------------------------------------


def test_why_not_names_the_rules_that_forbid_it(experts: SavedRun) -> None:
    e = explain(experts, 1)
    answer = why_not(e.evaluator, e.base, parse_request("tp=3", e.base))
    assert not answer.alone.is_legal and "tp_divides_model" in {one.rule for one in answer.alone.broken}
    assert answer.chance.rows == 0 and answer.chance.best is None


def test_why_not_finds_the_best_of_the_space_with_these_values(experts: SavedRun) -> None:
    e = explain(experts, 1)
    answer = why_not(e.evaluator, e.base, parse_request("pp=2, fp8=none", e.base))
    best = next(row for row in experts.ranking if row["pp"] == 2 and row["fp8"] == "none")
    assert answer.chance.figures is not None and answer.chance.best is not None
    assert answer.chance.figures.tokens_per_s_per_gpu == pytest.approx(best["tokens_per_s_per_gpu"], rel=1e-9)
    assert (word("fp8", answer.chance.best["fp8"]), answer.chance.best["pp"]) == ("none", 2)


def test_why_not_says_what_would_make_it_fit(tmp_path: Path) -> None:
    changes = {"model": "llama3_8b", "hardware": "a100_80", "nodes": 1,
               "workload": {"seq_length": 8192, "global_batch_size": 64},
               "space": {"tp": [1, 2, 4], "pp": 1, "cp": 1, "micro_batch_size": [1, 2], "recompute": ["none", "full"],
                         "sharding": ["distributed_optimizer", "fsdp2"], "fp8": "none"}}  # fmt: skip
    e = explain(SavedRun.open(make_run(tmp_path, **changes)), 1)
    answer = why_not(e.evaluator, e.base, parse_request("micro_batch_size=2,recompute=none", e.base))
    assert answer.alone.is_legal and not answer.alone.fits
    figures = answer.alone.figures
    assert figures is not None and figures.headroom_bytes < 0
    assert "cp=2" in answer.would_fit
    for text in answer.would_fit:
        assert not {"recompute", "micro_batch_size"} & {part.split("=")[0] for part in text.split(", ")}


def test_why_not_understands_the_launch_file_of_another_rank(experts: SavedRun, tmp_path: Path) -> None:
    e, other, path = explain(experts, 1), explain(experts, 7), tmp_path / "primus.yaml"
    job = LaunchJob(
        candidate=other.one,
        model=e.space.model,
        cluster=other.choice.cluster,
        workload=e.space.workload,
        framework=load_framework("primus"),
    )
    path.write_text(launch_files(job).texts["primus.yaml"])
    asked = parse_request(f"@{path}", e.base, e.evaluator)
    assert set(asked) == {axis for axis in e.base if e.base[axis] != other.base[axis]}
    answer = why_not(e.evaluator, e.base, asked)
    assert answer.alone.figures is not None and not answer.alone.followed
    rate = other.row["tokens_per_s_per_gpu"]
    assert answer.alone.figures.tokens_per_s_per_gpu == pytest.approx(rate, rel=1e-9)
    with pytest.raises(InputError, match="has the very configuration"):
        parse_request(f"@{path}", other.base, e.evaluator)


def test_what_cannot_be_asked_is_said_in_one_go(experts: SavedRun) -> None:
    with pytest.raises(InputError) as caught:
        parse_request("tp=a, foo=3", {})
    assert len(caught.value.problems) == 2 and "unknown axis 'foo'" in str(caught.value)
    e = explain(experts, 1)
    with pytest.raises(InputError, match="is an axis of the space; ask --why-not"):
        what_if(e.run, e.evaluator, e.base, ["tp=2"], 5)
    with pytest.raises(InputError, match="has ranks 1 to"):
        explain(experts, 10**6)


def test_what_if_nothing_changes_nothing_changes(experts: SavedRun) -> None:
    e = explain(experts, 1)
    hbm = e.choice.cluster.accelerator.hbm_bytes / 1e9
    answer = what_if(e.run, e.evaluator, e.base, [f"hardware.hbm_GB={hbm}"], 1000)
    assert answer.after == answer.before
    assert [moved.was for moved in answer.ranking] == list(range(1, len(answer.ranking) + 1))


def test_what_if_ranks_anew_as_a_search_there_would(experts: SavedRun) -> None:
    e = explain(experts, 1)
    answer = what_if(e.run, e.evaluator, e.base, ["hardware.link_GBps=5", "hardware.nic_GBps=2"], 5)
    assert answer.after is not None
    assert answer.after.tokens_per_s_per_gpu < answer.before.tokens_per_s_per_gpu
    speeds = [moved.figures.expected_tokens_per_s_per_gpu for moved in answer.ranking]
    assert (
        speeds[1:] == sorted(speeds[1:], reverse=True)
        and speeds[0] >= max(speeds) * (1.0 - TIE)
        and answer.looked_at == len(experts.ranking)
    )
    assert [moved.was for moved in answer.ranking] != [1, 2, 3, 4, 5]


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setenv("COLUMNS", "80")
    return CliRunner()


@pytest.mark.in_turn
def test_the_command_fits_eighty_columns_without_colour(experts: SavedRun, terminal: CliRunner) -> None:
    commands: tuple[list[str], ...] = (
        [],
        ["-v"],
        ["2", "3"],
        ["--why-not", "tp=2,pp=2"],
        ["--why-not", "tp=3"],
        ["--what-if", "hardware.nic_GBps=10"],
    )
    for more in drawn("columns", commands, 2):
        done = terminal.invoke(app, ["explain", str(experts.path), *more], catch_exceptions=False)
        assert done.exit_code == 0
        assert max(len(line) for line in done.output.splitlines()) <= 80
        assert "\x1b" not in done.output


@pytest.mark.daily(1)
@pytest.mark.parametrize("rank", ["1", "2", "7"])
def test_a_reason_takes_twenty_five_lines_and_no_remedy_twice(
    experts: SavedRun, terminal: CliRunner, rank: str
) -> None:
    done = terminal.invoke(app, ["explain", str(experts.path), rank], catch_exceptions=False)
    lines = done.output.splitlines()
    assert len(lines) <= 25 and [line for line in lines if line.startswith("RESTS")]
    remedies = [line.partition(":")[0] for line in lines if line.lstrip().startswith("->")]
    assert len(remedies) == len(set(remedies))


@pytest.mark.in_turn
def test_the_json_says_what_the_tables_say(experts: SavedRun, terminal: CliRunner) -> None:
    done = terminal.invoke(app, ["explain", str(experts.path), "3", "--json"], catch_exceptions=False)
    told = json.loads(done.output)
    row = experts.ranking[2]
    assert told["tokens_per_s_per_gpu"] == pytest.approx(row["tokens_per_s_per_gpu"], rel=1e-9)
    assert sum(v for k, v in told["step"].items() if k != "total_s") == pytest.approx(told["step"]["total_s"])
    assert {"ablation", "sensitivity", "advice", "traffic", "memory_by_rank", "stages"} <= set(told)
    done = terminal.invoke(app, ["explain", str(experts.path), "3", "5", "--json"], catch_exceptions=False)
    assert [one["rank"] for one in json.loads(done.output)] == [3, 5] and json.loads(done.output)[0] == told
    done = terminal.invoke(
        app,
        ["explain", str(experts.path), "--why-not", "tp=2", "--what-if", "nodes=4", "--json"],
        catch_exceptions=False,
    )
    assert set(json.loads(done.output)) == {"schema", "why_not", "what_if"}


@pytest.mark.in_turn
def test_rows_of_several_clusters_are_explained_on_their_own(tmp_path: Path) -> None:
    from primus_search.report.html import content

    space = {"tp": [1, 2], "pp": [1, 2], "cp": 1, "micro_batch_size": 1, "hardware.nic_GBps": [10, 50]}
    several = {"nodes": [1, 2], "space": space, "search": {"objective": "tokens_per_s"}}
    run = SavedRun.open(make_run(tmp_path, **several))
    ends: dict[tuple[int, float], list[int]] = {}
    for rank in range(1, len(run.ranking) + 1):
        cluster = run.cluster(rank).cluster
        ends.setdefault((cluster.num_nodes, cluster.network.nic_bytes_per_s), [rank, rank])[1] = rank
    assert len(ends) > 1
    for own, ranks in ends.items():
        for rank in ranks:
            e = explain(run, rank)
            assert e.figures.tokens_per_s_per_gpu == pytest.approx(e.row["tokens_per_s_per_gpu"], rel=1e-9)
            assert (e.choice.cluster.num_nodes, e.choice.cluster.network.nic_bytes_per_s) == own
    shown = content(run)
    assert shown["notes"] == [] and columns(shown["rows"])["rank"][0] == 1
