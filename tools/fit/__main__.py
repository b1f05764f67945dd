"""`python -m tools.fit`: the shipped numbers of stacks and devices, fitted to tables of training runs."""

from pathlib import Path
from typing import Annotated

import typer

from primus_search.cli.validate import show
from primus_search.evidence.published.convert import validated
from primus_search.files.evidence_files import load_sites
from tools.fit import first_contact as contact
from tools.fit.contact_pages import write_errors, write_figures
from tools.fit.own_runs import lines as own_run_lines
from tools.fit.supposed_software import supposed_bands
from tools.fit.training_run import SPLITS, fit_cases, left_out_rates, lines, read_cases, split_of, write_training
from tools.fit.write_ranges import device_ranges, stack_ranges, write_ranges, write_switches

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)

Tables = Annotated[Path, typer.Argument(help="CSV of training runs, or a .txt file that lists several.")]
LeaveOut = Annotated[str, typer.Option(help=f"Score every run by a fit without its group, one of {', '.join(SPLITS)}.")]


@app.command()
def training(
    tables: Tables,
    into: Annotated[Path | None, typer.Option(help="Write into this folder, laid out like hardware/.")] = None,
    vendor: Annotated[str, typer.Option(metavar="amd|nvidia", help="Fit to runs on this vendor's devices.")] = "",
) -> None:
    """Fit stacks and training rates."""
    found = fit_cases(read_cases(tables, vendor))
    typer.echo("\n".join(lines(found)))
    if into is not None:
        write_training(found, into, vendor)


@app.command()
def validate(
    tables: Tables,
    leave_out: LeaveOut = "source and model",
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Also write a page with all rows.")] = None,
) -> None:
    """`primus-search validate` with every run projected by numbers fitted to the other groups (half a minute)."""
    split_of(leave_out)  # refused before the tables are read
    show(validated(tables).with_rates(left_out_rates(read_cases(tables), leave_out)), tables.name, as_json, html)


@app.command()
def ranges(
    tables: Tables,
    measurements: Annotated[Path, typer.Option(help="CSV of measured kernels (docs/cost/gemm.md).")],
    into: Annotated[Path, typer.Option(help="Folder for devices.yaml and stacks.yaml; beside it switches/.")],
) -> None:
    """Sizes of everything that was measured of devices and stacks, and switches that ran together."""
    devices = device_ranges(measurements, tables)
    write_ranges(devices, into / "devices.yaml", "Sizes of measured kernels, collectives and memory peaks per device.")
    write_ranges(stack_ranges(tables), into / "stacks.yaml", "Training runs of each stack: GPUs, sequence length.")
    write_switches(tables, into.parent / "switches" / "measured.yaml")


@app.command("first-contact")
def first_contact(
    tables: Tables,
    others: Annotated[list[Path], typer.Argument(help="CSVs of runs that are in no fit.")],
    sites: Annotated[Path, typer.Option(help="The file of sites.")] = Path("hardware/sites/first_contact.yaml"),
    into: Annotated[
        bool, typer.Option("--write", help="Write the fitted numbers into it, and figures into README.md and docs.")
    ] = False,
) -> None:
    """Errors of a cluster that no fit has seen, fitted by leaving whole publishers out; every publisher's errors."""
    rows, makers = contact.seen(tables, others), contact.words(sites, "makers")
    rows += contact.left_out_trainers(rows, makers)
    apart = contact.LeftOut.of(rows, makers)
    typer.echo("\n".join(contact.table(apart)))
    found = apart.calibrated(contact.fitted_errors(apart.publishers, makers, load_sites().errors))
    typer.echo(str(found))
    if into:
        write_errors(found, rows, sites)
        memory = contact.verdicts([tables, *others], makers)
        write_figures(apart, memory, Path("README.md"), Path("docs/fidelity.md"))


@app.command("own-runs")
def own_runs(
    tables: Tables,
    others: Annotated[list[Path], typer.Argument(help="CSVs of runs that are in no fit.")],
    draws: Annotated[int, typer.Option(help="Random draws of 3 and of 5 runs; three times as many single ones.")] = 6,
    mixed: Annotated[bool, typer.Option("--mixed", help="One stack of all software of a publisher.")] = False,
) -> None:
    """Errors of the stack that `learn` writes from 1, 3 and 5 runs of a publisher that no fit saw."""
    typer.echo("\n".join(own_run_lines(tables, others, draws, is_mixed=mixed)))


@app.command()
def supposed(hardware: Annotated[list[str], typer.Argument(help="Names of hardware files.")]) -> None:
    """Error bands of software that a space does not name, for the default stack of each device."""
    for name in hardware:
        typer.echo("\n".join(supposed_bands(name)))


if __name__ == "__main__":
    app()
