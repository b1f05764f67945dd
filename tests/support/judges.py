"""Frameworks' own checks, all in forks of one process that has imported torch: `judges.py CLIENTS < GROUPS`.

GROUPS is JSON: [folder of a Megatron or "", [[environment, file of the output, words of accepts.py], ...]], ... Each
Megatron is imported once. Left out is what takes seconds and answers nothing: compiling Megatron's fused functions, and
making its parser, or recording what a script starts, more than once.
"""

import importlib.util
import json
import os
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

Case = tuple[dict[str, str], str, list[str]]


def accepts(clients: Path) -> Any:
    """The module of the frameworks' own checks."""
    spec = importlib.util.spec_from_file_location("accepts", clients / "accepts.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def megatron(judge: Any, folder: Path) -> Any:
    """Megatron's module of arguments, whose functions are not compiled and whose parser is made once."""
    import torch

    torch.compile = lambda function=None, **_: function or (lambda one: one)
    arguments = judge.load_megatron(folder)
    parser = cache(lambda add=arguments.add_megatron_arguments: add(ArgumentParser(allow_abbrev=False)))
    arguments.add_megatron_arguments = lambda _: parser()
    return arguments


def in_a_fork(call: Callable[[], None]) -> None:
    child = os.fork()
    if not child:
        try:
            call()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def answer(judge: Any, case: Case) -> None:
    environment, out, words = case
    os.environ |= environment
    os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT), 1)
    sys.argv = ["accepts.py", *words]
    judge.main()


def main() -> None:
    clients = Path(sys.argv[1])
    judge, groups = accepts(clients), json.load(sys.stdin)
    import torch
    import torch._dynamo
    import torch._inductor.utils
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.distributed.tensor
    import torch.utils.flop_counter  # noqa: F401

    judge.recorded = cache(judge.recorded)
    for folder, cases in groups:
        for _, _, (name, *words) in cases:
            if name.startswith("megatron"):
                for file in words:
                    judge.recorded(Path(file).resolve())

        def group(folder: str = folder, cases: list[Case] = cases) -> None:
            if folder:
                megatron(judge, clients / folder)
            for case in cases:
                in_a_fork(lambda case=case: answer(judge, case))

        in_a_fork(group)


if __name__ == "__main__":
    main()
