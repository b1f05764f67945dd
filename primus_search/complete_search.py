"""A whole search, as `primus-search run` makes it: rank, re-validate with torch, write the run folder.

result = search("llama3_8b_mi300x", overrides=["nodes=2"], out="results/mine")
result.ranking.row(0)
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from primus_search.declare.snapshot import INDEX
from primus_search.exploration.exhaustive.collect import Progress, silent
from primus_search.exploration.funnel import Options, run_search
from primus_search.exploration.result import SearchResult
from primus_search.exploration.revalidation import revalidated
from primus_search.exploration.run_folder.folder import INPUTS, RunFolder, StoreError, fingerprint
from primus_search.space import Space


def search(
    space: Space | Mapping[str, Any] | str | Path,
    options: Options | None = None,
    *,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    load_benchmark: Path | None = None,
    save_benchmark: Path | None = None,
    token_budget: float = 0.0,
    progress: Callable[[], AbstractContextManager[Progress]] = lambda: nullcontext(silent),
    on_result: Callable[[SearchResult], None] | None = None,
    on_written: Callable[[Path], None] | None = None,
) -> SearchResult:
    """The best candidates of a space on each of its clusters, re-validated as the space's `benchmark` says.

    space           a `Space`, the content of a space file, its path, or the name of one that ships with the package
    options         engine, workers, rows kept, whether to resume; see `exploration.Options`
    overrides       `key=value` texts as after `--set`: `search.top_k=5`, `benchmark.device="off"`
    out             run folder to write (tables, run.json, report.html); None writes nothing
    load_benchmark, save_benchmark   file of measurements to take, and to write those used to
    token_budget    tokens to train on, for days and cost in `scaling.csv`
    progress        opens a callback for the state of the search; closed before re-validation
    on_result       called with the result before the run folder is written, which its failure does not prevent
    on_written      called with the run folder once it is complete

    Raises InputError with every problem of the space or when no candidate is legal, NothingFits when none fits.
    """
    space = as_space(space, overrides)
    options = options or Options()
    with _opened(out, options) as folder:
        if folder is not None and not (options.resume and (folder.path / INPUTS / INDEX).is_file()):
            keep_inputs(space, folder.path)
        with progress() as tick:
            result = run_search(space, replace(options, folder=folder, progress=tick))
        try:
            files = {"load": load_benchmark, "save": save_benchmark}
            result = _with_own_runs(revalidated(result, **files, ray_address=options.ray_address))
            if on_result is not None:
                on_result(result)
        finally:
            if folder is not None:
                folder.write(result, token_budget=token_budget)
                from primus_search.report.html import write_report  # after the tables: its imports take a while

                write_report(folder.path)
                if on_written is not None:
                    on_written(folder.path)
    return result


def _with_own_runs(result: SearchResult) -> SearchResult:
    """The result with the measured rates of rows that a learned stack's own runs are of."""
    if not any(found.choice.cluster.stack.runs_file for found in result.clusters):
        return result
    from primus_search.learn.own_runs import with_own_runs  # reads tables, whose imports take a while

    return with_own_runs(result)


def keep_inputs(space: Space, folder: Path) -> None:
    """Write the texts that a space file's space was loaded from into a run folder; raises StoreError.

    Nothing is written for a space from Python, and where a file was edited since it was loaded.
    """
    from primus_search.declare import load_space
    from primus_search.declare.hardware_files import host_hardware
    from primus_search.declare.snapshot import Snapshot, recorded

    shutil.rmtree(folder / INPUTS, ignore_errors=True)
    if not space.source:
        return
    overrides = [f"{one.key}={one.value}" for one in space.overrides]
    hosts: list[Path] = []

    def host_file() -> Path:
        hosts.append(host_hardware())
        return hosts[-1]

    with recorded() as texts:
        again = load_space(space.source, overrides=overrides, environ={}, host_file=host_file)
    if fingerprint(again) != fingerprint(space):
        return
    try:
        Snapshot.of(texts, space.source, str(hosts[0].resolve()) if hosts else "").write(folder)
    except OSError as error:
        raise StoreError(f"{folder}: its inputs cannot be kept: {error.strerror}") from error


def as_space(space: Space | Mapping[str, Any] | str | Path, overrides: Sequence[str] = ()) -> Space:
    """The typed space; raises InputError with every problem of what was given."""
    if isinstance(space, Space):
        if overrides:
            raise ValueError("overrides change a space file; change a Space with dataclasses.replace")
        return space
    from primus_search.declare import load_space, make_space

    if isinstance(space, Mapping):
        return make_space(space, overrides=overrides)
    return load_space(space, overrides=overrides)


def _opened(out: str | Path | None, options: Options) -> AbstractContextManager[RunFolder | None]:
    """The run folder, locked while the search runs."""
    return nullcontext() if out is None else RunFolder.open(Path(out), resume=options.resume)
