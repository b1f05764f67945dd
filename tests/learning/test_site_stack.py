"""What is learned from runs of software that no file describes; here software made up from a shipped file."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from primus_search.cost.confidence.switch_evidence import shape_of
from primus_search.cost.confidence.uncertainty import (
    MODEL_ERROR,
    band,
    most_ratio,
    own_regime,
    places_of,
    run_ratio,
    site_ratio,
)
from primus_search.cost.project import Projector
from primus_search.evidence.validate.score_runs import ScoredRun, project_runs
from primus_search.evidence.validate.undescribed import undescribed_mixtures
from primus_search.files.hardware_files import load_cluster, load_stack
from primus_search.files.word_rules import hardware_named
from primus_search.learning.inference.hypotheses import (
    NUMBERS,
    RACE_POWER,
    at,
    coordinates,
    rates_and_slopes,
    shipped_hypotheses,
)
from primus_search.learning.inference.posterior import update
from primus_search.learning.inference.projected_runs import evidence_of, lines_of, log_rates, reference_of
from primus_search.learning.inference.shared_errors import RunGroup, heard, rows_of
from primus_search.learning.site_stack import SiteStack, learn_stack, suggested_by, variant_settings
from primus_search.learning.stack_text import stack_yaml
from primus_search.models.model_files import load_model
from primus_search.values.candidates import Candidates
from primus_search.values.machine.stack import OwnRun, Stack, number_of, with_numbers
from primus_search.values.measured_run import MeasuredRun, Measurement, Provenance, on_stack
from primus_search.values.workload import Workload

SOFTWARE = "megatron_te"
COPIES = (SOFTWARE, "megatron_lm")
"""The file that the made-up software starts from, and the one that copies its numbers: neither may help."""


def made_up() -> Stack:
    """Slower products, a slower host: numbers that no shipped file has."""
    numbers = {"gemm_efficiency": 0.7, "memory_efficiency": 0.35, "host_launch_s": 25e-6}
    return with_numbers(load_stack(SOFTWARE), numbers)


@cache
def runs() -> list[MeasuredRun]:
    """Runs of the made-up software, measured by projection with 1 % of noise."""
    rng = np.random.default_rng(5)
    found = []
    for model in ("llama3_8b", "llama2_13b"):
        for tp, micro in ((1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (4, 4), (8, 2), (8, 4)):
            cluster = load_cluster("h100", 4, made_up())
            workload = Workload(seq_length=4096, global_batch_size=256)
            table = Candidates.from_words({"tp": tp, "micro_batch_size": micro, "sequence_parallel": tp > 1})
            run = MeasuredRun(
                model=load_model(model),
                cluster=cluster,
                workload=workload,
                candidates=table,
                measured=Measurement(),
                provenance=Provenance(id=f"{model}-{tp}-{micro}"),
                hardware="h100",
                framework="megatron-lm",
            )
            projection = Projector(reference_of(run).job).project(table)
            rate = float(projection.tokens_per_s_per_gpu[0]) * float(np.exp(0.01 * rng.standard_normal()))
            peak = float(projection.memory.driver[0])
            measured = Measurement(tokens_per_s_per_gpu=rate, peak_bytes=peak, peak_kind="driver", noise=0.01)
            found.append(replace(run, measured=measured))
    return found


def scored(site: SiteStack, held_out: list[MeasuredRun]) -> list[ScoredRun]:
    """Runs at the rates that are expected on the learned stack, with their bands."""
    return project_runs([on_stack(run, site.stack) for run in held_out])[0]


def errors(site: SiteStack, held_out: list[MeasuredRun]) -> np.ndarray:
    """Relative errors of the rates that are expected on the learned stack."""
    return np.array([row.error for row in scored(site, held_out)])


@pytest.fixture(scope="module")
def learned() -> SiteStack:
    return learn_stack("mine", runs()[::3], framework="megatron-lm", without=COPIES)


def test_a_few_runs_bring_the_projection_near(learned: SiteStack) -> None:
    every = runs()
    taught = {run.id for run in learned.runs}
    held_out = [run for run in every if run.id not in taught]
    cluster = held_out[0].cluster
    untaught = learn_stack("mine", [], framework="megatron-lm", without=COPIES, cluster=cluster)
    before, after = np.abs(errors(untaught, held_out)), np.abs(errors(learned, held_out))
    assert np.median(after) < 0.05
    assert np.median(after) < 0.5 * np.median(before)


def test_the_band_holds_what_was_held_out(learned: SiteStack) -> None:
    rows = scored(learned, [run for run in runs() if run not in learned.runs])
    assert np.mean([row.is_inside for row in rows]) >= 0.85
    assert all(row.interval[1] / row.interval[0] < 2.0 for row in rows)


def test_without_runs_the_posterior_is_the_prior() -> None:
    hypotheses = shipped_hypotheses("torchtitan")
    posterior = update(evidence_of(hypotheses, []))
    prior = np.tile(np.exp([h.log_prior for h in hypotheses]), 2)
    assert posterior.weights == pytest.approx(prior / prior.sum())
    assert not any(moved.any() for moved in posterior.moved)


@pytest.mark.in_turn
def test_the_order_of_runs_does_not_matter(learned: SiteStack) -> None:
    again = learn_stack("mine", learned.runs[::-1], framework="megatron-lm", without=COPIES)
    assert again.chosen.name == learned.chosen.name
    assert coordinates(again.stack) == pytest.approx(coordinates(learned.stack), abs=1e-6)


def test_more_runs_never_widen_what_is_known_of_a_number() -> None:
    hypotheses = shipped_hypotheses()[:2]
    few, many = (update(evidence_of(hypotheses, runs()[:k])) for k in (2, 6))
    for before, after in zip(few.covariances, many.covariances, strict=True):
        assert np.all(np.diag(after) <= np.diag(before) + 1e-12)


def test_the_file_gives_the_stack_back(tmp_path: Path, learned: SiteStack) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(stack_yaml(learned, "2026-01-01"), encoding="utf-8")
    loaded = load_stack(str(path))
    assert loaded.name == "mine"
    for number in NUMBERS:
        expected = float(number_of(learned.stack, number.field))
        assert float(number_of(loaded, number.field)) == pytest.approx(expected, rel=1e-5, abs=1e-12), number.field
    assert set(loaded.errors) == set(learned.stack.errors)
    assert loaded.kernels == learned.stack.kernels
    assert set(loaded.own_runs) == {run.id for run in learned.runs}


def test_slopes_are_those_of_the_projection() -> None:
    """Moved by a finite step the linear model follows the projection to second order."""
    run = runs()[5]
    job = reference_of(run).job
    ((rates, slopes),) = rates_and_slopes(job, [job.stack], run.candidates)
    x = coordinates(job.stack)
    for j, number in enumerate(NUMBERS):
        moved = x.copy()
        moved[j] += 0.05 if number.speed or not number.is_share else 0.0
        stack = at(job.stack, moved)
        if number_of(stack, number.field) == number_of(job.stack, number.field):
            continue
        ((there, _),) = rates_and_slopes(job, [stack], run.candidates)
        assert there[0] == pytest.approx(rates[0] + slopes[0] @ (moved - x), abs=3e-3), number.field


def test_software_older_than_the_device_counts_less() -> None:
    found = {h.name: h.log_prior for h in shipped_hypotheses(archs={"gfx950"})}
    assert found["megatron_2023"] < found["torchtitan"] < found["primus_megatron"]
    assert found["megatron_deepspeed"] < found["nemo_2024"]
    assert {h.log_prior for h in shipped_hypotheses() if not h.kind and h.stack.errors} >= {0.0}


def test_habits_that_no_file_has_are_written(tmp_path: Path, learned: SiteStack) -> None:
    slow = next(h for h in shipped_hypotheses() if h.kind == "no fused kernels")
    path = tmp_path / "mine.yaml"
    path.write_text(stack_yaml(replace(learned, chosen=slow, stack=slow.stack), "2026-01-01"), encoding="utf-8")
    assert load_stack(str(path)).kernels == slow.stack.kernels
    assert load_stack(str(path)).host.host_race_power == slow.stack.host.host_race_power


@pytest.mark.in_turn
def test_quantiles_of_the_mixture_enclose_its_mean() -> None:
    hypotheses = shipped_hypotheses("nemo")
    references = [reference_of(run) for run in runs()[:3]]
    posterior = update(evidence_of(hypotheses, runs()[3:5]))
    lines = lines_of([h.stack for h in posterior.hypotheses], references)
    mixture = posterior.rates(lines, rows_of(references))
    low, middle, high = (mixture.quantile(share) for share in (0.05, 0.5, 0.95))
    assert np.all(low < middle) and np.all(middle < high)
    assert np.all(high - low > 2.0 * MODEL_ERROR)


@pytest.mark.parametrize(
    ("printed", "file"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100-SXM5-80GB", "h100"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA A100-SXM4-40GB", "a100_40"),
        ("NVIDIA A100-SXM4-80GB", "a100_80"),
        ("NVIDIA B200", "b200"),
        ("AMD Instinct MI300X", "mi300x"),
        ("MI355X", "mi355x"),
        ("Tesla V100-SXM2", None),
        ("NVIDIA GeForce RTX 5090", None),
    ],
)
def test_printed_devices_find_their_file(printed: str, file: str | None) -> None:
    assert hardware_named(printed) == file


@pytest.mark.in_turn
def test_what_runs_say_of_a_model_counts_for_other_rows_of_it() -> None:
    """Runs of one model at 0.8 of the software's rate: other rows of it are known better than those of another."""
    hypotheses = shipped_hypotheses("megatron-lm", COPIES)
    ours = [run for run in runs() if run.model.name == "llama3_8b"]
    rates = [0.8 * run.tokens_per_s_per_gpu for run in ours]
    slow = [replace(r, measured=replace(r.measured, tokens_per_s_per_gpu=x)) for r, x in zip(ours, rates, strict=True)]
    posterior = update(evidence_of(hypotheses, slow[:6]))
    references = [reference_of(run) for run in ours[6:]]
    lines = lines_of([h.stack for h in posterior.hypotheses], references)
    known, unknown = (
        posterior.rates(lines, replace(rows_of(references), groups=(group,) * 2))
        for group in (posterior.groups[0], RunGroup(shape="another", device="H100", is_moe=False))
    )
    assert np.all(known.quantile(0.95) - known.quantile(0.05) < unknown.quantile(0.95) - unknown.quantile(0.05))
    assert np.abs(known.mean - np.log(rates[6:])).max() < 0.1


