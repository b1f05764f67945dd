"""Small finished runs for the tests of reports: a second or two each, made by the real search."""

from pathlib import Path
from typing import Any

import yaml

from primus_search.analysis.answer import answered
from primus_search.declare import load_space
from primus_search.exploration.funnel import Options, run_search
from primus_search.exploration.run_folder.folder import RunFolder

AXES: dict[str, Any] = {
    "tp": [1, 2],
    "pp": [1, 2, 4],
    "vpp": [1, 2],
    "ep": [1, 2, 4],
    "etp": 1,
    "cp": 1,
    "micro_batch_size": [1, 2],
    "schedule": ["1f1b", "interleaved", "zb-h1"],
    "fp8": ["none", "hybrid"],
    "recompute": ["none", "full"],
    "loss_fusion": True,
    "sharding": ["distributed_optimizer", "fsdp2"],
    "pipeline_layout": ["even", "balanced"],
    "sync_free_stage": [0, 1, 3],
}


def make_run(folder: Path, *, keep: int = 5000, **changes: Any) -> Path:
    """A finished run folder `folder/run` of a small space, its file beside it; `changes` are keys of the file."""
    data: dict[str, Any] = {
        "name": "small",
        "model": "tiny_moe",
        "hardware": "mi355x",
        "nodes": 2,
        "framework": "any",
        "workload": {"seq_length": 1024, "global_batch_size": 64},
        "space": AXES,
        "benchmark": {"device": "off"},
    } | changes
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "space.yaml"
    source.write_text(yaml.safe_dump(data), encoding="utf-8")
    run = RunFolder.open(folder / "run", resume=False)
    try:
        run.write(answered(run_search(load_space(source, environ={}), Options(keep=keep, workers=1, folder=run))))
    finally:
        run.close()
    return folder / "run"
