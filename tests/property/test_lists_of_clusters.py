"""A list of hardware, frameworks and node counts in one question equals its members, each searched alone.

`SEARCH_LISTS=200` tries so many random lists, with `SEARCH_SEED` another draw.
"""

import os
import random
from pathlib import Path
from typing import Any

import pytest

from primus_search import search
from primus_search.analysis.explanation import Explained
from primus_search.analysis.exported_rows import chosen_rows, files_of
from primus_search.base.errors import InputError, NothingFits
from primus_search.declare import load_space, make_space
from primus_search.exploration.funnel import Options, run_search
from primus_search.exploration.result import ClusterResult, SearchResult, is_on
from primus_search.exploration.run_folder.candidates_file import read_kept
from primus_search.exploration.run_folder.folder import csv_bytes
from primus_search.exploration.run_folder.saved_run import SavedRun
from primus_search.report.html import content, page
from primus_search.space import ClusterChoice, Enumerator

COUNT, SEED = int(os.environ.get("SEARCH_LISTS", "6")), int(os.environ.get("SEARCH_SEED", "11"))
HARDWARE = {
    "nvidia": ("h100", "h200", "b200", "gb200", "a100_80"),
    "amd": ("mi300x", "mi325x", "mi355x"),
}
ON_BOTH = ("megatron", "torchtitan")
MODELS = ("llama3_8b", "mixtral_8x7b", "llama3.1_70b", "qwen3_4b")
NARROW: dict[str, list[Any]] = {
    "tp": [[1, 2], [1, 8], "auto"], "pp": [1, [1, 2], [2, 4]], "cp": [1], "micro_batch_size": [1, [1, 2]],
    "recompute": ["none", ["none", "full"]], "schedule": ["1f1b", ["1f1b", "zbv"], "auto"], "vpp": [1, [1, 2]],
    "fp8": ["none", "auto"], "ep": [1, [1, 8]], "overlap_grad_reduce": [True],
}  # fmt: skip


def random_list(rng: random.Random) -> dict[str, Any]:
    """A small space over two to four clusters that differ in hardware, framework or nodes."""
    kind = rng.choice(["hardware", "vendors", "framework", "nodes", "both"])
    nodes: Any = rng.choice([1, 2, 4])
    if kind in ("nodes", "both"):
        nodes = rng.sample([1, 2, 4, 8], 2 if kind == "both" else rng.choice([2, 3]))
    data: dict[str, Any] = {"model": rng.choice(MODELS), "nodes": nodes}
    every = [*HARDWARE["nvidia"], *HARDWARE["amd"]]
    if kind in ("vendors", "both"):
        data["hardware"] = [rng.choice(HARDWARE["nvidia"]), rng.choice(HARDWARE["amd"])]
        rng.shuffle(data["hardware"])
    elif kind == "hardware":
        data["hardware"] = rng.sample(every, rng.choice([2, 3]))
    else:
        data["hardware"] = rng.choice(every)
    if kind == "framework":
        data["framework"] = rng.sample(ON_BOTH, 2)
    elif rng.random() < 0.3:
        data["framework"] = rng.choice([*ON_BOTH, "any"])
    axes = {name: rng.choice(choices) for name, choices in NARROW.items()}
    workload = {"seq_length": rng.choice([4096, 8192]), "global_batch_size": rng.choice([64, 256])}
    return data | {"workload": workload, "space": axes, "benchmark": {"device": "off"}}


def member(data: dict[str, Any], choice: ClusterChoice, machine: tuple[str, str | None]) -> dict[str, Any]:
    """The question about one cluster of a list."""
    hardware, framework = machine
    alone = data | {"hardware": hardware, "nodes": choice.cluster.num_nodes}
    return alone | ({"framework": framework} if framework else {})


def machines(data: dict[str, Any]) -> list[tuple[str, str | None]]:
    """Hardware and framework of every cluster of a list, in the order of its clusters."""
    listed = [
        one if isinstance(one, list) else [one] for one in (data["hardware"], data.get("framework"), data["nodes"])
    ]
    return [(hardware, framework) for hardware in listed[0] for framework in listed[1] for _ in listed[2]]


def searched(data: dict[str, Any]) -> SearchResult | None:
    """The search; None where nothing is legal or fits."""
    try:
        return run_search(make_space(data), Options(workers=1))
    except (NothingFits, InputError):
        return None


def rows_of(found: ClusterResult) -> tuple[bytes, ...]:
    """Ranking, frontier and best of each group, as files would hold them, and the counts."""
    tables = (found.ranking, found.frontier, found.leaders)
    counts = (found.raw, found.legal, found.looked_at, found.feasible, dict(found.removed), dict(found.reasons))
    numbers = [table.indices.tolist() for table in tables]
    return (*(csv_bytes(table.rows()) for table in tables), repr(numbers).encode(), repr(counts).encode())


@pytest.mark.in_turn
@pytest.mark.daily(1)
@pytest.mark.parametrize("number", range(COUNT))
def test_a_list_equals_its_members(number: int, tmp_path: Path) -> None:
    data = random_list(random.Random(SEED * 100_003 + number))
    path = tmp_path / "space.yaml"
    path.write_text(str(data), encoding="utf-8")
    space = load_space(path, environ={})
    alone = [searched(member(data, *one)) for one in zip(space.clusters, machines(data), strict=True)]
    try:
        together = search(space, Options(workers=1), out=tmp_path / "run")
    except (NothingFits, InputError):
        assert not any(alone)
        return
    for found, one in zip(together.clusters, alone, strict=True):
        if one is None:
            assert not len(found.ranking)
        else:
            assert rows_of(found) == rows_of(one.clusters[0]), data
            assert found.choice.axes == one.clusters[0].choice.axes
    _holds_every_member(tmp_path / "run", together)


def _holds_every_member(folder: Path, result: SearchResult) -> None:
    """The folder is complete, and its commands answer for a row of each cluster."""
    for name in ("run.json", "ranking.csv", "pareto.csv", "scaling.csv", "candidates.parquet", "report.html"):
        assert (folder / name).is_file(), name
    saved = SavedRun.open(folder)
    assert [one["reason"] for one in saved.facts["removed"]] == [result.reasons[name] for name in result.removed]
    assert saved.space.clusters == result.space.clusters
    kept = read_kept(folder)
    for place, found in enumerate(result.clusters):
        if not len(found.ranking):
            continue
        rank = next((n for n, row in enumerate(saved.ranking, start=1) if is_on(row, found.choice)), 0)
        if rank:
            explained = Explained(saved, rank)
            of_cluster = saved.kept(place)
            assert explained.choice == found.choice and len(of_cluster) and explained.figures.fits
            shown = content(saved, rank)
            assert shown["kept"] == len(of_cluster) and page(saved, shown)
            if not found.choice.framework.is_any:
                assert files_of(saved, chosen_rows(saved, str(rank), None), "")
        mine = [row for row in kept.select(["cluster", "index", "tp", "pp"]).to_pylist() if row["cluster"] == place][
            :50
        ]
        again = Enumerator(result.space, found.choice).rows([row["index"] for row in mine])
        assert [(row["tp"], row["pp"]) for row in mine] == list(zip(again.tp.tolist(), again.pp.tolist(), strict=True))
