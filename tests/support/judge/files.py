"""Verdicts on launch files: `python -m tests.support.judge.files < CASES`, each framework in a fork of one process.

CASES is JSON, [[release, [file, ...]], ...]; the answer has a list of {file, accepted, why} for each case, in order.
What all import, torch, is imported once.
"""

import json
import os
import re
import sys
from collections.abc import Callable
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.support.judge.checkouts import required
from tests.support.judge.scripts import started
from tests.support.judge.verdict import Verdict
from tools.framework_imports import torch_parts

Case = tuple[str, list[str]]


def world(file: Path) -> int:
    """The processes that a comment of an experiment or a job file names: `8 x 8 GPUs`, `on 64 GPUs`."""
    text = file.read_text(encoding="utf-8")
    if found := re.search(r"(\d+) x (\d+) GPUs", text):
        return prod(map(int, found.groups()))
    return int(re.search(r"on (\d+) GPUs", text)[1])  # type: ignore[index]


def judge_of(release: str) -> Callable[[Path], Verdict]:
    """The judge of a release, for a file."""
    sources = required(release)
    assert sources is not None, release
    if release.startswith("megatron"):
        from tests.support.judge.megatron import Megatron

        megatron = Megatron(*sources)

        def of_script(file: Path) -> Verdict:
            job = started(file)
            return megatron.verdict(job.argv, job.world, job.environment)

        return of_script
    if release.startswith("nemo"):
        from tests.support.judge.bridge import Bridge

        return Bridge(*sources).verdict
    if release == "primus":
        from tests.support.judge.primus import Primus

        primus = Primus(*sources)
        return lambda file: primus.verdict(file, world(file))
    if sources:
        from tests.support.judge.torchtitan_configs import TorchtitanConfigs

        configs = TorchtitanConfigs(*sources)
        return lambda file: configs.verdict(file, world(file))
    from tests.support.judge.torchtitan import Torchtitan

    titan = Torchtitan()
    return lambda file: titan.verdict(file, world(file))


def answers(release: str, cases: list[Case]) -> list[list[dict[str, Any]]]:
    """Verdicts on the files of the cases of one release."""
    judge = judge_of(release)
    found = []
    for _, files in cases:
        verdicts = [judge(Path(file)) for file in files]
        named = zip(map(Path, files), verdicts, strict=True)
        found.append(
            [
                {"file": file.name, "accepted": one.accepted, "why": f"{one.why} {one.where}", "args": {**one.args}}
                for file, one in named
            ]
        )
    return found


def main() -> None:
    cases: list[Case] = json.load(sys.stdin)
    torch_parts()
    releases = list(dict.fromkeys(release for release, _ in cases))
    with TemporaryDirectory() as folder:
        children = [
            os.fork() or _in_child(Path(folder, one), one, [c for c in cases if c[0] == one]) for one in releases
        ]
        for child in children:
            os.waitpid(child, 0)
        by_release = {one: iter(json.loads(Path(folder, one).read_text(encoding="utf-8"))) for one in releases}
    json.dump([next(by_release[release]) for release, _ in cases], sys.stdout)


def _in_child(out: Path, release: str, cases: list[Case]) -> int:
    """Writes the answers of a release and ends the process."""
    try:
        os.dup2(2, 1)  # what a framework prints is no answer
        out.write_text(
            json.dumps(answers(release, cases), default=lambda one: getattr(one, "name", str(one))), encoding="utf-8"
        )
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(0)
    return 0


if __name__ == "__main__":
    main()
