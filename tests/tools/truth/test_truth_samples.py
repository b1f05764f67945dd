"""What repeated steps say of a configuration's time on a machine whose cores are slow in spells.

A simulated machine of two cores: each is calm or `SLOW` times slower (its yardstick `SLOW_YARD` times), in spells of
random length, independent of the other. Steps of configurations of known length are trained on it as `truth.rounds`
does: a few at each visit, in an order of its own each round, with the yardstick before and after.
"""

from dataclasses import dataclass, field

import numpy as np
import pytest
from scipy.stats import kendalltau

from primus_search.measure.device.timing import PieceMeasurement
from tools.truth.samples import (
    SLOW_STEP,
    PieceSample,
    Sample,
    Yardstick,
    estimate,
    is_tight,
    lower_quartile,
    samples_of,
    undisturbed_piece,
    yardstick_of,
)

SLOW, SLOW_YARD, YARD_S, FINE_S = 1.5, 1.8, 0.0024, 0.005
YARD = Yardstick(calm_s=YARD_S)
LENGTH_S = 900.0
TRUE_S = np.geomspace(0.45, 1.1, 26)  # neighbours differ by 3.6 %


@dataclass
class Machine:
    """Two cores with slow spells; `now_s` runs on as steps are trained. Spells' mean lengths: calm_s, slow_s."""

    seed: int
    calm_s: float
    slow_s: float
    now_s: float = 0.0
    speeds: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self):
        self.random = np.random.default_rng(self.seed)
        for _ in range(2):
            count = int(2.0 * LENGTH_S / (self.calm_s + self.slow_s)) + 20
            means_s = np.tile([self.calm_s, self.slow_s], count)
            lengths = 1 + (self.random.exponential(means_s) / FINE_S).astype(int)
            self.speeds.append(np.repeat(np.tile([1.0, 1.0 / SLOW], count), lengths))

    def yard_s(self, core):
        """Of the lesser of two, right now."""
        is_slow = self.speeds[core][int(self.now_s / FINE_S)] < 1.0
        return YARD_S * (SLOW_YARD if is_slow else 1.0) * (1.0 + abs(self.random.normal(0.0, 0.02)))

    def takes_s(self, core, work_s):
        """Seconds from now on until a core has done that much."""
        start = int(self.now_s / FINE_S)
        done = np.cumsum(self.speeds[core][start : start + int(2.0 * work_s / FINE_S)]) * FINE_S
        return (1 + int(np.searchsorted(done, work_s))) * FINE_S

    def step(self, work_s):
        """Both ranks compute, and meet at the end."""
        before = [self.yard_s(core) for core in (0, 1)]
        noisy = work_s * (1.0 + abs(self.random.normal(0.0, 0.01)))
        cpus = tuple(self.takes_s(core, noisy) for core in (0, 1))
        self.now_s += max(cpus)
        yards = tuple(max(before[core], self.yard_s(core)) for core in (0, 1))
        return Sample(wall_s=max(cpus), cpus_s=cpus, foreign_share=0.0, yards_s=yards)

    def train(self, seconds):
        """Visits by configuration until so much time has passed."""
        visits = {i: [] for i in range(len(TRUE_S))}
        while self.now_s < seconds:
            for i in self.random.permutation(len(TRUE_S)):
                self.now_s += 0.8  # start and warm-up
                visits[i].append([self.step(TRUE_S[i]) for _ in range(4)])
        return visits


def steps(visits):
    return [sample for visit in visits for sample in visit]


# A third of the time in spells below a second; half of it in spells of seconds; one in three minutes slow.
SPELLS = [(0.8, 0.4), (4.0, 4.0), (120.0, 60.0)]


@pytest.mark.parametrize(("calm_s", "slow_s"), SPELLS)
@pytest.mark.parametrize("seed", [1, 2])
def test_the_order_of_configurations_is_recovered_from_steps_with_slow_spells(seed, calm_s, slow_s):
    visits = Machine(seed=seed, calm_s=calm_s, slow_s=slow_s).train(LENGTH_S)
    yardstick = yardstick_of([steps(same) for same in visits.values()])
    assert yardstick.calm_s == pytest.approx(YARD_S, rel=0.02)
    found = [estimate(steps(same), yardstick) for same in visits.values()]
    errors = np.array([one.seconds for one in found]) / TRUE_S - 1.0
    assert kendalltau([one.seconds for one in found], TRUE_S).statistic > 0.95
    assert np.median(np.abs(errors)) < 0.02 and np.abs(errors).max() < SLOW_STEP - 1.0
    naive = [np.median([sample.wall_s for sample in steps(same)]) for same in visits.values()]
    assert np.std(np.log(naive / TRUE_S)) > 2.0 * np.std(np.log1p(errors))


