"""Megatron's own checks of a job: parse_args, validate_args, its configuration class and its micro-batch counter.

    judge = Megatron(checkout)
    judge.verdict(["--num-layers", "32", ...], world=64).accepted

Megatron is imported once and its parser made once: some hundred jobs a second. A process holds one release.
"""

import argparse
import contextlib
import io
import logging
import os
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tools.framework_imports import megatron

NODE = 8
"""Processes of a node, as far as Megatron's checks see them."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a framework accepts a job; `where` is the file and line that refuses it, `args` what it resolves."""

    accepted: bool
    why: str = ""
    where: str = ""
    args: Mapping[str, Any] = field(default_factory=dict)


class Megatron:
    """One release of Megatron-LM."""

    def __init__(self, checkout: Path) -> None:
        logging.disable(logging.WARNING)
        self.module = megatron(checkout)
        parser = cache(lambda add=self.module.add_megatron_arguments: add(argparse.ArgumentParser(allow_abbrev=False)))
        self.module.add_megatron_arguments = lambda _: parser()
        self.module._print_args = lambda *_: None
        self.parser: argparse.ArgumentParser = parser()

    def verdict(self, argv: Sequence[str], world: int, environment: Mapping[str, str] | None = None) -> Verdict:
        """What Megatron answers to the arguments of a job of `world` processes."""

        def parsed() -> argparse.Namespace:
            sys.argv = ["pretrain_gpt.py", *argv]
            return self.module.parse_args()  # type: ignore[no-any-return]

        return self.judged(parsed, world, environment)

    def judged(
        self,
        parsed: Any,
        world: int,
        environment: Mapping[str, str] | None = None,
        beside: Iterable[Any] = (),
    ) -> Verdict:
        """The verdict on what `parsed()` gives; `beside` are checks that follow validate_args."""
        os.environ |= {"WORLD_SIZE": str(world), "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": str(NODE)}
        for name in ("CUDA_DEVICE_MAX_CONNECTIONS", "NVTE_CPU_OFFLOAD_V1", "NCCL_ALGO"):
            os.environ.pop(name, None)
        os.environ |= environment or {}
        noise = io.StringIO()
        with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
            try:
                args = parsed()
                for name, value in vars(args).items():
                    if isinstance(value, list):  # defaults that validate_args appends to
                        setattr(args, name, list(value))
                self.module.validate_args(args, {})
                for check in beside:
                    check(args)
                config = self.module.core_transformer_config_from_args(args)
                self._counts_micro_batches(args)
            except SystemExit:
                last = (noise.getvalue().strip().splitlines() or ["?"])[-1]
                return Verdict(False, f"parser: {last[-300:]}", "argparse")
            except Exception as error:
                return Verdict(False, f"{type(error).__name__}: {str(error)[:300]}", place(error))
        return Verdict(True, args=vars(config) | vars(args))

    def _counts_micro_batches(self, args: argparse.Namespace) -> None:
        """Refuses a global batch that is no multiple of micro-batch times data parallel, as the job's start does."""
        from megatron.core.num_microbatches_calculator import _build_num_microbatches_calculator

        words = {"decrease_batch_size_if_needed": getattr(args, "decrease_batch_size_if_needed", False)}
        names = _build_num_microbatches_calculator.__code__.co_varnames
        given = {
            "rank": 0,
            "rampup_batch_size": getattr(args, "rampup_batch_size", None),
            "global_batch_size": args.global_batch_size,
            "micro_batch_size": args.micro_batch_size,
            "data_parallel_size": args.data_parallel_size,
            "step_batch_size_schedule": None,
            **words,
        }
        _build_num_microbatches_calculator(**{name: value for name, value in given.items() if name in names})


def place(error: BaseException) -> str:
    """File and line that raised."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"
