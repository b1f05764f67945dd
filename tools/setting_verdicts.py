"""Every setting that a framework's own parser or configuration class takes has a verdict here, or this fails.

    python -m tools.setting_verdicts megatron ../Megatron-LM          # a checkout, or a folder with `megatron/`
    python -m tools.setting_verdicts primus ../Primus
    python -m tools.setting_verdicts torchtitan ../torchtitan         # 0.3.0
    python -m tools.setting_verdicts torchtitan@0.2.2 .venv/lib/python3.11/site-packages
    python -m tools.setting_verdicts nemo ../Megatron-Bridge/src      # or megatron-core as pip installs it

Sources are read as text (`ast`, YAML), never imported. A verdict is one of: read (an axis, a number of the workload or
a size of the model), listed with its direction of effect, or listed as one that cannot matter for time or memory.
"""

import ast
import fnmatch
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import yaml

from primus_search.files.framework_files import load_framework
from primus_search.files.known_keys import known_keys
from primus_search.files.source import read
from primus_search.launch.contract import NEGATION, is_ignored
from primus_search.launch.read import torchtitan
from primus_search.launch.read.megatron import model_keys
from primus_search.values.machine.framework import Framework
from tools.argument_tables import of_classes

SOURCES = read(Path(__file__).with_name("framework_sources.yaml")).data


def settings_of_source(name: str, root: Path) -> frozenset[str]:
    """Every setting that the sources of a framework below a folder take, by its name in our lists."""
    if name == "torchtitan":
        return frozenset(one.name for one in of_classes([root], {"": ("torchtitan/trainer.py", "Trainer.Config")}))
    if name.startswith("torchtitan@"):
        files = sorted(root.glob("**/torchtitan/config/job_config.py"))
        return frozenset(_sections(files[0])) if files else frozenset()
    if name == "primus":
        folders = [*root.glob("**/primus/configs/modules/megatron"), *root.glob("**/primus/configs/models/megatron")]
        return frozenset(key for folder in folders for key in _yaml_keys(sorted(folder.rglob("*.yaml"))))
    modules = sorted(root.glob("**/megatron/**/*.py"))
    files = [path for path in modules if any(mark in path.read_text(encoding="utf-8") for mark in SOURCES["declares"])]
    if name != "megatron":
        return frozenset().union(*(_fields(path, SOURCES["configured"] + SOURCES["of_bridge"]) for path in files))
    training = [path for path in files if "training" in path.parts]
    named = {*SOURCES["configured"], *(one for path in training for one in _factories(path))}
    arguments = (key for path in training for key in _arguments(path))
    return frozenset(arguments).union(*(_fields(path, named) for path in files))


def _arguments(path: Path) -> Iterator[str]:
    """Names that argparse gives the arguments of a module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            flags = [
                one.value for one in node.args if isinstance(one, ast.Constant) and str(one.value).startswith("--")
            ]
            named = [one.value for one in node.keywords if one.arg == "dest"]
            if flags:
                yield from (str(one.value) for one in named if isinstance(one, ast.Constant))
                yield from (str(flag).removeprefix("--").replace("-", "_") for flag in flags)


def _factories(path: Path) -> Iterator[str]:
    """Classes that a module turns into arguments."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ArgumentGroupFactory":
            yield from (one.id for one in node.args if isinstance(one, ast.Name))


def _fields(path: Path, classes: Iterable[str]) -> set[str]:
    """Annotated fields of some classes of a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name in classes)
    bodies = (one for node in found for one in node.body if isinstance(one, ast.AnnAssign))
    return {one.target.id for one in bodies if isinstance(one.target, ast.Name)}


def _sections(path: Path) -> Iterator[str]:
    """Keys of torchtitan's job file: sections and fields of `JobConfig`, nested ones with dots."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}

    def fields(name: str, prefix: str) -> Iterator[str]:
        for one in classes[name].body:
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                kind = ast.unparse(one.annotation)
                key = f"{prefix}{one.target.id}"
                yield from fields(kind, f"{key}.") if kind in classes else (key,)

    return fields("JobConfig", "")


def _yaml_keys(files: Iterable[Path]) -> Iterator[str]:
    for path in files:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        if isinstance(data, dict):
            yield from map(str, data)


def verdict(framework: Framework, key: str) -> str:
    """What is known of a setting: `read`, `not priced`, `cannot matter`, or nothing."""
    table = known_keys(framework.keys)
    positive = key.removeprefix(NEGATION)
    if framework.keys == "torchtitan":
        is_read = key in framework.spelled or key in torchtitan.READ or key in table.read_beside
    else:
        names = (table.renamed, table.translated, table.read_beside, model_keys(), table.companions)
        is_read = key in framework.spelled or any(key in one for one in names)
    if any(fnmatch.fnmatch(key, pattern) for pattern in framework.ignored):
        return "cannot matter"
    if key in framework.effects or (positive != key and positive in framework.effects):
        return "not priced"
    if is_read or (positive != key and positive in framework.spelled):
        return "read"
    return "cannot matter" if is_ignored(framework, table, key) else ""


def verdicts(name: str, root: Path) -> Mapping[str, str]:
    """The verdict of every setting of a framework's sources, by its name."""
    framework = load_framework(name)
    return {key: verdict(framework, key) for key in sorted(settings_of_source(name, root))}


def main(words: list[str]) -> int:
    """Print counts and what has no verdict; 1 where anything has none, 2 where nothing was found."""
    name, root = words[0], Path(words[1])
    found = verdicts(name, root)
    counts = Counter(found.values())
    print(
        f"{name}: {len(found)} settings, "
        + ", ".join(f"{n} {kind or 'without a verdict'}" for kind, n in counts.items())
    )
    for key in (key for key, kind in found.items() if not kind):
        print(f"  {key}")
    return 2 if not found else int("" in counts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
