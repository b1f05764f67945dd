"""Runs, trials of `tune` and nights as runs of MLflow or W&B: numbers as metrics, words as parameters, files."""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.files import MAX_TABLE_BYTES, read_text

RUN, NIGHT, TRIALS, SEARCH = "run.json", "nightly.json", "trials", "search"
MOST_WORDS = 500  # characters of a parameter; the store of MLflow refuses longer ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """One run of a tracker, with those inside of it."""

    name: str
    params: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    inside: "tuple[Tracked, ...]" = ()


def tracked(folder: Path) -> Tracked:
    """What a folder of `run`, `tune` or `nightly` holds. Raises `InputError` for another folder."""
    if (folder / TRIALS).is_dir():
        trials = tuple(_trial(one) for one in sorted((folder / TRIALS).iterdir()) if (one / "result.json").is_file())
        search = tracked(folder / SEARCH) if (folder / SEARCH / RUN).is_file() else Tracked(name="")
        return Tracked(name=folder.name, params=search.params, metrics=search.metrics, inside=trials)
    if (folder / RUN).is_file():
        facts = _json(folder / RUN)
        chosen = {key: facts[key] for key in KEPT if key in facts}
        return _of(folder, chosen, ("ranking.csv", "pareto.csv", "report.html"))
    if (folder / NIGHT).is_file():
        facts = _json(folder / NIGHT)
        checks = {f"{one['where']}/{one['name']}": one.get("move") for one in facts.get("checks", ())}
        chosen = {key: facts.get(key) for key in ("sweep", "passed", "started", "seconds", "commit")}
        return _of(folder, chosen | {"move": checks}, ("summary.md", "junit.xml", "report.html"))
    what = f"is no folder of run, tune or nightly: it has no {RUN}, {TRIALS} or {NIGHT}"
    raise InputError([Problem(str(folder), what)])


# Of a run.json.
KEPT = (
    "space", "space_sha256", "model", "hardware", "stack", "framework", "nodes", "gpus", "workload", "method", "seed",
    "exact", "legal", "feasible", "seconds", "best", "finished",
)  # fmt: skip


def _trial(folder: Path) -> Tracked:
    facts = {"result": _json(folder / "result.json")}
    if (folder / "candidate.json").is_file():
        facts |= _json(folder / "candidate.json")
    return _of(folder, facts, ("launch.log",))


def _of(folder: Path, facts: Mapping[str, Any], names: tuple[str, ...]) -> Tracked:
    params, metrics = dict[str, str](), dict[str, float]()
    for key, value in _flat(facts):
        if isinstance(value, int | float) and not isinstance(value, bool):
            if math.isfinite(value):
                metrics[key] = float(value)
        elif value is not None:
            params[key] = str(value)[:MOST_WORDS]
    files = tuple(folder / name for name in names if (folder / name).is_file())
    return Tracked(name=folder.name, params=params, metrics=metrics, files=files)


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves by their path, in the characters that MLflow takes in a name; lists are left out."""
    for key, value in data.items():
        name = prefix + "".join(c if c.isascii() and (c.isalnum() or c in "_-. /") else "_" for c in str(key))
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        elif not isinstance(value, list):
            yield name[:250], value


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_text(path, most=MAX_TABLE_BYTES))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InputError([Problem(str(path), "is no mapping of JSON; the command that wrote it was interrupted")])
    return found


def send(folder: Path, uri: str, experiment: str) -> list[str]:
    """Write a folder to an MLflow store or to W&B; returns the numbers of its runs, the folder's own first.

    uri: `wandb` is the server that W&B is logged in to, `wandb:FOLDER` a folder for `wandb sync`; others are MLflow's.
    """
    name, _, place = uri.partition(":")
    sink = name if name in SINKS else "mlflow"
    package, title, write = SINKS[sink]
    if find_spec(sink) is None:
        what = f"needs {title}; install it with: pip install '{package}', or the extra primus-search[{sink}]"
        raise InputError([Problem("track", what)])
    whole = tracked(folder)
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # a folder is a store, too
    library = import_module(sink)
    refusal = library.Error if sink == "wandb" else library.exceptions.MlflowException
    try:
        return list(write(library, whole, place if sink == name else uri, experiment))
    except (OSError, refusal) as error:
        raise InputError([Problem(f"--to {uri}", f"cannot be written to: {str(error)[:300]}")]) from None


def _to_mlflow(mlflow: Any, one: Tracked, uri: str, experiment: str, parent: str = "") -> Iterator[str]:
    client = mlflow.MlflowClient(tracking_uri=uri)
    known = client.get_experiment_by_name(experiment)
    place = known.experiment_id if known else client.create_experiment(experiment)
    tags = {"mlflow.parentRunId": parent} if parent else {}
    number = client.create_run(place, run_name=one.name, tags=tags).info.run_id
    for key, text in one.params.items():
        client.log_param(number, key, text)
    for key, value in one.metrics.items():
        client.log_metric(number, key, value)
    for path in one.files:
        client.log_artifact(number, str(path))
    client.set_terminated(number)
    yield number
    for child in one.inside:
        yield from _to_mlflow(mlflow, child, uri, experiment, number)


def _to_wandb(wandb: Any, one: Tracked, place: str, project: str, group: str = "") -> Iterator[str]:
    """Runs of one project, those of one folder in one group; words are their configuration, numbers their summary."""
    Path(place or ".").mkdir(parents=True, exist_ok=True)
    where = {"mode": "offline", "dir": place} if place else {}
    names = {"project": project, "name": one.name, "group": group or one.name}
    quiet = wandb.Settings(silent=True, console="off")
    with wandb.init(config=dict(one.params), settings=quiet, **names, **where) as run:
        run.summary.update(dict(one.metrics))
        for path in one.files:
            run.save(path, base_path=path.parent, policy="now")
        yield run.id
    for child in one.inside:
        yield from _to_wandb(wandb, child, place, project, names["group"])


# Where a folder can be written to: the package of its library, how it is called, and what writes.
SINKS: Mapping[str, tuple[str, str, Callable[[Any, Tracked, str, str], Iterator[str]]]] = {
    "mlflow": ("mlflow-skinny>=3.0", "MLflow", _to_mlflow),
    "wandb": ("wandb>=0.19", "W&B", _to_wandb),
}
