"""Searches and runs from Python and notebooks: pandas tables, a figure, and one row explained and exported.

import primus_search as ps

run = ps.search("llama3_8b_mi300x", nodes=2)      # or ps.load_run("results/runs/...")
run.ranking.head()                                # DataFrame, one row per rank, columns as in ranking.csv
run.plot()                                        # figure of matplotlib: memory against throughput
run[3].explain()                                  # where the time and memory of row 3 go
run[3].export("megatron", "launch")               # files that start it
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any
from weakref import finalize

from primus_search.base.errors import InputError, Problem
from primus_search.base.units import GB
from primus_search.exploration.expected import RATE
from primus_search.exploration.funnel import Options
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.session.complete_search import search as complete_search

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from primus_search.analysis.explanation import Explained
    from primus_search.exploration.result import SearchResult
    from primus_search.space import Space

FIGURE_INCHES = (7.0, 4.5)


def search(
    space: "Space | Mapping[str, Any] | str | Path",
    options: Options | None = None,
    *,
    nodes: int | Sequence[int] | None = None,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    **files: Any,
) -> "Run":
    """Search a space as `primus-search run` does and return the run.

    space       a `Space`, the content of a space file, its path, or the name of one that ships with the package
    options     engine, workers, rows kept, whether to resume; see `exploration.funnel.Options`
    nodes       number of nodes, or several for a scaling table; None: as the space says
    overrides   `key=value` texts as after `--set`: `search.top_k=5`, `benchmark.device=off`
    out         run folder to write; None: a temporary one that goes away with the run
    files       further arguments of `complete_search.search`: load_benchmark, save_benchmark, baseline,
                progress, on_result, on_written

    Raises InputError with every problem of the space or when no candidate is legal, NothingFits when none fits.
    """
    if nodes is not None:
        overrides = [*overrides, f"--nodes nodes={list(nodes) if isinstance(nodes, Sequence) else nodes}"]
    typed = _as_space(space, overrides)
    folder = Path(mkdtemp(prefix="primus-search-") if out is None else out)
    result = complete_search(typed, options, out=folder, **files)
    saved = SavedRun.open(folder)
    saved.__dict__["space"] = typed  # as it was searched: a mapping has no file to be read again
    run = Run(saved, result=result)
    if out is None:
        finalize(run, rmtree, folder, ignore_errors=True)
    return run


def _as_space(space: "Space | Mapping[str, Any] | str | Path", overrides: Sequence[str] = ()) -> "Space":
    """The typed space; raises InputError with every problem of what was given."""
    from primus_search.declare import load_space, make_space
    from primus_search.space import Space

    if isinstance(space, Space):
        if overrides:
            raise ValueError("overrides change a space file; change a Space with dataclasses.replace")
        return space
    if isinstance(space, Mapping):
        return make_space(space, overrides=overrides)
    return load_space(space, overrides=overrides)


def load_run(path: str | Path) -> "Run":
    """The run in a folder that `primus-search run` or `search` wrote. Raises InputError where it is none."""
    return Run(SavedRun.open(Path(path)))


class Run:
    """A finished search: its tables, its rows by rank, and a figure.

    path     of its folder          result   the `SearchResult` in memory; None for one that was loaded
    """

    def __init__(self, saved: SavedRun, *, result: "SearchResult | None" = None) -> None:
        self.path, self.result, self._saved = saved.path, result, saved

    @cached_property
    def ranking(self) -> "pandas.DataFrame":
        """The rows of ranking.csv: index `rank` from 1, one column per axis and figure (units in docs/notebook.md)."""
        return _frame(self._saved.ranking, "rank")

    @cached_property
    def frontier(self) -> "pandas.DataFrame":
        """Rows that no other row beats on both memory (bytes) and tokens/s/GPU, by rising memory."""
        return _frame(self._saved.frontier, "place")

    @cached_property
    def candidates(self) -> "pandas.DataFrame":
        """Every row that was kept, best first, with each part of its step (s) and memory (bytes)."""
        import pandas

        return pandas.read_parquet(self.path / "candidates.parquet")

    @property
    def choices(self) -> "pandas.DataFrame":
        """The recommendation and what to take in its place, by letter: rank, words, rate, memory, when to take it."""
        import pandas

        rows = [
            {"letter": one.letter, "rank": one.rank, "what": one.what, RATE: one.rate, "change": one.change,
             "memory_GB": one.memory_bytes / GB, "take it when": one.when}
            for one in self._saved.answer.choices
        ]  # fmt: skip
        return pandas.DataFrame(rows).set_index("letter")

    @property
    def answer(self) -> str:
        """The first screen as `primus-search run` prints it."""
        from primus_search.report.first_screen import first_screen

        baseline = None if self.result is None else self.result.baseline
        return "\n".join(first_screen(self._saved.answer, str(self.path), baseline))

    def plot(self) -> "Figure":
        """Memory per GPU (GB) against expected tokens/s/GPU: all listed rows, the frontier and the best, by precision.

        Raises InputError where matplotlib is not installed.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            what = "needs matplotlib: pip install 'primus-search[notebook]'"
            raise InputError([Problem("plot", what)]) from error
        figure = Figure(figsize=FIGURE_INCHES, layout="constrained")
        axes = figure.subplots()
        for fp8, rows in self.ranking.groupby("fp8"):
            name = "BF16" if fp8 == "none" else f"fp8:{fp8}"
            axes.scatter(rows["memory_bytes"] / GB, rows[RATE], s=8, alpha=0.5, label=name)
        line = self.frontier.sort_values("memory_bytes")
        axes.step(line["memory_bytes"] / GB, line[RATE], where="post", color="black", label="frontier")
        best = self.ranking.iloc[0]
        axes.plot(best["memory_bytes"] / GB, best[RATE], "k*", markersize=12, label="rank 1")
        axes.set(xlabel="memory per GPU, GB", ylabel="expected tokens/s/GPU")
        axes.set_title(self._title, parse_math=False)
        axes.legend()
        return figure

    def __getitem__(self, rank: int) -> "RankedRow":
        """The row of that rank, from 1. Raises InputError beyond the ends."""
        self._saved.row(rank)
        return RankedRow(self._saved, rank)

    def __len__(self) -> int:
        """Rows of the ranking."""
        return len(self._saved.ranking)

    def __iter__(self) -> Iterator["RankedRow"]:
        return (RankedRow(self._saved, rank) for rank in range(1, len(self) + 1))

    def __getattr__(self, name: str) -> Any:
        """What else the search result has: `exact`, `legal`, `feasible`, `best`, ..."""
        if name.startswith("_") or self.__dict__.get("result") is None:
            raise AttributeError(
                f"a run has no {name!r}" + ("" if name.startswith("_") else "; a loaded one has tables")
            )
        return getattr(self.result, name)

    def __repr__(self) -> str:
        best = self._saved.ranking[0]
        return f"<Run {self._title}: {len(self):,} rows, best {best[RATE]:,.0f} tok/s/GPU, {self.path}>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.answer)}</pre>"

    @property
    def _title(self) -> str:
        facts = self._saved.facts
        return f"{facts['space']} on {facts['nodes']} nodes of {facts['hardware']}"


