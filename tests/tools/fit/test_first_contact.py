"""Errors at first contact: the fit finds what errors were drawn with, and makers do not move it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from primus_search.cost.confidence.uncertainty import NOTHING, Exposed
from primus_search.evidence.published.convert import measured_table, validated
from primus_search.evidence.validate.score_runs import project_runs
from primus_search.evidence.validate.undescribed import Undescribed
from primus_search.files.evidence_files import load_sites
from tools.fit.first_contact import LeftOut, Seen, fitted_errors, is_maker, left_out_trainers, seen, verdicts, words

DATA = Path("tests/oracle/data")
SITES = Path("hardware/sites/first_contact.yaml")
STRANGERS = [Path("../shared/measurements") / name for name in ("first_contact.csv", "first_contact_2.csv")]
IN_NO_FIT = ("unseen_runs_4.csv", "blind_runs.csv", "blind_trainers.csv", "oom_runs.csv", "hybrid_runs.csv")


def test_the_fit_finds_the_shift_and_the_deviations_that_errors_were_drawn_with() -> None:
    """Of site, group, configuration, stack and exposed shares; makers have a shift of their own."""
    shift, parts = -0.06, {"site": 0.10, "group": 0.08, "configuration": 0.06}
    stack_share, exchange = 0.4, 0.5
    rng = np.random.default_rng(0)
    tables = {run.model.is_moe: run for name in ("unseen_runs.csv",) for run in measured_table(DATA / name).runs}
    publishers: dict[str, list[Seen]] = {}
    for number in range(450):
        is_maker, half = number % 3 == 0, rng.choice([0.1, 0.5])
        run = tables[bool(number % 2)]
        tail, rows = 1.0 / np.sqrt(rng.chisquare(5.0) / 5.0), list[Seen]()
        site = parts["site"] * rng.standard_normal()
        for model in ("a", "b", "c"):
            named = replace(run.model, name=model, hidden=run.model.hidden + 128 * len(rows))
            group = parts["group"] * rng.standard_normal()
            for degree in (1, 2, 4):
                share = rng.choice([0.0, 0.4])
                table = replace(run.candidates, micro_batch_size=np.array([degree]))
                extra = np.hypot(stack_share * half, exchange * share)
                rest = float(np.sqrt(sum(part**2 for part in parts.values())))
                own = site + group + parts["configuration"] * rng.standard_normal()
                error = tail * own * np.hypot(1.0, extra / rest)
                rows.append(
                    Seen(
                        run=replace(run, model=named, candidates=table),
                        error=float(error) + (0.05 if is_maker else shift),
                        mixture=None,
                        exposed=Exposed(host=np.zeros(1), exchange=np.array([share])),
                        stack_half=half,
                    )
                )
        publishers[f"{'NVIDIA' if is_maker else 'operator'}-{number}"] = rows
    found = fitted_errors(publishers, ["NVIDIA"], load_sites().errors)
    assert np.log(found.mean_ratio) == pytest.approx(shift, abs=0.04)
    assert (found.site, found.group, found.configuration) == pytest.approx(tuple(parts.values()), rel=0.3)
    assert (found.stack_share, found.exchange) == pytest.approx((stack_share, exchange), rel=0.3)


def test_distances_of_stacks_a_run_may_be_of_are_no_deviation_of_its_software() -> None:
    """Runs lie around one of two stacks that are .8 apart: the deviation is the one around either."""
    rest, software, rng = 0.08, 0.12, np.random.default_rng(0)
    run = next(iter(measured_table(DATA / "unseen_runs.csv").runs))
    larger = replace(run.candidates, micro_batch_size=np.array([64]))
    kin = replace(run, model=replace(run.model, name="b", hidden=128)), replace(run, candidates=larger)
    publishers: dict[str, list[Seen]] = {}
    for number in range(400):
        is_named, tail = bool(number % 2), 1.0 / np.sqrt(rng.chisquare(5.0) / 5.0)
        ends, own = np.array([-0.4, 0.4]), rng.integers(2)
        error = tail * rng.standard_normal() * (rest if is_named else np.hypot(rest, software))
        error += 0.0 if is_named else ends[own]
        logs = np.log(run.tokens_per_s_per_gpu) - error + ends
        mixture = None if is_named else Undescribed(weights=np.full(2, 0.5), logs=logs, names=("a", "b"))
        one = Seen(run=run, error=error, mixture=mixture, exposed=NOTHING, stack_half=0.0)
        publishers[str(number)] = [replace(one, run=other) for other in (run, *kin)]
    found = fitted_errors(publishers, [], load_sites().errors)
    assert found.software == pytest.approx(software, rel=0.3)


def test_no_shift_of_an_earlier_fit_is_in_an_error() -> None:
    """A stranger's run on software with a file: expected with the shipped shift, its error is of the projection."""
    runs = measured_table(DATA / "unseen_runs_4.csv").runs
    stranger = next(run for run in runs if run.has_rate and run.cluster.site and not run.cluster.stack.is_assumed)
    (row,), _ = project_runs([stranger])
    error = np.log(stranger.tokens_per_s_per_gpu / row.projection.tokens_per_s_per_gpu[0])
    assert Seen.of(row, None).error == pytest.approx(error)
    assert -np.log1p(row.error) == pytest.approx(error - np.log(load_sites().errors.mean_ratio))


def test_a_device_vendor_is_a_maker_and_an_operator_is_not() -> None:
    makers = words(SITES, "makers")
    assert is_maker("NVIDIA/NeMo", makers)
    assert not is_maker("awslabs/awsome-distributed-training", makers)


def test_verdicts_count_every_configuration_of_a_stranger_once() -> None:
    table = DATA / "unseen_runs_3.csv"
    known, makers = validated(table), words(SITES, "makers")
    ran, every = len(known.rows) + len(known.memory_only), verdicts([table, table], [])
    assert every.endswith(f" of {ran} that ran OOM") and f" of {len(known.ran_out)} that ran out" in every
    assert every != verdicts([table], makers)


@pytest.fixture(scope="module")
def left_out() -> LeftOut:
    """Whole publishers left out, and whole stack files as software that nobody described."""
    rows = seen(DATA / "trained_on.txt", [*STRANGERS, *(DATA / name for name in IN_NO_FIT)])
    makers = words(SITES, "makers")
    return LeftOut.of(rows + left_out_trainers(rows, makers), makers)


beside = pytest.mark.skipif(
    not all(path.exists() for path in STRANGERS), reason="strangers' runs are not beside this checkout"
)


@pytest.mark.full
@beside
def test_bands_made_of_the_others_hold_nine_of_ten_runs_of_every_kind_of_stranger(left_out: LeftOut) -> None:
    regimes = left_out.by_regime()
    inside = {label: figures[5] for label, (_, figures) in regimes.items()}
    assert 0.85 <= inside.pop("all") <= 0.95 and regimes["all"][1][6] <= 0.33
    assert min(inside.values()) >= 0.80, inside
    trainers = [name for name in left_out.publishers if left_out.kind(name) == "trainer left out"]
    assert 0.85 <= float(np.mean([own[5] for own in left_out.figures(trainers).values()])) <= 0.95
