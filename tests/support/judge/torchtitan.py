"""torchtitan's own checks of a job: its parser and its trainer up to the first weight.

    judge = Torchtitan()
    judge.verdict(job_file, world=64).accepted

The installed release's Trainer runs with a fake process group on a model without layers: parser, meshes, batches,
stages, schedule and the conditions of each model's parallelisms are torchtitan's own. A process holds one release.
"""

import contextlib
import copy
import dataclasses
import importlib
import io
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

from tests.support.judge.installed import ABSENT, stand_ins, torchtitan
from tests.support.judge.verdict import Verdict, processes
from tools.framework_imports import torch_parts

MODELS = ("llama3", "llama4", "qwen3", "deepseek_v3", "gpt_oss")
APPLIED = ("apply_tp", "apply_non_moe_tp", "apply_moe_ep_tp", "apply_compile", "apply_fsdp", "apply_ddp",
           "apply_replicate")  # fmt: skip
"""Functions that change layers, once the conditions of a parallelism hold."""


class WeightsMade(Exception):
    """The trainer has checked a job and makes its weights."""


class Torchtitan:
    """The installed torchtitan, 0.2.2."""

    def __init__(self) -> None:
        torch_parts()
        import torch

        torchtitan()
        logging.disable(logging.WARNING)
        with stand_ins(*ABSENT):
            self.train = importlib.import_module("torchtitan.train")
            for name in MODELS:
                importlib.import_module(f"torchtitan.models.{name}")
            self.parallelize = [importlib.import_module(f"torchtitan.models.{n}.infra.parallelize") for n in MODELS]

        self.specs = self.train.train_spec_module

        class Bare(torch.nn.Module):
            """A model without layers, where the trainer's checks end."""

            def __init__(self, model_args: Any) -> None:
                super().__init__()
                self.model_args, self.layers = model_args, torch.nn.ModuleDict()

            def to_empty(self, **_: Any) -> "Bare":
                raise WeightsMade

        self.bare = Bare

    def verdict(self, job_file: Path, world: int, environment: Mapping[str, str] | None = None) -> Verdict:
        """What torchtitan answers to a job file on `world` processes; a module that the file names lies beside it."""
        noise = io.StringIO()
        with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise), stand_ins(*ABSENT):
            try:
                job = self.train.ConfigManager().parse_args([f"--job.config_file={job_file}"])
                with group(world), self._patched(world), self._beside(job_file, job), contextlib.suppress(WeightsMade):
                    self.train.Trainer(job)
            except SystemExit:
                return Verdict(False, f"parser: {noise.getvalue().strip()[-300:]}", "parser")
            except Exception as error:
                return Verdict.of(error)
        return Verdict(True, args=dataclasses.asdict(job))

    @contextlib.contextmanager
    def _beside(self, job_file: Path, job: Any) -> Iterator[None]:
        """In the folder of a job file, which is on the path; what a module there registers is forgotten after."""
        with (
            contextlib.chdir(job_file.parent),
            patch.object(sys, "path", [str(job_file.parent), *sys.path]),
            patch.dict(self.specs._extra_train_specs),
        ):
            try:
                yield
            finally:
                sys.modules.pop(job.experimental.custom_import, None)

    @contextlib.contextmanager
    def _patched(self, world: int) -> Iterator[None]:
        """The trainer without what it needs besides its checks: a device, data, layers."""
        train, specs = self.train, self.specs
        spec = specs.get_train_spec
        with contextlib.ExitStack() as stack:
            for one in self.parallelize:
                for name in APPLIED:
                    if hasattr(one, name):
                        stack.enter_context(patch.object(one, name, lambda *_, **__: None))
            for where, name, value in (
                (train.utils, "device_type", "cpu"),
                (train.utils, "device_module", MagicMock()),
                (train.utils, "GarbageCollection", MagicMock()),
                (train.dist_utils, "init_distributed", lambda *_, **__: world),
                (train.dist_utils, "set_determinism", lambda *_, **__: None),
                (specs, "get_train_spec", lambda name: self._bare(spec(name))),
                (train, "build_model_converters", MagicMock()),
            ):
                stack.enter_context(patch.object(where, name, value))
            yield

    def _bare(self, spec: Any) -> Any:
        """A train spec with a bare model; arguments are copies, which a job changes."""
        models = copy.deepcopy(spec.model_args)
        for one in models.values():
            one.get_nparams_and_flops = lambda *_: (0, 0)
        return dataclasses.replace(
            spec,
            model_cls=self.bare,
            model_args=models,
            build_tokenizer_fn=None,
            build_dataloader_fn=None,
            build_metrics_processor_fn=MagicMock(),
            build_loss_fn=MagicMock(),
        )


@contextlib.contextmanager
def group(world: int) -> Iterator[None]:
    """A fake process group, as the first of `world` processes sees it."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    with patch.dict(os.environ, processes(world)):
        dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
        try:
            yield
        finally:
            dist.destroy_process_group()