class RankedRow:
    """One row of a ranking. `row`: its axes and figures by column name."""

    def __init__(self, saved: SavedRun, rank: int) -> None:
        self.rank, self.row = rank, dict(saved.row(rank))
        self._saved = saved

    def explain(self) -> "Explanation":
        """Where its step and memory go, what each knob gives, what would help; prints as `primus-search explain`."""
        from primus_search.analysis.explanation import explain

        return Explanation(explain(self._saved, self.rank))

    def export(self, framework: str = "", out: str | Path | None = None) -> list[Path]:
        """Write the files that start it and return their paths.

        framework   primus, megatron, torchtitan, nemo, or slurm; "": what the run searched for
        out         folder, one folder per rank below it; None: `exports` in the run folder

        Raises InputError for a framework that is not known, Inexpressible where it cannot start the row.
        """
        from primus_search.analysis.exported_rows import export_rows

        return export_rows(self._saved, str(self.rank), framework, Path(out) if out else self._saved.path / "exports")

    def __repr__(self) -> str:
        from primus_search.analysis.labels import short

        return f"<rank {self.rank}: {short(self.row)}, {self.row[RATE]:,.0f} tok/s/GPU>"


class Explanation:
    """Why a row is where it is. `data`: plain data as `primus-search explain --json` prints it; str: its text."""

    def __init__(self, explained: "Explained") -> None:
        self._explained = explained

    @cached_property
    def data(self) -> dict[str, Any]:
        """Step (s), memory (bytes), traffic, ablation, sensitivity and advice by name."""
        from primus_search.analysis.explanation import as_data

        return as_data(self._explained)

    def __str__(self) -> str:
        from primus_search.report.explain_text import print_explained

        text = io.StringIO()
        print_explained(self._explained, text)
        return text.getvalue()

    def __repr__(self) -> str:
        return f"<explanation of rank {self._explained.rank}: print() it, or use .data>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def _frame(rows: Sequence[Mapping[str, Any]], name: str) -> "pandas.DataFrame":
    """Rows as a table whose index counts from 1."""
    import pandas

    return pandas.DataFrame.from_records(list(rows), index=pandas.RangeIndex(1, len(rows) + 1, name=name))
