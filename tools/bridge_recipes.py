"""Recipes of Megatron-Bridge as run: what its own functions return.

Recipes, precisions, overlaps and graphs are imported as they are; torch, Megatron-Core and the rest of Bridge are
stand-ins, whose objects have every attribute, None where nothing set it. One process imports one Bridge.
"""

import ast
import dataclasses
import importlib
import importlib.machinery
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from primus_search.files.hardware_files import load_hardware
from primus_search.files.search_path import FileKind, names
from primus_search.models.tokenizers import model_of_tokenizer
from tools.framework_imports import StandIns

BRIDGE = "megatron.bridge"
PRECISIONS = f"{BRIDGE}.training.mixed_precision"
SECTIONS = (PRECISIONS, f"{BRIDGE}.training.comm_overlap")
REAL = (
    *SECTIONS, f"{BRIDGE}.utils.cuda_graph", f"{BRIDGE}.training.flex_dispatcher_backend",
    f"{BRIDGE}.models.deepseek.deepseek_v4_bridge", f"{BRIDGE}.recipes", f"{BRIDGE}.perf_recipes",
    f"{BRIDGE}.diffusion.recipes", f"{BRIDGE}.peft.lora",
)  # fmt: skip
ABSENT = ("torch", "transformers", "datasets", "omegaconf", "hydra", "nemo_run", "transformer_engine", "megatron")
GIVE_MODELS = ("to_megatron_provider", "get_model_config", "to_text_provider", "provider_bridge")
HOLD_OTHERS = ("rerun_state_machine", "text_config")


class Class(type):
    """A class whose missing members are functions of the name of a model; an item of it is its name."""

    def __getitem__(cls, name: str) -> str:
        return name

    def __getattr__(cls, name: str) -> Any:
        if name[:2] == "__":
            raise AttributeError(name)
        return lambda *given, **_: Held(hub=next((one for one in given if isinstance(one, str)), ""))


class Held(metaclass=Class):
    """An object with what it was made with."""

    def __init__(self, *_: Any, **given: Any) -> None:
        self.__dict__.update(given)

    def __getattr__(self, name: str) -> Any:
        if name[:2] == "__":
            raise AttributeError(name)
        if name in GIVE_MODELS:
            return lambda *_, **__: provider(self.hub or "")
        if name in HOLD_OTHERS:
            return vars(self).setdefault(name, Held())
        return None

    def __call__(self, *given: Any, **_: Any) -> Any:
        return given[0] if given and callable(given[0]) else Held()

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return True


def provider(hub: str) -> Any:
    """The model of a name on the hub; sizes of its preset that recipes read are no settings of theirs."""
    model = model_of_tokenizer(hub)
    # models/gpt_provider.py; degrees: megatron/core ModelParallelConfig
    sizes: dict[str, Any] = {"hub": hub, "vocab_size": 1, "rotary_base": 10000}
    sizes |= {"context_parallel_size": 1, "tensor_model_parallel_size": 1}
    if model is not None:
        sizes |= {"num_layers": model.num_layers, "mtp_num_layers": model.num_mtp_layers or None}
        sizes["num_moe_experts"] = model.moe and model.moe.num_experts
    return Class("GPTModelProvider", (Held,), sizes)()


class Module(types.ModuleType):
    """A module that has every class."""

    def __getattr__(self, name: str) -> Any:
        if name[:2] == "__":
            raise AttributeError(name)
        return vars(self).setdefault(name, Class(name, (Held,), {}))


class Finder(StandIns):
    """Stand-ins for all modules of `ABSENT` but the real ones, which lie below `source`."""

    module = Module

    def __init__(self, source: Path) -> None:
        super().__init__(*ABSENT)
        self._source = source

    def find_spec(self, fullname: str, *places: Any) -> importlib.machinery.ModuleSpec | None:
        is_real = any(f"{fullname}.".startswith(f"{real}.") for real in REAL)
        return None if is_real else super().find_spec(fullname, *places)

    def exec_module(self, module: types.ModuleType) -> None:
        """Real modules may lie below a stand-in."""
        module.__path__ = [str(self._source.joinpath(*module.__name__.split(".")))]


def configurations(bridge: Path) -> Iterator[tuple[str, Any]]:
    """Name and configuration of every recipe that needs no parameters, and beside its fields what `kinds` it is of.

    Recipes of benchmarks stand before those of the library that have their name (scripts/training/recipe_metadata.py).
    """
    source = bridge / "src"
    sys.meta_path.insert(0, Finder(source))
    for one in SECTIONS:
        for of in vars(importlib.import_module(one)).values():
            if dataclasses.is_dataclass(of) and of.__module__ == one:
                recording(of)
    for folder in ("perf_recipes", "recipes"):
        for path in sorted((source / "megatron" / "bridge" / folder).rglob("*.py")):
            module = ".".join(path.relative_to(source).with_suffix("").parts)
            for name in recipe_names(ast.parse(path.read_text(encoding="utf-8"))):
                recipe = getattr(importlib.import_module(module), name)
                vars(sys.modules["torch"])["cuda"] = on_device(recipe.__name__)
                try:
                    made = recipe()
                except (NotImplementedError, TypeError) as why:
                    print(f"left out {name}: {why}", file=sys.stderr)
                    continue
                is_benchmark, is_named = folder == "perf_recipes", isinstance(made.mixed_precision, str)
                vars(made)["kinds"] = " ".join(["benchmark"] * is_benchmark + ["named_precision"] * is_named)
                if is_named:
                    made.mixed_precision = getattr(importlib.import_module(PRECISIONS), made.mixed_precision)()
                if is_benchmark:  # started on mock data with full rows (scripts/training/run_recipe.py)
                    vars(made.dataset).pop("enable_offline_packing", None)
                yield name, made


def on_device(recipe: str) -> Held:
    """The torch.cuda of the device in the name of a recipe, of an H100 where it names none."""
    name = next((one for one in recipe.split("_") if one in names(FileKind.HARDWARE)), "h100")
    gpu = Held(major=load_hardware(name).accelerator.capability, name=f"NVIDIA {name.upper()}")
    return Held(is_available=Held(), get_device_properties=lambda _: gpu, get_device_capability=lambda: (gpu.major, 0))


def recipe_names(tree: ast.Module) -> Iterator[str]:
    """Recipes that a module defines without needed parameters, or imports under a name of its own."""
    for node in tree.body:
        named = list[str]()
        match node:
            case ast.FunctionDef(name=name) if len(node.args.args) == len(node.args.defaults):
                named = [name]
            case ast.ImportFrom(names=names):
                named = [one.asname for one in names if one.asname]
        yield from (one for one in named if RECIPE.fullmatch(one))


RECIPE = re.compile(r"[a-z]\w*_(?:pretrain|sft|peft)(?:_\w+)?_config")
"""The name of a recipe."""


def given(section: Any) -> dict[str, Any]:
    """What a recipe gives a section of its configuration, by field."""
    names = section.given if dataclasses.is_dataclass(type(section)) else vars(section)
    return {name: getattr(section, name) for name in names if name[0] != "_"}


def recording(of: Any) -> None:
    """Let instances of a class keep, in order, the names of the fields that they are given (`given`)."""
    fill = of.__init__

    def fill_and_note(self: Any, **named: Any) -> None:
        fill(self, **named)
        vars(self)["given"] = dict.fromkeys(named)

    def note(self: Any, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        vars(self).setdefault("given", {})[name] = None

    of.__init__, of.__setattr__ = fill_and_note, note