def test_the_rate_of_a_row_near_a_run_follows_what_the_stack_leaves_of_it(learned: SiteStack) -> None:
    """All coordinates of a run that was twice as fast as the stack expects: the nearer a row, the more of it counts."""
    run = runs()[0]
    taught = OwnRun(
        regime=own_regime(shape_of(run.model), run.cluster.accelerator.name),
        place=tuple(places_of(run.job, run.candidates)[0].tolist()),
        ratio=2.0,
    )
    stack = replace(learned.stack, own_runs={"one": taught})
    job = replace(run.job, cluster=replace(run.cluster, stack=stack))
    table = Candidates.from_words({"micro_batch_size": 2})
    near = [float(run_ratio(job, one)[0]) for one in (run.candidates, table, Candidates.from_words({"tp": 8}))]
    assert near[0] == pytest.approx(2.0) and near[0] > near[1] > near[2] > 1.0
    assert most_ratio(job.cluster, job.model) == pytest.approx(2.0 * site_ratio(job.cluster, job.model))
    assert run_ratio(replace(job, model=load_model("llama2_13b")), table).tolist() == [1.0]


def test_a_learned_stack_claims_runs_of_a_family_that_it_saw_alone(learned: SiteStack) -> None:
    errors = learned.stack.errors
    assert errors["moe"].runs == 0.0 < errors["dense"].runs
    own = [band for name, band in errors.items() if name.endswith(" on H100")]
    assert own and sum(band.runs for band in own) == errors["dense"].runs
    assert all(band.high / band.low < errors["moe"].high / errors["moe"].low for band in own)


