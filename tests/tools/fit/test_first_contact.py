"""Errors at first contact: the fit finds what errors were drawn with, and makers do not move it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from primus_search.evidence.published.convert import measured_table
from primus_search.files.evidence_files import load_sites
from tools.fit.first_contact import Seen, fitted_errors, is_maker, words

DATA = Path("tests/oracle/data")
SITES = Path("hardware/sites/first_contact.yaml")


def test_the_fit_finds_the_shift_and_the_deviations_that_errors_were_drawn_with() -> None:
    shift, site, group, own = -0.06, 0.15, 0.08, 0.05
    rng = np.random.default_rng(0)
    run = next(run for run in measured_table(DATA / "unseen_runs.csv").runs if not run.model.is_moe)
    publishers = []
    for _ in range(120):
        tail = 1.0 / np.sqrt(rng.chisquare(5.0) / 5.0)
        common = shift + tail * site * rng.standard_normal()
        rows: list[Seen] = []
        for model in ("a", "b", "c"):
            named = replace(run.model, name=model, hidden=run.model.hidden + 128 * len(rows))
            middle = common + tail * group * rng.standard_normal()
            for degree in (1, 2, 4):
                table = run.candidates.take(np.array([0]))
                table = replace(table, micro_batch_size=np.array([degree]))
                one = replace(run, model=named, candidates=table)
                rows.append(Seen(run=one, error=middle + tail * own * rng.standard_normal(), mixture=None))
        publishers.append(rows)
    found = fitted_errors(publishers, load_sites().errors)
    assert np.log(found.mean_ratio) == pytest.approx(shift, abs=0.04)
    assert (found.site, found.group, found.configuration) == pytest.approx((site, group, own), rel=0.25)


def test_a_device_vendor_is_a_maker_and_an_operator_is_not() -> None:
    makers = words(SITES, "makers")
    assert is_maker("NVIDIA/NeMo", makers)
    assert not is_maker("awslabs/awsome-distributed-training", makers)
