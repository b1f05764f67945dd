"""Frameworks' own modules imported on a machine without a GPU: stand-ins for kernels and for what training alone needs.

`megatron` gives Megatron-LM's module of arguments as it runs on a GPU of capability 9.0 with Transformer Engine 2.13:
parsers, checks and configuration classes are the framework's own, kernels are not called. One process imports one
Megatron: both releases have the same module names.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

CAPABILITY = (9, 0)
"""Compute capability that Megatron finds: with an older one it refuses FP8 and grouped GEMMs."""
TRANSFORMER_ENGINE = "2.13.0"
"""Version that Megatron finds; its checks ask for 2.12 at most, but for grouped weights (2.14)."""


class StandIn(types.ModuleType):
    """A module that has every name: decorators that change nothing, empty classes, mocks for the rest."""

    __path__: list[str] = []  # noqa: RUF012 - an instance variable of ModuleType
    __version__ = "3.5.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("jit", "autotune", "heuristics"):
            return lambda *args, **_: args[0] if args and callable(args[0]) else (lambda function: function)
        if name[0].isupper():
            return type(name, (), {"__init__": lambda *_, **__: None})
        return MagicMock(name=name)


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a `StandIn` for every module below some packages."""

    module: type[types.ModuleType] = StandIn

    def __init__(self, *packages: str) -> None:
        self.packages = packages

    def find_spec(self, fullname: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if not f"{fullname}.".startswith(tuple(f"{one}." for one in self.packages)):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return self.module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing: a stand-in has its names from `__getattr__`."""


def torch_parts() -> None:
    """Imports what frameworks import of torch, before any stand-in: it looks for packages that stand-ins pretend."""
    import torch._dynamo
    import torch._inductor.runtime.hints
    import torch._inductor.utils
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.distributed.pipelining.schedules
    import torch.distributed.tensor
    import torch.utils._triton
    import torch.utils.flop_counter  # noqa: F401


def megatron(checkout: Path) -> Any:
    """Megatron's `megatron.training.arguments`, of a checkout, with nothing compiled."""
    torch_parts()
    import torch

    if not hasattr(typing, "override"):
        vars(typing)["override"] = _unchanged
    if importlib.util.find_spec("triton") is None:
        sys.meta_path.insert(0, StandIns("triton"))  # kept: Megatron imports kernels as they are first named
    sys.path.insert(0, str(checkout))
    device = types.SimpleNamespace(
        major=CAPABILITY[0], minor=CAPABILITY[1], multi_processor_count=132, name="H100", total_memory=80 << 30
    )
    vars(torch.cuda).update(
        get_device_capability=lambda *_, **__: CAPABILITY,
        get_device_properties=lambda *_, **__: device,
        device_count=lambda: 8,
        is_available=lambda: False,
    )
    vars(torch)["compile"] = lambda function=None, **_: function or _unchanged
    utils = importlib.import_module("megatron.core.utils")
    utils.get_te_version = lambda: utils.PkgVersion(TRANSFORMER_ENGINE)  # type: ignore[attr-defined]
    rope = importlib.import_module("megatron.core.models.common.embeddings.rope_utils")
    moe = importlib.import_module("megatron.core.transformer.moe.moe_utils")
    for module in (rope, moe):  # kernels of Transformer Engine: a job has them
        absent = [name for name, value in vars(module).items() if name.startswith("fused_") and value is None]
        vars(module).update(dict.fromkeys(absent, _unchanged))
        vars(module)["__getattr__"] = _kernel
    return importlib.import_module("megatron.training.arguments")


def _unchanged(one: Any = None, *_: Any, **__: Any) -> Any:
    return one


def _kernel(name: str) -> Callable[..., Any]:
    if name.startswith("fused_"):
        return _unchanged
    raise AttributeError(name)
