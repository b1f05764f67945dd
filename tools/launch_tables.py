"""Tables of what frameworks ship under a name, from their sources: torchtitan's flavors and configurations, recipes.

    python -m tools.launch_tables torchtitan .venv/lib/python3.11/site-packages > spaces/keys/torchtitan_flavors.yaml
    python -m tools.launch_tables torchtitan_configs CHECKOUT > spaces/keys/torchtitan_configs.yaml
    python -m tools.launch_tables nemo ../Megatron-Bridge > spaces/keys/nemo_recipes.tsv

Sources of torchtitan are read as text, never imported; recipes run (`bridge_recipes`).
"""

import enum
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from primus_search.files.framework_files import load_framework
from primus_search.files.known_keys import key_table, known_keys
from primus_search.files.python.python_module import PythonModule
from primus_search.files.python.python_values import plain
from primus_search.files.source import read
from primus_search.launch.contract import is_ignored
from primus_search.launch.read.torchtitan_config import functions_of, settings_of
from tools.argument_tables import UNKNOWN, default_of
from tools.bridge_recipes import configurations, given
from tools.class_fields import Sources

SOURCES = read(Path(__file__).with_name("framework_sources.yaml")).data


def torchtitan(site: Path) -> dict[str, Any]:
    """Every flavor of a decoder by family, with what its class leaves at a default."""
    found: dict[str, Any] = {}
    for family in SOURCES["families"]:
        folder = site / "torchtitan" / "models" / family
        names = PythonModule.of(folder / "__init__.py").names.values()
        calls = next(one for one in names if isinstance(one, dict))
        fields = Sources([site]).fields(folder / "model" / "args.py", next(iter(calls.values())).last)
        known = {one.name: default_of(one.default) for one in fields if "." not in one.name}
        defaults = {name: json.loads(text) for name, text in known.items() if text != "null" and text[:1] != UNKNOWN}
        flavors = {key: _sizes(plain(call)) for key, call in calls.items()}
        found[family] = {"defaults": _sizes(defaults), "flavors": flavors}
    return found


def _sizes(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key not in SOURCES["unread"]}


Row = tuple[str, str, str, dict[str, Any]]
"""Name, model, kinds and settings of a recipe."""


def nemo(bridge: Path) -> Iterator[Row]:
    """Every recipe."""
    found = {name: (_model(made), made.kinds, _settings(made)) for name, made in reversed(list(configurations(bridge)))}
    return ((name.removesuffix("_config"), *found[name]) for name in sorted(found, key=lambda n: (found[n][0], n)))


def _model(made: Any) -> str:
    """The name on the hub of a recipe's model, else of its tokenizer; in brackets its class where that has sizes."""
    kind = type(made.model).__name__
    return str(made.model.hub or made.tokenizer.tokenizer_model or "") if kind in OWN_SIZES else f"({kind})"


OWN_SIZES = ("GPTModelProvider", "HybridModelProvider")
"""Classes of models whose sizes a recipe gives whole; others have some of their own."""


def _settings(made: Any) -> dict[str, Any]:
    """Settings under the names that Megatron gives them; what is off and what moves nothing is left out."""
    listed, found = known_keys("megatron"), dict[str, Any]()
    order = SOURCES["settings" if made.ddp.use_distributed_optimizer else "unsharded"]
    for name, value in (pair for one in order if (of := getattr(made, one)) is not None for pair in given(of).items()):
        plain = 0 if name == "mtp_num_layers" and value is None else plain_value(value)
        found |= {} if plain is None else {listed.renamed.get(name, name): plain}
    # training/comm_overlap.py sets these whatever `ddp` has.
    if (own := made.comm_overlap) is not None and made.ddp.use_distributed_optimizer:
        usual = key_table("nemo_commands")["overlaps"].items()
        found |= {listed.renamed.get(key, key): value for key, value in usual if getattr(own, key) is None}
    keys = load_framework("nemo").adapters.values() if made.peft is not None else ()
    of_adapters = {key: plain_value(getattr(made.peft, key.partition(".")[2])) for key in keys}
    left_out = {*listed.irrelevant, *SOURCES["data"]} - {*SOURCES["legality"], *keys}
    return {name: one for name, one in (found | of_adapters).items() if one is not None and name not in left_out}


def plain_value(value: Any) -> Any:
    """A setting as a launch file has it: types and members by their names, stages as letters; None for objects."""
    match value:
        case enum.Enum() | type():
            return value.name if isinstance(value, enum.Enum) else value.__name__
        case [[*_], *_]:
            return "|".join("".join(LETTERS[one] for one in stage) for stage in value)
        case list() | tuple():
            return [plain_value(one) for one in value]
        case bool() | int() | float() | str():
            return value
    return None


LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}


def lines(recipes: Iterable[Row]) -> Iterator[str]:
    """Rows of the table: name, model, kinds, an earlier row of the model, and what is other there; null is left out."""
    earlier: list[tuple[str, str, dict[str, Any]]] = []
    for name, model, kinds, settings in recipes:
        near = [(like, _changes(of, settings)) for like, its, of in earlier if its == model]
        like, changes = min([("", settings), *near], key=lambda one: len(json.dumps(one[1])))
        yield "\t".join([name, model, kinds, like, json.dumps(changes, separators=(",", ":"))])
        earlier.append((name, model, settings))


def _changes(of: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    changed = {key: value for key, value in settings.items() if key not in of or of[key] != value}
    return changed | dict.fromkeys(key for key in of if key not in settings)


def torchtitan_configs(site: Path) -> dict[str, Any]:
    """Settings of every configuration function of a language model by family; what moves nothing is left out."""
    framework, found = load_framework("torchtitan"), dict[str, Any]()
    listed = known_keys(framework.keys)
    for family in SOURCES["configured_families"]:
        module = PythonModule.of(site / "torchtitan" / "models" / family / "config_registry.py")
        for name in functions_of(module):
            given = settings_of(module.returned(name))
            kept = {key: one for key, one in given.items() if not is_ignored(framework, listed, key)}
            found.setdefault(family, {})[name] = kept
    return found


TABLES = {"torchtitan": torchtitan, "torchtitan_configs": torchtitan_configs}


def main(name: str, *places: str) -> int:
    """Print a table, its source first."""
    if name == "nemo":
        print("# Recipes of NVIDIA-NeMo/Megatron-Bridge 067f987d (0.7, 2026-08-22), by `python -m tools.launch_tables`")
        print("# name\tmodel\tkinds\tlike\tsettings")
        print(*lines(nemo(Path(places[0]))), sep="\n")
        return 0
    site = Path(places[0])
    release = next((p.name.split("-")[1].removesuffix(".dist") for p in site.glob("torchtitan-*.dist-info")), "")
    print(f"# Written by `python -m tools.launch_tables {name}` from torchtitan {release} as pip installs it.")
    print(yaml.safe_dump(TABLES[name](site), sort_keys=False, width=118, default_flow_style=None), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
