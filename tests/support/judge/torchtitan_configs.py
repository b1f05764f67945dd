"""torchtitan 0.3.0's own checks of a configuration function: its ConfigManager and its Trainer up to the first weight.

    judge = TorchtitanConfigs(checkout)
    judge.verdict(Path("searched.py"), world=64).accepted

The Trainer runs with a fake process group: parser, meshes, the model on the meta device, its pipeline split, tensor,
context and expert parallelism, checkpointing and sharding are torchtitan's own. What weighs or needs a device is not:
`to_empty` ends a job that is accepted, and converters of torchao convert nothing.
"""

import contextlib
import importlib
import io
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

from tests.support.judge.installed import ABSENT, stand_ins
from tests.support.judge.torchtitan import WeightsMade, group
from tests.support.judge.verdict import Verdict
from tools.framework_imports import StandIn, torch_parts

MISSING = (*ABSENT, "torch_checkpointing", "tokenizers", "einops", "PIL")
"""Packages that torchtitan imports for training, and no model or check needs."""
KERNELS = tuple(f"torchtitan.distributed.deepep.{name}" for name in ("deepep", "hybridep"))
"""Kernels of fused dispatch, which register operations with a newer torch."""
MODELS = ("llama3", "qwen3", "deepseek_v3", "gpt_oss")
CONVERTERS = {"float8": "Float8LinearConverter", "mx": "MXFP8LinearConverter"}


class TorchtitanConfigs:
    """torchtitan 0.3.0 of a checkout."""

    def __init__(self, checkout: Path) -> None:
        torch_parts()
        logging.disable(logging.WARNING)
        sys.path.insert(0, str(checkout))
        sys.modules |= {name: StandIn(name) for name in KERNELS}
        with stand_ins(*MISSING):
            self.trainer = importlib.import_module("torchtitan.trainer")
            self.manager = importlib.import_module("torchtitan.config.manager")
            self.families = [importlib.import_module(f"torchtitan.models.{name}") for name in MODELS]
            self.quantization = {
                n: importlib.import_module(f"torchtitan.components.quantization.{n}") for n in CONVERTERS
            }
        self.dims = importlib.import_module("torchtitan.distributed.parallel_dims")
        self.fsdp = importlib.import_module("torchtitan.distributed.fsdp")
        self.compiler = importlib.import_module("torchtitan.distributed.compile")
        self.dispatcher = importlib.import_module("torchtitan.models.common.token_dispatcher")

    def verdict(
        self, file: Path, world: int, environment: Mapping[str, str] | None = None, flags: Sequence[str] = ()
    ) -> Verdict:
        """What torchtitan answers to `--module FILE --config FILE` with flags on `world` processes."""
        noise = io.StringIO()
        with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise), stand_ins(*MISSING):
            try:
                with self._beside(file), self._patched(world), group(world):
                    words = ["--module", file.stem, "--config", file.stem, *flags]
                    config = self.manager.ConfigManager().parse_args(words)
                    with contextlib.suppress(WeightsMade):
                        self.trainer.Trainer(config)
            except SystemExit:
                return Verdict(False, f"parser: {noise.getvalue().strip()[-300:]}", "parser")
            except Exception as error:
                return Verdict.of(error)
        return Verdict(True, args={"training": vars_of(config.training), "parallelism": vars_of(config.parallelism)})

    @contextlib.contextmanager
    def _beside(self, file: Path) -> Iterator[None]:
        """In the folder of a module, which is on the path; what it registers is forgotten after."""
        tables = [
            v for f in self.families for k, v in vars(f).items() if k.endswith("_configs") and isinstance(v, dict)
        ]
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.chdir(file.parent))
            stack.enter_context(patch.object(sys, "path", [str(file.parent), *sys.path]))
            for one in tables:
                stack.enter_context(patch.dict(one))
            try:
                yield
            finally:
                sys.modules.pop(file.stem, None)
                importlib.invalidate_caches()

    @contextlib.contextmanager
    def _patched(self, world: int) -> Iterator[None]:
        """The trainer without what it needs besides its checks: a device, data, weights."""
        import torch

        def ends(*_: Any, **__: Any) -> Any:
            raise WeightsMade

        trainer = self.trainer
        with contextlib.ExitStack() as stack:
            for where, name, value in (
                (trainer.utils, "device_type", "cpu"),
                (self.dims, "device_type", "cpu"),
                (self.fsdp, "fully_shard", unsharded),
                (trainer.utils, "device_module", MagicMock()),
                (trainer.utils, "get_local_device", lambda: torch.device("cpu")),
                (trainer.utils, "GarbageCollection", MagicMock()),
                (trainer.dist_utils, "init_distributed", lambda *_, **__: world),
                (trainer.dist_utils, "set_determinism", lambda *_, **__: None),
                (trainer.MetricsProcessor.Config, "build", MagicMock()),
                (torch.nn.Module, "to_empty", ends),
                *(
                    (getattr(module, CONVERTERS[name]), part, value)
                    for name, module in self.quantization.items()
                    for part, value in (("__init__", lambda *_, **__: None), ("convert", lambda _, config: config))
                ),
                *(
                    (getattr(self.dispatcher, f"{name}TokenDispatcher"), "init_buffer", lambda *_: None)
                    for name in ("DeepEP", "HybridEP")
                ),
                (self.compiler, "_maybe_enable_async_tp", lambda *_, **__: None),
            ):
                stack.enter_context(patch.object(where, name, value))
            yield


def unsharded(modules: Any, **_: Any) -> Any:
    """In the place of `fully_shard`: torch 2.13 shards no parameters with the annotations of spmd_types."""
    for one in modules if isinstance(modules, list) else [modules]:
        one.set_modules_to_forward_prefetch = one.set_modules_to_backward_prefetch = lambda *_: None
    return modules


def vars_of(config: Any) -> dict[str, Any]:
    """The fields of a configuration."""
    import dataclasses

    return {one.name: getattr(config, one.name) for one in dataclasses.fields(config)}
