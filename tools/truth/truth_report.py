"""Ground truth of our own: small models trained for real on this machine, against what the projection says of them.

Every case is one configuration of a small GPT or MoE on the host's devices (`truth.space`). Each is trained in
processes of its own, its step timed and its peak resident memory read (`truth.rounds`, `truth.samples`); the same
candidate is projected for `hardware: host`, then re-validated with measured layers, and the three are compared: rank
correlation of tokens/s, place of the true best, median errors of step time and memory.
"""

from dataclasses import asdict, dataclass, field
from itertools import permutations
from operator import attrgetter
from statistics import fmean, median
from typing import Any

import pandas as pd
from scipy.stats import kendalltau

from tools import rendered

CALM_CASES = 0.9  # share of the cases that need calm steps for the comparison to count; noise only makes steps longer
NOISE_SHARE = 0.05  # of a step: two cases closer than that may change places when training is repeated
WANTED_CASES, WANTED_KENDALL, WANTED_PLACE, WANTED_STEP, WANTED_MEMORY = 24, 0.8, 3, 0.15, 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class TruthRow:
    """One case, three ways. Seconds of a step, bytes of a process at its peak; `failure` says why there are none.

    trained_s, trained_bytes      really trained; cpu_s  CPU seconds of a step on the slower rank
    half_width                    of the 95 % interval of trained_s, as a share of it; steps, and calm_steps of them
    odd_s, even_s                 as trained_s, of every other visit: what the training itself says when repeated
    reserved_bytes                as trained_bytes, with the freed memory that the C library's heap keeps
    projected_s, projected_bytes  before anything of the case was measured;  measured_s  with its layers measured
    baseline_bytes, projected_baseline_bytes  of a process that holds nothing of a model: part of both totals
    is_calm                       whether enough steps were calm to count without being scaled
    """

    name: str
    trained_s: float = float("nan")
    trained_bytes: float = float("nan")
    reserved_bytes: float = float("nan")
    projected_s: float = float("nan")
    measured_s: float = float("nan")
    projected_bytes: float = float("nan")
    baseline_bytes: float = float("nan")
    projected_baseline_bytes: float = float("nan")
    cpu_s: float = float("nan")
    odd_s: float = float("nan")
    even_s: float = float("nan")
    half_width: float = float("nan")
    calm_steps: int = 0
    steps: int = 0
    is_calm: bool = True
    failure: str = ""

    @property
    def step_error(self) -> float:
        return abs(self.measured_s / self.trained_s - 1.0)

    @property
    def memory_error(self) -> float:
        return abs(self.projected_bytes / self.trained_bytes - 1.0)

    @property
    def model_memory_error(self) -> float:
        """As `memory_error`, of what the model adds to a bare process."""
        grown = self.trained_bytes - self.baseline_bytes
        return abs((self.projected_bytes - self.projected_baseline_bytes) / grown - 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All cases and what they add up to. Errors are fractions; `place` is where the true best stands, from 1.

    machine  its name and versions and the date
    """

    rows: tuple[TruthRow, ...]
    notes: tuple[str, ...] = ()
    machine: dict[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> list[TruthRow]:
        return [row for row in self.rows if not row.failure]

    def kendall(self, which: str = "measured_s", truth: str = "trained_s") -> float:
        """Rank correlation of step time with real training; of training with itself by `odd_s` and `even_s`."""
        return _kendall(self.complete, which, truth)

    def kendall_within(self) -> float:
        """`kendall` among the cases of one model, mean over the models (the first words of the names)."""
        models: dict[str, list[TruthRow]] = {}
        for row in self.complete:
            models.setdefault(row.name.split()[0], []).append(row)
        return fmean(_kendall(rows, "measured_s", "trained_s") for rows in models.values())

    @property
    def told_apart(self) -> tuple[int, int]:
        """Pairs of cases that training tells apart by more than NOISE_SHARE, and how many of them stand in order."""
        found = [
            slow.measured_s > fast.measured_s
            for slow, fast in permutations(self.complete, 2)
            if slow.trained_s > fast.trained_s * (1.0 + NOISE_SHARE)
        ]
        return len(found), sum(found)

    @property
    def kendall_told_apart(self) -> float:
        """Rank correlation over the pairs that training tells apart: those in order less the others, as a share."""
        pairs, in_order = self.told_apart
        return 2.0 * in_order / pairs - 1.0 if pairs else float("nan")

    def place(self, which: str = "measured_s") -> int:
        """Place of the truly fastest case in the ranking."""
        best = min(self.complete, key=lambda row: row.trained_s)
        return sorted(self.complete, key=attrgetter(which)).index(best) + 1

    def step_error(self, which: str = "measured_s") -> float:
        """Median relative error of the step time."""
        return median(abs(float(attrgetter(which)(row)) / row.trained_s - 1.0) for row in self.complete)

    @property
    def memory_error(self) -> float:
        return median(row.memory_error for row in self.complete)

    @property
    def model_memory_error(self) -> float:
        return median(row.model_memory_error for row in self.complete)

    @property
    def is_valid(self) -> bool:
        """Whether the machine was idle enough for the step times to mean something."""
        return sum(row.is_calm for row in self.complete) >= CALM_CASES * len(self.complete)

    def verdicts(self) -> list[tuple[str, str, str, bool]]:
        """What is wanted: (claim, wanted, found, whether it holds)."""
        least = [
            ("configurations really trained", WANTED_CASES, len(self.complete), "d"),
            ("Kendall of projected-then-measured tokens/s", WANTED_KENDALL, self.kendall(), ".2f"),
        ]
        most = [
            ("place of the true best", str(WANTED_PLACE), WANTED_PLACE, self.place(), "d"),
            ("median error of step time", f"{WANTED_STEP:.0%}", WANTED_STEP, self.step_error(), ".1%"),
            ("median error of peak memory", f"{WANTED_MEMORY:.0%}", WANTED_MEMORY, self.memory_error, ".1%"),
        ]
        return [
            *((claim, f">= {limit}", format(found, form), found >= limit) for claim, limit, found, form in least),
            *((claim, f"<= {word}", format(found, form), found <= limit) for claim, word, limit, found, form in most),
        ]

    def as_json(self) -> dict[str, Any]:
        """Everything, for `--json` and for results/."""
        rows = [{name: _number(value) for name, value in asdict(row).items()} for row in self.rows]
        figures: dict[str, Any] = {"configurations": len(self.complete)}
        if self.complete:
            pairs, in_order = self.told_apart
            figures |= {
                "kendall": self.kendall(),
                "kendall_projected": self.kendall("projected_s"),
                "kendall_of_training_repeated": _number(self.kendall("odd_s", "even_s")),
                "kendall_within_models": _number(self.kendall_within()),
                "kendall_of_pairs_told_apart": _number(self.kendall_told_apart),
                "pairs_told_apart": pairs,
                "of_these_in_order": in_order,
                "place_of_true_best": self.place(),
                "step_median_error": self.step_error(),
                "step_median_error_projected": self.step_error("projected_s"),
                "memory_median_error": self.memory_error,
                "is_valid": self.is_valid,
                "model_memory_median_error": self.model_memory_error,
                "holds": {claim: holds for claim, _, _, holds in self.verdicts()},
            }
        return self.machine | figures | {"notes": list(self.notes), "rows": rows}

    def as_csv(self) -> str:
        """Every case as a row, errors and the machine included; empty where there is no number."""
        errors = ("step_error", "memory_error", "model_memory_error")
        frame = pd.DataFrame([asdict(row) | {name: attrgetter(name)(row) for name in errors} for row in self.rows])
        frame = frame.assign(**self.machine, failure=frame.pop("failure"))
        return str(frame.to_csv(index=False, float_format="%.6g", lineterminator="\n"))

    def as_markdown(self, title: str) -> str:
        """The verdicts and every case as a page."""
        rows = sorted(self.rows, key=lambda row: (bool(row.failure), row.trained_s))
        return rendered("truth.md", title=title, report=self, rows=rows, noise=NOISE_SHARE)


def _kendall(rows: list[TruthRow], which: str, truth: str) -> float:
    if len(rows) < 2:
        return float("nan")
    return float(kendalltau(list(map(attrgetter(which), rows)), list(map(attrgetter(truth), rows))).statistic)


def _number(value: object) -> object:
    """The value, or None in place of a NaN, which JSON has none of."""
    return None if value != value else value
