"""Bytes of jobs as Megatron allocates them: `python -m tests.support.megatron_bytes RELEASE COUNT SEED MOST | SCRIPT`.

Each rank of a pipeline is built as training starts it: get_model with its buffers of weights and gradients, then
get_megatron_optimizer with the shards of this rank, on the meta device and with fake process groups. One JSON line a
legal job: {"script", "settings", "weights", "gradients", "optimizer": [bytes per pipeline rank], "padding": [elements
that buffers have beyond their parameters], "largest": [elements of the largest tensors], "why": why it is not built}.
Megatron's optimizers have kernels of Transformer Engine and of NVIDIA-NeMo/Emerging-Optimizers; `States` allocates what
those keep: two moments, or one (Muon's momentum_buffer).
"""

import contextlib
import io
import json
import sys
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from tests.support.judge.checkouts import sources
from tests.support.judge.megatron import Megatron
from tests.support.judge.scripts import started
from tests.support.judge.verdict import Verdict
from tests.support.megatron_builder import parallel, resolved, whole_down_projections, without_kernels
from tests.support.random_scripts import RandomJob, jobs


def prepared(release: str) -> Megatron:
    """The judge of a release, whose models and optimizers can be made without a device."""
    import types

    judge = Megatron(sources(release))
    import torch

    class Host(torch.Tensor):
        """A tensor in the host's memory."""

    class States(torch.optim.Optimizer):
        """What the fused optimizers of Transformer Engine keep of each parameter: moments, and a master copy if asked.

        Source: NVIDIA/TransformerEngine pytorch/optimizers/fused_adam.py: `initialize_state`, `store_param_remainders`.
        """

        def __init__(
            self, params: Any, lr: float = 0.0, *, momentum: float | None = None, master_weights: bool = False,
            master_weight_dtype: Any = torch.float32, exp_avg_dtype: Any = torch.float32,
            exp_avg_sq_dtype: Any = torch.float32, use_decoupled_grad: bool = False,
            store_param_remainders: bool = False, **_: Any,
        ) -> None:  # fmt: skip
            super().__init__(params, {"lr": lr})
            self.formats = [torch.float32] if momentum else [exp_avg_dtype, exp_avg_sq_dtype]
            self.master = master_weight_dtype if master_weights else None
            self.keeps_remainders = store_param_remainders and master_weight_dtype == torch.float32

        def kept(self, parameter: Any) -> list[Any]:
            """The tensors beside one parameter."""
            formats = list(self.formats)
            if self.master is not None:
                remainder = self.keeps_remainders and parameter.dtype == torch.bfloat16
                formats.append(torch.int16 if remainder else self.master)
            return [torch.empty(parameter.shape, dtype=one, device="meta") for one in formats]

    words = {torch.float16: "Half", torch.bfloat16: "BFloat16", torch.float32: "Float"}
    kind = torch.Tensor.type
    torch.Tensor.type = lambda self, *to: kind(self, *to) if to else f"torch.cuda.{words[self.dtype]}Tensor"
    torch.Tensor.is_cuda = property(lambda self: not isinstance(self, Host))
    torch.Tensor.cpu = lambda self: self.as_subclass(Host)
    torch.Tensor.pin_memory = lambda self: self
    torch.cuda.current_device = lambda: torch.device("meta")
    torch.nn.Module.cuda = lambda self, *_: self
    without_kernels()
    for name in ("Stream", "Event", "current_stream"):
        setattr(torch.cuda, name, MagicMock())
    torch.cuda.stream = contextlib.nullcontext

    def as_ours(every: list[Any], ours: Any, *_: Any, **__: Any) -> None:
        every[:] = [ours] * len(every)

    torch.distributed.all_gather_object = as_ours
    import gpt_builders

    gpt_model = gpt_builders.GPTModel

    def gpt(transformer_layer_spec: Any, mtp_block_spec: Any = None, **settings: Any) -> Any:
        for spec in (transformer_layer_spec, mtp_block_spec):
            whole_down_projections(spec)
        return gpt_model(transformer_layer_spec=transformer_layer_spec, mtp_block_spec=mtp_block_spec, **settings)

    gpt_builders.GPTModel = gpt
    for name in ("transformer_engine", "transformer_engine.pytorch", "transformer_engine.pytorch.optimizers"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["transformer_engine.pytorch.optimizers"].FusedAdam = States
    from megatron.core import optimizer
    from megatron.core.optimizer import distrib_optimizer, emerging_optimizers

    muon = emerging_optimizers._EMERGING_OPTIMIZERS["muon"]
    muon.optimizer_cls, muon.config_to_kwargs = States, lambda *_: {"momentum": 0.95}
    optimizer.HAVE_EMERGING_OPTIMIZERS = True
    optimizer.Adam = optimizer.SGD = distrib_optimizer.Adam = States
    optimizer.USING_PYTORCH_OPTIMIZER = False
    return judge


def size(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def optimizer_bytes(optimizer: Any) -> int:
    """Bytes on the device of main parameters that are no view of a model's, and of states."""
    if hasattr(optimizer, "chained_optimizers"):
        return sum(map(optimizer_bytes, optimizer.chained_optimizers))
    inner = optimizer.optimizer
    if inner is None:
        return 0
    total = 0
    for one in getattr(inner, "sub_optimizers", [inner]):
        for parameter in (parameter for group in one.param_groups for parameter in group["params"]):
            if not parameter.is_cuda:
                continue
            is_models = parameter._is_view() or hasattr(parameter, "main_grad")
            total += 0 if is_models else size(parameter)
            total += sum(map(size, one.kept(parameter)))
    return total


def largest_tensor(optimizer: Any) -> int:
    """Elements of the largest tensor of each optimizer of a rank, added: shares go to the host by whole tensors."""
    if hasattr(optimizer, "chained_optimizers"):
        return sum(map(largest_tensor, optimizer.chained_optimizers))
    groups = optimizer.optimizer.param_groups if optimizer.optimizer else ()
    return max((one.numel() for group in groups for one in group["params"]), default=0)


def on_meta() -> Any:
    """Makes every new tensor on the meta device, also those that ask for another."""
    from torch.overrides import TorchFunctionMode
    from torch.utils._device import _device_constructors

    made = _device_constructors()

    class OnMeta(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}) | ({"device": "meta"} if func in made else {}))

    return OnMeta()