@pytest.mark.in_turn
def test_runs_that_contradict_each_other_are_noticed_and_widen_the_bands(learned: SiteStack) -> None:
    first, second, *others = runs()[:4]
    halved = replace(second.measured, tokens_per_s_per_gpu=0.4 * second.tokens_per_s_per_gpu)
    twin = replace(second, measured=halved, provenance=replace(second.provenance, id="twin"))
    torn = learn_stack("mine", [first, second, twin, *others], framework="megatron-lm", without=COPIES)
    agreed, wider = (np.log(one.stack.errors["dense"].high / one.stack.errors["dense"].low) for one in (learned, torn))
    assert not learned.warning
    assert "its own runs" in torn.warning
    assert wider > 1.5 * agreed


@pytest.mark.in_turn
def test_software_that_is_one_factor_off_its_file_is_learned_as_that() -> None:
    """Every rate at 0.85 of a file's: two runs of one model tell those of another within 9 %."""
    every = [replace(run, cluster=replace(run.cluster, stack=load_stack(SOFTWARE))) for run in runs()]
    rates = [0.85 * float(np.exp(log_rates(run.cluster.stack, [reference_of(run)])[0])) for run in every]
    slow = [replace(r, measured=replace(r.measured, tokens_per_s_per_gpu=x)) for r, x in zip(every, rates, strict=True)]
    posterior = update(evidence_of(shipped_hypotheses(suggested=SOFTWARE), slow[:2]))
    others = [reference_of(run) for run in slow[8:]]
    mixture = posterior.rates(lines_of([h.stack for h in posterior.hypotheses], others), rows_of(others))
    assert np.abs(mixture.mean - np.log(rates[8:])).max() < 0.09


