"""Megatron's own checks of a job: parse_args, validate_args, micro-batch counter, rank groups, configuration class.

    judge = Megatron(checkout)
    judge.verdict(["--num-layers", "32", ...], world=64).accepted

Megatron is imported once and its parser made once: some tens of jobs a second. A process holds one release.
"""

import argparse
import contextlib
import inspect
import io
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

from tests.support.judge.verdict import Verdict, processes
from tools.framework_imports import megatron

SEEN = ("CUDA_DEVICE_MAX_CONNECTIONS", "NCCL_ALGO", "NVTE_", "PRIMUS_TURBO_")
"""Prefixes of what the checks read of a job's environment."""


class GroupsMade(Exception):
    """Megatron has checked its rank groups and makes the first."""


class Megatron:
    """One release of Megatron-LM."""

    def __init__(self, checkout: Path) -> None:
        logging.disable(logging.WARNING)
        self.module = megatron(checkout)
        parser = cache(lambda add=self.module.add_megatron_arguments: add(argparse.ArgumentParser(allow_abbrev=False)))
        self.module.add_megatron_arguments = lambda _: parser()
        self.module._print_args = lambda *_: None

    def verdict(self, argv: Sequence[str], world: int, environment: Mapping[str, str] | None = None) -> Verdict:
        """What Megatron answers to the arguments of a job of `world` processes."""

        def parsed() -> argparse.Namespace:
            sys.argv = ["pretrain_gpt.py", *argv]
            return self.module.parse_args()  # type: ignore[no-any-return]

        return self.judged(parsed, world, environment)

    def judged(
        self,
        parsed: Callable[[], Any],
        world: int,
        environment: Mapping[str, str] | None = None,
        beside: Iterable[Callable[[Any], object]] = (),
    ) -> Verdict:
        """The verdict on what `parsed()` gives; `beside` are checks that follow validate_args."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(SEEN)}
        job = processes(world) | {n: v for n, v in (environment or {}).items() if n.startswith(SEEN)}
        with patch.dict(os.environ, kept | job, clear=True):
            return self._verdict(parsed, beside)

    def _verdict(self, parsed: Callable[[], Any], beside: Iterable[Callable[[Any], object]]) -> Verdict:
        """`judged` in the environment of the job."""
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
                _counts_micro_batches(args)
                _groups_ranks(args)
                config = self.module.core_transformer_config_from_args(args)
                _deals_segments(args, config) if args.hybrid_layer_pattern else _deals_layers(config)
                _configures_optimizer(args)
            except SystemExit:
                last = (noise.getvalue().strip().splitlines() or ["?"])[-1]
                return Verdict(False, f"parser: {last[-300:]}", "argparse")
            except Exception as error:
                return Verdict.of(error)
        return Verdict(True, args=vars(config) | vars(args))


def _made(*_: Any, **__: Any) -> None:
    raise GroupsMade


def _counts_micro_batches(args: Any) -> None:
    """Refuses a global batch that is no multiple of micro-batch times data parallel, as the job's start does."""
    from megatron.core.num_microbatches_calculator import _build_num_microbatches_calculator as build

    _call(build, args, rank=0, step_batch_size_schedule=None, decrease_batch_size_if_needed=False)


def _groups_ranks(args: Any) -> None:
    """Refuses degrees that do not divide the processes, dense layers' or experts', as the job's start does.

    Megatron's function runs up to the first process group.
    """
    import torch
    from megatron.core import parallel_state

    with (
        patch.object(torch.distributed, "is_initialized", lambda: True),
        patch.object(torch.distributed, "get_world_size", lambda *_: args.world_size),
        patch.object(torch.distributed, "get_rank", lambda *_: 0),
        patch.object(torch.distributed, "ProcessGroupNCCL", MagicMock(), create=True),
        patch.object(parallel_state, "create_group", _made),
        contextlib.suppress(GroupsMade),
    ):
        order = "tp-cp-ep-pp-dp" if getattr(args, "use_tp_pp_dp_mapping", False) else "tp-cp-ep-dp-pp"
        remat = {
            "gtp_remat_size": getattr(args, "gtp_weight_remat_size", 1),
            "expert_gtp_remat_size": getattr(args, "expert_gtp_weight_remat_size", 1),
        }
        _call(parallel_state.initialize_model_parallel, args, order=order, **remat)
    parallel_state.set_virtual_pipeline_model_parallel_world_size(None)
    parallel_state.set_virtual_pipeline_model_parallel_rank(None)


