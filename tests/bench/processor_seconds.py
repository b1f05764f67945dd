"""Processor seconds of searches on one worker, from the start of their process; they mean something on a busy machine.

    python tests/bench/processor_seconds.py against OTHER_CHECKOUT [SPACE ...]    ratios to another checkout
    python tests/bench/processor_seconds.py open [SPACE ...]                      spaces with every knob left out
    python tests/bench/processor_seconds.py mixed                                 models with layers of several kinds

`against`: both search the same candidates, for any framework, without the knobs and values that one of them lacks; each
has a cache of its own, warmed by a first run, and then they take turns. Printed are the least seconds of each.
`open`: model, hardware, nodes and workload of the shipped spaces alone, first without orders on disk, then with them;
`mixed`: the same of hybrid and sparse models that are in no shipped space.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from identical_results import NEWER, ROOT

COMPARED = ("mixtral_8x22b_mi355x", "deepseek_v3_2048gpu", "gpt3_175b_4096gpu", "stress_1e9")
JOB = ("name", "model", "hardware", "nodes", "workload")
MIXED = {
    "nemotron3_super_h100": ("nemotron3_super", "h100", 32, 8192, 1024),
    "qwen3.5_122b_mi355x": ("qwen3.5_122b_a10b", "mi355x", 16, 8192, 1024),
    "deepseek_v3.2_h100": ("deepseek_v3.2", "h100", 128, 4096, 4096),
    "deepseek_v3.2_h800": ("deepseek_v3.2", "h800", 128, 4096, 4096),
}
"""Searches of hybrid and sparse models: model, device, nodes, tokens of a sample, samples of a step."""
OLDER_AUTO = {"recompute": "[none, selective, {full: auto}]", "sharding": "distributed_optimizer"}
"""What `auto` meant in a checkout that had no sets of modules for each model, and no sharded experts."""


def search(checkout: Path, caches: Path, space: Path, words: Sequence[str]) -> tuple[float, Mapping[str, Any]]:
    """Processor seconds of one search and its run.json."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "primus_search", "run", str(space), "--bench", "off", "--workers", "1"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [*command, "--out", f"{folder}/run", *words],
            check=True,
            capture_output=True,
            cwd=checkout,
            env=environment(checkout) | {"XDG_CACHE_HOME": str(caches)},
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        run = json.loads((Path(folder) / "run" / "run.json").read_text())
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, run


def environment(checkout: Path) -> dict[str, str]:
    """Of a checkout's process; bytecode is kept, as for a user."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"PYTHONPATH": str(checkout)}


def same_space(checkout: Path, written: Mapping[str, Any]) -> tuple[str, ...]:
    """Options with which a checkout searches what every other one does."""
    command = [sys.executable, "-m", "primus_search", "schema"]
    schema = subprocess.run(command, check=True, capture_output=True, cwd=checkout, env=environment(checkout)).stdout
    pinned = {name: value for name, value in NEWER.items() if f'"{name}"'.encode() in schema}
    pinned |= {name: value for name, value in OLDER_AUTO.items() if name not in written.get("space", {})}
    return ("--framework", "any", *(word for item in pinned.items() for word in ("--set", "=".join(item))))


def against(other: Path, names: Sequence[str], turns: int, caches: Path) -> None:
    """Both checkouts in turns, their least seconds and the ratio."""
    for name in names or COMPARED:
        written = yaml.safe_load((ROOT / "spaces" / f"{name}.yaml").read_text())
        sides = {
            side: (checkout, same_space(checkout, written))
            for side, checkout in (("other", other.resolve()), ("this", ROOT))
        }
        found: dict[str, list[float]] = {side: [] for side in sides}
        runs = {}
        for _ in range(turns + 1):
            for side, (checkout, words) in sides.items():
                seconds, runs[side] = search(checkout, caches / side, Path(f"spaces/{name}.yaml"), words)
                found[side].append(seconds)
        least = {side: min(seconds[1:]) for side, seconds in found.items()}
        print(
            f"{name:22} {runs['other']['legal']:>13,} and {runs['this']['legal']:>13,} legal: {least['other']:6.2f} s"
            f" and {least['this']:6.2f} s, ratio {least['this'] / least['other']:.2f}",
            flush=True,
        )


def mixed_job(name: str) -> dict[str, Any]:
    """The space of a model of `MIXED`; none for other names."""
    if name not in MIXED:
        return {}
    model, hardware, nodes, length, batch = MIXED[name]
    workload = {"seq_length": length, "global_batch_size": batch}
    return {"name": name, "model": model, "hardware": hardware, "nodes": nodes, "workload": workload}


def open_spaces(names: Sequence[str], caches: Path) -> None:
    """The shipped spaces with every knob left out."""
    for name in names or [path.stem for path in sorted((ROOT / "spaces").glob("*.yaml"))]:
        written = mixed_job(name) or yaml.safe_load((ROOT / "spaces" / f"{name}.yaml").read_text())
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump({key: written[key] for key in JOB if key in written}, file)
            seconds = [search(ROOT, caches / name, Path(file.name), ()) for _ in range(2)]
        run = seconds[0][1]
        print(
            f"{name:22} {run['legal']:>13,} legal, exact: {run['exact']}, {seconds[0][0]:.1f} s, orders on disk"
            f" {seconds[1][0]:.1f} s; " + "  ".join(f"{s['name']} {s['seconds']:.1f}" for s in run["stages"]),
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("against", "open", "mixed"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--caches", type=Path, help="folder for the caches; kept, so that a second call is warm")
    asked = parser.parse_args()
    caches = asked.caches or Path(tempfile.mkdtemp())
    if asked.what == "open":
        open_spaces(asked.names, caches)
    elif asked.what == "mixed":
        open_spaces(asked.names or tuple(MIXED), caches)
    else:
        against(Path(asked.names[0]), asked.names[1:], asked.turns, caches)


if __name__ == "__main__":
    main()
