"""Parameters per pipeline rank of Megatron-Core from scripts: `python -m tests.support.megatron_builder FILE...`

Process groups are fake (`torch.testing._internal.distributed.fake_pg`), weights are on the meta device; one JSON line a
file: {"file", "params": [per pipeline rank], "matrices": [those that Muon updates], "why"}. Modules of Transformer
Engine are replaced by Megatron's local ones, which hold the same parameters. Megatron is the release that Primus pins.
"""

import contextlib
import io
import json
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support.judge.checkouts import sources
from tests.support.judge.megatron import Megatron
from tests.support.judge.scripts import started
from tests.support.judge.verdict import Verdict, processes


def parsed(arguments: Any, file: Path) -> Any:
    job = started(file)
    return resolved(arguments, job.argv, job.world, job.environment)


def resolved(arguments: Any, argv: Sequence[str], world: int, environment: Mapping[str, str]) -> Any:
    """Settings of a job as Megatron resolves them, then of a model without kernels that has the same parameters."""
    os.environ |= processes(world)
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = environment.get("CUDA_DEVICE_MAX_CONNECTIONS", "")
    sys.argv = ["pretrain_gpt.py", *argv]
    args = arguments.parse_args()
    arguments.validate_args(args, {})
    size_of_multiple = args.make_vocab_size_divisible_by * args.tensor_model_parallel_size
    rows = args.vocab_size + ("null_tokenizer_eod_id" not in args)  # core 0.16 adds one for the end of a document
    args.padded_vocab_size = size_of_multiple * math.ceil(rows / size_of_multiple)
    args.has_grouped_experts = args.moe_grouped_gemm
    args.transformer_impl, args.moe_grouped_gemm = "local", False
    args.moe_token_dispatcher_type = "allgather"  # the others make tables on the device
    args.perform_initialization, args.no_persist_layer_norm, args.apply_rope_fusion = False, True, False
    args.gradient_accumulation_fusion, args.bias_dropout_fusion, args.nccl_ub = False, False, False
    return args


@contextlib.contextmanager
def parallel(args: Any, rank: int) -> Iterator[None]:
    """Fake process groups of one global rank."""
    import torch.distributed as dist
    from megatron.core import parallel_state, tensor_parallel
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=args.world_size, store=FakeStore())
    try:
        parallel_state.initialize_model_parallel(
            args.tensor_model_parallel_size,
            args.pipeline_model_parallel_size,
            args.virtual_pipeline_model_parallel_size,
            context_parallel_size=args.context_parallel_size,
            expert_model_parallel_size=args.expert_model_parallel_size,
            expert_tensor_parallel_size=args.expert_tensor_parallel_size,
            num_distributed_optimizer_instances=args.num_distributed_optimizer_instances,
            create_gloo_process_groups=False,
        )
        with contextlib.suppress(Exception):
            tensor_parallel.model_parallel_cuda_manual_seed(1)
        yield
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def rearranged(ranks: Any, pattern: str, **sizes: int) -> Any:
    """An array with its axes split, ordered and joined by names, as einops has it: `(a b) c -> c (b a)`."""
    found = [[part.strip("()").split() for part in re.findall(r"\([^)]*\)|\w+", side)] for side in pattern.split("->")]
    before, after = found
    for group, length in zip(before, ranks.shape, strict=True):
        for name in set(group) - sizes.keys():
            sizes[name] = int(length) // math.prod(sizes[one] for one in group if one in sizes)
    names = [name for group in before for name in group]
    order = [names.index(name) for group in after for name in group]
    whole = ranks.reshape([sizes[name] for name in names])
    whole = whole.permute(order) if hasattr(whole, "permute") else whole.transpose(order)
    return whole.reshape([math.prod(sizes[name] for name in group) for group in after])


