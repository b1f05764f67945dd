"""What a launch script hands to torchrun, by running it with one that writes it down."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

RECORDER = """#!{python}
import json, os, sys
words = sys.argv[1:]
if os.path.basename(sys.argv[0]) != "torchrun":
    words = words[next((i for i, word in enumerate(words) if "torchrun" in word), len(words)) + 1 :]
json.dump([words, dict(os.environ)], open({out!r}, "w"))
"""
STARTERS = ("torchrun", "srun", "mpirun")


@dataclass(frozen=True, slots=True)
class Started:
    """A job as a script starts it: arguments of the training script, processes, environment."""

    argv: tuple[str, ...]
    world: int
    environment: dict[str, str]


def started(script: Path, environment: Mapping[str, str] = MappingProxyType({})) -> Started:
    """The job that a launch script starts. RuntimeError where it starts none."""
    with TemporaryDirectory() as folder:
        out = Path(folder, "started.json")
        for name in STARTERS:
            path = Path(folder, name)
            path.write_text(RECORDER.format(python=sys.executable, out=str(out)), encoding="utf-8")
            path.chmod(0o755)
        given = {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "HOME": folder,
            "NODE_RANK": "0",
            "MEGATRON_PATH": folder,
            **environment,
        }
        done = subprocess.run(
            ["bash", str(script)],
            env={**given, **environment},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if not out.exists():
            raise RuntimeError(f"starts no torchrun (exit {done.returncode}): {done.stderr.strip()[-200:]}")
        words, environment = json.loads(out.read_text(encoding="utf-8"))
    at = next(i for i, word in enumerate(words) if word.endswith(".py"))
    sizes = re.findall(r"--(?:nnodes|nproc[-_]per[-_]node)[= ](\d+)", " ".join(words[:at]))
    return Started(tuple(words[at + 1 :]), prod(map(int, sizes)), environment)
