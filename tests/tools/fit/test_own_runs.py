"""Errors after own runs, by the tool that docs/fidelity.md quotes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from primus_search.files.hardware_files import load_stack
from primus_search.learning.inference.projected_runs import log_rates, reference_of
from tests.learning.test_site_stack import SOFTWARE, runs
from tools.fit import own_runs
from tools.fit.own_runs import errors_after, unseen

DATA = Path("tests/oracle/data")
IN_NO_FIT = tuple(DATA / f"{name}.csv" for name in ("unseen_runs_4", "blind_trainers", "oom_runs"))
MET = ("InternLM/xtuner", "crusoecloud/torchtitan", "pytorch/ao")
"""Publishers of at most eleven rated runs in these tables that first contact is within 10 % of."""


@pytest.mark.in_turn
def test_one_factor_explains_runs_that_are_one_factor_off_and_learning_nearly_does() -> None:
    every = [replace(run, cluster=replace(run.cluster, stack=load_stack(SOFTWARE))) for run in runs()[:6]]
    rates = [0.85 * float(np.exp(log_rates(run.cluster.stack, [reference_of(run)])[0])) for run in every]
    slow = [
        replace(r, framework=None, measured=replace(r.measured, tokens_per_s_per_gpu=x))
        for r, x in zip(every, rates, strict=True)
    ]
    found = errors_after(slow, draws=1)
    assert list(found) == [1, 3]
    for before, median, p90, inside, factor_median, factor_p90, told in found.values():
        assert before > median
        assert factor_median == pytest.approx(0.0, abs=1e-9) and factor_p90 == pytest.approx(0.0, abs=1e-9)
        assert median <= p90 < 0.075 and inside == 1.0  # of 16 %, 1 / (1 + z) of which one run leaves (`heard`): .073
        assert told == pytest.approx(median)  # all of one model on one device


@pytest.mark.in_turn
def test_runs_of_another_software_are_neither_learned_from_nor_scored() -> None:
    stacks = [load_stack(name) for name in (SOFTWARE, "deepspeed")]
    every = [replace(run, cluster=replace(run.cluster, stack=stacks[i // 3])) for i, run in enumerate(runs()[:6])]
    rates = [
        (0.9, 1.2)[i // 3] * float(np.exp(log_rates(r.cluster.stack, [reference_of(r)])[0]))
        for i, r in enumerate(every)
    ]
    mixed = [
        replace(r, framework=None, measured=replace(r.measured, tokens_per_s_per_gpu=x))
        for r, x in zip(every, rates, strict=True)
    ]
    apart, together = errors_after(mixed, draws=1)[1], errors_after(mixed, draws=1, is_mixed=True)[1]
    assert apart[5] == pytest.approx(0.0, abs=1e-9) and apart[2] < 0.1 < together[2]


@pytest.mark.in_turn
@pytest.mark.daily(1)
@pytest.mark.parametrize("publisher", MET)
def test_one_run_of_a_publisher_makes_its_others_no_worse_by_a_point(
    publisher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_runs, "TAUGHT", (1,))
    before, after, *_ = errors_after(unseen(DATA / "trained_on.txt", IN_NO_FIT)[publisher], draws=8)[1]
    assert after < before + 0.01


def test_readme_says_what_the_fidelity_page_says_of_own_runs() -> None:
    row = next(line for line in Path("docs/fidelity.md").read_text().splitlines() if "1 / 3 / 5 own runs" in line)
    first, _, last = (round(float(word)) for word in row.split("|")[3].strip(" %").split("/"))
    said = f"After one run of your own {first} %, after five of one software {last} %"
    assert said in Path("README.md").read_text()
