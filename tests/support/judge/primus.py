"""Primus' own checks of an experiment: its merged configuration, patches and ROCm checks, on the Megatron that it pins.

    judge = Primus(checkout, megatron)
    judge.verdict(experiment, world=64).accepted

Primus' parser, argument builder and patches run as its runtime runs them, so an error of a patch of the arguments stops
nothing: the runtime logs it.
"""

import contextlib
import copy
import importlib
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

from tests.support.judge.megatron import Megatron
from tests.support.judge.verdict import Verdict
from tools.framework_imports import StandIns

PATCHES = {"setup": "megatron.env.", "build_args": "megatron.args.", "before_train": "megatron.validate_args"}
"""Prefix of the patches of a phase that concern arguments; others patch what trains."""
EXPORTS = re.compile(r"^export (\w+)=(?:\$\{\w+:-)?(\w+)\}?$", re.MULTILINE)
"""Variables that a script of Primus' runner exports, with their value where nothing else gives one."""
LAUNCHER = "primus.backends.megatron.core.pipeline_parallel.primuspipe.pipeline_launcher"
VOCABULARY = 128256
"""Tokens of a job whose tokenizer says how many there are."""


class SchedulerMade(Exception):
    """Primus has checked its pipeline's algorithm and makes its runner."""


class Primus:
    """One release of Primus; `megatron` is the checkout that it pins."""

    def __init__(self, checkout: Path, megatron: Path) -> None:
        self.megatron = Megatron(megatron)
        exports = EXPORTS.findall((checkout / "runner/helpers/envs/base_env.sh").read_text(encoding="utf-8"))
        self.environment = {name: value for name, value in exports if name != "CUDA_DEVICE_MAX_CONNECTIONS"}
        sys.path.insert(0, str(checkout))
        sys.meta_path.append(StandIns("primus_turbo", "transformer_engine", "loguru"))  # only what is not installed
        written = importlib.import_module("primus.core.utils.module_utils")
        vars(written).update({name: _written for name in vars(written) if name.endswith("_rank_0")})
        loader = importlib.import_module("primus.core.config.yaml_loader")
        once = cache(loader._load_yaml)
        loader._load_yaml = lambda path: (
            copy.deepcopy(once(path)) if str(path).startswith(str(checkout)) else once.__wrapped__(path)
        )
        modules = ("primus.core.config.primus_config", "primus.core.patches", "primus.core.utils.yaml_utils")
        self.config, self.patches, self.yaml = map(importlib.import_module, modules)
        with contextlib.redirect_stdout(sys.stderr):
            importlib.import_module("primus.backends.megatron.patches")
        self.builder = importlib.import_module("primus.backends.megatron.argument_builder").MegatronArgBuilder
        self.checked = self.megatron.module.validate_args

    def verdict(self, experiment: Path, world: int, environment: Mapping[str, str] | None = None) -> Verdict:
        """What Primus answers to an experiment of `world` processes; model and module files are those of the checkout.

        `environment` lies over what Primus' runner exports.

        Its `given` are the arguments that Primus hands to Megatron's validate_args.
        """
        self.given: dict[str, Any] = {}
        try:
            environment = self.environment | dict(environment or {})
            found = self.megatron.judged(
                lambda: self._arguments(experiment), world, environment, [_starts_its_pipeline]
            )
            return replace(found, given=self.given)
        finally:
            self.megatron.module.validate_args = self.checked

    def _arguments(self, experiment: Path) -> Any:
        """Megatron's arguments as Primus' runtime makes them (train_runtime.py), validate_args patched."""
        with TemporaryDirectory() as folder, contextlib.chdir(folder):
            found = self.config.load_primus_config(experiment)
        module = self.config.get_module_config(found, "pre_trainer")
        args = self.builder().update(module.params).finalize()
        self._patch("setup", args, module)
        self._patch("build_args", args, module)
        self.yaml.merge_namespace(args, module.params, allow_override=False, excepts=[])
        module.params = args
        self._patch("before_train", args, module)
        for name in ("padded_vocab_size", "vocab_size"):
            if getattr(args, name, None) is None:
                setattr(args, name, VOCABULARY)
        self.given = {name: value for name, value in vars(args).items() if not isinstance(value, SimpleNamespace)}
        return args

    def _patch(self, phase: str, args: Any, module: Any) -> None:
        registered = self.patches.PatchRegistry.iter_patches(backend="megatron", phase=phase)
        chosen = [one.id for one in registered if one.id.startswith(PATCHES[phase])]
        extra = {"backend_args": args, "module_config": module}
        self.patches.run_patches(backend="megatron", phase=phase, enabled_ids=chosen, extra=extra)


def _written(*_: Any, **__: Any) -> None:
    """Instead of lines of a log, which look up who writes them."""


def _starts_its_pipeline(args: Any) -> None:
    """Refuses an algorithm with stages that it does not take, as Primus' own pipeline does where it starts."""
    if not getattr(args, "patch_primus_pipeline", False):
        return
    with patch("torch.cuda.Stream", MagicMock()):  # one is made with the module
        launcher = importlib.import_module(LAUNCHER)

    def made(*_: Any) -> None:
        raise SchedulerMade

    stages, virtual = args.pipeline_model_parallel_size, args.virtual_pipeline_model_parallel_size
    with (
        patch.object(launcher, "get_args", lambda: args),
        patch.object(launcher, "ScheduleRunner", made),
        patch.object(launcher, "set_streams", made),
        patch("torch.cuda.Stream", made),
        patch.multiple(
            launcher.parallel_state,
            get_pipeline_model_parallel_world_size=lambda: stages,
            get_virtual_pipeline_model_parallel_world_size=lambda: virtual,
            get_pipeline_model_parallel_rank=lambda: 0,
        ),
        contextlib.suppress(SchedulerMade),
    ):
        launcher.PrimusPipelineParallelLauncher()
