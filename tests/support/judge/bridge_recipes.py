"""Recipes of Megatron-Bridge as run: `python -m tests.support.judge.bridge_recipes BRIDGE`, one JSON line each.

Its recipes, precisions and graphs are imported as they are; torch, Megatron-Core and its other modules are stand-ins
whose objects have every attribute, None where nothing set it.
"""

import ast
import importlib
import importlib.abc
import importlib.machinery
import json
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from primus_search.models.tokenizers import model_of_tokenizer
from tools.launch_tables import recipe_names

OWN = "megatron.bridge"
REAL = tuple(f"{OWN}.{name}" for name in ("training.mixed_precision", "training.comm_overlap", "utils.cuda_graph",
             "models.deepseek.deepseek_v4_bridge", "recipes", "perf_recipes"))  # fmt: skip
STANDS_IN = ("torch", "transformers", "datasets", "omegaconf", "hydra", "nemo_run", "transformer_engine", "megatron")


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
        if name in ("to_megatron_provider", "get_model_config"):
            return lambda **_: provider(self.hub or "")
        if name == "rerun_state_machine":
            self.rerun_state_machine = Held()
            return self.rerun_state_machine
        return None

    def __call__(self, *given: Any, **_: Any) -> Any:
        return given[0] if given and callable(given[0]) else Held()

    def __iter__(self) -> Iterator[Any]:
        return iter((Held(), Held()))

    def __ge__(self, _: object) -> bool:
        return True


def provider(hub: str) -> Held:
    model = model_of_tokenizer(hub)
    if model is None:
        return Held(vocab_size=1)
    return Held(vocab_size=model.vocab_size, num_layers=model.num_layers, mtp_num_layers=model.num_mtp_layers or None)


class Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name[:2] == "__":
            raise AttributeError(name)
        made = Class(name, (Held,), {})
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stand-ins for all modules of some packages but the real ones, which lie below `source`."""

    def __init__(self, source: Path) -> None:
        self._source = source

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        is_real = name in ("megatron", OWN) or any(f"{name}.".startswith(f"{real}.") for real in REAL)
        if is_real or name.partition(".")[0] not in STANDS_IN:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = [str(self._source.joinpath(*module.__name__.split(".")))]


def main(bridge: Path) -> None:
    source = bridge / "src"
    sys.meta_path.insert(0, Finder(source))
    for name in ("megatron", OWN):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(source.joinpath(*name.split(".")))]
    for path in sorted((source / "megatron/bridge/perf_recipes").rglob("*.py")):
        if path.parent.parent.name == "wan":  # makes images
            continue
        module = ".".join(path.relative_to(source).with_suffix("").parts)
        for name in recipe_names(ast.parse(path.read_text(encoding="utf-8"))):
            config = getattr(importlib.import_module(module), name)()
            print(json.dumps({"name": name, "model": vars(config.model), "train": vars(config.train)}, default=str))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
