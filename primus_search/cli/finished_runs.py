"""Commands on a finished run: `pareto`, `compare`, `export`, `explain`, `bench` and `track`."""

import json
import os
import sys
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from primus_search.base.errors import InputError, Problem
from primus_search.cli.output import ROWS, opened, print_json, run_and_rows

if TYPE_CHECKING:
    from primus_search.analysis.explanation import Explained
    from primus_search.exploration.run_folder.saved_run import SavedRun


def pareto(run: Path | None = None, as_csv: bool = False, as_json: bool = False) -> None:
    """The frontier of memory per GPU against tokens per second per GPU of a run."""
    from primus_search.report.frontier_text import print_saved_frontier

    saved = opened(run)
    if as_csv:
        typer.echo((saved.path / "pareto.csv").read_text(encoding="utf-8"), nl=False)
    elif as_json:
        print_json(list(saved.frontier))
    else:
        print_saved_frontier(saved)


TWO = 2


def compare(words: list[str] | None = None, verbose: bool = False, as_json: bool = False) -> None:
    """Two runs, or two rows of one run, side by side: what changed, and why."""
    from primus_search.analysis.explanation import plain
    from primus_search.analysis.run_comparison import compare as compared
    from primus_search.report.compare_text import print_comparison
    from primus_search.report.short_text import comparison_lines

    (a, rank_a), (b, rank_b) = _sides(list(words or []))
    found = compared(a, b, rank_a, rank_b)
    if as_json:
        print_json(plain(found))
    elif verbose:
        print_comparison(found, sys.stdout)
    else:
        typer.echo("\n".join(comparison_lines(found)))


def _sides(words: "list[str]") -> "tuple[tuple[SavedRun, int], tuple[SavedRun, int]]":
    """What is compared: a run and the rank of its row, twice. Raises InputError for other than two of them."""
    if len(words) == TWO and not all(ROWS.fullmatch(word) for word in words):
        return (opened(Path(words[0])), 1), (opened(Path(words[1])), 1)
    saved, rows = run_and_rows(words)
    if len(rows) != TWO:
        raise InputError([Problem("compare", "needs two run folders, or two rows of one run: compare A B")])
    return (saved, saved.rank_named(rows[0])), (saved, saved.rank_named(rows[1]))


def export(
    words: list[str] | None = None,
    format_name: str = "",
    framework: str = "",
    recipe: str = "",
    out: Path | None = None,
    as_json: bool = False,
) -> None:
    """Write files that start candidates of a run; exit 4 where the framework cannot start one of them.

    --recipe NAME: a script of that recipe of Megatron-Bridge with the keys alone that it has otherwise.
    """
    from primus_search.analysis.exported_rows import chosen_rows, files_of
    from primus_search.files.framework_files import load_framework
    from primus_search.launch.write.launch_files import FORMATS, SLURM, write_all

    if format_name and format_name.partition("@")[0] not in FORMATS:
        raise InputError([Problem("--format", f"{format_name!r} is unknown; use one of {', '.join(FORMATS)}")])
    if recipe and not framework.startswith("nemo") and format_name in ("", SLURM):
        framework = "nemo"
    if recipe and (framework or format_name).partition("@")[0] != "nemo":
        raise InputError(
            [Problem("--recipe", f"recipes are Megatron-Bridge's, not those of {framework or format_name}")]
        )
    if framework and format_name not in ("", SLURM, framework):
        what = f"{format_name} files do not start {framework} jobs; give one of the two"
        raise InputError([Problem("--format", what)])
    saved, rows = run_and_rows(words)
    named = framework or ("" if format_name == SLURM else format_name)
    contract = load_framework(named, where="--framework") if named else None
    files = files_of(saved, chosen_rows(saved, ",".join(rows) or "1", contract), format_name, recipe)
    if as_json:
        typer.echo(json.dumps({name: dict(launch.texts) for name, launch in files.items()}, indent=2))
        return
    for path in write_all(out or saved.path / "exports", files):
        typer.echo(str(path))


def explain(
    words: list[str] | None = None,
    why_not: str = "",
    what_if: list[str] | None = None,
    framework: str = "",
    top: int = 8,
    log: Path | None = None,
    hardware: str = "",
    verbose: bool = False,
    html: Path | None = None,
    as_json: bool = False,
) -> None:
    """Why a candidate of a run is fast or slow, what each knob gives, what would help.

    --why-not "tp=4,pp=2" asks about another configuration, --why-not @launch.sh about the one of a launch file,
    --what-if hardware.nic_GBps=100 about another machine. --log FILE: why the job of a log is slow, by the projection
    of its own row, or of the RUN and row that are named. --html FILE: the page of the run with the candidates of the
    row's cluster.
    """
    if log is not None:
        from primus_search.cli.watch import explain_log

        explain_log(log, list(words or []), hardware, as_json)
        return
    saved, rows = run_and_rows(words)  # before the rest is loaded: most mistakes are a wrong folder
    from primus_search.analysis.explanation import explain as explained

    if framework:
        from primus_search.files.framework_files import load_framework

        saved = saved.under(load_framework(framework, where="--framework"))
    ranks = [saved.rank_named(row) for row in rows or ["1"]]
    if html is not None:
        from primus_search.report.html import write_report

        typer.echo(str(write_report(saved, ranks[0], html)), err=True)
    found = [explained(saved, rank) for rank in ranks]
    answers: list[dict[str, Any]] = []
    for one in found:
        if answers and not as_json:
            typer.echo()
        answers.append(_answer(one, why_not, what_if, top, as_json, verbose))
    if as_json:
        print_json(answers if len(answers) > 1 else answers[0])