def test_steps_that_are_never_calm_are_scaled_by_what_the_slower_rank_needed_more_and_say_so():
    """The first rank's core is always slow, and its yardstick twice as much as the step, on a logarithmic scale."""
    beside = (1.2, 1.5, 1.6, 1.3)
    slow = [
        Sample(wall_s=b**0.5, cpus_s=(b**0.5, 0.9), foreign_share=0.0, yards_s=(YARD_S * b, YARD_S)) for b in beside
    ]
    calm = [Sample(wall_s=1.0, cpus_s=(0.9, 0.9), foreign_share=0.0, yards_s=(YARD_S,) * 2)] * 9
    yardstick = yardstick_of([slow, calm])
    assert (yardstick.calm_s, yardstick.power) == (pytest.approx(YARD_S), pytest.approx(0.5))
    found = estimate(slow, yardstick)
    assert (found.calm, found.is_calm) == (0, False) and found.seconds == pytest.approx(1.0)


def test_where_no_step_is_calm_those_count_beside_which_only_other_processes_worked():
    """In a pipeline's bubbles these take what the ranks leave: a rank's CPU seconds then say nothing of the step."""
    even = [Sample(wall_s=w, cpus_s=(0.5, 0.9), foreign_share=0.2, yards_s=(YARD_S,) * 2) for w in (1.0, 1.1, 1.2, 1.3)]
    slow = [Sample(wall_s=1.4, cpus_s=(0.8, 0.9), foreign_share=0.2, yards_s=(YARD_S,) * 2)] * 3
    found = estimate([*even, *slow], YARD)
    assert not found.is_calm and found.seconds == pytest.approx(1.075)


def test_a_step_with_a_slow_spell_or_with_other_work_beside_it_is_left_out():
    calm = [
        Sample(wall_s=w, cpus_s=(0.9, 0.9), foreign_share=0.02, yards_s=(0.0024,) * 2) for w in (2.0, 2.1, 2.2, 2.3)
    ]
    spell = Sample(wall_s=1.0, cpus_s=(1.2, 0.9), foreign_share=0.0, yards_s=(0.0024,) * 2)
    beside = Sample(wall_s=1.0, cpus_s=(0.9, 0.9), foreign_share=0.3, yards_s=(0.0024,) * 2)
    slow_core = Sample(wall_s=1.0, cpus_s=(0.9, 0.9), foreign_share=0.0, yards_s=(0.0024, 0.004))
    alone, all_ = estimate(calm, YARD), estimate([*calm, spell, beside, slow_core], YARD)
    assert alone == all_ and alone.calm == 4 and alone.seconds == pytest.approx(2.075)


def test_a_configuration_is_done_when_its_calm_steps_of_three_visits_agree():
    same = [Sample(wall_s=1.0, cpus_s=(0.9, 0.9), foreign_share=0.0, yards_s=(YARD_S,) * 2)] * 3
    other = [replace_wall(one, 1.3) for one in same]
    assert is_tight([same] * 3, YARD)
    assert not is_tight([same] * 2, YARD)
    assert not is_tight([same, same, other], YARD)


def replace_wall(sample, wall_s):
    return Sample(wall_s=wall_s, cpus_s=sample.cpus_s, foreign_share=0.0, yards_s=sample.yards_s)


def test_what_other_processes_used_is_what_the_machine_used_beyond_the_ranks():
    ranks = [
        {"walls_s": [2.0], "cpus_s": [1.5], "machine_s": [3.8], "yards_s": [0.02]},
        {"walls_s": [1.9], "cpus_s": [1.9], "machine_s": [3.8], "yards_s": [0.01]},
    ]
    (sample,) = samples_of(ranks, cores=2)
    assert (sample.wall_s, sample.cpus_s, sample.yards_s) == (2.0, (1.5, 1.9), (0.02, 0.01))
    assert sample.foreign_share == pytest.approx((3.8 - 1.5 - 1.9) / (2.0 * 2))


def piece(forward_s, yard_s):
    seconds = {"forward": forward_s}
    measurement = PieceMeasurement(
        kernel="layer", shape="", dtype="float32", seconds=seconds, spreads_s=seconds, device="", versions="", date=""
    )
    return PieceSample(measurement=measurement, yard_s=yard_s)


def test_a_piece_counts_by_what_was_measured_on_calm_cores():
    calm, slow = [piece(s, 0.0025) for s in (1.0, 1.2, 1.4, 1.6, 1.8)], [piece(0.1, 2.0 * YARD_S)] * 9
    assert undisturbed_piece(calm + slow, YARD) == {"forward": pytest.approx(1.2)}
    assert undisturbed_piece(slow, YARD) == {"forward": pytest.approx(0.05)}


def test_rounds_are_joined_number_by_number():
    trees = [{"a": [float(i), 10.0 - i]} for i in range(5)]
    assert lower_quartile(trees) == {"a": [1.0, 7.0]}
