"""The answer of a run as values, as run.json holds it: what to run, what it rests on, and the choices beside it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One row of the ranking to choose from.

    letter   what commands and the page take in place of the rank      rank     place in ranking.csv, from 1
    what     the row in words; of all but A what differs from A        when     when to take it
    rate     expected tokens/s/GPU                                     change   of the rate against A's, -0.31
    """

    letter: str
    rank: int
    what: str
    when: str
    rate: float
    change: float
    memory_bytes: float
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the first screen says. Rates in tokens/s/GPU, `low` and `high` the ends of their 90 % interval.

    job, size       model, devices, framework and stack; lengths and counts      what   the recommendation in words
    flops_per_s     of the model per GPU      peak_share   of the peak of `number_format`
    notes           what to know before it is started
    trust           what figures rest on, one sentence each
    goal            how the recommendation meets the goal of the training, a sentence each; empty without tokens
    remarks         what else was noted of the space and the search
    """

    job: str
    size: str
    what: str
    rate: float
    low: float
    high: float
    flops_per_s: float
    peak_share: float
    number_format: str
    memory_bytes: float
    device_bytes: float
    verdict: str
    fit_probability: float
    trust: tuple[str, ...]
    notes: tuple[str, ...]
    remarks: tuple[str, ...]
    choices: tuple[Choice, ...]
    counts: str
    goal: tuple[str, ...] = ()

    def rank_of(self, letter: str) -> int | None:
        """The rank that a letter stands for; None for one that is not among the choices."""
        return next((one.rank for one in self.choices if one.letter == letter.upper()), None)
