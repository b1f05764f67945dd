"""Runs collected after the model stood, each predicted by numbers fitted without its source; and runs no fit has seen.

`trained_on.txt` lists the tables that numbers come from. All but one were collected after the model stood and were
tests once: unseen_runs.csv, two halves dealt by a hash of their source (unseen_runs_2.csv, unseen_runs_3.csv), half of
a set of NVIDIA's stacks (unseen_runs_5.csv). Having been looked at they are trained on, and judged as any other run:
left out with their whole source. `TRAINERS`, half of a set of torch's and JAX's trainers, was looked at and is in no
fit: it is projected with the numbers as they are. So are `BLIND` and `BLIND_TRAINERS`, the other halves of these two
sets, which nobody looked at until every number was fitted. The bounds are what is promised; where one does not hold,
the mark says by how much, and lifts itself by failing when it does.
"""

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtri

from primus_search.cost.confidence.fit import DEVIATIONS_TO_END, FIT_THRESHOLD
from primus_search.cost.confidence.uncertainty import memory_error
from primus_search.evidence.published.convert import validated
from primus_search.evidence.validate.score_runs import ScoredRun, Validation
from primus_search.evidence.validate.scores import duplicate_weights, score
from primus_search.evidence.validate.summary import are_inside, coverage, groups, memory_summary, summary
from tools.fit.training_run import left_out_rates

DATA = Path(__file__).parent / "data"
BLIND, BLIND_TRAINERS = "blind_runs.csv", "blind_trainers.csv"
LATER, FIRST_HALF, OTHER_HALF = "unseen_runs.csv", "unseen_runs_2.csv", "unseen_runs_3.csv"
NVIDIA, TRAINERS = "unseen_runs_5.csv", "unseen_runs_4.csv"
COLLECTED_LATER = (LATER, FIRST_HALF, OTHER_HALF, NVIDIA)
MEDIAN, P90, BIAS = 0.072, 0.22, 0.02  # 7.07 % of unseen_runs_3 since buckets grow with the data-parallel size
LEAST_COVERED, MOST_COVERED = 0.85, 0.95
PEAK_MEDIAN, PEAK_P90, PEAK_BIAS = 0.04, 0.10, 0.03
FALSE_OOM, FALSE_FIT = 0.01, 0.03
REGIMES = ("gpu", "precision", "family", "stack x family")
REGIME_RUNS, REGIME_LEAST = 10, 0.80
"""Of regimes with so many runs bands hold no fewer than this: a few odd runs weigh 10 %."""
WHOLE_EXPERTS = "recompute 'selective:layernorm,moe' is not known"
"""Recompute of whole expert layers, which no candidate has."""


def missed(reason: str) -> pytest.MarkDecorator:
    return pytest.mark.xfail(strict=True, raises=AssertionError, reason=reason)


@lru_cache(maxsize=1)
def left_out() -> Validation:
    """Every run of every table, its rate and band from runs of other sources: half a minute, its tests are `full`."""
    whole = validated(DATA / "trained_on.txt")
    return whole.with_rates(left_out_rates([row.run for row in whole.rows], "source"))


@lru_cache(maxsize=4)
def of(table: str) -> Validation:
    """The runs of one table among them."""

    def mine(rows: tuple[ScoredRun, ...]) -> tuple[ScoredRun, ...]:
        return tuple(row for row in rows if Path(row.run.provenance.table).name == table)

    whole = left_out()
    skipped = tuple(one for one in whole.skipped if Path(one.place[0]).name == table)
    return Validation(
        rows=mine(whole.rows), skipped=skipped, memory_only=mine(whole.memory_only), ran_out=mine(whole.ran_out)
    )


def must_be_as_promised(outcome: Validation) -> None:
    figures = score(outcome.errors, outcome.weights)
    assert figures.median_abs_error <= MEDIAN
    assert figures.p90_abs_error <= P90
    assert abs(figures.bias) <= BIAS


def peaks_must_be_as_promised(outcome: Validation) -> None:
    memory = memory_summary(outcome)
    assert memory["median_abs_error"] <= PEAK_MEDIAN
    assert memory["p90_abs_error"] <= PEAK_P90
    assert abs(memory["bias"]) <= PEAK_BIAS


def verdicts_must_be_as_promised(outcome: Validation) -> None:
    memory = memory_summary(outcome)
    assert not memory["ran"] or memory["false_oom"] <= FALSE_OOM
    assert not memory["ran_out"] or memory["false_fit"] <= FALSE_FIT


