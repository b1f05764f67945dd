"""Megatron-Bridge's own start of a script: its parser, recipes, overrides and checks before the first process.

    judge = Bridge(checkout, megatron)
    judge.verdict(Path("nemo.sh")).accepted

Its `run_recipe.py` runs up to the configuration that it would train with, as `--dry-run` resolves it.
Configurations of the hub are those of our presets; kernels and data sets that no check needs are stand-ins.
"""

import contextlib
import dataclasses
import importlib
import io
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from primus_search.models.presets import presets
from tests.support.judge.scripts import started
from tests.support.judge.verdict import Verdict, processes
from tools.framework_imports import StandIns, megatron

ABSENT = (
    "megatron.energon", "nemo_run", "transformer_engine", "einops", "PIL", "torchvision", "timm", "datasets",
    "modelopt", "tensorboard", "wandb", "nvidia_resiliency_ext", "diffusers", "qwen_vl_utils", "accelerate", "peft",
    "imageio", "ftfy", "librosa", "soundfile",
)  # fmt: skip
"""Packages that Bridge imports for training, and no check needs."""

DERIVED = {"model.virtual_pipeline_model_parallel_size", "model.cuda_graph_impl", "model.cuda_graph_scope",
           "model.cuda_graph_modules",
           "model.recompute_modules", "model.experimental_attention_variant",
           "model.microbatch_group_size_per_vp_stage"}  # fmt: skip
"""Fields that Bridge fills: stages of a layout, graphs and attention under newer names,
modules of no recompute, groups of as many micro-batches as there are stages."""


REMOTE = {"kimi_k2": "deepseek_v3"}
"""Types whose configuration class lies beside their weights, and the one that it is a copy of."""


def spelled(value: Any) -> tuple[str, ...]:
    """A value as text, and the type of torch that Bridge makes of it."""
    return (str(value), "torch.float32") if value == "fp32" else (str(value),)


class FusedAdam:
    """The arguments by which Megatron tells that Transformer Engine's optimizer has number formats of its own."""

    def __init__(
        self,
        master_weight_dtype: Any = None,
        exp_avg_dtype: Any = None,
        exp_avg_sq_dtype: Any = None,
        use_decoupled_grad: bool = False,
        store_param_remainders: bool = False,
    ) -> None: ...


class Bridge:
    """One release of Megatron-Bridge over a Megatron."""

    def __init__(self, checkout: Path, megatron_lm: Path) -> None:
        logging.disable(logging.WARNING)
        os.environ["HF_HUB_OFFLINE"] = "1"  # of this process: recipes look for tokenizers, and go on without
        megatron(megatron_lm)
        import transformers.models.auto.modeling_auto  # before stand-ins: it looks for packages

        namespace = importlib.import_module("megatron")
        namespace.__path__ = [str(megatron_lm / "megatron"), str(checkout / "src" / "megatron")]
        sys.path[:0] = [str(checkout / "scripts" / "training"), str(checkout / "scripts" / "common")]
        sys.meta_path.append(StandIns(*ABSENT))  # kept: recipes import as they are first named
        vars(importlib.import_module("transformer_engine.pytorch.optimizers"))["FusedAdam"] = FusedAdam
        self.module = importlib.import_module("run_recipe")
        self.config = importlib.import_module("megatron.bridge.training.config")
        self.hub = importlib.import_module("megatron.bridge.models.conversion.auto_bridge").AutoBridge
        self.parser = importlib.import_module("hydra.core.override_parser.overrides_parser").OverridesParser
        classes = transformers.models.auto.modeling_auto
        self.architectures = {
            **classes.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
            **classes.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        }
        self.auto = transformers.AutoConfig
        named = {hub.lower(): one for one in presets().values() for hub in one.tokenizers}
        saved = importlib.import_module("megatron.bridge.training.utils.checkpoint_utils")
        saved.file_exists = lambda _: True  # the checkpoint that a job starts from
        self.presets = {hub: one.path for hub, one in named.items()}

    def verdict(self, script: Path) -> Verdict:
        """What Bridge answers to a script; a refusal where it trains with another value than an override has."""
        job = started(script, {"BRIDGE_PATH": "/opt/bridge"})
        noise = io.StringIO()
        marked = {self.module.bootstrap_recipe_environment.__globals__["RECIPE_ENV_BOOTSTRAP_MARKER"]: str(os.getpid())}
        with (
            contextlib.redirect_stdout(noise),
            contextlib.redirect_stderr(noise),
            contextlib.chdir(script.parent),
            patch.dict(os.environ, processes(job.world) | marked),
        ):
            try:
                trained = dict(_leaves(self._resolved(list(job.argv))))
                parsed = self.parser.create().parse_overrides([w for w in job.argv if "=" in w and w[:1] != "-"])
            except SystemExit:
                return Verdict(False, f"parser: {noise.getvalue().strip()[-300:]}", "parser")
            except Exception as error:
                return Verdict.of(error)
        asked = {one.key_or_group: one.value() for one in parsed}
        for name, value in asked.items():
            if name.startswith("model.") and name not in trained and value not in (None, False):
                return Verdict(False, f"{name}: {value} is no field of its model", "overrides")
            if name in trained and name not in DERIVED and str(trained[name]) not in spelled(value):
                return Verdict(False, f"{name}: {value} is trained as {trained[name]}", "overrides")
        return Verdict(True, args=trained)

    def _resolved(self, argv: list[str]) -> Any:
        """The configuration that a command trains with."""
        held: list[Any] = []

        def checked(*, config: Any, **_: Any) -> None:
            self.config.runtime_config_update(config)
            held.append(config)

        with (
            patch.object(self.module, "run_config", checked),
            patch.object(self.module, "load_forward_step", lambda *_, **__: None),
            patch.object(self.hub, "from_hf_pretrained", self._of_hub),
        ):
            self.module.main(argv)
        return held[0]

    def _of_hub(self, name: str, **_: Any) -> Any:
        """Bridge's model of a name on the hub, from the preset that has it."""
        fields = yaml.safe_load(self.presets[name.lower()].read_text(encoding="utf-8"))["huggingface"]
        fields |= {"model_type": REMOTE.get(fields["model_type"], fields["model_type"])}
        fields.setdefault("num_nextn_predict_layers", 0)  # which a class may have by default, and the file not
        config = self.auto.for_model(**fields, architectures=[self.architectures[fields["model_type"]]])
        return self.hub.from_hf_config(config)


def _leaves(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Fields of a configuration below their sections, as an override names them; those of the transformer of a model on
    main under the names that they have in v0.6.0."""
    for one in dataclasses.fields(config):
        value = getattr(config, one.name)
        if dataclasses.is_dataclass(value):
            yield from _leaves(value, prefix if one.name == "transformer" else f"{prefix}{one.name}.")
        else:
            yield f"{prefix}{one.name}", value
