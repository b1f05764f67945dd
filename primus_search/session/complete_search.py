"""A whole search, as `primus-search run` makes it: rank, re-validate with torch, write the run folder.

result = search(load_space("llama3_8b_mi300x", overrides=["nodes=2"]), out="results/mine")
result.ranking.row(0)
"""

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from primus_search.analysis.answer import answered
from primus_search.base.guards.files import recorded
from primus_search.base.guards.interrupts import Interrupted
from primus_search.declare.recorded_space import load_recorded
from primus_search.exploration.exhaustive.collect import Progress, silent
from primus_search.exploration.funnel import Options, run_search
from primus_search.exploration.result import SearchResult
from primus_search.exploration.revalidation import revalidated
from primus_search.exploration.run_folder.folder import INPUTS, RunFolder, StoreError
from primus_search.exploration.run_folder.question import fingerprint
from primus_search.exploration.run_folder.saved_run import SavedRun, remember
from primus_search.files.snapshot import INDEX, Snapshot
from primus_search.space import Space


def search(
    space: Space,
    options: Options | None = None,
    *,
    out: str | Path | None = None,
    load_benchmark: Path | None = None,
    save_benchmark: Path | None = None,
    baseline: Path | None = None,
    progress: Callable[[], AbstractContextManager[Progress]] = lambda: nullcontext(silent),
    on_result: Callable[[SearchResult], None] | None = None,
    on_written: Callable[[Path], None] | None = None,
) -> SearchResult:
    """The best candidates of a space on each of its clusters, re-validated as the space's `benchmark` says.

    options         engine, workers, rows kept, whether to resume; see `exploration.funnel.Options`
    out             run folder to write (tables, run.json, report.html); None writes nothing
    load_benchmark, save_benchmark   file of measurements to take, and to write those used to
    baseline        the experiment that is run now: its place in the ranking is written to run.json
    progress        opens a callback for the state of the search; closed before re-validation
    on_result       called with the result before the run folder is written, which its failure does not prevent
    on_written      called with the run folder once it is complete

    Raises InputError when no candidate is legal or the baseline cannot be read, NothingFits when none fits.
    """
    options = options or Options()
    with _opened(out, options) as folder:
        if folder is not None:
            folder.must_be_same(space, resume=options.resume, force=options.force)
        if folder is not None and not (options.resume and (folder.path / INPUTS / INDEX).is_file()):
            keep_inputs(space, folder.path, baseline, options.inputs)
        with progress() as tick:
            result = run_search(space, replace(options, folder=folder, progress=tick))
        try:
            files = {"load": load_benchmark, "save": save_benchmark}
            if not result.interrupted_by:
                result = revalidated(result, **files, ray_address=options.ray_address)
            result = _with_own_runs(result)
            if baseline is not None:
                from primus_search.analysis.own_configuration import baseline_of

                result = replace(result, baseline=baseline_of(result, baseline))
            result = answered(result)
            if on_result is not None:
                on_result(result)
        except (KeyboardInterrupt, Interrupted):
            result = replace(result, notes=(*result.notes, "interrupted before the best rows were re-validated"))
            raise
        finally:
            if folder is not None:
                folder.write(result if result.answer else answered(result))
                from primus_search.report.html import write_report  # after the tables: its imports take a while

                write_report(SavedRun.of(result, folder.path))
                if options.is_last_run:
                    remember(folder.path)
                if on_written is not None:
                    on_written(folder.path)
    return result


def _with_own_runs(result: SearchResult) -> SearchResult:
    """The result with the measured rates of rows that a learned stack's own runs are of."""
    if not any(found.choice.cluster.stack.runs_file for found in result.clusters):
        return result
    from primus_search.exploration.own_rows import with_own_runs  # reads tables, whose imports take a while

    return with_own_runs(result)


def keep_inputs(space: Space, folder: Path, baseline: Path | None = None, inputs: Snapshot | None = None) -> None:
    """Write the texts that a space file's space and a baseline were loaded from into a run folder; raises StoreError.

    inputs: of the space, where it was loaded with them; else its file is read again, and nothing is written for a space
    from Python and where a file was edited since it was loaded.
    """
    shutil.rmtree(folder / INPUTS, ignore_errors=True)
    if not space.source:
        return
    if inputs is None:
        again, inputs = load_recorded(space.source, [f"{one.key}={one.value}" for one in space.overrides], environ={})
        if fingerprint(again) != fingerprint(space):
            return
    if baseline is not None:
        from primus_search.analysis.own_configuration import must_be_readable

        with recorded() as texts:
            must_be_readable(baseline)
        beside = {str(path): content for path, content in texts.items()}
        inputs = replace(inputs, texts=dict(sorted((dict(inputs.texts) | beside).items())))
    try:
        inputs.write(folder)
    except OSError as error:
        raise StoreError(f"{folder}: its inputs cannot be kept: {error.strerror}") from error


def _opened(out: str | Path | None, options: Options) -> AbstractContextManager[RunFolder | None]:
    """The run folder, locked while the search runs."""
    return nullcontext() if out is None else RunFolder.open(Path(out), resume=options.resume)
