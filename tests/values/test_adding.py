"""docs/dev/adding.md: a toy knob, schedule and cost effect in a copy of the package need the files listed there."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import primus_search
from primus_search.models.model_files import load_model
from tests.learning.test_one_reader import logged

PACKAGE = Path(primus_search.__file__).parent
ROOT = PACKAGE.parent

WORDS = """

class Toy(IntFlag):
    NONE = 0
    NORMS = 1
    HEADS = 2
"""
ROW = """
[toy]
kind = "modules"
words = "Toy"
summary = "Modules whose gradients are not kept."
enters = "state"
default = "none"
auto = ["none", "norms", "norms+heads"]
label = "toy:{toy}"
"""
RULE = """
[[every_job]]
name = "toy_without_pipeline"
holds = "toy == 'none' or pp == 1"
reason = "a toy runs without pipeline"
"""
COLUMN = "    recompute: cached_property[Ints] = cached_property(lambda s: s._c.recompute)\n"
FORMULA = """

_without_toy = layer_state


def layer_state(model: Model, stack: Stack, kind: LayerKind, s: Share) -> ModelState:
    from dataclasses import replace

    found = _without_toy(model, stack, kind, s)
    return replace(found, gradients=found.gradients * (1.0 - 0.25 * (s.toy & 1) - 0.125 * (s.toy & 2)))
"""
KEY = """knobs:
  toy:
    key: toy_modules
    source: "a toy"
    modules: {norms: norms, heads: heads}
    beside:
      modules: {uses_toys: true}
    values:
      none: {}
"""
KNOB = {
    "primus_search/values/knobs/values.py": (None, WORDS),
    "primus_search/values/knobs/knobs.toml": (None, ROW),
    "primus_search/values/candidates.py": ("    offload_layers: Ints\n", "    offload_layers: Ints\n    toy: Ints\n"),
    "primus_search/space/rules.toml": (None, RULE),
    "primus_search/cost/memory/share.py": (COLUMN, COLUMN + COLUMN.replace("recompute", "toy")),
    "primus_search/cost/memory/parameters.py": (None, FORMULA),
    "primus_search/launch/read/script_arguments.py": ('    "spec", ', '    "toy_modules", "spec", '),
    "hardware/frameworks/megatron.yaml": ("knobs:\n", KEY),
}
MOST_FILES = 7
"""Package files of a knob with memory bytes, a launch key and a log line; the framework's key is data."""
OF_KNOB = """
import sys
from pathlib import Path
import numpy as np
from primus_search.values.candidates import Candidates
from primus_search.declare import make_space
from primus_search.launch.read.experiments import read_experiment
from primus_search.base.errors import InputError
from primus_search.exploration.exhaustive.bounds_and_steps import MEMORY_READS
from primus_search.exploration.funnel import Options, run_search
from primus_search.exploration.neighbours import Evaluator, values_of
from primus_search.launch.write.job import LaunchJob
from primus_search.launch.write.launch_files import launch_files
from primus_search.analysis.labels import short
from primus_search.learning.logged_job import read_job
from primus_search.space import Enumerator

folder = Path(sys.argv[1])
data = {"model": "llama3.1_8b", "hardware": "h100", "nodes": 1, "framework": "megatron",
        "constraints": ["toy == 'none' or tp <= 4"], "workload": {"seq_length": 4096, "global_batch_size": 64},
        "space": {"pp": [1, 2], "schedule": ["1f1b"], "recompute": ["none"], "cp": [1], "fp8": ["none"],
                  "tp": [2, 4], "micro_batch_size": 1, "toy": ["none", "norms", "norms+heads"]}}
space = make_space(data)
try:
    make_space(data | {"space": {"toy": "tails"}})
except InputError as error:
    assert "$.space.toy: 'tails' is not a value of toy" in str(error), error
else:
    raise AssertionError("a wrong value was read")

rows = Enumerator(space).chunk(0, 10**7)
assert rows.removed.get("toy_without_pipeline", 0) + Enumerator(space).removed["toy_without_pipeline"] > 0
assert rows.candidates.toy.any() and not rows.candidates.toy[rows.candidates.pp > 1].any()
assert Candidates.from_words(Candidates.table(toy=3).row(0)).toy.tolist() == [3]

result = run_search(space, Options(keep=8, workers=1))
best = result.ranking.candidates
evaluator = Evaluator(space, space.clusters[0])
base = values_of(best.take(np.flatnonzero(best.pp == 1)[:1])) | {"toy": 3}
on, off = evaluator.project([base])[0], evaluator.project([base | {"toy": 0}])[0]
assert on.memory_bytes < off.memory_bytes and on.step_s == off.step_s and "toy" in MEMORY_READS

all_rows = rows.candidates
row = all_rows.take(np.flatnonzero(all_rows.toy == 3)[:1])
assert "toy:norms+heads" in short(row.row(0))
script = launch_files(LaunchJob.of(space, space.clusters[0], row)).texts["megatron.sh"]
assert "--toy-modules norms heads" in " ".join(script.split()) and "--uses-toys" in script
(folder / "megatron.sh").write_text(script)
assert read_experiment(folder / "megatron.sh").row["toy"] == "norms+heads"
assert read_job(folder / "run.log").row["toy"] == "norms+heads"
"""


