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
from primus_search.declare import load_model

PACKAGE = Path(primus_search.__file__).parent
ROOT = PACKAGE.parent

ROW = """\
    Knob(
        name="toy",
        kind=Kind.SWITCH,
        summary="Halves the optimizer's time.",
        enters=Enters.REPLICA,
        default=False,
        off=False,
        auto=(False, True),
        label="toy",
    ),
)
\"\"\"Every knob"""
RULE = """

@_rule("toy pp", reason="a toy runs without pipeline")
def toy_without_pipeline(job: GridJob, c: Cells) -> Bools:
    mask: Bools = ~c["toy"].astype(bool) | (c["pp"] == 1)
    return mask
"""
FORMULA = """

_without_toy = replica_terms


def replica_terms(job: Job, c: Candidates, measured: MeasuredLayers | None) -> Floats:
    terms = _without_toy(job, c, measured)
    terms[:, UPDATE] *= np.where(c.toy, 0.5, 1.0)
    return terms
"""
KNOB = {
    "primus_search/values/knobs/rows.py": (')\n"""Every knob', ROW),
    "primus_search/values/candidates.py": ("    offload_layers: Ints\n", "    offload_layers: Ints\n    toy: Bools\n"),
    "primus_search/space/rules.py": (None, RULE),
    "primus_search/cost/replicas.py": (None, FORMULA),
}
OF_KNOB = """
import sys
import numpy as np
from primus_search.values.candidates import Candidates
from primus_search.declare import make_space
from primus_search.base.errors import InputError
from primus_search.exploration.exhaustive.bounds_and_steps import MEMORY_READS
from primus_search.exploration.funnel import Options, run_search
from primus_search.exploration.neighbours import Evaluator, values_of
from primus_search.analysis.labels import short
from primus_search.space import Enumerator

data = {"model": "llama3.1_8b", "hardware": "mi300x", "nodes": 1, "framework": "any",
        "constraints": ["not toy or tp <= 8"], "workload": {"seq_length": 4096, "global_batch_size": 64},
        "space": {"pp": [1, 2], "schedule": ["1f1b"], "recompute": ["none"], "cp": [1], "fp8": ["none"]}}
space = make_space(data)
assert space.axis("toy").values == (False, True)
try:
    make_space(data | {"space": {"toy": "maybe"}})
except InputError as error:
    assert "$.space.toy: 'maybe' is not a value of toy - allowed: true, false or auto" in str(error), error
else:
    raise AssertionError("a wrong value was read")

rows = Enumerator(space).chunk(0, 10**7)
assert rows.removed.get("toy_without_pipeline", 0) + Enumerator(space).removed["toy_without_pipeline"] > 0
assert rows.candidates.toy.any() and not rows.candidates.toy[rows.candidates.pp > 1].any()
assert Candidates.from_words(Candidates.table(toy=True).row(0)).toy.all()

result = run_search(space, Options(keep=8, workers=1))
fastest = result.ranking.expected_rate.argmax()  # the plainest row inside the noise may stand before it
best = result.ranking.candidates.take(slice(fastest, fastest + 1))
assert best.toy[0] and "toy" in short(best.row(0)) and "toy" not in MEMORY_READS
evaluator = Evaluator(space, space.clusters[0])
base = values_of(best)
off, on = evaluator.try_out(base, {"toy": False}), evaluator.project([base])[0]
assert off.figures.step_s > on.step_s and off.figures.memory_bytes == on.memory_bytes
every = evaluator.projector.project(rows.candidates)
fitting = every.tokens_per_s_per_gpu[every.headroom_bytes >= 0]
assert on.tokens_per_s_per_gpu == max(fitting)
"""


SCHEDULE = """
from primus_search.schedule.algorithms.one_f_one_b import gpipe
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
from primus_search.declare import load_cluster, load_model
from primus_search.values.workload import Workload

p = project(load_model("llama3.1_8b"), load_cluster("mi300x", 1), Workload(seq_length=4096, global_batch_size=8),
            Candidates.table())
print(json.dumps({f.name: float(getattr(p.step, f.name)[0]) for f in dataclasses.fields(p.step)}))
"""


def edited(home: Path, edits: Mapping[str, tuple[str | None, str]]) -> None:
    """Copy the package to `home` and edit it: text replaced by text, or appended where there is none to replace."""
    shutil.copytree(PACKAGE, home / "primus_search")
    for data in ("hardware", "spaces"):
        (home / data).symlink_to(ROOT / data)
    for file, (old, new) in edits.items():
        path = home / file
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        assert old is None or text.count(old) == 1, file
        path.write_text(text + new if old is None else text.replace(old, new), encoding="utf-8")


def run_in(home: Path, code: str) -> str:
    """What a Python program prints that imports the package from `home`."""
    run = subprocess.run(
        [sys.executable, "-c", code],
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
    """The Python files and the folders of one new file that a section of the page lists."""
    page = (ROOT / "docs" / "dev" / "adding.md").read_text(encoding="utf-8")
    section = page.split(f"## {title}\n")[1].split("\n## ")[0]
    files = re.findall(r"^\|[^`|]*`(primus_search/\S+)`", section, flags=re.MULTILINE)
    return {file for file in files if file.endswith((".py", "/"))}


def test_a_toy_knob_needs_a_row_a_field_a_rule_and_a_formula(tmp_path: Path) -> None:
    edited(tmp_path, KNOB)
    run_in(tmp_path, OF_KNOB)
    assert listed("A knob") == {file if "cost/" not in file else "primus_search/cost/" for file in KNOB}


def test_a_toy_schedule_needs_one_file(tmp_path: Path) -> None:
    edited(tmp_path, {"primus_search/schedule/algorithms/toy.py": (None, SCHEDULE)})
    run_in(tmp_path, OF_SCHEDULE)
    assert listed("A schedule") == {"primus_search/schedule/algorithms/"}


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
