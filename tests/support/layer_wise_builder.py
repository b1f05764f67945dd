"""Bytes that Megatron's layer-wise optimizers allocate: `python -m tests.support.layer_wise_builder SCRIPT`.

Megatron main builds each pipeline rank of a script as training starts it, on the meta device with fake process groups:
get_model with its buffers, get_megatron_optimizer with the matrices dealt to the first replica. One JSON line a rank:
{"weights", "gradients", "optimizer"}. Kernels of Transformer Engine and NVIDIA-NeMo/Emerging-Optimizers are not here:
`States` counts what their optimizers keep of a parameter, two moments (FusedAdam) and one (Muon's momentum_buffer).
"""

import contextlib
import io
import json
import sys
import types
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from tests.support.judge.checkouts import sources
from tests.support.judge.megatron import Megatron
from tests.support.megatron_builder import parsed, without_kernels

MUON = ("muon",)
WORDS = {"float16": "Half", "bfloat16": "BFloat16", "float32": "Float"}


def prepared() -> Any:
    """Megatron's arguments, with its models and optimizers ready to be made without a device."""
    arguments = Megatron(sources("megatron@core_0.20")).module
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._device import _device_constructors

    class States(torch.optim.Optimizer):
        """An optimizer by the FP32 moments that it keeps of each parameter."""

        def __init__(self, params: Any, moments: int = 2, **_: Any) -> None:
            super().__init__(params, {"lr": 0.0})
            self.moments = moments

    made = _device_constructors()

    class OnMeta(TorchFunctionMode):
        """New tensors on the meta device, those too that ask for another."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}) | ({"device": "meta"} if func in made else {}))

    def as_ours(every: list[Any], ours: Any, *_: Any, **__: Any) -> None:
        every[:] = [ours] * len(every)

    kind = torch.Tensor.type
    torch.Tensor.type = lambda self, *to: kind(self, *to) if to else f"torch.cuda.{WORDS[str(self.dtype)[6:]]}Tensor"  # type: ignore[method-assign]
    torch.Tensor.is_cuda = property(lambda _: True)  # type: ignore[assignment]
    torch.cuda.current_device = lambda: torch.device("meta")
    torch.nn.Module.cuda = lambda self, *_: self  # type: ignore[method-assign]
    without_kernels()
    for name in ("Stream", "Event", "current_stream"):
        setattr(torch.cuda, name, MagicMock())
    torch.cuda.stream = contextlib.nullcontext
    torch.distributed.all_gather_object = as_ours
    for name in ("transformer_engine", "transformer_engine.pytorch", "transformer_engine.pytorch.optimizers"):
        sys.modules.setdefault(name, types.ModuleType(name))
    from megatron.core import optimizer
    from megatron.core.optimizer import distrib_optimizer, emerging_optimizers

    optimizer.Adam = distrib_optimizer.Adam = States
    optimizer.USING_PYTORCH_OPTIMIZER = False
    optimizer.HAVE_EMERGING_OPTIMIZERS = True
    for name in MUON:
        entry = emerging_optimizers._EMERGING_OPTIMIZERS[name]
        entry.optimizer_cls, entry.config_to_kwargs = States, lambda *_: {"moments": 1}
    return arguments, OnMeta()


def size(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def state_bytes(optimizer: Any) -> int:
    """Bytes of masters and moments that an optimizer of this rank holds."""
    if hasattr(optimizer, "chained_optimizers"):
        return sum(map(state_bytes, optimizer.chained_optimizers))
    inner = optimizer.optimizer
    held = [one for group in inner.param_groups for one in group["params"]] if inner is not None else []
    return sum((4 + 4 * inner.moments) * one.numel() for one in held)


def of_rank(args: Any, rank: int, on_meta: Any) -> dict[str, int]:
    """Bytes of one global rank by what holds them."""
    import gpt_builders
    import model_provider
    import torch.distributed as dist
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.optimizer import get_megatron_optimizer
    from megatron.training import global_vars, training
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=args.world_size, store=FakeStore())
    try:
        parallel_state.initialize_model_parallel(
            args.tensor_model_parallel_size, args.pipeline_model_parallel_size,
            expert_model_parallel_size=args.expert_model_parallel_size,
            expert_tensor_parallel_size=args.expert_tensor_parallel_size, create_gloo_process_groups=False,
        )  # fmt: skip
        with contextlib.suppress(Exception):
            tensor_parallel.model_parallel_cuda_manual_seed(1)
        global_vars._GLOBAL_ARGS = args
        with on_meta:
            chunks = training.get_model(partial(model_provider.model_provider, gpt_builders.gpt_builder))
            config, overrides = training.get_megatron_optimizer_config(args)
            made = get_megatron_optimizer(config, chunks, config_overrides=overrides, use_gloo_process_groups=False)
        buffers = [one for chunk in chunks for one in (*chunk.buffers, *chunk.expert_parallel_buffers)]
        weights, gradients = (sum(size(getattr(one, name)) for one in buffers) for name in ("param_data", "grad_data"))
        return {"weights": weights, "gradients": gradients, "optimizer": state_bytes(made)}
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def main(script: str) -> None:
    noise = io.StringIO()
    with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
        arguments, on_meta = prepared()
        args = parsed(arguments, Path(script))
        each = args.world_size // args.pipeline_model_parallel_size
        found = [of_rank(args, stage * each, on_meta) for stage in range(args.pipeline_model_parallel_size)]
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