def test_the_rate_to_expect_after_own_runs_is_the_middle_of_their_band(learned: SiteStack) -> None:
    run = runs()[0]
    cluster = replace(run.cluster, stack=learned.stack)
    found = band(cluster, run.model, 0)
    assert site_ratio(cluster, run.model) == pytest.approx(np.sqrt(found.low * found.high))


@cache
def as_expected() -> list[MeasuredRun]:
    """The same runs of shipped software, at the rates that first contact expects."""
    every = [replace(run, cluster=replace(run.cluster, stack=load_stack(SOFTWARE)), framework=None) for run in runs()]
    rates = [float(np.exp(log_rates(r.cluster.stack, [reference_of(r)])[0])) for r in every]
    return [at_rate(run, expected_ratio(run) * rate) for run, rate in zip(every, rates, strict=True)]


def expected_ratio(run: MeasuredRun) -> float:
    assert run.cluster.site is not None
    return run.cluster.site.mean_ratio


def at_rate(run: MeasuredRun, rate: float) -> MeasuredRun:
    return replace(run, measured=replace(run.measured, tokens_per_s_per_gpu=rate))


@pytest.mark.in_turn
def test_a_run_as_first_contact_expects_leaves_the_rates_of_others_alone() -> None:
    usual = as_expected()
    site = learn_stack("mine", usual[:1])
    assert site.chosen.stack.name == SOFTWARE
    assert np.abs(errors(site, usual[1:])).max() < 0.02
    assert site.learned.startswith(f"any new cluster {expected_ratio(usual[0]) - 1.0:+.1%}, kernels")


def as_mixed(factor: float) -> list[MeasuredRun]:
    """The same runs of software that no file describes, at the rates of the mixture over stacks times a factor."""
    stack = replace(load_stack("torchtitan"), is_assumed=True)
    every = [replace(run, cluster=replace(run.cluster, stack=stack), framework=None) for run in runs()]
    mixed = undescribed_mixtures([reference_of(run) for run in every])
    rates = [one.rate(run.model, run.cluster.site).rate for run, one in zip(every, mixed, strict=True)]
    return [at_rate(run, factor * rate) for run, rate in zip(every, rates, strict=True)]


@pytest.mark.in_turn
@pytest.mark.parametrize("place", [0, 5, 12])
def test_a_run_of_undescribed_software_as_expected_leaves_the_others_where_they_were(place: int) -> None:
    """What stands for the mixture afterwards is one stack: its rates are the mixture's, not its file's."""
    every = as_mixed(1.0)
    taught, others = every[place], every[:place] + every[place + 1 :]
    site = learn_stack("mine", [taught])
    file = load_stack(site.chosen.stack.name)
    by_file = np.exp([log_rates(file, [reference_of(run)])[0] for run in others])
    off = np.abs(by_file / [run.tokens_per_s_per_gpu for run in others] - 1.0)
    assert np.median(np.abs(errors(site, others))) < min(0.04, 0.6 * np.median(off))


def test_what_a_run_is_known_to_be_holds_on_a_stack_that_was_learned_otherwise(tmp_path: Path) -> None:
    """Eager runs taught a stack: compiled ones of the same software stay compiled, those of unknown software do not."""
    eager, compiled = load_stack("torchtitan@eager"), load_stack("torchtitan")
    assert number_of(eager, "has_fused_norm") != number_of(compiled, "has_fused_norm")
    known = [replace(run, cluster=replace(run.cluster, stack=compiled), framework=None) for run in as_mixed(1.0)[:2]]
    taught = [replace(run, cluster=replace(run.cluster, stack=eager)) for run in known]
    site = learn_stack("mine", taught[:1])
    (tmp_path / "mine.yaml").write_text(stack_yaml(site, "2026-11-29"))
    for stack in (site.stack, load_stack(str(tmp_path / "mine.yaml"))):
        own, unknown = on_stack(known[1], stack), on_stack(as_mixed(1.0)[1], stack)
        assert all(number_of(own.cluster.stack, name) == number_of(compiled, name) for name in eager.varied)
        assert all(number_of(unknown.cluster.stack, name) == number_of(eager, name) for name in eager.varied)


@pytest.mark.in_turn
@pytest.mark.parametrize("off", [-0.06, 0.06])
@pytest.mark.parametrize("place", [0, 10])
def test_one_run_that_is_off_makes_no_cluster_that_was_met_worse(place: int, off: float) -> None:
    """A run's own error must not move the others by more than a point in the median."""
    every = as_expected()
    taught, others = every[place], every[:place] + every[place + 1 :]
    site = learn_stack("mine", [at_rate(taught, taught.tokens_per_s_per_gpu * float(np.exp(off)))])
    assert np.median(np.abs(errors(site, others))) < 0.01