@pytest.mark.full
def test_every_row_is_read() -> None:
    assert {one.id: one.reason for one in of(FIRST_HALF).skipped} == {"h800q-10": WHOLE_EXPERTS}
    assert (len(of(LATER).rows), len(of(LATER).skipped)) == (42, 0)
    assert (len(of(FIRST_HALF).rows), len(of(FIRST_HALF).ran_out)) == (72, 11)
    assert len(of(OTHER_HALF).skipped) == 4
    assert (len(of(OTHER_HALF).rows), len(of(OTHER_HALF).ran_out)) == (31, 7)
    assert of(NVIDIA).skipped == ()
    assert (len(of(NVIDIA).rows), len(of(NVIDIA).memory_only), len(of(NVIDIA).ran_out)) == (113, 1, 2)


@pytest.mark.full
@pytest.mark.parametrize(
    "table",
    [
        LATER,
        pytest.param(FIRST_HALF, marks=missed("10.0 / 28.8 / -2.0 % as first projected, 8.6 / 17.1 / -2.1 % left out")),
        pytest.param(OTHER_HALF, marks=missed("7.201 % left out, 7.181 before a dispatch had one port of B300's NICs")),
        pytest.param(NVIDIA, marks=missed("9.9 / 46.7 % as first projected, 7.5 / 23.9 / +3.0 % left out")),
    ],
)
def test_tables_collected_later_are_met_as_promised(table: str) -> None:
    must_be_as_promised(of(table))


@pytest.mark.full
def test_bands_of_runs_left_out_hold_as_often_as_they_say() -> None:
    assert LEAST_COVERED <= coverage(left_out()) <= MOST_COVERED


@pytest.mark.full
def test_bands_of_the_tables_collected_later_hold_as_often_as_they_say() -> None:
    parts = [of(name) for name in COLLECTED_LATER]
    inside, weights = (np.concatenate(p) for p in zip(*((are_inside(o), o.weights) for o in parts), strict=True))
    assert LEAST_COVERED <= float((inside * weights).sum() / weights.sum()) <= MOST_COVERED


@pytest.mark.full
@missed("64 % of the 19 FP16 runs, Zero Bubble's and PaddlePaddle's; all others 80 % and more")
def test_bands_hold_in_every_regime_of_ten_runs() -> None:
    found = [g for g in groups(left_out()) if g["grouping"] in REGIMES and g["rows"] >= REGIME_RUNS]
    assert {g["group"]: g["coverage_90"] for g in found if g["coverage_90"] < REGIME_LEAST} == {}


@pytest.mark.full
@pytest.mark.parametrize(
    "table",
    [
        pytest.param(FIRST_HALF, marks=missed("10.1 / 30.5 / -8.2 % as first projected, 5.2 / 19.3 / +3.0 % now")),
        pytest.param(OTHER_HALF, marks=missed("29.8 / 91.8 / -3.5 % as first projected, 4.3 / 16.7 / -3.6 % now")),
        NVIDIA,
    ],
)
def test_peaks_of_tables_collected_later_are_met_as_promised(table: str) -> None:
    peaks_must_be_as_promised(of(table))


@pytest.mark.full
@pytest.mark.parametrize(
    "table",
    [
        LATER,
        FIRST_HALF,
        OTHER_HALF,
        pytest.param(
            NVIDIA,
            marks=missed(
                "2 of 2 that ran out are said to fit, experts under FSDP: what Megatron-FSDP and Automodel hold"
            ),
        ),
    ],
)
def test_hardly_any_verdict_is_wrong(table: str) -> None:
    verdicts_must_be_as_promised(of(table))


@pytest.mark.full
def test_peaks_of_assumed_software_lie_where_its_verdicts_expect_them() -> None:
    """A run fits any device as large as its peak: of those said to fit one with a probability of 0.9, as many do."""
    rows = [row for row in (*left_out().rows, *left_out().memory_only) if row.run.cluster.stack.is_assumed]
    ran, peaks = [], []
    for row in rows:
        error, pair = memory_error(row.run.cluster, row.run.model), row.memory
        if pair is not None:
            assert error is not None
            spread = np.hypot(row.run.cluster.accelerator.footprint.spread, np.log(error.high) / DEVIATIONS_TO_END)
            ran.append(pair[1] <= pair[0] * np.exp(spread * ndtri(FIT_THRESHOLD)))
            peaks.append(row.run.duplicate_key)
    weights = duplicate_weights(peaks)
    assert weights.sum() >= 25
    assert float((weights * ran).sum() / weights.sum()) >= 0.85


# --- looked at, in no fit: torchtitan on GB300, MaxText, XTuner, ms-swift and others of 2025 and 2026 -----------------


@lru_cache(maxsize=1)
def trainers() -> Validation:
    return validated(DATA / TRAINERS)


@pytest.mark.in_turn("trainers")
def test_every_row_of_torchs_and_jaxs_trainers_is_read() -> None:
    assert trainers().skipped == ()
    assert (len(trainers().rows), len(trainers().memory_only), len(trainers().ran_out)) == (75, 7, 15)


