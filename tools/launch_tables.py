"""Tables of what frameworks ship under a name, from their sources: torchtitan's flavors and configurations, recipes.

    python -m tools.launch_tables torchtitan .venv/lib/python3.11/site-packages > spaces/keys/torchtitan_flavors.yaml
    python -m tools.launch_tables torchtitan_configs CHECKOUT > spaces/keys/torchtitan_configs.yaml
    python -m tools.launch_tables nemo .venv/lib/python3.11/site-packages > spaces/keys/nemo_recipes.yaml

Sources are read as text (`ast`), never imported.
"""

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from primus_search.files.framework_files import load_framework
from primus_search.files.known_keys import known_keys
from primus_search.files.source import read
from primus_search.launch.contract import is_ignored
from primus_search.launch.read.python_calls import PythonModule
from primus_search.launch.read.torchtitan_config import functions_of, settings_of

SOURCES = read(Path(__file__).with_name("framework_sources.yaml")).data


def plain(node: ast.expr, known: Mapping[str, Any] | None = None) -> Any:
    """A literal; a call as its keywords, a name of torch's types as its last part; known: constants of the module.

    Raises ValueError for others.
    """
    match node:
        case ast.Name() if known and node.id in known:
            return known[node.id]
        case ast.Call(func=ast.Name(), args=[]):
            return {str(word.arg): plain(word.value, known) for word in node.keywords}
        case ast.Attribute(value=ast.Name(id="torch")):
            return node.attr
        case ast.List():
            return [plain(one, known) for one in node.elts]
    return ast.literal_eval(node)


def _defaults(path: Path, name: str) -> dict[str, Any]:
    """Fields of a dataclass with literal defaults."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and one.value is not None]
            return {f.target.id: f.value.value for f in fields  # type: ignore[union-attr]
                    if isinstance(f.value, ast.Constant) and f.value.value is not None}  # fmt: skip
    return {}


def torchtitan(site: Path) -> dict[str, Any]:
    """Every flavor of a decoder by family, with what its class leaves at a default."""
    found: dict[str, Any] = {}
    for family in SOURCES["families"]:
        folder = site / "torchtitan" / "models" / family
        for node in ast.parse((folder / "__init__.py").read_text()).body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
                keys = [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
                calls = [call for call in node.value.values if isinstance(call, ast.Call)]
                defaults = _defaults(folder / "model" / "args.py", calls[0].func.id)  # type: ignore[attr-defined]
                flavors = {str(key): _sizes(plain(call)) for key, call in zip(keys, calls, strict=True)}
                found[family] = {"defaults": _sizes(defaults), "flavors": flavors}
    return found


def _sizes(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key not in SOURCES["unread"]}


def nemo(site: Path) -> dict[str, Any]:
    """Every pre-training recipe without parameters: the model that it takes, and the settings that it makes."""
    recipes = site / "megatron" / "bridge" / "recipes"
    common = _functions(recipes / "common.py")["_pretrain_common"]
    call = next(one for one in ast.walk(common) if isinstance(one, ast.Call) and ast.unparse(one.func) == BASE)
    sections = [(str(word.arg), word.value) for word in call.keywords if isinstance(word.value, ast.Call)]
    base = [(f"{name}.{word.arg}", word.value) for name, part in sections for word in part.keywords]
    found: dict[str, Any] = {}
    for path in sorted(recipes.rglob("*.py")):
        known = _constants(path)
        for name, function in _functions(path).items():
            if name.endswith("pretrain_config") and name[0] != "_" and not function.args.args:
                model = _model(function)
                if model:
                    settings = _settings([*base, *_assigned(function)], known)
                    settings |= _layout(path, settings)
                    found[name.removesuffix("_config")] = {"model": model, "settings": settings}
    return found


BASE = "ConfigContainer"


def _functions(path: Path) -> dict[str, ast.FunctionDef]:
    return {one.name: one for one in ast.parse(path.read_text()).body if isinstance(one, ast.FunctionDef)}


def _constants(path: Path) -> dict[str, Any]:
    """Numbers and words that a module names."""
    pairs = [(one.target, one.value) for one in ast.parse(path.read_text()).body if isinstance(one, ast.AnnAssign)]
    return {t.id: v.value for t, v in pairs if isinstance(t, ast.Name) and isinstance(v, ast.Constant)}


def _model(function: ast.FunctionDef) -> str:
    """The HuggingFace name that a recipe takes its model from; empty where it has none."""
    calls = [one for one in ast.walk(function) if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute)]
    names = [one.args[0] for one in calls if one.func.attr == "from_hf_pretrained" and one.args]  # type: ignore
    return next((str(one.value) for one in names if isinstance(one, ast.Constant)), "")


def _settings(assigned: Iterable[tuple[str, ast.expr]], known: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under the names that Megatron gives them; what is off and what moves nothing is left out."""
    listed, found = known_keys("megatron"), dict[str, Any]()
    for target, value in assigned:
        section, _, key = target.partition(".")
        try:
            given = plain(value, known) if section in SOURCES["settings"] else None
        except ValueError:
            continue
        fields = given if isinstance(given, dict) and not key else {key or section: given}
        found |= {listed.renamed.get(name, name): one for name, one in fields.items()}
    unlisted = {name: one for name, one in found.items() if name not in listed.irrelevant}
    return {name: one for name, one in unlisted.items() if one is not None and name not in SOURCES["data"]}


def _layout(path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The layout of stages that the recipe's module keeps for its pipeline, as Megatron's letters; none without it."""
    maps = [one.value for one in ast.walk(ast.parse(path.read_text()))
            if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "layout_map"]  # fmt: skip
    wanted = (settings.get("pipeline_model_parallel_size", 1), settings.get("virtual_pipeline_model_parallel_size", 1))
    last = ["mtp"] * settings.get("mtp_num_layers", 1) + ["loss"]
    for table in maps:
        assert isinstance(table, ast.Dict)
        for key, value in zip(table.keys, table.values, strict=True):
            if key is not None and ast.literal_eval(key) == wanted and not isinstance(value, ast.Constant):
                stages = _stages(value, last)
                return {"pipeline_model_parallel_layout": "|".join("".join(LETTERS[one] for one in s) for s in stages)}
    return {}


LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}


def _stages(node: ast.expr, last: list[str]) -> Any:
    """Sums and multiples of lists."""
    match node:
        case ast.BinOp(op=ast.Add()):
            return _stages(node.left, last) + _stages(node.right, last)
        case ast.BinOp(op=ast.Mult()):
            return _stages(node.left, last) * ast.literal_eval(node.right)
        case ast.List():
            return [_stages(one, last) for one in node.elts]
        case ast.Name(id="last_layer"):
            return last
    return ast.literal_eval(node)


def _assigned(function: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    """`cfg.a.b = value` of a function as `a.b` and the value."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            name = ast.unparse(node.targets[0])
            if name.startswith("cfg."):
                yield name.removeprefix("cfg."), node.value


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


TABLES = {"torchtitan": torchtitan, "torchtitan_configs": torchtitan_configs, "nemo": nemo}


def main(name: str, site: str) -> int:
    """Print a table as YAML, its source first."""
    package = "megatron_bridge" if name == "nemo" else "torchtitan"
    release = next((p.name.split("-")[1].removesuffix(".dist") for p in Path(site).glob(f"{package}-*.dist-info")), "")
    release = release.removesuffix(".dist")
    print(f"# Written by `python -m tools.launch_tables {name}` from {package} {release} as pip installs it.")
    print(yaml.safe_dump(TABLES[name](Path(site)), sort_keys=False, width=118, default_flow_style=None), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
