"""Which rows of a run to export, whether their framework can start them, and the nearest that it can."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from primus_search.base.errors import InputError, Problem
from primus_search.base.units import GB
from primus_search.exploration.neighbours import Evaluator, RuleViolation, Values, nearest_legal, values_of, word
from primus_search.exploration.result import is_on
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.files.framework_files import load_framework
from primus_search.launch.write.job import Inexpressible, LaunchJob
from primus_search.launch.write.launch_files import FORMATS, SLURM, LaunchFiles, launch_files, write_all
from primus_search.space import ClusterChoice
from primus_search.values.candidates import COLUMN_NAMES, Candidates, spoken
from primus_search.values.machine.framework import Framework

PARETO = "pareto"
MOST_RANKS = 10_000


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """One row to export: the name of its folder, its candidate, and its cluster with the framework to export for."""

    name: str
    candidate: Candidates
    choice: ClusterChoice


def chosen_rows(saved: SavedRun, text: str, framework: Framework | None) -> list[Chosen]:
    """The rows that `A`, `1`, `1,3,8`, `1-120` or `pareto` name. Raises `InputError` for any other text and rank."""
    if text.strip() == PARETO:
        rows = [(f"pareto_{i}", row) for i, row in enumerate(saved.frontier, start=1)]
    else:
        numbers = ",".join(str(saved.rank_named(part)) if part.strip().isalpha() else part for part in text.split(","))
        rows = [(str(rank), saved.row(rank)) for rank in ranks_of(numbers, len(saved.ranking))]
    found = []
    for name, row in rows:
        choice = next((one for one in saved.space.clusters if is_on(row, one)), None)
        if choice is None:
            raise InputError([Problem(str(saved.path), f"no cluster of its space is that of row {name}")])
        candidate = Candidates.from_words({axis: row[axis] for axis in COLUMN_NAMES})
        found.append(
            Chosen(name=name, candidate=candidate, choice=replace(choice, framework=framework or choice.framework))
        )
    return found


def ranks_of(text: str, last_rank: int = 0) -> list[int]:
    """`1,3,8` and `1-120` as numbers, in order, without doubles.

    A range that begins in a ranking of `last_rank` rows ends with it: 1-120 are all of 75 rows.
    """
    ranks: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(first + last) > 9:
            what = f"{part.strip()[:40]!r} is no rank; write A, or 1, or 1,3,8, or 1-120, or pareto"
            raise InputError([Problem("RANKS", what)])
        start, stop = int(first), int(last or first)
        if stop < start or stop - start >= MOST_RANKS:
            raise InputError([Problem("RANKS", f"{part.strip()}: from low to high, at most {MOST_RANKS:,} ranks")])
        if start <= last_rank:
            stop = min(stop, last_rank) if dash else stop
        ranks |= dict.fromkeys(range(start, stop + 1))
    return list(ranks)


def files_of(saved: SavedRun, rows: Sequence[Chosen], format_name: str, recipe: str = "") -> dict[str, LaunchFiles]:
    """The files of every row, as differences to a recipe where one is named.

    Raises `Inexpressible` naming every row that its framework cannot start.
    """
    space = saved.space
    found: dict[str, LaunchFiles] = {}
    refused: list[str] = []
    for one in rows:
        job = LaunchJob.of(space, one.choice, one.candidate, recipe)
        if one.choice.framework.is_any:
            launch_files(job, format_name)  # refuses
        evaluator = Evaluator(space.on(one.choice), one.choice)
        values = values_of(one.candidate)
        broken = evaluator.broken(values)
        if broken:
            refused.append(refusal(evaluator, one.name, values, broken))
            continue
        try:
            found[one.name] = launch_files(job, format_name)
        except Inexpressible as error:
            refused.append(f"row {one.name}: {error}")
    if refused:
        raise Inexpressible("\n".join(refused))
    return found


def refusal(evaluator: Evaluator, name: str, values: Values, broken: Sequence[RuleViolation]) -> str:
    """What a framework cannot start, why, and the nearest configuration that it can, with its rate and memory."""
    framework = evaluator.choice.framework
    lines = [f"row {name}: {framework.title} cannot start it"]
    lines += [f"  {one.rule}: {one.reason}" for one in broken]
    nearest = nearest_legal(evaluator, values, broken)
    if nearest is None:
        return "\n".join([*lines, "  nothing near it can be started there; search with --framework " + framework.name])
    near, figures = nearest
    changes = ", ".join(f"{axis}={spoken(word(axis, one))}" for axis, one in near.items() if one != values[axis])
    fits = "fits" if figures.fits else "does not fit"
    lines.append(
        f"  nearest that it can start: {changes}: {figures.expected_tokens_per_s_per_gpu:,.0f} tokens/s/GPU, "
        f"{figures.memory_bytes / GB:.1f} GB of memory per GPU ({fits})"
    )
    return "\n".join(lines)


def export_rows(saved: SavedRun, text: str, framework: str, folder: Path) -> list[Path]:
    """Write the files of the rows that a text names, one folder a row, and return their paths.

    framework: of `FORMATS`; empty: what the run searched for. Raises InputError for another one, `Inexpressible` where
    it cannot start a row.
    """
    if framework and framework.partition("@")[0] not in FORMATS:
        raise InputError([Problem("framework", f"{framework!r} is unknown; use one of {', '.join(FORMATS)}")])
    contract = load_framework(framework) if framework not in ("", SLURM) else None
    return write_all(folder, files_of(saved, chosen_rows(saved, text, contract), framework))
