"""Projected memory against processes that really trained on a CPU, configuration by configuration.

Data: results/measurements/truth.json, trained 2026-11-21 (docs/dev/truth_log.md): highest resident memory of a process
less that of one that holds nothing of a model. A training process of these sizes holds 5 to 19 MB that are no tensor of
the model and whose holder is not known, of 38 to 220 MB.
"""

import json
from dataclasses import replace
from pathlib import Path

from primus_search.cost.memory.chunk_memory import MemoryTable
from primus_search.files.hardware_files import load_hardware, load_stack
from primus_search.values.job import Job
from primus_search.values.machine.accelerator import Footprint
from primus_search.values.machine.cluster import Cluster
from tools.truth.case_space import WORKLOAD, legal

TRUTH = Path(__file__).resolve().parents[2] / "results" / "measurements" / "truth.json"


def errors() -> dict[str, float]:
    """Projected over trained memory less 1, of the whole process, by configuration."""
    trained = {row["name"]: row for row in json.loads(TRUTH.read_text(encoding="utf-8"))["rows"] if not row["failure"]}
    hardware, found = load_hardware("h100"), {}
    network, stack = replace(hardware.network, gpus_per_node=2), load_stack("host")
    cluster = Cluster(accelerator=hardware.accelerator, network=network, stack=stack, num_nodes=1)
    for case in legal(cluster):
        if case.name not in trained:
            continue
        row = trained[case.name]
        host = replace(hardware.accelerator, hbm_bytes=1e12, footprint=Footprint(context_bytes=row["baseline_bytes"]))
        memory = MemoryTable(Job(case.model, replace(cluster, accelerator=host), WORKLOAD)).memory(case.row)
        found[case.name] = float(memory.total[0]) / row["trained_bytes"] - 1.0
    assert len(found) == len(trained)
    return found


KINDS = ("gpipe", "1f1b", "v2", "fsdp2", "tp2", "dp2", "ep2")


def test_every_way_to_split_a_step_is_within_four_percent() -> None:
    found = errors()
    trained = [kind for kind in KINDS if any(kind in name for name in found)]
    assert len(trained) >= len(KINDS) - 1  # which configurations are trained follows from their projected speed
    assert {name: error for name, error in found.items() if abs(error) > 0.04} == {}