def of_rank(args: Any, rank: int) -> Iterator[tuple[str, int]]:
    """Bytes of one global rank by what holds them."""
    import gpt_builders
    import model_provider
    from megatron.core.optimizer import get_megatron_optimizer
    from megatron.training import global_vars, training

    with parallel(args, rank):
        global_vars._GLOBAL_ARGS = args
        with on_meta():
            chunks = training.get_model(partial(model_provider.model_provider, gpt_builders.gpt_builder))
            config, overrides = training.get_megatron_optimizer_config(args)
            made = get_megatron_optimizer(config, chunks, config_overrides=overrides, use_gloo_process_groups=False)
        buffers = [one for chunk in chunks for one in (*chunk.buffers, *chunk.expert_parallel_buffers)]
        own = sum(size(parameter) for chunk in chunks for parameter in chunk.parameters())
        yield "weights", sum(size(one.param_data) for one in buffers) if buffers[0].param_data is not None else own
        yield "gradients", sum(size(one.grad_data) for one in buffers)
        yield "optimizer", optimizer_bytes(made)
        yield "padding", sum(one.numel - one.numel_unpadded for one in buffers)
        yield "largest", largest_tensor(made)


def experts_of_rank(job: RandomJob) -> float:
    """Routed experts of all layers on one rank, about."""
    has = job.settings.get
    shared = has("expert_model_parallel_size", 1) * has("pipeline_model_parallel_size", 1)
    return float(has("num_experts", 0) * has("num_layers", 0) / shared)


def has_rounds(job: RandomJob) -> bool:
    """Whether interleaving has the micro-batches that it stops without in its first step."""
    has = job.settings.get
    pp = has("pipeline_model_parallel_size", 1)
    replicas = job.world // (has("tensor_model_parallel_size", 1) * pp * has("context_parallel_size", 1))
    rounds = has("global_batch_size", 1) // max(has("micro_batch_size", 1) * replicas, 1)
    return not has("num_layers_per_virtual_pipeline_stage") or rounds >= pp


def legal_jobs(judge: Megatron, release: str, count: int, seed: int, most: int) -> Iterator[RandomJob]:
    """Random jobs that Megatron starts, with at most so many experts on a rank: each takes milliseconds to build."""
    every = jobs(release, 40 * count, seed, of_bytes=True)
    small = (job for job in every if experts_of_rank(job) <= most and has_rounds(job))
    return islice((one for one in small if judge.verdict(one.argv, one.world, one.environment).accepted), count)


def main(release: str, *job: str) -> None:
    noise = io.StringIO()
    with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
        judge = prepared(release)
    listed = legal_jobs(judge, release, *map(int, job)) if len(job) > 1 else [started(Path(*job))]
    for one in listed:
        found: dict[str, Any] = {"why": ""}
        if isinstance(one, RandomJob):
            found |= {"script": one.script, "settings": one.settings}
        try:
            with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
                args = resolved(judge.module, one.argv, one.world, one.environment)
                each = args.world_size // args.pipeline_model_parallel_size
                for stage in range(args.pipeline_model_parallel_size):
                    for part, held in of_rank(args, stage * each):
                        found.setdefault(part, []).append(held)
        except Exception as error:
            refusal = Verdict.of(error)
            found["why"] = f"{refusal.why} {refusal.where}"
        print(json.dumps(found, default=str), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