SCHEDULE = """
from primus_search.schedule.algorithms.interleaved import gpipe
from primus_search.schedule.registry import Request, register
from primus_search.schedule.table import Placement, Table


@register("toy", summary="as gpipe", placement=Placement.LOOP)
def toy(request: Request) -> Table:
    return gpipe(request)
"""
OF_SCHEDULE = """
from primus_search.cost.project import project
from primus_search.declare import make_space
from primus_search.space import Enumerator

data = {"model": "llama3.1_8b", "hardware": "mi300x", "nodes": 1, "framework": "any", "space": {
    "pp": 2, "tp": 1, "vpp": 1, "cp": 1, "micro_batch_size": 1, "fp8": "none", "recompute": "none", "sharding": "none",
    "loss_fusion": True, "overlap_grad_reduce": True, "pipeline_layout": "even", "schedule": ["gpipe", "toy"]},
    "workload": {"seq_length": 4096, "global_batch_size": 64}}
space = make_space(data)
rows = Enumerator(space).chunk(0, 10).candidates
assert [rows.row(i)["schedule"] for i in range(len(rows))] == ["gpipe", "toy"]
step_s = project(space.model, space.cluster, space.workload, rows).step.total
assert step_s[0] == step_s[1] > 0
"""
EFFECT = """

_without_toy = layer_operations


def layer_operations(job: Job, kind: LayerKind, c: Candidates) -> list[Operation]:
    launches = Call(Part.NORMS, Module.ELEMENTWISE, seconds=(1.0, 0.0), kernels=(0.0, 1.0))
    return [*_without_toy(job, kind, c), launches]
"""
OF_EFFECT = """
import dataclasses, json
from primus_search.values.candidates import Candidates
from primus_search.cost.project import project
from primus_search.files.hardware_files import load_cluster
from primus_search.models.model_files import load_model
from primus_search.values.workload import Workload

p = project(load_model("llama3.1_8b"), load_cluster("mi300x", 1), Workload(seq_length=4096, global_batch_size=8),
            Candidates.table())
print(json.dumps({f.name: float(getattr(p.step, f.name)[0]) for f in dataclasses.fields(p.step)}))
"""


def edited(home: Path, edits: Mapping[str, tuple[str | None, str]]) -> None:
    """Copy the package to `home` and edit it: text replaced by text, or appended where there is none to replace."""
    shutil.copytree(PACKAGE, home / "primus_search")
    shutil.copytree(ROOT / "hardware", home / "hardware")
    (home / "spaces").symlink_to(ROOT / "spaces")
    for file, (old, new) in edits.items():
        path = home / file
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        assert old is None or text.count(old) == 1, file
        path.write_text(text + new if old is None else text.replace(old, new), encoding="utf-8")


def run_in(home: Path, code: str, *words: str) -> str:
    """What a Python program prints that imports the package from `home`."""
    run = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=home,
        env=os.environ | {"PYTHONPATH": str(home)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout


def listed(title: str) -> set[str]:
    """The files of the package and the folders of one new file that a section of the page lists."""
    page = (ROOT / "docs" / "dev" / "adding.md").read_text(encoding="utf-8")
    section = page.split(f"## {title}\n")[1].split("\n## ")[0]
    files = re.findall(r"^\|[^`|]*`(primus_search/\S+)`", section, flags=re.MULTILINE)
    return {file for file in files if file.endswith((".py", ".toml", "/"))}


@pytest.mark.in_turn
def test_a_toy_knob_with_bytes_a_launch_key_and_a_log_line_needs_the_files_of_the_page(tmp_path: Path) -> None:
    edited(tmp_path, KNOB)
    logged(tmp_path, {"toy_modules": "['norms', 'heads']", "uses_toys": True})
    run_in(tmp_path, OF_KNOB, str(tmp_path))
    package = [file for file in KNOB if file.startswith("primus_search/")]
    assert len(package) <= MOST_FILES
    of_cost = {"primus_search/cost/" if "cost/" in file else file for file in package}
    assert listed("A knob") == of_cost


@pytest.mark.in_turn
def test_a_toy_schedule_needs_one_file(tmp_path: Path) -> None:
    edited(tmp_path, {"primus_search/schedule/algorithms/toy.py": (None, SCHEDULE)})
    run_in(tmp_path, OF_SCHEDULE)
    assert listed("A schedule") == {"primus_search/schedule/algorithms/"}


@pytest.mark.in_turn
def test_a_toy_cost_effect_needs_one_file(tmp_path: Path) -> None:
    edited(tmp_path, {"primus_search/cost/parts/layer.py": (None, EFFECT)})
    before, after = json.loads(run_in(ROOT, OF_EFFECT)), json.loads(run_in(tmp_path, OF_EFFECT))
    per_layer_s = (after["norms"] - before["norms"]) / load_model("llama3.1_8b").num_layers
    assert per_layer_s == pytest.approx(1.0)
    # Host and device race in every pass, so a second more of the device leaves less to wait for.
    assert after.pop("launch") <= before.pop("launch")
    assert {k: v for k, v in after.items() if k != "norms"} == pytest.approx(
        {k: v for k, v in before.items() if k != "norms"}
    )
    assert listed("A cost effect inside a layer") == {"primus_search/cost/parts/"}