def _answer(
    found: "Explained", why_not: str, what_if: list[str] | None, top: int, as_json: bool, verbose: bool
) -> dict[str, Any]:
    """Everything about one candidate, or the answers to --why-not and --what-if: printed, or as data."""
    from primus_search.analysis import why_not as questions
    from primus_search.analysis.explanation import as_data, plain
    from primus_search.cli.output_schema import numbered
    from primus_search.report import explain_text
    from primus_search.report.short_text import explained_lines

    if not why_not and not what_if and as_json:
        return numbered(as_data(found))
    if not why_not and not what_if:
        if verbose:
            explain_text.print_explained(found, sys.stdout)
        else:
            typer.echo("\n".join(explained_lines(found)))
    answers: dict[str, Any] = {}
    if why_not:
        request = questions.parse_request(why_not, found.base, found.evaluator)
        reasons = questions.why_not(found.evaluator, found.base, request)
        answers["why_not"] = plain(reasons)
        if not as_json:
            explain_text.print_why_not(found, reasons, sys.stdout)
    if what_if:
        moved = questions.what_if(found.run, found.evaluator, found.base, what_if, top)
        answers["what_if"] = plain(moved)
        if not as_json:
            explain_text.print_what_if(found, moved, sys.stdout)
    return numbered(answers)


def bench(
    run: Path | None = None,
    device: str = "auto",
    top: int = 4,
    seconds: float = 60.0,
    save_benchmark: Path | None = None,
    load_benchmark: Path | None = None,
    site: Path | None = None,
    hardware: str | None = None,
    as_json: bool = False,
) -> None:
    """Measure the top candidates of a run with real torch layers on this machine, and rank them again.

    With --site: kernels and collectives of this node against what its hardware file expects.
    """
    if site is not None:
        _compare_site(site, hardware, as_json)
        return
    from primus_search.analysis.answer import decide
    from primus_search.analysis.labels import short
    from primus_search.base.units import GB
    from primus_search.cli.output import must_exist
    from primus_search.exploration.expected import RATE
    from primus_search.exploration.run_folder.saved_run import SavedRun, last_run
    from primus_search.exploration.top_up import top_up
    from primus_search.measure.revalidate import MODES
    from primus_search.report.html import write_report

    if device not in MODES or device == "off":
        raise InputError([Problem("--device", f"{device!r} is not one of auto, trace, cpu, cuda")])
    must_exist(load_benchmark, "--load-benchmark")
    folder = run or last_run()
    table, notes = top_up(
        folder, device=device, top_k=top, seconds=seconds, load=load_benchmark, save=save_benchmark, decide=decide
    )
    write_report(SavedRun.open(folder))
    rows = list(islice(table.rows(), top))
    if as_json:
        print_json({"ranking": rows, "notes": notes})
        return
    names = [short(row) for row in rows]
    for rank, (name, row) in enumerate(zip(names, rows, strict=True), start=1):
        figures = f"{row[RATE]:10,.0f} tokens/s/GPU {row['memory_bytes'] / GB:8.2f} GB"
        evidence = f"time {row['time_evidence']}, memory {row['memory_evidence']}"
        typer.echo(f"{rank:3d}  {name:{max(map(len, names))}s} {figures}  {evidence}")
    for note in notes:
        typer.echo(note)


def _compare_site(table: Path, hardware: str | None, as_json: bool) -> None:
    """This node, or points recorded on one, beside its hardware file; what is slow, and what may be done about it."""
    from primus_search.base.html_templates import rendered
    from primus_search.cli.calibrate import measured_table
    from primus_search.files.hardware_files import HOST, load_hardware
    from primus_search.measure.calibrate.site_shares import site_shares

    if hardware is None:
        raise InputError([Problem("--site", "needs --hardware: the file that describes these devices")])
    if not table.exists():
        measured_table("cpu" if hardware == HOST else "cuda", table, hardware, None)
    found = load_hardware(hardware, where="--hardware")
    shares, num_left = site_shares(table, found)
    if as_json:
        found_slow = [asdict(one) | {"is_slow": one.is_slow} for one in shares]
        print_json({"kinds": found_slow, "rows_not_compared": num_left})
    else:
        typer.echo(rendered("site.txt", table=table, name=hardware, shares=shares, num_left=num_left), nl=False)


DEFAULT_URI = "mlruns"


def track(folder: Path, uri: str = "", experiment: str = "primus-search", as_json: bool = False) -> None:
    """Write a run, the trials of `tune` or a night to MLflow or W&B: numbers as metrics, words as parameters."""
    from primus_search.session.tracking import send

    uri = uri or os.environ.get("MLFLOW_TRACKING_URI", "") or DEFAULT_URI
    runs = send(folder, uri, experiment)
    if as_json:
        print_json({"uri": uri, "runs": runs})
    else:
        typer.echo(f"{len(runs)} runs in {uri}: {', '.join(runs)}")
