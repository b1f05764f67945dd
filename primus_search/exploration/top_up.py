"""An old run, measured later: its ranking re-validated, and the run folder written back."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from primus_search.base.guards.files import replacing
from primus_search.exploration.answer_values import Answer
from primus_search.exploration.neighbours import Evaluator
from primus_search.exploration.rank import frontier_after
from primus_search.exploration.ranking_table import RANKED_ROWS, RankingTable
from primus_search.exploration.result import is_on, labels_of
from primus_search.exploration.revalidation import reordered
from primus_search.exploration.run_folder.candidates_file import Knobs, kept_again, kept_numbers, knobs_of
from primus_search.exploration.run_folder.folder import StoreError, csv_bytes
from primus_search.exploration.run_folder.run_facts import file_facts
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.space import ClusterChoice
from primus_search.values.candidates import COLUMN_NAMES, Candidates

Decide = Callable[..., Answer]


def top_up(
    path: Path,
    *,
    device: str,
    top_k: int,
    seconds: float,
    load: Path | None = None,
    save: Path | None = None,
    decide: Decide,
) -> tuple[RankingTable, list[str]]:
    """Re-validate the ranking of a finished run and write it back: ranking, frontier, kept rows, then `run.json`.

    Only shapes that no earlier measurement answers are measured. Raises InputError for a folder that holds no run, or
    one whose inputs have changed since. decide: gives the answer of the new order (`analysis.answer.decide`).
    """
    from primus_search.exploration.own_rows import with_rows_that_ran
    from primus_search.measure.candidate_bench import save as save_benchmark
    from primus_search.measure.revalidate import Benchmark, revalidate

    run = SavedRun.open(path)
    space, choice = run.space, run.cluster(1)
    numbers = kept_numbers(path, space.clusters.index(choice), RANKED_ROWS)
    ranking, frontier = (_projected_anew(run, rows, numbers) for rows in (run.ranking[:RANKED_ROWS], run.frontier))
    how = Benchmark(mode=device, top_k=top_k, seconds=seconds, memory_margin=space.search.memory_margin, load=load)
    found = revalidate(space.job_on(choice), ranking.candidates, ranking.projection, how)
    if save is not None:
        save_benchmark(save, found.measurements)
    ranking, notes = reordered(ranking, found)
    ranking = with_rows_that_ran(ranking, Evaluator(space, choice))
    _write_back(run, ranking, frontier_after(frontier, ranking), notes, decide)
    return ranking, notes


def _projected_anew(run: SavedRun, rows: Sequence[Mapping[str, Any]], numbers: dict[Knobs, int]) -> RankingTable:
    """Those of a run's rows that are of its best cluster, as a search projects and orders them.

    `numbers`: of rows by their knobs; rows that have none are given one.
    """
    choice = run.cluster(1)
    words = [knobs_of(row) for row in rows if is_on(row, choice)]
    indices = np.array([numbers.setdefault(one, -len(numbers) - 1) for one in words], dtype=np.int64)
    candidates = Candidates.from_rows([dict(zip(COLUMN_NAMES, one, strict=True)) for one in words])
    return RankingTable.of(Evaluator(run.space, choice), indices, candidates).ordered()


def _write_back(
    run: SavedRun, ranking: RankingTable, frontier: RankingTable, notes: Sequence[str], decide: Decide
) -> None:
    """The new order first, then the rows that were not looked at; each file whole or as it was."""
    choice = run.cluster(1)
    number = run.space.clusters.index(choice)
    rows = _rows(run.ranking, ranking, choice, run.ranking[RANKED_ROWS:])
    answer = decide(
        run.space,
        ranking,
        rows,
        run.evaluator(choice),
        counts=run.answer.counts,
        several=len(run.space.clusters),
        remarks=(*run.answer.remarks, *notes),
    )
    files = {
        "ranking.csv": csv_bytes(rows),
        "pareto.csv": csv_bytes(_rows(run.frontier, frontier, choice)),
        "candidates.parquet": kept_again(run.path, number, ranking),
    }
    known = run.facts["files"] | {name: file_facts(content) for name, content in files.items()}
    facts = dict(run.facts) | {"best": ranking.row(0), "answer": asdict(answer), "files": known}
    write_together(run.path, files | {"run.json": json.dumps(facts, indent=2).encode() + b"\n"})


def _rows(
    before: Sequence[Mapping[str, Any]],
    table: RankingTable,
    choice: ClusterChoice,
    behind: Sequence[Mapping[str, Any]] = (),
) -> list[Mapping[str, Any]]:
    """The rows of a table, labelled as before, and those of the other clusters; rows `behind` stay where they are."""
    others = [row for row in before[: len(before) - len(behind)] if not is_on(row, choice)]
    labels = {name: value for name, value in labels_of(choice).items() if name in before[0]}
    return [*(labels | row for row in table.rows()), *others, *behind]


def write_together(folder: Path, files: Mapping[str, bytes]) -> None:
    """Several files, each whole or as it was; nothing is replaced before all are written.

    Raises StoreError where one cannot be written: then all are as they were.
    """
    try:
        with ExitStack() as every:
            for name, content in reversed(list(files.items())):
                every.enter_context(replacing(folder / name)).write_bytes(content)
    except OSError as error:
        raise StoreError(f"{folder}: what was measured could not be written: {error.strerror}") from error
