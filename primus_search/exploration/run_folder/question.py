"""`question.json`: the question of a search, so that a folder never mixes the results of two searches."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from primus_search.base.errors import InputError, Problem
from primus_search.base.guards.files import exists, read_mapping, write_whole
from primus_search.space import AXES, Space

QUESTION = "question.json"
MOST_BYTES = 4 * 1024 * 1024
EFFORT = ("method", "budget_candidates", "budget_seconds", "budget_evaluations", "top_k")
"""Settings of a search that change how much of the answer is looked for, not what is asked."""
LONGEST, MOST_NAMED = 60, 6
HASH = "sha256"


def question_of(space: Space) -> dict[str, str]:
    """The question of a search, by words that a user knows, and the hash of all that decides its answer."""
    search = asdict(space.search)
    found = {"model": space.model.name}
    found |= {name: str(value) for name, value in asdict(space.workload).items()}
    parts = [(one.cluster.num_nodes, one.cluster.accelerator.name, one.cluster.stack.reference, one.framework.name)
             for one in space.clusters]  # fmt: skip
    for name, values in zip(("nodes", "hardware", "stack", "framework"), zip(*parts, strict=True), strict=True):
        found[name] = ", ".join(dict.fromkeys(map(str, values)))
    for name in AXES:
        found[name] = ", ".join(dict.fromkeys(str(v) for one in space.clusters for v in one.axis(name).values))
    found["constraints"] = "; ".join(constraint.text for constraint in space.constraints)
    found |= {f"search.{name}": str(value) for name, value in search.items() if name not in EFFORT}
    default = type(space.search)()
    same_effort = replace(space.search, **{name: getattr(default, name) for name in EFFORT})
    return found | {HASH: fingerprint(replace(space, search=same_effort))}


def fingerprint(space: Space) -> str:
    """A hash of everything a search's answer depends on: model, clusters, workload, axes, constraints, settings."""
    model = replace(space.model, source="")  # where a file lies decides nothing
    constraints = [constraint.text for constraint in space.constraints]
    content = repr([model, space.workload, space.clusters, constraints, space.search])
    return hashlib.sha256(content.encode()).hexdigest()


def must_be_same(folder: Path, space: Space, *, resume: bool, force: bool) -> None:
    """Note the question of a folder's run. Raises InputError where the folder holds the run of another one.

    force: replace it, its results included.
    """
    question, kept = question_of(space), _kept(folder)
    if kept is not None and kept[HASH] != question[HASH]:
        changes = _differences(kept, question)
        if resume:
            what = f"was asked something else ({changes}); give what it was given, or leave out --resume"
            raise InputError([Problem(f"--resume {folder}", what)])
        if not force:
            what = f"holds the run of another question ({changes}); choose another folder, or replace it with --force"
            raise InputError([Problem(f"--out {folder}", what)])
        for name in ("run.json", "journal.bin", "ranking.csv", "pareto.csv", "scaling.csv", "candidates.parquet",
                     "report.html", "study.log"):  # fmt: skip
            (folder / name).unlink(missing_ok=True)
    write_whole(folder / QUESTION, json.dumps(question, indent=2) + "\n")


def _kept(folder: Path) -> Mapping[str, str] | None:
    """The question of the folder's run; None where it has none, is of an older version or damaged."""
    file = folder / QUESTION
    if not exists(file) or not any((folder / name).exists() for name in ("run.json", "journal.bin")):
        return None
    found = read_mapping(file, most=MOST_BYTES) or {}
    return found if HASH in found and all(isinstance(one, str) for one in found.values()) else None


def _differences(kept: Mapping[str, str], question: Mapping[str, str]) -> str:
    """`nodes 2, now 4; tp 1, 2, now 8`."""
    names = (name for name in dict.fromkeys([*kept, *question]) if name != HASH)
    changed = [name for name in names if kept.get(name) != question.get(name)]
    words = [f"{name} {_short(kept.get(name))}, now {_short(question.get(name))}" for name in changed[:MOST_NAMED]]
    more = [f"and {len(changed) - MOST_NAMED} more"] if len(changed) > MOST_NAMED else []
    return "; ".join(words + more) or "a number of its model, hardware or stack file"


def _short(text: str | None) -> str:
    if not text:
        return "none"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