def _deals_layers(config: Any) -> None:
    """Refuses layers that stages do not divide, and lists of expert layers of another length, as building a model does.

    Megatron's functions run with layers that are none.
    """
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.transformer.transformer_block import get_num_layers_to_build

    virtual = config.virtual_pipeline_model_parallel_size
    if config.pipeline_model_parallel_layout is None:
        for rank in range(config.pipeline_model_parallel_size):
            get_num_layers_to_build(config, 0 if virtual else None, rank)
    if config.num_moe_experts and config.experimental_attention_variant is None:
        layers = {name: MagicMock() for name in vars(gpt_layer_specs) if re.fullmatch(SPECS, name)}
        with patch.multiple(gpt_layer_specs, **layers):
            gpt_layer_specs.get_gpt_decoder_layer_specs(config, use_transformer_engine=False)


def _deals_segments(args: Any, config: Any) -> None:
    """Refuses a pattern of a hybrid stack that stages do not divide, as building its model does."""
    import torch
    from megatron.core.ssm import mamba_hybrid_layer_allocation as allocation

    select, stages = allocation.select_pipeline_segment, config.pipeline_model_parallel_size
    main = allocation.parse_hybrid_pattern(args.hybrid_layer_pattern).main_pattern or ""
    ends = config.num_layers_in_first_pipeline_stage, config.num_layers_in_last_pipeline_stage
    virtual = range(config.virtual_pipeline_model_parallel_size or 0) or [None]
    for rank, stage in product(range(stages), virtual):
        with (
            patch.object(torch.distributed, "get_rank", lambda *_, rank=rank: rank),
            patch.object(torch.distributed, "get_world_size", lambda *_: stages),
            patch.dict(select.__globals__, {name: MagicMock() for name in select.__globals__ if name[:4] == "log_"}),
        ):
            select(main, MagicMock(), stage, *ends)


def _configures_optimizer(args: Any) -> None:
    """Refuses number formats and buckets as the optimizer and the buffers of gradients do.

    Their configuration classes are made of the arguments, with the optimizer of Transformer Engine that a job has;
    Megatron's function that makes the optimizer runs up to its process groups.
    """
    from megatron.core import optimizer
    from megatron.core.distributed import DistributedDataParallelConfig

    package = "transformer_engine.pytorch.optimizers"
    fused = SimpleNamespace(FusedAdam=_fused_adam)
    parts = [package.rsplit(".", count)[0] for count in (2, 1)]
    with patch.dict(sys.modules, {package: fused, **dict.fromkeys(parts, fused)}):
        config = _call(optimizer.OptimizerConfig, args)
    if not getattr(args, "use_torch_fsdp2", False):
        beside = {name: getattr(args, f"ddp_{name}", None) for name in ("num_buckets", "bucket_size")}
        _call(DistributedDataParallelConfig, args, **beside)
    if config.optimizer in ("adam", "sgd"):
        made = patch.object(optimizer.ProcessGroupCollection, "setup_process_groups_for_optimizer", _made)
        with made, contextlib.suppress(GroupsMade):
            optimizer.get_megatron_optimizer(config, [None])


def _fused_adam(master_weight_dtype: Any, exp_avg_dtype: Any, exp_avg_sq_dtype: Any, use_decoupled_grad: Any) -> None:
    """The arguments by which Megatron knows that Transformer Engine's optimizer takes number formats."""


SPECS = r"get_gpt_layer_\w+_spec"
"""Functions that make the layers of a model."""


def _call(function: Callable[..., Any], args: Any, **words: Any) -> Any:
    """What a function of Megatron's start returns, called with what it takes of the arguments, else of `words`."""
    given = words | vars(args)
    return function(**{name: given[name] for name in inspect.signature(function).parameters if name in given})