@pytest.mark.in_turn
@pytest.mark.parametrize("factor", [0.7, 1.4])
def test_one_run_of_a_cluster_that_is_far_off_brings_the_others_near(factor: float) -> None:
    every = [at_rate(run, factor * run.tokens_per_s_per_gpu) for run in as_expected()]
    site = learn_stack("mine", every[:1])
    assert np.median(np.abs(errors(site, every[1:]))) < 0.8 * abs(1.0 / factor - 1.0)


@pytest.mark.in_turn
def test_runs_that_agree_teach_more_the_more_they_are() -> None:
    """All runs of a model 8 % slow: after one, two and four the others are nearer each time, at last within 2.2 %."""
    slow = [at_rate(run, float(np.exp(-0.08)) * run.tokens_per_s_per_gpu) for run in as_expected()[:8]]
    left = [np.median(np.abs(errors(learn_stack("mine", slow[:count]), slow[4:]))) for count in (1, 2, 4)]
    assert left[0] > left[1] > left[2] and left[2] < 0.022


def test_a_run_that_is_far_off_alone_counts_less_than_where_others_are_as_far() -> None:
    """A configuration may be far off; a cluster is where all of its runs are."""
    every = as_expected()
    near, far = (heard(every[:1], np.array([off])) for off in (-0.4, -1.2))
    assert far < near < heard(every[:4], np.full(4, -0.4))


@pytest.mark.in_turn
@pytest.mark.parametrize("factor", [0.7, 1.3])
def test_runs_of_dense_models_leave_experts_where_first_contact_has_them(factor: float) -> None:
    every = as_expected()
    experts = [replace(run, model=load_model("mixtral_8x7b")) for run in every[:8]]
    site = learn_stack("mine", [at_rate(run, factor * run.tokens_per_s_per_gpu) for run in every[:3]])
    first = np.exp([log_rates(site.chosen.stack, [reference_of(run)])[0] for run in experts])
    ratios = [row.predicted / rate for row, rate in zip(scored(site, experts), first, strict=True)]
    assert abs(np.log(np.median(ratios) / expected_ratio(every[0]))) < 0.2 * abs(np.log(factor))


@pytest.mark.in_turn
def test_a_stack_named_wrongly_is_doubted_when_its_runs_say_so() -> None:
    taught = runs()[::2]
    wrong, right = (learn_stack("mine", taught, base=base) for base in ("deepspeed_2021", SOFTWARE))
    assert "hardly of deepspeed_2021" in wrong.doubt
    assert wrong.stack.name == "mine" and wrong.chosen.stack.name == "deepspeed_2021"
    assert not right.doubt and not right.warning


def test_records_point_to_a_stack_and_logs_of_a_launcher_do_not() -> None:
    records = [replace(run, framework=None) for run in runs()[:3]]
    assert suggested_by(records) == SOFTWARE
    assert suggested_by(records, without=[SOFTWARE]) is None
    assert suggested_by(runs()[:3]) is None


@pytest.mark.in_turn
def test_habits_of_the_runs_variant_are_learned_with_and_written(tmp_path: Path) -> None:
    eager = load_stack("torchtitan@2025-eager")
    every = [replace(run, cluster=replace(run.cluster, stack=eager), framework=None) for run in runs()[:6]]
    # Under tensor parallelism its DTensors keep the host busy; what is learned races host and device so (hypotheses).
    truth = with_numbers(eager, {"host_race_power": RACE_POWER})
    rates = np.exp([log_rates(truth, [reference_of(run)])[0] for run in every]).tolist()
    every = [
        replace(run, measured=replace(run.measured, tokens_per_s_per_gpu=rate))
        for run, rate in zip(every, rates, strict=True)
    ]
    site = learn_stack("mine", every[:3], base="torchtitan")
    (tmp_path / "mine.yaml").write_text(stack_yaml(site, "2026-11-24"))
    for stack in (site.stack, load_stack(str(tmp_path / "mine.yaml"))):
        assert {field: number_of(stack, field) for field in eager.varied} == eager.varied
    assert (
        np.abs(errors(site, every[3:])).max() < 0.033
    )  # three runs leave a little more than 1 / (1 + z) of the move (`heard`)
    plain = replace(every[0], cluster=replace(every[0].cluster, stack=load_stack("torchtitan@eager")))
    assert variant_settings([every[0], plain]) == {k: v for k, v in eager.varied.items() if k != "attention_kernel"}
