"""The page's sliders hold what `explain --what-if` projects."""

from typing import Any

import pytest

from primus_search.analysis.explanation import Explained
from primus_search.analysis.page.what_if_grid import sliders
from primus_search.analysis.why_not import what_if
from primus_search.exploration.run_folder.saved_run import SavedRun
from tests.support.small_runs import make_run

KEYS = {
    "nic": "hardware.nic_GBps", "batch": "workload.global_batch_size", "nodes": "nodes",
    "documents": "workload.document_length",
}  # fmt: skip


@pytest.fixture(scope="module")
def of_first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Explained, dict[str, dict[str, Any]]]:
    e = Explained(SavedRun.open(make_run(tmp_path_factory.mktemp("grid"), keep=100)), 1)
    return e, {one["key"]: one for one in sliders(e.evaluator, [e.base])}


@pytest.mark.in_turn
@pytest.mark.daily(1)
@pytest.mark.parametrize("key", KEYS)
def test_every_value_is_what_if_projects(of_first: tuple[Explained, dict[str, dict[str, Any]]], key: str) -> None:
    e, found = of_first
    for value, (rate,) in zip(found[key]["values"], found[key]["rates"], strict=True):
        after = what_if(e.run, e.evaluator, e.base, [f"{KEYS[key]}={value:g}"], 1).after
        wanted = after.expected_tokens_per_s_per_gpu if after and after.fits else None
        assert rate == (None if wanted is None else pytest.approx(wanted, rel=1e-5)), value


def test_the_runs_own_value_has_the_rate_of_its_row(of_first: tuple[Explained, dict[str, dict[str, Any]]]) -> None:
    e, found = of_first
    for one in found.values():
        assert one["rates"][one["at"]][0] == pytest.approx(e.figures.expected_tokens_per_s_per_gpu, rel=1e-5)
