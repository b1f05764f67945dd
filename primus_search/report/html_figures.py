"""Figures of report.html beside its candidates: scaling, sliders, own runs, and the exchanges of the timeline."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from primus_search.analysis.explanation import Explained
from primus_search.analysis.labels import short
from primus_search.analysis.page.what_if_grid import sliders
from primus_search.base.units import GB
from primus_search.exploration.answer_values import Choice
from primus_search.exploration.neighbours import Evaluator, values_of
from primus_search.exploration.scaling_table import Rung
from primus_search.report.scaling_text import machine_words, scaling_cells
from primus_search.schedule import Timeline
from primus_search.space import ClusterChoice, Goal

CURVE = ("world", "tokens_per_s_per_gpu", "low", "high", "days", "cost_USD", "energy_MWh")


def scaling(facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """The scaling table of run.json as `cells` of its columns and as `curve`; None with one cluster, and of a run
    whose table another version wrote with other columns."""
    rows = facts.get("scaling", ())
    if len(rows) < 2 or any(set(one) != {field.name for field in fields(Rung)} for one in rows):
        return None
    rungs = [_rung(one) for one in rows]
    goal = Goal(**facts["goal"])
    curve = [
        {"machine": machine_words(rung, rungs)} | {name: rung.__getattribute__(name) for name in CURVE}
        for rung in rungs
    ]
    return {"cells": scaling_cells(rungs, goal), "curve": curve}


def _rung(data: Mapping[str, Any]) -> Rung:
    """A rung of run.json, where null stands for what is infinite."""
    finite = {name: math.inf if value is None else value for name, value in data.items()}
    return Rung(**finite | {"labels": tuple((name, word) for name, word in data["labels"])})


def what_if(e: Explained, choices: Sequence[Choice], tokens: float) -> dict[str, Any] | None:
    """Sliders over the choices on the cluster of a row, by letter; None where nothing can be changed."""
    mine = [one for one in choices if e.run.cluster(one.rank) is e.choice]

    def known(moved: ClusterChoice) -> Evaluator | None:
        same = (one for one in e.run.space.clusters if (one.cluster, one.framework) == (moved.cluster, moved.framework))
        return next((e.run.evaluator(one) for one in same), None)

    found = sliders(e.evaluator, [values_of(e.run.candidate(one.rank)) for one in mine], known) if mine else []
    base = [one.rate for one in mine]
    return {
        "letters": [one.letter for one in mine], "base": found[0]["rates"][found[0]["at"]] if found else base,
        "gpus": e.choice.cluster.world, "price": e.choice.price_per_gpu_hour_USD, "tokens": tokens, "sliders": found,
    } if found else None  # fmt: skip


def own_runs(e: Explained) -> list[dict[str, Any]]:
    """Measured runs of the job that the stack has learned: GB as projected, measured tokens/s/GPU, short name."""
    own = e.evaluator.own_runs
    if own is None:
        return []
    memory = [float(own.projector.project(one).memory.total[0]) / GB for one in own.configurations]
    return [
        {"GB": held, "rate": rate, "what": short(one.row(0))}
        for one, held, rate in zip(own.configurations, memory, own.measured, strict=True)
    ]


INSIDE = ("tensor_comm", "context_comm", "expert_comm", "shard_comm")  # exposed within passes
AFTER = ("gradient_comm", "optimizer", "overhead", "stragglers")  # behind the last pass


def exchanges(e: Explained, line: Timeline) -> dict[str, Any]:
    """Projected exchanges of the busiest rank: shares of its passes that are exposed, and seconds behind the last."""
    step, table = e.figures.step, line.table
    passes = slice(*table.offsets[e.busiest : e.busiest + 2])
    busy_s = float(np.sum(line.end[passes] - line.start[passes]))
    return {
        "of": e.busiest,
        "inside": {name: step[name] / busy_s for name in INSIDE if step[name] > 0.0},
        "after": {name: step[name] for name in AFTER if step[name] > 0.0},
    }