@pytest.mark.in_turn("trainers")
@missed("20.3 and 67.1 % as first projected, 12.8 and 32.8 % now: experts of torchtitan, GPT-OSS in FP8 on MI355X")
def test_errors_of_torchs_and_jaxs_trainers_are_as_small_as_promised() -> None:
    figures = summary(trainers())
    assert figures["median_abs_error"] <= MEDIAN
    assert figures["p90_abs_error"] <= P90


@pytest.mark.in_turn("trainers")
def test_bands_of_torchs_and_jaxs_trainers_hold_as_often_as_they_say() -> None:
    assert LEAST_COVERED <= coverage(trainers()) <= MOST_COVERED


@pytest.mark.in_turn("trainers")
@missed("30.2 and 75.4 % as first projected, 4.3 and 16.2 % now: XTuner keeps less than is counted, XLA more")
def test_peaks_of_torchs_and_jaxs_trainers_are_met_as_promised() -> None:
    peaks_must_be_as_promised(trainers())


@pytest.mark.in_turn("trainers")
@missed("37.5 % of what ran said OOM as first projected, one of 82 now: ZeRO-2 that filled its card")
def test_hardly_any_verdict_of_torchs_and_jaxs_trainers_is_wrong() -> None:
    verdicts_must_be_as_promised(trainers())


@pytest.mark.in_turn("trainers")
def test_nothing_that_ran_out_under_torchs_and_jaxs_trainers_is_said_to_fit() -> None:
    assert memory_summary(trainers())["false_fit"] == 0.0


# --- sealed until every number was fitted, projected once; in no fit --------------------------------------------------


@lru_cache(maxsize=2)
def unseen(table: str) -> Validation:
    return validated(DATA / table)


@pytest.mark.in_turn("blind")
def test_blind_rows_are_left_out_for_what_they_say_of_themselves_only() -> None:
    """Another card than the module, and five rows whose recompute is no setting; all were projected at first."""
    assert [one.id for one in unseen(BLIND).skipped] == ["k1m6-10"]
    assert (len(unseen(BLIND).rows), len(unseen(BLIND).memory_only), len(unseen(BLIND).ran_out)) == (49, 2, 0)
    assert {one.id.rsplit("-", 1)[0] for one in unseen(BLIND_TRAINERS).skipped} == {"k2-aomx", "k2-pds"}
    assert len(unseen(BLIND_TRAINERS).skipped) == 10
    assert (len(unseen(BLIND_TRAINERS).rows), len(unseen(BLIND_TRAINERS).ran_out)) == (112, 30)


@pytest.mark.in_turn("blind")
@pytest.mark.parametrize("table", [BLIND, BLIND_TRAINERS])
def test_errors_of_blind_runs_are_as_small_as_promised(table: str) -> None:
    """NVIDIA's stacks 6.5 and 19.3 % as first projected; by older code 9.6 and 29.3, the trainers 26.4 and 76.0 %, then
    11.6 and 36.2 until torch's grouped products had their rate on Blackwell."""
    figures = summary(unseen(table))
    assert figures["median_abs_error"] <= MEDIAN
    assert figures["p90_abs_error"] <= P90


@pytest.mark.in_turn("blind")
@pytest.mark.parametrize("table", [BLIND, BLIND_TRAINERS])
def test_blind_runs_are_projected_neither_too_fast_nor_too_slow_on_the_whole(table: str) -> None:
    """NVIDIA's stacks -0.4 % as first projected, trainers +8.3 %; AMD's rows of both tables are fitted since."""
    assert abs(summary(unseen(table))["bias"]) <= BIAS


@pytest.mark.in_turn("blind")
@pytest.mark.parametrize("table", [BLIND, BLIND_TRAINERS])
def test_bands_of_blind_runs_hold_as_often_as_they_say(table: str) -> None:
    """Torch's, JAX's and AMD's trainers 86.3 % as first projected; by older code 59 %."""
    assert LEAST_COVERED <= coverage(unseen(table)) <= MOST_COVERED


@pytest.mark.in_turn("blind")
@pytest.mark.parametrize(
    "table",
    [
        pytest.param(BLIND, marks=missed("two peaks, 11.5 / 16.4 / -11.5 % as first projected")),
        pytest.param(BLIND_TRAINERS, marks=missed("16.5 / 32.7 / -0.3 % as first projected, 10.8 / 34.5 / -4.1 % now")),
    ],
)
def test_blind_peaks_are_met_as_promised(table: str) -> None:
    peaks_must_be_as_promised(unseen(table))


@pytest.mark.in_turn("blind")
@pytest.mark.parametrize(
    "table",
    [
        BLIND,
        pytest.param(BLIND_TRAINERS, marks=missed("43.8 % of what ran out said to fit as first projected, 20 % now")),
    ],
)
def test_hardly_any_verdict_of_blind_runs_is_wrong(table: str) -> None:
    verdicts_must_be_as_promised(unseen(table))