def without_kernels() -> None:
    """Local norms and attention without what their forward pass does not have: sequence and context parallelism."""
    import torch
    from megatron.core.transformer import dot_product_attention, multi_latent_attention, torch_norm
    from megatron.core.transformer.moe import moe_layer

    class Whole(torch.nn.Module):
        """A linear that is whole on every rank, as those of Transformer Engine into latents."""

        def __init__(self, input_size: int, output_size: int, *, bias: bool = False, **_: Any) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(output_size, input_size))
            self.bias = torch.nn.Parameter(torch.empty(output_size)) if bias else None

    multi_latent_attention.HAVE_TE, multi_latent_attention.TELinear = False, Whole
    moe_layer.HAVE_TE, moe_layer.TELinear = True, Whole

    def norm(cls: Any, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> Any:
        made = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
        return made(hidden_size, eps)

    def attention(self: Any, config: Any, *_: Any, **__: Any) -> None:
        torch.nn.Module.__init__(self)
        if getattr(config, "softmax_type", "vanilla") == "learnable":
            heads = config.num_attention_heads // config.tensor_model_parallel_size
            self.softmax_offset = torch.nn.Parameter(torch.empty(heads))

    def rotation(self: Any, *_: Any, **__: Any) -> None:
        torch.nn.Module.__init__(self)

    from megatron.core.models.common.embeddings import rotary_pos_embedding, yarn_rotary_pos_embedding

    rotary_pos_embedding.RotaryEmbedding.__init__ = rotation
    yarn_rotary_pos_embedding.YarnRotaryEmbedding.__init__ = rotation
    from megatron.core import parallel_state

    dealing = [parallel_state]
    with contextlib.suppress(ImportError):
        from megatron.core.distributed.fsdp import mcore_fsdp_adapter
        from megatron.core.distributed.fsdp.src.megatron_fsdp import utils

        dealing += [mcore_fsdp_adapter, utils]
    for module in dealing:
        module.HAVE_EINOPS, module.einops = True, SimpleNamespace(rearrange=rearranged)
    with contextlib.suppress(ImportError):
        from megatron.core.transformer import multi_token_prediction

        multi_token_prediction.is_inference_column_parallel_linear = lambda _: False
    torch.Tensor.cuda = lambda self, *_, **__: self
    torch.cuda.Stream = torch.cuda.Event = lambda *_, **__: None
    torch_norm.WrappedTorchNorm.__new__ = norm
    dot_product_attention.DotProductAttention.__init__ = attention


def whole_down_projections(spec: Any) -> None:
    """Gives layers of a specification the down-projections of latent attention as Transformer Engine has them."""
    from megatron.core.transformer import multi_latent_attention

    for one in getattr(spec, "layer_specs", [spec] if spec else []):
        layer = getattr(one.submodules, "mtp_model_layer", None) or getattr(one.submodules, "transformer_layer", one)
        inner = getattr(layer.submodules.self_attention, "submodules", None)
        for name in ("linear_q_down_proj", "linear_kv_down_proj"):
            if hasattr(inner, name):
                setattr(inner, name, multi_latent_attention.TELinear)


def parameters(args: Any, arguments: Any, rank: int) -> tuple[int, int]:
    """Parameters of one global rank, all its virtual stages, and those of them that Muon updates.

    Source of the latter: core/optimizer/layer_wise_optimizer.py is_managed_by_layer_wise_optimizer of core 0.20.
    """
    import torch
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_decoder_block_spec,
        get_gpt_layer_local_spec,
        get_gpt_mtp_block_spec,
    )

    vpp = args.virtual_pipeline_model_parallel_size
    with parallel(args, rank):
        config = arguments.core_transformer_config_from_args(args)
        total, matrices = 0, 0
        for stage in range(vpp or 1):
            where = {"vp_stage": stage if vpp else None}
            first = parallel_state.is_pipeline_first_stage(ignore_virtual=False, **where)
            last = parallel_state.is_pipeline_last_stage(ignore_virtual=False, **where)
            if args.num_experts:
                spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, **where)
            else:
                spec = get_gpt_layer_local_spec(
                    None, False, args.qk_layernorm, args.multi_latent_attention, normalization=args.normalization
                )
            whole_down_projections(spec)
            mtp = (
                get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False, **where)
                if args.mtp_num_layers
                else None
            )
            with torch.device("meta"):
                model = GPTModel(
                    config=config,
                    transformer_layer_spec=spec,
                    vocab_size=args.padded_vocab_size,
                    max_sequence_length=args.max_position_embeddings,
                    pre_process=first,
                    post_process=last,
                    share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
                    position_embedding_type=args.position_embedding_type,
                    rotary_percent=args.rotary_percent,
                    rotary_base=args.rotary_base,
                    mtp_block_spec=mtp,
                    **where,
                )
            total += sum(parameter.numel() for parameter in model.parameters())
            matrices += sum(
                one.numel()
                for one in model.parameters()
                if one.dim() == 2 and not getattr(one, "is_embedding_or_output_parameter", False)
            )
            # The router's bias that a rule updates is a buffer, which the cost model counts with the router.
            total += sum(one.numel() for name, one in model.named_buffers() if name.endswith("expert_bias"))
        return total, matrices


def main() -> None:
    files = [Path(name) for name in sys.argv[1:]]
    noise = io.StringIO()
    with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
        arguments = Megatron(sources("megatron@core_0.16")).module
        import torch

        torch.cuda.current_device = lambda: torch.device("meta")
        without_kernels()
    for file in files:
        found: dict[str, Any] = {"file": file.name, "params": [], "matrices": [], "why": ""}
        try:
            with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
                args = parsed(arguments, file)
                each = args.world_size // args.pipeline_model_parallel_size
                for stage in range(args.pipeline_model_parallel_size):
                    total, matrices = parameters(args, arguments, stage * each)
                    found["params"].append(total)
                    found["matrices"].append(matrices)
        except BaseException as error:
            refusal = Verdict.of(error)
            found["why"] = f"{refusal.why} {refusal.where}"
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
