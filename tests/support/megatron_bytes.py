"""Bytes of jobs as Megatron allocates them: `python -m tests.support.megatron_bytes RELEASE COUNT SEED MOST | SCRIPT`.

Each rank of a pipeline is built as training starts it: get_model with its buffers of weights and gradients, then
get_megatron_optimizer with the shards of this rank, on the meta device and with fake process groups. One JSON line a
legal job: {"script", "settings", "weights", "gradients", "optimizer": [bytes per pipeline rank], "padding": [elements
that buffers have beyond their parameters], "largest": [elements of the largest tensors], "why": why it is not built}.
Megatron's optimizers have kernels of Transformer Engine and of NVIDIA-NeMo/Emerging-Optimizers; `States` allocates what
those keep: two moments, or one (Muon's momentum_buffer, Lion's exp_avg).
"""

import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

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
    moved = torch.Tensor.to
    torch.Tensor.to = lambda self, *to, **words: (
        self if str([*to[:1]]).startswith("['cuda") else moved(self, *to, **words)
    )
    torch.Tensor.is_meta = property(lambda _: False)
    torch.cuda.current_device = lambda: 0
    torch.nn.Module.cuda = torch.nn.Module.to = lambda self, *_, **__: self
    without_kernels()
    from megatron.core.distributed.fsdp import mcore_fsdp_adapter

    mcore_fsdp_adapter.FullyShardedDataParallelV1.sync_rng_states_across_tp_group = lambda _: None
    for name in ("Stream", "Event", "current_stream"):
        setattr(torch.cuda, name, MagicMock())
    torch.cuda.stream = contextlib.nullcontext

    def as_ours(every: list[Any], ours: Any, *_: Any, **__: Any) -> None:
        every[:] = [ours] * len(every)

    torch.distributed.all_gather_object = as_ours
    import gpt_builders
    from megatron import training

    gpt_model = gpt_builders.GPTModel

    def gpt(transformer_layer_spec: Any, mtp_block_spec: Any = None, **settings: Any) -> Any:
        for spec in (transformer_layer_spec, mtp_block_spec):
            whole_down_projections(spec)
        made = gpt_model(transformer_layer_spec=transformer_layer_spec, mtp_block_spec=mtp_block_spec, **settings)
        if training.get_args().has_grouped_experts:
            group_experts(made)
        if settings["config"].fp8_param:
            quantize(made)
        return made

    gpt_builders.GPTModel = gpt
    for name in ("transformer_engine", "transformer_engine.pytorch", "transformer_engine.pytorch.optimizers"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["transformer_engine.pytorch.optimizers"].FusedAdam = States
    from megatron.core import optimizer
    from megatron.core.optimizer import distrib_optimizer, emerging_optimizers

    known = emerging_optimizers._EMERGING_OPTIMIZERS
    known["lion"] = emerging_optimizers.EmergingOptimizerEntry(optimizer_cls=States)
    for name, momentum in (("muon", 0.95), ("adaptive_muon", None), ("lion", 0.95)):
        known[name].optimizer_cls = States
        known[name].config_to_kwargs = lambda *_, momentum=momentum: {"momentum": momentum}
    optimizer.HAVE_EMERGING_OPTIMIZERS, optimizer.Lion = True, partial(States, momentum=0.95)
    optimizer.Adam = optimizer.SGD = distrib_optimizer.Adam = States
    optimizer.USING_PYTORCH_OPTIMIZER = False
    with_quantized_tensors()
    return judge


def group_experts(model: Any) -> None:
    """Gives matrices of experts the order of TEGroupedMLP: the first of each expert, then the second of each."""
    import torch

    for mlp in [one for one in model.modules() if hasattr(one, "local_experts")]:
        experts = list(mlp.local_experts)
        del mlp.local_experts
        mlp.linear_fc1, mlp.linear_fc2 = (
            torch.nn.ModuleList(getattr(one, name) for one in experts) for name in ("linear_fc1", "linear_fc2")
        )


def with_quantized_tensors() -> None:
    """Weights that `quantize` has marked are taken for tensors of Transformer Engine in one byte."""
    import torch
    from megatron.core.distributed import param_and_grad_buffer as whole
    from megatron.core.distributed.fsdp.src.megatron_fsdp import megatron_fsdp
    from megatron.core.distributed.fsdp.src.megatron_fsdp import param_and_grad_buffer as sharded
    from megatron.core.optimizer import distrib_optimizer

    for module in (whole, sharded, megatron_fsdp, distrib_optimizer):
        module.is_float8tensor = lambda tensor: hasattr(tensor, "in_two_layouts")
    whole.modify_underlying_storage = sharded.fp8_set_raw_data = lambda *_: None
    sharded.fp8_need_transpose_data = lambda tensor: tensor.in_two_layouts
    sharded.fp8_get_raw_data = lambda tensor, *_: torch.empty(tensor.shape, dtype=torch.uint8, device="meta")


def quantize(model: Any) -> None:
    """Marks the weights of a model that Transformer Engine holds in FP8: of linears in its layers, those of MTP too.

    Source: NVIDIA/Megatron-LM core/transformer: transformer_block.py `build_layer`, multi_token_prediction.py.
    """
    import torch
    from megatron.core.fp8_utils import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.multi_latent_attention import TELinear

    blocks = (model.decoder, getattr(model, "mtp", None))
    for module in (part for block in blocks if block is not None for part in block.layers.modules()):
        if isinstance(module, ColumnParallelLinear | RowParallelLinear | TELinear):
            weight = module.weight
            weight.in_two_layouts = model.config.fp8_recipe == "mxfp8"
            weight.clear_high_precision_init_val = lambda: None
            weight.get_high_precision_init_val = partial(torch.empty, weight.shape, device="meta")


def size(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def inner(optimizer: Any) -> Iterator[Any]:
    """The optimizers of torch that a rank has, those of a hybrid one apart."""
    if hasattr(optimizer, "chained_optimizers"):
        for one in optimizer.chained_optimizers:
            yield from inner(one)
    elif optimizer.optimizer is not None:
        yield from getattr(optimizer.optimizer, "sub_optimizers", [optimizer.optimizer])


def parameters_of(optimizer: Any) -> list[Any]:
    """The parameters of an optimizer of torch, of sharded ones this rank's part."""
    every = (one for group in optimizer.param_groups for one in group["params"])
    return [one.to_local() if hasattr(one, "to_local") else one for one in every]


def optimizer_bytes(optimizer: Any, *, has_own_masters: bool = True) -> int:
    """Bytes on the device of states, and of main parameters that are no view of a model's."""
    total = 0
    for one in inner(optimizer):
        for parameter in parameters_of(one):
            if not parameter.is_cuda:
                continue
            is_models = not has_own_masters or parameter._is_view() or hasattr(parameter, "main_grad")
            total += 0 if is_models else size(parameter)
            total += sum(map(size, one.kept(parameter)))
    return total


def largest_tensor(optimizer: Any) -> int:
    """Elements of the largest tensor of each optimizer of a rank, added: shares go to the host by whole tensors."""
    if hasattr(optimizer, "chained_optimizers"):
        return sum(map(largest_tensor, optimizer.chained_optimizers))
    every = parameters_of(optimizer.optimizer) if optimizer.optimizer else ()
    return max((one.numel() for one in every), default=0)


def on_meta() -> Any:
    """Makes every new tensor on the meta device, also those that ask for another; not the ranks of a mesh."""
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._device import _device_constructors

    made = _device_constructors()
    of_values = (torch.arange, torch.tensor)

    class OnMeta(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = kwargs or {}
            is_moved = func in made and (func not in of_values or str(given.get("device", "cpu")) != "cpu")
            return func(*args, **given | ({"device": "meta"} if is_moved else {}))

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
        held = of_shards if args.use_megatron_fsdp else of_modules if args.use_torch_fsdp2 else of_buffers
        yield from held(chunks, made)
        yield "largest", largest_tensor(made)


def of_buffers(chunks: Any, made: Any) -> Iterator[tuple[str, int]]:
    """Of the buffers of weights and gradients, whose optimizer may be sharded; FP8 weights are held by columns as well.

    Source: NVIDIA/TransformerEngine pytorch/tensor: Float8Tensor `_transpose`, which the backward pass of Hopper needs.
    """
    buffers = [one for chunk in chunks for one in (*chunk.buffers, *chunk.expert_parallel_buffers)]
    own = sum(size(parameter) for chunk in chunks for parameter in chunk.parameters())
    columns = sum(one.numel() for chunk in chunks for one in chunk.parameters() if hasattr(one, "in_two_layouts"))
    is_held = buffers[0].param_data is not None
    yield "weights", sum(size(one.param_data) for one in buffers) + columns if is_held else own
    yield "gradients", sum(size(one.grad_data) for one in buffers)
    yield "optimizer", optimizer_bytes(made)
    yield "padding", sum(one.numel - one.numel_unpadded for one in buffers)


def of_modules(chunks: Any, made: Any) -> Iterator[tuple[str, int]]:
    """Of torch's FSDP2, whose gradients are in the type of the weights; rows are dealt as they divide."""
    models = {id(one): size(one.to_local()) for chunk in chunks for one in chunk.parameters()}
    yield "weights", sum(models.values())
    yield "gradients", sum(models.values())
    updated = (one for optimizer in inner(made) for group in optimizer.param_groups for one in group["params"])
    masters = sum(size(one.to_local()) for one in updated if id(one) not in models)
    yield "optimizer", masters + optimizer_bytes(made, has_own_masters=False)
    yield "padding", 0


def of_shards(chunks: Any, made: Any) -> Iterator[tuple[str, int]]:
    """Of the groups of parameters of Megatron-FSDP, whose main weights are its own."""
    groups = [group for chunk in chunks for group in chunk.module.param_and_grad_buffer.parameter_groups]

    def held(name: str, across: str = "") -> int:
        """Bytes of a buffer; where its optimizer is sharded across groups as well, it is a view of that of a group."""
        buffers = (getattr(group, across, None) or getattr(group, name) for group in groups)
        return sum(size(one.data) for one in buffers if one is not None)

    whole = (one for group in groups if group.model_weight_buffer is None for one in group.params)
    by_columns = held("transpose_weight_buffer", "hfsdp_helper_wtbuf")
    unsharded = sum(2 * one.numel() if hasattr(one, "in_two_layouts") else size(one) for one in whole)
    yield "weights", held("model_weight_buffer", "hfsdp_helper_wbuf") + by_columns + unsharded
    yield "gradients", held("main_grad_buffer", "hfsdp_helper_gbuf")
    yield "optimizer", held("main_weight_buffer") + optimizer_bytes(made, has_own_masters=False)
    beside = [group for group in groups if group.fsdp_unit_id is None]
    kinds = ("model_weight_buffer", "main_grad_buffer", "main_weight_buffer")
    yield "padding", max(sum(map(padding, (group.__getattribute__(kind) for group in beside))) for kind in kinds)


def padding(buffer: Any) -> int:
    """Elements of a buffer of Megatron-FSDP beyond this rank's share of its parameters."""
    if buffer is None:
        return 0
    shards = buffer.dp_world_size if buffer.is_data_distributed else 1
    return int(buffer.data.numel()) - sum(one.numel() for one in buffer.params) // shards


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
    stages = has("pipeline_model_parallel_layout", "").count("|") + 1
    virtual = has("num_layers_per_virtual_pipeline_stage") or has("num_virtual_stages_per_pipeline_rank")
    return not (virtual or stages > pp) or rounds >= pp


def is_whole(job: RandomJob) -> bool:
    """Whether a job of Megatron-FSDP has one stage, as its mesh needs, and its optimizer on the device.

    Hosted parts of sharded parameters have no stand-in.
    """
    has = job.settings.get
    return not has("use_megatron_fsdp") or (
        has("pipeline_model_parallel_size") == 1 and not has("optimizer_cpu_offload")
    )


def has_stages(job: RandomJob) -> bool:
    """Whether layers are counted for ends of a pipeline alone; of one stage Megatron builds no more than these."""
    names = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
    return job.settings.get("pipeline_model_parallel_size", 1) > 1 or job.settings.keys().isdisjoint(names)


def legal_jobs(judge: Megatron, release: str, count: int, seed: int, most: int) -> Iterator[RandomJob]:
    """Random jobs that Megatron starts, with at most so many experts on a rank: each takes milliseconds to build."""
    every = jobs(release, 40 * count, seed, of="bytes")
    small = (
        job for job in every if experts_of_rank(job) <= most and has_rounds(job) and is_whole(job) and has_stages(job)
    )
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
            with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise), patch.dict(os.environ):
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
