"""Random legal candidates of spaces as launch jobs, and the frameworks' own checks where a checkout is there."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from primus_search.launch.write.job import LaunchJob
from primus_search.space import Enumerator, Space

ROOT = Path(__file__).resolve().parents[2]


def clients() -> Path | None:
    """The folder of the frameworks' own checks: PRIMUS_SEARCH_CLIENTS, or shared/clients beside the repository."""
    named = os.environ.get("PRIMUS_SEARCH_CLIENTS", "")
    places = [Path(named)] if named else [above / "shared" / "clients" for above in (ROOT.parent, *ROOT.parents[1:3])]
    return next((place for place in places if (place / "accepts.py").is_file()), None)


CLIENTS = clients()
MISSING = "needs the frameworks' own checks: name their folder in PRIMUS_SEARCH_CLIENTS"


def jobs(space: Space, count: int, seed: int = 1) -> Iterator[LaunchJob]:
    """Random legal candidates of the first cluster of a space."""
    enumerator = Enumerator(space)
    rng = np.random.default_rng(seed)
    numbers = np.sort(rng.choice(enumerator.size, min(count, enumerator.size), replace=False))
    table = enumerator.rows(numbers)
    for i in range(len(table)):
        yield LaunchJob(
            model=space.model,
            cluster=space.cluster,
            workload=space.workload,
            candidate=table.take(slice(i, i + 1)),
            framework=space.framework,
        )


def verdicts(judge: str, files: list[Path], layers: int = 0) -> list[dict[str, Any]]:
    """What a framework says of launch files: one answer a file, in order."""
    return verdicts_of([(judge, files, layers)])[0]


FOLDERS = {"megatron-main": "megatron_lm_main", "megatron-pinned": "megatron_lm_pinned", "primus": "megatron_lm_pinned"}
"""The Megatron that a check imports."""


def verdicts_of(cases: list[tuple[str, list[Path], int]]) -> list[list[dict[str, Any]]]:
    """`verdicts` of each (judge, files, layers of torchtitan's model, else 0)."""
    assert CLIENTS is not None
    with tempfile.TemporaryDirectory() as folder:
        outs = [Path(folder, str(number)) for number in range(len(cases))]
        groups: dict[str, list[object]] = {}
        for out, (judge, files, layers) in zip(outs, cases, strict=True):
            words = [judge, *map(str, files)] + (["--layers", str(layers)] if judge == "torchtitan" else [])
            groups.setdefault(FOLDERS.get(judge, ""), []).append((_exported(files), str(out), words))
        command = [sys.executable, Path(__file__).with_name("judges.py"), CLIENTS]
        text = json.dumps(list(groups.items()))
        subprocess.run(command, input=text, capture_output=True, text=True, check=True)
        return [[json.loads(line) for line in out.read_text().splitlines() if line.startswith("{")] for out in outs]


def _exported(files: list[Path]) -> dict[str, str]:
    """What the files export for Transformer Engine: of a script's environment the checks see one variable alone."""
    return dict(match for file in files for match in re.findall(r"^export (NVTE_\w+)=(\S+)$", file.read_text(), re.M))
