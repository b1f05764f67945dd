"""The rows of a ranking that are shown: one of each different choice, and those that are always worth knowing."""

from pathlib import Path
from typing import Any

import pytest

from primus_search.analysis.choices import CLOSE, choices, keys_of, words_of
from primus_search.base.errors import InputError
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.export.ranks import chosen_rows, files_of
from primus_search.values.candidates import COLUMN_NAMES, DEFAULTS
from primus_search.values.knobs import KNOB
from tests.support.small_runs import make_run


def row(rate: float, **knobs: Any) -> dict[str, Any]:
    """A row of ranking.csv."""
    usual = {name: KNOB[name].word(DEFAULTS.get(name, 0)) for name in COLUMN_NAMES}
    usual |= {"schedule": "1f1b", "pipeline_layout": "even"}
    rates = {"tokens_per_s_per_gpu": rate, "expected_tokens_per_s_per_gpu": rate}
    figures = rates | {"memory_verdict": "FITS", "ties_with_best": False}
    return usual | figures | knobs


def test_near_duplicates_are_one_choice_and_the_best_in_bf16_is_always_shown() -> None:
    rows = [row(100 - n, fp8="hybrid", pp=2, sync_free_stage=n % 4) for n in range(20)]
    rows += [row(70, fp8="hybrid", tp=2), row(60, fp8="none", pp=2), row(50, fp8="none", tp=4)]
    found = choices(rows, most=8)
    assert [choice.rank for choice in found] == [1, 21, 22, 23]
    assert found[2].roles == ("best in BF16",) and found[2].change == pytest.approx(-0.4)
    assert words_of(found[1], rows[0]) == [] and words_of(found[3], rows[0])[0] == "BF16"


def test_the_simplest_close_to_the_best_and_the_best_that_surely_fits_are_shown() -> None:
    exotic = {"fp8": "hybrid", "deepep": True, "sync_free_stage": 3, "pp": 2}
    rows = [
        row(100, memory_verdict="AT RISK", **exotic),
        row(99, memory_verdict="AT RISK", fp8="hybrid", pp=2),
        row(100 * (1 - CLOSE) - 1, memory_verdict="AT RISK", pp=2),
        row(80, fp8="hybrid", deepep=True, pp=4),
    ]
    found = {choice.rank: choice.roles for choice in choices(rows, most=8)}
    assert found == {1: (), 2: ("simplest",), 3: ("best in BF16",), 4: ("best that FITS",)}


def test_the_best_on_fewer_nodes_is_the_only_row_of_another_cluster() -> None:
    rows = [{"nodes": 4} | row(100), {"nodes": 2} | row(99), {"nodes": 2} | row(98, tp=2), {"nodes": 4} | row(90, tp=2)]
    assert [(c.rank, c.roles) for c in choices(rows, most=8)] == [(1, ("simplest",)), (2, ("fewer nodes",)), (4, ())]


def test_other_keys_make_other_choices_and_an_unknown_one_is_refused() -> None:
    rows = [row(100 - n, micro_batch_size=1 + n % 3) for n in range(9)]
    assert [c.row["micro_batch_size"] for c in choices(rows, most=8, keys=keys_of("micro_batch_size"))] == [1, 2, 3]
    with pytest.raises(InputError, match="did you mean 'layout'"):
        keys_of("layuot")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    return SavedRun.open(make_run(tmp_path_factory.mktemp("choices"), framework="primus"))


def test_eight_rows_hold_six_layouts_or_precisions_and_start_different_jobs(saved: SavedRun) -> None:
    found = choices(saved.ranking, most=8)
    assert len({tuple(c.row[n] for n in ("tp", "pp", "cp", "ep", "etp", "fp8")) for c in found}) >= 6
    files = files_of(saved, chosen_rows(saved, ",".join(str(c.rank) for c in found), None), "")
    texts = [tuple(launch.texts.values()) for launch in files.values()]
    assert len(texts) == len(set(texts)) == len(found)


def test_ranking_csv_holds_every_layout_and_precision_that_is_not_hopeless(tmp_path: Path) -> None:
    whole = SavedRun.open(make_run(tmp_path, framework="any", keep=50))
    keys = [tuple(row[name] for name in ("fp8", "tp", "pp", "ep")) for row in whole.ranking]
    assert {fp8 for fp8, *_ in keys} == {"none", "hybrid"} and len(set(keys)) > 10
    known = [tuple(row[name] for name in COLUMN_NAMES) for row in whole.ranking]
    assert len(known) == len(set(known))
