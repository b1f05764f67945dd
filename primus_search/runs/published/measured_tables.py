"""Tables of measured runs of any form: records as they are, published tables converted, lists of tables."""

from dataclasses import replace
from pathlib import Path

from primus_search.declare.hardware_files import load_stack
from primus_search.declare.record_table import read_records
from primus_search.runs.published.convert import converted_rows
from primus_search.runs.published.run_table import is_published, read_rows, tables
from primus_search.runs.validate import Validation, validate_runs
from primus_search.runs.validate.undescribed import with_undescribed
from primus_search.values.measured_run import RunTable, on_stack


def measured_table(path: Path) -> RunTable:
    """The runs of a CSV, or of every table that a list names. Raises InputError for a file that is no such table."""
    found = [_part(one, vendor) for one, vendor in tables(path).items()]
    return RunTable(
        runs=tuple(run for table in found for run in table.runs),
        skipped=tuple(one for table in found for one in table.skipped),
    )


def _part(path: Path, vendor: str) -> RunTable:
    """The runs of a table; with a vendor those of its devices, and no word of what is skipped."""
    whole = converted_rows(read_rows(path)) if is_published(path) else read_records(path)
    if not vendor:
        return whole
    return RunTable(runs=tuple(run for run in whole.runs if run.cluster.accelerator.vendor == vendor), skipped=())


def validated(path: Path, stack: str | None = None) -> Validation:
    """Every run of a table projected; with `stack` on that software, what a run overrides in its own stays.

    A run whose software nobody described has the rates of the mixture over stacks.
    """
    table = measured_table(path)
    if stack is not None:
        loaded = load_stack(stack)
        table = replace(table, runs=tuple(on_stack(run, loaded) for run in table.runs))
    return with_undescribed(validate_runs(table))
